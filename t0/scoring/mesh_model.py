"""Builds a Mesh TensorFlow encoder-decoder for scoring or inference, and restores its weights.

    spec = MeshModel("bitransformer", mesh_shape="", layout_rules="", mesh_devices=None)
    model, placement = build_model(spec, vocabularies=(vocabulary, vocabulary))
    chosen_checkpoints("/models/tiny", "all", None)     # {1000: "/models/tiny/model.ckpt-1000"}

Gin binds the model's layers, sizes and types, in the same way as for Mesh TensorFlow's own
functions.
"""

import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils, mtf, transformer_layers
from t0.compat import tf1 as tf
from t0.errors import UserError


@dataclasses.dataclass(frozen=True)
class MeshModel:
    """A model's type and mesh.

    Attributes:
      model_type: Mesh TensorFlow's name of the type, such as "bitransformer".
      mesh_shape: the mesh, in any form that `mtf.convert_to_shape` accepts.
      layout_rules: the layout, in any form that `mtf.convert_to_layout_rules` accepts.
      mesh_devices: a device name for each mesh position; None if TensorFlow chooses the devices.
    """

    model_type: str
    mesh_shape: Any
    layout_rules: Any
    mesh_devices: Sequence[str] | None = None

    @classmethod
    def from_estimator_arguments(cls, arguments: Mapping[str, Any]) -> "MeshModel":
        """Reads the model from the arguments of Mesh TensorFlow's `get_estimator`."""
        return cls(**{field.name: arguments[field.name] for field in dataclasses.fields(cls)})


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

    @property
    def device_kind(self) -> str:
        """The kind of devices: "gpu" or "cpu"."""
        return "gpu" if any("gpu" in name.lower() for name in self.devices) else "cpu"


def build_model(spec: MeshModel, vocabularies: tuple[Any, Any]) -> tuple[Any, Placement]:
    """Builds the configured model, and returns it with its placement.

    Args:
      spec: the model's type and mesh.
      vocabularies: the vocabularies of inputs and targets.
    """
    model = mesh_utils.build_model(
        model_type=spec.model_type,
        input_vocab_size=vocabularies[0].vocab_size,
        output_vocab_size=vocabularies[1].vocab_size,
        layout_rules=spec.layout_rules,
        mesh_shape=spec.mesh_shape,
    )
    mesh_shape = mtf.convert_to_shape(spec.mesh_shape)
    devices = spec.mesh_devices or [""] * mesh_shape.size
    return model, Placement(mesh_shape, mtf.convert_to_layout_rules(spec.layout_rules), devices)


def chosen_checkpoints(model_dir: str, requested: Any, checkpoint: str | None) -> dict[int, str]:
    """Returns step -> path, for the checkpoints to use.

    Args:
      model_dir: the folder of the checkpoints.
      requested: a step, a list of steps, "all" or None (the latest).
      checkpoint: a checkpoint to use instead of those in `model_dir`, or None.
    """
    if checkpoint:
        return {checkpoint_files.global_step(checkpoint): checkpoint}
    steps = checkpoint_files.select_steps(model_dir, requested)
    return {step: checkpoint_files.checkpoint_path(model_dir, step) for step in steps}


def both_vocabularies(vocabulary: Any) -> tuple[Any, Any]:
    """Returns (vocabulary of inputs, vocabulary of targets) from one vocabulary or from a pair."""
    return mesh_utils.inputs_vocabulary(vocabulary), mesh_utils.targets_vocabulary(vocabulary)


def vocabulary_hash(vocabulary: Any) -> str | None:
    """Returns the hash of a vocabulary's SentencePiece model; None if it has no such model."""
    model = getattr(vocabulary, "sp_model", None)
    return hashlib.sha256(model).hexdigest() if model else None


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


def session_of_shapes(graph: tf.Graph) -> tf.Session:
    """Returns a session that stays fast if its graph grows with each new batch shape."""
    # With this option, TensorFlow places only the part of the graph that a run needs. Otherwise
    # each new shape would take as long as all earlier shapes together.
    options = tf.GraphOptions(place_pruned_graph=True)
    return tf.Session(
        graph=graph, config=tf.ConfigProto(allow_soft_placement=True, graph_options=options)
    )


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
