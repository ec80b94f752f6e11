"""Reads `metrics.jsonl` of a training run into curves over steps.

    {"step": 100, "loss": 3.2, "learning_rate": 0.001, "tokens_per_second": 5400.0}
    {"step": 200, "loss": 2.9, "learning_rate": 0.001, "tokens_per_second": 5500.0}
    {"step": 200, "validation_loss": 3.0, "eval/accuracy": 41.0}
    {"step": 200, "best_by": "validation_loss", "best_step": 200}

Assumptions: a training that was resumed repeats steps, so the last line of a step counts; the last
line may be cut short while the training still writes, and is then left out.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.reports.folders import telling_names


@dataclass(frozen=True)
class Curves:
    """One training run: for each quantity its (step, value) points in order of steps.

    Attributes:
        not_finite: number of values that were NaN or infinite and are left out.
        best: the metric by which the best checkpoint was kept, and its step; None without one.
        stopped_early: the step at which the run gave up waiting for a better one, or None.
    """

    label: str
    path: Path
    points: Mapping[str, tuple[tuple[int, float], ...]]
    not_finite: int
    best: tuple[str, int] | None = None
    stopped_early: int | None = None

    def value(self, key: str, step: int) -> float | None:
        """Returns a quantity's value at a step, None where it was not recorded."""
        return dict(self.points.get(key, ())).get(step)

    def last(self, key: str) -> tuple[int, float] | None:
        """Returns the last (step, value) of a quantity."""
        points = self.points.get(key)
        return points[-1] if points else None


def read_curves(paths: Sequence[Path]) -> tuple[Curves, ...]:
    """Reads each metrics file, or the `metrics.jsonl` of each model directory.

    Raises:
        UserError: a file is missing, empty, or malformed (file and line named).
    """
    files = [path / "metrics.jsonl" if path.is_dir() else path for path in map(Path, paths)]
    for file in files:
        if not file.is_file():
            raise UserError(f"metrics file {file} does not exist. Give a run's metrics.jsonl.")
    names = telling_names({file.resolve().parent for file in files})
    curves: list[Curves] = []
    for file in files:
        label = names[file.resolve().parent]
        number = sum(t == label or t.startswith(f"{label} #") for t in (c.label for c in curves))
        curves.append(_read(file, label=f"{label} #{number + 1}" if number else label))
    return tuple(curves)


def _read(path: Path, *, label: str) -> Curves:
    values: dict[str, dict[int, float]] = {}
    not_finite = 0
    best: tuple[str, int] | None = None
    stopped_early: int | None = None
    for step, record in _records(path):
        best_step = record.pop("best_step", None)
        if isinstance(best_step, int) and isinstance(record.get("best_by"), str):
            best = record["best_by"], best_step
            # A run that went on with more patience has later notes without it.
            stopped_early = step if record.get("stopped_early") else None
        for key, value in record.items():
            if key == "step" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if math.isfinite(value):
                values.setdefault(key, {})[step] = float(value)
            else:
                not_finite += 1
    if not values:
        raise UserError(f"{path} holds no numbers by step. Was the training stopped at once?")
    return Curves(
        label=label,
        path=path,
        points={key: tuple(sorted(points.items())) for key, points in sorted(values.items())},
        not_finite=not_finite,
        best=best,
        stopped_early=stopped_early,
    )


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the step and the fields of each whole line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # no newline after it: still being written
                continue
            raise UserError(f"{path}, line {number}: not valid JSON ({error}).") from error
        step = record.get("step") if isinstance(record, dict) else None
        if not isinstance(step, int) or isinstance(step, bool):
            raise UserError(f"{path}, line {number}: wanted an object with a whole 'step'.")
        yield step, record
