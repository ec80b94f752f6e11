"""Records the inputs of a task's cache, and compares them with the inputs on this machine.

    recorded = provenance(task, ["train"], ["my_tasks"])
    # {"format": 4, "prompt": {"jinja": ...}, "data": {"train": "9f86..."},
    #  "vocabulary": {"inputs": "3c9d..."}, "modules": {"my_tasks": "e3b0..."}, "named_files": []}
    changes(recorded, task)         # ["the data of split 'train': /data/toy/train.jsonl"]

The record is a file next to `COMPLETED`. It contains no paths, no file times and no version of this
project. So a cache stays valid if it is copied, or if this project is upgraded. Only files on this
machine are compared. If a file was not on the machine that wrote the record, its value in the
record is None or missing.

A prompted task with T0's own steps depends on its prompt, its data and its vocabulary. Every other
task also depends on the user's own modules. These are the modules that registered the tasks, the
modules to which its steps refer, and all modules that these modules import. Files to which the
steps refer also count as data. To find such modules and files, `CodeWalk` follows the values that
are bound to the steps: the arguments of `functools.partial`, the closures of functions, the texts
in the global variables that functions use, and the attributes of objects. It interprets texts as
paths of local files. It does not follow the code of installed packages.
"""

import contextlib
import dataclasses
import functools
import glob
import hashlib
import inspect
import itertools
import os
import posixpath
import site
import stat
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from t0.caching.cache_files import PROVENANCE, read_provenance
from t0.catalogue.prompted_task import FewShotForm
from t0.catalogue.sentence_pieces import model_digest
from t0.compat import seqio
from t0.errors import UserError
from t0.files import paths
from t0.prompts import text_fields
from t0.tasks import PromptedSource
from t0.tasks.prompted_tasks import form_of
from t0.tasks.recipe_tasks import TextSource

# Increase this number if a new version of this project makes different records from the same
# prompts, data and vocabulary.
RECORD_FORMAT = 4
_OURS = ("t0", "seqio_tasks", "__main__")
# For the user's own prompts, the key that says how missing values are treated. The records of
# earlier versions do not have it.
_MISSING = "missing_values"
# The key of the digest of the split with the exemplars. No split has such a name.
_EXEMPLARS = "(exemplars)"
_INSTALLED = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"))
_LONGEST_PATH = 4096
_FILES_AT_ONCE = 16
_SECTIONS = ("prompt", "data", "vocabulary", "modules", "named_files")

# Name -> (value to compare, phrase for the user if the value differs). An unknown value is None.
_Values = dict[str, tuple[Any, str]]


def provenance(task: seqio.Task, splits: Iterable[str], modules: Sequence[str]) -> dict[str, Any]:
    """Returns the record of the inputs of a task's cache, in a form that JSON can store.

    Args:
      splits: the splits whose data is recorded.
      modules: the names of the modules that registered the tasks.
    """
    walk = _walk(task)
    roots = [module for module in walk.modules if _is_users(module)]
    only_ours = not roots and _is_ours(type(task.source).__module__)
    if not only_ours:
        roots += _imported(modules)
    own_modules = [name for name in _find_own_modules(roots) if not _is_ours(name)]
    sections = {
        name: {key: value for key, (value, _) in values.items()}
        for name, values in _read_sections(task, splits, walk, own_modules).items()
    }
    return {
        "format": RECORD_FORMAT,
        **({_MISSING: "left out"} if _own_prompt(task.source) else {}),
        **sections,
        "named_files": [] if only_ours else list(sections["named_files"].values()),
    }


def _read_sections(
    task: seqio.Task, splits: Iterable[str], walk: "CodeWalk", modules: Iterable[str]
) -> dict[str, _Values]:
    """Returns the inputs of a task on this machine, as a mapping with the keys `_SECTIONS`."""
    vocabularies = {name: feature.vocabulary for name, feature in task.output_features.items()}
    data = {split: _local_files(task.source, split) for split in splits}
    if form := form_of(task.source):
        data[_EXEMPLARS] = _local_files(task.source, form.settings.split)
    code = {name: getattr(sys.modules.get(name), "__file__", None) for name in modules}
    return {
        "prompt": {
            name: (value, f"the prompt's {name}") for name, value in _prompt(task.source).items()
        },
        "data": {
            split: (_digest(files), f"the data of {title}: {_name_files(files)}")
            for split, files in data.items()
            for title in ["the exemplars" if split == _EXEMPLARS else f"split '{split}'"]
        },
        "vocabulary": {
            name: (_vocabulary_digest(value), f"the vocabulary: {_vocabulary_file(value)}")
            for name, value in vocabularies.items()
        },
        "modules": {
            name: (_digest([file]), f"the module {name}: {file}")
            for name, file in code.items()
            if file
        },
        "named_files": {
            str(number): (_digest(_match_files(path)), f"the data: {path}")
            for number, path in enumerate(walk.paths)
        },
    }


def changes_of(task: seqio.Task, directory: str) -> list[str] | None:
    """Returns a phrase for each input that has changed since the cache in a directory was written.

    Returns:
      [] if no input has changed; None if the cache has no record of its inputs.
    """
    try:
        recorded = read_provenance(directory)
    except (OSError, ValueError) as error:
        return [f"{posixpath.join(directory, PROVENANCE)}: damaged: {error}"]
    return None if recorded is None else changes(recorded, task)


def changes(recorded: Mapping[str, Any], task: seqio.Task) -> list[str]:
    """Returns a phrase for each input that has changed since a task was cached.

    Args:
      recorded: the record of the task's cache.
      task: the registered task.
    """
    if recorded["format"] != RECORD_FORMAT:
        return [f"its records have format {recorded['format']}, this version's {RECORD_FORMAT}"]
    before = {name: _read_section(recorded, name) for name in _SECTIONS}
    splits = [split for split in before["data"] if split in (task.splits or ())]
    now = _read_sections(task, splits, _walk(task), before["modules"])
    changed = [phrase for name in _SECTIONS for phrase in _compare(before[name], now[name])]
    if not changed and _MISSING not in recorded and _own_prompt(task.source):
        changed = [*filter(None, (_find_missing(task.source, split) for split in splits))]
    return changed


def _own_prompt(source: seqio.DataSource) -> bool:
    return isinstance(source, PromptedSource) and not source.template.published


def _find_missing(source: PromptedSource, split: str) -> str | None:
    """Returns a phrase if earlier versions made other records from the rows of a local split.

    Earlier versions printed `None` for missing values, and kept blank options and rows without a
    target.
    """
    if not _local_files(source, split):
        return None
    with contextlib.suppress(UserError, OSError):  # the error is reported when the data is read
        for index, row in enumerate(source.open(split).rows()):
            if source.compiled.is_changed_by_missing(row, index):
                return (
                    f"the missing values or blank options in split '{split}', which earlier "
                    f"versions printed, from row {index} on"
                )
    return None


def _read_section(recorded: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = recorded.get(name)
    if isinstance(section, list):
        return {str(number): digest for number, digest in enumerate(section)}
    return section if isinstance(section, dict) else {}


def _compare(before: Mapping[str, Any], now: _Values) -> list[str]:
    """Compares recorded values with the values now; returns the phrase of each changed value.

    If a value is None or missing in `before` or `now`, it is not compared.

    >>> _compare({"a": "1", "b": "1", "c": None}, {"a": ("2", "a is 2"), "c": ("2", "c is 2")})
    ['a is 2']
    """
    changed = [
        phrase
        for name, (value, phrase) in now.items()
        if None not in (value, before.get(name)) and value != before[name]
    ]
    return list(dict.fromkeys(changed))


def identify_data(source: seqio.DataSource, split: str) -> list[Any] | None:
    """Returns the names, sizes and times of the files of a split; None if they are unknown.

    For data from the hub, it only returns the names of the source's shards.
    """
    shards = list(source.list_shards(split))
    files = source.data_files(split) if hasattr(source, "data_files") else shards
    if not files:
        # The shards are numbered files of a hub repository.
        return shards if isinstance(source, TextSource) else None
    try:
        # In parallel, because an object store takes long to answer for each file.
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            return [shards, list(pool.map(_identify_file, map(str, files)))]
    except OSError:
        return None


def _imported(modules: Sequence[str]) -> list[ModuleType]:
    return [sys.modules[name] for name in modules if name in sys.modules]


def _prompt(source: seqio.DataSource) -> dict[str, str]:
    """Returns the template fields that change the rendered texts; {} if there is no template."""
    template = getattr(source, "template", None)
    fields = text_fields(template) if dataclasses.is_dataclass(template) else {}
    if fields and (form := form_of(source)):
        fields = {**fields, "few_shot": few_shot_fields(form)}
    return {name: x if isinstance(x, str) else repr(x) for name, x in fields.items()}


def few_shot_fields(form: FewShotForm) -> list[Any]:
    """Returns the settings of few-shot prompts that change the rendered texts, for JSON."""
    settings = dataclasses.asdict(form.settings)
    del settings["store"], settings["suffix"]
    if not settings["outer_templates"]:
        del settings["outer_templates"]  # as in the caches of earlier versions
    templates = [[*text_fields(template).values(), seed] for template, seed in form.templates]
    return [settings, templates]


def _local_files(source: seqio.DataSource, split: str) -> list[str]:
    """Returns the local files of a split; [] if the source's class is not from this project."""
    if not hasattr(source, "data_files"):
        return []
    try:
        files = [str(path) for path in source.data_files(split)]
    except (UserError, OSError):  # the error is reported when the data is read
        return []
    return [] if any(map(paths.is_remote, files)) else files


def _vocabulary_file(vocabulary: seqio.Vocabulary) -> str | None:
    path = getattr(vocabulary, "sentencepiece_model_file", None)
    candidates = [path] if path else vars(vocabulary).values()
    files = [str(text) for text in candidates if isinstance(text, str | os.PathLike)]
    return next((file for file in files if "://" not in file and os.path.isfile(file)), None)  # noqa: PTH113


def _vocabulary_digest(vocabulary: seqio.Vocabulary) -> str | None:
    path = _vocabulary_file(vocabulary)
    return _model_digest(*_identify_file(path)) if path else None


@functools.cache
def _model_digest(path: str, *_: int) -> str:
    return model_digest(paths.read_bytes(path))


def bound_values(task: seqio.Task) -> list[str]:
    """Returns the texts, numbers and hashes of arrays that are bound to a task's steps."""
    return _walk(task).values


def _walk(task: seqio.Task) -> "CodeWalk":
    walk = CodeWalk()
    # A prompted source is left out: it refers only to its template, which is recorded separately.
    walk.visit((task.preprocessors, None if _prompt(task.source) else task.source))
    return walk


class CodeWalk:
    """Visits the values that are bound to a task's steps.

    Attributes:
      modules: the modules of the visited values, as keys.
      paths: the texts that look like local paths or path patterns, in the order of the walk.
      values: the visited texts and numbers, and hashes of arrays, in the order of the walk.
    """

    def __init__(self) -> None:
        self.modules: dict[ModuleType, None] = {}
        self.paths: list[str] = []
        self.values: list[str] = []
        self._seen: dict[int, Any] = {}

    def visit(self, value: Any) -> None:
        """Visits a value and, recursively, the values that it refers to."""
        if isinstance(value, str | Path | bytes | int | float):
            self.values.append(repr(value))
            is_path = isinstance(value, str | Path) and _looks_like_path(str(value))
            if is_path and str(value) not in self.paths:
                self.paths.append(str(value))
        elif isinstance(value, np.ndarray | np.generic):
            self.values.append(f"{value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}")
        elif id(value) not in self._seen:
            self._seen[id(value)] = value  # keeps the value alive, so no other value gets its id
            for child in self._find_children(value):
                self.visit(child)

    def _find_children(self, value: Any) -> Iterable[Any]:
        if isinstance(value, Mapping):
            return itertools.chain.from_iterable(value.items())
        if isinstance(value, list | tuple):
            return value
        if isinstance(value, Set):  # its order differs between processes
            return sorted(value, key=repr)
        if isinstance(value, ModuleType):
            self.modules[value] = None
            return ()
        if isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        if inspect.ismethod(value):
            return value.__self__, value.__func__
        is_code = inspect.isfunction(value) or isinstance(value, type)
        defined = value if is_code else type(value)
        if module := sys.modules.get(defined.__module__ or ""):
            self.modules[module] = None
        if inspect.isfunction(value):
            # A cell is empty if its variable has no value yet.
            cells = [c.cell_contents for c in value.__closure__ or () if c != types.CellType()]
            texts = _find_texts(value)
            return value.__defaults__, value.__kwdefaults__, cells, vars(value), texts
        is_leaf = isinstance(value, seqio.Vocabulary) or defined.__module__.startswith(
            "tensorflow."
        )
        if is_code or is_leaf:
            return ()
        attributes = dict(sorted(getattr(value, "__dict__", {}).items()))
        return getattr(value, "__wrapped__", None), attributes


def _find_own_modules(roots: Iterable[ModuleType]) -> list[str]:
    """Returns the names of modules and all their imports, except installed packages."""
    names = set()
    queue = list(roots)
    while queue:
        module = queue.pop()
        file = getattr(module, "__file__", None)
        if not file or module.__name__ in names or file.startswith(_INSTALLED):
            continue
        names.add(module.__name__)
        for value in list(vars(module).values()):
            is_module = isinstance(value, ModuleType)
            name = value.__name__ if is_module else getattr(value, "__module__", None)
            if isinstance(name, str) and name in sys.modules:
                queue.append(sys.modules[name])
    return sorted(names)


def _looks_like_path(text: str) -> bool:
    is_path = ("/" in text or "." in text) and "://" not in text
    return is_path and text.isprintable() and len(text) < _LONGEST_PATH


def _find_texts(function: Any) -> list[Any]:
    """Returns the texts, or collections of texts, in the global variables that a function uses.

    For a function of an installed package, it returns [].
    """
    code = [function.__code__]
    for outer in code:
        code += [inner for inner in outer.co_consts if inspect.iscode(inner)]
    if code[0].co_filename.startswith(_INSTALLED):
        return []
    names = dict.fromkeys(name for each in code for name in each.co_names)
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    return [value for value in values if _is_text(value)]


def _is_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_text, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    return isinstance(value, str | Path)


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not _is_ours(module.__name__) and not file.startswith(_INSTALLED)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def _match_files(path: str) -> list[str]:
    """Returns the local files that a path or a pattern names."""
    files = [path] if os.path.isfile(path) else sorted(glob.glob(path))  # noqa: PTH113, PTH207
    return [file for file in files if os.path.isfile(file)]  # noqa: PTH113


def _name_files(files: Sequence[str]) -> str:
    more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    return f"{files[0]}{more}" if files else ""


def _digest(files: Sequence[str]) -> str | None:
    """Returns a checksum of local files' contents; None if there are no files or one is missing."""
    try:
        identities = [_identify_file(file) for file in files]
        # Threads are faster, because hashlib releases Python's global lock for large blocks.
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            digests = list(pool.map(lambda file: _file_digest(*file), identities))
    except OSError:
        return None
    if len(digests) < 2:
        return digests[0] if digests else None
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _identify_file(path: str) -> tuple[str, int, int]:
    """Returns the path, size and time (ns) of a file, which tell whether it has changed.

    Raises:
      OSError: if the file does not exist.
    """
    if paths.is_remote(path):
        return path, *paths.size_and_time(path)
    status = os.stat(path)  # noqa: PTH116
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(path)
    return path, status.st_size, status.st_mtime_ns


@functools.cache
def _file_digest(path: str, *_: int) -> str:
    return paths.sha256(path)
