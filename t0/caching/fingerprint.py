"""Fingerprints of a task: the data, vocabulary and code that its examples depend on, as JSON.

    fingerprints = Fingerprints(["my_tasks"])
    fingerprints.data(source, "train")  # [["/data/train-0.txt", ...], [[310, 1700000000000], ...]]
    fingerprints.code(task)             # {"bound": [...], "modules": {"my_tasks": "9f86..."}, ...}

A run takes over a part that a killed run left if the fingerprints of both runs are equal. Data is
identified by the names, sizes and times of its files. A source that names no files has no
fingerprint (None), and no part of it is taken over. Code is identified by the content of every file
of the user or of this project that a task's steps refer to, and by the values that are bound to
those steps (`functools.partial`, a function's closure, an object's attributes). Installed packages
are identified by the versions of those in `_PACKAGES`.
"""

import functools
import hashlib
import inspect
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import t0
from t0.compat import seqio, tf
from t0.tasks.recipe_tasks import TextSource

_PACKAGES = ("seqio", "t5", "tensorflow", "tensorflow-text", "tensorflow-datasets", "tfds-nightly")
INSTALLED = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"))
_SIMPLE = (bool, int, float, str, bytes, type(None), Path)
_STATS_AT_ONCE = 16
_LONGEST_PATH = 4096


class Fingerprints:
    """The fingerprints of tasks and sources; it reads each file once."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Remembers the modules.

        Args:
          modules: the names of the modules that registered the tasks, on which every task depends.
        """
        self._roots = [sys.modules[name] for name in modules if name in sys.modules]
        self._status = functools.cache(_status)
        self._digest = functools.cache(_digest)

    def data(self, source: seqio.DataSource, split: str) -> list[Any] | None:
        """Returns the fingerprint of the data of a split, None if the source names no files."""
        names: Sequence[Any] = list(source.list_shards(split))
        files = names
        if isinstance(source, TextSource):
            shards = source.texts.shards(split)
            if not all(hasattr(shard, "pieces") for shard in shards):
                return names  # numbered files of a repository of the hub, which is a bound value
            names = [[list(map(str, piece)) for piece in shard.pieces] for shard in shards]
            files = sorted({piece[0] for pieces in names for piece in pieces})
        # In parallel, because each takes long in an object store.
        with ThreadPoolExecutor(_STATS_AT_ONCE) as pool:
            found = list(pool.map(self._status, files))
        return None if None in found else [names, found]

    def code(self, task: seqio.Task) -> dict[str, Any]:
        """Returns the fingerprint of a task's steps, its source's class and its features."""
        walk = Walk(self._roots)
        bound = walk.described((task.preprocessors, task.source, task.output_features))
        return {
            "bound": bound,
            "modules": {name: self._digest(file) for name, file in walk.own_modules()},
            "packages": {"t0": t0.__version__, **_versions()},
        }


def _status(path: str) -> list[Any] | None:
    try:
        status = tf.io.gfile.stat(path)
    except tf.errors.OpError:
        return None
    return None if status.is_directory else [path, status.length, status.mtime_nsec]


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    have = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    return {name: have[name] for name in _PACKAGES if name in have}


class Walk:
    """Visits the values that are bound to a task's steps, and collects the modules of them."""

    def __init__(self, roots: Sequence[ModuleType] = ()) -> None:
        self.modules = dict.fromkeys(roots)
        self._seen: dict[int, Any] = {}
        # The texts that look like local paths or patterns, in the order of the walk.
        self.paths: list[str] = []

    def described(self, value: Any) -> Any:
        """Returns a value as plain data, which is the same in every process."""
        if isinstance(value, _SIMPLE):
            if _looks_like_path(value) and str(value) not in self.paths:
                self.paths.append(str(value))
            return repr(value)
        if id(value) in self._seen:
            return "again"
        self._seen[id(value)] = value  # the reference keeps the id from being used again
        if isinstance(value, Mapping):
            return [[self.described(key), self.described(held)] for key, held in value.items()]
        if isinstance(value, Set):
            return sorted(str(self.described(held)) for held in value)
        if isinstance(value, list | tuple):
            return [self.described(held) for held in value]
        if isinstance(value, ModuleType):
            self.modules[value] = None
            return value.__name__
        return self._code(value)

    def _code(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return self.described((value.func, value.args, value.keywords))
        if inspect.ismethod(value):
            return self.described((value.__self__, value.__func__))
        if inspect.isfunction(value):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            held = (value.__defaults__, value.__kwdefaults__, cells, vars(value), _texts(value))
            return [self._name(value), self.described(held)]
        if isinstance(value, type):
            return self._name(value)
        kind = self._name(type(value))
        if isinstance(value, np.ndarray | np.generic):
            return [kind, str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest()]
        if isinstance(value, seqio.Vocabulary) and hasattr(value, "sp_model"):
            model = hashlib.sha256(value.sp_model).hexdigest()
            return [kind, model, value.extra_ids, value.eos_id, value.unk_id]
        if kind.startswith("tensorflow."):
            return [kind, repr(value).partition(" at 0x")[0]]
        return [kind, self.described(getattr(value, "__wrapped__", None)), self._state(value)]

    def _state(self, value: Any) -> Any:
        return self.described(dict(sorted(getattr(value, "__dict__", {}).items())))

    def _name(self, value: Any) -> str:
        module = sys.modules.get(value.__module__ or "")
        if module:
            self.modules[module] = None
        return f"{value.__module__}.{value.__qualname__}"

    def own_modules(self) -> list[tuple[str, str]]:
        """Returns (name, file) of the modules that are not installed, and of their imports."""
        found: dict[str, str] = {}
        left = list(self.modules)
        while left:
            module = left.pop()
            file = getattr(module, "__file__", None)
            if not file or module.__name__ in found or file.startswith(INSTALLED):
                continue
            found[module.__name__] = file
            for value in list(vars(module).values()):
                name = value.__name__ if isinstance(value, ModuleType) else _module_of(value)
                if name in sys.modules:
                    left.append(sys.modules[name])
        return sorted(found.items())


def _looks_like_path(value: Any) -> bool:
    if not isinstance(value, str | Path) or not 0 < len(str(value)) < _LONGEST_PATH:
        return False
    text = str(value)
    return ("/" in text or "." in text) and "://" not in text and text.isprintable()


def _texts(function: Any) -> list[Any]:
    """Returns the texts, or collections of them, in the global variables that a function uses.

    Those of installed packages are left out.
    """
    code = [function.__code__]
    for one in code:
        code += [held for held in one.co_consts if inspect.iscode(held)]
    if code[0].co_filename.startswith(INSTALLED):
        return []
    names = dict.fromkeys(name for one in code for name in one.co_names)
    held = [function.__globals__[name] for name in names if name in function.__globals__]
    return [value for value in held if _is_text(value)]


def _is_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_text, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    return isinstance(value, str | Path)


def _module_of(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""
