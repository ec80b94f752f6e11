"""Freed memory is kept for what is allocated next, unless the environment says how to allocate."""

import subprocess
import sys

import pytest

from t0.training import free_memory

# Prints the pages that the kernel gives to a large block, the first and the second time.
PAGES = """
import resource
from t0.training import free_memory

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x" * 2**26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if {kept}:
    assert free_memory.keep_freed({{}})
print(pages(), pages())
"""
FEW = 100


def pages(kept):
    done = subprocess.run(
        [sys.executable, "-c", PAGES.format(kept=kept)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages of Linux")
def test_freed_memory_is_allocated_again():
    first, second = pages(kept=True)
    assert second < FEW < first


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages of Linux")
def test_by_itself_the_c_library_returns_it():
    assert min(pages(kept=False)) > FEW


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_a_user_who_sets_how_memory_is_allocated_is_left_alone(name):
    assert not free_memory.keep_freed({name: "1"})
