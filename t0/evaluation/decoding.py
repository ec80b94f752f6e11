"""Mode `eval`: decodes texts, computes T5's metrics, and writes both to files, on any engine.

    evaluate(datasets, [(1000, "/models/tiny/model.ckpt-1000")], decode, TextEvaluation(folder, facts))

For each checkpoint, `evaluate` writes the texts first, then it computes their metrics:

    <model_dir>/validation_eval/predictions/mt_en_de_1000.jsonl
    <model_dir>/validation_eval/decoded_1000.json
    {"schema": 1, "run": {...}, "tasks": {"mt_en_de": {"examples": 2737, "metrics": {"bleu": 21.3},
      "intervals": {"bleu": [20.1, 22.5]},
      "signatures": {"bleu": "nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:2.6.0"},
      "truncated_inputs": 0, "truncated_targets": 4, "predictions": "predictions/..."}}}

`evaluate` does what the function `eval_model` of Mesh TensorFlow does, with the same text files
(`<task>_inputs`, `<task>_targets` and `<task>_<step>_predictions`, which have postprocessed texts)
and the same tags in TensorBoard's files. A `Decode` function is all that depends on the engine.
"""

import dataclasses
import datetime
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t0.caching.row_numbers import EXAMPLE, ROW
from t0.compat import mesh_dataset, mesh_utils, seqio, tfds
from t0.compat import tf1 as tf
from t0.errors import UserError, reading, say
from t0.evaluation.prediction_files import write_predictions
from t0.evaluation.ranked_examples import Lengths
from t0.evaluation.records import text_of
from t0.evaluation.results import DECODED, SCHEMA, read_json, write_events, write_json
from t0.evaluation.text_metrics import Judged, judge
from t0.files.any_path import read_lines
from t0.files.untrusted import parsed_json
from t0.progress import ProgressLine

# The feature of an example that has its number in the order of the task, if not all examples of the
# task are evaluated.
NUMBER = "t0_number"

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class DecodedTask:
    """A task with metrics of texts, and its examples.

    Attributes:
      dataset: the task's name, function that opens its examples, postprocessor and metrics.
      examples: the examples, in the order of `dataset`.
      targets: the postprocessed target of each example.
    """

    dataset: mesh_dataset.EvalDataset
    examples: Sequence[Record]
    targets: Sequence[Any]

    @property
    def name(self) -> str:
        """The task's name."""
        return self.dataset.name


# A function of (tasks, path of a checkpoint), which yields the texts that the checkpoint decodes,
# in the order of the tasks and their examples.
Decode = Callable[[Sequence[DecodedTask], str], Iterator[str]]
# A function that counts the tokens of a text, given the feature ("inputs" or "targets") and the
# text.
CountTokens = Callable[[str, str], int]
# A function of a task's name, which returns the number of the dataset's row ("idx") of each decoded
# example and, if the row has one, its id in the user's data ("id"); None if the rows are unknown.
RowsOf = Callable[[str], Sequence[Record] | None]


@dataclasses.dataclass(frozen=True)
class TextEvaluation:
    """The settings of an evaluation by decoding.

    Attributes:
      folder: the folder for results.
      facts: facts about the run for the results file.
      lengths: the limits in tokens; None for no limits.
      count_tokens: the function that counts the tokens of a text; None to count with the task's
        vocabulary.
      written: the maximum number of examples in each predictions file; None for all.
      rows_of: a function that finds the dataset row of each decoded example of a task.
      writes_texts: whether to also write Mesh TensorFlow's text files.
    """

    folder: str
    facts: Mapping[str, Any]
    lengths: Lengths = None
    count_tokens: CountTokens | None = None
    written: int | None = None
    rows_of: RowsOf = lambda task: None
    writes_texts: bool = True


def evaluate(
    datasets: Iterable[Any],
    checkpoints: Iterable[tuple[int, str]],
    decode: Decode,
    evaluation: TextEvaluation,
) -> None:
    """Decodes tasks with each checkpoint, and writes the texts and their metrics.

    Args:
      datasets: the tasks, as a dataset function (`run.eval_dataset_fn`) returns them. Those without
        metrics are skipped.
      checkpoints: the checkpoints, as (step, path).
      decode: the function that decodes texts.
      evaluation: the settings.

    Raises:
      UserError: if a text is missing, two metrics of a task return values with the same name, or a
        file cannot be written.
    """
    named = [mesh_dataset.EvalDataset(*dataset) for dataset in datasets]
    tasks = [_read_task(dataset) for dataset in named if dataset.metric_fns]
    if not tasks:
        say("no dataset has metric functions: nothing is evaluated")
        return
    if evaluation.writes_texts:
        for task in tasks:
            _write_lines(evaluation, f"{task.name}_targets", task.targets)
            _write_lines(evaluation, f"{task.name}_inputs", _pretokenized(task.examples, "inputs"))
    for step, checkpoint in checkpoints:
        _evaluate_checkpoint(tasks, step, checkpoint, decode, evaluation)


def _evaluate_checkpoint(
    tasks: Sequence[DecodedTask],
    step: int,
    checkpoint: str,
    decode: Decode,
    evaluation: TextEvaluation,
) -> None:
    decoded = [
        (task, texts, _write_predictions(evaluation, task, step, texts))
        for task, texts in _decode_tasks(tasks, decode, checkpoint)
    ]
    entries: dict[str, dict[str, Any]] = {}
    summaries: list[bytes] = []
    notes: list[str] = []
    for task, texts, predictions in decoded:
        judged = _judge(evaluation, task, step, texts)
        entries[task.name] = _entry(evaluation, task, judged, predictions)
        summaries += judged.summaries
        notes += judged.notes
        for name, value in judged.metrics.items():
            print(f"eval/{task.name}/{name} at step {step}: {value:.3f}", file=sys.stderr)
    write_events(evaluation.folder, step, entries, kind="decoded", summaries=summaries)
    _write_results(evaluation, step, checkpoint, entries)
    for note in notes:
        say(note)


def _read_task(dataset: mesh_dataset.EvalDataset) -> DecodedTask:
    with tf.Graph().as_default():
        examples = list(tfds.as_numpy(dataset.dataset_fn()))
    targets = [
        dataset.postprocess_fn(
            text_of(target) if isinstance(target, bytes) else target,
            example=example,
            is_target=True,
        )
        for example in examples
        if (target := example.get("targets_pretokenized")) is not None
    ]
    return DecodedTask(dataset, examples, targets)


def _pretokenized(examples: Sequence[Record], feature: str) -> list[Any]:
    name = f"{feature}_pretokenized"
    return [example[name] for example in examples if name in example]


def _decode_tasks(
    tasks: Sequence[DecodedTask], decode: Decode, checkpoint: str
) -> Iterator[tuple[DecodedTask, list[str]]]:
    total = sum(len(task.examples) for task in tasks)
    with ProgressLine(total or None, unit="example", doing="decoding") as progress:
        stream = decode(tasks, checkpoint)
        for task in tasks:
            texts = []
            for text in itertools.islice(stream, len(task.examples)):
                texts.append(text)
                progress.count(1)
            if len(texts) < len(task.examples):
                raise UserError(
                    f"{len(texts):,} texts were decoded for {len(task.examples):,} examples of "
                    f"{task.name}: they belong to other tasks or rows. Decode again"
                )
            yield task, texts


def _write_lines(evaluation: TextEvaluation, name: str, lines: Sequence[Any]) -> None:
    mesh_utils.write_lines_to_file(lines, os.path.join(evaluation.folder, name))  # noqa: PTH118


def _write_predictions(
    evaluation: TextEvaluation, task: DecodedTask, step: int, texts: Sequence[str]
) -> dict[str, str]:
    """Writes a task's predictions file; returns the fields of the task's entry about it."""
    name = task.name
    registered = name in seqio.TaskRegistry.names()
    rows = evaluation.rows_of(name)
    rows = rows if rows and len(rows) >= len(task.examples) else None
    path = write_predictions(
        evaluation.folder,
        seqio.TaskRegistry.get(name) if registered else _OwnDataset(_as_file_name(name)),
        step,
        examples=task.examples[: evaluation.written],
        predictions=texts[: evaluation.written],
        rows=rows,
    )
    numbered_by = ROW if rows else EXAMPLE
    return {"numbered_by": numbered_by, "predictions": os.path.relpath(path, evaluation.folder)}


def _judge(
    evaluation: TextEvaluation, task: DecodedTask, step: int, texts: Sequence[str]
) -> Judged:
    predictions = [
        task.dataset.postprocess_fn(text, example=example)
        for text, example in zip(texts, task.examples, strict=True)
    ]
    if evaluation.writes_texts:
        _write_lines(evaluation, f"{task.name}_{step}_predictions", predictions)
    return judge(task.name, task.dataset.metric_fns, task.targets, predictions)


def _entry(
    evaluation: TextEvaluation, task: DecodedTask, judged: Judged, predictions: Mapping[str, str]
) -> dict[str, Any]:
    """Returns a task's entry in the results file."""
    entry: dict[str, Any] = {
        "metrics": judged.metrics,
        "signatures": judged.signatures,
        "intervals": judged.intervals,
        "examples": len(task.examples),
        **predictions,
    }
    for feature in ("inputs", "targets"):
        cut = entry[f"truncated_{feature}"] = _count_truncated(evaluation, task, feature)
        if cut:
            most = evaluation.lengths[feature]
            count = len(task.examples)
            print(f"{task.name}: {cut:,} of {count:,} {feature} are over {most} tokens")
    return entry


def _count_truncated(evaluation: TextEvaluation, task: DecodedTask, feature: str) -> int:
    """Counts the examples in which a feature has more tokens than its limit."""
    most = (evaluation.lengths or {}).get(feature)
    texts = _pretokenized(task.examples, feature)
    if most is None or not texts or task.name not in seqio.TaskRegistry.names():
        return 0
    output_feature = seqio.TaskRegistry.get(task.name).output_features.get(feature)
    if output_feature is None:
        return 0

    def count_ids(feature: str, text: str) -> int:
        del feature
        return len(output_feature.vocabulary.encode(text)) + int(output_feature.add_eos)

    count = evaluation.count_tokens or count_ids
    return sum(count(feature, text_of(text)) > most for text in texts)


def _write_results(
    evaluation: TextEvaluation, step: int, checkpoint: str, entries: Mapping[str, Any]
) -> None:
    run = {
        **evaluation.facts,
        "mode": "eval",
        "numbered_by": ROW,
        "step": step,
        "checkpoint": checkpoint,
        "sequence_length": dict(evaluation.lengths) if evaluation.lengths else None,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    path = os.path.join(evaluation.folder, f"decoded_{step}.json")  # noqa: PTH118
    write_json(path, {"schema": SCHEMA, "run": run, "tasks": entries})
    say(f"results: {path}")


class _OwnDataset(NamedTuple):
    """A dataset of a user's own function (`run.eval_dataset_fn`) whose name is no task.

    Attributes:
      name: the name in paths.
      source: the source of its rows, which is unknown.
    """

    name: str
    source: None = None


def _as_file_name(name: str) -> str:
    return re.sub(r"[^\w.:-]|^\.+", "_", name)


def read_from(folder: str) -> tuple[dict[int, str], Decode]:
    """Opens texts that the PyTorch engine has decoded; returns its checkpoints and a `Decode`.

    Args:
      folder: the folder with the files `<task>_<step>.jsonl` of `t0.inference`, and the file
        `DECODED`, which maps steps to checkpoints.

    Raises:
      UserError: if the folder has no texts. The `Decode` function also raises it, if the texts of a
        task are missing, or a file cannot be read.
    """
    checkpoints = {int(step): path for step, path in read_json(f"{folder}/{DECODED}").items()}
    if not checkpoints:
        raise UserError(f"{folder} has no decoded texts: their list, {DECODED}, is missing")
    step_of = {path: step for step, path in checkpoints.items()}

    def texts(tasks: Sequence[DecodedTask], checkpoint: str) -> Iterator[str]:
        for task in tasks:
            path = os.path.join(folder, f"{task.name}_{step_of[checkpoint]}.jsonl")  # noqa: PTH118
            predictions = _read_predictions(path)
            for position, example in enumerate(task.examples):
                number = int(example.get(NUMBER, position))
                if number not in predictions:
                    raise UserError(
                        f"{path} has no prediction with idx {number}, which is an example of task "
                        f"{task.name} (it has {len(predictions):,} predictions): decode the task "
                        "again"
                    )
                yield predictions[number]

    return checkpoints, texts


def _read_predictions(path: str) -> dict[int, str]:
    """Returns the number of an example -> its text, from a file of `t0.inference`."""
    predictions: dict[int, str] = {}
    with reading(path, ValueError, KeyError, TypeError):
        for line in read_lines(path):
            record = parsed_json(line)
            number, text = record["idx"], record["prediction"]
            if type(number) is not int or not isinstance(text, str) or number in predictions:
                raise ValueError(f"expected a new idx and its prediction, not {line[:60]!r}")
            predictions[number] = text
    return predictions
