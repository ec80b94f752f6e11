"""Builds the program that each TPU core would run, on a machine without a TPU.

Mesh TensorFlow's own model function builds the program with `SimdMeshImpl` over a simulated device
assignment. Code and gin configuration are the same as in a run on the pod. The result is a
TensorFlow graph. This project reads the graph, but never runs it.

    from t0.mesh.pod_run import read_pod_run

    lowered = lower(read_pod_run(vocabulary_size=32100))      # after gin has been parsed
    program = read_program(lowered.graph, lowered.fetches)
    [step.kind for step in program.steps]

A program contains only the operations that its fetches need. It has no initializers and does not
copy between master variables and their slices, because hosts do both. All microbatches are computed
by one `while` loop, whose body occurs once in the program. `ProgramStep.in_loop` marks the steps
that the loop repeats.
"""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from t0.compat import mesh_utils, mtf, tensor_util
from t0.compat import tf1 as tf
from t0.mesh.fused import loops
from t0.mesh.pod_run import PodRun
from t0.mesh.topology import Topology, device_assignment

_TRAIN_FEATURES = tuple(
    f"{feature}{suffix}"
    for feature in ("inputs", "targets")
    for suffix in ("", "_segmentation", "_position")
)
_FEATURES = {"infer": ("inputs",)}


@dataclasses.dataclass(frozen=True)
class LoweredRun:
    """A run after lowering: its graph, and the objects that lowered it.

    Attributes:
      graph: the TensorFlow graph, with the core's program and the operations that initialize and
        save variables.
      fetches: the operations and tensors that a step computes.
      lowering: Mesh TensorFlow's `Lowering`; `lowering.graph` is Mesh TensorFlow's graph.
      mesh_impl: the `SimdMeshImpl`, which has the mesh's shape, the physical number of each core
        (`l2p`) and the shapes of slices.
    """

    graph: tf.Graph
    fetches: tuple[Any, ...]
    lowering: mtf.Lowering
    mesh_impl: Any


def lower(run: PodRun) -> LoweredRun:
    """Builds the program that one core runs in a step.

    Args:
      run: the run that gin configures; `run.mode` is "train", "score_eval", "perplexity_eval" or
        "infer".
    """
    graph = tf.Graph()
    with loops(as_functions=False), graph.as_default(), tf.variable_scope("", use_resource=True):
        tf.train.create_global_step()
        spec = _model_fn(run)(
            placeholders(run),
            None,
            _estimator_mode(run.mode),
            params={"context": _context(run.slice_)},
        )
    hooks = [*spec.training_hooks, *spec.evaluation_hooks, *spec.prediction_hooks]
    lowering = next(h._lowering for h in hooks if isinstance(h, mtf.MtfRestoreHook))
    (mesh_impl,) = lowering.mesh_to_impl.values()
    return LoweredRun(graph, _fetches(spec, run.mode), lowering, mesh_impl)


def _fetches(spec: Any, mode: str) -> tuple[Any, ...]:
    if mode == "train":
        return spec.train_op, spec.loss
    if mode == "perplexity_eval":
        _, token_metrics = spec.eval_metrics
        return spec.loss, *token_metrics
    return tuple(spec.predictions[name] for name in sorted(spec.predictions))


def _estimator_mode(mode: str) -> str:
    from t0.compat import tf_estimator  # imported here, because the import is slow

    keys = tf_estimator.ModeKeys
    return {"train": keys.TRAIN, "perplexity_eval": keys.EVAL}.get(mode, keys.PREDICT)


def placeholders(run: PodRun) -> dict[str, tf.Tensor]:
    """Returns placeholders for a batch's features; if packed, also for segments and positions."""
    names = _TRAIN_FEATURES if run.packed else _FEATURES.get(run.mode, ("inputs", "targets"))
    length = run.sequence_length
    return {
        name: tf.placeholder(
            tf.int32, [run.batch_sequences, length[name.partition("_")[0]]], name=name
        )
        for name in names
    }


def build_model(run: PodRun) -> Any:
    """Builds the configured model. It has layers and sizes, but no variables yet."""
    return mesh_utils.build_model(
        model_type=run.model_type,
        input_vocab_size=run.vocabulary_size,
        output_vocab_size=run.vocabulary_size,
        layout_rules=run.layout_rules,
        mesh_shape=run.mesh_shape,
    )


def _model_fn(run: PodRun) -> Callable[..., Any]:
    return mesh_utils.tpu_estimator_model_fn(
        model_type=run.model_type,
        transformer_model=build_model(run),
        vocabulary=None,
        model_dir="",
        use_tpu=True,
        mesh_shape=run.mesh_shape,
        layout_rules=run.layout_rules,
        batch_size=run.batch_sequences,
        sequence_length=dict(run.sequence_length),
        autostack=run.autostack,
        keep_checkpoint_max=None,
        save_checkpoints_steps=1000,
        learning_rate_schedule=run.learning_rate_schedule,
        optimizer=run.optimizer,
        variable_filter=run.variable_filter,
        score_in_predict_mode=run.mode == "score_eval",
        # A configuration may name a file here, even in a bucket, but planning must not write files.
        model_info_file=None,
    )


def _context(slice_: Topology) -> Any:
    """Returns a substitute for TPUEstimator's context, with all attributes that `lower` needs."""
    return types.SimpleNamespace(
        num_hosts=slice_.hosts,
        num_replicas=slice_.cores,
        device_assignment=device_assignment(slice_),
        tpu_host_placement_function=lambda host_id: f"/job:worker/task:{host_id}/device:CPU:0",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramValue:
    """A tensor on one core.

    Attributes:
      shape: the shape of this core's part of the tensor.
      dtype: the name of the type, such as "bfloat16".
      bytes: the number of elements times the bytes of an element.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramStep:
    """One operation of the program.

    Attributes:
      name: the operation's name in TensorFlow, which contains the layer's name.
      kind: TensorFlow's operation type.
      inputs: indices of the inputs in `CoreProgram.values`.
      outputs: indices of the outputs in `CoreProgram.values`.
      in_loop: whether the microbatch loop repeats the operation.
      detail: for an einsum, its equation; for a collective, its groups, as rows of physical core
        numbers; for an `Enter`, whether its value is constant in the loop; None for other kinds.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    in_loop: bool
    detail: Any = None


@dataclasses.dataclass(frozen=True)
class CoreProgram:
    """The program of one core: steps in an order that respects dependencies, and their values."""

    steps: tuple[ProgramStep, ...]
    values: tuple[ProgramValue, ...]


COLLECTIVES = ("CrossReplicaSum", "AllToAll", "CollectivePermute")


def read_program(graph: tf.Graph, fetches: Sequence[Any]) -> CoreProgram:
    """Reads from a graph the steps that a core needs to compute `fetches`.

    Args:
      graph: the TensorFlow graph.
      fetches: operations or tensors.
    """
    needed = _find_needed(fetches)
    steps: list[ProgramStep] = []
    values: list[ProgramValue] = []
    numbers: dict[str, int] = {}
    groups: dict[str, Any] = {}

    def number_of(tensor: Any) -> int:
        if tensor.name not in numbers:
            numbers[tensor.name] = len(values)
            values.append(_value(tensor))
        return numbers[tensor.name]

    for op in graph.get_operations():
        if op.name in needed:
            inputs, outputs = (tuple(map(number_of, ends)) for ends in (op.inputs, op.outputs))
            in_loop = op._control_flow_context is not None or op.type == "Exit"
            detail = _detail(op, groups)
            steps.append(ProgramStep(op.name, op.type, inputs, outputs, in_loop, detail))
    return CoreProgram(tuple(steps), tuple(values))


def _find_needed(fetches: Sequence[Any]) -> set[str]:
    seen: set[str] = set()
    stack = [getattr(fetch, "op", fetch) for fetch in fetches]
    while stack:
        op = stack.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        stack.extend(tensor.op for tensor in op.inputs)
        stack.extend(op.control_inputs)
    return seen


def _value(tensor: Any) -> ProgramValue:
    shape = tuple(tensor.shape.as_list()) if tensor.shape.rank is not None else ()
    dtype = tensor.dtype.base_dtype
    if dtype in (tf.resource, tf.string, tf.variant) or None in shape:
        return ProgramValue((), dtype.name, 0)
    elements = 1
    for size in shape:
        elements *= size
    return ProgramValue(shape, dtype.name, elements * dtype.size)


def _detail(op: Any, groups: dict[str, Any]) -> Any:
    if op.type == "Einsum":
        return op.get_attr("equation").decode()
    if op.type == "Enter":
        return op.get_attr("is_constant")
    if op.type in COLLECTIVES:
        # Hundreds of collectives have only a few different groups. Each has its own constant with
        # hundreds of numbers, so equal constants are decoded only once.
        content = op.inputs[-1].op.node_def.attr["value"].tensor.SerializeToString()
        if content not in groups:
            groups[content] = np.asarray(tensor_util.constant_value(op.inputs[-1]))
        return groups[content]
    return None
