"""Records the inputs of a task's cache, and compares them with those on this machine.

    recorded = provenance(task, ["train"], ["my_tasks"])
    # {"format": 4, "prompt": {"jinja": ...}, "data": {"train": "9f86..."},
    #  "vocabulary": {"inputs": "3c9d..."}, "modules": {"my_tasks": "e3b0..."}, "named_files": []}
    changes(recorded, task)         # ["the data of split 'train': /data/toy/train.jsonl"]

The record is a file next to `COMPLETED`. It has no paths, times or versions of this project, so a
copied or upgraded cache stays valid. Files that are missing on this machine, or are not local, are
not compared: their entry is None, or absent.

A prompted task with T0's own steps depends on its prompt, its data and its vocabulary. Every other
task also depends on the user's own modules: those that registered the tasks, those that its steps
refer to, and their imports. A file that those steps name (a text in a closure, an argument or a
global variable that is the path of a local file) counts as data.
"""

import dataclasses
import functools
import glob
import hashlib
import importlib.util
import os
import posixpath
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from t0.caching.cache_files import COPIED_BYTES, PROVENANCE, read_provenance
from t0.caching.fingerprint import INSTALLED, Walk
from t0.catalogue.sentence_pieces import model_digest
from t0.compat import seqio
from t0.errors import UserError
from t0.files import paths

# Increase it when this project makes other records from the same prompts, data and vocabulary.
RECORD_FORMAT = 4
_OURS = ("t0", "seqio_tasks", "__main__")
# The fields of a template that no record depends on.
_NOT_PRINTED = (
    "choices_in_prompt",
    "id",
    "metrics",
    "name",
    "original_task",
    "published",
    "reference",
    "where",
)
_DIGESTS_AT_ONCE = 4


def provenance(task: seqio.Task, splits: Iterable[str], modules: Sequence[str]) -> dict[str, Any]:
    """Returns what a task's records are made from, as JSON.

    Args:
      task: the task.
      splits: the splits whose data is recorded.
      modules: the names of the modules that registered the tasks.
    """
    walk = _walk(task)
    roots = [module for module in walk.modules if _is_users(module)]
    only_ours = not roots and _is_ours(type(task.source).__module__)
    if not only_ours:
        roots += [sys.modules[name] for name in modules if name in sys.modules]
    files = {name: file for name, file in Walk(roots).own_modules() if not _is_ours(name)}
    return {
        "format": RECORD_FORMAT,
        "prompt": _prompt(task.source),
        "data": {split: _digest(_data_files(task.source, split)) for split in splits},
        "vocabulary": {
            name: _vocabulary_digest(feature.vocabulary)
            for name, feature in task.output_features.items()
        },
        "modules": {name: _digest([file]) for name, file in files.items()},
        "named_files": [] if only_ours else [_digest(_matches(path)) for path in walk.paths],
    }


def changes_of(task: seqio.Task, directory: str) -> list[str] | None:
    """Returns what changed since the cache in a directory was written, a phrase for each.

    Returns:
      [] if the cache is up to date; None if it has no record to compare with.
    """
    try:
        recorded = read_provenance(directory)
    except (OSError, ValueError) as error:
        return [f"{posixpath.join(directory, PROVENANCE)}: damaged: {error}"]
    return None if recorded is None else changes(recorded, task)


def changes(recorded: Mapping[str, Any], task: seqio.Task) -> list[str]:
    """Returns what changed since a task was cached, a phrase for each; [] if it is up to date.

    Args:
      recorded: the record of the task's cache.
      task: the registered task.
    """
    if recorded["format"] != RECORD_FORMAT:
        return [f"its records have format {recorded['format']}, this version's {RECORD_FORMAT}"]
    splits, before = task.splits or (), {name: _section(recorded, name) for name in _SECTIONS}
    changed = [
        f"the prompt's {name}" for name in _different(before["prompt"], _prompt(task.source))
    ]
    data = {split: _data_files(task.source, split) for split in before["data"] if split in splits}
    now = {split: _digest(files) for split, files in data.items()}
    changed += [
        f"the data of split '{split}': {_named(data[split])}"
        for split in _different(before["data"], now)
    ]
    vocabularies = {name: feature.vocabulary for name, feature in task.output_features.items()}
    now = {name: _vocabulary_digest(value) for name, value in vocabularies.items()}
    of_vocabulary = {
        f"the vocabulary: {_vocabulary_file(vocabularies[name])}"
        for name in _different(before["vocabulary"], now)
    }
    changed += sorted(of_vocabulary)
    return changed + changed_modules(recorded) + _changed_named_files(recorded, task)


def changed_modules(recorded: Mapping[str, Any]) -> list[str]:
    """Returns the modules of a record that changed, a phrase for each; it imports none of them."""
    before = _section(recorded, "modules")
    files = {name: file for name in before if (file := _module_file(name))}
    now = {name: _digest([file]) for name, file in files.items()}
    return [f"the module {name}: {files[name]}" for name in _different(before, now)]


def _module_file(name: str) -> str | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    if not name.isidentifier():  # finding a submodule imports its package
        return None
    spec = importlib.util.find_spec(name)
    return spec.origin if spec and spec.has_location else None


_SECTIONS = ("prompt", "data", "vocabulary")


def _section(recorded: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = recorded.get(name)
    return section if isinstance(section, dict) else {}


def _different(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the names whose digests both have and that differ; None is unknown.

    >>> _different({"a": "1", "b": "1", "c": None, "d": "1"}, {"a": "2", "b": "1", "c": "2"})
    ['a']
    """
    both = [name for name in now if name in before]
    compared = [name for name in both if before[name] is not None and now[name] is not None]
    return [name for name in compared if before[name] != now[name]]


def _changed_named_files(recorded: Mapping[str, Any], task: seqio.Task) -> list[str]:
    digests = recorded.get("named_files")
    if not isinstance(digests, list) or not digests:
        return []
    walk = _walk(task)
    now = {str(number): _digest(_matches(path)) for number, path in enumerate(walk.paths)}
    before = {str(number): digest for number, digest in enumerate(digests)}
    return [f"the data: {walk.paths[int(number)]}" for number in _different(before, now)]


def _prompt(source: seqio.DataSource) -> dict[str, Any]:
    """Returns the fields of a prompted source's template that its texts depend on."""
    template = getattr(source, "template", None)
    if not dataclasses.is_dataclass(template):
        return {}
    fields = {field.name: getattr(template, field.name) for field in dataclasses.fields(template)}
    return {
        name: value if isinstance(value, str) else repr(value)
        for name, value in fields.items()
        if name not in _NOT_PRINTED
    }


def _data_files(source: seqio.DataSource, split: str) -> list[str]:
    """Returns the local files of a split of one of this project's sources; [] for others."""
    if not hasattr(source, "data_files"):
        return []
    try:
        files = [str(path) for path in source.data_files(split)]
    except (UserError, OSError):  # reading the data reports it
        return []
    return [] if any(map(paths.is_remote, files)) else files


def _vocabulary_file(vocabulary: seqio.Vocabulary) -> str | None:
    path = getattr(vocabulary, "sentencepiece_model_file", None)
    candidates = [path] if path else vars(vocabulary).values()
    files = [str(text) for text in candidates if isinstance(text, str | os.PathLike)]
    return next((file for file in files if "://" not in file and os.path.isfile(file)), None)  # noqa: PTH113


def _vocabulary_digest(vocabulary: seqio.Vocabulary) -> str | None:
    path = _vocabulary_file(vocabulary)
    return _model_digest(*_identity(path)) if path else None


@functools.cache
def _model_digest(path: str, *_: int) -> str:
    return model_digest(paths.read_bytes(path))


def _walk(task: seqio.Task) -> Walk:
    walk = Walk()
    # A prompted source refers to its template, which is recorded, and to nothing of the user's.
    walk.described((task.preprocessors, None if _prompt(task.source) else task.source))
    return walk


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not _is_ours(module.__name__) and not file.startswith(INSTALLED)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def _matches(path: str) -> list[str]:
    """Returns the local files that a path or a pattern names."""
    files = [path] if os.path.isfile(path) else sorted(glob.glob(path))  # noqa: PTH113, PTH207
    return [file for file in files if os.path.isfile(file)]  # noqa: PTH113


def _named(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"


def _digest(files: Sequence[str]) -> str | None:
    """Returns a checksum of the bytes of local files, in order; None if one is missing."""
    try:
        identities = [_identity(file) for file in files]
        # Python computes checksums of large blocks without holding its lock.
        with ThreadPoolExecutor(_DIGESTS_AT_ONCE) as pool:
            digests = list(pool.map(lambda file: _file_digest(*file), identities))
    except OSError:
        return None
    if len(digests) < 2:
        return digests[0] if digests else None
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _identity(path: str) -> tuple[str, int, int]:
    """Returns what tells whether this process has read a file already: path, size and time."""
    status = os.stat(path)  # noqa: PTH116
    return path, status.st_size, status.st_mtime_ns


@functools.cache
def _file_digest(path: str, *_: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(COPIED_BYTES):
            digest.update(block)
    return digest.hexdigest()
