"""Finds the user's data folders, and the splits of a dataset in them.

    T0_DATA_DIR=/data/t0:/data/mine seqio_cache_tasks ...     # or --data_dir=/data/t0,/data/mine
    data_dirs()  # [Path('/data/t0'), Path('/data/mine')]
    local_splits(data_dirs(), "super_glue", "cb")
    # {'validation': SplitFile('jsonl', Path('/data/t0/super_glue/cb/validation.jsonl.gz'))}

This module lists folders and opens no data. There are no data folders by default. In a data folder,
the splits of a dataset are in `<dataset>/<subset or "default">/`. If a dataset has no subsets, they
can also be in `<dataset>/`. A split is a file `<split>.<extension>` or a folder `<split>/` written
by `Dataset.save_to_disk`. The table `readers.FORMATS` has the extensions, and says which may be
followed by .gz. A folder written by `DatasetDict.save_to_disk` holds all splits. If a split is in
several folders, the first folder is used.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from t0.errors import UserError
from t0.files import checked_name
from t0.files.any_path import any_path
from t0.files.paths import is_remote
from t0.files.untrusted import read_json
from t0.sources.readers import FORMATS, SUFFIXES
from t0.sources.schema import DEFAULT_SUBSET

DATA_DIR_VARIABLE = "T0_DATA_DIR"
# The separators between folders. The colon in gs:// is not a separator.
_SEPARATOR = re.compile(f",|{re.escape(os.pathsep)}(?!//)")


def data_dirs() -> list[Path]:
    """Returns the data folders as absolute paths, in search order.

    The environment variable `T0_DATA_DIR` lists the data folders, separated by the system's path
    separator (`:`) or by commas.

    Raises:
      UserError: a named folder does not exist.
    """
    return _existing(_names(os.environ.get(DATA_DIR_VARIABLE, "")))


def set_data_dirs(paths: str | Path | Iterable[str | Path]) -> None:
    """Sets the data folders (`--data_dir`) of this process and of the processes that it starts.

    Args:
      paths: one folder or several folders. A string may name several folders, as in `T0_DATA_DIR`.

    Raises:
      UserError: a named folder does not exist.
    """
    several = [paths] if isinstance(paths, str | Path) else paths
    names = [name for path in several for name in _names(str(path))]
    # The paths must be absolute, because a child process may run in a different folder.
    os.environ[DATA_DIR_VARIABLE] = os.pathsep.join(map(str, _existing(names)))


def _names(text: str) -> list[str]:
    """Splits a text at separators and commas. The name of an existing folder is not split."""
    text = text.strip()
    if text and "://" not in text and Path(text).expanduser().is_dir():
        return [text]
    return [name.strip() for name in _SEPARATOR.split(text) if name.strip()]


def _existing(names: list[str]) -> list[Path]:
    folders = [_absolute(name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if not folder.is_dir():
            got = "is a file" if folder.exists() else "does not exist"
            raise UserError(
                f"data folder '{name}' (from --data_dir or {DATA_DIR_VARIABLE}) {got}. Name"
                f" existing folders, separated by '{os.pathsep}' or commas."
            )
    return list(dict.fromkeys(folders))


def _absolute(name: str) -> Path:
    if is_remote(name):
        return any_path(name.rstrip("/"))
    return Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100


# Files in which the `datasets` library describes the splits next to them.
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json")
_PACKED = [suffix for suffix, kind in SUFFIXES.items() if FORMATS[kind].gzip]
FILE_PATTERN = " or ".join(
    [
        f"<split>.{{{','.join(suffix[1:] for suffix in _PACKED)}}}[.gz]",
        *(suffix for suffix in SUFFIXES if suffix not in _PACKED),
    ]
)


class SplitFile(NamedTuple):
    """The location of a split.

    Attributes:
      kind: the name of the format in `readers.FORMATS`.
      path: the path of the file or folder.
    """

    kind: str
    path: Path


def files_of(split: SplitFile) -> list[Path]:
    """Returns the files that hold a split, sorted."""
    inner = split.path.rglob("*") if split.kind == "saved" else [split.path]
    return sorted(path for path in inner if path.is_file())


def folders_for(dirs: list[Path], dataset: str, subset: str | None) -> list[Path]:
    """Returns the folders that may hold the dataset's splits, in search order.

    Some of these folders may not exist.
    """
    folders = []
    for data_dir in dirs:
        folders.append(data_dir / dataset / (subset or DEFAULT_SUBSET))
        if subset is None:
            folders.append(data_dir / dataset)
    return folders


def local_splits(dirs: list[Path], dataset: str, subset: str | None) -> dict[str, SplitFile]:
    """Returns the splits that the data folders hold for a dataset.

    Raises:
      UserError: two files in one folder are the same split.
    """
    splits: dict[str, SplitFile] = {}
    for folder in folders_for(dirs, dataset, subset):
        splits = folder_splits(folder) | splits
    return splits


def folder_splits(folder: Path) -> dict[str, SplitFile]:
    """Returns the splits in one folder; an empty dict if the folder does not exist.

    Raises:
      UserError: two files are the same split, or the name of a split is not safe as a file name.
    """
    if not folder.is_dir():
        return {}
    if (folder / "dataset_dict.json").is_file():
        path = folder / "dataset_dict.json"
        names = read_json(path).get("splits", [])
        if not isinstance(names, list):
            raise UserError(f"{path}: 'splits' must be a list of names. Save the dataset again.")
        names = [checked_name(name, "split", path) for name in names]
        return {name: SplitFile("saved", folder / name) for name in names}
    if (folder / "state.json").is_file():
        # If a dataset was not loaded as a split, the `datasets` library writes null as its split.
        path = folder / "state.json"
        name = read_json(path).get("_split") or "train"
        return {checked_name(name, "split", path): SplitFile("saved", folder)}
    splits: dict[str, SplitFile] = {}
    for path in sorted(folder.iterdir()):
        name, file = _split_of(path)
        if not file:
            continue
        checked_name(name, "split", path)
        if name in splits:
            raise UserError(
                f"{folder}: both {splits[name].path.name} and {path.name} are the split '{name}'."
                " Remove one of them."
            )
        splits[name] = file
    return splits


def split_file(path: Path) -> SplitFile | None:
    """Returns the format and path of a file of rows, or None if its extension is unknown."""
    return _split_of(path)[1]


def _split_of(path: Path) -> tuple[str, SplitFile | None]:
    """Returns the name of the split that a file or folder contains, and the split's location.

    The location is None if the file or folder does not contain a split.
    """
    if path.name.startswith(".") or path.name in _DESCRIPTIONS:
        return path.name, None
    if (path / "state.json").is_file():
        return path.name, SplitFile("saved", path)
    packed = path.suffix.lower() == ".gz"
    plain = path.with_suffix("") if packed else path
    kind = SUFFIXES.get(plain.suffix.lower())
    if kind is None or (packed and not FORMATS[kind].gzip) or not path.is_file():
        return path.name, None
    return plain.stem, SplitFile(kind, path)
