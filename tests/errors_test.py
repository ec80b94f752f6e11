"""Errors in reading become messages that name the file, whatever raised them."""

import zlib

import pytest

from t0.errors import UserError, reading


class Odd(Exception):
    """Stands for the error of a format's library."""


@pytest.mark.parametrize(
    "fault",
    [PermissionError(13, "Permission denied"), EOFError("cut off"), zlib.error("bad"), Odd("odd")],
    ids=lambda fault: type(fault).__name__,
)
def test_a_fault_in_reading_names_the_file_and_its_reason(fault):
    wanted = r"^/data/a\.gz: cannot be read: .*Is it whole"
    with pytest.raises(UserError, match=wanted) as caught, reading("/data/a.gz", Odd):
        raise fault
    assert (getattr(fault, "strerror", None) or str(fault)) in str(caught.value)


def test_another_error_stays_as_it_is():
    with pytest.raises(KeyError), reading("/data/a.gz"):
        raise KeyError("x")
