"""The summary of an evaluation in lines: the held-out mean first, then each dataset.

    for line in summary_lines([Path("eval/results_1000.json")]):
        print(line)

    held out, 2 of T0's 11 datasets: mean 51.2   chance 50.0   T0-3B 57.9   T0-11B 70.5
    dataset         prompts   mean  median  range        chance  T0-3B  T0-11B
    super_glue/rte       10   52.7    53.1  47.3 - 55.0    50.0   64.6    81.0

A dataset's mean is over its prompts; the held-out mean is over datasets, of which ANLI's rounds
are three. T0's means are over the same datasets; of ANLI's rounds only their mean is published.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t0.reports.evaluations import EvaluatedRun, as_runs
from t0.reports.published import MODELS, published, published_mean
from t0.reports.summary import WHOLE, metrics_table, rank_tables

_HEADINGS = ("dataset", "prompts", "mean", "median", "range", "chance", *MODELS)


def summary_lines(results: Iterable[Path | EvaluatedRun], *, note: str | None = None) -> list[str]:
    """Returns the lines about the results files of one checkpoint, the most important first.

    Args:
      results: the results files, or runs that were read.
      note: a sentence that stands above everything, or None.

    Raises:
      UserError: if a file is missing or malformed.
    """
    runs = as_runs(results)
    lines = [note] if note else []
    datasets, _ = rank_tables(runs, with_intervals=False)
    for position, run in enumerate(runs):
        rows = [row for row in datasets.itertuples() if row.run == position]
        if len(runs) > 1:
            lines.append(f"{run.label}:")
        lines += _headline(rows)
        lines += _table(rows)
    metrics = metrics_table(runs)
    for row in metrics[metrics.kind == WHOLE].itertuples() if len(metrics) else ():
        value = "-" if row.value is None else f"{row.value:.4g}"
        lines.append(f"{row.task}: {row.metric} {value} ({row.examples:,} examples)")
    return lines


@dataclass(frozen=True)
class HeldOutMean:
    """A run's mean accuracy over those of T0's held-out datasets that it has, in percent.

    Attributes:
      datasets: their number.
      every: the number of T0's held-out datasets.
      chance: the mean of guessing, None if it is unknown for one of the datasets.
      published: model -> its mean over the same datasets, where it is known for all of them.
    """

    datasets: int
    every: int
    mean: float
    chance: float | None
    published: Mapping[str, float]


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


def _headline(rows: Sequence[Any]) -> list[str]:
    found = held_out_mean(rows)
    if found is None:
        return []
    words = [f"mean {found.mean:.1f}"]
    words += [] if found.chance is None else [f"chance {found.chance:.1f}"]
    words += [f"{model} {value:.1f}" for model, value in found.published.items()]
    many = f"{found.datasets} of T0's {found.every} datasets"
    return [f"held out, {many}: " + "   ".join(words)]


def _table(rows: Sequence[Any]) -> list[str]:
    if not rows:
        return []
    known = published()
    cells = [_HEADINGS]
    for row in rows:
        values = known[row.dataset].values if row.dataset in known else {}
        of_t0 = [f"{values[model]:.1f}" if model in values else "-" for model in MODELS]
        middle = (f"{row.mean:.1f}", f"{row.median:.1f}", f"{row.low:.1f} - {row.high:.1f}")
        chance = "-" if row.chance is None else f"{row.chance:.1f}"
        cells.append((row.dataset, str(row.prompts), *middle, chance, *of_t0))
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    return [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
