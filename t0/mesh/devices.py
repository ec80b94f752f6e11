"""Chooses a mesh of this machine's devices for a run without `--tpu`.

Mesh TensorFlow's defaults and all published operative configs derive the mesh shape from a TPU
topology (`run.mesh_shape = @tpu_mesh_shape()`). Without a TPU there is no topology, so the run uses
all GPUs of this machine. If there are no GPUs, it uses one device. If the configuration sets a mesh
shape explicitly, that shape is used.

    arguments, note = local_arguments()
    arguments      # {"mesh_shape": "", "mesh_devices": [""]}
    note           # "no --tpu: running on one device"

The values are passed to Mesh TensorFlow's `run` as arguments instead of gin bindings, so that the
saved operative config does not depend on the machine of the run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t0.compat import gin_config
from t0.config.bindings import bound
from t0.errors import UserError
from t0.machine import multiplies_bfloat16

# The types that a run without a TPU binds in gin. For training and inference, the function
# `activation_dtype` chooses the type of activations instead.
LOCAL_TYPES = {
    "get_variable_dtype.slice_dtype": "float32",
    "get_variable_dtype.activation_dtype": "float32",
}


@dataclasses.dataclass(frozen=True)
class LocalMesh:
    """A mesh over devices of this machine.

    Attributes:
      shape: a value for `run.mesh_shape`; "" for one device.
      devices: the TensorFlow device name for each position of the mesh.
    """

    shape: str
    devices: tuple[str, ...]


def local_mesh(gpus: Sequence[str]) -> LocalMesh:
    """Returns the default mesh: data parallelism over all GPUs, or one device if there are no GPUs.

    >>> local_mesh(["gpu:0", "gpu:1"])
    LocalMesh(shape='batch:2', devices=('gpu:0', 'gpu:1'))
    """
    if len(gpus) > 1:
        return LocalMesh(f"batch:{len(gpus)}", tuple(gpus))
    return LocalMesh("", tuple(gpus) or ("",))


def visible_gpus() -> list[str]:
    """Returns the names of the GPUs that TensorFlow sees, such as "gpu:0"."""
    from t0.compat import tf

    return [f"gpu:{index}" for index, _ in enumerate(tf.config.list_physical_devices("GPU"))]


def activation_dtype(name: str, processor: str | None = None) -> Any:
    """Returns the type of activations on this machine.

    Args:
      name: "float32", "bfloat16" or "auto". With "auto", the type is bfloat16 on a GPU, or on a
        processor with instructions for bfloat16 matrix products (AVX512-BF16 or AMX). On other
        processors it is float32, which is faster there.
      processor: the processor's flags; by default those in Linux's /proc/cpuinfo.

    Raises:
      UserError: if `name` is any other name, such as "float16", in which T5's activations overflow.
    """
    from t0.compat import tf

    if name not in ("auto", "float32", "bfloat16"):
        raise UserError(
            f"activation_dtype is '{name}'; wanted auto, float32 or bfloat16 (float16 overflows "
            "in T5 models)"
        )
    if name != "auto":
        return tf.as_dtype(name)
    fast = multiplies_bfloat16(processor) or visible_gpus()
    return tf.bfloat16 if fast else tf.float32


def local_arguments() -> tuple[dict[str, Any], str]:
    """Returns the mesh arguments of `run`, and a sentence that describes them.

    The arguments are empty if the configuration sets its own mesh shape.
    """
    topology = bound("tpu_mesh_shape.tpu_topology", evaluate=False)
    ignored = f" (the TPU topology '{topology}' is ignored)" if topology else ""
    shape = bound("run.mesh_shape", evaluate=False)
    if shape is not None and not _is_tpu_mesh_shape(shape):
        description = f"the configuration's mesh {shape!r}" if shape else "one device"
        return {}, f"no --tpu: running on {description}{ignored}"
    mesh = local_mesh(visible_gpus())
    description = ", ".join(mesh.devices) if mesh.devices != ("",) else "one device"
    arguments = {"mesh_shape": mesh.shape, "mesh_devices": list(mesh.devices)}
    return arguments, f"no --tpu: running on {description}{ignored}"


def _is_tpu_mesh_shape(value: Any) -> bool:
    is_reference = isinstance(value, gin_config.ConfigurableReference)
    return is_reference and value.selector.endswith("tpu_mesh_shape")
