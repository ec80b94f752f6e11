"""Finds the code and the files that a task's steps refer to.

    walk = CodeWalk()
    walk.describe((task.preprocessors, task.source))     # plain data, equal in every process
    walk.find_own_modules()    # [("my_tasks", "/home/me/my_tasks.py"), ...], imports included
    walk.paths                 # ["/data/lines.txt"]: texts that look like paths

The walk follows the values that are bound to the steps: the arguments of `functools.partial`, the
closures of functions, the texts in the global variables that functions use, and the attributes of
objects. It does not follow the code of installed packages.
"""

import functools
import hashlib
import inspect
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from t0.compat import seqio

INSTALLED = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"))
_SIMPLE = (bool, int, float, str, bytes, type(None), Path)
_LONGEST_PATH = 4096


class CodeWalk:
    """Visits the values that are bound to a task's steps.

    Args:
      roots: modules with which `modules` starts.

    Attributes:
      modules: the modules of the visited values.
      paths: the texts that look like local paths or path patterns, in the order of the walk.
    """

    def __init__(self, roots: Sequence[ModuleType] = ()) -> None:
        self.modules = dict.fromkeys(roots)
        self.paths: list[str] = []
        self._seen: dict[int, Any] = {}

    def describe(self, value: Any) -> Any:
        """Returns a value as plain data, which is the same in every process."""
        if isinstance(value, _SIMPLE):
            if _looks_like_path(value) and str(value) not in self.paths:
                self.paths.append(str(value))
            return repr(value)
        if id(value) in self._seen:
            return "again"
        self._seen[id(value)] = value  # keeps the value alive, so no other value gets its id
        if isinstance(value, Mapping):
            return [[self.describe(key), self.describe(item)] for key, item in value.items()]
        if isinstance(value, Set):
            return sorted(str(self.describe(item)) for item in value)
        if isinstance(value, list | tuple):
            return [self.describe(item) for item in value]
        if isinstance(value, ModuleType):
            self.modules[value] = None
            return value.__name__
        return self._describe_code(value)

    def _describe_code(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return self.describe((value.func, value.args, value.keywords))
        if inspect.ismethod(value):
            return self.describe((value.__self__, value.__func__))
        if inspect.isfunction(value):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            values = (
                value.__defaults__,
                value.__kwdefaults__,
                cells,
                vars(value),
                _find_texts(value),
            )
            return [self._add_module(value), self.describe(values)]
        if isinstance(value, type):
            return self._add_module(value)
        kind = self._add_module(type(value))
        if isinstance(value, np.ndarray | np.generic):
            return [kind, str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest()]
        if isinstance(value, seqio.Vocabulary) and hasattr(value, "sp_model"):
            model = hashlib.sha256(value.sp_model).hexdigest()
            return [kind, model, value.extra_ids, value.eos_id, value.unk_id]
        if kind.startswith("tensorflow."):
            return [kind, repr(value).partition(" at 0x")[0]]
        return [
            kind,
            self.describe(getattr(value, "__wrapped__", None)),
            self.describe(dict(sorted(getattr(value, "__dict__", {}).items()))),
        ]

    def _add_module(self, value: Any) -> str:
        """Adds the module of a function or class to `modules`, and returns its full name."""
        module = sys.modules.get(value.__module__ or "")
        if module:
            self.modules[module] = None
        return f"{value.__module__}.{value.__qualname__}"

    def find_own_modules(self) -> list[tuple[str, str]]:
        """Returns (name, file) of `modules` and all their imports, except installed packages."""
        files: dict[str, str] = {}
        queue = list(self.modules)
        while queue:
            module = queue.pop()
            file = getattr(module, "__file__", None)
            if not file or module.__name__ in files or file.startswith(INSTALLED):
                continue
            files[module.__name__] = file
            for value in list(vars(module).values()):
                name = value.__name__ if isinstance(value, ModuleType) else _module_of(value)
                if name in sys.modules:
                    queue.append(sys.modules[name])
        return sorted(files.items())


def _looks_like_path(value: Any) -> bool:
    if not isinstance(value, str | Path) or not 0 < len(str(value)) < _LONGEST_PATH:
        return False
    text = str(value)
    return ("/" in text or "." in text) and "://" not in text and text.isprintable()


def _find_texts(function: Any) -> list[Any]:
    """Returns the texts, or collections of texts, in the global variables that a function uses.

    For a function of an installed package, it returns [].
    """
    code = [function.__code__]
    for outer in code:
        code += [inner for inner in outer.co_consts if inspect.iscode(inner)]
    if code[0].co_filename.startswith(INSTALLED):
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


def _module_of(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""
