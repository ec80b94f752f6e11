"""Reads the records of rank-evaluation tasks in the order of `idx`, without TensorFlow.

A task has one record for each answer choice. The record has `idx` [2] (the numbers of the example
and of the choice), `inputs` and `targets` as token ids, `is_correct`, and the texts. If rows of the
dataset share a text, the record also has `document` (`t0.sources`).

    read = sort_records(cached_records("rte_score_eval", files).records)
    for record in read():                  # as often as needed, in the same order
        record.example, record.choice, record.text

Records come from a cache, from rendered rows, or from SeqIO, which shuffles its own caches. They
are stored once in a temporary file, so memory does not grow with their number.
"""

import functools
import hashlib
import heapq
import itertools
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from t0.caching.row_numbers import ExampleRows, cached_rows
from t0.config.specification import EosSpec
from t0.errors import UserError
from t0.feeding.cached_examples import append_eos
from t0.feeding.token_files import ids_of, record_batches, texts_of

_INTEGERS = ("idx", "inputs", "targets", "is_correct")
_TEXTS = ("inputs_pretokenized", "targets_pretokenized", "document")
# The features that are read from a record.
FEATURES = (*_INTEGERS, *_TEXTS)
# The number of records that are decoded together or stored together.
_BATCH_RECORDS = 512
# The seed of the samples that `draw_sample` draws, as results files record it.
SAMPLE_SEED = 0

_T = TypeVar("_T")


class ChoiceRecord(NamedTuple):
    """One answer choice of an example.

    Attributes:
      example: the example's number.
      choice: the choice's number.
      inputs: the input's token ids, [L].
      targets: the choice's token ids with EOS, [T].
      is_correct: whether it is the correct choice.
      text: the choice's text; empty if the record does not contain it.
      input_text: the prompted input as text; empty if the record does not contain it.
      document: the key of the example's document (`t0.sources`); None if the record does not
        contain it.
    """

    example: int
    choice: int
    inputs: np.ndarray
    targets: np.ndarray
    is_correct: bool
    text: str = ""
    input_text: str = ""
    document: str | None = None


class TaskRecords(NamedTuple):
    """The records of a task, and how their examples are numbered.

    Attributes:
      records: the records.
      rows: the number of the dataset's rows, if the number of an example is the number of its row;
        None if the examples are numbered from 0 without the rows that the prompt drops.
    """

    records: Iterator[ChoiceRecord]
    rows: int | None = None


# A function that returns an iterator over a task's records in order. It may be called repeatedly.
# Two optional numbers limit it to the examples from the first up to, but not including, the second.
ReadRecords = Callable[..., Iterator[ChoiceRecord]]


def record_of(features: Mapping[str, Any]) -> ChoiceRecord:
    """Builds a record from the features that `FEATURES` names; the texts may be missing."""
    example, choice = (int(number) for number in features["idx"])
    document = features.get("document")
    return ChoiceRecord(
        example,
        choice,
        np.asarray(features["inputs"], np.int32),
        np.asarray(features["targets"], np.int32),
        bool(features["is_correct"]),
        text_of(features.get("targets_pretokenized", "")),
        text_of(features.get("inputs_pretokenized", "")),
        None if document is None else text_of(document),
    )


def draw_sample(items: Iterable[tuple[int, _T]], examples: int | None) -> Iterator[tuple[int, _T]]:
    """Draws a random sample of examples, and yields their items in the order of the numbers.

    The sample depends only on the examples' numbers and on `SAMPLE_SEED`. So all prompts of a
    dataset get the same rows, and a larger sample contains every smaller sample.

    Args:
      items: pairs (number of the example, item) in any order. An example may have several items.
      examples: the number of examples to draw; None to yield all items in the given order.
    """
    if examples is None:
        yield from items
        return
    sample: dict[int, list[_T]] = {}
    draws: list[tuple[int, int]] = []  # (negative hash, number), largest hash first
    for number, item in items:
        if number not in sample:
            digest = hashlib.blake2b(f"{SAMPLE_SEED} {number}".encode(), digest_size=8).digest()
            heapq.heappush(draws, (-int.from_bytes(digest, "big"), number))
            sample[number] = []
            if len(sample) > examples:
                del sample[heapq.heappop(draws)[1]]
        if number in sample:
            sample[number].append(item)
    for number in sorted(sample):
        yield from ((number, item) for item in sample[number])


def draw_numbers(count: int, examples: int) -> dict[int, None]:
    """Draws a sample of the numbers below `count`, ascending; see `draw_sample`."""
    return dict.fromkeys(number for number, _ in draw_sample(enumerate(range(count)), examples))


def sample_records(records: Iterable[ChoiceRecord], examples: int | None) -> Iterator[ChoiceRecord]:
    """Yields the records of a random sample of examples; see `draw_sample`."""
    numbered = ((record.example, record) for record in records)
    return (record for _, record in draw_sample(numbered, examples))


def sample_facts(examples: int | None) -> dict[str, int]:
    """Returns the facts about a sample for a results file; {} if `examples` is None."""
    return {} if examples is None else {"examples": examples, "sample_seed": SAMPLE_SEED}


def text_of(value: Any) -> str:
    """Returns a record's text as a string, also if it is bytes, as in TensorFlow."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def not_ranked(task: str) -> UserError:
    """Returns the error for a task whose records have no answer choices."""
    return UserError(
        f"task {task} is not a rank-evaluation task (its records have no answer choices); its "
        f"rank-evaluation form, if it has one, is {task}_score_eval"
    )


def cached_records(
    task: str,
    files: Sequence[str],
    *,
    examples: int | None = None,
    by_row: bool = True,
    eos: EosSpec | None = None,
) -> TaskRecords:
    """Returns the records of a cache in the order of its files.

    Args:
      task: the task's name, for messages.
      files: the TFRecord files of the split.
      examples: see `number_records`.
      by_row: whether to number the examples by row. If the cache does not record the rows, the
        examples keep the numbers that they have in the cache.
      eos: the EOS that is appended to the records; None if they have it.

    Raises:
      UserError: if a file cannot be read or is damaged, or if its records have no answer choices.
    """
    records = (record for file in files for record in _records_of(task, file, eos))
    return number_records(records, cached_rows(files), examples=examples, by_row=by_row)


def number_records(
    records: Iterator[ChoiceRecord],
    rows: ExampleRows | None,
    *,
    examples: int | None = None,
    by_row: bool = True,
) -> TaskRecords:
    """Numbers the examples of a task by the rows of its dataset, and draws a sample of the rows.

    Args:
      records: the records, whose examples are numbered without the rows that the prompt drops.
      rows: the rows of the examples; None if they are unknown. Then the examples keep their
        numbers, and examples are drawn instead of rows.
      examples: the number of rows to draw with `draw_sample`; None for all examples. All prompts
        get the same rows, even if some prompt drops a row.
      by_row: whether to number the examples by row. An evaluation that an earlier version began
        numbers only samples by row.
    """
    if rows is None:
        return TaskRecords(sample_records(records, examples))
    if examples is None and not by_row:
        return TaskRecords(records)
    numbered = (record._replace(example=rows.of(record.example)) for record in records)
    if examples is not None:
        sample = draw_numbers(rows.count, examples)
        numbered = (record for record in numbered if record.example in sample)
    return TaskRecords(numbered, rows.count if by_row else None)


def _records_of(task: str, file: str, eos: EosSpec | None) -> Iterator[ChoiceRecord]:
    for records in record_batches(file, _BATCH_RECORDS):
        try:
            integers = append_eos(ids_of(records, _INTEGERS), eos)
            texts = texts_of(records, _TEXTS)
        except ValueError as error:
            raise UserError(f"{file} cannot be read: {error}") from error
        for row in range(len(records)):
            features: dict[str, Any] = {name: ids.sequence(row) for name, ids in integers.items()}
            if len(features["is_correct"]) != 1 or len(features["idx"]) != 2:
                raise not_ranked(task)
            texts_of_row = {name: column[row] for name, column in texts.items()}
            yield record_of(features | {n: text for n, text in texts_of_row.items() if text})


def prompted_records(
    source: Any,
    split: str,
    features: Mapping[str, Any],
    examples: int | None = None,
    *,
    by_row: bool = True,
) -> TaskRecords:
    """Renders and tokenizes a prompted task's rows, and returns its records.

    Args:
      source: the task's `PromptedSource`.
      features: name ("inputs" or "targets") -> feature with its vocabulary and `add_eos`.
      examples: see `number_records`.
      by_row: see `number_records`.
    """
    rendered = rendered_rows(source, split, examples, by_row=by_row)
    rows = source.open(split).num_rows if by_row else None
    return TaskRecords(_encode_choices(rendered, features), rows)


def _encode_choices(
    rendered: Iterable[tuple[int, Mapping[str, Any]]], features: Mapping[str, Any]
) -> Iterator[ChoiceRecord]:

    @functools.lru_cache(4096)  # the choices and inputs of a row repeat
    def encode(name: str, text: str) -> np.ndarray:
        vocabulary = features[name].vocabulary
        ids = [*vocabulary.encode(text), *([vocabulary.eos_id] if features[name].add_eos else [])]
        return np.array(ids, np.int32)

    for number, row in rendered:
        inputs, document = encode("inputs", row["inputs"]), row.get("document")
        for choice, text in enumerate(row["answer_choices"] or ()):
            targets, is_correct = encode("targets", text), text == row["targets"]
            yield ChoiceRecord(
                number, choice, inputs, targets, is_correct, text, row["inputs"], document
            )


def rendered_rows(
    source: Any, split: str, examples: int | None, *, by_row: bool = True
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the number and the rendered record of each row of a prompted task.

    Args:
      source: the task's `PromptedSource`.
      examples: see `number_records`.
      by_row: see `number_records`.
    """
    if examples is not None:
        return source.numbered_records(split, draw_numbers(source.open(split).num_rows, examples))
    return source.numbered_records(split) if by_row else enumerate(source.records(split))


def sort_records(records: Iterable[ChoiceRecord]) -> ReadRecords:
    """Stores all records of a task in a temporary file, and returns a function that reads them.

    The function yields the records in sorted order. The file has no name, so it disappears with
    the process.

    Raises:
      UserError: if the disk is full.
    """
    import pyarrow as pa

    schema = pa.schema(
        [("example", "int64"), ("choice", "int64"), ("inputs", "binary"), ("targets", "binary"),
         ("is_correct", "bool"), ("text", "string"), ("input_text", "string"),
         ("document", "string")]
    )  # fmt: skip
    numbers, records = [np.zeros((0, 2), np.int64)], iter(records)
    try:
        with tempfile.TemporaryFile() as file:
            with pa.ipc.new_file(file, schema) as writer:
                while batch := list(itertools.islice(records, _BATCH_RECORDS)):
                    numbers.append(np.array([record[:2] for record in batch]))
                    rows = [
                        record._asdict()
                        | {name: getattr(record, name).tobytes() for name in ("inputs", "targets")}
                        for record in batch
                    ]
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UserError(
            f"cannot store the records of a task in {tempfile.gettempdir()}: {error}. Set TMPDIR "
            "to another folder"
        ) from error
    reader = pa.ipc.open_file(pa.py_buffer(mapped))
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    examples, choices = np.concatenate(numbers).T
    order = np.lexsort((choices, examples))
    examples = examples[order]

    def read(start: int = 0, stop: int | None = None) -> Iterator[ChoiceRecord]:
        last = len(order) if stop is None else np.searchsorted(examples, stop)
        # A list of all numbers would take more memory than the array.
        for number in range(np.searchsorted(examples, start), last):
            batch, row = divmod(int(order[number]), _BATCH_RECORDS)
            record = ChoiceRecord(*(column[row].as_py() for column in batches[batch].columns))
            ids = [np.frombuffer(ids, np.int32) for ids in (record.inputs, record.targets)]
            yield record._replace(inputs=ids[0], targets=ids[1])

    return read
