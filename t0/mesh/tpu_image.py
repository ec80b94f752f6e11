"""Which TensorFlow drives a Cloud TPU, and how another one is recognised.

    drives_tpu(Path(".../site-packages/tensorflow"))                       # False: built without
    loads_libtpu(Path(".../tensorflow/libtensorflow_framework.so.2"))      # False

TensorFlow of the package index is built without TPUs: the images of TPU VMs bring their own. Those
that end in -se drive the TPU as Estimator needs it (StreamExecutor); those that end in -pjrt drive
it through a plugin, with which Estimator crashes (tensorflow#90807).
"""

import mmap
from collections.abc import Mapping
from pathlib import Path

IMAGE, POD_IMAGE = "tpu-vm-tf-2.15.1-se", "tpu-vm-tf-2.15.1-pod-se"
IMAGES = f"{IMAGE}, on a slice {POD_IMAGE}"
# With these, TensorFlow loads the plugin; the instructions for -pjrt images set both.
PJRT_VARIABLES = ("NEXT_PLUGGABLE_DEVICE_USE_C_API", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH")
LIBRARIES = (
    "libtensorflow_framework.so.2",
    "python/_pywrap_tensorflow_internal.so",
    "libtensorflow_cc.so.2",
)
_OFF = ("", "0", "false")
# Only a TensorFlow that was built for TPUs has the code that loads libtpu.so.
_LOADS_LIBTPU = (b"libtpu.so", b"TPU_LIBRARY_PATH")


def pjrt_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns the variables that are set and make TensorFlow drive the TPU by PJRT."""
    return [name for name in PJRT_VARIABLES if environment.get(name, "").lower() not in _OFF]


def drives_tpu(tensorflow: Path) -> bool:
    """Returns whether TensorFlow, in the folder `tensorflow`, was built for TPUs."""
    libraries = (tensorflow / name for name in LIBRARIES)
    return any(loads_libtpu(path) for path in libraries if path.is_file())


def loads_libtpu(library: Path) -> bool:
    """Returns whether a shared library of TensorFlow has the code that loads a TPU's driver."""
    with library.open("rb") as file:
        if not library.stat().st_size:  # which mmap refuses
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in _LOADS_LIBTPU)
