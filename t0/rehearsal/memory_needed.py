"""The memory that a rehearsal takes here, estimated before anything is built.

    needed_bytes(run, model)          # 2.1 GiB for t5.1.1.tiny on a v3-8, which took 2.07
    check_memory(run, model)          # UserError: ... need about 41 GiB, 14 fit

Each core has a copy of the program as a graph, its slices, and its activations; one device has all
of that once more. The constants are measured, on small models.
"""

from collections.abc import Callable
from typing import Any

from t0.checkpoints.shape import ModelShape
from t0.errors import UserError
from t0.machine import available_memory_bytes
from t0.mesh.pod_run import PodRun
from t0.mesh.step_costs import costs_by_formulas, model_shape

_GIB = 2**30
# Python with TensorFlow and Mesh TensorFlow, and the programs of one device.
_PROCESS_BYTES = int(1.1 * _GIB)
# One core's training, scoring and perplexity programs: of a model without layers, and of a layer.
_GRAPH_BYTES, _LAYER_BYTES = 14 << 20, 10 << 20
# Copies of a core's weights: to train, to score, to measure perplexity, and in transit.
_COPIES = 4


def needed_bytes(run: PodRun, shape: ModelShape) -> int:
    """Returns about how many bytes a rehearsal of a run takes.

    Args:
      run: the run as it is rehearsed.
      shape: the shape of its model.
    """
    return _PROCESS_BYTES + _whole_model_bytes(run, shape) + run.slice_.cores * _core(run, shape)


def check_memory(
    run: PodRun, model: Any, available: Callable[[], int] = available_memory_bytes
) -> None:
    """Checks that this machine has the memory for a rehearsal.

    Args:
      run: the run as it is rehearsed.
      model: its model; one that is no plain T5 is not estimated.
      available: returns the free bytes of memory.

    Raises:
      UserError: if it has not; the message says how many cores fit.
    """
    try:
        shape = model_shape(model)
    except UserError:
        return
    free = available()
    needed = needed_bytes(run, shape)
    if needed <= free:
        return
    fixed = _PROCESS_BYTES + _whole_model_bytes(run, shape)
    fitting = max(0, (free - fixed) // _core(run, shape))
    raise UserError(
        f"the {run.slice_.cores} virtual cores of {run.slice_.name} need about "
        f"{needed / _GIB:.1f} GiB of memory, and {free / _GIB:.1f} GiB are free: {fitting} "
        "cores of this model fit. Make the model small (--shrink auto), or rehearse a smaller "
        "slice with the same tpu_mesh_shape.model_parallelism"
    )


def _core(run: PodRun, shape: ModelShape) -> int:
    costs = costs_by_formulas(run, shape)
    layers = shape.encoder_layers + shape.decoder_layers
    values = _COPIES * costs.weights_bytes + costs.optimizer_bytes
    return values + sum(costs.temporary_bytes.values()) + _GRAPH_BYTES + layers * _LAYER_BYTES


def _whole_model_bytes(run: PodRun, shape: ModelShape) -> int:
    """Returns the bytes of the hosts' masters, of one device, and of the values compared."""
    costs = costs_by_formulas(run, shape)
    optimizer = costs.optimizer_bytes * max(run.split("heads"), run.split("d_ff"))
    return 4 * (4 * costs.parameters + optimizer)
