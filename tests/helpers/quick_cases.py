"""Chooses the case of a test that runs by default; the others of the same kind are slow.

@pytest.mark.parametrize("layout", one_quick(LAYOUTS))
def test_layout_equals_seqio(layout): ...
"""

import pytest


def one_quick(cases):
    """Returns the first of the cases, and the others marked as slow."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]
