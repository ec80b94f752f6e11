"""`t0 doctor`: checks the installation, and lists packages, devices, data and commands.

    t0 doctor           # exit status 0 if there are no problems, 1 otherwise
    t0 doctor --json    # the same as one JSON object
    t0 doctor --tpu my-tpu --zone europe-west4-a --model_dir gs://b/model --cache gs://b/cache

`examine` returns the facts and the problems as one plain dict, and `render` formats it as lines.
TensorFlow is only imported for gs://, because the command must also work without TensorFlow.
`examine_cloud` reads buckets with TensorFlow's client, as a run does. It gets a bucket's region
from the package google-cloud-storage.
"""

import argparse
import importlib
import importlib.util
import json
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

import t0
from t0.errors import UserError, is_checkout, remote_advice, short_reason
from t0.files import object_facts, paths, publishing
from t0.machine import installed_version
from t0.run import tpu_checks

Problem = dict[str, str]  # the keys "what" (the problem) and "do" (its remedy)

# Versions that are known to work or expected to work. A test compares them with the lock files.
PACKAGES = {
    "tensorflow": ">=2.15.1,<2.16",  # 2.16 removed tf.estimator
    "tensorflow-text": ">=2.15,<2.16",
    "mesh-tensorflow": ">=0.1.21,<0.2",
    "t5": ">=0.9.4,<0.10",
    "seqio": ">=0.0.18.dev0,<0.1",
    "gin-config": ">=0.5,<0.6",
    "promptsource": "==0.1.0",  # the prompts of the paper
    "sentencepiece": ">=0.2,<0.2.1",  # newer versions need protobuf 5
    "protobuf": ">=4.25.2,<5",  # TensorFlow 2.15 refuses protobuf 5
    "numpy": ">=1.23.5,<2",  # TensorFlow 2.15 is built for numpy 1
    "pyarrow": ">=21,<24",  # newer versions need numpy 2
    "datasets": ">=4,<6",  # older versions run dataset scripts
    "apache-beam": ">=2.60,<3",
    "tensorflow-metadata": ">=1.13.1,<1.16",  # newer versions need protobuf 5
    "setuptools": "<81",  # version 81 removed pkg_resources
}
# Package -> a distribution with another name that has the same modules.
INSTEAD = {"tensorflow": "tensorflow-cpu", "seqio": "seqio-nightly"}
# Console command -> the module that it must run. SeqIO and T5 also install commands with the first
# two names.
COMMANDS = {
    "seqio_cache_tasks": "t0.cli.cache_tasks",
    "t5_mesh_transformer": "t0.cli.mesh_transformer",
    "t0": "t0.cli.main",
}
DEFAULT_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
PYTHONS = ((3, 11), (3, 10))
_ROLE = "grant the caller Storage Object Admin on the bucket (roles/storage.objectAdmin)"
WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("checks of a TPU and buckets, as a run would use them")
    group.add_argument("--tpu", metavar="NAME", help="name of a TPU; local: this machine's")
    group.add_argument("--zone", "--tpu_zone", metavar="ZONE", help="zone of the TPU")
    group.add_argument("--project", "--gcp_project", metavar="NAME", help="project of the TPU")
    about = "test writing, reading, listing and deleting in this folder"
    group.add_argument("--model_dir", metavar="DIR", help=about)
    group.add_argument("--cache", metavar="DIR", help="check that this cache is complete")


def main(args: argparse.Namespace) -> int:
    """Prints the report; returns 1 if it contains problems, else 0."""
    if args.zone and not (args.tpu or args.model_dir or args.cache):
        raise UserError("--zone needs --tpu=NAME")
    if args.project and not args.tpu:
        raise UserError("--project needs --tpu=NAME")
    report = examine()
    if args.tpu or args.model_dir or args.cache:
        report["cloud"] = examine_cloud(args, report["wrong"])
    print(json.dumps(report, indent=1) if args.json else "\n".join(render(report)))
    return 1 if report["wrong"] else 0


def problem(fault: str, remedy: str) -> Problem:
    """Returns a dict with a problem and its remedy."""
    return {"what": fault, "do": remedy}


def examine() -> dict[str, Any]:
    """Returns the facts and problems of this machine. The keys are those of `--json`."""
    wrong: list[Problem] = []
    return {
        "t0": {"version": t0.__version__, "path": str(Path(t0.__file__).parent)},
        "python": _examine_python(wrong),
        "packages": _examine_packages(wrong),
        "vocabulary": _examine_vocabulary(wrong),
        "data": _examine_data(wrong),
        "devices": {
            "cores": len(os.sched_getaffinity(0)),
            "gpus": gpus(),
            "tpu": os.environ.get("TPU_NAME"),
        },
        "commands": _examine_commands(wrong),
        "disk": {"path": str(Path.cwd()), "free_bytes": shutil.disk_usage(Path.cwd()).free},
        "wrong": wrong,
    }


def _examine_python(wrong: list[Problem]) -> dict[str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    releases = " or ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    if sys.version_info[:2] not in PYTHONS:
        fault = (
            f"Python {version}: expected {releases} (TensorFlow 2.15 has no wheels for newer ones)"
        )
        wrong.append(problem(fault, "bin/setup in a checkout, or install Python 3.11"))
    return {"version": version, "wanted": releases, "executable": sys.executable}


def _examine_packages(wrong: list[Problem]) -> list[dict[str, Any]]:
    rows = []
    for package, versions in PACKAGES.items():
        names = (package, INSTEAD.get(package, package))
        name = next(filter(installed_version, names), package)
        version = installed_version(name)
        fits = bool(version) and SpecifierSet(versions).contains(version, prereleases=True)
        rows.append({"name": name, "found": version, "wanted": versions, "fits": fits})
        if not fits:
            fault = f"{name} {version or 'is not installed'}: expected {versions}"
            wrong.append(problem(fault, _remedy(package, versions)))
    return rows


def _remedy(package: str, versions: str = "") -> str:
    if is_checkout():
        return "bin/setup (rm -rf .venv first if that does not help)"
    if package == "promptsource":
        return "pip install --no-deps --ignore-requires-python promptsource==0.1.0"
    return f"pip install --no-deps {shlex.quote(package + versions)}"


def _examine_vocabulary(wrong: list[Problem]) -> dict[str, Any]:
    variable = os.environ.get("T0_VOCAB")
    path, pieces = variable or DEFAULT_VOCABULARY, None
    try:
        if "://" not in path:
            # Imported here, because this command must also work if packages are missing.
            sentence_pieces = importlib.import_module("t0.catalogue.sentence_pieces")
            pieces = len(sentence_pieces.checked_model(path, paths.read_bytes(path)).pieces)
    except (OSError, UserError) as error:
        reason = getattr(error, "strerror", None)
        fault = f"the vocabulary {path} cannot be read ({reason})" if reason else str(error)
        wrong.append(problem(fault, "T0_VOCAB=/path/to/a/sentencepiece.model"))
    except ImportError:  # already reported with the packages
        pass
    return {"path": path, "from": "T0_VOCAB" if variable else "default", "pieces": pieces}


def _examine_data(wrong: list[Problem]) -> list[dict[str, Any]]:
    try:
        # Imported here, because the module needs yaml, and this command must work without it.
        sources = importlib.import_module("t0.sources")
        folders = sources.data_dirs()
        own = sources.find_own_datasets(folders)
        return [_describe_folder(folder, own) for folder in folders]
    except ImportError as error:
        wrong.append(problem(f"data folders cannot be examined: {error}", _remedy("pyyaml")))
    except UserError as error:
        wrong.append(problem(str(error), "fix that, or set other folders: T0_DATA_DIR=a:b"))
    return []


def _describe_folder(folder: Path, own: list[Any]) -> dict[str, Any]:
    """Returns the names of a data folder's datasets, and which of them have the user's templates.

    A dataset is a folder that contains splits. Its name is `dataset` or `dataset/subset`.
    """
    from t0.sources.folders import folder_splits

    names: list[str] = []
    for dataset in sorted(path for path in folder.iterdir() if path.is_dir()):
        candidates = [dataset] if folder_splits(dataset) else sorted(dataset.iterdir())
        names += [_dataset_name(folder, path) for path in candidates if folder_splits(path)]
    prompts = {
        _dataset_name(folder, dataset.folder): len(dataset.template_file.templates)
        for dataset in own
        if dataset.folder.is_relative_to(folder)
    }
    return {"path": str(folder), "datasets": names, "own_prompts": prompts}


def _dataset_name(folder: Path, dataset: Path) -> str:
    return str(dataset).removeprefix(f"{folder}/").removesuffix("/default")


def gpus() -> list[str]:
    """Returns one line for each NVIDIA GPU that nvidia-smi lists."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def command(name: str, path: str | None = None) -> dict[str, Any]:
    """Returns the script of a console command, and the module that the script imports.

    Args:
      name: the command's name.
      path: the folders to search, in the form of PATH. None means PATH, and then the interpreter's
        folder.
    """
    folder = str(Path(sys.executable).parent)
    script = shutil.which(name, path=path) or shutil.which(name, path=folder)
    text = Path(script).read_text(encoding="utf-8", errors="replace") if script else ""
    match = re.search(r"^from ([\w.]+) import ", text, re.MULTILINE)
    return {"name": name, "script": script, "module": match and match[1]}


def _examine_commands(wrong: list[Problem]) -> list[dict[str, Any]]:
    # SeqIO and T5 install commands with the same names as ours. The package that is installed last
    # overwrites them.
    again = "pip install --no-deps --force-reinstall t0 (last, after seqio and t5)"
    remedy = "rm .venv/.t0-setup; bin/setup (and activate .venv)" if is_checkout() else again
    rows = [command(name) | {"wanted": module} for name, module in COMMANDS.items()]
    for row in rows:
        if row["script"] is None:
            wrong.append(problem(f"{row['name']}: no such command", remedy))
        elif row["module"] != row["wanted"]:
            runs = f"{row['name']} ({row['script']}) runs {row['module'] or 'something else'}"
            wrong.append(problem(f"{runs}: expected {row['wanted']}", remedy))
    return rows


def examine_cloud(args: argparse.Namespace, wrong: list[Problem]) -> dict[str, dict[str, Any]]:
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
        zone = args.zone or report.get("tpu", {}).get("zone", "")
        report["locations"] = _examine_regions(remote, zone.rpartition("-")[0], wrong)
    if args.model_dir:
        kind = report.get("tpu", {}).get("accelerator_type", "")
        report["model_dir"] = _examine_model_dir(args.model_dir, tpu_checks.hosts_of(kind), wrong)
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


def _examine_regions(folders: list[str], region: str, wrong: list[Problem]) -> dict[str, str]:
    regions = {}
    for bucket in dict.fromkeys(object_facts.split(folder)[0] for folder in folders):
        try:
            locations = object_facts.locations(bucket)
        except (ImportError, OSError) as error:
            # Some accounts are allowed to read objects, but not the metadata of buckets.
            regions[bucket] = f"unknown ({remote_advice(error) or short_reason(error)})"
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
        path = Path(folder).absolute()
        parent = next(each for each in (path, *path.parents) if each.exists())
        try:
            publishing.check_writable(str(parent))
        except UserError as error:
            wrong.append(problem(str(error), "use another --model_dir"))
        return {"path": folder, "may": None}
    probe = posixpath.join(folder, f"probe.{uuid.uuid4().hex}.{publishing.unfinished_tag()}")
    actions = {
        "write": lambda: _write_probe(probe),
        "read": lambda: paths.read_bytes(probe),
        "list": lambda: paths.list_names(folder),
        "delete": lambda: paths.remove(probe),
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


def render(report: dict[str, Any]) -> list[str]:
    """Returns the lines of the report: first all facts, then each problem with its remedy."""
    cells = [
        f"{' ' if row['fits'] else '!'} {row['name']} {row['found'] or 'none'} {row['wanted']}"
        for row in report["packages"]
    ]
    pairs = zip(cells[::2], [*cells[1::2], ""], strict=False)
    python = report["python"]
    lines = [
        f"t0 {report['t0']['version']} in {report['t0']['path']}",
        f"Python {python['version']} (expected {python['wanted']}) at {python['executable']}",
        "packages: installed version and supported range, ! if it is outside",
        *(f"{cell:<44}{next_cell}".rstrip() for cell, next_cell in pairs),
        *(f"{label:<11}{words}" for label, words in _facts(report)),
    ]
    if not report["wrong"]:
        return [*lines, "nothing is wrong"]
    lines.append(f"wrong: {len(report['wrong'])}")
    for fault in report["wrong"]:
        lines += [f"  {fault['what']}", f"    do: {fault['do']}"]
    return lines


def _facts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (label, text) for all facts except those about packages."""
    vocabulary, devices, disk = report["vocabulary"], report["devices"], report["disk"]
    pieces = f", {vocabulary['pieces']:,} pieces" if vocabulary["pieces"] else ""
    yield "vocabulary", f"{vocabulary['path']} ({vocabulary['from']}{pieces})"
    if not report["data"]:
        yield "data", "no folder (T0_DATA_DIR); datasets come from the Hugging Face hub"
    for row in report["data"]:
        yield "data", row["path"]  # not abbreviated, so that users can copy it
        own = [f"{name} ({count})" for name, count in row["own_prompts"].items()]
        for title, names in (
            (f"{len(row['datasets'])} datasets", row["datasets"]),
            ("own prompts", own),
        ):
            if names:
                yield (
                    "",
                    textwrap.shorten(f"{title}: {', '.join(names)}", WIDTH, placeholder=" ..."),
                )
    seen = [f"{devices['cores']} CPU cores", *(f"GPU {gpu}" for gpu in devices["gpus"])]
    seen += [f"TPU_NAME={devices['tpu']}"] if devices["tpu"] else []
    yield "devices", ", ".join(seen)
    for row in report["commands"]:
        runs = f"runs {row['module']} ({row['script']})" if row["script"] else "is not installed"
        yield "command", f"{row['name']} {runs}"
    yield "disk", f"{disk['free_bytes'] / 1e9:.1f} GB free in {disk['path']}"
    for label, facts in report.get("cloud", {}).items():
        # A value may be a dict. Examples are permission -> whether the account has it, and cache ->
        # its faults. Only keys with a true value are shown.
        words = {
            name: " ".join(filter(value.get, value)) if isinstance(value, dict) else value
            for name, value in facts.items()
        }
        yield label, ", ".join(f"{name} {value}" for name, value in words.items() if value)
