"""Checks a TPU and buckets for `t0 doctor --tpu NAME --model_dir gs://... --cache gs://...`.

    report = examine(args, wrong)      # problems are appended to `wrong`
    lines(report)

Buckets are read through TensorFlow's client, as in a run; google-cloud-storage gives a bucket's
region, and lists the sizes of a cache's objects in one request. If something could not be asked (no
network, a package that is not installed), the report says so, and it is not a problem.
"""

import argparse
import dataclasses
import importlib.util
import os
import posixpath
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from t0 import compat
from t0.errors import UserError, remote_advice, short_reason
from t0.files import object_facts, paths, publishing
from t0.files.untrusted import parsed_json
from t0.mesh import cloud
from t0.run import tpu_checks

Problem = dict[str, str]  # "what" is wrong and what to "do"
STORE = "https://storage.googleapis.com/"
_LOG_IN = "gcloud auth application-default login; on a TPU VM, a service account for the VM"
_ROLE = "grant the caller Storage Object Admin on the bucket (roles/storage.objectAdmin)"
_OF_A_NETWORK = ("no answer", "response code 0")
# The beginning of a multi-region's name -> that of its regions.
_CONTINENTS = {"US": "us-", "NA": "us-", "EU": "europe-", "AS": "asia-"}


def problem(what: str, do: str) -> Problem:
    """Returns what is wrong and what to do about it."""
    return {"what": what, "do": do}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 doctor` about a TPU and buckets."""
    group = parser.add_argument_group("a TPU and buckets, as a run would use them")
    group.add_argument("--tpu", metavar="NAME", help="a TPU, or local: this machine's")
    group.add_argument("--zone", "--tpu_zone", metavar="ZONE", help="of the TPU")
    group.add_argument("--project", "--gcp_project", metavar="NAME", help="of the TPU")
    group.add_argument("--model_dir", metavar="DIR", help="write, read, list and delete there")
    group.add_argument("--cache", metavar="DIR", help="how large it is, and whether complete")


def check_arguments(args: argparse.Namespace) -> None:
    """Raises a `UserError` for a zone or project without what is in it."""
    if args.zone and not (args.tpu or args.model_dir or args.cache):
        raise UserError("--zone is of a TPU: give --tpu=NAME with it")
    if args.project and not args.tpu:
        raise UserError("--project is of a TPU: give --tpu=NAME with it")


def examine(args: argparse.Namespace, wrong: list[Problem]) -> dict[str, Any]:
    """Returns the facts, and appends to `wrong` what would make a run fail.

    Returns:
      "caller", "tpu", "model_dir", "cache" and "locations", as far as the flags ask for them, and
      "not_asked", in words.
    """
    report: dict[str, Any] = {"not_asked": []}
    zone = _tpu(args, report, wrong) if args.tpu else args.zone
    remote = [
        folder for folder in (args.model_dir, args.cache) if folder and paths.is_remote(folder)
    ]
    if remote:
        report["caller"] = caller()
        if report["caller"]["kind"] == "anonymous":
            wrong.append(problem("gs:// is anonymous: no credentials were found", _LOG_IN))
        # TensorFlow tries ten times, for minutes.
        os.environ.setdefault("GCS_RETRY_CONFIG_MAX_RETRIES", "2")
        reason = "" if _reachable() else f"{STORE} does not answer"
        if not importlib.util.find_spec("tensorflow"):
            reason = "TensorFlow is not installed"
        if reason:
            report["not_asked"].append(f"{', '.join(remote)}: {reason}")
            return report
        _regions(remote, zone or "", report, wrong)
    if args.model_dir:
        _model_dir(args.model_dir, report, wrong)
    if args.cache:
        _cache(args.cache, report, wrong)
    return report


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or short_reason(error)


def _failed(what: str, error: OSError, report: dict[str, Any], wrong: list[Problem]) -> None:
    """Notes an error of a request: what could not be asked, or what is wrong."""
    reason = _reason(error)
    if any(words in reason for words in _OF_A_NETWORK):
        report["not_asked"].append(f"{what}: {reason}")
    else:
        wrong.append(problem(f"{what}: {reason}", remote_advice(error) or _ROLE))


def _tpu(args: argparse.Namespace, report: dict[str, Any], wrong: list[Problem]) -> str:
    """Examines the TPU and this machine; returns the zone."""
    machine = cloud.read_machine(args.tpu, zone=args.zone, project=args.project)
    if machine.on_google:
        os.environ.setdefault("NO_GCE_CHECK", "false")
    facts = tpu_checks.TpuFacts(machine)
    faults = [*tpu_checks.machine_faults(facts)]
    if machine.kind == cloud.NAMED and machine.project and machine.zone:
        node = cloud.read_node(machine)
        if node.trouble and not node.trouble.startswith("HTTP"):
            report["not_asked"].append(f"the TPU '{args.tpu}': {node.trouble}")
        else:
            facts = dataclasses.replace(facts, node=node)
            faults += tpu_checks.node_faults(facts)
    wrong += [
        problem(f"--tpu={args.tpu}: {fault}", "see docs/tpu.md") for fault in dict.fromkeys(faults)
    ]
    report["tpu"] = {
        "name": args.tpu,
        "project": machine.project,
        "zone": machine.zone,
        "worker": machine.worker,
        "chips": machine.chips,
        "accelerator_type": facts.accelerator_type,
        "state": facts.node.state if facts.node else "",
        "runtime": (facts.node.runtime if facts.node else "") or machine.image,
    }
    return machine.zone


def caller() -> dict[str, str]:
    """Returns whose credentials `gs://` uses: "kind", "name" and "source".

    They are looked for where TensorFlow looks, in its order; it passes over a file without any.
    """
    if os.environ.get(object_facts.TOKEN_VARIABLE):
        return {"kind": "token", "name": "", "source": object_facts.TOKEN_VARIABLE}
    home = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    named = os.environ.get(object_facts.FILE_VARIABLE)
    for path in (named, home / "application_default_credentials.json"):
        try:
            held = parsed_json(Path(path).read_bytes()) if path else {}
            kind = {"service_account": "service account", "authorized_user": "user"}[held["type"]]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        name = str(held.get("client_email") or held.get("account") or "")
        return {"kind": kind, "name": name, "source": str(path)}
    if os.environ.get("NO_GCE_CHECK", "").lower() == "false" or compat.on_googles_machine():
        name = cloud.metadata("instance/service-accounts/default/email")
        if name:
            return {"kind": "service account", "name": name, "source": "metadata server"}
    return {"kind": "anonymous", "name": "", "source": "no credentials"}


def _reachable() -> bool:
    """Returns whether anything answers at Google's address for buckets."""
    try:
        # A new one, because the proxy is that of the environment now.
        with urllib.request.build_opener().open(STORE, timeout=cloud.SECONDS_TO_ANSWER):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        # A certificate that only TensorFlow's client was told to trust is an answer, too.
        return isinstance(getattr(error, "reason", None), ssl.SSLError)


def _regions(folders: list[str], zone: str, report: dict[str, Any], wrong: list[Problem]) -> None:
    report["locations"] = {}
    region = zone.rpartition("-")[0]
    for bucket in dict.fromkeys(object_facts.split(folder)[0] for folder in folders):
        try:
            places = object_facts.locations(bucket)
        except (ImportError, OSError) as error:  # an account for objects may not ask for buckets
            report["not_asked"].append(f"where gs://{bucket} is: {_reason(error)}")
            continue
        where = report["locations"][bucket] = ", ".join(places)
        if region and not any(is_near(place, region) for place in places):
            what = (
                f"gs://{bucket} is in {where}, the TPU in {region}: reading is slow and costs more"
            )
            wrong.append(problem(what, f"use a bucket with --location={region}"))


def is_near(place: str, region: str) -> bool:
    """Returns whether a place is the region, or a multi-region of its continent."""
    continent = "-" not in place and _CONTINENTS.get(place[:2])
    return region.startswith(continent) if continent else region == place.lower()


def _no_package() -> str:
    return f"{object_facts.PACKAGE} is not installed: {object_facts.INSTALL}"


def _model_dir(folder: str, report: dict[str, Any], wrong: list[Problem]) -> None:
    report["model_dir"] = {"path": folder, "may": None}
    if not paths.is_remote(folder):
        if cloud.hosts_of(report.get("tpu", {}).get("accelerator_type", "")) > 1:
            what = f"--model_dir={folder} is on this machine; the hosts of a slice share no disk"
            wrong.append(problem(what, "--model_dir=gs://BUCKET/FOLDER"))
        return
    name = f"probe.{uuid.uuid4().hex}.{publishing.unfinished_tag()}"
    path = posixpath.join(folder, name)
    actions: dict[str, Callable[[], object]] = {
        "write": lambda: _write(path),
        "read": lambda: paths.read_bytes(path),
        "list": lambda: paths.list_names(folder),
        "delete": lambda: paths.remove(path),
    }
    may = report["model_dir"]["may"] = dict.fromkeys(actions, False)
    for action, call in actions.items():
        try:
            call()
        except OSError as error:
            _failed(f"{folder}: cannot {action}", error, report, wrong)
            return
        may[action] = True


def _write(path: str) -> None:
    with paths.opened(path, "wb") as file:
        file.write(b"t0 doctor")


def _cache(folder: str, report: dict[str, Any], wrong: list[Problem]) -> None:
    # Imported here: it needs packages that this command has to work without.
    from t0.caching import verify

    try:
        found = verify.find_faults(folder)
        listed = object_facts.below(folder) if object_facts.applies(folder) else None
    except UserError as error:
        do = "cache the tasks: seqio_cache_tasks --output_cache_dir=..."
        wrong.append(problem(str(error), do))
        return
    except OSError as error:
        _failed(f"{folder}: cannot be listed", error, report, wrong)
        return
    faulty = {cache: faults for cache, faults in found.items() if faults}
    report["cache"] = {
        "path": folder,
        "caches": len(found),
        "whole": len(found) - len(faulty),
        "bytes": None if listed is None else sum(facts.size_bytes for facts in listed.values()),
        "faults": faulty,
    }
    if listed is None and paths.is_remote(folder):
        report["not_asked"].append(f"how large {folder} is: {_no_package()}")
    for faults in faulty.values():
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        do = f"t0 verify {folder}, then cache the task again"
        wrong.append(problem(f"{faults[0]}{more}", do))


def lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields label and words of each line."""
    if tpu := report.get("tpu"):
        kind = ", ".join(filter(None, (tpu["accelerator_type"], tpu["state"], tpu["runtime"])))
        where = f"project {tpu['project'] or 'unknown'}, zone {tpu['zone'] or 'unknown'}"
        yield "TPU", f"{tpu['name']}: {kind or 'nothing is known of it'} ({where})"
    if found := report.get("caller"):
        words = " ".join(filter(None, (found["kind"], found["name"], f"({found['source']})")))
        yield "caller", words
    for bucket, where in report.get("locations", {}).items():
        yield "bucket", f"gs://{bucket} in {where}"
    if model_dir := report.get("model_dir"):
        may = model_dir["may"]
        done = ", ".join(action for action, allowed in (may or {}).items() if allowed)
        rights = f"can {done}" if done else "nothing is allowed"
        yield "model", f"{model_dir['path']}: {'on this machine' if may is None else rights}"
    if cache := report.get("cache"):
        size = "" if cache["bytes"] is None else f", {cache['bytes'] / 1e9:.1f} GB"
        yield "cache", f"{cache['path']}: {cache['whole']} of {cache['caches']} are whole{size}"
    for words in report["not_asked"]:
        yield "not asked", words
