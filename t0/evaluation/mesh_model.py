"""Builds a Mesh TensorFlow encoder-decoder for scoring or inference, and restores its weights.

    model, types, placement = build_model(arguments)
    chosen_checkpoints(arguments, None)     # {1000: "/models/tiny/model.ckpt-1000"}

`arguments` are the arguments of a run, as `t0.run.run_arguments.read` returns them. Gin binds the
model's layers, sizes and types, in the same way as for Mesh TensorFlow's own functions.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils, mtf, transformer_layers
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError
from t0.mesh.devices import replicas
from t0.mesh.fused import fused
from t0.mesh.gather_embedding import bind_gather_embedding


@dataclasses.dataclass(frozen=True)
class Placement:
    """The mesh and the devices on which a model runs.

    Attributes:
      mesh_shape: the mesh.
      layout_rules: the layout, which says which tensor dimension is split over which mesh
        dimension.
      devices: a device name for each mesh position; "" if TensorFlow chooses the device.
    """

    mesh_shape: mtf.Shape
    layout_rules: mtf.LayoutRules
    devices: Sequence[str]


def build_model(
    arguments: Mapping[str, Any], activations: tf.DType = tf.float32
) -> tuple[Any, mtf.VariableDType, Placement]:
    """Builds the configured model, and returns it with its types and its placement.

    Args:
      arguments: the arguments of the run. Those about the model, the mesh and the vocabulary are
        read.
      activations: the type of activations. If it is float32, gin's types are used.
    """
    inputs, targets = both_vocabularies(arguments["vocabulary"])
    mesh_shape = mtf.convert_to_shape(arguments["mesh_shape"])
    layout_rules = mtf.convert_to_layout_rules(arguments["layout_rules"])
    model = mesh_utils.build_model(
        model_type=arguments["model_type"],
        input_vocab_size=inputs.vocab_size,
        output_vocab_size=targets.vocab_size,
        layout_rules=layout_rules,
        mesh_shape=mesh_shape,
    )
    types = mesh_utils.get_variable_dtype()
    if activations != tf.float32:
        types = mtf.VariableDType(types.master_dtype, activations, activations)
    devices = arguments["mesh_devices"] or [""] * mesh_shape.size
    return model, types, Placement(mesh_shape, layout_rules, devices)


def chosen_checkpoints(arguments: Mapping[str, Any], checkpoint: str | None) -> dict[int, str]:
    """Returns step -> path, for the checkpoints to use.

    Args:
      arguments: the arguments of the run. They contain the folder of the checkpoints, and the
        steps: a step, a list of steps, "all" or None (the latest).
      checkpoint: a checkpoint to use instead of those, or None.
    """
    if checkpoint:
        return {checkpoint_files.global_step(checkpoint): checkpoint}
    model_dir = arguments["model_dir"]
    steps = checkpoint_files.select_steps(
        model_dir, arguments["eval_checkpoint_step"], **step_options()
    )
    return {step: checkpoint_files.checkpoint_path(model_dir, step) for step in steps}


def step_options() -> dict[str, Any]:
    """Returns the parameters of Mesh TensorFlow's `get_checkpoint_iterator` that gin binds.

    They are options of `checkpoint_files.select_steps`. `stop_after` ends the waiting for new
    checkpoints, and only Mesh TensorFlow's modes wait.
    """
    return {
        "closest": bound("get_checkpoint_iterator.find_closest", True),
        "after": bound("get_checkpoint_iterator.skip_until", -1),
    }


def both_vocabularies(vocabulary: Any) -> tuple[Any, Any]:
    """Returns (vocabulary of inputs, vocabulary of targets) from one vocabulary or from a pair."""
    return mesh_utils.inputs_vocabulary(vocabulary), mesh_utils.targets_vocabulary(vocabulary)


def vocabulary_hash(vocabulary: Any) -> str | None:
    """Returns the hash of a vocabulary's SentencePiece model; None if it has no such model."""
    model = getattr(vocabulary, "sp_model", None)
    return hashlib.sha256(model).hexdigest() if model else None


def vocabulary_facts(vocabulary: Any) -> dict[str, Any]:
    """Returns the facts about the vocabulary of targets for a results file."""
    return {
        "vocabulary": getattr(vocabulary, "sentencepiece_model_file", str(vocabulary)),
        "vocabulary_sha256": vocabulary_hash(vocabulary),
        "vocabulary_size": vocabulary.vocab_size,
    }


def has_t5_options(layer: transformer_layers.SelfAttention) -> bool:
    """Returns whether all options of an attention layer are options that T5 uses."""
    relative = (
        ("bias", "bias_shared", None)
        if type(layer) is transformer_layers.SelfAttention
        else (None,)
    )
    return (
        layer.relative_attention_type in relative
        and layer.num_heads > 1
        and not layer.num_memory_heads
        and not layer.shared_kv
        and not layer.keep_query_heads_dims
        and not layer.attention_kwargs
        and layer.attention_func is None
        and not layer.hyperprompt_length_encoder
        and not layer.hyperprompt_length_decoder
    )


def copy_as_class(kind: type, original: Any) -> Any:
    """Copies an object as an instance of another class.

    The class of the original belongs to Mesh TensorFlow and must stay unchanged. So `copy.copy` is
    not used: it stores the attribute `__slotnames__` in the class of the object that it copies.
    """
    copy = object.__new__(kind)
    copy.__dict__.update(original.__dict__)
    return copy


class SharedVariables(mtf.placement_mesh_impl.PlacementMeshImpl):
    """A mesh with which many lowerings in one graph share their variables.

    With Mesh TensorFlow's own class, each lowering would create the variables again, and also the
    operations that copy variables between masters and slices. These operations are half of a
    lowering.
    """

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement.mesh_shape, placement.layout_rules, list(placement.devices))
        self._laid_out: dict[str, Any] = {}

    def LaidOutVariable(self, variable: mtf.Variable, mesh_impl: Any) -> Any:  # noqa: N802
        """Returns the slices that the first lowering created for a variable."""
        if variable.name not in self._laid_out:
            self._laid_out[variable.name] = super().LaidOutVariable(variable, mesh_impl)
        return self._laid_out[variable.name]


# Placeholders of the inputs, the outputs, and the mesh whose graph computes them.
Program = tuple[dict[str, tf.Tensor], Any, mtf.Mesh]


class ShapedPrograms:
    """A model with one set of weights, and a program for each batch shape.

    Mesh TensorFlow's shapes are static, so each shape has its own lowering, which is built on first
    use. All lowerings share one set of variables.

    Args:
      model: a Mesh TensorFlow `Bitransformer`.
      types: the types of masters, slices and activations.
      placement: the mesh, its layout and its devices.
    """

    _mesh_class = SharedVariables

    def __init__(self, model: Any, types: mtf.VariableDType, placement: Placement) -> None:
        self._model, self._types, self._placement = model, types, placement
        self._mesh = (placement.mesh_shape, placement.layout_rules)
        bind_gather_embedding(*self._mesh)
        self._mesh_impl = self._mesh_class(placement)
        self._graph = tf.Graph()
        # With this option, TensorFlow places only the part of the graph that a run needs. Otherwise
        # each new shape would take as long as all earlier shapes together.
        options = tf.GraphOptions(place_pruned_graph=True)
        self._session = tf.Session(
            graph=self._graph,
            config=tf.ConfigProto(allow_soft_placement=True, graph_options=options),
        )
        self._slice_copies: tf.Operation | None = None
        self._programs: dict[Any, tuple[dict[str, tf.Tensor], list[tf.Tensor]]] = {}

    @property
    def replicas(self) -> int:
        """The number of parts into which the mesh splits a batch."""
        return replicas(*self._mesh)

    @property
    def device_kind(self) -> str:
        """The kind of devices: "gpu" or "cpu"."""
        return "gpu" if any("gpu" in name.lower() for name in self._placement.devices) else "cpu"

    def restore(self, checkpoint: str) -> int:
        """Restores every variable of the model from `checkpoint`, for all batch shapes.

        Returns:
          the number of restored variables.

        Raises:
          UserError: if the checkpoint cannot be read, if a variable of the model is missing in the
            checkpoint or has a different shape or type there, or if the checkpoint has weights that
            the model does not have.
        """
        if self._slice_copies is None:
            *_, mesh = self._build_smallest()
            with self._graph.as_default(), tf.variable_scope("", reuse=tf.AUTO_REUSE):
                # All lowerings use these slices. If the slices are the masters, nothing is copied.
                slices = [
                    self._mesh_impl.LaidOutVariable(variable, self._mesh_impl)
                    for variable in mesh.graph.all_variables
                ]
                self._slice_copies = tf.group([each.copy_master_to_slices for each in slices])
        restored = restore_variables(self._session, checkpoint)
        self._session.run(self._slice_copies)
        return restored

    def close(self) -> None:
        """Frees the session and its weights."""
        self._session.close()

    def _build_smallest(self) -> Program:
        """Builds a small computation that uses all variables, with `_build`."""
        raise NotImplementedError

    def _build(
        self,
        dims: Mapping[str, Sequence[mtf.Dimension]],
        compute: Callable[..., Any],
        floats: Collection[str] = (),
    ) -> Program:
        """Builds a computation in Mesh TensorFlow, without lowering it.

        Args:
          dims: name -> dimensions of the inputs, which are integers.
          compute: a function of these inputs by name, which returns tensors.
          floats: the names of inputs that are floats instead.

        Returns:
          (placeholders of the inputs, the result of `compute`, the mesh).
        """
        mesh = mtf.Mesh(mtf.Graph(), "batch")
        with self._graph.as_default(), tf.variable_scope("", reuse=tf.AUTO_REUSE):
            fed = {
                name: tf.placeholder(
                    tf.float32 if name in floats else tf.int32, [dim.size for dim in shape]
                )
                for name, shape in dims.items()
            }
            inputs = {
                name: mtf.import_fully_replicated(mesh, fed[name], mtf.Shape(shape), name=name)
                for name, shape in dims.items()
            }
            with fused(self._model, *self._mesh):
                outputs = compute(**inputs)
        return fed, outputs, mesh

    def _run(
        self, shape: Any, values: Mapping[str, np.ndarray], build: Callable[..., Program]
    ) -> list[np.ndarray]:
        """Runs the program of a shape. On first use, `build(shape)` builds it, and it is lowered."""
        if shape not in self._programs:
            fed, outputs, mesh = build(shape)
            with self._graph.as_default(), tf.variable_scope("", reuse=tf.AUTO_REUSE):
                lowering = mtf.Lowering(mesh.graph, {mesh: self._mesh_impl}, autostack=False)
                self._programs[shape] = fed, [lowering.export_to_tf_tensor(x) for x in outputs]
        fed, outputs = self._programs[shape]
        return self._session.run(outputs, {fed[name]: values[name] for name in fed})


def restore_variables(session: tf.Session, checkpoint: str) -> int:
    """Restores every variable of a session's graph from a checkpoint; returns their number.

    Raises:
      UserError: if `check_variables` finds an error, if the checkpoint has weights that this model
        does not have, or if the checkpoint's values cannot be read.
    """
    with session.graph.as_default():
        variables = tf.global_variables()
        described = checkpoint_files.read_graph(variables)
        checkpoint_files.check_variables(checkpoint, described)
        unused = find_unused_weights(checkpoint_files.read(checkpoint), described)
        if unused:
            raise UserError(
                f"checkpoint {checkpoint} holds {len(unused)} weights that the configured model "
                f"does not have, such as {unused[0]}. It belongs to another model: use that "
                "model's gin files (its operative_config.gin)"
            )
        try:
            tf.train.Saver(variables).restore(session, checkpoint)
        except (tf.errors.OpError, ValueError) as error:
            reason = str(getattr(error, "message", error)).splitlines()[0]
            raise UserError(
                f"checkpoint {checkpoint} cannot be read completely ({reason}): one of its files "
                "is truncated or missing. Copy it again, or score another"
            ) from error
    return len(variables)


def find_unused_weights(present: Iterable[str], model_variables: Collection[str]) -> list[str]:
    """Finds weights of a checkpoint that a model does not use, such as those of additional layers.

    Variables of an optimizer are ignored; the name of such a variable begins with the whole name of
    another variable. T5's first checkpoints contain biases that no Mesh TensorFlow model reads.
    They are also ignored.

    Args:
      present: the names of the checkpoint's variables.
      model_variables: the names of the model's variables.
    """
    names = set(present)
    return [
        name
        for name in sorted(names - set(model_variables))
        if name.startswith(("encoder/", "decoder/", "shared/"))
        and not name.endswith("relative_attention_bias")
        and not any(name[:end] in names for end in range(1, len(name)))
    ]
