"""Mode `eval`: decodes texts, computes T5's metrics, and writes both to files.

For each checkpoint, these files are written next to the text files of Mesh TensorFlow:

    <model_dir>/validation_eval/decoded_1000.json
    {"schema": 1, "run": {...}, "tasks": {"mt_en_de": {"examples": 2737, "metrics": {"bleu": 21.3},
      "intervals": {"bleu": [20.1, 22.5]},
      "signatures": {"bleu": "nrefs:1|case:mixed|eff:no|tok:intl|smooth:exp|version:2.6.0"},
      "truncated_inputs": 0, "truncated_targets": 4, "predictions": "predictions/..."}}}

    <model_dir>/validation_eval/predictions/mt_en_de_1000.jsonl

Mesh TensorFlow's own evaluation function runs unchanged. Its datasets are wrapped, so that the
results of their postprocessing and metrics are recorded. The results file is written when the
metrics of all tasks of a step are known.

Predictions are written in the formats that the evaluation scripts of the recipes read:

    write_predictions("eval", task, 1000, examples=records, predictions=texts)
    # "eval/predictions/qa_squad_1000.json"

| task | file | content |
|---|---|---|
| `sni_...` | `.jsonl` | Tk-Instruct's `predicted_examples.jsonl`: task, instance, `prediction` |
| `qa_...` | `.json` | `predictions`: id -> text, as SQuAD's scripts read; `metrics`; `examples` |
| any other | `.jsonl` | `idx` (the number of the row), `id`, `inputs`, `prediction`, `targets` |
"""

import contextlib
import dataclasses
import datetime
import functools
import inspect
import itertools
import json
import math
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t0 import compat
from t0.caching.row_numbers import EXAMPLE, ROW
from t0.compat import mesh_dataset, mesh_utils, seqio, t5_metrics, tfds
from t0.compat import tf1 as tf
from t0.errors import UserError, reading, say
from t0.evaluation.examples import Lengths
from t0.evaluation.ranking import results_folder
from t0.evaluation.records import text_of
from t0.evaluation.results import DECODED, SCHEMA, read_json, write_json, write_whole
from t0.files.any_path import read_lines
from t0.files.untrusted import parsed_json
from t0.progress import ProgressLine
from t0.tasks.instruction_tasks import InstructionSource
from t0.tasks.metrics import Bleu, some_unanswerable, squad_metrics, squad_scores
from t0.tasks.recipe_tasks import QuestionSource
from t0.training.metric_values import MetricValues

# The number of evenly spaced examples of each dataset that are written in full for people to read.
READABLE = 100

# For the interval of a metric: the number of batches, the minimum number of examples in each batch,
# and Student's t for 19 degrees of freedom and 95 %.
BATCHES = 20
FEWEST = 5
_STUDENT = 2.093
_ROUNDING = 1e-9  # percent

# The feature of an example that has its number in the order of the task, if not all examples of the
# task are evaluated.
NUMBER = "t0_number"

Record = Mapping[str, Any]
# A task's name, and its examples with the same texts, in the same order, as their targets.
DecodedTask = tuple[str, Sequence[Record]]

# A function of (tasks with metrics, path of a checkpoint), which yields the texts that the
# checkpoint decodes, in the order of the tasks and their examples.
Decode = Callable[[Sequence[DecodedTask], str], Iterator[str]]
# A function that counts the tokens of a text, given the feature ("inputs" or "targets") and the
# text.
CountTokens = Callable[[str, str], int]
# A function of a task's name, which returns the number of the dataset's row ("idx") of each decoded
# example and, if the row has one, its id in the user's data ("id"); None if the rows are unknown.
RowsOf = Callable[[str], Sequence[Record] | None]


def with_results(
    decode: Decode | None,
    facts: Mapping[str, Any],
    *,
    count_tokens: CountTokens | None = None,
    written: int | None = None,
    rows_of: RowsOf = lambda task: None,
) -> Callable[..., None]:
    """Wraps Mesh TensorFlow's `eval_model`, so that its results are also written to files.

    The returned function has the same arguments.

    Args:
      decode: the function that decodes texts; None to decode with Mesh TensorFlow.
      facts: additional facts about the run for the results file.
      count_tokens: the function that counts the tokens of a text; None to count with the task's
        vocabulary.
      written: the maximum number of examples in each predictions file; None for all.
      rows_of: a function that finds the dataset row of each decoded example of a task.
    """
    published = mesh_utils.eval_model

    def eval_model(*args: Any, **keywords: Any) -> None:
        call = inspect.signature(published).bind(*args, **keywords)
        call.apply_defaults()
        arguments = call.arguments
        model_dir, split = arguments["model_dir"], arguments["dataset_split"]
        recorder = _DecodingRecorder(
            results_folder(arguments),
            {"model_dir": model_dir, "split": split, "mode": "eval", "numbered_by": ROW, **facts},
            arguments["sequence_length"],
            count_tokens,
            written,
            rows_of,
        )
        open_datasets = arguments["eval_dataset_fn"]

        def recorded_datasets(**keywords: Any) -> list[mesh_dataset.EvalDataset]:
            datasets = [mesh_dataset.EvalDataset(*each) for each in open_datasets(**keywords)]
            return [recorder.wrap_dataset(dataset) for dataset in datasets]

        def decode_tasks(*arguments: Any) -> Iterator[str]:
            return decode(recorder.tasks(), arguments[-1])

        texts = recorder.wrap_decode(decode_tasks if decode else mesh_utils.decode)
        with compat.replaced("mesh_utils.decode", texts):
            published(**{**arguments, "eval_dataset_fn": recorded_datasets})

    return eval_model


@contextlib.contextmanager
def read_from(folder: str) -> Iterator[Decode]:
    """Yields a `Decode` function that reads texts which the PyTorch engine has decoded.

    Within the context, Mesh TensorFlow's evaluation uses the checkpoints of the PyTorch engine.

    Args:
      folder: the folder with the files `<task>_<step>.jsonl` of `t0.inference`, and the file
        `DECODED`, which maps steps to checkpoints.

    Raises:
      UserError: if the folder does not have the texts of a task, or a file cannot be read.
    """
    steps = {path: step for step, path in read_json(f"{folder}/{DECODED}").items()}
    if not steps:
        raise UserError(f"{folder} has no decoded texts: their list, {DECODED}, is missing")

    def texts(tasks: Sequence[DecodedTask], checkpoint: str) -> Iterator[str]:
        for name, examples in tasks:
            path = os.path.join(folder, f"{name}_{steps[checkpoint]}.jsonl")  # noqa: PTH118
            predictions = _read_predictions(path)
            for position, example in enumerate(examples):
                number = int(example.get(NUMBER, position))
                if number not in predictions:
                    raise UserError(
                        f"{path} has no prediction with idx {number}, which is an example of task "
                        f"{name} (it has {len(predictions):,} predictions): decode the task again"
                    )
                yield predictions[number]

    with (
        compat.replaced("mesh_utils.get_checkpoint_iterator", lambda *_, **__: list(steps)),
        compat.replaced("mesh_utils.get_step_from_checkpoint_path", lambda path: int(steps[path])),
    ):
        yield texts


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


def signature_of(metric: Callable[..., Any]) -> str | None:
    """Returns sacreBLEU's signature for a BLEU metric; None for all other metrics."""
    if metric is t5_metrics.bleu:
        return Bleu("intl").signature()
    return metric.signature() if isinstance(metric, Bleu) else None


class _OwnDataset(NamedTuple):
    """A dataset of a user's own function (`run.eval_dataset_fn`) whose name is no task.

    Attributes:
      name: the name in paths.
      source: the source of its rows, which is unknown.
      output_features: its features, which are unknown.
    """

    name: str
    source: None = None
    output_features: Mapping[str, Any] = types.MappingProxyType({})


def _as_file_name(name: str) -> str:
    return re.sub(r"[^\w.:-]|^\.+", "_", name)


@dataclasses.dataclass
class _DecodingRecorder:
    """Records and writes the predictions and metrics of each checkpoint."""

    folder: str
    facts: Mapping[str, Any]
    lengths: Lengths
    count_tokens: CountTokens | None
    written: int | None
    rows_of: RowsOf

    def __post_init__(self) -> None:
        self._tasks: list[tuple[mesh_dataset.EvalDataset, list[Record]]] = []
        self._checkpoint = ""
        self._entries: dict[str, dict[str, Any]] = {}
        self._values: dict[str, MetricValues] = {}
        self._seen: list[tuple[Mapping[str, Any], str]] = []

    def tasks(self) -> list[DecodedTask]:
        """Returns the tasks with the examples whose targets Mesh TensorFlow has read."""
        return [(each.name, examples or _read(each)) for each, examples in self._tasks]

    def wrap_decode(self, decode: Callable[..., Iterator[str]]) -> Callable[..., Any]:
        """Wraps Mesh TensorFlow's `decode` to record the checkpoint that it decodes."""

        def decode_and_note(*args: Any, **kwargs: Any) -> Iterator[str]:
            self._checkpoint = kwargs.get("checkpoint_path") or args[-1]
            self._entries, self._values = {}, {}
            total = sum(len(examples) for _, examples in self._tasks)
            with ProgressLine(total or None, unit="example", doing="decoding") as progress:
                texts = 0
                for text in decode(*args, **kwargs):
                    texts += 1
                    progress.count(1)
                    yield text
            if texts < total:
                raise UserError(
                    f"{texts:,} texts were decoded for {total:,} examples: they belong to other "
                    "tasks or rows. Decode again"
                )

        return decode_and_note

    def wrap_dataset(self, dataset: mesh_dataset.EvalDataset) -> mesh_dataset.EvalDataset:
        """Returns the dataset with postprocessing and metrics that also record their results."""
        if not dataset.metric_fns:
            return dataset
        examples: list[Record] = []
        self._tasks.append((dataset, examples))

        def postprocess(text: str, example: Any = None, is_target: bool = False) -> Any:
            if is_target:
                examples.append(example)
            else:
                self._seen.append((example, text))
            return dataset.postprocess_fn(text, example=example, is_target=is_target)

        metrics = [
            functools.partial(self._compute, dataset, metric) for metric in dataset.metric_fns
        ]
        return dataset._replace(postprocess_fn=postprocess, metric_fns=metrics)

    def _compute(
        self,
        dataset: mesh_dataset.EvalDataset,
        metric: Callable[..., Any],
        targets: Any,
        predictions: Any,
    ) -> Any:
        """Computes a metric, and records its values."""
        task, returned = dataset.name, metric(targets, predictions)
        entry = self._entries.setdefault(task, {"metrics": {}, "signatures": {}})
        numbers = returned
        if not isinstance(returned, tf.Summary):  # needed only for TensorBoard
            numbers = self._values.setdefault(task, MetricValues(task)).add(metric, returned)
            entry["metrics"] |= numbers
            bounds = intervals(metric, numbers, targets, predictions)
            entry["intervals"] = entry.get("intervals", {}) | bounds
            signature = signature_of(metric)
            if signature:
                entry["signatures"] |= dict.fromkeys(numbers, signature)
                print(f"{task}: {', '.join(numbers)} is sacreBLEU's {signature}")
        if metric is dataset.metric_fns[-1]:
            self._finish(task, entry)
        return numbers

    def _finish(self, name: str, entry: dict[str, Any]) -> None:
        registered = name in seqio.TaskRegistry.names()
        task = seqio.TaskRegistry.get(name) if registered else _OwnDataset(_as_file_name(name))
        examples, texts = zip(*self._seen, strict=True) if self._seen else ((), ())
        self._seen = []
        step = int(mesh_utils.get_step_from_checkpoint_path(self._checkpoint))
        written = {"examples": examples[: self.written], "predictions": texts[: self.written]}
        rows = self.rows_of(name)
        rows = rows if rows and len(rows) >= len(examples) else None
        path = write_predictions(self.folder, task, step, **written, rows=rows)
        entry["examples"] = len(examples)
        entry["numbered_by"] = ROW if rows else EXAMPLE
        entry["predictions"] = os.path.relpath(path, self.folder)
        for feature in ("inputs", "targets"):
            cut = entry[f"truncated_{feature}"] = self._count_truncated(task, feature, examples)
            if cut:
                most = self.lengths[feature]
                print(f"{name}: {cut:,} of {len(examples):,} {feature} are over {most} tokens")
        if len(self._entries) == len(self._tasks):
            self._write(step)

    def _count_truncated(self, task: seqio.Task, feature: str, examples: Any) -> int:
        """Counts the examples in which a feature has more tokens than its limit."""
        most = (self.lengths or {}).get(feature)
        output_feature = task.output_features.get(feature)
        text_field = f"{feature}_pretokenized"
        if most is None or output_feature is None or not examples or text_field not in examples[0]:
            return 0

        def count_ids(feature: str, text: str) -> int:
            del feature
            return len(output_feature.vocabulary.encode(text)) + int(output_feature.add_eos)

        count = self.count_tokens or count_ids
        return sum(count(feature, text_of(example[text_field])) > most for example in examples)

    def _write(self, step: int) -> None:
        run = {
            **self.facts,
            "step": step,
            "checkpoint": self._checkpoint,
            "sequence_length": dict(self.lengths) if self.lengths else None,
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        path = os.path.join(self.folder, f"decoded_{step}.json")  # noqa: PTH118
        write_json(path, {"schema": SCHEMA, "run": run, "tasks": self._entries})
        say(f"results: {path}")
        for note in itertools.chain.from_iterable(v.notes() for v in self._values.values()):
            say(note)


def _read(dataset: mesh_dataset.EvalDataset) -> list[Record]:
    """Reads the examples of a dataset without the texts of targets."""
    with tf.Graph().as_default():
        return list(tfds.as_numpy(dataset.dataset_fn()))


def intervals(
    metric: Callable[..., Any],
    whole: Mapping[str, float],
    targets: Sequence[Any],
    predictions: Sequence[Any],
) -> dict[str, list[float]]:
    """Returns a 95 % confidence interval for each value of a metric, by batch means.

    The examples are distributed over `BATCHES` batches, and the metric is computed for each batch.
    The standard error of the value over all examples is the standard deviation of the batches'
    values, divided by the square root of the number of batches. So the metric is computed on each
    example only one more time. The estimate is unbiased for a mean over examples. For a corpus
    metric such as BLEU, the estimate is close if a batch has many sentences.

    If all batches have the same value, this method gives no interval. In this case, a value of 0 or
    100 percent gets Wilson's interval for a proportion (for 0 of 100 examples: 0 to 3.7), and any
    other value gets no interval.

    Args:
      metric: T5's function of targets and predictions, which returns name -> value.
      whole: the metric's values over all examples.
      targets: the targets. If there are fewer than `BATCHES` times `FEWEST` targets, the result is
        empty.
      predictions: the predictions for the same examples.
    """
    if len(targets) != len(predictions) or len(targets) < BATCHES * FEWEST:
        return {}
    from scipy.stats import binomtest

    batches = []
    for number in range(BATCHES):
        try:
            returned = metric(targets[number::BATCHES], predictions[number::BATCHES])
            batches.append(MetricValues("").add(metric, returned))
        except Exception:  # noqa: BLE001 (the metric may be undefined for so few examples)
            return {}
    bounds = {}
    for name, value in whole.items():
        values = np.array([batch.get(name, np.nan) for batch in batches])
        if not (np.isfinite(values).all() and math.isfinite(value)):
            continue
        if np.ptp(values) > _ROUNDING:
            margin = _STUDENT * float(values.std(ddof=1)) / math.sqrt(BATCHES)
            bounds[name] = [value - margin, value + margin]
        elif min(abs(value), abs(100 - value)) < _ROUNDING:
            share = binomtest(len(targets) * (value > 50), len(targets))
            bounds[name] = [100 * float(end) for end in share.proportion_ci(method="wilson")]
    return bounds


def write_predictions(
    folder: str,
    task: seqio.Task,
    step: int,
    *,
    examples: Sequence[Record],
    predictions: Sequence[str],
    rows: Sequence[Record] | None = None,
) -> str:
    """Writes `predictions/<task>_<step>.json` or `.jsonl` under `folder`; returns its path.

    Args:
      folder: the folder of the evaluation's results, local or `gs://`.
      task: the task of the records.
      step: the checkpoint's step.
      examples: the records from `task.get_dataset`; texts may be bytes.
      predictions: the decoded text of each record.
      rows: the dataset row of each record, as `RowsOf` returns it; None if the rows are unknown.

    Raises:
      UserError: if the file cannot be written.
    """
    pairs = list(zip(examples, predictions, strict=True))
    if isinstance(task.source, QuestionSource):
        ending, lines = "json", [json.dumps(_answers(pairs), indent=1, ensure_ascii=False), "\n"]
    elif isinstance(task.source, InstructionSource):
        records = (task.source.prediction_line(example, text.strip()) for example, text in pairs)
        ending, lines = "jsonl", _json_lines(records)
    else:
        numbered = zip(rows or itertools.repeat({}), pairs)  # noqa: B905 (there may be more rows)
        ending, lines = "jsonl", _json_lines({**row, **_line(*pair)} for row, pair in numbered)
    path = os.path.join(folder, "predictions", f"{task.name}_{step}.{ending}")  # noqa: PTH118
    write_whole(path, lines)
    return path


def _json_lines(records: Iterator[Record]) -> Iterator[str]:
    return (json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _line(example: Record, prediction: str) -> dict[str, str]:
    line = {"prediction": prediction}
    for name in ("inputs", "targets"):
        if f"{name}_pretokenized" in example:
            line[name] = text_of(example[f"{name}_pretokenized"])
    return {name: line[name] for name in ("inputs", "prediction", "targets") if name in line}


def _answers(pairs: Sequence[tuple[Record, str]]) -> dict[str, Any]:
    targets = [[text_of(answer) for answer in example["answers"]] for example, _ in pairs]
    texts = [prediction.strip() for _, prediction in pairs]
    may_be_none = some_unanswerable(targets)
    indices = (
        sorted({len(pairs) * number // READABLE for number in range(READABLE)}) if pairs else []
    )
    return {
        "metrics": squad_metrics(targets, texts) if pairs else {},
        "predictions": {
            text_of(example["id"]): text for (example, _), text in zip(pairs, texts, strict=True)
        },
        "examples": [
            {
                **{name: text_of(pairs[index][0][name]) for name in ("id", "question", "context")},
                "answers": targets[index],
                "prediction": texts[index],
                **squad_scores(targets[index], texts[index], may_be_none=may_be_none),
            }
            for index in indices
        ],
    }
