"""Builds the training step as a TensorFlow graph: model, gradients and optimizer.

    spec = TrainingSpec.from_estimator_arguments(**arguments)
    graph = build(spec, features=("inputs", "targets"), seed=0, activations=tf.float32)
    session.run([graph.metrics, graph.train], feed_dict={graph.features["inputs"]: ..., ...})

The model is Mesh TensorFlow's. `TrainingSpec` holds the arguments from which Mesh TensorFlow would
build its estimator, and variables have Mesh TensorFlow's names and shapes.

Variables are resource variables, and a step reads each variable exactly once. With TensorFlow 1's
reference variables, or with one read per operation, a variable could be updated before a gradient
reads it. Then two runs with the same settings could differ.

For dropout, Mesh TensorFlow asks the mesh for random tensors. Its own placement mesh draws them
from TensorFlow's generators, whose state is not saved in checkpoints. `SeededMesh` computes each
random tensor from (seed, number of the operation, slice of the tensor, step, microbatch), so that a
resumed run continues exactly.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import mesh_utils, mtf, transformer
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.mesh.fused import fused, loops
from t0.training import losses, optimizers
from t0.training.loop import LOSS_WEIGHTS

# The parameters of Mesh TensorFlow's model function that our loop supports. gin can bind them.
_OF_MODEL_FN = (
    *("outer_batch_size", "init_variable_filter", "model_info_file"),
    *("init_checkpoint", "variable_filter"),
)
# The entries of `TrainingGraph.metrics`, in this order.
METRICS = ("loss", *losses.PARTS, "learning_rate", "gradient_square", "weight_square")
# The maximum number of microbatches of a step. With more microbatches, random numbers would repeat.
_MICROBATCHES = 1 << 20

_STATELESS: dict[Any, Callable[..., tf.Tensor]] = {
    tf.random.uniform: tf.random.stateless_uniform,
    tf.random.normal: tf.random.stateless_normal,
    tf.random.truncated_normal: tf.random.stateless_truncated_normal,
}


@dataclasses.dataclass(frozen=True)
class TrainingSpec:
    """The training step of a run: the model, the batch and the optimizer.

    Attributes:
      model_type: "bitransformer", "lm", "delimited_lm", "aligned" or "bi_student_teacher".
      vocabulary: one vocabulary, or (inputs, targets).
      mesh_shape: the shape of the mesh.
      layout_rules: pairs of a tensor dimension and the mesh dimension that splits it.
      mesh_devices: the device of each mesh position.
      model_dir: the folder of checkpoints and metrics.
      batch_size: the number of sequences of a global batch.
      sequence_length: feature -> its length in tokens.
      learning_rate_schedule: a number, or a function of `step`.
      optimizer: a function that takes `learning_rate` and returns a Mesh TensorFlow optimizer.
      save_checkpoints_steps: the number of steps between two checkpoints.
      keep_checkpoint_max: the number of checkpoints to retain; None or 0 for all.
      variable_filter: the variables to train, as a regular expression or a function; None for all.
      init_checkpoint: the checkpoint for a warm start, or None.
      init_variable_filter: a regular expression that the names of the variables to read from
        `init_checkpoint` match; "" for all.
      ensemble_inputs: the number of models of an ensemble in which each model has its own inputs,
        or None.
      outer_batch_size: the size of the outer batch dimension.
      model_info_file: the file in which to list variables and operations, or None.
      eval_words: the flags with which `t0 eval` reads the run's data.
    """

    model_type: str
    vocabulary: Any
    mesh_shape: mtf.Shape
    layout_rules: mtf.LayoutRules
    mesh_devices: Sequence[str]
    model_dir: str
    batch_size: int
    sequence_length: Mapping[str, int]
    learning_rate_schedule: Any
    optimizer: Callable[..., Any]
    save_checkpoints_steps: int = 5000
    keep_checkpoint_max: int | None = None
    variable_filter: Any = None
    init_checkpoint: str | None = None
    init_variable_filter: str = ""
    ensemble_inputs: int | None = None
    outer_batch_size: int = 1
    model_info_file: str | None = None
    eval_words: Sequence[str] = ()

    @classmethod
    def from_estimator_arguments(
        cls, *, mesh_devices: Sequence[str] | None, **arguments: Any
    ) -> "TrainingSpec":
        """Builds the spec from the arguments of `mesh_utils.get_estimator`.

        Further fields come from the parameters that gin binds to `tpu_estimator_model_fn`.
        """
        field_names = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in arguments.items() if name in field_names}
        for name in _OF_MODEL_FN:
            value = values.get(name) or bound(f"tpu_estimator_model_fn.{name}")
            if value:
                values[name] = value
        size = values["mesh_shape"].size
        return cls(mesh_devices=list(mesh_devices or [""] * size), **values)

    @property
    def rows(self) -> int:
        """The number of sequences of a global batch, counted for each model of an ensemble."""
        return self.batch_size * (self.ensemble_inputs or 1)

    def length(self, feature: str) -> int:
        """Returns the length of a feature, such as "inputs_segmentation", in tokens."""
        return self.sequence_length[feature.split("_")[0]]


@dataclasses.dataclass(frozen=True)
class TrainingGraph:
    """A lowered training step.

    Attributes:
      graph: the TensorFlow graph.
      features: feature -> placeholder int32 [batch, length] (float32 for `LOSS_WEIGHTS`).
      metrics: float32 vector of `METRICS`, for the step that `train` takes.
      train: the operation that takes one step.
      validate: float32 vector of "loss" and `losses.PARTS` without dropout; None if the run does
        not validate.
      step: the variable of the global step.
      trained: the names of the model's variables.
      slots: the names of the optimizer's variables.
      to_masters: the operation that copies the slices to the masters, the variables in checkpoints.
      to_slices: the operation that copies the masters to the slices.
      parameters: the number of the model's parameters.
      slices: variable name -> its slices, for variables whose slices have a wider type than in the
        checkpoint.
      microbatches: the number of microbatches of a step.
      make_program: a function that returns another program in this graph, with the same variables.
      gradients: a function that adds the trained variables' gradients to the graph, and returns
        them. They are the gradients before clipping.
    """

    graph: tf.Graph
    features: Mapping[str, tf.Tensor]
    metrics: tf.Tensor
    train: tf.Operation
    validate: tf.Tensor | None
    step: tf.Variable
    trained: tuple[str, ...]
    slots: tuple[str, ...]
    to_masters: tf.Operation
    to_slices: tf.Operation
    parameters: int
    slices: Mapping[str, Sequence[tf.Variable]]
    microbatches: int
    make_program: Callable[[], "ModelProgram"]
    gradients: Callable[[], Mapping[str, tf.Tensor]]


class SeededMesh(mtf.placement_mesh_impl.PlacementMeshImpl):
    """A placement mesh with reproducible random operations.

    Args:
      shape: the shape of the mesh.
      layout: the layout rules.
      devices: the device of each mesh position.
      seed: the run's seed.
      step: an int64 scalar tensor, the step that the graph computes.
    """

    def __init__(
        self, shape: Any, layout: Any, devices: Sequence[str], *, seed: int, step: tf.Tensor
    ) -> None:
        super().__init__(shape, layout, list(devices))
        self._seed = seed
        self._step = step
        self._drawn = 0
        self._lowering: mtf.Lowering | None = None
        # Identifies the microbatch that is being built. It is an integer scalar of the mesh, which
        # differs between the microbatches of a step.
        self.microbatch: mtf.Tensor | None = None

    def lower(self, graph: mtf.Graph, mesh: mtf.Mesh, log_file: str | None = None) -> mtf.Lowering:
        """Lowers `graph`, a Mesh TensorFlow graph whose only mesh is `mesh`."""
        return _Lowering(self, graph, mesh, log_file)

    def random(
        self, shape: mtf.Shape, tf_fn: Callable[..., tf.Tensor], kwargs: Mapping[str, Any]
    ) -> Any:
        """Draws a random tensor of `shape`. Replicas of a slice get the same values."""
        self._drawn += 1
        number = self._drawn
        draw = _STATELESS[tf_fn]
        slice_shape = self.slice_shape(shape)

        def of_slice(position: int) -> tf.Tensor:
            text = f"{self._seed} {number} {self.slice_begin(shape, position)}"
            key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
            counter = self._step * _MICROBATCHES + self._microbatch_at(position)
            return draw(slice_shape, seed=tf.stack([tf.constant(key, tf.int64), counter]), **kwargs)

        return self.slicewise(of_slice, self.laid_out_pnum())

    def _microbatch_at(self, position: int) -> tf.Tensor:
        if self.microbatch is None:
            return tf.constant(0, tf.int64)
        lowered = self._lowering.tensors[self.microbatch].to_laid_out_tensor()
        return tf.cast(lowered.tensor_list[position], tf.int64)


class _Lowering(mtf.Lowering):
    def __init__(
        self, mesh_impl: SeededMesh, graph: mtf.Graph, mesh: mtf.Mesh, log_file: str | None
    ) -> None:
        mesh_impl._lowering = self
        super().__init__(graph, {mesh: mesh_impl}, autostack=False, log_file=log_file)

    def set_tensor_lowering(self, x: mtf.Tensor, laid_out_tensor: Any) -> None:
        """Makes all operations of a step share one read of each variable.

        In Mesh TensorFlow, each operation reads the variable again. So a gradient could read the
        variable after its update in the same step.
        """
        if isinstance(x.operation, mtf.Variable):
            laid_out_tensor = laid_out_tensor.from_tensor_list(
                [tf.identity(piece) for piece in laid_out_tensor.tensor_list]
            )
        super().set_tensor_lowering(x, laid_out_tensor)


def build(
    spec: TrainingSpec,
    *,
    features: Sequence[str],
    seed: int,
    activations: tf.DType,
    validates: bool = True,
) -> TrainingGraph:
    """Builds and lowers the training step.

    Args:
      spec: the model, the batch and the optimizer.
      features: the names of a batch's features, such as "inputs" and "inputs_segmentation". If they
        include `LOSS_WEIGHTS`, the loss is the weighted sum of the tokens' losses.
      seed: the seed of initial values and dropout.
      activations: the type of activations.
      validates: whether to also build the held-out loss. It takes a quarter of the build time.
    """
    with (
        tf.Graph().as_default() as graph,
        tf.variable_scope("", use_resource=True, reuse=tf.AUTO_REUSE),
    ):
        tf.set_random_seed(seed)
        model = build_model(spec)
        step = tf.train.get_or_create_global_step()
        now = tf.identity(step)
        placeholders, types = _placeholders(spec, features), _types(activations)

        def make_program() -> ModelProgram:
            return ModelProgram(spec, model, types, seed=seed, step=now)

        train = make_program()
        values, rate, gradients, operations = train.updates(placeholders, now)
        with loops(as_functions=True):  # XLA compiles only functions
            lowering = train.lower(spec.model_info_file)
        numbers = {
            name: tf.cast(lowering.export_to_tf_tensor(x), tf.float32) for name, x in values.items()
        }
        numbers["learning_rate"] = tf.cast(rate, tf.float32)
        metrics = tf.stack([numbers[name] for name in METRICS])
        with tf.control_dependencies([lowering.lowered_operation(op) for op in operations]):
            done = tf.assign_add(step, 1)
        if hasattr(model, "initialize"):
            model.initialize()
        validate, to_slices = None, [lowering.copy_masters_to_slices()]
        if validates:
            validate, lowered = _lower_held_out(make_program(), placeholders)
            to_slices.append(lowered.copy_masters_to_slices())
        return TrainingGraph(
            graph=graph,
            features=placeholders,
            metrics=metrics,
            train=done.op if hasattr(done, "op") else done,
            validate=validate,
            step=step,
            trained=tuple(v.name for v in train.graph.trainable_variables),
            slots=tuple(v.name for v in train.graph.all_variables if not v.trainable),
            to_masters=lowering.copy_slices_to_masters(),
            to_slices=tf.group(*to_slices),
            parameters=sum(v.shape.size for v in train.graph.trainable_variables),
            slices=_wider_slices(lowering),
            microbatches=train.microbatches,
            make_program=make_program,
            gradients=lambda: {n: lowering.export_to_tf_tensor(g) for n, g in gradients.items()},
        )


def call_step(
    spec: TrainingSpec, *, features: Sequence[str], seed: int, activations: tf.DType
) -> None:
    """Calls all functions that build a training step, so that gin records their parameters.

    Nothing is lowered or computed. The arguments are those of `build`.
    """
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=True, reuse=tf.AUTO_REUSE):
        step = tf.train.get_or_create_global_step()
        program = ModelProgram(spec, build_model(spec), _types(activations), seed=seed, step=step)
        program.updates(_placeholders(spec, features), step)


@dataclasses.dataclass(frozen=True)
class HeldOutGraph:
    """A model's held-out loss, without a training step.

    Attributes:
      graph: the TensorFlow graph.
      features: feature -> placeholder int32 [batch, length].
      values: float32 vector of "loss" and `losses.PARTS`, without dropout.
      to_slices: the operation that copies the masters, which a checkpoint fills, to the slices,
        with which the model computes.
    """

    graph: tf.Graph
    features: Mapping[str, tf.Tensor]
    values: tf.Tensor
    to_slices: tf.Operation


def build_held_out(
    spec: TrainingSpec, *, features: Sequence[str], activations: tf.DType
) -> HeldOutGraph:
    """Builds and lowers a model's loss on a batch, to evaluate checkpoints.

    Args:
      spec: the model and its batch; the fields about training are ignored.
      features: the names of a batch's features.
      activations: the type of activations.
    """
    with (
        tf.Graph().as_default() as graph,
        tf.variable_scope("", use_resource=True, reuse=tf.AUTO_REUSE),
    ):
        placeholders = _placeholders(spec, features)
        step = tf.constant(0, tf.int64)
        program = ModelProgram(spec, build_model(spec), _types(activations), seed=0, step=step)
        values, lowering = _lower_held_out(program, placeholders)
        return HeldOutGraph(graph, placeholders, values, lowering.copy_masters_to_slices())


def _lower_held_out(
    program: "ModelProgram", placeholders: Mapping[str, tf.Tensor]
) -> tuple[tf.Tensor, mtf.Lowering]:
    """Returns the vector of "loss" and `losses.PARTS`, without dropout; and the lowered program."""
    values = program.loss(placeholders, tf.estimator.ModeKeys.EVAL)
    lowering = program.lower()
    exported = (lowering.export_to_tf_tensor(values[n]) for n in ("loss", *losses.PARTS))
    return tf.stack([tf.cast(x, tf.float32) for x in exported]), lowering


def build_model(spec: TrainingSpec) -> Any:
    """Builds the configured model. It has layers and sizes, but no variables yet."""
    return mesh_utils.build_model(
        model_type=spec.model_type,
        input_vocab_size=mesh_utils.inputs_vocabulary(spec.vocabulary).vocab_size,
        output_vocab_size=mesh_utils.targets_vocabulary(spec.vocabulary).vocab_size,
        layout_rules=spec.layout_rules,
        mesh_shape=spec.mesh_shape,
    )


def _types(activations: tf.DType) -> mtf.VariableDType:
    types = mesh_utils.get_variable_dtype()
    return mtf.VariableDType(types.master_dtype, types.slice_dtype, activations)


def _placeholders(spec: TrainingSpec, features: Sequence[str]) -> dict[str, tf.Tensor]:
    types = {LOSS_WEIGHTS: tf.float32}
    return {
        name: tf.placeholder(types.get(name, tf.int32), [spec.rows, spec.length(name)], name)
        for name in features
    }


def _is_trained(spec: TrainingSpec, variable: mtf.Variable) -> bool:
    chosen = spec.variable_filter
    if isinstance(chosen, str):
        return re.search(chosen, variable.name) is not None
    return chosen is None or bool(chosen(variable))


def _wider_slices(lowering: mtf.Lowering) -> dict[str, tf.Variable]:
    """Returns variable name -> its slices, for slices with a wider type than in the checkpoint."""
    return {
        variable.name: laid_out.laid_out_tensor.all_slices
        for variable, laid_out in lowering.variables.items()
        if variable.slice_dtype.size > variable.master_dtype.size
    }


class ModelProgram:
    """A Mesh TensorFlow graph in which the model computes its loss.

    Args:
      spec: the model, the batch and the optimizer.
      model: Mesh TensorFlow's model.
      types: the types of variables and activations.
      seed: the seed of dropout.
      step: an int64 scalar tensor, the step that the graph computes.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        model: Any,
        types: mtf.VariableDType,
        *,
        seed: int,
        step: tf.Tensor,
    ) -> None:
        self._spec = spec
        self.model = model
        self.types = types
        self.mesh_impl = SeededMesh(
            spec.mesh_shape, spec.layout_rules, spec.mesh_devices, seed=seed, step=step
        )
        self.graph = mtf.Graph()
        self.microbatches = 1
        self.mesh = mtf.Mesh(self.graph, "my_mesh")
        outer = spec.outer_batch_size
        self._batch_dim = mtf.Dimension("batch", spec.batch_size // outer)
        self._batch_dims = [mtf.Dimension("outer_batch", outer), self._batch_dim]

    def lower(self, log_file: str | None = None) -> mtf.Lowering:
        """Lowers this Mesh TensorFlow graph into the default TensorFlow graph."""
        return self.mesh_impl.lower(self.graph, self.mesh, log_file)

    def loss(
        self, placeholders: Mapping[str, tf.Tensor], mode: str, features: Any = None
    ) -> dict[str, mtf.Tensor]:
        """Returns name -> scalar on the mesh, for "loss" and each name in `losses.PARTS`."""
        features = features or self._features(placeholders)
        weights = features.get(LOSS_WEIGHTS)
        with losses.computed_in_float32(self.model, self.mesh_impl, weights) as sums:
            loss = self._call(features, mode)
        zero = mtf.zeros(self.mesh, mtf.Shape([]), tf.float32)
        return {"loss": mtf.to_float(loss), **dict.fromkeys(losses.PARTS, zero), **sums}

    def loss_and_gradients(
        self, placeholders: Mapping[str, tf.Tensor]
    ) -> tuple[dict[str, mtf.Tensor], list[mtf.Tensor | None]]:
        """Returns the result of `loss`, and the gradient of each trainable variable."""
        spec = self._spec
        self.microbatches = mesh_utils.serialize_num_microbatches(
            self._batch_dim, spec.sequence_length, spec.mesh_shape, spec.layout_rules
        )
        mode = tf.estimator.ModeKeys.TRAIN
        features = self._features(placeholders)
        if self.microbatches == 1:
            values = self.loss(placeholders, mode, features)
            variables = [v.outputs[0] for v in self.graph.trainable_variables]
            return values, mtf.gradients([values["loss"]], variables)

        def compute_microbatch(microbatch: dict[str, mtf.Tensor]) -> dict[str, mtf.Tensor]:
            self.mesh_impl.microbatch = mtf.reduce_max(microbatch.pop("_row"))
            return self.loss(placeholders, mode, microbatch)

        # A microbatch consists of every n-th row of the batch. So its largest row number identifies
        # the microbatch.
        rows = np.arange(spec.batch_size, dtype=np.int32)
        shape = mtf.Shape(self._batch_dims)
        features["_row"] = mtf.import_fully_replicated(
            self.mesh, tf.constant(rows.reshape(shape.to_integer_list)), shape, name="row"
        )
        gradients, values = mtf.serialize_training_step(
            features, compute_microbatch, self._batch_dim, self.microbatches
        )
        return values, gradients

    def updates(
        self, placeholders: Mapping[str, tf.Tensor], step: tf.Tensor
    ) -> tuple[dict[str, mtf.Tensor], Any, dict[str, mtf.Tensor], list[mtf.Operation]]:
        """Returns scalars, the learning rate, gradients before clipping, and the assignments.

        The scalars are the result of `loss` and the sums of squares for `METRICS`. The gradients
        are a mapping from the name of a trained variable.
        """
        values, gradients = self.loss_and_gradients(placeholders)
        rate = self._spec.learning_rate_schedule
        rate = rate(step=step) if callable(rate) else rate
        pairs = zip(self.graph.trainable_variables, gradients, strict=True)
        gradient_of = {v: g for v, g in pairs if _is_trained(self._spec, v)}
        operations, gradient_square, weight_square = optimizers.apply_updates(
            self._spec.optimizer(learning_rate=rate),
            list(gradient_of.values()),
            list(gradient_of),
            mesh_impl=self.mesh_impl,
        )
        values |= {"gradient_square": gradient_square, "weight_square": weight_square}
        named = {v.name: g for v, g in gradient_of.items() if g is not None}
        return values, rate, named, operations

    def _features(self, placeholders: Mapping[str, tf.Tensor]) -> dict[str, mtf.Tensor]:
        spec = self._spec
        ensemble = spec.ensemble_inputs
        outer_dims = [mtf.Dimension("ensemble", ensemble)] if ensemble else []
        features = {}
        for name, tensor in placeholders.items():
            length = mtf.Dimension("length", spec.length(name))
            shape = mtf.Shape([*outer_dims, *self._batch_dims, length])
            tensor = tf.reshape(tensor, shape.to_integer_list)
            features[name] = mtf.import_fully_replicated(self.mesh, tensor, shape, name=name)
        if spec.model_type == "delimited_lm":
            features = mesh_utils._dynamic_text2self(features)
        return features

    def _call(self, features: Mapping[str, mtf.Tensor], mode: str) -> mtf.Tensor:
        segments = features.get("targets_segmentation")
        if isinstance(self.model, transformer.Unitransformer):
            positions = {"sequence_id": segments, "position": features.get("targets_position")}
        else:
            positions = {
                "encoder_sequence_id": features.get("inputs_segmentation"),
                "decoder_sequence_id": segments,
                "decoder_subsequence_id": features.get("targets_subsegmentation"),
                "encoder_position": features.get("inputs_position"),
                "decoder_position": features.get("targets_position"),
            }
        inputs = features.get("inputs")
        if self._spec.model_type in ("lm", "delimited_lm"):
            inputs = transformer.autoregressive_inputs(features["targets"], sequence_id=segments)
        spec = self._spec
        with fused(self.model, spec.mesh_shape, spec.layout_rules):
            _, loss = self.model.call_simple(
                inputs=inputs,
                targets=features["targets"],
                compute_loss=True,
                mode=mode,
                variable_dtype=self.types,
                num_microbatches=self.microbatches if mode == tf.estimator.ModeKeys.TRAIN else 1,
                **positions,
            )
        return loss
