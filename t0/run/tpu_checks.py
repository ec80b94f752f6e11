"""Checks this machine, the TPU and the configured run before a run on a TPU.

    machine = check_machine("my-slice", zone="europe-west4-a", project="mine")
    machine.slice_type, machine.is_remote                # "v3-32", True
    check_run(machine, model_dir="gs://mine/model", cores=mesh_cores())     # parse gin first

`check_machine` does not import TensorFlow. Without these checks, TensorFlow would fail with a
traceback, or would wait a day for a server that does not exist. If there are faults, a UserError
lists all of them, and explains how to fix them.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from t0.errors import UserError, install_command
from t0.files import paths
from t0.mesh import cloud
from t0.mesh.cloud import ADDRESS, IMAGES, LOCAL, NAMED, Machine, pjrt_variables
from t0.mesh.topology import GENERATIONS, SLICES, topology

# The last release of TensorFlow that has Estimator. This project's lock files pin this release.
TENSORFLOW = "2.15."
INSTALL = f"Install them: {install_command('tpu')}"


def find_faults(machine: Machine) -> Iterator[str]:
    """Yields a line for each fault of this machine and its TPU, with the way to fix it."""
    yield from _local_faults(machine) if machine.kind == LOCAL else _remote_faults(machine)
    if machine.tensorflow and not machine.tensorflow.startswith(TENSORFLOW):
        yield (
            f"TensorFlow {machine.tensorflow} is installed; expected 2.15, the last release with "
            f"Estimator. Create the TPU VM with the image {IMAGES}"
        )
    yield from _slice_faults(machine)
    yield from _node_faults(machine)


def _local_faults(machine: Machine) -> Iterator[str]:
    """Yields the faults of a machine that uses the TPU to which it is attached (--tpu=local)."""
    if not machine.chips:
        yield (
            "this machine has no TPU (no /dev/accel0). --tpu=local is for the TPU VM of a single "
            "host, --tpu=NAME for worker 0 of a slice; without --tpu the run uses this machine"
        )
    if machine.chips and not machine.drives_tpu:
        yield (
            f"the installed TensorFlow {machine.tensorflow} cannot drive a TPU, because PyPI's "
            "build has no TPU support. Use the one in the TPU VM's image: run bin/setup "
            f"--system-tensorflow on the image {IMAGES}"
        )
    if machine.chips and machine.environment.get("TPU_LOAD_LIBRARY") == "0":
        yield (
            "TPU_LOAD_LIBRARY=0 hides this machine's TPU from TensorFlow; it is for --tpu=NAME. "
            "unset TPU_LOAD_LIBRARY"
        )
    hosts = cloud.hosts_of(machine.accelerator_type)
    if hosts > 1:
        yield (
            f"this machine is one of the {hosts} hosts of a {machine.accelerator_type}, and "
            "--tpu=local is for a single host. On worker 0: export TPU_LOAD_LIBRARY=0, and "
            "--tpu=NAME"
        )


def _remote_faults(machine: Machine) -> Iterator[str]:
    """Yields the faults of a machine that uses the TensorFlow servers on a TPU's hosts."""
    library = machine.environment.get("TPU_LOAD_LIBRARY")
    if machine.on_tpu_vm and library != "0":
        yield (
            f"TPU_LOAD_LIBRARY is {'not set' if library is None else library}: this process would "
            "take the chips from the TensorFlow server of this host. export TPU_LOAD_LIBRARY=0"
        )
    if machine.worker not in ("", "0"):
        yield (
            f"this is worker {machine.worker} of the slice; the command runs once, on worker 0: "
            f"gcloud compute tpus tpu-vm ssh {machine.tpu} --worker=0"
        )
    if machine.kind == NAMED and machine.missing:
        yield (
            "to find a TPU by its name, TensorFlow needs the packages "
            f"{' and '.join(cloud.CLIENT_PACKAGES)}; not installed: {', '.join(machine.missing)}. "
            f"{INSTALL}"
        )
    flags = {"--gcp_project": machine.project, "--tpu_zone": machine.zone}
    absent = [flag for flag, value in flags.items() if not value]
    if machine.kind == NAMED and absent:
        yield (
            f"the project and zone of the TPU '{machine.tpu}' are unknown, because no metadata "
            f"server answers: this is not a Google machine. Set {' and '.join(absent)}, or "
            "run the command on worker 0 of the slice"
        )


def _slice_faults(machine: Machine) -> Iterator[str]:
    """Yields a fault if Estimator does not support the TPU's image or generation."""
    variables = pjrt_variables(machine.environment)
    images = (machine.image, machine.node.runtime if machine.node else "")
    image = next((image for image in images if "pjrt" in image), "")
    if image:
        yield (
            f"the image {image} has TensorFlow with PJRT, with which Estimator crashes "
            f"(tensorflow#90807). Create the TPU VM with the image {IMAGES}"
        )
    elif variables:
        yield (
            f"{' and '.join(variables)} {'is' if len(variables) == 1 else 'are'} set: TensorFlow "
            "would use the TPU through PJRT, with which Estimator crashes (tensorflow#90807). "
            f"unset {' '.join(variables)}; if the image set them, it is a -pjrt image: use {IMAGES}"
        )
    kind = machine.slice_type
    if kind and kind.partition("-")[0] not in GENERATIONS:
        yield (
            f"the TPU is a {kind}; TensorFlow's Estimator drives {', '.join(GENERATIONS)}, because "
            "later ones need PJRT"
        )


def _node_faults(machine: Machine) -> Iterator[str]:
    """Yields the faults of the TPU. If no server of the TPU answers, this takes seconds."""
    node = machine.node
    endpoints = cloud.addresses(machine.tpu) if machine.kind == ADDRESS else ()
    if node and node.trouble:
        yield (
            f"the TPU '{machine.tpu}' cannot be looked up in project {machine.project}, zone "
            f"{machine.zone} ({node.trouble}). List the TPUs: gcloud compute tpus tpu-vm list "
            f"--project={machine.project} --zone={machine.zone}"
        )
    elif node and node.state != "READY":
        gone = node.state in ("PREEMPTED", "TERMINATED")
        yield f"the TPU '{machine.tpu}' is {node.state or 'in no state'}, not READY. " + (
            "Delete it and create it again; the run resumes from its last checkpoint"
            if gone
            else f"Wait, and check: gcloud compute tpus tpu-vm describe {machine.tpu} --zone="
            f"{machine.zone}"
        )
    elif node:
        endpoints = node.endpoints
    silent = [f"{host}:{port}" for host, port in endpoints if not cloud.answers(host, port)]
    if silent:
        shown = ", ".join(silent[:3]) + (" ..." if len(silent) > 3 else "")
        yield (
            f"{len(silent)} of the {len(endpoints)} TensorFlow servers do not answer: {shown}. Is "
            "this machine in their network, and does the service tpu-runtime run on each host?"
        )


def examine(tpu: str, *, zone: str | None, project: str | None) -> tuple[Machine, list[str]]:
    """Returns the facts and faults of this machine and its TPU. Does not import TensorFlow.

    Args:
      tpu: the value of --tpu.
      zone: the value of --tpu_zone.
      project: the value of --gcp_project.
    """
    machine = cloud.read_machine(tpu, zone=zone, project=project)
    if machine.on_google:
        # Let TensorFlow ask Google's metadata server for credentials. On other machines, `compat`
        # prevents this.
        os.environ.setdefault("NO_GCE_CHECK", "false")
    if machine.kind == NAMED and machine.project and machine.zone:
        machine = dataclasses.replace(machine, node=cloud.read_node(machine))
    return machine, list(find_faults(machine))


def refuse_faults(tpu: str, faults: list[str]) -> None:
    """Raises a UserError that lists all faults, if there are any."""
    if faults:
        items = faults if len(faults) == 1 else [f"\n  - {fault}" for fault in faults]
        raise UserError(f"--tpu={tpu} cannot start: {''.join(items)}")


def check_machine(tpu: str, *, zone: str | None = None, project: str | None = None) -> Machine:
    """Checks that this machine can use the TPU that --tpu names.

    The arguments are those of `examine`.

    Returns:
      the facts about this machine and the TPU, for `check_run`.

    Raises:
      UserError: there are faults. The message lists them, and explains how to fix them.
    """
    machine, faults = examine(tpu, zone=zone, project=project)
    refuse_faults(tpu, faults)
    return machine


def check_run(
    machine: Machine, *, model_dir: str | None, cores: int | None, checkpoint: str | None = None
) -> None:
    """Checks that the configured run fits its TPU. Call it after parsing gin.

    Args:
      machine: the result of `check_machine`.
      model_dir: the folder of the run's checkpoints; None if it is not set.
      cores: the number of cores of the configured mesh; None if it is not a mesh of TPU cores.
      checkpoint: the checkpoint from which the run starts, or which it reads; None if it is in
        `model_dir`.

    Raises:
      UserError: there are faults. The message lists them, and explains how to fix them.
    """
    from t0.compat import seqio

    faults = (
        []
        if model_dir
        else [
            "no model directory is set, and runs on a TPU have no default: "
            "--model_dir=gs://BUCKET/FOLDER"
        ]
    )
    faults += _mesh_faults(machine.slice_type, cores)
    folders = {"--model_dir": model_dir, "the checkpoint to start from": checkpoint}
    folders |= {f"cache folder {n}": at for n, at in enumerate(seqio.get_global_cache_dirs(), 1)}
    if machine.is_remote:
        hosts = cloud.hosts_of(machine.slice_type) or (cores or 0) // topology("v3-8").cores
        faults += _remote_run_faults(hosts, folders)
    faults += _vocabulary_faults()
    refuse_faults(machine.tpu, faults)


def _mesh_faults(kind: str, mesh_cores: int | None) -> Iterator[str]:
    """Yields a fault if the mesh and the slice (`kind`, such as "v3-32") have different sizes."""
    if mesh_cores is None or kind not in SLICES:
        return
    cores = topology(kind).cores
    # A v4 chip appears either as one core ("megacore") or as two cores.
    if mesh_cores == cores or (kind.startswith("v4-") and mesh_cores == cores // 2):
        return
    from t0.config.bindings import bound

    in_gin = bound("tpu_mesh_shape.tpu_topology", evaluate=False)
    setting = f"tpu_mesh_shape.tpu_topology = {in_gin!r}" if in_gin else "run.mesh_shape"
    yield (
        f"the mesh has {mesh_cores} cores ({setting}), the TPU is a {kind} with {cores}. Add "
        f"--gin_file=mesh/{kind}.gin after the other files, or start on a slice of the mesh's size"
    )


def _remote_run_faults(hosts: int, folders: dict[str, str | None]) -> Iterator[str]:
    """Yields the faults of a run in which TensorFlow servers on several hosts read the data."""
    from t0.config.bindings import bound

    local = [f"{name} ({at})" for name, at in folders.items() if at and not paths.is_remote(at)]
    if hosts > 1 and local:
        yield (
            f"the {hosts} hosts of the slice share no disk, but "
            f"{'one path is' if len(local) == 1 else 'paths are'} local: {', '.join(local)}. Copy "
            "to a bucket in the slice's region and use that: gsutil -m cp -r FOLDER gs://BUCKET/FOLDER"
        )
    if bound("pack_dataset.use_custom_ops", False):
        yield (
            "pack_dataset.use_custom_ops = True needs custom TensorFlow operations, which a TPU's "
            "hosts do not have. --gin_param='pack_dataset.use_custom_ops "
            "= False'"
        )


def _vocabulary_faults() -> Iterator[str]:
    from t0.tasks.vocabulary import vocabulary_path

    path = vocabulary_path()
    if not path.startswith("gs://") and not Path(path).is_file():
        yield (
            f"there is no vocabulary {path}; a TPU's host has its own disk. Use one "
            "on this machine or in a bucket: --vocab=FILE or T0_VOCAB=FILE"
        )


def mesh_cores() -> int | None:
    """Returns the number of cores of the mesh that gin configures; None if there is no mesh."""
    from t0.compat import mtf
    from t0.config.bindings import bound

    shape = bound("run.mesh_shape")
    return None if shape is None else mtf.convert_to_shape(shape).size
