"""Reads inference's inputs of a task from its cache's files, without TensorFlow.

    source = of_cache("qa", "test", files, total=277, vocabularies=(tokens, tokens))
    next(source.read(0, 1))                 # InferenceExample(0, "Who wrote it?", None, [363, ...])

The examples have the order, and so the numbers, that SeqIO gives them.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from t0.errors import UserError
from t0.feeding.token_files import Ragged, ids_of, record_batches, texts_of
from t0.inference.inputs import FIELDS, InferenceExample, InputSource, answer_choices

_T = TypeVar("_T")

# How many files SeqIO has open at once, and how many records of each it reads at a time.
_OPEN, _BLOCK = 16, 16
_TEXTS = tuple(f"{name}_pretokenized" for name in FIELDS)
_CHOICES = "is_correct"


def of_cache(
    task: str,
    split: str,
    files: Sequence[str],
    *,
    total: int | None,
    vocabularies: tuple[Any, Any],
) -> InputSource:
    """Returns the examples of a task's cached split.

    Args:
      task: the task's name.
      split: the split's name.
      files: its TFRecord files.
      total: the number of its examples, None if it is not known.
      vocabularies: of inputs and targets; `decode` makes the text of a record that has none.

    Raises:
      UserError: while it is read, if a file cannot be read or is damaged, or the task is one for
        rank evaluation.
    """

    def read(shard: int, shards: int) -> Iterator[InferenceExample]:
        streams = (_records(task, file) for file in files)
        for number, (inputs, texts) in enumerate(in_blocks(streams)):
            if number % shards == shard:
                found = [_text(*one) for one in zip(inputs, texts, vocabularies, strict=True)]
                yield InferenceExample(number, found[0] or "", found[1], inputs[0] or [])

    return InputSource(task, total, {"task": task, "split": split}, read)


_Record = tuple[list[list[int] | None], list[bytes | None]]


def _records(task: str, file: str) -> Iterator[_Record]:
    """Yields the ids and the texts of each record's inputs and targets."""
    for records in record_batches(file):
        try:
            ids = ids_of(records, (*FIELDS, _CHOICES))
            texts = texts_of(records, _TEXTS)
        except ValueError as error:
            raise UserError(f"{file} cannot be read: {error}") from error
        if len(ids[_CHOICES].values):
            raise answer_choices(task)
        for row in range(len(records)):
            yield [_ids(ids[name], row) for name in FIELDS], [texts[name][row] for name in _TEXTS]


def _ids(column: Ragged, row: int) -> list[int] | None:
    return column.values[column.ends[row] : column.ends[row + 1]].tolist() or None


def _text(ids: list[int] | None, text: bytes | None, vocabulary: Any) -> str | None:
    if text is not None:
        return text.decode("utf-8", "replace")
    return None if ids is None else vocabulary.decode(ids)


def in_blocks(streams: Iterable[Iterator[_T]]) -> Iterator[_T]:
    """Yields the elements of streams in the order in which SeqIO reads a cache's files.

    >>> list(in_blocks(map(iter, [range(18), "ab"])))[14:]
    [14, 15, 'a', 'b', 16, 17]
    """
    waiting = deque(streams)
    opened: list[Iterator[_T] | None] = [None] * min(_OPEN, len(waiting))
    while waiting or any(opened):
        for place, stream in enumerate(opened):
            stream = stream or (waiting.popleft() if waiting else None)
            block = list(itertools.islice(stream, _BLOCK)) if stream else []
            opened[place] = stream if len(block) == _BLOCK else None
            yield from block
