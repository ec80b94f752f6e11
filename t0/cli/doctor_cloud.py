"""Checks a TPU and buckets for `t0 doctor --tpu NAME --model_dir gs://... --cache gs://...`.

    report = examine(args, wrong)      # problems are appended to `wrong`

This module reads buckets with TensorFlow's client, as a run does. It gets a bucket's region from
the package google-cloud-storage.
"""

import argparse
import importlib.util
import os
import posixpath
import ssl
import urllib.error
import urllib.request
import uuid
from typing import Any

from t0.errors import UserError, remote_advice, short_reason
from t0.files import object_facts, paths, publishing
from t0.mesh import cloud
from t0.run import tpu_checks

Problem = dict[str, str]  # the keys "what" (the problem) and "do" (its remedy)
STORE = "https://storage.googleapis.com/"
_ROLE = "grant the caller Storage Object Admin on the bucket (roles/storage.objectAdmin)"


def problem(fault: str, remedy: str) -> Problem:
    """Returns a dict with a problem and its remedy."""
    return {"what": fault, "do": remedy}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for TPUs and buckets to `t0 doctor`."""
    group = parser.add_argument_group("checks of a TPU and buckets, as a run would use them")
    group.add_argument("--tpu", metavar="NAME", help="name of a TPU; local: this machine's")
    group.add_argument("--zone", "--tpu_zone", metavar="ZONE", help="zone of the TPU")
    group.add_argument("--project", "--gcp_project", metavar="NAME", help="project of the TPU")
    about = "test writing, reading, listing and deleting in this folder"
    group.add_argument("--model_dir", metavar="DIR", help=about)
    group.add_argument("--cache", metavar="DIR", help="check that this cache is complete")


def check_arguments(args: argparse.Namespace) -> None:
    """Raises a UserError if a zone or project is set, but no TPU or bucket to check."""
    if args.zone and not (args.tpu or args.model_dir or args.cache):
        raise UserError("--zone needs --tpu=NAME")
    if args.project and not args.tpu:
        raise UserError("--project needs --tpu=NAME")


def examine(args: argparse.Namespace, wrong: list[Problem]) -> dict[str, dict[str, Any]]:
    """Returns the facts, and appends each problem that would make a run fail to `wrong`.

    Returns:
      a dict with the keys "tpu", "locations", "model_dir" and "cache". If the flags do not request
      a check, its key is missing.
    """
    report: dict[str, dict[str, Any]] = {}
    if args.tpu:
        report["tpu"] = _examine_tpu(args, wrong)
    remote = [path for path in (args.model_dir, args.cache) if path and paths.is_remote(path)]
    if remote:
        # By default, TensorFlow repeats a failed request ten times, which takes minutes.
        os.environ.setdefault("GCS_RETRY_CONFIG_MAX_RETRIES", "2")
        if not importlib.util.find_spec("tensorflow"):  # already reported with the packages
            return report
        if not _is_reachable():
            fault = f"{', '.join(remote)}: {STORE} does not answer"
            wrong.append(problem(fault, "check the network, or set its proxy: https_proxy"))
            return report
        zone = args.zone or report.get("tpu", {}).get("zone", "")
        report["locations"] = _examine_regions(remote, zone.rpartition("-")[0], wrong)
    if args.model_dir:
        kind = report.get("tpu", {}).get("accelerator_type", "")
        report["model_dir"] = _examine_model_dir(args.model_dir, cloud.hosts_of(kind), wrong)
    if args.cache:
        report["cache"] = _examine_cache(args.cache, wrong)
    return report


def _failure(action: str, error: OSError) -> Problem:
    return problem(
        f"{action}: {error.strerror or short_reason(error)}", remote_advice(error) or _ROLE
    )


def _examine_tpu(args: argparse.Namespace, wrong: list[Problem]) -> dict[str, Any]:
    machine, faults = tpu_checks.examine(args.tpu, zone=args.zone, project=args.project)
    wrong += [problem(f"--tpu={args.tpu}: {fault}", "see docs/tpu.md") for fault in faults]
    return {
        "name": args.tpu,
        "project": machine.project,
        "zone": machine.zone,
        "worker": machine.worker,
        "chips": machine.chips,
        "accelerator_type": machine.slice_type,
        "state": machine.node.state if machine.node else "",
        "runtime": (machine.node and machine.node.runtime) or machine.image,
    }


def _is_reachable() -> bool:
    """Returns whether Google Cloud Storage answers."""
    try:
        # A new opener reads the current proxy settings from the environment.
        urllib.request.build_opener().open(STORE, timeout=cloud.SECONDS_TO_ANSWER).close()
    except urllib.error.HTTPError:
        return True
    except OSError as error:
        # After a certificate error, the server counts as reachable, because TensorFlow's client may
        # trust a certificate that Python does not trust.
        return isinstance(getattr(error, "reason", None), ssl.SSLError)
    return True


def _examine_regions(folders: list[str], region: str, wrong: list[Problem]) -> dict[str, str]:
    regions = {}
    for bucket in dict.fromkeys(object_facts.split(folder)[0] for folder in folders):
        try:
            locations = object_facts.locations(bucket)
        except (ImportError, OSError) as error:
            # Some accounts are allowed to read objects, but not the metadata of buckets.
            regions[bucket] = f"unknown ({short_reason(error)})"
            continue
        where = regions[bucket] = ", ".join(locations)
        if region and not any(is_near(location, region) for location in locations):
            fault = (
                f"gs://{bucket} is in {where}, the TPU in {region}: reading is slow and costs more"
            )
            wrong.append(problem(fault, f"use a bucket with --location={region}"))
    return regions


def is_near(location: str, region: str) -> bool:
    """Returns whether a bucket's location is `region` or a multi-region on the same continent."""
    if "-" in location:
        return region == location.lower()
    return region[:2].upper() == location[:2].replace("NA", "US")  # NAM4 is in the US


def _examine_model_dir(folder: str, hosts: int, wrong: list[Problem]) -> dict[str, Any]:
    if not paths.is_remote(folder):
        if hosts > 1:
            fault = f"--model_dir={folder} is on this machine; the hosts of a slice share no disk"
            wrong.append(problem(fault, "--model_dir=gs://BUCKET/FOLDER"))
        return {"path": folder, "may": None}
    path = posixpath.join(folder, f"probe.{uuid.uuid4().hex}.{publishing.unfinished_tag()}")
    actions = {
        "write": lambda: _write_probe(path),
        "read": lambda: paths.read_bytes(path),
        "list": lambda: paths.list_names(folder),
        "delete": lambda: paths.remove(path),
    }
    permissions = dict.fromkeys(actions, False)
    for action, call in actions.items():
        try:
            call()
        except OSError as error:
            wrong.append(_failure(f"{folder}: cannot {action}", error))
            break
        permissions[action] = True
    return {"path": folder, "may": permissions}


def _write_probe(path: str) -> None:
    with paths.opened(path, "wb") as file:
        file.write(b"t0 doctor")


def _examine_cache(folder: str, wrong: list[Problem]) -> dict[str, Any]:
    # Imported here, because this command must also work if packages are missing.
    from t0.caching import verify

    faults_by_cache: dict[str, list[str]] = {}
    try:
        faults_by_cache = verify.find_faults(folder)
    except UserError as error:
        wrong.append(
            problem(str(error), "cache the tasks: seqio_cache_tasks --output_cache_dir=...")
        )
    except OSError as error:
        wrong.append(_failure(f"{folder}: cannot be listed", error))
    faulty = {cache: faults for cache, faults in faults_by_cache.items() if faults}
    for faults in faulty.values():
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        remedy = f"t0 verify {folder}, then cache the task again"
        wrong.append(problem(f"{faults[0]}{more}", remedy))
    caches = len(faults_by_cache)
    return {"path": folder, "caches": caches, "whole": caches - len(faulty), "faults": faulty}
