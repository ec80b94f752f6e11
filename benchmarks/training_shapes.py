"""The batches that `training.py` trains on, by the size of T5 1.1; not a program."""

from typing import NamedTuple


class Shape(NamedTuple):
    """The number of sequences per batch, and the tokens of inputs and targets."""

    rows: int
    inputs: int
    targets: int


SHAPES = {"small": Shape(16, 128, 32), "base": Shape(8, 512, 114)}


def option(words: list[str], name: str, default: str) -> str:
    """Returns the value of NAME=VALUE among a worker's arguments."""
    values = (word.partition("=")[2] for word in words if word.startswith(f"{name}="))
    return next(values, default)
