"""Mutants are valid Python, differ in one part of one line, and are found in a later version."""

import ast
import difflib

import pytest

from tests.mutations.mutants import mutants_of

SOURCE = '''\
LIMIT = 3


def clip(values, limit=LIMIT):
    """Keeps 3 values."""
    if not values or len(values) <= limit:
        return values
    print("é", f"{len(values) - 1}"); values.sort()
    return values[: limit + 1]
'''


def changes():
    return {(m.line, m.before): m.after for m in mutants_of("t0/clip.py", SOURCE)}


def test_mutants_change_the_parts_of_functions():
    assert changes() == {
        (6, "not values or len(values) <= limit"): "not values and len(values) <= limit",
        (6, "not values"): "values",
        (6, "len(values) <= limit"): "len(values) > limit",
        (7, "return values"): "return None",
        (8, 'print("é", f"{len(values) - 1}")'): "pass",
        (8, "values.sort()"): "pass",
        (9, "return values[: limit + 1]"): "return None",
        (9, "limit + 1"): "limit - 1",
        (9, "1"): "2",
    }


def test_mutants_are_valid_and_change_one_line():
    for mutant in mutants_of("t0/clip.py", SOURCE):
        changed = mutant.applied(SOURCE)
        ast.parse(changed)
        lines = difflib.ndiff(SOURCE.splitlines(), changed.splitlines())
        assert [line[0] for line in lines if line[0] in "+-"] == ["-", "+"]


def test_mutants_are_found_where_their_line_has_moved_to():
    moved = f"import os\n\n{SOURCE}"
    for mutant in mutants_of("t0/clip.py", SOURCE):
        assert mutant.applied(moved) == f"import os\n\n{mutant.applied(SOURCE)}"
    with pytest.raises(ValueError, match="no line 'return values' any more"):
        next(m for m in mutants_of("a.py", SOURCE) if m.line == 7).applied("x = 1\n")
