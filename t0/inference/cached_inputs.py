"""Reads a task's inference inputs from the files of its cache, without TensorFlow.

    source = open_cache("qa", "test", files, total=277, vocabularies=(tokens, tokens))
    next(source.read(0, 1))                 # InferenceExample(0, "Who wrote it?", None, [363, ...])

The examples have the same order and the same numbers as with SeqIO. In a task with instructions, a
record may have several demonstrations and several outputs. The input of the example contains only
the demonstrations that fit into the length limit. Its target is the first output.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t0.caching.row_numbers import ROW
from t0.config.specification import EosSpec, InstructionSpec
from t0.errors import UserError
from t0.feeding import cached_examples, pretraining
from t0.feeding.random_access import interleave_blocks, rows_as_read
from t0.feeding.token_files import Ragged, ids_of, record_batches, texts_of
from t0.inference.inputs import FIELDS, InferenceExample, InputSource, answer_choices_error

_TEXTS = tuple(f"{name}_pretokenized" for name in FIELDS)
_CHOICES = "is_correct"
_PARTS = "part_bytes"
_INSTRUCTION_TEXTS = ("inputs_pretokenized", "outputs_pretokenized")


def open_cache(
    task: str,
    split: str,
    files: Sequence[str],
    *,
    total: int | None,
    vocabularies: tuple[Any, Any],
    spec: InstructionSpec | None = None,
    eos: EosSpec | None = None,
    hides_targets: bool = False,
) -> InputSource:
    """Returns the source of the examples in a task's cached split.

    Args:
      task: the task's name.
      split: the split's name.
      files: the split's TFRecord files.
      total: the number of examples in the split; None if it is unknown.
      vocabularies: the vocabularies of inputs and targets. They decode the ids of a record that has
        no text.
      spec: for a task with instructions, the specification of how its inputs are made; None for
        other tasks.
      eos: the EOS that is appended to the records; None if they have it.
      hides_targets: whether to omit the targets, because the labels of the split are withheld.

    Raises:
      UserError: if a file is unreadable or damaged, or if the task is for rank evaluation. The
        error is raised while the examples are read.
    """

    def read(shard: int, shards: int) -> Iterator[InferenceExample]:
        streams = (_records(task, file, spec, eos) for file in files)
        for number, (inputs, texts) in enumerate(interleave_blocks(streams)):
            if number % shards == shard:
                texts_shown = [
                    _text(*arguments) for arguments in zip(inputs, texts, vocabularies, strict=True)
                ]
                shown = None if hides_targets else texts_shown[1]
                yield InferenceExample(number, texts_shown[0] or "", shown, inputs[0] or [])

    rows = rows_as_read(files)
    facts = {"task": task, "split": split} | ({"numbered_by": ROW} if rows else {})
    return InputSource(task, total, facts, read, rows=rows)


_Record = tuple[list[list[int] | None], list[bytes | None]]


def _records(
    task: str, file: str, spec: InstructionSpec | None, eos: EosSpec | None
) -> Iterator[_Record]:
    """Yields the ids and texts of the inputs and targets in each record."""
    for records in record_batches(file):
        try:
            if spec is not None:
                ids, texts = _decode_instructions(records, spec)
            else:
                ids = cached_examples.append_eos(ids_of(records, (*FIELDS, _CHOICES)), eos)
                texts = [*texts_of(records, _TEXTS).values()]
        except ValueError as error:
            raise UserError(f"{file} cannot be read: {error}") from error
        if spec is None and len(ids[_CHOICES].values):
            raise answer_choices_error(task)
        for row in range(len(records)):
            yield [_ids(ids[name], row) for name in FIELDS], [column[row] for column in texts]


def _decode_instructions(
    records: list[bytes], spec: InstructionSpec
) -> tuple[dict[str, Ragged], list[list[bytes | None]]]:
    """Returns the ids and texts of the inputs and targets in a record with instructions.

    Raises:
      ValueError: if the record does not belong to a task with instructions.
    """
    ids = ids_of(records, (*cached_examples.INSTRUCTION_FEATURES, _PARTS))
    texts, outputs = texts_of(records, _INSTRUCTION_TEXTS).values()
    inputs, fits = cached_examples.join_parts(ids, spec)
    sizes = cached_examples.part_sizes(ids[_PARTS], spec)
    if sizes.shape != fits.shape:
        raise ValueError("the parts of a record's text are not those of its inputs")
    shown = [
        None if text is None else _select_slices(text, of_text, part_fits)
        for text, of_text, part_fits in zip(texts, sizes, fits, strict=True)
    ]
    sequences = {"inputs": inputs, "targets": cached_examples.draw_outputs(ids, None)}
    ended = {name: pretraining.append_eos(sequences[name], spec.eos[name], None) for name in FIELDS}
    return ended, [shown, outputs]


def _select_slices(text: bytes, sizes: np.ndarray, fits: np.ndarray) -> bytes:
    """Removes the parts of a text whose `fits` is false; `sizes` are the parts' sizes in bytes."""
    ends = np.cumsum(sizes)
    bounds = zip((ends - sizes)[fits].tolist(), ends[fits].tolist(), strict=True)
    return b"".join(text[start:end] for start, end in bounds)


def _ids(column: Ragged, row: int) -> list[int] | None:
    return column.sequence(row).tolist() or None


def _text(ids: list[int] | None, text: bytes | None, vocabulary: Any) -> str | None:
    if text is not None:
        return text.decode("utf-8", "replace")
    return None if ids is None else vocabulary.decode(ids)
