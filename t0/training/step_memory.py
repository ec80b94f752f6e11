"""The memory of a training step in the TensorFlow engine, by the formulas of `t0.mesh.formulas`.

step_memory(spec, graph, bytes_each=2).step     # bytes of gradients and activations of all devices
"""

from t0.checkpoints import names
from t0.checkpoints.shape import ModelShape, combined, read_shape
from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.mesh import formulas
from t0.mesh.batch import replicas
from t0.training.graph import TrainingGraph
from t0.training.options import TrainingSpec
from t0.training.start_report import Memory, memory_line

HOW = "by formula, within 30%"


def memory_text(spec: TrainingSpec, graph: TrainingGraph, bytes_each: int) -> str:
    """Returns the line about memory that a run prints at its start.

    Args:
      spec: what the run trains.
      graph: its lowered step.
      bytes_each: the bytes of an activation.
    """
    try:
        shape = _shape(graph)
    except UserError:
        return "  memory: not estimated; the formulas are for T5's encoder-decoder"
    memory = step_memory(spec, graph, shape, bytes_each)
    return memory_line(memory, devices=spec.mesh_shape.size, how=HOW)


def step_memory(
    spec: TrainingSpec, graph: TrainingGraph, shape: ModelShape, bytes_each: int
) -> Memory:
    """Returns the memory of all devices in bytes.

    Args:
      spec: what the run trains.
      graph: its lowered step.
      shape: the shape of its model.
      bytes_each: the bytes of an activation.
    """
    rows = spec.batch_size // replicas(spec.mesh_shape, spec.layout_rules)
    share = formulas.Share(
        rows=rows // graph.microbatches,
        inputs=spec.sequence_length["inputs"],
        targets=spec.sequence_length["targets"],
        bytes_each=bytes_each,
        split={
            name: mtf.tensor_dim_to_mesh_dim_size(
                spec.layout_rules, spec.mesh_shape, mtf.Dimension(name, 0)
            )
            for name in ("heads", "d_ff", "vocab", "d_model")
        },
    )
    weights = formulas.weights_on_device(shape, share.split)
    slots = formulas.slots_on_device(shape, share.split) if graph.slots else 0
    narrow = bytes_each < formulas.FLOAT32_BYTES
    # The update is computed next to the weights; a type of fewer bytes needs a copy of them.
    step = weights * (formulas.FLOAT32_BYTES + (bytes_each if narrow else 0))
    step += weights * bytes_each if graph.microbatches > 1 else 0
    step += formulas.kept_bytes(shape, share, formulas.TENSORFLOW)
    devices = spec.mesh_shape.size
    return Memory(devices * formulas.FLOAT32_BYTES * (weights + slots), devices * step)


def _shape(graph: TrainingGraph) -> ModelShape:
    variables = {v.op.name: v for v in graph.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)}
    shapes = {
        names.from_mtf(name) or name: tuple(variables[name].shape.as_list())
        for name in graph.trained
    }
    if unknown := [name for name in shapes if names.row_of(name) is None]:
        raise UserError(f"{unknown[0]} is no variable of a T5")
    return read_shape({name: combined(name, shape) for name, shape in shapes.items()})
