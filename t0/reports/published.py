"""Reads the accuracies that T0's authors published for the held-out datasets.

    >>> published_mean(["super_glue/rte"], "T0-11B")
    81.0
    >>> published_mean(["anli/r1"], "T0-11B")      # only the mean of ANLI's rounds is published
    >>> published_mean(["anli/r1", "anli/r2", "anli/r3", "super_glue/rte"], "T0-11B")
    51.0

Each row of `published.csv` names the source of its accuracy, and we compared the accuracy with this
source. If a row has several datasets, such as ANLI's three rounds, its accuracy is the mean over
these datasets.
"""

import csv
import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

MODELS = ("T0-3B", "T0-11B")


@functools.cache
def published_accuracies() -> tuple[dict[str, Any], ...]:
    """Reads the rows of `published.csv`: a model's mean accuracy over prompts and datasets.

    Returns:
      rows with the keys `datasets`, `titles`, `model`, `accuracy` (in percent) and `source`.
    """
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            {
                "datasets": tuple(row["dataset"].split(" ")),
                "titles": tuple(row["title"].split("; ")),
                "model": row["model"],
                "accuracy": float(row["accuracy_percent"]),
                "source": row["source"],
            }
            for row in csv.DictReader(file)
        )


@functools.cache
def held_out_titles() -> Mapping[str, str]:
    """Returns name -> title, for each held-out dataset."""
    return {
        dataset: title
        for row in published_accuracies()
        for dataset, title in zip(row["datasets"], row["titles"], strict=True)
    }


def title_of(dataset: str) -> str:
    """Returns T0's title of a held-out dataset, or the name of any other dataset."""
    return held_out_titles().get(dataset, dataset)


def published_mean(datasets: Collection[str], model: str) -> float | None:
    """Returns a model's published mean over datasets; None if it is unknown for one of them."""
    rows = [
        row
        for row in published_accuracies()
        if row["model"] == model and set(row["datasets"]) <= set(datasets)
    ]
    covered = sum(len(row["datasets"]) for row in rows)
    if not covered or covered != len(set(datasets)):
        return None
    return sum(row["accuracy"] * len(row["datasets"]) for row in rows) / covered


def published_means(datasets: Collection[str]) -> dict[str, float]:
    """Returns model -> its published mean over datasets, if it is known for all of them."""
    means = {model: published_mean(datasets, model) for model in MODELS}
    return {model: mean for model, mean in means.items() if mean is not None}
