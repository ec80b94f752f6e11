"""Collects facts about a Cloud TPU from this machine, the metadata server and the TPU API.

    machine = read_machine("my-slice", zone=None, project=None)
    machine.chips, machine.worker, machine.accelerator_type      # 4, "0", "v3-32"
    read_node(machine).state                                     # "READY"
    machine.drives_tpu                                           # False: TensorFlow without TPUs

This module does not import TensorFlow, so that problems are reported before TensorFlow loads. It
uses the same addresses as TensorFlow's own client, including the environment variables
GCE_METADATA_HOST for the metadata server and TPU_API_DISCOVERY_URL for the API's discovery
document.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t0.files.untrusted import parsed_json
from t0.machine import installed_version
from t0.mesh.topology import SLICES, topology

# The kinds of values of --tpu: "local" for this machine's own TPU, the name of a TPU in the
# project, or the addresses of TensorFlow servers.
LOCAL, NAMED, ADDRESS = "local", "named", "address"
METADATA_SERVER = "metadata.google.internal"
API = "https://tpu.googleapis.com/"
PORT = 8470  # port of the TensorFlow server on each host
SECONDS_TO_ANSWER = 5
# The packages that TensorFlow needs to look up a TPU by name.
CLIENT_PACKAGES = ("googleapiclient", "oauth2client")
# The distributions that contain TensorFlow.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-gpu")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Attribute of the metadata server -> the name of the same value inside the attribute tpu-env, which
# lists several values.
_OTHER_ATTRIBUTES = {"accelerator-type": "ACCELERATOR_TYPE", "agent-worker-number": "WORKER_ID"}
_DEVICES = ("accel[0-9]*", "vfio/[0-9]*")
_OF_TPU_ENV = re.compile(r"^(\w+): '(.*)'$", re.M)
IMAGE, POD_IMAGE = "tpu-vm-tf-2.15.1-se", "tpu-vm-tf-2.15.1-pod-se"
IMAGES = f"{IMAGE}, on a slice {POD_IMAGE}"
# If one of these variables is set, TensorFlow loads the PJRT plugin. The instructions for -pjrt
# images set both.
PJRT_VARIABLES = ("NEXT_PLUGGABLE_DEVICE_USE_C_API", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH")
LIBRARIES = (
    "libtensorflow_framework.so.2",
    "python/_pywrap_tensorflow_internal.so",
    "libtensorflow_cc.so.2",
)
_OFF = ("", "0", "false")
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
    def kind(self) -> str:
        """The kind of `tpu`: LOCAL, NAMED or ADDRESS."""
        if self.tpu == "local":
            return LOCAL
        return ADDRESS if self.tpu.startswith("grpc://") else NAMED

    @property
    def slice_type(self) -> str:
        """The type of the run's slice, such as "v3-32"; "" if unknown."""
        return (self.node.accelerator_type if self.node else "") or self.accelerator_type

    @property
    def is_remote(self) -> bool:
        """Whether TensorFlow servers read the data and compute, instead of this process."""
        return self.kind != LOCAL

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
        for name, key in _OTHER_ATTRIBUTES.items():
            attributes[key] = metadata(f"instance/attributes/{name}") or attributes.get(key, "")
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


def pjrt_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns the environment variables that make TensorFlow drive the TPU through PJRT."""
    return [name for name in PJRT_VARIABLES if environment.get(name, "").lower() not in _OFF]
