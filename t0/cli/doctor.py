"""`t0 doctor`: lists packages, devices, data and commands on this machine, and what is wrong.

    t0 doctor           # exit status 0 when nothing is wrong, 1 otherwise
    t0 doctor --json    # the same as one JSON object
    t0 doctor --tpu my-tpu --zone europe-west4-a --model_dir gs://b/model --cache gs://b/cache

`examine` returns the facts and the problems as one plain dict, `render` turns it into lines.
Neither imports TensorFlow, except for gs://: the command has to work where it cannot be imported.
"""

import argparse
import importlib
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import t0
from t0.cli import doctor_cloud, environment
from t0.cli.versions import WANTED, Wanted, check, complaint, installed_version
from t0.errors import UserError, is_checkout

DEFAULT_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
PYTHONS = ((3, 11), (3, 10))
LITTLE_DISK_BYTES = 1e9
WIDTH = 100

Problem = dict[str, str]  # "what" is wrong and what to "do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `t0 doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    doctor_cloud.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Prints the report; returns 1 when something is wrong, else 0."""
    report = examine(doctor_cloud.asked(args))
    print(json.dumps(report, indent=1) if args.json else "\n".join(render(report)))
    return 1 if report["wrong"] else 0


def examine(asked: doctor_cloud.Asked = doctor_cloud.Asked()) -> dict[str, Any]:  # noqa: B008
    """Returns every fact and every problem, with the keys of `t0 doctor --json`.

    Args:
      asked: the TPU and the buckets to ask Google about.
    """
    wrong: list[Problem] = []
    google = {"cloud": doctor_cloud.examine(asked, wrong)} if asked else {}
    return {
        "t0": {"version": t0.__version__, "path": str(Path(t0.__file__).parent)},
        "python": _python(wrong),
        "packages": _packages(wrong),
        "vocabulary": _vocabulary(wrong),
        "data": _data(wrong),
        "devices": environment.cpu()
        | {"gpus": environment.gpus(), "tpu": os.environ.get("TPU_NAME")},
        "commands": _commands(wrong),
        "network": environment.network(),
        "disk": _disk(wrong),
        **google,
        "wrong": wrong,
    }


def _python(wrong: list[Problem]) -> dict[str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = " or ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    if sys.version_info[:2] not in PYTHONS:
        wrong.append(
            _problem(
                f"Python {version}: wanted {wanted} (TensorFlow 2.15 has no wheels for newer ones)",
                "install Python 3.11, then T0_PYTHON=/path/to/python3.11 bin/setup",
            )
        )
    return {"version": version, "wanted": wanted, "executable": sys.executable}


def _packages(wrong: list[Problem]) -> list[dict[str, Any]]:
    try:
        importlib.import_module("packaging.specifiers")
    except ImportError:
        wrong.append(_problem("packaging is not installed: no version can be judged", _remedy()))
        return []
    rows = [(wanted, check(wanted, installed_version)) for wanted in WANTED]
    for wanted, row in rows:
        if not row.fits:
            wrong.append(_problem(complaint(wanted, row, installed_version), _remedy(wanted)))
    return [vars(row) for _, row in rows]


def _remedy(wanted: Wanted | None = None) -> str:
    if is_checkout():
        return "bin/setup (rm -rf .venv first if that does not help)"
    if wanted is None:
        return "pip install packaging"
    if wanted.name == "promptsource":
        return "pip install --no-deps --ignore-requires-python promptsource==0.1.0"
    return f"pip install --no-deps {shlex.quote(wanted.name + wanted.range)}"


def _vocabulary(wrong: list[Problem]) -> dict[str, Any]:
    path = os.environ.get("T0_VOCAB") or DEFAULT_VOCABULARY
    facts = {"path": path, "from": "T0_VOCAB" if os.environ.get("T0_VOCAB") else "default"}
    if "://" in path:
        return facts | {"pieces": None}
    try:
        return facts | {"pieces": _count_pieces(path)}
    except UserError as error:
        wrong.append(_problem(str(error), "T0_VOCAB=/path/to/a/sentencepiece.model"))
        return facts | {"pieces": None}


def _count_pieces(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"the vocabulary {path} cannot be read ({error.strerror})") from error
    if not content:  # SentencePiece would load it, without an error, as a model without pieces
        raise UserError(f"the vocabulary {path} is empty, thus not a SentencePiece model")
    try:
        import sentencepiece
    except ImportError:  # reported among the packages
        return None
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content).get_piece_size()
    except RuntimeError as error:
        raise UserError(f"the vocabulary {path} is not a SentencePiece model") from error


def _data(wrong: list[Problem]) -> list[dict[str, Any]]:
    try:
        # Imported here: it needs yaml, and this command has to work where packages are missing.
        sources = importlib.import_module("t0.sources")
        folders = sources.data_dirs()
        rows = [{"path": str(path), "datasets": _dataset_names(path)} for path in folders]
        own = sources.find_own_datasets(folders)
    except ImportError as error:
        wrong.append(_problem(f"data folders cannot be looked at: {error}", _remedy()))
        return []
    except UserError as error:
        wrong.append(_problem(str(error), "correct that, or name other folders: T0_DATA_DIR=a:b"))
        return []
    for row in rows:
        mine = [dataset for dataset in own if dataset.folder.is_relative_to(row["path"])]
        row["own_prompts"] = {
            _dataset_name(dataset.name, dataset.subset): len(dataset.template_file.templates)
            for dataset in mine
        }
    return rows


def _dataset_names(folder: Path) -> list[str]:
    """Returns `dataset` or `dataset/subset` for each folder of splits in a data folder."""
    from t0.sources.folders import folder_splits

    names = []
    for dataset in sorted(path for path in folder.iterdir() if path.is_dir()):
        if folder_splits(dataset):
            names.append(dataset.name)
            continue
        subsets = sorted(path.name for path in dataset.iterdir() if folder_splits(path))
        names += [_dataset_name(dataset.name, subset) for subset in subsets]
    return names


def _dataset_name(name: str, subset: str | None) -> str:
    return name if subset in (None, "default") else f"{name}/{subset}"


def _commands(wrong: list[Problem]) -> list[dict[str, Any]]:
    rows = []
    for name, module in environment.COMMANDS.items():
        row = environment.command(name)
        rows.append(row | {"wanted": module})
        if row["script"] is None:
            wrong.append(_problem(f"{name}: no such command", _reinstall()))
        elif row["module"] != module:
            owner = row["module"] or "something else"
            wrong.append(
                _problem(f"{name} ({row['script']}) runs {owner}: wanted {module}", _reinstall())
            )
    return rows


def _reinstall() -> str:
    # SeqIO and T5 install commands of the same names; whichever is installed last wins.
    if is_checkout():
        return ".venv/bin/pip install --no-deps --no-build-isolation -e . (and activate .venv)"
    return "pip install --no-deps --force-reinstall t0 (last, after seqio and t5)"


def _disk(wrong: list[Problem]) -> dict[str, Any]:
    here = os.getcwd()  # noqa: PTH109
    free = environment.free_disk_bytes(here)
    if free < LITTLE_DISK_BYTES:
        wrong.append(
            _problem(
                f"{_gigabytes(free)} of disk are free in {here}: caches and checkpoints need more",
                "free some, or name other folders (--output_cache_dir, --model_dir)",
            )
        )
    return {"path": here, "free_bytes": free}


def _problem(what: str, do: str) -> Problem:
    return {"what": what, "do": do}


def render(report: dict[str, Any]) -> list[str]:
    """Returns the lines of the report: first the facts, then each problem and its remedy."""
    lines = [*_render_versions(report), *_render_surroundings(report)]
    if "cloud" in report:
        lines += [_line(label, words) for label, words in doctor_cloud.lines(report["cloud"])]
    if not report["wrong"]:
        return [*lines, "nothing is wrong"]
    lines.append(f"wrong: {len(report['wrong'])}")
    for problem in report["wrong"]:
        lines += [f"  {problem['what']}", f"    do: {problem['do']}"]
    return lines


def _render_versions(report: dict[str, Any]) -> Iterator[str]:
    python = report["python"]
    yield f"t0 {report['t0']['version']} in {report['t0']['path']}"
    yield f"Python {python['version']} (wanted {python['wanted']}) at {python['executable']}"
    yield "packages: version found and range wanted, ! where they differ"
    cells = [
        f"{' ' if row['fits'] else '!'} {row['name']} {row['found'] or 'none'} {row['wanted']}"
        for row in report["packages"]
    ]
    for left, right in zip(cells[::2], [*cells[1::2], ""], strict=False):
        yield f"{left:<44}{right}".rstrip()


def _render_surroundings(report: dict[str, Any]) -> Iterator[str]:
    yield _line("vocabulary", _vocabulary_words(report["vocabulary"]))
    if not report["data"]:
        yield _line(
            "data", "no folder (T0_DATA_DIR is not set); datasets come from the Hugging Face hub"
        )
    for row in report["data"]:
        for label, words in zip(("data", "", ""), _data_words(row), strict=False):
            yield _line(label, words)
    devices = report["devices"]
    yield _line("devices", _cpu_words(devices))
    for gpu in devices["gpus"]:
        yield _line("", f"GPU {gpu}")
    if devices["tpu"]:
        yield _line("", f"TPU_NAME={devices['tpu']}")
    for row in report["commands"]:
        yield _line("commands" if row["name"] == "seqio_cache_tasks" else "", _command_words(row))
    offline = [f"{name} is set" for name in report["network"]["offline"]]
    proxy = ["through a proxy"] if report["network"]["proxy"] else []
    yield _line("network", ", ".join(offline + proxy) or "no offline variable, no proxy set")
    disk = report["disk"]
    yield _line("disk", f"{_gigabytes(disk['free_bytes'])} free in {disk['path']}")


def _vocabulary_words(vocabulary: dict[str, Any]) -> str:
    pieces = f", {vocabulary['pieces']:,} pieces" if vocabulary["pieces"] else ""
    unread = ", not read until text is tokenised" if "://" in vocabulary["path"] else ""
    return f"{vocabulary['path']} ({vocabulary['from']}{pieces}{unread})"


def _data_words(row: dict[str, Any]) -> Iterator[str]:
    names = ", ".join(row["datasets"])
    count = len(row["datasets"])
    yield row["path"]  # in full, to be copied
    yield textwrap.shorten(f"{count} datasets: {names}", WIDTH, placeholder=" ...")
    if row["own_prompts"]:
        own = ", ".join(f"{name} ({count})" for name, count in row["own_prompts"].items())
        yield textwrap.shorten(f"own prompts: {own}", WIDTH, placeholder=" ...")


def _cpu_words(devices: dict[str, Any]) -> str:
    memory = f", {_gigabytes(devices['memory_bytes'])} memory" if devices["memory_bytes"] else ""
    flags = " ".join(devices["flags"]) or "no AVX flags seen"
    gpus = "" if devices["gpus"] else "; no GPU seen"
    return f"{devices['cores']} CPU cores ({flags}){memory}{gpus}"


def _command_words(row: dict[str, Any]) -> str:
    if row["script"] is None:
        return f"{row['name']}: none"
    note = "" if row["on_path"] else ", not on PATH"
    return f"{row['name']} runs {row['module']} (in {Path(row['script']).parent}{note})"


def _line(label: str, words: str) -> str:
    return f"{label:<11}{words}"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
