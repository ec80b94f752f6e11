"""The worked examples in module headers call what exists, with arguments that it takes."""

import ast
import builtins
import collections
import functools
import importlib
import importlib.util
import inspect
import textwrap
from pathlib import Path

from tests.helpers.cases import as_subtests

ROOT = Path(__file__).resolve().parents[2]
# The PyTorch engine is imported where PyTorch is: in the section `transformers` of .ci/run.
ENGINE = ROOT / "t0" / "torch"
FILES = sorted(
    path
    for folder in ("t0", "seqio_tasks")
    for path in (ROOT / folder).rglob("*.py")
    if importlib.util.find_spec("torch") or not path.is_relative_to(ENGINE)
)


def statements(header):
    """Yields the statements of the indented lines of a header, as far as they are Python."""
    block: list[str] = []
    for line in [*header.splitlines(), "end"]:
        if line.startswith("    ") or (block and not line.strip()):
            block.append(line)
            continue
        yield from parsed(textwrap.dedent("\n".join(block)))
        block = []


def parsed(code):
    lines = [line.removeprefix(">>> ").removeprefix("... ") for line in code.splitlines()]
    while lines:
        # The longest piece from here on that is Python: a block may hold what a call gives, too.
        for end in range(len(lines), 0, -1):
            try:
                tree = ast.parse("\n".join(lines[:end]))
            except SyntaxError:
                continue
            yield from tree.body
            break
        del lines[: end or 1]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def defined():
    """Name -> what modules of ours define under it, as (module, function or class)."""
    found = collections.defaultdict(list)
    for module in [importlib.import_module(name_of(path)) for path in FILES]:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__:
                found[name].append((module.__name__, value))
    return found


def from_other_modules(name, package):
    """What another module of ours defines under this name, of its own room first; None if none."""
    others = sorted(defined()[name], key=lambda one: not one[0].startswith(f"{package}."))
    return others[0][1] if others else None


class Example(ast.NodeVisitor):
    """Follows the statements of a header: which names are bound, and which calls do not fit."""

    def __init__(self, module):
        self.names = {**vars(builtins), "Path": Path, **vars(module)}
        self.package = package = module.__name__.rpartition(".")[0]
        if package:
            room = vars(importlib.import_module(package))
            self.names = {k: v for k, v in room.items() if not inspect.ismodule(v)} | self.names
        # What an example makes up on its way: a class that it is of, or None if that is not known.
        self.made = {}
        self.wrong = []

    def visit_Assign(self, node):
        self.visit(node.value)
        made = self.value_of(node.value.func) if isinstance(node.value, ast.Call) else None
        for target in node.targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    self.made[name.id] = made if inspect.isclass(made) else None

    def visit_For(self, node):
        self.made |= {n.id: None for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        self.generic_visit(node)

    def visit_comprehension(self, node):
        self.made |= {n.id: None for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        self.generic_visit(node)

    def visit_ListComp(self, node):
        for one in node.generators:
            self.visit(one)
        self.visit(node.elt)

    def visit_Import(self, node):
        self.made |= {(a.asname or a.name).partition(".")[0]: None for a in node.names}

    def visit_ImportFrom(self, node):
        module = importlib.import_module(node.module)
        self.names |= {a.asname or a.name: getattr(module, a.name) for a in node.names}

    def visit_Call(self, node):
        self.generic_visit(node)
        function = self.value_of(node.func)
        if function is None or not callable(function):
            return
        try:
            signature = inspect.signature(function)
        except ValueError:
            return
        if any(isinstance(one, ast.Starred) for one in node.args):
            return
        keywords = {one.arg: None for one in node.keywords if one.arg}
        method = isinstance(node.func, ast.Attribute) and inspect.isfunction(function)
        self_ = [None] if method and self.is_instance(node.func.value) else []
        several = any(one.arg is None for one in node.keywords)  # **arguments may be any of them
        bind = signature.bind_partial if several else signature.bind
        try:
            bind(*self_, *node.args, **keywords)
        except TypeError as error:
            self.wrong.append(f"{ast.unparse(node)}: {error}")

    def is_instance(self, node):
        return isinstance(node, ast.Name) and self.made.get(node.id) is not None

    def named(self, name):
        if name in self.made:
            return self.made[name]
        if name not in self.names:
            self.names[name] = from_other_modules(name, self.package)
        return self.names[name]

    def value_of(self, node):
        """What an expression stands for, None where that is not known."""
        if isinstance(node, ast.Name):
            found = self.named(node.id)
            if found is None and node.id not in self.made:
                self.wrong.append(f"{node.id}: there is none")
            return found
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and self.named(node.value.id) is None:
                return None  # something that the reader has: a row, a batch
            holder = self.value_of(node.value)
            if holder is None:
                return None
            if inspect.ismodule(holder) and not hasattr(holder, node.attr):
                self.wrong.append(f"{ast.unparse(node)}: there is none")
            return getattr(holder, node.attr, None)
        return None


@as_subtests("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_header_examples_call_what_exists(path):
    header = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=True)
    assert header, "a module says what it does"
    example = Example(importlib.import_module(name_of(path)))
    for statement in statements(header):
        example.visit(statement)
    assert not example.wrong, "\n".join(example.wrong)


def test_module_header_wrong_examples_are_found():
    module = importlib.import_module("t0.sources")
    for line in ('open_split("a", "b")', "no_such_function(3)", 'split_sizes("a", what=3)'):
        example = Example(module)
        for statement in statements(f"Says.\n\n    {line}\n"):
            example.visit(statement)
        assert example.wrong, line
