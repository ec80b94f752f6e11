"""Makes tests of many cases fast: cases as subtests, or one case by default.

    @as_subtests("name, mode", itertools.product(NAMES, MODES))     # cases that take no time
    def test_flag_is_read_or_refused(name, mode): ...

    @pytest.mark.parametrize("layout", one_quick(LAYOUTS))          # cases of one kind that take long
    def test_layout_equals_seqio(layout): ...

A case of `pytest.mark.parametrize` has fixtures of its own, which check that it leaves nothing, and
costs milliseconds. Subtests share those of their test. Their messages and ids are the same.
"""

import functools
import inspect

import pytest


def as_subtests(names, cases, ids=str):
    """Returns a decorator that calls a test for each case, as `pytest.mark.parametrize` would.

    Args:
      names: the names of the parameters of a case, comma-separated.
      cases: the values; tuples if there are several names.
      ids: a function of a value that returns its part of the case's id.
    """
    names, cases = names.replace(",", " ").split(), list(cases)

    def decorate(function):
        @functools.wraps(function)
        def run(subtests, **fixtures):
            assert cases
            for case in cases:
                values = case if len(names) > 1 else [case]
                with subtests.test("-".join(map(ids, values))):
                    function(**dict(zip(names, values, strict=True)), **fixtures)

        parameters = inspect.signature(function).parameters
        own = [parameter for name, parameter in parameters.items() if name not in names]
        needed = inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([needed, *own])
        return run

    return decorate


def one_quick(cases):
    """Returns the first of the cases, and the others marked as slow."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]
