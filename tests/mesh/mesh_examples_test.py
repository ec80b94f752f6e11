"""The doctests of the room hold, and its header lists its modules."""

import doctest
import importlib
from pathlib import Path

import pytest

import t0.mesh

MODULES = sorted(path.stem for path in Path(t0.mesh.__file__).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_mesh_doctests_pass(name):
    found = doctest.testmod(importlib.import_module(f"t0.mesh.{name}"))
    assert not found.failed


def test_mesh_package_docstring_names_every_module():
    listed = [line.split()[0] for line in t0.mesh.__doc__.splitlines() if line.startswith("    ")]
    assert sorted(listed) == MODULES
