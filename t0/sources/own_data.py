"""Finds the user's own datasets: folders with a `templates.yaml`.

    /data/mine/reviews/templates.yaml          find_own_datasets([Path("/data/mine")])
    /data/mine/reviews/train.jsonl             # [OwnDataset(name='reviews', subset=None, ...)]

`templates.yaml` is in promptsource's format. It may be in a data folder itself, in `<dataset>/` or
in `<dataset>/<subset>/`. If the file has the keys `dataset` and `subset`, their values are the
dataset's name and subset. Otherwise the names of the folders are used. This module lists folders.
It reads only files named `templates.yaml`.
"""

import dataclasses
import functools
import sys
from pathlib import Path

from t0.errors import UserError, reading
from t0.files import checked_name
from t0.files.any_path import is_readable
from t0.prompts import TemplateFile, read_template_file
from t0.sources.folders import FILE_PATTERN, SplitFile, folder_splits, local_splits
from t0.sources.schema import DEFAULT_SUBSET, features, split_sizes

TEMPLATES = "templates.yaml"


@dataclasses.dataclass(frozen=True)
class OwnDataset:
    """A dataset for which the user has written templates.

    Attributes:
      name: the dataset's name.
      subset: the subset's name, or None.
      folder: the folder of the templates.
      template_file: the content of the template file.
      splits: split -> the file or folder of the split. If the dataset is one of T0's and the split
        is not on this machine, the value is None, and `open_split` opens the split on the hub.
    """

    name: str
    subset: str | None
    folder: Path
    template_file: TemplateFile
    splits: dict[str, Path | None]


def find_own_datasets(dirs: list[Path]) -> list[OwnDataset]:
    """Returns the datasets that have templates in the data folders, in the order of the folders.

    Raises:
      UserError: a template file is malformed, two files are for the same dataset and subset, or a
        dataset has no rows anywhere.
    """
    datasets: dict[tuple[str, str | None], OwnDataset] = {}
    for folder, name, subset, templates in _template_folders(dirs):
        first = datasets.get((name, subset))
        if first:
            raise UserError(
                f"{first.template_file.path} and {templates.path} are both for the dataset"
                f" {_format_title(name, subset)}. Put their templates into one file, or give one "
                "of them another name with the keys 'dataset' and 'subset' at the top of the file."
            )
        splits = _find_splits(dirs, folder, name, subset)
        datasets[name, subset] = OwnDataset(name, subset, folder, templates, splits)
    return list(datasets.values())


def own_splits(dirs: list[Path], dataset: str, subset: str | None) -> dict[str, SplitFile]:
    """Returns the splits in all folders that have templates for a dataset.

    A folder's name may differ from the name of the dataset.
    """
    splits: dict[str, SplitFile] = {}
    for folder, name, own_subset, _ in _template_folders(dirs):
        if (name, own_subset) == (dataset, subset):
            splits = folder_splits(folder) | splits
    return splits


def _template_folders(dirs: list[Path]) -> list[tuple[Path, str, str | None, TemplateFile]]:
    """Returns each folder that has templates, with its dataset, subset and templates."""
    folders = []
    for data_dir in dirs:
        if (data_dir / TEMPLATES).is_file():
            folders.append(_resolve_names(data_dir, data_dir.name, None))
            continue
        for folder in _list_folders(data_dir):
            if (folder / TEMPLATES).is_file():
                folders.append(_resolve_names(folder, folder.name, None))
            for inner in _list_folders(folder):
                if (inner / TEMPLATES).is_file():
                    subset = None if inner.name == DEFAULT_SUBSET else inner.name
                    folders.append(_resolve_names(inner, folder.name, subset))
    return folders


def _list_folders(folder: Path) -> list[Path]:
    """Returns the sorted subfolders that are readable and not hidden.

    For example, the folder lost+found at the root of a disk is not readable.
    """
    inner = (p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    return sorted(p for p in inner if is_readable(p))


def _resolve_names(
    folder: Path, name: str, subset: str | None
) -> tuple[Path, str, str | None, TemplateFile]:
    path = folder / TEMPLATES
    with reading(path):
        status = path.stat()
    templates = _read_templates(path, status.st_mtime_ns, status.st_size)
    if templates.dataset:
        if (name, subset) != (templates.dataset, templates.subset):
            title = _format_title(templates.dataset, templates.subset)
            _print_other_name(path, title, _format_title(name, subset))
        name, subset = templates.dataset, templates.subset
    else:
        subset = templates.subset or subset
    # A name on the hub includes the owner: owner/name.
    for name_part in name.split("/", maxsplit=1):
        checked_name(name_part, "dataset", path)
    if subset is not None:
        checked_name(subset, "subset", path)
    return folder, name, subset, templates


@functools.lru_cache(maxsize=256)  # prints only one note for each file
def _print_other_name(path: Path, title: str, folder: str) -> None:
    print(
        f"note: {path} is for the dataset {title} because of its key 'dataset', not for {folder}, "
        "its folder's name. The names of its tasks begin with the dataset's name",
        file=sys.stderr,
    )


@functools.lru_cache(maxsize=256)
def _read_templates(path: Path, mtime_ns: int, size_bytes: int) -> TemplateFile:
    """Reads a template file.

    The result is cached until the file's modification time or size changes.
    """
    return read_template_file(path)


def _find_splits(
    dirs: list[Path], folder: Path, name: str, subset: str | None
) -> dict[str, Path | None]:
    files = folder_splits(folder) or local_splits(dirs, name, subset)
    if files:
        return {split: data.path for split, data in files.items()}
    if features(name, subset) is not None:
        return dict.fromkeys(split_sizes(name, subset))
    raise UserError(
        f"{folder / TEMPLATES}: no data for the dataset {_format_title(name, subset)}. Put "
        f"{FILE_PATTERN} next to it, for example train.jsonl and validation.jsonl."
    )


def _format_title(name: str, subset: str | None) -> str:
    return f"'{name}/{subset}'" if subset else f"'{name}'"
