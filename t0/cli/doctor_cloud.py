"""Checks a TPU and buckets for `t0 doctor --tpu NAME --model_dir gs://... --cache gs://...`.

    report = examine(args, wrong)      # problems are appended to `wrong`
    lines(report)

Buckets are read through TensorFlow's client, as in a run. A bucket's region, and the sizes of a
cache's objects in one request, come from google-cloud-storage. If a check is impossible (no
network, a missing package), the report says so, but this does not count as a problem.
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

Problem = dict[str, str]  # the keys "what" (the problem) and "do" (its remedy)
STORE = "https://storage.googleapis.com/"
_LOG_IN = "gcloud auth application-default login; on a TPU VM, a service account for the VM"
_ROLE = "grant the caller Storage Object Admin on the bucket (roles/storage.objectAdmin)"
_OF_A_NETWORK = ("no answer", "response code 0")
# Prefix of a multi-region's name -> prefix of the names of its regions.
_CONTINENTS = {"US": "us-", "NA": "us-", "EU": "europe-", "AS": "asia-"}


def problem(fault: str, remedy: str) -> Problem:
    """Returns a problem and its remedy as a dict."""
    return {"what": fault, "do": remedy}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 doctor` about a TPU and buckets."""
    group = parser.add_argument_group("checks of a TPU and buckets, as a run would use them")
    group.add_argument("--tpu", metavar="NAME", help="name of a TPU; local: this machine's")
    group.add_argument("--zone", "--tpu_zone", metavar="ZONE", help="zone of the TPU")
    group.add_argument("--project", "--gcp_project", metavar="NAME", help="project of the TPU")
    group.add_argument(
        "--model_dir",
        metavar="DIR",
        help="test writing, reading, listing and deleting in this folder",
    )
    group.add_argument(
        "--cache", metavar="DIR", help="report the size of this cache, and whether it is complete"
    )


def check_arguments(args: argparse.Namespace) -> None:
    """Raises a `UserError` if a zone or project is given, but nothing to look up in it."""
    if args.zone and not (args.tpu or args.model_dir or args.cache):
        raise UserError("--zone needs --tpu=NAME")
    if args.project and not args.tpu:
        raise UserError("--project needs --tpu=NAME")


def examine(args: argparse.Namespace, wrong: list[Problem]) -> dict[str, Any]:
    """Returns the facts, and appends to `wrong` each problem that would make a run fail.

    Returns:
      "caller", "tpu", "model_dir", "cache" and "locations", if the flags ask for them. "not_asked"
      has the checks that were impossible, as text.
    """
    report: dict[str, Any] = {"not_asked": []}
    zone = _examine_tpu(args, report, wrong) if args.tpu else args.zone
    remote = [
        folder for folder in (args.model_dir, args.cache) if folder and paths.is_remote(folder)
    ]
    if remote:
        report["caller"] = caller()
        if report["caller"]["kind"] == "anonymous":
            wrong.append(problem("gs:// is anonymous: no credentials were found", _LOG_IN))
        # By default, TensorFlow tries ten times, which takes minutes.
        os.environ.setdefault("GCS_RETRY_CONFIG_MAX_RETRIES", "2")
        reason = "" if _is_reachable() else f"{STORE} does not answer"
        if not importlib.util.find_spec("tensorflow"):
            reason = "TensorFlow is not installed"
        if reason:
            report["not_asked"].append(f"{', '.join(remote)}: {reason}")
            return report
        _examine_regions(remote, zone or "", report, wrong)
    if args.model_dir:
        _examine_model_dir(args.model_dir, report, wrong)
    if args.cache:
        _examine_cache(args.cache, report, wrong)
    return report


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or short_reason(error)


def _report_failure(
    action: str, error: OSError, report: dict[str, Any], wrong: list[Problem]
) -> None:
    """Reports a failed request: as "not_asked" if the network failed, otherwise as a problem."""
    reason = _reason(error)
    if any(words in reason for words in _OF_A_NETWORK):
        report["not_asked"].append(f"{action}: {reason}")
    else:
        wrong.append(problem(f"{action}: {reason}", remote_advice(error) or _ROLE))


def _examine_tpu(args: argparse.Namespace, report: dict[str, Any], wrong: list[Problem]) -> str:
    """Examines the TPU and this machine, and returns the TPU's zone."""
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
    """Returns the credentials that `gs://` uses: their "kind", "name" and "source".

    The search has the same places and order as TensorFlow's. Like TensorFlow, it skips files
    without credentials.
    """
    if os.environ.get(object_facts.TOKEN_VARIABLE):
        return {"kind": "token", "name": "", "source": object_facts.TOKEN_VARIABLE}
    home = Path(os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser())
    path_from_variable = os.environ.get(object_facts.FILE_VARIABLE)
    for path in (path_from_variable, home / "application_default_credentials.json"):
        try:
            credentials = parsed_json(Path(path).read_bytes()) if path else {}
            kind = {"service_account": "service account", "authorized_user": "user"}[
                credentials["type"]
            ]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        name = str(credentials.get("client_email") or credentials.get("account") or "")
        return {"kind": kind, "name": name, "source": str(path)}
    if os.environ.get("NO_GCE_CHECK", "").lower() == "false" or compat.on_googles_machine():
        name = cloud.metadata("instance/service-accounts/default/email")
        if name:
            return {"kind": "service account", "name": name, "source": "metadata server"}
    return {"kind": "anonymous", "name": "", "source": "no credentials"}


def _is_reachable() -> bool:
    """Returns whether Google Cloud Storage answers."""
    try:
        # A new opener, which reads the current proxy settings of the environment.
        with urllib.request.build_opener().open(STORE, timeout=cloud.SECONDS_TO_ANSWER):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        # Only TensorFlow's client may trust the certificate. The server has still answered.
        return isinstance(getattr(error, "reason", None), ssl.SSLError)


def _examine_regions(
    folders: list[str], zone: str, report: dict[str, Any], wrong: list[Problem]
) -> None:
    report["locations"] = {}
    region = zone.rpartition("-")[0]
    for bucket in dict.fromkeys(object_facts.split(folder)[0] for folder in folders):
        try:
            locations = object_facts.locations(bucket)
        except (
            ImportError,
            OSError,
        ) as error:  # some accounts may read objects but not bucket metadata
            report["not_asked"].append(f"where gs://{bucket} is: {_reason(error)}")
            continue
        where = report["locations"][bucket] = ", ".join(locations)
        if region and not any(is_near(location, region) for location in locations):
            fault = (
                f"gs://{bucket} is in {where}, the TPU in {region}: reading is slow and costs more"
            )
            wrong.append(problem(fault, f"use a bucket with --location={region}"))


def is_near(location: str, region: str) -> bool:
    """Returns whether a location is the region itself, or a multi-region on its continent."""
    continent = "-" not in location and _CONTINENTS.get(location[:2])
    return region.startswith(continent) if continent else region == location.lower()


def _describe_missing_package() -> str:
    return f"{object_facts.PACKAGE} is not installed: {object_facts.INSTALL}"


def _examine_model_dir(folder: str, report: dict[str, Any], wrong: list[Problem]) -> None:
    report["model_dir"] = {"path": folder, "may": None}
    if not paths.is_remote(folder):
        if cloud.hosts_of(report.get("tpu", {}).get("accelerator_type", "")) > 1:
            fault = f"--model_dir={folder} is on this machine; the hosts of a slice share no disk"
            wrong.append(problem(fault, "--model_dir=gs://BUCKET/FOLDER"))
        return
    name = f"probe.{uuid.uuid4().hex}.{publishing.unfinished_tag()}"
    path = posixpath.join(folder, name)
    actions: dict[str, Callable[[], object]] = {
        "write": lambda: _write_probe(path),
        "read": lambda: paths.read_bytes(path),
        "list": lambda: paths.list_names(folder),
        "delete": lambda: paths.remove(path),
    }
    permissions = report["model_dir"]["may"] = dict.fromkeys(actions, False)
    for action, call in actions.items():
        try:
            call()
        except OSError as error:
            _report_failure(f"{folder}: cannot {action}", error, report, wrong)
            return
        permissions[action] = True


def _write_probe(path: str) -> None:
    with paths.opened(path, "wb") as file:
        file.write(b"t0 doctor")


def _examine_cache(folder: str, report: dict[str, Any], wrong: list[Problem]) -> None:
    # Imported here, because this command must also work if packages are missing.
    from t0.caching import verify

    try:
        faults_by_cache = verify.find_faults(folder)
        objects = object_facts.below(folder) if object_facts.applies(folder) else None
    except UserError as error:
        remedy = "cache the tasks: seqio_cache_tasks --output_cache_dir=..."
        wrong.append(problem(str(error), remedy))
        return
    except OSError as error:
        _report_failure(f"{folder}: cannot be listed", error, report, wrong)
        return
    faulty = {cache: faults for cache, faults in faults_by_cache.items() if faults}
    report["cache"] = {
        "path": folder,
        "caches": len(faults_by_cache),
        "whole": len(faults_by_cache) - len(faulty),
        "bytes": None if objects is None else sum(facts.size_bytes for facts in objects.values()),
        "faults": faulty,
    }
    if objects is None and paths.is_remote(folder):
        report["not_asked"].append(f"how large {folder} is: {_describe_missing_package()}")
    for faults in faulty.values():
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        remedy = f"t0 verify {folder}, then cache the task again"
        wrong.append(problem(f"{faults[0]}{more}", remedy))


def lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the label and the text of each line."""
    if tpu := report.get("tpu"):
        kind = ", ".join(filter(None, (tpu["accelerator_type"], tpu["state"], tpu["runtime"])))
        where = f"project {tpu['project'] or 'unknown'}, zone {tpu['zone'] or 'unknown'}"
        yield "TPU", f"{tpu['name']}: {kind or 'nothing is known about it'} ({where})"
    if account := report.get("caller"):
        words = " ".join(filter(None, (account["kind"], account["name"], f"({account['source']})")))
        yield "caller", words
    for bucket, where in report.get("locations", {}).items():
        yield "bucket", f"gs://{bucket} in {where}"
    if model_dir := report.get("model_dir"):
        permissions = model_dir["may"]
        allowed_actions = ", ".join(
            action for action, allowed in (permissions or {}).items() if allowed
        )
        rights = f"can {allowed_actions}" if allowed_actions else "nothing is allowed"
        yield (
            "model",
            f"{model_dir['path']}: {'on this machine' if permissions is None else rights}",
        )
    if cache := report.get("cache"):
        size = "" if cache["bytes"] is None else f", {cache['bytes'] / 1e9:.1f} GB"
        yield "cache", f"{cache['path']}: {cache['whole']} of {cache['caches']} are whole{size}"
    for words in report["not_asked"]:
        yield "not asked", words
