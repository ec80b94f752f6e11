"""Checks this machine, the TPU and the configured run before a run on a TPU.

    machine = check_machine("my-slice", zone="europe-west4-a", project="mine")
    machine.slice_type, machine.is_remote                # "v3-32", True
    check_run(machine, model_dir="gs://mine/model", cores=mesh_cores())     # parse gin first

`read_machine` and `read_node` collect facts from this machine, the metadata server and the TPU API.
They use the same addresses as TensorFlow's own client, including the environment variables
GCE_METADATA_HOST for the metadata server and TPU_API_DISCOVERY_URL for the API's discovery
document. `check_machine` does not import TensorFlow. Without these checks, TensorFlow would fail
with a traceback, or would wait a day for a server that does not exist. If there are faults, a
UserError lists all of them, and explains how to fix them.

The TensorFlow on PyPI is built without TPU support, so the images of TPU VMs contain their own
build. Images whose names end in -se drive the TPU through StreamExecutor, which Estimator needs.
Images whose names end in -pjrt drive it through the PJRT plugin, with which Estimator crashes
(tensorflow#90807).
"""

import dataclasses
import importlib.util
import mmap
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t0.errors import UserError, install_command
from t0.files import paths
from t0.files.untrusted import parsed_json
from t0.machine import installed_version
from t0.mesh.topology import GENERATIONS, SLICES, topology

METADATA_SERVER = "metadata.google.internal"
API = "https://tpu.googleapis.com/"
PORT = 8470  # port of the TensorFlow server on each host
SECONDS_TO_ANSWER = 5
# The packages that TensorFlow needs to look up a TPU by name.
CLIENT_PACKAGES = ("googleapiclient", "oauth2client")
INSTALL = f"Install them: {install_command('tpu')}"
# The last release of TensorFlow that has Estimator. This project's lock files pin this release.
TENSORFLOW = "2.15."
# The distributions that contain TensorFlow.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-gpu")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_DEVICES = ("accel[0-9]*", "vfio/[0-9]*")
_OF_TPU_ENV = re.compile(r"^(\w+): '(.*)'$", re.M)
_TYPICAL_SLICES = ("v3-8", "v3-32", "v4-8")  # with different zones
IMAGES = "tpu-vm-tf-2.15.1-se, on a slice tpu-vm-tf-2.15.1-pod-se"
# If one of these variables is set, TensorFlow loads the PJRT plugin. The instructions for -pjrt
# images set both.
PJRT_VARIABLES = ("NEXT_PLUGGABLE_DEVICE_USE_C_API", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH")
LIBRARIES = (
    "libtensorflow_framework.so.2",
    "python/_pywrap_tensorflow_internal.so",
    "libtensorflow_cc.so.2",
)
# Only a TensorFlow built for TPUs has the code that loads libtpu.so.
_LOADS_LIBTPU = (b"libtpu.so", b"TPU_LIBRARY_PATH")


@dataclasses.dataclass(frozen=True)
class Node:
    """A TPU as the TPU API describes it.

    Attributes:
      trouble: the reason why the request failed; "" if there is a TPU.
      accelerator_type: the name of the slice, such as "v3-32".
      state: the state of the TPU, such as "READY" or "PREEMPTED".
      runtime: the runtime version, such as "tpu-vm-tf-2.15.1-pod-se".
      endpoints: for each host, the address and the port of its TensorFlow server.
    """

    trouble: str = ""
    accelerator_type: str = ""
    state: str = ""
    runtime: str = ""
    endpoints: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Machine:
    """The facts about this machine, and about the TPU of a run.

    Attributes:
      tpu: the value of --tpu.
      environment: the environment variables.
      chips: the number of TPU chips in this machine.
      tensorflow: the version of the installed TensorFlow, "" if it is unknown.
      drives_tpu: whether the installed TensorFlow can drive the TPU chips of this machine.
      missing: the packages that TensorFlow needs to look up a TPU by name, but that are not
        installed.
      on_google: whether a metadata server answers.
      project: the Google Cloud project. It is from the flag or, if the flag is not set, from the
        metadata server; "" if neither has it.
      zone: the zone, from the same sources as `project`.
      worker: the number of this host in its slice; "" outside TPU VMs.
      accelerator_type: the slice that this host belongs to, such as "v3-32"; "" outside TPU VMs.
      image: the runtime version of this host; "" if the metadata server has no version.
      node: the answer of the TPU API about the TPU; None if the API was not asked.
    """

    tpu: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    chips: int = 0
    tensorflow: str = ""
    drives_tpu: bool = False
    missing: tuple[str, ...] = ()
    on_google: bool = False
    project: str = ""
    zone: str = ""
    worker: str = ""
    accelerator_type: str = ""
    image: str = ""
    node: Node | None = None

    @property
    def is_named(self) -> bool:
        """Whether --tpu is the name of a TPU; else it is "local" or the addresses of servers."""
        return self.tpu != "local" and not self.tpu.startswith("grpc://")

    @property
    def slice_type(self) -> str:
        """The type of the run's slice, such as "v3-32"; "" if unknown."""
        return (self.node.accelerator_type if self.node else "") or self.accelerator_type

    @property
    def is_remote(self) -> bool:
        """Whether TensorFlow servers read the data and compute, instead of this process."""
        return self.tpu != "local"

    @property
    def on_tpu_vm(self) -> bool:
        """Whether this machine is a host of a TPU."""
        return bool(self.chips or self.worker or self.accelerator_type)


def hosts_of(accelerator_type: str) -> int:
    """Returns the number of hosts of a slice such as "v3-32"; 0 if its name is unknown."""
    return topology(accelerator_type).hosts if accelerator_type in SLICES else 0


def read_machine(
    tpu: str, *, zone: str | None = None, project: str | None = None, root: Path = Path("/")
) -> Machine:
    """Collects the facts about this machine.

    Args:
      tpu: the value of --tpu.
      zone: the value of --tpu_zone.
      project: the value of --gcp_project.
      root: the root of the file system, in which `dev` lists the TPU chips.
    """
    own_project = metadata("project/project-id")
    on_google = own_project is not None
    attributes: dict[str, str] = {}
    if on_google:
        zone = zone or (metadata("instance/zone") or "").rpartition("/")[2]
        attributes = dict(_OF_TPU_ENV.findall(metadata("instance/attributes/tpu-env") or ""))
    chips = sum(len(list((root / "dev").glob(name))) for name in _DEVICES)
    return Machine(
        tpu=tpu,
        environment=dict(os.environ),
        chips=chips,
        tensorflow=installed_version(*_TENSORFLOWS) or "",
        # This searches a gigabyte of libraries, so it runs only on machines with a TPU.
        drives_tpu=bool(chips) and _tensorflow_drives_tpu(),
        missing=tuple(name for name in CLIENT_PACKAGES if not importlib.util.find_spec(name)),
        on_google=on_google,
        project=project or own_project or "",
        zone=zone or "",
        worker=attributes.get("WORKER_ID", ""),
        accelerator_type=attributes.get("ACCELERATOR_TYPE", ""),
        image=attributes.get("RUNTIME_VERSION", ""),
    )


def metadata(path: str) -> str | None:
    """Returns a value of the metadata server; "" if it is missing, None if there is no server.

    Args:
      path: the path of the value, such as "instance/zone".
    """
    host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP")
    if not host and os.environ.get("NO_GCE_CHECK", "").lower() == "true":
        return None  # The user declares that this machine is not Google's.
    url = f"http://{host or METADATA_SERVER}/computeMetadata/v1/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    # The server belongs to this machine, so it is never behind a proxy.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=SECONDS_TO_ANSWER) as reply:
            return reply.read().decode("utf-8", "replace").strip()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError):
        return None


def _tensorflow_drives_tpu() -> bool:
    """Returns whether the installed TensorFlow was built for TPUs."""
    spec = importlib.util.find_spec("tensorflow")
    folders = (spec.submodule_search_locations if spec else None) or ()
    libraries = (Path(folder) / name for folder in folders for name in LIBRARIES)
    return any(loads_libtpu(path) for path in libraries if path.is_file())


def loads_libtpu(library: Path) -> bool:
    """Returns whether a shared library contains the code that loads a TPU driver."""
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return any(content.find(name) >= 0 for name in _LOADS_LIBTPU)


def read_node(machine: Machine) -> Node:
    """Asks the TPU API about the TPU that `machine.tpu` names."""
    try:
        name = f"projects/{machine.project}/locations/{machine.zone}/nodes/{machine.tpu}"
        node = _get(f"{_api()}v1/{name}", _token())
    except urllib.error.HTTPError as error:
        return Node(trouble=f"HTTP {error.code}: {_reason(error)}")
    except (OSError, ValueError, LookupError) as error:
        return Node(trouble=f"{error}" or type(error).__name__)
    hosts = [host for host in node.get("networkEndpoints") or [node] if host.get("ipAddress")]
    return Node(
        accelerator_type=str(node.get("acceleratorType", "")),
        state=str(node.get("state", "")),
        runtime=str(node.get("runtimeVersion") or node.get("tensorflowVersion") or ""),
        endpoints=tuple((str(host["ipAddress"]), int(host.get("port") or PORT)) for host in hosts),
    )


def addresses(tpu: str) -> tuple[tuple[str, int], ...]:
    """Returns the hosts and ports of a grpc:// address.

    >>> addresses("grpc://10.0.0.2:8470,10.0.0.3")
    (('10.0.0.2', 8470), ('10.0.0.3', 8470))
    """
    words = (word.removeprefix("grpc://").partition(":") for word in tpu.split(","))
    return tuple((host, int(port) if port.isdigit() else PORT) for host, _, port in words)


def answers(host: str, port: int) -> bool:
    """Returns whether a server accepts connections at this address."""
    try:
        with socket.create_connection((host, port), timeout=SECONDS_TO_ANSWER):
            return True
    except OSError:
        return False


def _api() -> str:
    """Returns the root URL of the TPU API, from the discovery document if one is configured."""
    discovery_url = os.environ.get("TPU_API_DISCOVERY_URL")
    if not discovery_url:
        return API
    document = _get(discovery_url.replace("{api}", "tpu").replace("{apiVersion}", "v1"))
    return str(document.get("rootUrl") or API) + str(document.get("servicePath") or "")


def _token() -> str:
    """Returns an access token for the TPU API.

    If GOOGLE_APPLICATION_CREDENTIALS names a credentials file, the token is made with this file.
    Otherwise, it is the token of this machine's service account. If there is no service account, it
    is the token of the user's login.

    Raises:
      LookupError: if there are no credentials.
    """
    if not os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        own_token = metadata("instance/service-accounts/default/token")
        if own_token:
            return str(_json_object(own_token)["access_token"])
    import google.auth
    from google.auth import exceptions
    from google.auth.transport import requests

    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        credentials.refresh(requests.Request())
    except exceptions.GoogleAuthError as error:
        raise LookupError(
            "no credentials were found; on your own machine: gcloud auth application-default login"
        ) from error
    return str(credentials.token)


def _get(url: str, token: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=6 * SECONDS_TO_ANSWER) as reply:
        return _json_object(reply.read())


def _json_object(text: str | bytes) -> dict[str, Any]:
    value = parsed_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"the answer is {type(value).__name__}, not an object")  # noqa: TRY004
    return value


def _reason(error: urllib.error.HTTPError) -> str:
    """Returns the message of an API error; the HTTP reason if the error has no message."""
    try:
        message = parsed_json(error.read())["error"]["message"]
    except (OSError, ValueError, LookupError, TypeError):
        message = error.reason
    return str(message).strip().rstrip(".")


def find_faults(machine: Machine) -> Iterator[str]:
    """Yields a line for each fault of this machine and its TPU, with the way to fix it."""
    yield from _remote_faults(machine) if machine.is_remote else _local_faults(machine)
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
    hosts = hosts_of(machine.accelerator_type)
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
    if machine.is_named and machine.missing:
        yield (
            "to find a TPU by its name, TensorFlow needs the packages "
            f"{' and '.join(CLIENT_PACKAGES)}; not installed: {', '.join(machine.missing)}. "
            f"{INSTALL}"
        )
    flags = {"--gcp_project": machine.project, "--tpu_zone": machine.zone}
    absent = [flag for flag, value in flags.items() if not value]
    if machine.is_named and absent:
        yield (
            f"the project and zone of the TPU '{machine.tpu}' are unknown, because no metadata "
            f"server answers: this is not a Google machine. Set {' and '.join(absent)}, or "
            "run the command on worker 0 of the slice"
        )


def _slice_faults(machine: Machine) -> Iterator[str]:
    """Yields a fault if Estimator does not support the TPU's image or generation."""
    images = (machine.image, machine.node.runtime if machine.node else "")
    causes = [f"the image {image}" for image in images if "pjrt" in image]
    causes += [f"the variable {name}" for name in PJRT_VARIABLES if machine.environment.get(name)]
    if causes:
        yield (
            f"{causes[0]} makes TensorFlow use the TPU through PJRT, with which Estimator crashes "
            f"(tensorflow#90807). Create the TPU VM with the image {IMAGES}, and unset "
            f"{' '.join(PJRT_VARIABLES)}"
        )
    kind = machine.slice_type
    if kind and kind.partition("-")[0] not in GENERATIONS:
        yield (
            f"the TPU is a {kind}; TensorFlow's Estimator drives {', '.join(GENERATIONS)}, because "
            f"later ones need PJRT. {_describe_zones()}"
        )


def _describe_zones() -> str:
    """Returns a sentence with the zones of typical slices."""
    zones = "; ".join(f"{name}: {', '.join(topology(name).zones)}" for name in _TYPICAL_SLICES)
    return f"Zones with TPUs (November 2026): {zones}"


def _node_faults(machine: Machine) -> Iterator[str]:
    """Yields the faults of the TPU. If no server of the TPU answers, this takes seconds."""
    node = machine.node
    endpoints = addresses(machine.tpu) if machine.tpu.startswith("grpc://") else ()
    if node and node.trouble:
        yield (
            f"the TPU '{machine.tpu}' cannot be looked up in project {machine.project}, zone "
            f"{machine.zone} ({node.trouble}). List the TPUs: gcloud compute tpus tpu-vm list "
            f"--project={machine.project} --zone={machine.zone}. {_describe_zones()}"
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
    silent = [f"{host}:{port}" for host, port in endpoints if not answers(host, port)]
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
    machine = read_machine(tpu, zone=zone, project=project)
    if machine.on_google:
        # Let TensorFlow ask Google's metadata server for credentials. On other machines, `compat`
        # prevents this.
        os.environ.setdefault("NO_GCE_CHECK", "false")
    if machine.is_named and machine.project and machine.zone:
        machine = dataclasses.replace(machine, node=read_node(machine))
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
        hosts = hosts_of(machine.slice_type) or (cores or 0) // topology("v3-8").cores
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
