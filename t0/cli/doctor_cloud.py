"""What `t0 doctor --tpu NAME --model_dir gs://... --cache gs://...` asks Google, and prints.

    asked = Asked(tpu="my-tpu", zone="europe-west4-a", model_dir="gs://b/model")
    report = examine(asked, wrong)     # problems are appended to `wrong`
    lines(report)

Buckets are asked through TensorFlow's client, which is what a run sees; what it cannot say, a
bucket's region and its objects' sizes in one listing, through google-cloud-storage. What could not
be asked (no network, a package that is not installed) is in the report, and is not a problem.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

from t0.cli.versions import installed_version
from t0.errors import UserError, remote_advice, short_reason
from t0.files import object_facts, paths
from t0.mesh import bucket_access, cloud
from t0.run import tpu_checks

Problem = dict[str, str]
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
_LOG_IN = "gcloud auth application-default login; on a TPU VM, a service account for the VM"
_ROLE = "grant the caller Storage Object Admin on the bucket (roles/storage.objectAdmin)"
_OF_A_NETWORK = ("no answer", "response code 0")


@dataclasses.dataclass(frozen=True)
class Asked:
    """The flags of `t0 doctor` about Google's cloud; None where one is not given."""

    tpu: str | None = None
    zone: str | None = None
    project: str | None = None
    model_dir: str | None = None
    cache: str | None = None

    def __bool__(self) -> bool:
        return any((self.tpu, self.model_dir, self.cache))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 doctor` about a TPU and buckets."""
    group = parser.add_argument_group("a TPU and buckets, as a run would use them")
    group.add_argument("--tpu", metavar="NAME", help="a TPU, or local: this machine's")
    group.add_argument("--zone", "--tpu_zone", metavar="ZONE", help="of the TPU")
    group.add_argument("--project", "--gcp_project", metavar="NAME", help="of the TPU")
    group.add_argument("--model_dir", metavar="DIR", help="write, read, list and delete there")
    group.add_argument("--cache", metavar="DIR", help="how large it is, and whether complete")


def asked(args: argparse.Namespace) -> Asked:
    """Returns the flags.

    Raises:
      UserError: for a zone or project without what is in it.
    """
    buckets = args.model_dir or args.cache
    for name, owner in (("zone", args.tpu or buckets), ("project", args.tpu)):
        if getattr(args, name) and not owner:
            raise UserError(f"--{name} is of a TPU: give --tpu=NAME with it")
    return Asked(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Asked)})


class _Examined:
    """The report that is being made."""

    def __init__(self, asked: Asked, wrong: list[Problem]) -> None:
        self.asked, self.wrong = asked, wrong
        self.not_asked: list[str] = []
        self.report: dict[str, Any] = {"not_asked": self.not_asked}

    def problem(self, what: str, do: str) -> None:
        self.wrong.append({"what": what, "do": do})

    def failed(self, what: str, error: OSError, do: str = _ROLE) -> None:
        """Notes an error of a request: what could not be asked, or what is wrong."""
        reason = error.strerror or short_reason(error)
        if any(words in reason for words in _OF_A_NETWORK):
            self.not_asked.append(f"{what}: {reason}")
        else:
            self.problem(f"{what}: {reason}", remote_advice(error) or do)


def examine(asked: Asked, wrong: list[Problem]) -> dict[str, Any]:
    """Returns what was found, and appends to `wrong` what a run would fail by.

    Returns:
      "caller", "tpu", "model_dir", "cache" and "locations", as far as they were asked for, and
      "not_asked", in words.
    """
    made = _Examined(asked, wrong)
    zone = _tpu(made) if asked.tpu else asked.zone
    folders = [folder for folder in (asked.model_dir, asked.cache) if folder]
    remote = [folder for folder in folders if paths.is_remote(folder)]
    if remote:
        _caller(made)
        # TensorFlow tries ten times, for minutes.
        os.environ.setdefault("GCS_RETRY_CONFIG_MAX_RETRIES", "2")
    if remote and not bucket_access.reachable():
        made.not_asked.append(f"{', '.join(remote)}: {bucket_access.STORE} does not answer")
        return made.report
    if remote and not installed_version("tensorflow"):
        made.not_asked.append(f"{', '.join(remote)}: TensorFlow is not installed")
        return made.report
    _locations(made, remote, zone)
    if asked.model_dir:
        _model_dir(made, asked.model_dir)
    if asked.cache:
        _cache(made, asked.cache)
    return made.report


def _tpu(made: _Examined) -> str:
    """Examines the TPU and this machine; returns the zone."""
    asked = made.asked
    machine = cloud.read_machine(asked.tpu, zone=asked.zone, project=asked.project)
    if machine.on_google:
        os.environ.setdefault("NO_GCE_CHECK", "false")
    found = tpu_checks.Found(machine)
    faults = tpu_checks.faults_of(tpu_checks.MACHINE, found)
    if machine.kind == cloud.NAMED and machine.project and machine.zone:
        node = cloud.read_node(machine)
        if node.trouble and not node.trouble.startswith("HTTP"):
            made.not_asked.append(f"the TPU '{asked.tpu}': {node.trouble}")
        else:
            found = dataclasses.replace(found, node=node)
            faults += tpu_checks.faults_of(tpu_checks.NODE, found)
    for fault in dict.fromkeys(faults):
        made.problem(f"--tpu={asked.tpu}: {fault}", "see docs/tpu.md")
    made.report["tpu"] = {
        "name": asked.tpu,
        "project": machine.project,
        "zone": machine.zone,
        "worker": machine.worker,
        "chips": machine.chips,
        "accelerator_type": found.accelerator_type,
        "state": found.node.state if found.node else "",
        "runtime": (found.node.runtime if found.node else "") or machine.image,
    }
    return machine.zone


def _caller(made: _Examined) -> None:
    found = bucket_access.caller()
    made.report["caller"] = found._asdict()
    if found.kind == bucket_access.ANONYMOUS:
        made.problem("gs:// is anonymous: no credentials were found", _LOG_IN)
    if path := bucket_access.useless_file():
        made.problem(
            f"GOOGLE_APPLICATION_CREDENTIALS names {path}, which holds no credentials",
            "name a key file of a service account, or unset it",
        )


def _locations(made: _Examined, folders: list[str], zone: str | None) -> None:
    buckets = dict.fromkeys(object_facts.split(folder)[0] for folder in folders)
    if buckets and not object_facts.installed():
        made.not_asked.append(
            f"where the buckets are: {object_facts.PACKAGE} is not installed: "
            f"{object_facts.INSTALL}"
        )
        return
    made.report["locations"] = {}
    for bucket in buckets:
        try:
            found = object_facts.location(bucket)
        except PermissionError as error:
            # An account that may do all with objects may still not ask about their bucket.
            made.not_asked.append(f"where gs://{bucket} is: {error.strerror}")
            continue
        except OSError as error:
            made.failed(f"where gs://{bucket} is", error)
            continue
        made.report["locations"][bucket] = found.name
        if zone and (far := bucket_access.distance(found, zone)):
            region = bucket_access.region_of(zone)
            made.problem(f"gs://{bucket} {far}", f"use a bucket with --location={region}")


def _model_dir(made: _Examined, folder: str) -> None:
    if not paths.is_remote(folder):
        made.report["model_dir"] = {"path": folder, "may": None}
        if cloud.hosts_of(made.report.get("tpu", {}).get("accelerator_type", "")) > 1:
            made.problem(
                f"--model_dir={folder} is on this machine; the hosts of a slice share no disk",
                "--model_dir=gs://BUCKET/FOLDER",
            )
        return
    found = bucket_access.probe(folder)
    may = {action: error is None for action, error in found.items()}
    made.report["model_dir"] = {"path": folder, "may": may}
    reasons: dict[str, tuple[list[str], OSError]] = {}
    for action, error in found.items():
        if error:
            reasons.setdefault(error.strerror or "", ([], error))[0].append(action)
    for actions, error in reasons.values():
        made.failed(f"{folder}: cannot {', '.join(actions)}", error)


def _cache(made: _Examined, folder: str) -> None:
    # Imported here: it needs packages that this command has to work without.
    from t0.caching import verify

    try:
        found, size = verify.look(folder)
    except UserError as error:
        made.problem(str(error), "cache the tasks: seqio_cache_tasks --output_cache_dir=...")
        return
    except OSError as error:
        made.failed(f"{folder}: cannot be listed", error)
        return
    faulty = {cache: faults for cache, faults in found.items() if faults}
    made.report["cache"] = {
        "path": folder,
        "caches": len(found),
        "whole": len(found) - len(faulty),
        "bytes": size,
        "faults": faulty,
    }
    if size is None and paths.is_remote(folder):
        made.not_asked.append(
            f"how large {folder} is: {object_facts.PACKAGE} is not installed: "
            f"{object_facts.INSTALL}"
        )
    for faults in faulty.values():
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        made.problem(f"{faults[0]}{more}", f"t0 verify {folder}, then cache the task again")


def lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields label and words of each line."""
    if tpu := report.get("tpu"):
        kind = ", ".join(filter(None, (tpu["accelerator_type"], tpu["state"], tpu["runtime"])))
        where = f"project {tpu['project'] or 'unknown'}, zone {tpu['zone'] or 'unknown'}"
        yield "TPU", f"{tpu['name']}: {kind or 'nothing is known of it'} ({where})"
    if caller := report.get("caller"):
        yield "caller", _caller_words(caller)
    for bucket, location in report.get("locations", {}).items():
        yield "bucket", f"gs://{bucket} in {location}"
    if model_dir := report.get("model_dir"):
        may = model_dir["may"]
        rights = "on this machine"
        if may is not None:
            done = [action for action, allowed in may.items() if allowed]
            rights = f"can {', '.join(done)}" if done else "nothing is allowed"
        yield "model", f"{model_dir['path']}: {rights}"
    if cache := report.get("cache"):
        size = "" if cache["bytes"] is None else f", {cache['bytes'] / 1e9:.1f} GB"
        yield "cache", f"{cache['path']}: {cache['whole']} of {cache['caches']} are whole{size}"
    for words in report["not_asked"]:
        yield "not asked", words


def _caller_words(caller: dict[str, str]) -> str:
    if caller["kind"] == bucket_access.ANONYMOUS:
        words = f"anonymous ({caller['source']})"
        return f"{_RED}{words}{_PLAIN}" if sys.stdout.isatty() else words
    return f"{caller['kind']} {caller['name']} ({caller['source']})".replace("  ", " ")
