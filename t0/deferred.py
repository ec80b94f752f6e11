"""Modules of other packages that are loaded when they are first used, not when they are imported.

    defer({"scipy.stats": ()})
    import scipy.stats                   # finds the module, and does not run it
    scipy.stats.pearsonr([1, 2], [2, 3])  # runs it, then calls its function

Packages import modules that few of their functions use; running these takes half of the time of
importing T5. `importlib.util.LazyLoader` does the same, but until Python 3.12 a second
thread sees a module that the first one is still running, and it cannot defer a package whose
modules are imported.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import pkgutil
import sys
import threading
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Union


def defer(modules: Mapping[str, Collection[str]]) -> None:
    """Has modules that are imported from now on loaded at their first use.

    A module that has been imported already stays as it is. One that cannot be found still fails
    where it is imported; one that fails as it runs does so at its first use.

    Args:
      modules: full name of a module, such as "sklearn.metrics" -> its functions and classes that
        importers look up, to keep them or to annotate with them; looking one up is no use yet. What
        is looked up can be called, subclassed and asked whether something is an instance of it.
    """
    sys.meta_path.insert(0, _Finder(modules))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, modules: Mapping[str, Collection[str]]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns where a deferred module is, with a loader that does not run it yet."""
        if name in self._modules:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._modules[name])
            return spec
        package = sys.modules.get(name.rpartition(".")[0])
        if type(package) is not _Deferred:
            return None
        # A module's package runs before it, and may import it meanwhile.
        _run(package)
        found = sys.modules.get(name)
        if found is None:
            return None
        # The import system takes the spec of a module that is there by now, and would run it again.
        found.__spec__ = importlib.machinery.ModuleSpec(name, _Imported(found))
        return found.__spec__


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, names: Collection[str]) -> None:
        self._loader, self._names = loader, names

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Returns a new module, as the module's own loader makes it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leaves the module's code for its first use."""
        module.__loader__ = module.__spec__.loader = self._loader
        module.__spec__.loader_state = _State(threading.RLock(), frozenset(self._names))
        module.__class__ = _Deferred


class _Imported(importlib.abc.Loader):
    """The loader of a module that is there already."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Returns the module."""
        del spec
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        """Gives the module its own spec back."""
        module.__spec__ = self._spec


class _State(NamedTuple):
    lock: threading.RLock
    names: frozenset[str]


class _Deferred(types.ModuleType):
    """A module whose code runs when an attribute is first read that it does not have before.

    Before, it has what the import system gives it, and those of its modules that are imported.
    """

    def __getattribute__(self, name: str) -> Any:
        read = functools.partial(types.ModuleType.__getattribute__, self)
        spec = read("__spec__")
        if not _running(spec):
            with contextlib.suppress(AttributeError):
                return read(name)
            if name == "__path__":  # `from a import b` asks whether a is a package
                raise AttributeError(name)
            if name in spec.loader_state.names:
                return _LookedUp(self, name)
        _run(self)
        return types.ModuleType.__getattribute__(self, name)  # its class is another one by now


class _LookedUp:
    """A function or class of a module that may not have run yet; at its first use it runs."""

    def __init__(self, module: types.ModuleType, name: str) -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        _run(self._module)
        return getattr(self._module, self._name)

    def __call__(self, *args: Any, **given: Any) -> Any:
        return self._found()(*args, **given)

    def __getattr__(self, name: str) -> Any:
        if name == "__parameters__" or name.startswith("__typing_"):  # asked of an annotation
            raise AttributeError(name)
        return getattr(self._found(), name)

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007 (would come back here)

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        self._found()
        return pkgutil.resolve_name, (f"{self._module.__name__}:{self._name}",)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._found(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._found())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._found())


def _running(spec: importlib.machinery.ModuleSpec) -> bool:
    return getattr(spec, "_initializing", False)  # importlib's own mark


def _run(module: types.ModuleType) -> None:
    """Runs a module's code, once, after its package's; other threads wait until it has run."""
    content: dict[str, Any] = types.ModuleType.__getattribute__(module, "__dict__")
    spec = content["__spec__"]
    package = sys.modules.get(spec.name.rpartition(".")[0])
    if type(package) is _Deferred:
        _run(package)
    with spec.loader_state.lock:
        # Another thread has run it meanwhile, or it reads itself while it runs.
        if type(module) is not _Deferred or _running(spec):
            return
        before = dict(content)
        spec._initializing = True
        try:
            spec.loader.exec_module(module)
        except BaseException:
            content.clear()
            content.update(before)
            raise
        finally:
            spec._initializing = False
        module.__class__ = types.ModuleType
