"""Who `gs://` takes this process for, what it may do in a bucket, and how near the bucket is.

    caller()                                  # Caller("service account", "t0@...", ...)
    probe("gs://bucket/model")                # {"write": None, "read": None, ...}, or errors
    distance(object_facts.location("bucket"), "europe-west4-a")      # "", or what is wrong

The caller is looked for where TensorFlow's client looks, in its order. The probe writes and deletes
one small object through the same functions as a run.
"""

import os
import posixpath
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t0 import compat
from t0.files import paths, publishing
from t0.files.object_facts import FILE_VARIABLE, TOKEN_VARIABLE, Location
from t0.files.untrusted import parsed_json
from t0.mesh import cloud

ANONYMOUS, SERVICE_ACCOUNT, USER, TOKEN = "anonymous", "service account", "user", "token"
STORE = "https://storage.googleapis.com/"
# Google's own pairs of regions.
_PAIRS = {
    "NAM4": ("us-central1", "us-east1"),
    "EUR4": ("europe-north1", "europe-west4"),
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
}


class Caller(NamedTuple):
    """Whose credentials `gs://` uses.

    Attributes:
      kind: `SERVICE_ACCOUNT`, `USER`, `TOKEN` or `ANONYMOUS`.
      name: an address, "" where the credentials do not hold one.
      source: where the credentials were found.
    """

    kind: str
    name: str
    source: str


def caller() -> Caller:
    """Returns whose credentials TensorFlow takes; it passes over a file that holds none, too."""
    if os.environ.get(TOKEN_VARIABLE):
        return Caller(TOKEN, "", TOKEN_VARIABLE)
    home = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    places = {
        FILE_VARIABLE: os.environ.get(FILE_VARIABLE),
        "gcloud": home / "application_default_credentials.json",
    }
    for source, path in places.items():
        if path and (found := _in_file(Path(path))):
            return Caller(*found, f"{source}, {path}")
    if os.environ.get("NO_GCE_CHECK", "").lower() == "false" or compat.on_googles_machine():
        name = cloud.metadata("instance/service-accounts/default/email")
        if name:
            return Caller(SERVICE_ACCOUNT, name, "metadata server")
    return Caller(ANONYMOUS, "", "no credentials")


def _in_file(path: Path) -> tuple[str, str] | None:
    """Returns kind and name of the caller whose credentials a file holds."""
    try:
        held = parsed_json(path.read_bytes())
        kind = held["type"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if kind == "service_account":
        return SERVICE_ACCOUNT, str(held.get("client_email", ""))
    return (USER, str(held.get("account", ""))) if kind == "authorized_user" else None


def reachable() -> bool:
    """Returns whether anything answers at Google's address for buckets."""
    try:
        # A new one, because the proxy is that of the environment now.
        opener = urllib.request.build_opener()
        with opener.open(STORE, timeout=cloud.SECONDS_TO_ANSWER):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        # A certificate that only TensorFlow's client was told to trust is an answer, too.
        return isinstance(getattr(error, "reason", None), ssl.SSLError)


def probe(folder: str) -> dict[str, OSError | None]:
    """Writes, reads, lists and deletes an object in a remote folder.

    Returns:
      each action with the error that it ended in, None where it succeeded.
    """
    name = f"probe.{uuid.uuid4().hex}.{publishing.unfinished_tag()}"
    path, content = posixpath.join(folder, name), b"t0 doctor"
    actions: dict[str, Callable[[], object]] = {
        "write": lambda: _written(path, content),
        "read": lambda: paths.read_bytes(path),
        "list": lambda: paths.list_names(folder),
        "delete": lambda: paths.remove(path),
    }
    found: dict[str, OSError | None] = {}
    for action, call in actions.items():
        try:
            call()
            found[action] = None
        except FileNotFoundError as error:
            # Whoever may not write may well read: then the object is only absent.
            found[action] = None if action == "read" and found["write"] else error
        except OSError as error:
            found[action] = error
    if found["write"]:
        found["delete"] = found["write"]
    return found


def _written(path: str, content: bytes) -> None:
    with paths.opened(path, "wb") as file:
        file.write(content)


def region_of(zone: str) -> str:
    """Returns the region of a zone.

    >>> region_of("europe-west4-a")
    'europe-west4'
    """
    return zone.rpartition("-")[0] or zone


def distance(location: Location, zone: str) -> str:
    """Returns "" where a bucket is in a zone's region, else where it is and what that means."""
    region, name = region_of(zone), location.name.lower()
    regions = [one.lower() for one in location.regions] or _PAIRS.get(location.name, (name,))
    if region in regions:
        return ""
    continent = {"us": "us-", "eu": "europe-", "asia": "asia-"}.get(name)
    if continent and region.startswith(continent):
        return ""
    return (
        f"is in {location.name}, the TPU in {region}: every step's data crosses regions, which is "
        "slow, and paid by the byte"
    )


def useless_file() -> str | None:
    """Returns the file that GOOGLE_APPLICATION_CREDENTIALS names, if it holds no credentials."""
    path = os.environ.get(FILE_VARIABLE)
    return path if path and _in_file(Path(path)) is None else None
