"""The memory of a step as a TensorFlow graph: what it needs, and what GPUs have used.

needed = memory(graph)                  # graph: a TrainingGraph
needed.variables, needed.step           # bytes of all devices
gpu_peaks()                             # [1_503_238_553], the bytes used on each GPU
"""

from t0.compat import tf as tf2
from t0.compat import tf1 as tf
from t0.mesh.devices import visible_gpus
from t0.mesh.lowering import read_program
from t0.mesh.memory import peak_memory
from t0.training.graph import TrainingGraph
from t0.training.start_report import Memory

HOW = "estimated by liveness over the step's own graph, within a quarter"


def memory(graph: TrainingGraph) -> Memory:
    """Estimates the memory of a lowered step.

    The peak of gradients and activations is the largest sum of values that are alive at the same
    time, in the order in which TensorFlow's executor may run the step's operations; see
    `t0.mesh.memory`.
    """
    program = read_program(graph.graph, (graph.train, graph.metrics))
    needed = {step.name for step in program.steps}
    handles = (
        op
        for op in graph.graph.get_operations()
        if op.type in ("VarHandleOp", "VariableV2") and op.name in needed
    )
    return Memory(sum(map(_variable_bytes, handles)), peak_memory(program, fused=False).bytes)


def _variable_bytes(handle: tf.Operation) -> int:
    elements = tf.TensorShape(handle.get_attr("shape")).num_elements() or 0
    return elements * tf.as_dtype(handle.get_attr("dtype")).size


def gpu_peaks() -> list[int]:
    """Returns the most bytes that TensorFlow has used on each GPU so far; none without a GPU."""
    names = (f"GPU:{number}" for number in range(len(visible_gpus())))
    return [tf2.config.experimental.get_memory_info(name)["peak"] for name in names]
