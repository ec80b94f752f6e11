"""What a checkpoint format is to the others: tensors by canonical name, and facts of a model.

A `Source` is a checkpoint in any format, a `Target` one being written:

    source = open_source("/models/tiny")              # `conversion`
    target = MtfTarget(folder, plan)                  # a class of `mtf`, `hugging_face` or `t5x`
    for name in plan.entries:
        target.write(name, source.load(name))
    target.finish()

Arrays are in Mesh TensorFlow's orientation; each format turns and cuts them at its edge.
"""

import abc
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import xxhash

from t0.checkpoints import names
from t0.checkpoints.shape import ModelShape, Shape, check_slots, listed, read_shape, shown
from t0.errors import UserError

FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16}
# What a format may hold and no other format can: float16 is made float32 only when asked to.
_READABLE = {FLOAT32, BFLOAT16, np.dtype(np.float16), np.dtype(np.float64)}
ACTIVATIONS = ("relu", "gelu", "silu")
_LARGEST_JSON_BYTES = 100_000_000
_LARGEST_STEP = 2**31 - 1  # T5X keeps it as int32


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor to come.

    Attributes:
      shape, dtype: in canonical orientation.
      native: its name in the file, for tables and messages.
    """

    shape: Shape
    dtype: np.dtype
    native: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a checkpoint says beside its tensors; None where it says nothing.

    Attributes:
      step: of training.
      activation: of the feed-forward layer, one of `ACTIVATIONS`.
      dropout_rate: for fine-tuning.
      model_type: Hugging Face's, where the source is theirs.
      legacy_norms: whether Mesh TensorFlow's legacy stack named the norms.
      tokenizer: the SentencePiece model beside the tensors.
    """

    step: int | None = None
    activation: str | None = None
    dropout_rate: float | None = None
    model_type: str | None = None
    legacy_norms: bool = False
    tokenizer: Path | None = None


def checksum(array: np.ndarray) -> str:
    """Returns 16 hexadecimal digits for an array's bytes in canonical orientation (XXH3)."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def checked_step(value: Any, where: str) -> int:
    """Returns a step that a file says, if it is one.

    Raises:
      UserError: if it is no whole number from 0 to 2**31 - 1.
    """
    if type(value) is not int or not 0 <= value <= _LARGEST_STEP:
        raise UserError(f"{where} says step {shown(value)}; wanted 0 to {_LARGEST_STEP:,}")
    return value


def checked_rate(value: Any, where: str) -> float | None:
    """Returns a dropout rate that a file says, if it is one; None for none.

    Raises:
      UserError: if it is no number from 0 to 1, 1 left out.
    """
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise UserError(f"{where} says dropout_rate = {shown(value)}; wanted a number in [0, 1)")
    return float(value)


class Source(abc.ABC):
    """A checkpoint to read.

    Attributes:
      kind: "mtf", "hf" or "t5x".
      path: what was opened, for messages.
      entries: parameters, then slots, by canonical name, in the order that reads fastest.
      facts: what the checkpoint says beside its tensors.
      unused: (name in the file, reason) of what is left out, such as tied copies.
      model: the model's shape.
      readers: threads that may load tensors at the same time.
    """

    kind: str
    readers = 1

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.facts = Facts()
        self.unused: list[tuple[str, str]] = []
        self.model: ModelShape

    @abc.abstractmethod
    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name, in canonical orientation."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes what is open."""

    @property
    def parameters(self) -> dict[str, Entry]:
        """The entries that are no slots."""
        return {n: e for n, e in self.entries.items() if names.split_slot(n)[1] is None}

    def check(self, unknown: list[str]) -> None:
        """Reads the model's shape and refuses whatever is not understood.

        Args:
          unknown: names in the file that no row of the table matches.

        Raises:
          UserError: naming them, or what does not fit.
        """
        if unknown:
            raise UserError(
                f"{self.path}: {len(unknown):,} tensors are unknown; it is no T5, or a variant of "
                f"it that is not supported:{listed(sorted(unknown))}"
            )
        odd = [
            f"{e.native or n} {e.dtype}"
            for n, e in self.entries.items()
            if e.dtype not in _READABLE
        ]
        if odd:
            raise UserError(f"{self.path}: tensors of a dtype that no weights have:{listed(odd)}")
        shapes = {name: entry.shape for name, entry in self.entries.items()}
        parameters = {name: shapes[name] for name in self.parameters}
        self.model = read_shape(parameters, where=self.path)
        slots = {name: shape for name, shape in shapes.items() if name not in parameters}
        check_slots(parameters, slots, self.path)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a target will hold.

    Attributes:
      model: the model's shape.
      entries: of the tensors, by canonical name.
      facts: with a step and an activation, both known.
      options: settings of one format; unknown ones were refused before.
    """

    model: ModelShape
    entries: Mapping[str, Entry]
    facts: Facts
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Target(abc.ABC):
    """A checkpoint being written into an empty folder; nothing looks whole before `finish`."""

    @abc.abstractmethod
    def write(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor by canonical name, in canonical orientation."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Writes what makes the checkpoint whole."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes what is open, finished or not."""


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object.

    Raises:
      UserError: if the file holds something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_JSON_BYTES + 1)
        if len(data) > _LARGEST_JSON_BYTES:
            raise ValueError(f"it has more than {_LARGEST_JSON_BYTES:,} bytes")
        value = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON file: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object")
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object, readable."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
