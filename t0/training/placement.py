"""The devices of a run's session: there are as many as its mesh asks for, or the run is refused."""

import re
from collections.abc import Sequence

from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.mesh.devices import visible_gpus

_DEVICE = re.compile(r"(cpu|gpu):(\d+)$", re.IGNORECASE)


def session_config(devices: Sequence[str]) -> tf.ConfigProto:
    """Returns a configuration in which every CPU device of the mesh exists."""
    found = [_DEVICE.search(name) for name in devices]
    cpus = [int(match[2]) + 1 for match in found if match and match[1].lower() == "cpu"]
    return tf.ConfigProto(allow_soft_placement=True, device_count={"CPU": max(cpus, default=1)})


def check_devices(names: Sequence[str]) -> None:
    """Checks that the GPUs of a mesh are there.

    Raises:
      UserError: if TensorFlow does not see one.
    """
    wanted = {match[0].lower() for match in map(_DEVICE.search, names) if match}
    missing = sorted(name for name in wanted if name.startswith("gpu")) if wanted else []
    there = visible_gpus() if missing else []
    missing = [name for name in missing if name not in there]
    if missing:
        raise UserError(
            f"run.mesh_devices asks for {', '.join(missing)}, and TensorFlow sees "
            f"{', '.join(there) or 'no GPU'}. See `t0 doctor`; to run on the CPU, bind "
            "run.mesh_devices = None and run.mesh_shape = ''"
        )
