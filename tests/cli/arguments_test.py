"""Numbers on command lines: Python's spellings are read, other words and numbers are refused."""

import argparse

import pytest

from t0.cli.arguments import Number
from t0.config.plain_data import Count, NotNegative, Positive
from t0.errors import UserError


def parsed(kind, word):
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", action=Number, kind=kind)
    return parser.parse_args([f"--x={word}"]).x


@pytest.mark.parametrize(
    ("kind", "word", "number"),
    [
        (NotNegative, ".5", 0.5),
        (NotNegative, "2", 2.0),
        (NotNegative, "1e-3", 0.001),
        (Count, "1_000", 1000),
        (Count, "007", 7),
        (Count, str(2**62 + 1), 2**62 + 1),
    ],
)
def test_numbers_are_read_in_the_spellings_of_python(kind, word, number):
    value = parsed(kind, word)
    assert value == number and type(value) is type(number)


@pytest.mark.parametrize(
    ("kind", "word", "expected"),
    [
        (Positive, "0", "--x is 0; expected a whole number from 1"),
        (Positive, "1.5", "--x is 1.5; expected a whole number from 1"),
        (Count, "many", "--x is 'many'; expected a whole number from 0"),
        (NotNegative, "nan", "--x is nan; expected a finite number"),
        (NotNegative, "inf", "--x is inf; expected a finite number"),
        (Count, "9" * 5000, "--x is inf; expected a finite number"),
    ],
)
def test_numbers_out_of_range_and_other_words_are_refused(kind, word, expected):
    with pytest.raises(UserError) as caught:
        parsed(kind, word)
    assert str(caught.value) == expected
