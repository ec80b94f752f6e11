"""Checks how a run is divided: the mesh of this machine's devices, and the global batch.

Mesh TensorFlow's defaults and all published operative configs derive the mesh shape from a TPU
topology (`run.mesh_shape = @tpu_mesh_shape()`). Without a TPU there is no topology, so the run uses
all GPUs of this machine. If there are no GPUs, it uses one device. If the configuration sets a mesh
shape explicitly, that shape is used.

    arguments, note = local_arguments()
    arguments      # {"mesh_shape": "", "mesh_devices": [""]}
    note           # "no --tpu: running on one device"

The values are passed to Mesh TensorFlow's `run` as arguments instead of gin bindings, so that the
saved operative config does not depend on the machine of the run.

    >>> check_batch(("tokens_per_batch", 65536), sequence_length={"inputs": 1024, "targets": 256},
    ...             mesh_shape="batch:4,model:2", layout_rules="batch:batch,heads:model")
    64

A batch in tokens is divided by the length of the longest feature. In this example, 65,536 tokens
are 64 sequences, because the inputs have 1,024 tokens.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from t0.compat import gin_config
from t0.config.bindings import bound
from t0.errors import UserError, unknown_name
from t0.machine import multiplies_bfloat16

_UNDIVIDED = re.compile(r"not divisible by mesh dimension size: tensor_shape=Shape\[(.*?)\]")
_METHODS = (
    *("sequences_per_batch", "tokens_per_batch"),
    *("sequences_per_replica", "tokens_per_replica"),
)
# The types that a run without a TPU binds in gin. For training and inference, the function
# `activation_dtype` chooses the type of activations instead.
LOCAL_TYPES = {
    "get_variable_dtype.slice_dtype": "float32",
    "get_variable_dtype.activation_dtype": "float32",
}


def local_mesh(gpus: Sequence[str]) -> dict[str, Any]:
    """Returns the mesh arguments of `run` for one device, or for several GPUs that split the batch.

    >>> local_mesh(["gpu:0", "gpu:1"])
    {'mesh_shape': 'batch:2', 'mesh_devices': ['gpu:0', 'gpu:1']}
    """
    shape = f"batch:{len(gpus)}" if len(gpus) > 1 else ""
    return {"mesh_shape": shape, "mesh_devices": list(gpus) or [""]}


def visible_gpus() -> list[str]:
    """Returns the names of the GPUs that TensorFlow sees, such as "gpu:0"."""
    from t0.compat import tf

    return [f"gpu:{index}" for index, _ in enumerate(tf.config.list_physical_devices("GPU"))]


def activation_dtype(name: str) -> Any:
    """Returns the type of activations on this machine.

    Args:
      name: "float32", "bfloat16" or "auto". With "auto", the type is bfloat16 on a GPU, or on a
        processor with instructions for bfloat16 matrix products (AVX512-BF16 or AMX). On other
        processors it is float32, which is faster there.

    Raises:
      UserError: if `name` is any other name, such as "float16", in which T5's activations overflow.
    """
    from t0.compat import tf

    if name not in ("auto", "float32", "bfloat16"):
        raise UserError(
            f"activation_dtype is '{name}'; expected auto, float32 or bfloat16 (float16 overflows "
            "in T5 models)"
        )
    if name != "auto":
        return tf.as_dtype(name)
    fast = multiplies_bfloat16() or visible_gpus()
    return tf.bfloat16 if fast else tf.float32


def local_arguments() -> tuple[dict[str, Any], str]:
    """Returns the mesh arguments of `run`, and a sentence that describes them.

    The arguments are empty if the configuration sets its own mesh shape.
    """
    topology = bound("tpu_mesh_shape.tpu_topology", evaluate=False)
    ignored = f" (the TPU topology '{topology}' is ignored)" if topology else ""
    shape = bound("run.mesh_shape", evaluate=False)
    is_reference = isinstance(shape, gin_config.ConfigurableReference)
    if shape is not None and not (is_reference and shape.selector.endswith("tpu_mesh_shape")):
        description = f"the configuration's mesh {shape!r}" if shape else "one device"
        return {}, f"no --tpu: running on {description}{ignored}"
    gpus = visible_gpus()
    description = ", ".join(gpus) or "one device"
    return local_mesh(gpus), f"no --tpu: running on {description}{ignored}"


def replicas(mesh_shape: Any, layout_rules: Any) -> int:
    """Returns the number of replicas: the parts into which the mesh splits a batch."""
    from t0.compat import mtf

    count = 1
    for name in ("batch", "outer_batch"):
        count *= mtf.tensor_dim_to_mesh_dim_size(layout_rules, mesh_shape, mtf.Dimension(name, 0))
    return count


def check_batch(
    batch_size: Any,
    *,
    sequence_length: Mapping[str, int] | None,
    mesh_shape: Any,
    layout_rules: Any,
) -> int:
    """Returns the number of sequences in the global batch, and checks that it divides evenly.

    Args:
      batch_size: the value of `run.batch_size`: a number of sequences, or a pair such as
        ("tokens_per_batch", 65536).
      sequence_length: the number of tokens of each feature; None if the run takes the lengths from
        its data.
      mesh_shape: anything that `mtf.convert_to_shape` accepts.
      layout_rules: anything that `mtf.convert_to_layout_rules` accepts.

    Raises:
      UserError: if `batch_size` is not a valid value, or the batch is not a multiple of the length
        times the number of replicas. In the second case, the message contains the nearest
        multiples.
    """
    method, value = _method_and_value(batch_size)
    if method.startswith("tokens") and not sequence_length:
        raise UserError(
            f"run.batch_size = {batch_size!r} counts tokens, which needs run.sequence_length; "
            "set it, or give the batch in sequences"
        )
    longest = max(sequence_length.values()) if sequence_length else 1
    replica_count = replicas(mesh_shape, layout_rules)
    tokens = longest if method.startswith("tokens") else 1
    split = replica_count if method.endswith("batch") else 1
    if value % (tokens * split):
        raise UserError(_describe_undivided(batch_size, value, tokens=tokens, split=split))
    return value // tokens * (replica_count if method.endswith("replica") else 1)


def _method_and_value(batch_size: Any) -> tuple[str, int]:
    pair = ("sequences_per_batch", batch_size) if isinstance(batch_size, int) else batch_size
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise UserError(
            f"run.batch_size is {batch_size!r}; expected a number of sequences or a pair such as "
            "('tokens_per_batch', 65536)"
        )
    method, value = pair
    if method not in _METHODS:
        raise unknown_name("way to count a batch", str(method), _METHODS, "(run.batch_size)")
    if not isinstance(value, int) or value < 1:
        raise UserError(f"run.batch_size is {batch_size!r}; expected a whole number above 0")
    return method, value


def _describe_undivided(batch_size: Any, value: int, *, tokens: int, split: int) -> str:
    step = tokens * split
    below, above = value // step * step, -(-value // step) * step
    factors = [f"the longest sequence, {tokens} tokens"] if tokens > 1 else []
    factors += [f"the {split} replicas of the mesh"] if split > 1 else []
    nearest = f"{below} or {above}" if below else str(above)
    return (
        f"run.batch_size = {batch_size!r}: {value} is not a multiple of {step} "
        f"({' times '.join(factors)}). The nearest that work: {nearest}"
    )


def explain_undivided(error: BaseException, mesh_shape: Any) -> UserError | None:
    """Explains Mesh TensorFlow's error for a mesh that does not divide a tensor.

    Returns:
      a UserError with the explanation; None if `error` is any other error.
    """
    from t0.compat import mtf

    match = _UNDIVIDED.search(str(error))
    if not match:
        return None
    mesh = ", ".join(f"{dim.name}:{dim.size}" for dim in mtf.convert_to_shape(mesh_shape).dims)
    return UserError(
        f"the mesh {mesh} cannot split a tensor of dimensions {match[1]}: the sizes that "
        "run.layout_rules splits must be multiples of the mesh's. Change run.mesh_shape "
        "(on a TPU tpu_mesh_shape.model_parallelism) or the model's sizes"
    )
