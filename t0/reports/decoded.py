"""Reads `decoded_<step>.json`: tasks whose decoded text their metrics judged, with a few texts.

    {"schema": 1, "run": {"mode": "eval", "step": 1000, ...}, "tasks": {"mt_en_de": {
      "metrics": {"bleu": 21.3}, "signatures": {"bleu": "nrefs:1|..."}, "examples": 2737,
      "truncated_inputs": 0, "truncated_targets": 4, "predictions": "predictions/mt_1000.jsonl"}}}

A metric named "rougeL_for_data_to_text" is "rougeL" of the group "data_to_text", if there is a
"rougeL" of the whole. Groups that look like "task1344_rte" are tasks of Super-NaturalInstructions,
others are its categories.

Assumptions: a metric may be undefined (a correlation of constant predictions): NaN and null are
None. Predictions are read where their file lies beside the results; a few lines of it, spread
evenly, are kept. A file that is there and malformed is a UserError.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from t0.errors import UserError
from t0.reports.fields import field, json_object

SHOWN_PREDICTIONS = 5
_INSTRUCTION_TASK = re.compile(r"task\d+_")


@dataclass(frozen=True)
class Prediction:
    """What a model wrote: `heading` names the example where its file does."""

    heading: str
    inputs: str
    targets: tuple[str, ...]
    prediction: str


@dataclass(frozen=True)
class DecodedTask:
    """One task of one run in mode `eval`.

    Attributes:
        metrics: of the whole task: measure -> value, None where it is undefined.
        groups: group -> measure -> value.
        signatures: measure -> what its value means to others, sacreBLEU's signature.
        predictions_file: where all predictions are, None where that is not known.
        predictions: a few of them, spread evenly.
    """

    name: str
    metrics: Mapping[str, float | None]
    groups: Mapping[str, Mapping[str, float | None]]
    signatures: Mapping[str, str]
    examples: int
    truncated_inputs: int | None
    truncated_targets: int | None
    predictions_file: Path | None
    predictions: tuple[Prediction, ...]


def is_instruction_task(group: str) -> bool:
    """Tells whether a group of a metric is a task of Super-NaturalInstructions, or a category."""
    return bool(_INSTRUCTION_TASK.match(group))


def read_decoded_tasks(content: Mapping[str, Any], path: Path) -> tuple[DecodedTask, ...]:
    """Returns the tasks of a file's content, in its order.

    Args:
        content: of `path`.
        path: predictions are looked for beside it.

    Raises:
        UserError: a field is missing or malformed, or a predictions file is.
    """
    return tuple(
        _task(name, record, f"{path}: task '{name}'", path)
        for name, record in field(content, "tasks", dict, path).items()
    )


def _task(name: str, record: object, where: str, path: Path) -> DecodedTask:
    if not isinstance(record, dict):
        raise UserError(f"{where} must be an object, got {record!r:.80}.")
    found = field(record, "metrics", dict, where, default={})
    values = {metric: _value(value, f"{where}: '{metric}'") for metric, value in found.items()}
    signatures = field(record, "signatures", dict, where, default={})
    examples = field(record, "examples", int, where)
    file = _predictions_file(record, path, where)
    return DecodedTask(
        name=name,
        metrics={m: value for m, value in values.items() if not _group(m, values)},
        groups=_grouped(values),
        signatures={str(metric): str(text) for metric, text in signatures.items()},
        examples=examples,
        truncated_inputs=field(record, "truncated_inputs", int, where, default=None),
        truncated_targets=field(record, "truncated_targets", int, where, default=None),
        predictions_file=file,
        predictions=tuple(_some(file, examples)) if file and file.is_file() else (),
    )


def _value(value: object, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"{where} must be a number, got {value!r:.80}.")
    return float(value) if math.isfinite(value) else None


def _group(metric: str, metrics: Mapping[str, Any]) -> str:
    measure, _, group = metric.partition("_for_")
    return group if measure in metrics else ""


def _grouped(values: Mapping[str, float | None]) -> dict[str, dict[str, float | None]]:
    groups: dict[str, dict[str, float | None]] = {}
    for metric, value in values.items():
        group = _group(metric, values)
        if group:
            groups.setdefault(group, {})[metric.partition("_for_")[0]] = value
    return groups


def _predictions_file(record: Mapping[str, Any], path: Path, where: str) -> Path | None:
    given = field(record, "predictions", str, where, default=None)
    if given is None:
        return None
    parts = PurePosixPath(given).parts
    if PurePosixPath(given).is_absolute() or ".." in parts or "\\" in given:
        raise UserError(
            f"{where}: predictions must be a file below the results, got {given!r:.80}."
        )
    return path.parent.joinpath(*parts)


def _some(file: Path, examples: int) -> Iterator[Prediction]:
    """Yields a few predictions, spread evenly over the file."""
    try:
        with file.open(encoding="utf-8") as lines:
            if file.suffix == ".json":
                yield from _of_questions(lines.read(), file)
                return
            wanted = set(places(examples))
            for number, line in enumerate(lines):
                if number in wanted:
                    where = f"{file}, line {number + 1}"
                    yield _prediction(json_object(line, where), where)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}.") from error


def places(count: int) -> Sequence[int]:
    """Returns up to `SHOWN_PREDICTIONS` places of `count`, spread evenly.

    >>> places(12), places(2)
    ([0, 2, 4, 7, 9], [0, 1])
    """
    shown = min(SHOWN_PREDICTIONS, count)
    return [number * count // shown for number in range(shown)]


def _of_questions(text: str, file: Path) -> Iterator[Prediction]:
    examples = json_object(text, file).get("examples", [])
    if not isinstance(examples, list):
        raise UserError(f"{file}: 'examples' must be a list, got {examples!r:.80}.")
    for number in places(len(examples)):
        yield _prediction(examples[number], f"{file}: example {number}")


def _prediction(record: object, where: str) -> Prediction:
    """Returns a prediction from a line in one of the three forms of `predictions/`."""
    if not isinstance(record, dict) or not isinstance(record.get("prediction"), str):
        raise UserError(f"{where}: wanted an object with the text 'prediction'.")
    if isinstance(record.get("Instance"), dict):  # Tk-Instruct's
        instance = record["Instance"]
        parts = [*_texts(record.get("Definition")), *_texts(instance.get("input"))]
        heading, targets = _texts(record.get("Task")), _texts(instance.get("output"))
    elif "question" in record:
        parts = [*_texts(record["question"]), *_texts(record.get("context"))]
        heading, targets = _texts(record.get("id")), _texts(record.get("answers"))
    else:
        parts, targets = _texts(record.get("inputs")), _texts(record.get("targets"))
        heading = ()
    return Prediction("".join(heading), "\n\n".join(parts), tuple(targets), record["prediction"])


def _texts(value: object) -> Sequence[str]:
    """Returns a text, or a list's texts, as a list; nothing for anything else."""
    listed = value if isinstance(value, list) else [value]
    return [text for text in listed if isinstance(text, str)]
