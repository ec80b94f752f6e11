"""Trains on a TPU with TensorFlow's estimator, called by Mesh TensorFlow's `run`.

`run` calls `train_model`, which gin binds to `run.train_model_fn`. Mesh TensorFlow provides the
model, its gradients and its checkpoints. This module adds:

- checks before the first step
- batches from a stream, a folder with the batches of the run (`t0.feeding.batch_stream`); a resumed
  run continues with the batch after its checkpoint
- progress lines, and `metrics.jsonl` in the model directory
- an error if the loss is not finite
- a clean stop with a checkpoint at SIGTERM, Ctrl-C and the time limit
"""

import dataclasses
import json
import math
import posixpath
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import gin
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, original, say
from t0.feeding import batch_stream, manifest
from t0.feeding.batch_stream import Stream, stream_dataset
from t0.feeding.data_spec import open_dataset_function
from t0.feeding.uncached import checked_tsv_files
from t0.files import publishing
from t0.training import checkpointing, model_directory, trackers
from t0.training.checkpointing import is_finished
from t0.training.loop import TimeLimit, exit_by_signal, watched_signals
from t0.training.mesh_session import LoopOptions
from t0.training.recorder import Recorder, RunSize, default_interval, first_line


def train_model(  # noqa: PLR0913 (the signature that mesh_utils.run calls)
    estimator: Any,
    vocabulary: Any,
    sequence_length: Mapping[str, int],
    batch_size: int,
    train_dataset_fn: Callable[..., tf.data.Dataset],
    train_steps: int,
    ensemble_inputs: int | None,
    dataset_split: str = "train",
    skip_seen_data: bool = False,
    seen_data_init_step: int = 0,
    checkpoint_input_pipeline: bool = False,
) -> None:
    """Trains with TensorFlow's estimator. Mesh TensorFlow's `run` passes the arguments.

    Args:
      estimator: Mesh TensorFlow's TPUEstimator.
      vocabulary: the vocabulary that is passed to `train_dataset_fn`.
      sequence_length: feature -> the length of a packed sequence in tokens.
      batch_size: the number of sequences of the global batch.
      train_dataset_fn: a function that returns a dataset of packed or padded examples. Training
        repeats this dataset.
      train_steps: the step to stop at, counted from the start of pretraining.
      ensemble_inputs: the number of models of an ensemble in which each model has its own inputs,
        or None.
      dataset_split: the split that is passed to `train_dataset_fn`.
      skip_seen_data: whether a restarted run skips the batches that it has already read.
      seen_data_init_step: the step from which the skipped batches are counted.
      checkpoint_input_pipeline: whether checkpoints hold the state of TensorFlow's iterator.

    Raises:
      UserError: if the mixture has no examples, or the loss is not finite.
    """
    if skip_seen_data and checkpoint_input_pipeline:
        raise UserError("set only one of run.skip_seen_data and run.checkpoint_input_pipeline")
    # This also repairs the file `checkpoint`, which the estimator reads.
    if is_finished(estimator.model_dir, train_steps):
        return
    options = LoopOptions(train_steps)
    _check_works_on_tpu(options)
    model_dir = estimator.model_dir
    done = checkpointing.steps_done(model_dir)
    skipped = max(0, done - seen_data_init_step) if skip_seen_data else 0
    reading = {"sequence_length": sequence_length, "vocabulary": vocabulary}
    reading["dataset_split"] = dataset_split
    rows = batch_size * (ensemble_inputs or 1)
    stream = batch_stream.open_stream(_stream_folder(model_dir))
    if stream:
        data = open_dataset_function(train_dataset_fn, options.seed, **reading)
        recorded = manifest.read(model_dir) if done else None
        start = stream.manifest.start
        current = manifest.build(data, rows, start, recorded or stream.manifest)
        stream.check(current, done=done or start.step, last=train_steps)
        change = recorded and manifest.find_difference(recorded, current, starts=True)
        if change and not options.allow_config_change:
            raise manifest.change_error(model_dir, change)
        stream = dataclasses.replace(stream, manifest=current)

    def input_fn(params: Any) -> tf.data.Dataset:
        del params
        if stream:
            step = tf.train.get_global_step()
            return stream_dataset(stream, done if step is None else step)
        with checked_tsv_files():
            dataset = train_dataset_fn(**reading).repeat()
        dataset = dataset.batch(rows, drop_remainder=True)
        return dataset.skip(skipped).prefetch(tf.data.AUTOTUNE)

    record = model_directory.read_estimator_record(model_dir) if done else None
    limit = TimeLimit(options.max_hours)
    limit.before_seconds = record.seconds if record else 0.0
    if limit.over():
        say(f"nothing to train: {limit.verdict}")
        return
    _record_data(model_dir, stream)
    size = RunSize(batch_size, dict(sequence_length))
    hook = TrainingHook(model_dir, train_steps, size, options.log_every_steps, limit)
    hooks: list[tf.estimator.SessionRunHook] = [hook]
    if checkpoint_input_pipeline and not stream:
        hooks.append(tf.data.experimental.CheckpointInputPipelineHook(estimator))
    with trackers.reporting(options.report_to, model_dir):
        _train_with_estimator(estimator, input_fn, hook, hooks)


@gin.configurable("stream", module="t0")
def configured_stream(folder: str | None = None) -> str | None:
    """Returns the folder of the stream that gin sets; None for the default, MODEL_DIR/stream."""
    return folder


def _stream_folder(model_dir: str) -> str:
    return configured_stream() or posixpath.join(model_dir, "stream")


def _record_data(model_dir: str, stream: Stream | None) -> None:
    """Records the run's data, and prints how a restart would continue.

    A manifest describes the data of a run (`t0.feeding.manifest`). If the run reads a stream, the
    stream's manifest is written into the model directory. If not, the model directory's manifest is
    removed, because it would not describe the batches any more.
    """
    if stream is None:
        folder = _stream_folder(model_dir)
        say(
            f"warning: there is no stream in {folder}: a restart shuffles the data again from its "
            "start, and the batches are not recorded. To continue in the data, write it first: "
            f"t5_mesh_transformer ... --write_stream={folder}"
        )
        manifest.remove(model_dir)
        return
    manifest.publish(model_dir, stream.manifest)
    manifest.copy_windows(stream.folder, model_dir)
    say(
        f"data: the stream {stream.folder}, steps {stream.files[0].first:,} to "
        f"{stream.files[-1].last:,}; a restart continues at the step of its checkpoint"
    )


_EVALUATE = "Evaluate checkpoints with run.mode = 'eval' or 'score_eval'"
# Settings that the estimator does not support -> what a TPU can do instead.
_NOT_ON_TPU = {
    "train_loop.validate_every_steps": _EVALUATE,
    "train_loop.evaluate_every_steps": _EVALUATE,
    "train_loop.stop_after_evaluations": _EVALUATE,
    "train_loop.loss_average": "Mesh TensorFlow averages over positions",
    "apply_updates.clip_gradient_norm": "AdafactorOptimizer.clipping_threshold bounds a step",
}


def _check_works_on_tpu(options: LoopOptions) -> None:
    for name, instead in _NOT_ON_TPU.items():
        value = getattr(options, name.removeprefix("train_loop."), None) or bound(name)
        if value not in (None, "positions"):
            raise UserError(
                f"{name} = {value!r} works only without a TPU. {instead}. Unset it, or train on "
                "GPUs (--engine=torch)"
            )


class TrainingHook(tf.estimator.SessionRunHook):
    """Records the loss while TensorFlow's estimator trains, and stops it before the last step.

    It stops training if a signal has arrived or the time limit is near. A TPU takes many steps in
    one call, and training stops only after such a call. Then the estimator saves a checkpoint.

    Args:
      model_dir: the model directory.
      total_steps: the run's last step.
      size: the sizes of a batch.
      interval: the number of steps between two progress lines. None means a hundredth of the run,
        but at most 100 steps. The first and the last step always have a line.
      limit: the time limit of the run.

    Attributes:
      received_signal: a function that returns the signal that has arrived; None if there is none.
      signalled: the signal that stopped training; None if no signal did.
      over: whether the time limit stopped training.
      last_step: the number of completed steps.
    """

    def __init__(
        self,
        model_dir: str,
        total_steps: int,
        size: RunSize,
        interval: int | None,
        limit: TimeLimit,
    ) -> None:
        self._model_dir, self.total_steps, self._size = model_dir, total_steps, size
        self._interval, self._every_line = interval, interval is not None
        self.limit = limit
        self.received_signal: Callable[[], signal.Signals | None] = lambda: None
        self._fetches: dict[str, tf.Tensor] = {}
        self._recorder: Recorder | None = None
        self._recorded, self.last_step = False, 0
        self._last_call = self._longest_call = 0.0
        self.signalled: signal.Signals | None = None
        self.over = False

    def begin(self) -> None:
        """Finds the loss and the learning rate in the graph.

        Raises:
          UserError: if the model directory holds a checkpoint of another model.
        """
        checkpoint = checkpoint_files.latest(self._model_dir)
        if checkpoint:
            checkpoint_files.check_variables(
                checkpoint, checkpoint_files.read_graph(tf.global_variables())
            )
        self._fetches = {"loss": tf.get_collection(tf.GraphKeys.LOSSES)[-1]}
        rate = _summarised("learning_rate")
        if rate is not None:
            self._fetches["learning_rate"] = rate
        self._step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Prints the step at which this start of the run begins: 0 or the step of a checkpoint."""
        del coord
        start = self.last_step = int(session.run(self._step))
        self._interval = self._interval or default_interval(self.total_steps - start)
        say(first_line(start, self.total_steps, self._size))
        self._recorder = Recorder(
            self._model_dir,
            total=self.total_steps,
            tokens=self._size.tokens,
            start=start,
            events=False,  # the estimator writes its own event files
            every_line=self._every_line,
        )

    def before_run(self, run_context: Any) -> tf.estimator.SessionRunArgs:
        """Returns the tensors to fetch together with the training step.

        Before the first step, writes the list of variables, the prompts, and our two operative
        config files. Mesh TensorFlow's hook has already written its own operative config file.
        """
        if not self._recorded:
            self._write_configuration(run_context.session.graph)
        return tf.estimator.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Prints and records the numbers that `before_run` requested; stops if a reason arose.

        Raises:
          UserError: if the loss is not finite.
        """
        values = {name: value.item() for name, value in run_values.results.items()}
        # The global step is read after the training step. If both were fetched in one call, the
        # value could be from before or from after the increment.
        step, before = int(run_context.session.run(self._step)), self.last_step
        self.last_step = step
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"the loss is {values['loss']} at step {step:,}: training has diverged. The last "
                "checkpoint is kept; lower the learning rate or check the data"
            )
        # A TPU takes many steps in one call, so the step may jump over a multiple of the interval.
        due = step // self._interval > before // self._interval
        if not self._recorded or due or step >= self.total_steps:
            self._recorder.progress(step, values)
            self._recorded = True
        now = time.monotonic()
        if self._last_call:  # the first call includes compilation
            self._longest_call = max(self._longest_call, now - self._last_call)
        self._last_call = now
        self.signalled = self.received_signal()
        self.over = self.limit.over(self._longest_call)
        if self.signalled or self.over:
            run_context.request_stop()

    def end(self, session: tf.Session) -> None:
        """Writes the records that are still buffered, if the model directory is in a bucket."""
        del session
        if self._recorder is not None:
            self._recorder.close()

    def _write_configuration(self, graph: tf.Graph) -> None:
        variables = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        shapes = {v.op.name: v.shape.as_list() for v in variables if v.op.name != "global_step"}
        trained = [v.op.name for v in graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)]
        stock_file = bound("tpu_estimator_model_fn.model_info_file")
        model_directory.write_model_info(self._model_dir, shapes, trained, stock_file=stock_file)
        checkpointing.save_operative_config(self._model_dir)
        mixture = bound("mesh_train_dataset_fn.mixture_or_task_name")
        lengths = bound("run.sequence_length")
        if isinstance(lengths, Mapping):
            checkpointing.save_prompts(self._model_dir, mixture, lengths)


def _summarised(tag: str) -> tf.Tensor | None:
    # Mesh TensorFlow exposes the learning rate only as a scalar summary.
    for operation in tf.get_default_graph().get_operations():
        if operation.type == "ScalarSummary" and operation.name.endswith(tag):
            return operation.inputs[1]
    return None


class _RecordListener(tf.estimator.CheckpointSaverListener):
    """Writes the first step and the accumulated training time after each checkpoint."""

    def __init__(self, model_dir: str, limit: TimeLimit) -> None:
        self._path = posixpath.join(model_dir, model_directory.ESTIMATOR_FILE)
        self._limit = limit
        self._began = model_directory.find_first_step(model_dir)

    def after_save(self, session: tf.Session, global_step_value: int) -> None:
        del session
        step = int(global_step_value)
        # The estimator saves a checkpoint before the first step.
        self._began = step if self._began is None else self._began
        record = model_directory.EstimatorRecord(step, self._limit.seconds, self._began)
        publishing.write_whole(self._path, json.dumps(dataclasses.asdict(record)) + "\n")


def _train_with_estimator(
    estimator: Any,
    input_fn: Callable[..., Any],
    hook: TrainingHook,
    hooks: Sequence[tf.estimator.SessionRunHook],
) -> None:
    with watched_signals() as hook.received_signal:
        try:
            estimator.train(
                input_fn=input_fn,
                max_steps=hook.total_steps,
                hooks=hooks,
                saving_listeners=[_RecordListener(estimator.model_dir, hook.limit)],
            )
        except tf.errors.OpError as error:
            raise original(error) from error
    if hook.last_step >= hook.total_steps:
        return
    where = f"step {hook.last_step:,} of {hook.total_steps:,}"
    if hook.signalled:
        saved_in = f"{estimator.model_dir}; the same command resumes from there"
        exit_by_signal(hook.signalled, where, saved_in)
    if hook.over:
        say(f"{hook.limit.verdict}; saved at {where}")
        return
    raise UserError(
        f"the training data ended at {where}: the mixture has too few examples to fill a batch. "
        "Is its cache empty?"
    )
