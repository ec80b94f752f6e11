"""What the examples of a task depend on, as plain JSON: data, vocabulary and code.

    fingerprints = Fingerprints(["my_tasks"])
    fingerprints.data(source, "train")  # [["/data/train-0.txt", ...], [[310, 1700000000000], ...]]
    fingerprints.code(task)             # {"bound": [...], "modules": {"my_tasks": "9f86..."}, ...}

A part that a killed run left is taken over if all of this is as it was. Data are identified by the
names, sizes and times of files; for a source that names no files there is no fingerprint (None),
and nothing of it is taken over. Code is identified by the content of every file of the user's, or
of this project, that a task's steps lead to, and by what is bound to them (`functools.partial`, a
function's closure, an object's attributes); installed packages by the versions of those that count.
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
_INSTALLED = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"))
_SIMPLE = (bool, int, float, str, bytes, type(None), Path)
_STATS_AT_ONCE = 16


class Fingerprints:
    """The fingerprints of tasks and sources; looks at each file once."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Prepares.

        Args:
          modules: names of those that registered the tasks, which count for all of them.
        """
        self._roots = [sys.modules[name] for name in modules if name in sys.modules]
        self._status = functools.cache(_status)
        self._digest = functools.cache(_digest)

    def data(self, source: seqio.DataSource, split: str) -> list[Any] | None:
        """Returns what changes with the data of a split, None if that is not known."""
        names: Sequence[Any] = list(source.list_shards(split))
        files = names
        if isinstance(source, TextSource):
            shards = source.texts.shards(split)
            if not all(hasattr(shard, "pieces") for shard in shards):
                return names  # numbered files of a repository on the hub, which is among the bound
            names = [[list(map(str, piece)) for piece in shard.pieces] for shard in shards]
            files = sorted({piece[0] for pieces in names for piece in pieces})
        # A look takes long where files are in an object store.
        with ThreadPoolExecutor(_STATS_AT_ONCE) as pool:
            found = list(pool.map(self._status, files))
        return None if None in found else [names, found]

    def code(self, task: seqio.Task) -> dict[str, Any]:
        """Returns what changes with a task's steps, its source's class and its features."""
        walk = _Walk(self._roots)
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


class _Walk:
    """Goes through what is bound to a task's steps, and notes the modules that it comes by."""

    def __init__(self, roots: Sequence[ModuleType]) -> None:
        self._modules = dict.fromkeys(roots)
        self._seen: dict[int, Any] = {}

    def described(self, value: Any) -> Any:
        """Returns a value as plain data: the same in every process for the same value."""
        if isinstance(value, _SIMPLE):
            return repr(value)
        if id(value) in self._seen:
            return "again"
        self._seen[id(value)] = value  # kept, or another may get its id
        if isinstance(value, Mapping):
            return [[self.described(key), self.described(held)] for key, held in value.items()]
        if isinstance(value, Set):
            return sorted(str(self.described(held)) for held in value)
        if isinstance(value, list | tuple):
            return [self.described(held) for held in value]
        if isinstance(value, ModuleType):
            self._modules[value] = None
            return value.__name__
        return self._code(value)

    def _code(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return self.described((value.func, value.args, value.keywords))
        if inspect.ismethod(value):
            return self.described((value.__self__, value.__func__))
        if inspect.isfunction(value):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            held = (value.__defaults__, value.__kwdefaults__, cells, vars(value))
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
            self._modules[module] = None
        return f"{value.__module__}.{value.__qualname__}"

    def own_modules(self) -> list[tuple[str, str]]:
        """Returns name and file of the modules that are not installed, with those they lead to."""
        found: dict[str, str] = {}
        left = list(self._modules)
        while left:
            module = left.pop()
            file = getattr(module, "__file__", None)
            if not file or module.__name__ in found or file.startswith(_INSTALLED):
                continue
            found[module.__name__] = file
            for value in list(vars(module).values()):
                name = value.__name__ if isinstance(value, ModuleType) else _module_of(value)
                if name in sys.modules:
                    left.append(sys.modules[name])
        return sorted(found.items())


def _module_of(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""
