"""Defines the interface that each checkpoint format implements to read and write checkpoints.

A `CheckpointSource` reads a checkpoint in any format. A `CheckpointTarget` writes a checkpoint:

    source = open_source("/models/tiny")              # `conversion`
    target = MtfTarget(folder, plan)                  # a class of `mtf`, `hugging_face` or `t5x`
    for name in plan.entries:
        target.write(name, source.load(name))
    target.finish()

Both classes use canonical names of tensors, which are Mesh TensorFlow's names, and Mesh
TensorFlow's orientation of matrices. Each format transposes and splits arrays itself.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
import xxhash

from t0.checkpoints import names
from t0.checkpoints.shape import Shape, check_slots, listed, read_shape, shown
from t0.config.model_spec import ModelShape
from t0.errors import UserError

FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16}
# The dtypes that can be read. Some formats cannot store float16. `convert` changes it to float32
# only if the user asks for it.
_READABLE = {FLOAT32, BFLOAT16, np.dtype(np.float16)}
ACTIVATIONS = ("relu", "gelu", "silu")
_LARGEST_STEP = 2**31 - 1  # T5X stores the step as int32
_PIECE_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """The shape, dtype and name of a tensor that can be loaded or will be written.

    Attributes:
      shape: its shape in canonical orientation.
      dtype: its dtype.
      native: its name in the file, for tables and messages.
    """

    shape: Shape
    dtype: np.dtype
    native: str = ""

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
        return nbytes_of(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class CheckpointFacts:
    """Facts that a checkpoint stores in addition to its tensors. A missing fact is None.

    Attributes:
      step: the training step.
      activation: the activation of the feed-forward layers, one of `ACTIVATIONS`.
      dropout_rate: the dropout rate for fine-tuning.
      model_type: the model type in a Hugging Face config.
      legacy_norms: whether the norms have the names of Mesh TensorFlow's legacy layer stack.
      tokenizer: the path of the SentencePiece model next to the tensors, or of a `tokenizer.json`
        that can be converted to a SentencePiece model; see `tokenizer.model_bytes`.
      tokenizer_fault: the reason why the tokenizer next to the tensors cannot be read; "" if there
        is no problem.
    """

    step: int | None = None
    activation: str | None = None
    dropout_rate: float | None = None
    model_type: str | None = None
    legacy_norms: bool = False
    tokenizer: Path | None = None
    tokenizer_fault: str = ""


def nbytes_of(shape: Shape, dtype: np.dtype) -> int:
    """Returns the size of an array in bytes."""
    return math.prod(shape) * dtype.itemsize


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the bytes of a contiguous array as flat uint8 views of at most 16 MiB."""
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _PIECE_BYTES):
        yield flat[start : start + _PIECE_BYTES]


def read_into(file: BinaryIO, array: np.ndarray, path: Path) -> None:
    """Fills a contiguous array from the current position of a file.

    Args:
      file: the open file.
      array: the array, of any dtype.
      path: the file's path, for the message.

    Raises:
      UserError: if the file ends before the array is full.
    """
    for piece in pieces(array):
        view, done = memoryview(piece), 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise UserError(f"{path} is truncated: it ends within a tensor. Copy it again")
            done += count


def flat_bytes(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of an array as a flat uint8 array; copies only if it must."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def checksum(array: np.ndarray) -> str:
    """Returns the XXH3 hash of an array's bytes as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(flat_bytes(array).data)


def checked_step(value: Any, where: str) -> int:
    """Validates a step that was read from a file.

    Raises:
      UserError: if it is not an integer from 0 to 2**31 - 1.
    """
    if type(value) is not int or not 0 <= value <= _LARGEST_STEP:
        raise UserError(f"{where} has step {shown(value)}; expected 0 to {_LARGEST_STEP:,}")
    return value


def checked_rate(value: Any, where: str) -> float | None:
    """Checks and returns a dropout rate that was read from a file, which may be None.

    Raises:
      UserError: if it is not a number in [0, 1).
    """
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise UserError(f"{where} says dropout_rate = {shown(value)}; expected a number in [0, 1)")
    return float(value)


class CheckpointSource:
    """A checkpoint to read.

    Attributes:
      kind: "mtf", "hf", "t5x", "torch" or "adapter".
      path: the path that was opened, for messages.
      entries: canonical name -> entry, in the order in which reading is fastest. Parameters come
        before slots.
      facts: the checkpoint's settings.
      unused: (name in the file, reason) of each tensor that is left out, such as copies of a tied
        embedding.
      model: the model's shape.
    """

    kind: str

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: dict[str, TensorEntry] = {}
        self.facts = CheckpointFacts()
        self.unused: list[tuple[str, str]] = []
        self.model: ModelShape

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name, in canonical orientation."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the files, if a format keeps files open."""

    @property
    def parameters(self) -> dict[str, TensorEntry]:
        """The entries without the optimizer's slots."""
        return {n: e for n, e in self.entries.items() if names.split_slot(n)[1] is None}

    def check(self, unknown: list[str]) -> None:
        """Infers the model's shape, and checks that every tensor is known and fits.

        Args:
          unknown: names in the file that match no row of the table `names.ROWS`.

        Raises:
          UserError: if tensors are unknown or do not fit. The message names these tensors.
        """
        if unknown:
            raise UserError(
                f"{self.path}: {len(unknown):,} tensors are unknown; it is not a T5, or it is a "
                f"variant that is not supported:{listed(sorted(unknown))}"
            )
        odd = [
            f"{e.native or n} {e.dtype}"
            for n, e in self.entries.items()
            if e.dtype not in _READABLE
        ]
        if odd:
            raise UserError(
                f"{self.path}: tensors have a dtype that weights cannot have:{listed(odd)}"
            )
        shapes = {name: entry.shape for name, entry in self.entries.items()}
        parameters = {name: shapes[name] for name in self.parameters}
        self.model = read_shape(parameters, where=self.path)
        slots = {name: shape for name, shape in shapes.items() if name not in parameters}
        check_slots(parameters, slots, self.path)


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
    """The options of a conversion.

    Attributes:
      step: the step to open in the source. If the source has no step, the step to write.
      dtype: "float32" or "bfloat16" for the parameters; None keeps each tensor's dtype.
      tokenizer: the SentencePiece model to copy next to the tensors; by default the source's.
      default_tokenizer: the SentencePiece model to copy into a Hugging Face folder if there is no
        other, and if the number of its ids fits the embedding.
      vocabulary_rows: the target's number of embeddings. Rows that are added are copies of the
        padding token's row.
      activation: the activation of the feed-forward layers, which is needed if the source does not
        name it.
      drop_slots: whether to leave out the optimizer's state.
      scan_layers: whether to stack layers in one array (only for T5X).
      shard_bytes: the maximum size of a file in bytes (only for Hugging Face).
      model_card: the text of README.md; "" for none (only for Hugging Face).
    """

    step: int | None = None
    dtype: str | None = None
    tokenizer: Path | None = None
    default_tokenizer: Path | None = None
    vocabulary_rows: int | None = None
    activation: str | None = None
    drop_slots: bool = False
    scan_layers: bool = False
    shard_bytes: int = 5 * 10**9
    model_card: str = ""


@dataclasses.dataclass(frozen=True)
class TargetPlan:
    """The plan of a checkpoint that will be written.

    Attributes:
      model: the model's shape.
      entries: canonical name -> entry of each tensor to write.
      facts: the facts to write; step and activation are never None.
      options: the options of the conversion.
      source: the format and the name of the source, for the gin file.
    """

    model: ModelShape
    entries: Mapping[str, TensorEntry]
    facts: CheckpointFacts
    options: ConversionOptions
    source: str

    @property
    def nbytes(self) -> int:
        """The size of the tensors in bytes."""
        return sum(entry.nbytes for entry in self.entries.values())


class CheckpointTarget:
    """Writes a checkpoint into an empty folder; the checkpoint is incomplete until `finish`.

    Args:
      folder: the empty folder.
      plan: the plan of the checkpoint.

    Attributes:
      title: the format's name in messages.
      last: the pattern of the name of the last file, which completes a checkpoint.
    """

    title: str
    last: str

    def __init__(self, folder: Path, plan: TargetPlan) -> None:
        self.folder, self.plan = folder, plan

    @staticmethod
    def adapt_plan(plan: TargetPlan) -> TargetPlan:
        """Returns the plan, adjusted to the format.

        Raises:
          UserError: if the format cannot store the planned checkpoint.
        """
        raise NotImplementedError

    def write(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor by canonical name, in canonical orientation."""
        raise NotImplementedError

    def finish(self) -> None:
        """Writes the last files, which complete the checkpoint."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the files, even if the checkpoint is not finished."""


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object, indented."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
