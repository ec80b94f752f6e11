"""Measures the loss on held-out batches, and the tasks' metrics, during training.

    evaluation = Evaluation(spec, data, options, graph=graph, session=session)
    evaluation.measure(500, last=False)     # {"validation_loss": 2.31, "eval/accuracy": 41.0, ...}

There are two evaluations: the held-out loss and the task metrics. Both use the current weights in
the training session, and no dropout. Both use the same examples every time. The held-out loss has
the same fields as a training step, with the prefix `validation_`. A further field is
`validation_perplexity`, e to the power of the nats per target token.

    tasks = read_tasks(data.spec, spec.sequence_length)
    task_fields(tasks, ModelInTraining(spec, graph, session))
    # {"eval/sciq_Multiple_Choice/accuracy": 41.2, ..., "eval/accuracy": 38.0}

The fields of task metrics have T5's names: `eval/<task>/<metric>`, and `eval/<metric>` for the mean
over all tasks that have the metric. The evaluation reads the first examples of a split once, and
keeps them in memory. An example of rank evaluation includes all of its choices. As in SeqIO's
evaluation, prediction metrics read decoded and postprocessed text, and score metrics read
log-likelihoods.

Legend: N examples, L input tokens, T target tokens.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import gin, mtf, seqio, tfds
from t0.compat import tf1 as tf
from t0.config.plain_data import Positive
from t0.config.specification import DataSpec
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError
from t0.feeding.data_spec import known_mixture, open_split
from t0.mesh.gather_embedding import target_log_probabilities
from t0.training.graph import ModelProgram, TrainingGraph, TrainingSpec
from t0.training.loop import NO_HELD_OUT, LoopOptions, add_loss_weights
from t0.training.losses import PARTS
from t0.training.metric_values import MetricValues
from t0.training.recorder import PREFIX, validation_fields

# A lowered program: (name -> placeholder, tensor of the result).
_Lowered = tuple[Mapping[str, tf.Tensor], tf.Tensor]


class ModelInTraining:
    """Decodes and scores with the current weights of a training session.

    The programs for decoding and scoring use the training graph's variables in the same session. So
    no weights are copied, and no checkpoint is read. Each program is lowered when it is first used.

    Args:
      spec: the model, the batch and the optimizer.
      graph: the training graph.
      session: the session that holds the graph's variables.

    Raises:
      UserError: if the model has no encoder, or is an ensemble.
    """

    def __init__(self, spec: TrainingSpec, graph: TrainingGraph, session: tf.Session) -> None:
        if spec.model_type != ENCODER_DECODER or spec.ensemble_inputs:
            raise UserError(
                f"task metrics in training need a model with an encoder and a decoder, not an "
                f"ensemble; run.model_type is '{spec.model_type}'. Leave "
                "train_loop.evaluate_every_steps unset"
            )
        self._spec = spec
        self._graph = graph
        self._session = session
        self._lowered: dict[Callable[..., Any], _Lowered] = {}

    def decode(self, inputs: np.ndarray) -> np.ndarray:
        """Returns the ids decoded from `inputs`. Ignore the ids after an EOS."""
        return self._run(_decode, {"inputs": inputs})

    def score(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns log p(targets | inputs) in nats, summed over the targets' tokens."""
        return self._run(_score, {"inputs": inputs, "targets": targets})

    def _run(self, build: Callable[..., Any], values: Mapping[str, np.ndarray]) -> np.ndarray:
        if build not in self._lowered:
            self._lowered[build] = self._lower(build, list(values))
        placeholders, result = self._lowered[build]
        rows, count = self._spec.batch_size, len(values["inputs"])
        padded = {name: np.pad(x, [(0, -count % rows), (0, 0)]) for name, x in values.items()}
        results = [
            self._session.run(
                result, {placeholders[name]: x[start : start + rows] for name, x in padded.items()}
            )
            for start in range(0, count, rows)
        ]
        return np.concatenate(results)[:count]

    def _lower(self, build: Callable[..., Any], names: Sequence[str]) -> _Lowered:
        batch = mtf.Dimension("batch", self._spec.batch_size)
        with (
            self._graph.graph.as_default(),
            tf.variable_scope("", use_resource=True, reuse=tf.AUTO_REUSE),
        ):
            program = self._graph.make_program()
            placeholders, features = {}, {}
            for name in names:
                length = mtf.Dimension("length", self._spec.sequence_length[name])
                shape = mtf.Shape([batch, length])
                placeholders[name] = tf.placeholder(tf.int32, shape.to_integer_list)
                features[name] = mtf.import_fully_replicated(
                    program.mesh, placeholders[name], shape, name=name
                )
            output = build(program, features, self._spec.sequence_length["targets"])
            return placeholders, program.lower().export_to_tf_tensor(output)


def _decode(program: ModelProgram, features: Mapping[str, mtf.Tensor], length: int) -> mtf.Tensor:
    return program.model.decode(
        features["inputs"], variable_dtype=program.types, max_decode_length=length
    )


def _score(program: ModelProgram, features: Mapping[str, mtf.Tensor], length: int) -> mtf.Tensor:
    del length
    targets = features["targets"]
    logits, _ = program.model.call_simple(
        inputs=features["inputs"],
        targets=targets,
        compute_loss=False,
        mode=tf.estimator.ModeKeys.EVAL,
        variable_dtype=program.types,
    )
    vocab_dim = logits.shape.dims[-1]
    present = mtf.cast(mtf.greater(targets, 0), tf.float32)
    split = program.mesh_impl.tensor_dimension_to_mesh_axis(vocab_dim) is not None
    each = target_log_probabilities(logits, targets, vocab_dim, split=split)
    return mtf.reduce_sum(each * present, reduced_dim=targets.shape.dims[-1])


@gin.configurable("task_metrics", module="t0")
@dataclasses.dataclass(frozen=True)
class TaskMetrics:
    """The settings of task metrics during training; gin sets the fields as `task_metrics.NAME`.

    Attributes:
      mixture_or_task_name: the mixture or task to evaluate; None for the training mixture.
      split: the split to evaluate on. Tasks without this split are skipped.
      examples: the number of examples of each task, from the start of the split. In rank
        evaluation, this is a number of records, and each choice is one record.
      use_cached: whether to read the tasks' caches; None for the same setting as the training data.
    """

    mixture_or_task_name: str | None = None
    split: str = "validation"
    examples: Positive = 64
    use_cached: bool | None = None


@dataclasses.dataclass(frozen=True)
class TaskExamples:
    """The examples of a task.

    Attributes:
      task: the SeqIO task.
      rows: the examples of the task's dataset.
      inputs: int32 [N, L], truncated or padded.
      targets: int32 [N, T], truncated or padded.
      postprocessed_targets: the targets after postprocessing, which the metrics read.
    """

    task: seqio.Task
    rows: Sequence[Mapping[str, Any]]
    inputs: np.ndarray
    targets: np.ndarray
    postprocessed_targets: Sequence[Any]


def read_tasks(training_data: DataSpec | None, lengths: Mapping[str, int]) -> list[TaskExamples]:
    """Reads the first examples of the tasks in `TaskMetrics`.

    Tasks without metrics, and tasks without the split, are skipped.

    Args:
      training_data: the specification of the training data; None for a user's own dataset.
      lengths: feature -> its length in tokens.

    Raises:
      UserError: if the mixture is unknown or not set, or if all of its tasks are skipped.
    """
    settings = TaskMetrics()
    split = settings.split
    name = settings.mixture_or_task_name or (training_data and training_data.mixture)
    if name is None:
        raise UserError(
            "train_loop.evaluate_every_steps is set, but the training data is not a SeqIO mixture: "
            "set task_metrics.mixture_or_task_name to a mixture"
        )
    use_cached = settings.use_cached
    if use_cached is None:
        use_cached = bool(training_data and training_data.use_cached)
    tasks = [task for task in seqio.get_subtasks(known_mixture(name)) if split in task.splits]
    with_metrics = [task for task in tasks if task.predict_metric_fns or task.score_metric_fns]
    if not with_metrics:
        raise UserError(
            f"no task of {name} has metrics and a split '{split}': set another mixture "
            "(task_metrics.mixture_or_task_name) or split (task_metrics.split)"
        )
    return [_read(task, split, lengths, settings.examples, use_cached) for task in with_metrics]


def _read(
    task: seqio.Task, split: str, lengths: Mapping[str, int], examples: int, use_cached: bool
) -> TaskExamples:
    with tf.Graph().as_default():
        dataset = task.get_dataset(
            dict(lengths), split=split, use_cached=use_cached, shuffle=False, num_epochs=1
        )
        rows = list(_first(tfds.as_numpy(dataset), examples))
    if not rows:
        raise UserError(
            f"no examples of {task.name} to evaluate on: the split '{split}' is empty, or "
            f"task_metrics.examples, {examples}, is not above 0"
        )
    postprocessed_targets = [
        task.postprocess_fn(_text(task, row), example=row, is_target=True) for row in rows
    ]
    return TaskExamples(
        task=task,
        rows=rows,
        inputs=_block([row["inputs"] for row in rows], lengths["inputs"]),
        targets=_block([row["targets"] for row in rows], lengths["targets"]),
        postprocessed_targets=postprocessed_targets,
    )


def _first(rows: Iterable[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Yields the first `count` rows, then the other choices of the example in the last row."""
    rows = iter(rows)
    last = None
    for last in itertools.islice(rows, count):
        yield last
    if last is not None and np.ndim(last.get("idx", 0)):
        number = last["idx"][0]
        yield from itertools.takewhile(lambda row: row["idx"][0] == number, rows)


def _block(ids: Sequence[np.ndarray], length: int) -> np.ndarray:
    block = np.zeros((len(ids), length), np.int32)
    for row, values in zip(block, ids, strict=True):
        row[: min(length, len(values))] = values[:length]
    return block


def _text(task: seqio.Task, row: Mapping[str, Any]) -> str:
    text = row.get("targets_pretokenized")
    if text is None:
        vocabulary = task.output_features["targets"].vocabulary
        return vocabulary.decode([int(x) for x in row["targets"]])
    return text.decode("utf-8") if isinstance(text, bytes) else str(text)


def task_fields(tasks: Sequence[TaskExamples], model: ModelInTraining) -> dict[str, float]:
    """Returns the metrics of each task and their means; see the module header for the names."""
    fields: dict[str, float] = {}
    by_metric: dict[str, list[float]] = collections.defaultdict(list)
    for examples in tasks:
        for metric, value in _measure_task(examples, model).items():
            fields[f"{PREFIX}{examples.task.name}/{metric}"] = value
            by_metric[metric].append(value)
    return fields | {PREFIX + name: float(np.mean(values)) for name, values in by_metric.items()}


def _measure_task(examples: TaskExamples, model: ModelInTraining) -> dict[str, float]:
    task, values = examples.task, MetricValues(examples.task.name)
    predictions = _predict(examples, model) if task.predict_metric_fns else []
    for function in task.predict_metric_fns:
        values.add(function, function(examples.postprocessed_targets, predictions))
    scores = []
    if task.score_metric_fns:
        scores = model.score(examples.inputs, examples.targets).tolist()
    for function in task.score_metric_fns:
        values.add(function, function(examples.postprocessed_targets, scores))
    return values.numbers


def _predict(examples: TaskExamples, model: ModelInTraining) -> list[Any]:
    task = examples.task
    vocabulary = task.output_features["targets"].vocabulary
    texts = [vocabulary.decode(ids) for ids in model.decode(examples.inputs).tolist()]
    return [
        task.postprocess_fn(text, example=row, is_target=False)
        for text, row in zip(texts, examples.rows, strict=True)
    ]


class Evaluation:
    """The evaluations of one run.

    Args:
      spec: the model, the batch and the optimizer.
      data: the training data.
      options: the intervals and sizes of evaluations.
      graph: the training graph.
      session: the session that holds the graph's variables.

    Raises:
      UserError: if there is no data to evaluate on.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        data: Any,
        options: LoopOptions,
        *,
        graph: TrainingGraph,
        session: tf.Session,
    ) -> None:
        self._options = options
        self._graph, self._session = graph, session
        self._rows = spec.rows
        self._positions = spec.rows * spec.sequence_length["targets"]
        self._tasks: list[TaskExamples] = []
        self._held_out: list[Mapping[str, np.ndarray]] = []
        if options.validate_every_steps:
            self._held_out_data = open_split(data, "validation", options.validation_mixture)
            if self._held_out_data is None:
                raise UserError(NO_HELD_OUT)
        if options.evaluate_every_steps:
            self._tasks = read_tasks(data.spec, spec.sequence_length)
            self._model = ModelInTraining(spec, graph, session)

    def measure(self, step: int, *, last: bool) -> dict[str, float]:
        """Runs the evaluations that are due (all of them if `last`), and returns their fields."""
        fields = {}
        every = self._options.validate_every_steps
        if every and (last or step % every == 0):
            fields |= self._loss()
        every = self._options.evaluate_every_steps
        if every and (last or step % every == 0):
            fields |= task_fields(self._tasks, self._model)
        return fields

    def _loss(self) -> dict[str, float]:
        count = self._options.validation_batches
        if not self._held_out:
            batches = self._held_out_data.batches(self._rows)
            average = self._options.loss_average
            self._held_out = [add_loss_weights(next(batches)[0], average) for _ in range(count)]
        sums = np.zeros(1 + len(PARTS))
        for batch in self._held_out:
            feed = {self._graph.features[name]: batch[name] for name in self._graph.features}
            sums += self._session.run(self._graph.validate, feed)
        values = dict(zip(("loss", *PARTS), sums.tolist(), strict=True))
        return validation_fields(values, count, self._positions)
