"""Chooses the mesh of a run without `--tpu` from the devices of this machine.

Mesh TensorFlow's defaults, and every published operative config, derive the mesh shape from a TPU
topology (`run.mesh_shape = @tpu_mesh_shape()`). Without a TPU there is no topology, so the run gets
this machine's GPUs, or one device. A mesh shape that the configuration states explicitly stays
unchanged.

    arguments, note = local_arguments()
    arguments      # {"mesh_shape": "", "mesh_devices": [""]}
    note           # "no --tpu: running on one device"

They are passed as arguments of Mesh TensorFlow's `run` and not as gin bindings, so that a saved
operative config does not name the machine that it ran on.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from t0.compat import gin_config
from t0.config.bindings import bound
from t0.errors import UserError
from t0.machine import multiplies_bfloat16

# Types bound by a run without a TPU. `activation_dtype` selects the type of activations in training
# and inference.
LOCAL_TYPES = {
    "get_variable_dtype.slice_dtype": "float32",
    "get_variable_dtype.activation_dtype": "float32",
}


@dataclasses.dataclass(frozen=True)
class LocalMesh:
    """A mesh over devices of this machine.

    Attributes:
      shape: a value for `run.mesh_shape`, "" for one device.
      devices: the TensorFlow device name of each position.
    """

    shape: str
    devices: tuple[str, ...]


def local_mesh(gpus: Sequence[str]) -> LocalMesh:
    """Returns the default mesh: data parallel over the GPUs, or one device chosen by TensorFlow.

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
      name: "float32", "bfloat16", or "auto": bfloat16 on a GPU or a processor with bfloat16 matrix
        products (AVX512-BF16 or AMX), otherwise float32, which is faster there.
      processor: the processor's flags; by default those in Linux's /proc/cpuinfo.

    Raises:
      UserError: for another name; float16 overflows in T5.
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

    There are no arguments if the configuration sets its own mesh shape.
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
