"""A run's mean over T0's held-out datasets, next to chance and the published means.

    summary = summarise(read_named_runs(["eval"])[0])
    for line in headlines(summary):
        print(line)

    held out, 2 of T0's 11 datasets: mean 51.2   chance 50.0   T0-3B 57.9   T0-11B 70.5

A dataset's mean is over its prompts; the held-out mean is over datasets, of which ANLI's rounds
are three. T0's means are over the same datasets; of ANLI's rounds only their mean is published.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from t0.reports.evaluations import EvaluatedRun
from t0.reports.published import MODELS, published, published_mean
from t0.reports.summary import Summary


@dataclass(frozen=True)
class HeldOutMean:
    """A run's mean accuracy over those of T0's held-out datasets that it has, in percent.

    Attributes:
      datasets: their number.
      every: the number of T0's held-out datasets.
      chance: the mean of guessing, None if it is unknown for one of the datasets.
      published: model -> its mean over the same datasets, if it is known for all of them.
    """

    datasets: int
    every: int
    mean: float
    chance: float | None
    published: Mapping[str, float]


def held_out_means(summary: Summary) -> list[tuple[EvaluatedRun, HeldOutMean]]:
    """Returns each checkpoint with a held-out dataset, and its mean."""
    datasets = summary.datasets
    means = [
        (run, held_out_mean(datasets[datasets.run == position].itertuples()))
        for position, run in enumerate(summary.runs)
    ]
    return [(run, mean) for run, mean in means if mean is not None]


def held_out_mean(rows: Iterable[Any]) -> HeldOutMean | None:
    """Returns the mean of one run's rows of the table `datasets`; None without a held-out one."""
    known = published()
    held_out = [row for row in rows if row.dataset in known]
    if not held_out:
        return None
    chances = [row.chance for row in held_out]
    of_models = {m: published_mean([row.dataset for row in held_out], m) for m in MODELS}
    return HeldOutMean(
        datasets=len(held_out),
        every=len(known),
        mean=sum(row.mean for row in held_out) / len(held_out),
        chance=None if None in chances else sum(chances) / len(chances),
        published={model: value for model, value in of_models.items() if value is not None},
    )


def headlines(summary: Summary) -> list[str]:
    """Returns a line for each checkpoint that was evaluated on held-out datasets."""
    lines = []
    for run, found in held_out_means(summary):
        words = [f"mean {found.mean:.1f}"]
        words += [] if found.chance is None else [f"chance {found.chance:.1f}"]
        words += [f"{model} {value:.1f}" for model, value in found.published.items()]
        name = f"{run.label}: " if len(summary.runs) > 1 else ""
        many = f"{found.datasets} of T0's {found.every} datasets"
        lines.append(f"{name}held out, {many}: " + "   ".join(words))
    return lines
