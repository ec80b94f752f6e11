"""Makes the cases of a test subtests of it, for many cases that take no time each.

    @as_subtests("name, mode", itertools.product(NAMES, MODES))
    def test_flag_is_read_or_refused(name, mode): ...

A case of `pytest.mark.parametrize` has fixtures of its own, which check that it leaves nothing, and
costs milliseconds. Subtests share those of their test. Their messages and ids are the same.
"""

import functools
import inspect


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
