"""Finds gin files in the search path, and translates T5X's file names into ours.

    search_path(["/mine"])     # [/mine, then the folders of this project, T5 and Mesh TensorFlow]
    resolved_names(["t5_1_1/small.gin"], [])     # ["models/t5.1.1.small.gin"]

The working directory is searched before all of these folders. This module finds the folders of T5
and Mesh TensorFlow without importing these packages, and does not import TensorFlow.
"""

import contextlib
import functools
import importlib.resources
import importlib.util
import logging
import os
import pathlib
import posixpath
import re
from collections.abc import Iterator, Sequence

from t0.config.saved_config import FILE, OURS
from t0.errors import UserError
from t0.files.paths import read_bytes


def _folder(package: str, *inside: str) -> str:
    """Returns a folder of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the package {package} is not installed: run bin/setup")
    return str(pathlib.Path(spec.submodule_search_locations[0]).joinpath(*inside))


@functools.cache  # not at import: the PyTorch engine must also work without these packages
def _published_folders() -> tuple[str, str]:
    """Returns the folders of the gin files that T5 and Mesh TensorFlow publish."""
    return _folder("t5", "models", "gin"), _folder("mesh_tensorflow", "transformer", "gin")


def defaults_file() -> str:
    """Returns the gin file that Mesh TensorFlow reads before all others."""
    return f"{_published_folders()[1]}/defaults.gin"


# The names of the files that configure a run's mode. These files are read after the file that
# configures the model.
RUN_FILES = ("pretrain.gin", "finetune.gin", "eval.gin", "infer.gin")


# T5X's name for a file, in any folder -> our name.
_T5X_FILES = tuple(
    (re.compile(rf"(?:.*/)?{theirs}\.gin"), f"{ours}.gin")
    for theirs, ours in (
        (r"t5_1_1/(?:1_1_)?(small|base|large|xl|xxl)", r"models/t5.1.1.\1"),
        (r"mt5/(small|base|large|xl|xxl)", r"models/mt5.\1"),
        (r"t5_1_0/(small|base|large|3B|11B)", r"models/t5.1.0.\1"),
        (r"configs/runs/(pretrain|finetune|eval|infer)", r"runs/\1"),
        (r"t5_1_1/examples/(?:t5_1_1_)?(base_wmt_(?:from_scratch|eval|infer))", r"t5x/t5_1_1_\1"),
        (r"t5_1_1/examples/((?:t5_1_1_)?base_wmt_finetune)", r"t5x/\1"),
        (r"t5_1_1/examples/(wmt19_ende_from_scratch)", r"t5x/\1"),
        (r"t5_1_1/(?:examples/)?(?:small_c4_pretrain|c4_pretrain_small)", "t5x/small_c4_pretrain"),
    )
)


def gin_folder() -> pathlib.Path:
    """Returns this project's folder of gin files, in a checkout or in an installed wheel."""
    installed = pathlib.Path(str(importlib.resources.files("t0"))) / "gin"
    return installed if installed.is_dir() else installed.parents[1] / "gin"


def search_path(location_prefixes: Sequence[str] = ()) -> list[str]:
    """Returns the folders that are searched for gin files after the working directory."""
    return [*location_prefixes, str(gin_folder()), *_published_folders()]


def t5x_file(name: str) -> str | None:
    """Returns the name of our file that replaces a T5X file, or None.

    >>> t5x_file("t5x/configs/runs/pretrain.gin"), t5x_file("t5x/examples/t5/t5_1_1/small.gin")
    ('runs/pretrain.gin', 'models/t5.1.1.small.gin')
    """
    matches = ((pattern.fullmatch(name), ours) for pattern, ours in _T5X_FILES)
    return next((match.expand(ours) for match, ours in matches if match), None)


def local_name(name: str, folders: Sequence[str]) -> str:
    """Returns our name for a T5X name if no file with that name exists, and `name` otherwise.

    Args:
      name: a path, or a name to search for.
      folders: the folders to search after the working directory.
    """
    ours = t5x_file(name)
    return name if ours is None or _find_local_file(name, ["", *folders]) else ours


def find_installed_file(name: str) -> pathlib.Path | None:
    """Returns the installed gin file of a name; None if no folder of installed files has it."""
    pure = pathlib.PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "://" in name or "\0" in name:
        return None
    return _find_local_file(name, search_path())


def resolved_names(gin_files: Sequence[str], location_prefixes: Sequence[str]) -> list[str]:
    """Returns the gin files to read.

    If a file is not found, and this project has a file that replaces the T5X file of that name
    (`t5x_file`), the name is replaced by the name of this project's file. If
    `operative_config.t0.gin` exists next to an `operative_config.gin`, and is not in `gin_files`
    already, it is inserted after `operative_config.gin`.

    Args:
      gin_files: paths, or names to search for.
      location_prefixes: folders to search before this project's folder.
    """
    folders = ["", *search_path(location_prefixes)]
    names = []
    for name in gin_files:
        names.append(local_name(name, folders))
        folder, base = posixpath.split(name)
        companion_file = posixpath.join(folder, OURS) if base == FILE else None
        # Look for `name` before the companion file. If both files are forbidden or unreachable, the
        # error should name the file that the user gave.
        is_new_companion = companion_file and companion_file not in gin_files
        if is_new_companion and _is_found(name, folders) and _is_found(companion_file, folders):
            names.append(companion_file)
    return names


def _find_local_file(name: str, folders: Sequence[str]) -> pathlib.Path | None:
    return next((path for f in folders if (path := pathlib.Path(f, name)).is_file()), None)


def _is_found(name: str, folders: Sequence[str]) -> bool:
    """Returns whether gin can find a file. For gs:// files, TensorFlow must be imported."""
    from t0.compat import gin_config

    prefixes = ["", *folders] if "://" not in name else [""]
    paths = (os.path.join(folder, name) for folder in prefixes)  # noqa: PTH118
    with quiet_search():
        return any(readable(path) for path in paths for _, readable in gin_config._FILE_READERS)


def in_order(gin_files: Sequence[str]) -> list[str]:
    """Returns the files in the order in which they are read: model files before run files.

    For example, the dropout rate of `runs/finetune.gin` takes effect even if the command line names
    `models/t5.1.1.small.gin` after `runs/finetune.gin`. Files of other kinds keep their order.

    >>> in_order(["runs/finetune.gin", "models/t5.1.1.small.gin", "mine.gin"])
    ['models/t5.1.1.small.gin', 'runs/finetune.gin', 'mine.gin']
    """
    runs = [index for index, name in enumerate(gin_files) if _is_run(name)]
    if not runs:
        return list(gin_files)
    before, after = list(gin_files[: runs[0]]), list(gin_files[runs[0] :])
    return before + sorted(after, key=lambda name: not _is_model(name))


def slice_of_header(gin_files: Sequence[str], location_prefixes: Sequence[str]) -> str | None:
    """Returns the mesh file that a comment in a gin file suggests, or None.

    Args:
      gin_files: the names of the files on a command line. Only local files are read.
      location_prefixes: folders to search before this project's folder.

    Returns:
      the name of a mesh file, such as "mesh/v3-512.gin", which stands for a TPU slice. None if no
      file suggests a mesh file, or if a file sets `tpu_topology` itself.
    """
    mesh_file = None
    folders = ["", *search_path(location_prefixes)]
    for name in gin_files:
        path = _find_local_file(name, folders)
        text = read_bytes(path).decode("utf-8", "replace") if path else ""
        if re.search(r"^[^#]*tpu_topology", text, re.MULTILINE):
            return None
        suggested = re.search(r"^#.*--gin_file=(mesh/v\d+-\d+\.gin)", text, re.MULTILINE)
        mesh_file = mesh_file or (suggested and suggested[1])
    return mesh_file


def _is_run(name: str) -> bool:
    return name.split("/")[-2:-1] == ["runs"] and name.split("/")[-1] in RUN_FILES


def _is_model(name: str) -> bool:
    return name.split("/")[-2:-1] == ["models"] or name.endswith((FILE, OURS))


@contextlib.contextmanager
def quiet_search() -> Iterator[None]:
    """Silences gin's warnings that a file is missing in a folder of the search path."""
    logger = logging.getLogger()
    search_filter = _SearchWarningFilter()
    logger.addFilter(search_filter)
    try:
        yield
    finally:
        logger.removeFilter(search_filter)


class _SearchWarningFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Path not found")
