"""Trains with Mesh TensorFlow in one session. A resumed run continues as if it had not stopped.

    train(spec, LoopOptions(train_steps=12_200), train_dataset_fn)

`train` opens the data and builds the graph. It fills the variables from the latest checkpoint, from
an initial checkpoint (a warm start), or at random. It then compares the configuration with the
configuration recorded in the model directory. `t0.training.loop` runs the training loop, and
writes a checkpoint before the first step if there is none.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import gin, mtf
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError, original, say
from t0.feeding.data_spec import open_dataset_function
from t0.feeding.training_data import TrainingData
from t0.feeding.uncached import DatasetBatches
from t0.files import paths
from t0.mesh import formulas, t5_model
from t0.mesh.devices import activation_dtype, visible_gpus
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.training import checkpointing, loop, model_directory, recorder
from t0.training.checkpointing import Checkpoints, Keep, warm_start
from t0.training.graph import METRICS, TrainingGraph, TrainingSpec, build, build_model
from t0.training.loop import LOSS_WEIGHTS, Stepping, TimeLimit
from t0.training.recorder import RunSize, random_line, restored_line, slots_line
from t0.training.validation import Evaluation

Data = TrainingData | DatasetBatches
# The options that also have an effect on a TPU, where TensorFlow's estimator trains instead of this
# loop, are `train_steps`, `log_every_steps` and `max_hours`.
LoopOptions = gin.external_configurable(
    loop.LoopOptions, "train_loop", module="t0", denylist=["train_steps"]
)
_DEVICE = re.compile(r"(cpu|gpu):(\d+)$", re.IGNORECASE)


def train(
    spec: TrainingSpec,
    options: LoopOptions,
    train_dataset_fn: Callable[..., Any],
    *,
    dataset_split: str = "train",
) -> None:
    """Trains on this machine. If training is already finished, does nothing.

    Args:
      spec: the model, batch and optimizer.
      options: the settings of the loop.
      train_dataset_fn: the dataset function that gin binds: T5's function or a user's own function.
      dataset_split: the split to read.

    Raises:
      UserError: if the data ends, if the loss or the gradient is not finite, or if a checkpoint
        cannot be read or written.
      SystemExit: `PREEMPTED` after SIGTERM; 130 after Ctrl-C.
    """
    with model_directory.lock(spec.model_dir), checkpointing.explain_full_disk(spec.model_dir):
        if checkpointing.is_finished(spec.model_dir, options.train_steps):
            _record_prompts(spec)
            return
        data = open_dataset_function(
            train_dataset_fn,
            options.seed,
            sequence_length=spec.sequence_length,
            vocabulary=spec.vocabulary,
            dataset_split=dataset_split,
        )
        time_limit = TimeLimit(options.max_hours)
        graph = _build(spec, data, options)
        config = session_config(spec.mesh_devices)
        with tf.Session(graph=graph.graph, config=config) as session:
            engine = _Session(spec, data, options, graph, session)
            stepping = Stepping(
                engine,
                data,
                options,
                model_dir=spec.model_dir,
                save_every=spec.save_checkpoints_steps,
                eval_words=spec.eval_words,
            )
            engine.start(stepping, options, time_limit)
            stepping.run(time_limit)


def _record_prompts(spec: TrainingSpec) -> None:
    """Records the prompts of a model that was trained by a version that did not record them."""
    if not paths.exists(f"{spec.model_dir}/{model_directory.PROMPTS_FILE}"):
        mixture = bound("mesh_train_dataset_fn.mixture_or_task_name")
        checkpointing.save_prompts(spec.model_dir, mixture, spec.sequence_length)


def _build(spec: TrainingSpec, data: Data, options: LoopOptions) -> TrainingGraph:
    check_devices(spec.mesh_devices)
    _check_features(spec.model_type, data.features)
    bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
    return build(
        spec,
        features=[*data.features, *_weight_features(spec, options)],
        seed=options.seed,
        activations=activation_dtype(options.activation_dtype),
        validates=bool(options.validate_every_steps),
    )


def _check_features(model_type: str, names: Sequence[str]) -> None:
    if model_type == ENCODER_DECODER and "inputs" not in names:
        raise UserError(
            "the training data has only targets, but an encoder-decoder also needs inputs. "
            "Choose a task with inputs, such as one of prefix LM, or train a decoder-only "
            "model (run.model_type = 'lm', as in models/lm_v1.gin)"
        )


def _weight_features(spec: TrainingSpec, options: LoopOptions) -> list[str]:
    """Returns the features that `add_loss_weights` adds to the batches of a run."""
    if options.loss_average == "positions":
        return []
    if spec.model_type != ENCODER_DECODER or spec.ensemble_inputs:
        raise UserError(
            f"train_loop.loss_average is {options.loss_average!r}, which needs an encoder-decoder "
            f"without ensemble; run.model_type is '{spec.model_type}'. Set train_loop.loss_average "
            "= 'positions'"
        )
    return [LOSS_WEIGHTS]


class _Session:
    """Runs the steps of `Stepping` in one TensorFlow session."""

    def __init__(
        self,
        spec: TrainingSpec,
        data: Data,
        options: LoopOptions,
        graph: TrainingGraph,
        session: tf.Session,
    ) -> None:
        self._spec, self._data = spec, data
        self._bytes_each = activation_dtype(options.activation_dtype).size
        self._graph, self._session = graph, session
        self.keep = Keep(spec.keep_checkpoint_max)
        self.size = RunSize(spec.rows, spec.sequence_length, graph.parameters)
        self._checkpoints = Checkpoints(spec.model_dir, graph, session, self.keep)
        self.save = self._checkpoints.save
        self.infinite_weights = self._checkpoints.infinite_weights
        self.evaluate = Evaluation(spec, data, options, graph=graph, session=session).measure

    def start(self, stepping: Stepping, options: LoopOptions, time_limit: TimeLimit) -> None:
        """Fills the variables, reports their origin, and compares the configuration."""
        model_dir = self._spec.model_dir
        latest = checkpoint_files.latest(model_dir)
        # The variables are filled first. If a checkpoint has other shapes, the error about a shape
        # is more precise than the error about a different configuration.
        for line in self._fill(latest, stepping, options, time_limit):
            say(line)
        for change in model_directory.check_same(
            model_dir, checkpointing.configuration(), allowed=options.allow_config_change
        ):
            say(f"changed:{change}")
        if not latest:
            stepping.begin(int(self._session.run(self._graph.step)))
        checkpointing.save_configuration(model_dir)
        graph, shapes = self._graph, self._checkpoints.variables
        variables = {name: shapes[name][0] for name in (*graph.trained, *graph.slots)}
        stock_file = self._spec.model_info_file
        model_directory.write_model_info(model_dir, variables, graph.trained, stock_file=stock_file)
        if self._data.spec:
            mixture, lengths = self._data.spec.mixture, self._data.spec.lengths
            checkpointing.save_prompts(model_dir, mixture, lengths)

    def _fill(
        self, latest: str | None, stepping: Stepping, options: LoopOptions, time_limit: TimeLimit
    ) -> Iterator[str]:
        graph = self._graph
        trained, slots = len(graph.trained), len(graph.slots)
        if latest:
            record = self._checkpoints.restore(latest)
            step = int(self._session.run(graph.step))
            yield restored_line(trained, trained, latest, step)
            yield slots_line(slots, slots)
            stepping.resume(step, record, time_limit)
            return
        with graph.graph.as_default():
            self._session.run(tf.global_variables_initializer())
        if self._spec.init_checkpoint:
            yield from warm_start(
                self._checkpoints,
                graph,
                self._spec.init_checkpoint,
                only=self._spec.init_variable_filter,
                unfilled=options.unfilled_variables,
            )
        else:
            yield random_line(options.seed)
        self._session.run(graph.to_slices)

    def take(self, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Runs one step and returns the values of `graph.METRICS`."""
        return one_step(self._session, self._graph, batch)

    def checkpoint(self, step: int) -> str:
        """Returns the checkpoint path of a step."""
        return checkpoint_files.checkpoint_path(self._spec.model_dir, step)

    def start_lines(self, first: int, last: int) -> list[str]:
        """Returns the lines that report the run's size."""
        graph = self._graph
        notes = memory_lines(self._spec, graph, self._bytes_each)
        return recorder.start_lines(
            first, last, self.size, microbatches=graph.microbatches, data=self._data, notes=notes
        )

    def ideal_seconds(self) -> None:
        """Returns None, because this engine does not know the peak FLOP/s of the devices."""

    def max_over_processes(self, number: int) -> int:
        """Returns the number itself, because there is only one process."""
        return int(number)


def memory_lines(spec: TrainingSpec, graph: TrainingGraph, bytes_each: int) -> list[str]:
    """Estimates the memory of each device with the formulas of `t0.mesh.formulas`.

    Args:
      spec: the model, the batch and the optimizer.
      graph: the lowered step of `spec`.
      bytes_each: the size of one activation in bytes.

    Returns:
      the lines for the start of a run; [] if the model is not a T5 with equal layers.
    """
    try:
        shape = t5_model.sizes(build_model(spec))
    except UserError:
        return []
    ways = functools.partial(mtf.tensor_dim_to_mesh_dim_size, spec.layout_rules, spec.mesh_shape)
    split = {n: ways(mtf.Dimension(n, 0)) for n in ("batch", "heads", "d_ff", "vocab", "d_model")}
    rows, lengths = spec.batch_size // split["batch"] // graph.microbatches, spec.sequence_length
    share = formulas.Share(rows, lengths["inputs"], lengths["targets"], bytes_each, split)
    weights, size = formulas.weights_on_device(shape, split), formulas.FLOAT32_BYTES
    slots = formulas.slots_on_device(shape, split) if graph.slots else 0
    # The update needs as much memory as the weights, in addition to the weights themselves. There
    # are copies of the weights in the activations' type if it is narrower, and gradients in this
    # type if there are microbatches.
    copies = (bytes_each < size) + (graph.microbatches > 1)
    values = formulas.stored_bytes(shape, share, formulas.TENSORFLOW)
    step = weights * (size + copies * bytes_each) + values
    return [recorder.memory_line(size * (weights + slots), step, devices=spec.mesh_shape.size)]


def one_step(
    session: tf.Session, graph: TrainingGraph, batch: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Runs one step on a batch, and returns the values of `graph.METRICS` by name."""
    feed = {graph.features[name]: batch[name] for name in graph.features}
    try:
        values, _ = session.run([graph.metrics, graph.train], feed)
    except tf.errors.OpError as error:
        raise original(error) from error
    return dict(zip(METRICS, values.tolist(), strict=True))


def session_config(devices: Sequence[str]) -> tf.ConfigProto:
    """Returns a session configuration that creates every CPU device of the mesh."""
    matches = [_DEVICE.search(name) for name in devices]
    cpus = [int(match[2]) + 1 for match in matches if match and match[1].lower() == "cpu"]
    return tf.ConfigProto(allow_soft_placement=True, device_count={"CPU": max(cpus, default=1)})


def check_devices(names: Sequence[str]) -> None:
    """Checks that the GPUs of a mesh exist.

    Raises:
      UserError: if TensorFlow does not find one of the GPUs.
    """
    matches = [match for match in map(_DEVICE.search, names) if match]
    gpus = sorted({match[0].lower() for match in matches if match[1].lower() == "gpu"})
    visible = visible_gpus() if gpus else []
    missing = [name for name in gpus if name not in visible]
    if missing:
        raise UserError(
            f"run.mesh_devices names {', '.join(missing)}, but TensorFlow sees "
            f"{', '.join(visible) or 'no GPU'}. See `t0 doctor`; to run on the CPU, bind "
            "run.mesh_devices = None and run.mesh_shape = ''"
        )
