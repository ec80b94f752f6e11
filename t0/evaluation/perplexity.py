"""Measures perplexity in mode `eval`, for tasks without metrics, and in mode `perplexity_eval`.

    measure(arguments, facts={})         # /m/validation_eval/perplexity_20.json

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
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, say
from t0.evaluation.mesh_model import (
    both_vocabularies,
    chosen_checkpoints,
    restore_variables,
    vocabulary_hash,
)
from t0.evaluation.ranking import results_folder
from t0.evaluation.results import SCHEMA, write_events, write_json
from t0.feeding.live import elements
from t0.mesh import devices
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.progress import ProgressLine
from t0.training.graph import TrainingSpec, build_held_out
from t0.training.losses import PARTS

# The names of the sums over all examples of a task.
SUMS = PARTS[:4]
# A function that yields pairs of a task: a batch, and the number of its examples.
OpenBatches = Callable[[], Iterator[tuple[Mapping[str, np.ndarray], int]]]
# The features that a model reads. Packed features also have segments and positions.
_FEATURES = ("inputs", "targets")


class HeldOutModel(Protocol):
    """A model that sums losses over batches."""

    def restore(self, checkpoint: str) -> int:
        """Restores a checkpoint's weights; returns the number of variables."""

    def sums(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns sums over padded examples [B, L]. `SUMS` names the first of these sums."""


def measure(
    arguments: Mapping[str, Any],
    checkpoint: str | None = None,
    *,
    facts: Mapping[str, Any],
    make_model: Callable[[str], HeldOutModel] | None = None,
) -> None:
    """Measures the tasks of a run at each checkpoint; see `measure_batches`.

    Args:
      arguments: the arguments of the run, as `t0.run.arguments.read` returns them.
      checkpoint: a checkpoint to measure instead of those in the model directory, or None.
      facts: additional facts about the run for the results file.
      make_model: a function that builds another engine's model for a type of activations; None to
        use Mesh TensorFlow's model.

    Raises:
      UserError: if a checkpoint cannot be read, or a task has no target token.
    """
    spec = TrainingSpec.from_estimator_arguments(**arguments)
    split, vocabulary = arguments["dataset_split"], arguments["vocabulary"]
    datasets = arguments["eval_dataset_fn"](
        sequence_length=spec.sequence_length, vocabulary=vocabulary, dataset_split=split
    )
    names = _feature_names(datasets)
    dtype = bound("get_variable_dtype.activation_dtype", "float32")
    if make_model:
        model = make_model(dtype)
    else:
        model = _MeshHeldOutModel(spec, names, devices.activation_dtype(dtype))
    measure_batches(
        {
            dataset.name: functools.partial(_batches, dataset, names, spec.batch_size)
            for dataset in datasets
        },
        model,
        checkpoints=chosen_checkpoints(arguments, checkpoint),
        folder=results_folder(arguments),
        facts={
            "model_dir": arguments["model_dir"],
            "split": split,
            "vocabulary_sha256": vocabulary_hash(both_vocabularies(vocabulary)[1]),
            **facts,
            "sequence_length": dict(spec.sequence_length),
        },
    )


def measure_batches(
    tasks: Mapping[str, OpenBatches],
    model: HeldOutModel,
    *,
    checkpoints: Mapping[int, str],
    folder: str,
    facts: Mapping[str, Any],
) -> None:
    """Measures tasks at each checkpoint, and writes and prints the results.

    Args:
      tasks: task name -> a function that yields its batches.
      model: the model.
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


class _MeshHeldOutModel:
    """The `HeldOutModel` that computes with Mesh TensorFlow."""

    def __init__(self, spec: TrainingSpec, names: Sequence[str], activations: tf.DType) -> None:
        bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
        self._held_out = build_held_out(spec, features=names, activations=activations)
        self._session = tf.Session(
            graph=self._held_out.graph, config=tf.ConfigProto(allow_soft_placement=True)
        )

    def restore(self, checkpoint: str) -> int:
        count = restore_variables(self._session, checkpoint)
        self._session.run(self._held_out.to_slices)
        return count

    def sums(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        features = self._held_out.features
        feed = {features[name]: batch[name] for name in features}
        return self._session.run(self._held_out.values, feed)[1:]


def _feature_names(datasets: Sequence[Any]) -> list[str]:
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


def _measure_task(name: str, open_batches: OpenBatches, model: HeldOutModel) -> dict[str, Any]:
    sums = np.zeros(len(SUMS))
    examples = 0
    with ProgressLine(None, unit="example", doing=name) as progress:
        for batch, count in open_batches():
            sums += model.sums(batch)[: len(SUMS)]
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


def _batches(
    dataset: Any, names: Sequence[str], rows: int
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yields (batch, number of its examples). The last batch is padded."""

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
