"""The screen at the start of a run: how large everything is, before the first step.

training from step 0 to 12,200: 16 sequences, 11,264 tokens a step at inputs 512, targets 192
  model: 76,961,152 parameters
  memory: about 1.7 GiB on each of 1 device(s): weights and optimizer 294.5 MiB, gradients and
    activations 1.4 GiB (estimated by liveness over the step's own graph, within a quarter)
  12,200 steps of 1 microbatch(es), 137,420,800 tokens
  packing: 9.8 examples a sequence; filled: inputs 99.1%, targets 28.7%
  data: 2 task(s); passes over each in these steps:
    super_glue_rte_guaranteed_true: 31.20 passes (2,490 examples, 50.0% of the mixture)

How long it will take is said some steps later, when it was measured (`metrics.Recorder`).
"""

import dataclasses
from typing import Any

from t0.compat import tf1 as tf
from t0.mesh.lowering import read_program
from t0.mesh.memory import peak_memory
from t0.training.graph import TrainingGraph
from t0.training.settings import Settings

_MOST_TASKS = 12


@dataclasses.dataclass(frozen=True)
class Span:
    """Steps of a run: `first` done, `last` wanted."""

    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of all devices of a run together.

    Attributes:
      variables: weights, in all the types in which they are held, and the optimizer's slots.
      step: the most that a step's gradients and activations take at once.
    """

    variables: int
    step: int


def show(settings: Settings, data: Any, graph: TrainingGraph, span: Span) -> None:
    """Prints the screen."""
    print("\n".join(lines(settings, data, graph, span)), flush=True)


def lines(settings: Settings, data: Any, graph: TrainingGraph, span: Span) -> list[str]:
    """Returns the screen's lines."""
    lengths = ", ".join(f"{name} {n:,}" for name, n in settings.sequence_length.items())
    rows = settings.batch_size * (settings.ensemble_inputs or 1)
    tokens = rows * sum(settings.sequence_length.values())
    steps = span.last - span.first
    found = [
        f"training from step {span.first:,} to {span.last:,}: {rows:,} sequences, "
        f"{tokens:,} tokens a step at {lengths}",
        f"  model: {graph.parameters:,} parameters",
        _memory_line(memory(graph), settings.mesh_shape.size),
        f"  {steps:,} steps of {graph.microbatches} microbatch(es), {steps * tokens:,} tokens",
    ]
    return found + _data_lines(data, steps * rows)


def memory(graph: TrainingGraph) -> Memory:
    """Estimates the memory of a lowered step.

    Gradients and activations are the largest sum of values that are alive at once, in the order
    in which TensorFlow's executor may run the step's operations; see `t0.mesh.memory`.
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


def _memory_line(needed: Memory, devices: int) -> str:
    both = needed.variables + needed.step
    total, variables, step = (_size(n / devices) for n in (both, needed.variables, needed.step))
    return (
        f"  memory: about {total} on each of {devices} device(s): weights and optimizer "
        f"{variables}, gradients and activations {step}\n"
        "    (estimated by liveness over the step's own graph, within a quarter)"
    )


def _size(count: float) -> str:
    """Returns bytes in words: GiB from one on, MiB below."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _data_lines(data: Any, rows: int) -> list[str]:
    filling = data.filling
    if filling is None:
        return []
    each = filling.examples / filling.rows
    full = ", ".join(f"{name} {share:.1%}" for name, share in filling.filled.items())
    found = [f"  packing: {each:.1f} examples a sequence; filled: {full}"]
    drawn = rows * each
    shares = sorted(data.shares(), key=lambda share: -share.rate)
    found.append(f"  data: {len(shares)} task(s); passes over each in these steps:")
    for share in shares[:_MOST_TASKS]:
        passes = f"{drawn * share.rate / share.examples:.2f}" if share.examples else "?"
        count = f"{share.examples:,} examples" if share.examples else "unknown size"
        found.append(
            f"    {share.name}: {passes} passes ({count}, {share.rate:.1%} of the mixture)"
        )
    if len(shares) > _MOST_TASKS:
        found.append(f"    ... and {len(shares) - _MOST_TASKS} more")
    return found
