"""Compares accuracy on examples that are not in the training data with accuracy on all examples.

    overlap = read_overlap(Path("overlap"))             # the output folder of `t0 overlap`
    rows = clean_rows(read_runs([Path("eval")]), overlap)
    rows[0]["all"], rows[0]["clean"], rows[0]["p_value"]

An example is clean if it does not overlap with the training data under any scored prompt of its
dataset. An example overlaps if the training data contains one of the example's n-grams or one of
its whole fields. The length n is the first length that `t0 overlap` searched for.

Clean examples are a subset of all examples, so the test of the difference `clean - all` is paired.
The variance of this difference is computed from the influence of each example, with all its
prompts, on the difference. The test generalizes to other examples, but not to other prompts. If
there are several runs, each row also has the run's difference from the first run, both on all
examples and on clean examples.

Assumptions: the overlap was computed for the evaluated rows. If the overlap is for another split,
if it numbers the examples in another way (`numbered_by`), or if an evaluated example has a higher
`idx` than all rows in the overlap, a UserError is raised.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0.config.plain_data import Positive
from t0.errors import UserError, reading
from t0.files import path_inside, paths
from t0.files.any_path import any_path
from t0.reports import accuracies
from t0.reports.accuracies import Grid
from t0.reports.evaluations import EvaluatedRun, RankedTask, tasks_by_dataset
from t0.reports.result_files import EXAMPLE, ROW, field, json_object, read_json_lines, read_text
from t0.reports.statistics import (
    FIXED,
    crossed_mean,
    include_unseen_differences,
    interval_of_difference,
    p_value,
)

SCHEMA = 1
RESULT = "overlap.json"
# The difference `clean - all` is tested only if there are at least this many clean examples and at
# least this many overlapping examples.
FEWEST = 5
_SCORE_EVAL = "_score_eval"
_Object = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """The examples that overlap with the training data.

    Attributes:
      path: the path of `overlap.json`.
      split: the split of the evaluation tasks.
      ngram: the n-gram length that decides whether an example overlaps.
      train: the names of the training datasets.
      examples: name of a task without the suffix `_score_eval` -> the number of its examples or, if
        they are numbered by row, of the rows of its dataset.
      rows: name of a task without the suffix `_score_eval` -> the `idx` of each overlapping
        example.
      numbered_by: the meaning of `idx`: `ROW` or `EXAMPLE`.
    """

    path: Path
    split: str
    ngram: int
    train: tuple[str, ...]
    examples: Mapping[str, int]
    rows: Mapping[str, Collection[int]]
    numbered_by: str = EXAMPLE

    @property
    def sentence(self) -> str:
        """A sentence that defines when an example overlaps."""
        return (
            f"An example overlaps if {self.ngram} of its consecutive words, or a whole field, are "
            f"in the training data {', '.join(self.train)}."
        )


def read_overlap(path: Path) -> Overlap:
    """Reads the result of `t0 overlap`.

    Args:
      path: the folder, or its `overlap.json`.

    Raises:
      UserError: if the result is missing or incomplete.
    """
    path = any_path(path)
    path = path / RESULT if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            f"{path} does not exist. Give the --output folder of a finished `t0 overlap`"
        )
    content = json_object(read_text(path), path)
    if content.get("kind") != "overlap" or content.get("schema") != SCHEMA:
        raise UserError(f"{path}: expected the output of this version's `t0 overlap`")
    run = field(content, "run", _Object, path)
    ngrams = field(run, "ngrams", Sequence[Positive], f"{path}: run")
    if not ngrams:
        raise UserError(f"{path}: run.ngrams is []; expected lengths in words")
    numbered_by = field(run, "numbered_by", str, f"{path}: run", default=EXAMPLE)
    examples = {
        task: field(dataset_counts, "rows", int, f"{path}: {task}")
        if numbered_by == ROW
        else field(tally, "texts", int, f"{path}: {task}")
        for dataset_counts in field(content, "datasets", Mapping[str, _Object], path).values()
        for task, tally in field(dataset_counts, "prompts", Mapping[str, _Object], path).items()
    }
    rows_record = field(content, "rows", _Object, path)
    name = field(rows_record, "file", str, f"{path}: rows")
    rows_path = any_path(path_inside(str(path.parent), name))
    with reading(rows_path):
        checksum = paths.sha256(rows_path)
    if checksum != rows_record.get("sha256"):
        raise UserError(
            f"{rows_path} does not match its checksum in {path}. Run `t0 overlap` again"
        )
    return Overlap(
        path=path,
        split=field(run, "eval_split", str, f"{path}: run"),
        ngram=ngrams[0],
        train=field(run, "train", Sequence[str], f"{path}: run"),
        examples=examples,
        rows=_read_overlapping_rows(rows_path, str(ngrams[0])),
        numbered_by=numbered_by,
    )


def _read_overlapping_rows(path: Path, ngram: str) -> dict[str, set[int]]:
    rows_by_task: dict[str, set[int]] = {}
    for where, line in read_json_lines(path):
        for task, example in field(line, "prompts", Mapping[str, _Object], where).items():
            if field(example, "overlaps", _Object, where).get(ngram):
                row = field(example, "idx", int, where)
                rows_by_task.setdefault(task, set()).add(row)
    return rows_by_task


def clean_rows(runs: Sequence[EvaluatedRun], overlap: Overlap) -> list[dict[str, Any]]:
    """Returns a row for each dataset and run with at least one scored task in the overlap.

    Returns:
      rows with these keys:
        `dataset`, `run` (the run's position), `label`, `prompts`, `examples`, `overlapping`;
        `all`: the accuracy on all examples in percent;
        `clean`, `clean_low`, `clean_high`: the accuracy on clean examples in percent, with its
          interval; None if there are no clean examples;
        `difference`, `difference_low`, `difference_high`, `p_value`: `clean` minus `all`, with its
          interval and p-value; None if there are fewer than `FEWEST` clean examples or fewer than
          `FEWEST` overlapping examples;
        `gap_all`, `gap_clean`, `gap_p_value`: the differences from the dataset's first run on all
          examples and on clean examples, paired by example, and the p-value on clean examples; None
          for the first run.

    Raises:
      UserError: if the overlap was computed for other rows, or contains none of the tasks.
    """
    rows: list[dict[str, Any]] = []
    baselines: dict[str, EvaluatedRun] = {}
    for dataset, position in tasks_by_dataset(runs):
        run = runs[position]
        tasks, grid, clean = _find_covered([run], dataset, overlap)
        if grid is None:
            continue
        _check_same_rows(run, tasks, overlap)
        row = {"dataset": dataset, "run": position, "label": run.label}
        row |= _compare_clean(grid, clean)
        row |= dict.fromkeys(("gap_all", "gap_clean", "gap_p_value"))
        if dataset in baselines:
            row |= _compute_gaps([baselines[dataset], run], dataset, overlap)
        baselines.setdefault(dataset, run)
        rows.append(row)
    if not rows:
        raise UserError(
            f"{overlap.path} has none of the tasks that were scored; it has "
            f"{', '.join([*overlap.examples][:3])} ... Run `t0 overlap --eval` with the mixture "
            "that was evaluated"
        )
    return rows


def _plain_name(task: RankedTask) -> str:
    return task.name.removesuffix(_SCORE_EVAL)


def _find_covered(
    runs: Sequence[EvaluatedRun], dataset: str, overlap: Overlap
) -> tuple[list[RankedTask], Grid | None, np.ndarray | None]:
    """Returns the tasks in the overlap that all runs scored, and the grid of shared examples.

    Returns:
      the tasks; the grid; and bool [E], whether each example is clean. Without tasks, the last two
      are None.
    """
    tasks, grid = accuracies.shared_tasks([[accuracies.scored_tasks(run, dataset)] for run in runs])
    covered = [p for p, task in enumerate(tasks) if _plain_name(task) in overlap.examples]
    if grid is None or not covered:
        return [], None, None
    tasks, grid = [tasks[p] for p in covered], grid.of_prompts(covered)
    overlapping = set().union(*(overlap.rows.get(_plain_name(task), ()) for task in tasks))
    return tasks, grid, ~np.isin(grid.rows, np.array(sorted(overlapping), np.int64))


def _restrict_to_clean(grid: Grid, clean: np.ndarray) -> Grid | None:
    """Returns the grid of the clean examples; None if no example is clean."""
    present = grid.present & clean
    prompts = np.flatnonzero(present.any(axis=1)).tolist()
    return dataclasses.replace(grid, present=present).of_prompts(prompts) if prompts else None


def _compute_gaps(runs: Sequence[EvaluatedRun], dataset: str, overlap: Overlap) -> dict[str, float]:
    _, grid, clean = _find_covered(runs, dataset, overlap)
    if grid is None:
        return {}
    columns = {"gap_all": accuracies.gap([grid], 0, 1)["difference"]}
    clean_grid = _restrict_to_clean(grid, clean)
    if clean_grid is not None:
        gap = accuracies.gap([clean_grid], 0, 1)
        columns |= {"gap_clean": gap["difference"], "gap_p_value": gap["p_value"]}
    return columns


def _check_same_rows(run: EvaluatedRun, tasks: Sequence[RankedTask], overlap: Overlap) -> None:
    split = run.facts.get("split")
    if split is not None and split != overlap.split:
        raise UserError(
            f"{overlap.path} is for the split '{overlap.split}', but {run.path} is for '{split}'. "
            f"Run `t0 overlap --eval_split={split}`"
        )
    for task in tasks:
        count = overlap.examples[_plain_name(task)]
        if task.scores and task.scores.numbered_by != overlap.numbered_by:
            again = "`t0 overlap`" if overlap.numbered_by != ROW else "the evaluation"
            raise UserError(
                f"{overlap.path} numbers examples by {overlap.numbered_by}, but {task.name} in "
                f"{run.path} is numbered by {task.scores.numbered_by}, so they cannot be matched. "
                f"Run {again} again"
            )
        if task.scores and task.scores.idx.max() >= count:
            raise UserError(
                f"{overlap.path} has {count:,} examples of {_plain_name(task)}, but {run.path} has "
                f"idx {task.scores.idx.max():,}, so their rows differ. Run `t0 overlap` on the "
                "data that was evaluated"
            )


def _compare_clean(grid: Grid, clean: np.ndarray) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("clean", "clean_low", "clean_high"))
    row |= dict.fromkeys(("difference", "difference_low", "difference_high", "p_value"))
    row |= {
        "prompts": len(grid.present),
        "examples": len(clean),
        "overlapping": int((~clean).sum()),
        "all": accuracies.accuracy([grid], 0)["mean"],
    }
    clean_grid = _restrict_to_clean(grid, clean)
    if clean_grid is None:
        return row
    clean_accuracy = accuracies.accuracy([clean_grid], 0)
    columns = {"clean": "mean", "clean_low": "low", "clean_high": "high"}
    row |= accuracies.name_columns(clean_accuracy, **columns)
    has_all_prompts = len(clean_grid.present) == len(grid.present)
    if has_all_prompts and min(clean.sum(), (~clean).sum()) >= FEWEST:
        difference = _clean_minus_all(grid, clean)
        interval = interval_of_difference(difference)
        row |= {
            "difference": 100 * float(difference.value),
            "difference_low": 100 * float(interval.low),
            "difference_high": 100 * float(interval.high),
            "p_value": float(p_value(difference)),
        }
    return row


def _clean_minus_all(grid: Grid, clean: np.ndarray) -> Any:
    """Returns the accuracy on clean examples minus that on all examples, as a mean over prompts.

    Its variance is computed from each example's influence on both accuracies, as in the linearized
    variance of a ratio estimator (Cochran, Sampling Techniques, 3rd ed., 1977, chapter 6).
    """
    right = grid.right[0].astype(float)
    present, clean_present = grid.present.astype(float), (grid.present & clean).astype(float)
    count, clean_count = present.sum(axis=1)[:, None], clean_present.sum(axis=1)[:, None]
    mean = (right * present).sum(axis=2)[..., None] / count
    clean_mean = (right * clean_present).sum(axis=2)[..., None] / clean_count
    influence = clean_present * count / clean_count * (right - clean_mean) - present * (
        right - mean
    )
    difference = crossed_mean(
        influence, prompts=FIXED, present=grid.present, clusters=grid.documents
    )
    difference = dataclasses.replace(difference, value=np.asarray((clean_mean - mean).mean()))
    largest = np.abs(influence.mean(axis=0)).max()
    return include_unseen_differences(difference, largest=largest, examples=right.shape[-1])
