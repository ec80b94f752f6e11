"""Garbage collection is off while packages are imported, and then passes over them in a command."""

import gc
import subprocess
import sys

import pytest

from t0 import garbage


def printed(program):
    """What a Python process of its own prints."""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return done.stdout.decode().split()


def test_collection_is_on_again_after_the_outermost_block():
    assert gc.isenabled()
    with garbage.collection_off():
        with garbage.collection_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_is_on_again_after_an_error():
    with pytest.raises(KeyError), garbage.collection_off():
        raise KeyError("x")
    assert gc.isenabled()


def test_collection_that_was_off_stays_off():
    gc.disable()
    try:
        with garbage.collection_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


# A door whose import notes whether collection is on.
IMPORT = """
import gc
from t0 import compat, errors
compat.DOORS["x"] = "json.tool"
states = []
compat.apply = lambda package: states.append(gc.isenabled())
"""


def test_a_door_imports_without_collections_and_a_notebook_keeps_its_garbage():
    program = f"{IMPORT}\ncompat.x\nprint(states, gc.isenabled(), gc.get_freeze_count())"
    assert printed(program) == ["[False]", "True", "0"]


def test_a_command_passes_over_what_it_imported():
    program = (
        f"{IMPORT}\nwith errors.reported('x'):\n    compat.x\n"
        "print(states, gc.isenabled(), gc.get_freeze_count() > 1000)"
    )
    assert printed(program) == ["[False]", "True", "True"]


def test_a_command_ends_without_a_search_of_its_objects():
    # Functions that are called at the end are called in the reverse order: this one comes last.
    program = """
import atexit, gc
from t0 import errors
atexit.register(lambda: print(gc.get_freeze_count() > 1000))
for _ in range(2):
    with errors.reported("x"):
        print(gc.get_freeze_count() > 1000)
"""
    assert printed(program) == ["False", "False", "True"]
