"""A catalogue imported afresh, over data folders of the test's choosing; registries as before."""

import contextlib
import importlib
import os
import sys

import pytest


@contextlib.contextmanager
def _imported(*data_dirs):
    from t0 import compat

    compat.apply("seqio")
    import seqio

    registries = (seqio.TaskRegistry._REGISTRY, seqio.MixtureRegistry._REGISTRY)
    before = [dict(registry) for registry in registries]
    modules = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T0_DATA_DIR", os.pathsep.join(map(str, data_dirs)))
        for registry in registries:
            registry.clear()
        for name in modules:
            del sys.modules[name]
        try:
            yield importlib.import_module("t0.seqio_tasks")
        finally:
            for name in [name for name in sys.modules if _is_ours(name)]:
                del sys.modules[name]
            sys.modules.update(modules)
            for registry, content in zip(registries, before, strict=True):
                registry.clear()
                registry.update(content)


def _is_ours(module: str) -> bool:
    doors = ("t0.seqio_tasks", "t0.recipes")
    return module in doors or module.partition(".")[0] == "seqio_tasks"


@pytest.fixture(scope="session")
def imported():
    """`with imported(folder, ...) as door:` imports t0.seqio_tasks with these data folders."""
    return _imported


@pytest.fixture(scope="module")
def catalogue():
    """T0's catalogue alone: no data folder, nothing else registered."""
    with _imported() as door:
        yield door
