"""The published accuracies of T0-3B and T0-11B on the 11 held-out datasets, from published.csv.

    >>> published()["super_glue/rte"].values["T0-11B"]
    81.0
    >>> published()["anli/r1"].values      # only the mean of ANLI's three rounds is published
    {}
    >>> published_mean(["anli/r1", "anli/r2", "anli/r3", "super_glue/rte"], "T0-11B")
    51.0

The table has only figures that were compared with their source, which each row names. A row of
several datasets has the mean over them.
"""

import csv
import functools
import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources

MODELS = ("T0-3B", "T0-11B")


@dataclass(frozen=True)
class PublishedAccuracies:
    """The published values for one dataset: model -> mean accuracy over prompts, in percent."""

    title: str
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A row of the table: the mean accuracy of a model over prompts and datasets, in percent."""

    datasets: tuple[str, ...]
    titles: tuple[str, ...]
    model: str
    accuracy: float
    source: str


@functools.cache
def figures() -> tuple[Figure, ...]:
    """Returns the rows of the table."""
    text = resources.files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(
        Figure(
            datasets=tuple(row["dataset"].split(" ")),
            titles=tuple(row["title"].split("; ")),
            model=row["model"],
            accuracy=float(row["accuracy_percent"]),
            source=row["source"],
        )
        for row in csv.DictReader(io.StringIO(text))
    )


@functools.cache
def published() -> Mapping[str, PublishedAccuracies]:
    """Returns T0's held-out datasets by name, with the values that are of one of them alone."""
    titles, values = {}, {}
    for row in figures():
        for dataset, title in zip(row.datasets, row.titles, strict=True):
            titles[dataset] = title
        if len(row.datasets) == 1:
            values.setdefault(row.datasets[0], {})[row.model] = row.accuracy
    return {
        dataset: PublishedAccuracies(title, values.get(dataset, {}))
        for dataset, title in titles.items()
    }


def title_of(dataset: str) -> str:
    """Returns T0's title of a held-out dataset; of any other its name."""
    facts = published().get(dataset)
    return facts.title if facts else dataset


def published_mean(datasets: Collection[str], model: str) -> float | None:
    """Returns a model's mean over datasets; None where the table does not have all of them."""
    found = [row for row in figures() if row.model == model and set(row.datasets) <= set(datasets)]
    covered = sum(len(row.datasets) for row in found)
    if not covered or covered != len(set(datasets)):
        return None
    return sum(row.accuracy * len(row.datasets) for row in found) / covered
