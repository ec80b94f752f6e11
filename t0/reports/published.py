"""The published accuracies of T0-3B and T0-11B on the 11 held-out datasets, from published.csv.

    >>> published()["super_glue/rte"].values["T0-11B"]
    81.0

Each row of the table has its source, and whether it was checked against that source.
"""

import csv
import functools
import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

MODELS = ("T0-3B", "T0-11B")


@dataclass(frozen=True)
class PublishedAccuracies:
    """The published values for one dataset: model -> mean accuracy over prompts, in percent."""

    title: str
    values: Mapping[str, float]
    sources: Mapping[str, str]
    checked: bool


@functools.cache
def published() -> Mapping[str, PublishedAccuracies]:
    """Returns the published values by dataset name."""
    text = resources.files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    rows: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        rows.setdefault(row["dataset"], []).append(row)
    return {
        dataset: PublishedAccuracies(
            title=of_dataset[0]["title"],
            values={row["model"]: float(row["accuracy_percent"]) for row in of_dataset},
            sources={row["model"]: row["source"] for row in of_dataset},
            checked=all(row["checked"] == "yes" for row in of_dataset),
        )
        for dataset, of_dataset in rows.items()
    }
