"""Finds the TensorFlow that a machine's image brings, and judges whether T0 can stand on it.

    found = look("/usr/bin/python3.10")     # None where that Python has no TensorFlow
    found.version, found.folder             # "2.15.1", "/usr/local/lib/python3.10/dist-packages"
    fault(found, tpu=True)                  # None, or what is wrong and what to do

A package of the user's own (`pip install --user`) does not count: it would shadow the image's.

Only the standard library is imported: bin/setup asks before anything is installed.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from t0.mesh import tpu_image

# What is taken from the image where it is there in this release: TensorFlow, and what was built or
# released with it. All else comes from the lock, whatever the image has.
TAKEN = {
    "tensorflow": "2.15.1",
    "tensorflow-text": "2.15",
    "tensorflow-estimator": "2.15",
    "tensorflow-io-gcs-filesystem": "",
    "keras": "2.15",
    "tensorboard": "2.15",
}
# Other distributions of TensorFlow; the first is built for PJRT alone.
OTHERS = ("tensorflow-tpu", "tensorflow-cpu", "tf-nightly")
_ASK = """
import importlib.metadata as m, json, sys
found = {}
for d in m.distributions():
    name = (d.metadata["Name"] or "").lower().replace("_", "-")
    found.setdefault(name, [d.version, str(d.locate_file(""))])
print(json.dumps({"python": list(sys.version_info[:3]), "packages": found}))
"""


@dataclass(frozen=True)
class SystemTensorflow:
    """A TensorFlow that is installed for a Python of the machine.

    Attributes:
      python: the interpreter.
      python_version: its version, such as "3.10.12".
      name: the distribution: "tensorflow", or one of `OTHERS`.
      version: its version.
      folder: the folder of packages that it lies in.
      taken: the versions of the packages of `TAKEN` that fit.
    """

    python: str
    python_version: str
    name: str
    version: str
    folder: str
    taken: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """What was found, and where."""
        return f"{self.name} {self.version} of Python {self.python_version} in {self.folder}"


def look(python: str) -> SystemTensorflow | None:
    """Returns the TensorFlow of an interpreter, or None; the user's own packages do not count."""
    try:
        # -I: neither PYTHONPATH nor ~/.local.
        answer = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, check=True)
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    packages = facts["packages"]
    name = next((name for name in ("tensorflow", *OTHERS) if name in packages), None)
    if name is None:
        return None
    version, folder = packages[name]
    taken = {
        package: packages[package][0]
        for package, release in TAKEN.items()
        if package in packages and _of_release(packages[package][0], release)
        # What lies elsewhere is not seen by the environment.
        if packages[package][1] == folder
    }
    return SystemTensorflow(
        python, ".".join(map(str, facts["python"])), name, version, folder, taken
    )


def fault(
    found: SystemTensorflow, *, tpu: bool, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Returns why T0 cannot stand on a TensorFlow, and what to do; None where it can.

    Args:
      found: the TensorFlow.
      tpu: whether this machine has TPU chips, so that it has to drive them.
      environment: the environment variables.
    """
    take = f"make the TPU VM with the image {tpu_image.IMAGES}"
    wanted = f"wanted is tensorflow {TAKEN['tensorflow']}"
    if found.name == "tensorflow-tpu":
        return f"found {found}, which drives TPUs by PJRT alone; {wanted}: {take}"
    if found.name != "tensorflow" or not _of_release(found.version, TAKEN["tensorflow"]):
        return f"found {found}; {wanted}, the last release with TPUEstimator: {take}"
    if not (3, 10) <= _release(found.python_version)[:2] <= (3, 11):
        return f"found {found}; wanted is Python 3.10 or 3.11: {take}"
    if names := tpu_image.pjrt_variables(environment):
        return (
            f"found {found}, and {' and '.join(names)} set: TensorFlow would drive the TPU by "
            f"PJRT, with which Estimator crashes; wanted is an image of StreamExecutor (-se): "
            f"unset {' '.join(names)}, or, where a -pjrt image sets them, {take}"
        )
    if tpu and not tpu_image.drives_tpu(Path(found.folder) / "tensorflow"):
        return (
            f"found {found}, which was built without TPUs: it is the package index's, or that of a "
            f"-pjrt image; wanted is the TensorFlow of an image of StreamExecutor: {take}"
        )
    return None


def _of_release(version: str, release: str) -> bool:
    """Whether a version is of a release: 2.15.1 and 2.15.1+tpu are of 2.15, 2.150 is not."""
    wanted = _release(release)
    return _release(version)[: len(wanted)] == wanted


def _release(version: str) -> tuple[int, ...]:
    numbers = version.partition("+")[0].split(".") if version else []
    # A pre-release, 2.15.0rc1, is of no release: its last part is not a number.
    return tuple(int(number) if number.isdigit() else -1 for number in numbers)
