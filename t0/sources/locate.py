"""Where in the data folders the splits of a dataset are. Lists folders, opens no data.

    local_splits([Path("/data")], "super_glue", "cb")
    # {'validation': Found('jsonl', Path('/data/super_glue/cb/validation.jsonl.gz'))}

For each data folder, in order, the splits of a dataset stand in
`<dataset>/<subset or "default">/`, and without a subset in `<dataset>/` too: as files
`<split>.<ending>` (jsonl, json, csv, tsv, with or without .gz; parquet, arrow), as folders
`<split>/` that `Dataset.save_to_disk` wrote, or all of them as one folder of
`DatasetDict.save_to_disk`. The first place that has a split is taken.
"""

import json
from pathlib import Path
from typing import NamedTuple

from t0.errors import UserError
from t0.files import checked_name
from t0.sources.known import DEFAULT_SUBSET
from t0.sources.readers import FORMATS, TEXT_FORMATS, reading

FILE_PATTERN = "<split>.{jsonl,json,csv,tsv}[.gz] or .parquet or .arrow"


class Found(NamedTuple):
    """A split's data: a format of `readers.FORMATS` or `saved`, and its file or folder."""

    kind: str
    path: Path


def folders_for(dirs: list[Path], dataset: str, subset: str | None) -> list[Path]:
    """Returns the folders, existing or not, in which the dataset's splits may stand, in order."""
    folders = []
    for data_dir in dirs:
        folders.append(data_dir / dataset / (subset or DEFAULT_SUBSET))
        if subset is None:
            folders.append(data_dir / dataset)
    return folders


def local_splits(dirs: list[Path], dataset: str, subset: str | None) -> dict[str, Found]:
    """Returns the splits that stand in the data folders under the dataset's name.

    Raises:
        UserError: two files of one folder are the same split.
    """
    splits: dict[str, Found] = {}
    for folder in folders_for(dirs, dataset, subset):
        splits = folder_splits(folder) | splits
    return splits


def folder_splits(folder: Path) -> dict[str, Found]:
    """Returns the splits that stand in this one folder; none where there is no folder.

    Raises:
        UserError: two of its files are the same split, or a split has a name that no file may have.
    """
    if not folder.is_dir():
        return {}
    if (folder / "dataset_dict.json").is_file():
        path = folder / "dataset_dict.json"
        names = _saved(path).get("splits", [])
        if not isinstance(names, list):
            raise UserError(f"{path}: 'splits' must be a list of names. Save the dataset again.")
        names = [checked_name(name, "split", path) for name in names]
        return {name: Found("saved", folder / name) for name in names}
    if (folder / "state.json").is_file():
        # `datasets` writes null for a dataset that was not loaded as some split.
        path = folder / "state.json"
        name = _saved(path).get("_split") or "train"
        return {checked_name(name, "split", path): Found("saved", folder)}
    splits: dict[str, Found] = {}
    for path in sorted(folder.iterdir()):
        name, found = _split_of(path)
        if not found:
            continue
        checked_name(name, "split", path)
        if name in splits:
            raise UserError(
                f"{folder}: both {splits[name].path.name} and {path.name} are the split '{name}'."
                " Leave one of them there."
            )
        splits[name] = found
    return splits


def _split_of(path: Path) -> tuple[str, Found | None]:
    """Returns the name of the split that a file or folder holds, and how."""
    if path.name.startswith("."):
        return path.name, None
    if (path / "state.json").is_file():
        return path.name, Found("saved", path)
    packed = path.suffix == ".gz"
    plain = path.with_suffix("") if packed else path
    kind = FORMATS.get(plain.suffix)
    if kind is None or (packed and kind not in TEXT_FORMATS) or not path.is_file():
        return path.name, None
    return plain.stem, Found(kind, path)


def _saved(path: Path) -> dict:
    try:
        with reading(path):
            content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({error}). Save the dataset again.") from error
    return content if isinstance(content, dict) else {}
