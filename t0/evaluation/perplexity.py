"""Measures perplexity in mode `eval`, for tasks without metrics, and in mode `perplexity_eval`.

    measure(
        {"text_span_corruption": open_batches}, model, checkpoints={20: "/m/model.ckpt-20"},
        folder="/m/validation_eval", facts={},
    )                                   # /m/validation_eval/perplexity_20.json

    {"schema": 1, "run": {...}, "tasks": {"text_span_corruption": {"examples": 512, "tokens": 31000,
      "metrics": {"nats_per_token": 2.31, "perplexity": 10.07, "token_accuracy": 54.2}}}}

Each number is computed over all target tokens of the split, including EOS but not padding. Accuracy
is in percent. `t0 report` shows this file.

Mode `perplexity_eval` belongs to Mesh TensorFlow. This mode measures `run.perplexity_eval_steps`
batches with an estimator, and logs only the negative logarithm of the perplexity. With
`with_printed_perplexity`, it also prints a line with all results:

    weather_which_word_validation_32, step 20: 1.1970 nats a token, perplexity 3.31, token accuracy
    54.2 %, 96 tokens
"""

import datetime
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import tf1 as tf
from t0.errors import UserError, say
from t0.evaluation.model import Model
from t0.evaluation.results import SCHEMA, write_events, write_json
from t0.feeding.uncached import elements
from t0.progress import ProgressLine
from t0.training.losses import PARTS

# The names of the sums over all examples of a task.
SUMS = PARTS[:4]
# A function that yields pairs of a task: a batch, and the number of its examples.
OpenBatches = Callable[[], Iterator[tuple[Mapping[str, np.ndarray], int]]]
# The features that a model reads. Packed features also have segments and positions.
_FEATURES = ("inputs", "targets")


def measure(
    tasks: Mapping[str, OpenBatches],
    model: Model,
    *,
    checkpoints: Mapping[int, str],
    folder: str,
    facts: Mapping[str, Any],
) -> None:
    """Measures tasks at each checkpoint, and writes and prints the results.

    Args:
      tasks: task name -> a function that yields its batches.
      model: the model, opened to measure.
      checkpoints: step -> path.
      folder: the folder for results.
      facts: facts of the run for the results file.

    Raises:
      UserError: if a checkpoint cannot be read, or a task has no target token.
    """
    for step, path in checkpoints.items():
        say(f"restored {model.restore(path)} variables from {path}")
        entries = {}
        for name, open_batches in tasks.items():
            entry = entries[name] = _measure_task(name, open_batches, model)
            print(_line(name, step, entry), flush=True)
        run = {**facts, "step": step, "checkpoint": path, "mode": "perplexity"}
        run.pop("sample_seed", None)  # the first examples are measured, instead of a sample
        now = datetime.datetime.now(datetime.timezone.utc)
        run["created"] = now.isoformat(timespec="seconds")
        results_path = os.path.join(folder, f"perplexity_{step}.json")  # noqa: PTH118
        write_events(folder, step, entries, kind="perplexity")
        write_json(results_path, {"schema": SCHEMA, "run": run, "tasks": entries})
        say(f"results: {results_path}")


def feature_names(datasets: Sequence[Any]) -> list[str]:
    """Returns the names of the features that the model reads, which all tasks must have."""
    with tf.Graph().as_default():
        specs = [dataset.dataset_fn().element_spec for dataset in datasets]
    names = [
        name
        for name, kind in specs[0].items()
        if name.split("_")[0] in _FEATURES and kind.dtype.is_integer and kind.shape.rank == 1
    ]
    for dataset, spec in zip(datasets, specs, strict=True):
        if not set(names) <= set(spec):
            raise UserError(
                f"task {dataset.name} has the features {', '.join(spec)}, and {datasets[0].name} "
                f"has {', '.join(names)}: measure them in two runs"
            )
    return names


def _measure_task(name: str, open_batches: OpenBatches, model: Model) -> dict[str, Any]:
    sums = np.zeros(len(SUMS))
    examples = 0
    with ProgressLine(None, unit="example", doing=name) as progress:
        for batch, count in open_batches():
            sums += model.measure(batch)[: len(SUMS)]
            examples += count
            values = dict(zip(SUMS, sums.tolist(), strict=True))
            nats = values["nll"] / max(1.0, values["tokens"])
            progress.count(count, note=f"{nats:.3f} nats a token")
    if not examples or not values["tokens"]:
        raise UserError(f"task {name} has no target token in this split: nothing to measure")
    if not math.isfinite(nats):
        raise UserError(f"task {name}: the loss is {nats}; the checkpoint's weights are broken")
    tokens = values["tokens"]
    return {"examples": examples} | _make_entry(int(tokens), nats, 100 * values["correct"] / tokens)


def batches_of(
    dataset: Any, names: Sequence[str], rows: int
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yields (batch, number of its examples) of a dataset. The last batch is padded.

    Args:
      dataset: the dataset, an `EvalDataset` of Mesh TensorFlow.
      names: the features that the model reads.
      rows: the batch size.
    """

    def batches() -> tf.data.Dataset:
        records = dataset.dataset_fn().map(lambda record: {name: record[name] for name in names})
        return records.batch(rows)

    for batch in elements(batches):
        count = len(batch[names[0]])
        yield {n: np.pad(x, [(0, rows - count), (0, 0)]) for n, x in batch.items()}, count


def with_printed_perplexity(get_estimator: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that builds an estimator, so that the estimator prints its results.

    The estimator's `evaluate` method still returns the results, and also prints a line with them.
    The line contains the perplexity.

    Args:
      get_estimator: Mesh TensorFlow's function.
    """

    def build(**keywords: Any) -> Any:
        estimator = get_estimator(**keywords)
        published = estimator.evaluate

        def evaluate(*args: Any, name: str | None = None, **rest: Any) -> Mapping[str, Any]:
            results = published(*args, name=name, **rest)
            tokens, nats = int(results["num_eval_tokens"]), -results["neg_log_perplexity"]
            entry = _make_entry(tokens, nats, 100 * results["token_accuracy"])
            print(_line(name or "evaluation", results["global_step"], entry), flush=True)
            return results

        estimator.evaluate = evaluate
        return estimator

    return build


def _make_entry(tokens: int, nats: float, accuracy: float) -> dict[str, Any]:
    # With a broken model, the nats can be so large that `exp` overflows.
    perplexity = math.exp(min(nats, 700.0))
    metrics = {"nats_per_token": nats, "perplexity": perplexity, "token_accuracy": accuracy}
    return {"tokens": tokens, "metrics": metrics}


def _line(name: str, step: int, entry: Mapping[str, Any]) -> str:
    metrics = entry["metrics"]
    return (
        f"{name}, step {step:,}: {metrics['nats_per_token']:.4f} nats a token, perplexity "
        f"{metrics['perplexity']:.4g}, token accuracy {metrics['token_accuracy']:.1f} %, "
        f"{entry['tokens']:,} tokens"
    )
