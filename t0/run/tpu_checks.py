"""Checks of the machine before a run on a TPU: a table, each row with what to do about it.

    found = check_machine("my-slice", zone="europe-west4-a", project="mine")
    found.accelerator_type, found.remote                 # "v3-32", True

TensorFlow is not imported. Without the checks it ends with a traceback for the same mistakes, or
asks for a day whether a server is there that never will be. Every wrong row is in the error. The
run itself is checked by `t0.run.tpu_run_checks`, after gin has been parsed.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

from t0.errors import UserError, install_command
from t0.mesh import cloud
from t0.mesh.cloud import ADDRESS, IMAGES, LOCAL, NAMED, Machine, Node, pjrt_variables
from t0.mesh.topology import GENERATIONS

REMOTE = (NAMED, ADDRESS)
ALL = (LOCAL, NAMED, ADDRESS)
# The release of TensorFlow that has Estimator, and that this project is locked to.
TENSORFLOW = "2.15."
INSTALL = f"Install them: {install_command('tpu')}"


@dataclasses.dataclass(frozen=True)
class Found:
    """The TPU of a run: this machine, and the TPU as the API describes it.

    Attributes:
      machine: the facts about this machine.
      node: what the TPU API said; None where it is not asked.
    """

    machine: Machine
    node: Node | None = None

    @property
    def accelerator_type(self) -> str:
        """The slice, such as "v3-32"; "" where nothing says it."""
        named = self.node.accelerator_type if self.node else ""
        return named or self.machine.accelerator_type

    @property
    def remote(self) -> bool:
        """Whether TensorFlow servers, not this process, read the data and compute."""
        return self.machine.kind in REMOTE


@dataclasses.dataclass(frozen=True)
class Row:
    """A check.

    Attributes:
      name: what is checked, in a few words.
      kinds: the kinds of --tpu that it is for.
      fault: returns what is wrong and what to do about it, or None.
    """

    name: str
    kinds: tuple[str, ...]
    fault: Callable[[Any], str | None]


def _no_tpu(found: Found) -> str | None:
    if found.machine.chips:
        return None
    return (
        "this machine has no TPU (no /dev/accel0). --tpu=local is for the TPU VM of a single host, "
        "--tpu=NAME for worker 0 of a slice; without --tpu the run computes on this machine"
    )


def _other_tensorflow(found: Found) -> str | None:
    version = found.machine.tensorflow
    if not version or version.startswith(TENSORFLOW):
        return None
    return (
        f"TensorFlow {version} is installed; wanted 2.15, the last that has Estimator. Make the "
        f"TPU VM with the image {IMAGES}"
    )


def _wheel(found: Found) -> str | None:
    if found.machine.drives_tpu or not found.machine.chips:
        return None
    return (
        f"the TensorFlow {found.machine.tensorflow} that is installed here cannot drive a TPU: the "
        "package index's is built without. The TPU VM's image brings its own: make the environment "
        f"on it by bin/setup --system-tensorflow, on the image {IMAGES}"
    )


def _pjrt(found: Found) -> str | None:
    on = pjrt_variables(found.machine.environment)
    images = (found.machine.image, found.node.runtime if found.node else "")
    image = next((image for image in images if "pjrt" in image), "")
    if image:
        return (
            f"the image {image} has TensorFlow over PJRT, with which Estimator crashes "
            f"(tensorflow#90807). Make the TPU VM with the image {IMAGES}"
        )
    if not on:
        return None
    return (
        f"{' and '.join(on)} {'is' if len(on) == 1 else 'are'} set: TensorFlow would drive the TPU "
        f"by PJRT, with which Estimator crashes (tensorflow#90807). unset {' '.join(on)}; if the "
        f"image set them, it is a -pjrt image: take {IMAGES}"
    )


def _generation(found: Found) -> str | None:
    kind = found.accelerator_type
    if not kind or kind.partition("-")[0] in GENERATIONS:
        return None
    return (
        f"the TPU is a {kind}; TensorFlow's Estimator drives {', '.join(GENERATIONS)}, because "
        "later ones need PJRT"
    )


def _library_off(found: Found) -> str | None:
    if found.machine.environment.get("TPU_LOAD_LIBRARY") != "0" or not found.machine.chips:
        return None
    return (
        "TPU_LOAD_LIBRARY=0 keeps TensorFlow from this machine's TPU; it is for --tpu=NAME. "
        "unset TPU_LOAD_LIBRARY"
    )


def _library_on(found: Found) -> str | None:
    value = found.machine.environment.get("TPU_LOAD_LIBRARY")
    if value == "0" or not found.machine.on_tpu_vm:
        return None
    got = "not set" if value is None else value
    return (
        f"TPU_LOAD_LIBRARY is {got}: this process would take the chips that the TensorFlow server "
        "of this host drives. export TPU_LOAD_LIBRARY=0"
    )


def _one_host_only(found: Found) -> str | None:
    hosts = cloud.hosts_of(found.machine.accelerator_type)
    if hosts < 2:
        return None
    return (
        f"this machine is one of the {hosts} hosts of a {found.machine.accelerator_type}, and "
        "--tpu=local is for a single host. On worker 0: export TPU_LOAD_LIBRARY=0, and --tpu=NAME"
    )


def _other_worker(found: Found) -> str | None:
    if found.machine.worker in ("", "0"):
        return None
    return (
        f"this is worker {found.machine.worker} of the slice; the command runs once, on worker 0: "
        f"gcloud compute tpus tpu-vm ssh {found.machine.tpu} --worker=0"
    )


def _missing_client(found: Found) -> str | None:
    missing = found.machine.missing
    if not missing:
        return None
    return (
        f"TensorFlow looks a TPU up by name with the packages {' and '.join(cloud.CLIENT_PACKAGES)}"
        f"; not installed: {', '.join(missing)}. {INSTALL}"
    )


def _nowhere(found: Found) -> str | None:
    machine = found.machine
    flags = {"--gcp_project": machine.project, "--tpu_zone": machine.zone}
    absent = [flag for flag, value in flags.items() if not value]
    if not absent:
        return None
    return (
        "no metadata server answers, so this machine is not Google's, and nothing says in which "
        f"project and zone the TPU '{machine.tpu}' is. Give {' and '.join(absent)}, or run the "
        "command on worker 0 of the slice"
    )


def _unknown_node(found: Found) -> str | None:
    machine, node = found.machine, found.node
    if not node or not node.trouble:
        return None
    return (
        f"the TPU '{machine.tpu}' cannot be looked up in project {machine.project}, zone "
        f"{machine.zone} ({node.trouble}). List what is there: gcloud compute tpus tpu-vm list "
        f"--project={machine.project} --zone={machine.zone}"
    )


def _not_ready(found: Found) -> str | None:
    machine, node = found.machine, found.node
    if not node or node.trouble or node.state == "READY":
        return None
    gone = node.state in ("PREEMPTED", "TERMINATED")
    return f"the TPU '{machine.tpu}' is {node.state or 'in no state'}, not READY. " + (
        "Delete it and make it again; the run goes on at its last checkpoint"
        if gone
        else f"Wait, and look: gcloud compute tpus tpu-vm describe {machine.tpu} --zone="
        f"{machine.zone}"
    )


def _silent_server(found: Found) -> str | None:
    if found.machine.kind == ADDRESS:
        endpoints = cloud.addresses(found.machine.tpu)
    else:
        endpoints = found.node.endpoints if found.node and found.node.state == "READY" else ()
    silent = [f"{host}:{port}" for host, port in endpoints if not cloud.answers(host, port)]
    if not silent:
        return None
    shown = ", ".join(silent[:3]) + (" ..." if len(silent) > 3 else "")
    return (
        f"{len(silent)} of the {len(endpoints)} TensorFlow servers do not answer: {shown}. Is this "
        "machine of their network, and does the service tpu-runtime run on each host?"
    )


MACHINE = (
    Row("a TPU is here", (LOCAL,), _no_tpu),
    Row("TensorFlow 2.15", ALL, _other_tensorflow),
    Row("TensorFlow drives TPUs", (LOCAL,), _wheel),
    Row("no PJRT", ALL, _pjrt),
    Row("a generation that Estimator drives", ALL, _generation),
    Row("TPU_LOAD_LIBRARY", (LOCAL,), _library_off),
    Row("one host", (LOCAL,), _one_host_only),
    Row("TPU_LOAD_LIBRARY=0", REMOTE, _library_on),
    Row("worker 0", REMOTE, _other_worker),
    Row("client packages", (NAMED,), _missing_client),
    Row("project and zone", (NAMED,), _nowhere),
)
# What needs the TPU API's answer, or takes seconds where nothing answers.
NODE = (
    Row("the TPU exists", (NAMED,), _unknown_node),
    Row("the TPU is ready", (NAMED,), _not_ready),
    Row("no PJRT", (NAMED,), _pjrt),
    Row("a generation that Estimator drives", (NAMED,), _generation),
    Row("servers answer", REMOTE, _silent_server),
)


def faults_of(rows: Iterable[Row], found: Found) -> list[str]:
    """Returns the faults of all rows that are for this kind of --tpu."""
    faults = (row.fault(found) for row in rows if found.machine.kind in row.kinds)
    return [fault for fault in faults if fault]


def check_rows(rows: Iterable[Row], found: Found) -> None:
    """Raises a UserError with the faults of all rows that are for this kind of --tpu."""
    if faults := faults_of(rows, found):
        listed = faults if len(faults) == 1 else [f"\n  - {fault}" for fault in faults]
        raise UserError(f"--tpu={found.machine.tpu} cannot start: {''.join(listed)}")


def check_machine(tpu: str, *, zone: str | None = None, project: str | None = None) -> Found:
    """Checks that this machine can drive the TPU that --tpu names; imports no TensorFlow.

    Args:
      tpu: the value of --tpu.
      zone: the value of --tpu_zone.
      project: the value of --gcp_project.

    Returns:
      what was found, for `check_run`.

    Raises:
      UserError: with every row of the table that is wrong, and its remedy.
    """
    found = Found(cloud.read_machine(tpu, zone=zone, project=project))
    check_rows(MACHINE, found)
    if found.machine.on_google:
        # Off Google's machines `compat` keeps TensorFlow from asking for credentials there.
        os.environ.setdefault("NO_GCE_CHECK", "false")
    if found.machine.kind == NAMED:
        found = dataclasses.replace(found, node=cloud.read_node(found.machine))
    check_rows(NODE, found)
    return found
