"""The worked examples of the room's headers call what exists, as it is called."""

import ast
import builtins
import doctest
import importlib
import inspect
import textwrap
from pathlib import Path

import pytest

import t0.mesh

MODULES = sorted(path.stem for path in Path(t0.mesh.__file__).parent.glob("[a-z]*.py"))


def example(module):
    """Returns the indented lines of a module's header, without those of doctests."""
    lines = [line for line in module.__doc__.splitlines() if not line or line.startswith("    ")]
    text = textwrap.dedent("\n".join(lines))
    return "" if ">>>" in text else text


@pytest.mark.parametrize("name", MODULES)
def test_header_calls_bind(name):
    module = importlib.import_module(f"t0.mesh.{name}")
    tree = ast.parse(example(module))
    names = {**vars(builtins), **vars(module)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = importlib.import_module(node.module)
            names |= {alias.name: getattr(origin, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id != "print"
        ):
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            inspect.signature(names[node.func.id]).bind(*node.args, **keywords)


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    found = doctest.testmod(importlib.import_module(f"t0.mesh.{name}"))
    assert not found.failed


def test_the_rooms_header_names_every_module():
    listed = [line.split()[0] for line in t0.mesh.__doc__.splitlines() if line.startswith("    ")]
    assert sorted(listed) == MODULES
