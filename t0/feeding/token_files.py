"""Reads the token ids of TFRecord files without TensorFlow, thousands of records together.

    read = read_ids(["/cache/toy/train.tfrecord-00000-of-00001"], ("inputs", "targets"))
    read["inputs"]                 # Ragged(values=int32 [tokens], ends=int64 [records + 1])
    read["inputs"].lengths         # int64 [records]

A record is a `tf.train.Example`. All common writers use the same layout, so numpy can find and
decode the entries of thousands of records together. This is several times faster than
`tf.io.parse_example`. Protocol buffers also allow other layouts. If a record has another layout, it
is first rewritten in the common layout.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from t0.errors import UserError
from t0.files import paths, tf_examples, tfrecord
from t0.files.protobuf_wire import fields, varint

# The number of records that are decoded together. They take a few MB, including their texts.
_RECORDS_AT_ONCE = 4096
# The number of files whose records are interleaved. The order of a cache's examples depends on this
# number. So the data positions in checkpoints also depend on it.
_FILES_IN_TURNS = 8
# The maximum number of entries of a record with the common layout. A record with more entries
# counts as a record with another layout.
_MOST_ENTRIES = 256
_FIELD_1, _FIELD_2, _FIELD_3 = 0x0A, 0x12, 0x1A
_BYTES_LIST, _INT64_LIST = _FIELD_1, _FIELD_3
_LONGEST_VARINT = 10
_TOO_LARGE = 2**40


class Ragged(NamedTuple):
    """Sequences of tokens of different lengths.

    Attributes:
      values: the tokens of all sequences, one sequence after another, int32.
      ends: int64 [sequences + 1]. First a 0, then the index in `values` at which each sequence
        ends.
    """

    values: np.ndarray
    ends: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """The sequences' lengths, int64 [sequences]."""
        return np.diff(self.ends)

    def sequence(self, number: int) -> np.ndarray:
        """Returns the tokens of a sequence, as a view."""
        return self.values[self.ends[number] : self.ends[number + 1]]


def slices(values: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Ragged:
    """Returns slices of `values`. Slice i has `sizes[i]` tokens and begins at `starts[i]`."""
    ends = np.append(0, np.cumsum(sizes))
    indices = np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])
    return Ragged(values[indices], ends)


def read_ids(files: Sequence[str], names: Sequence[str]) -> dict[str, Ragged]:
    """Reads integer features of all records of some files.

    Args:
      files: TFRecord files. The records of several files are interleaved, as `tf.data` does with
        eight files at a time.
      names: the features' names. If a record does not have a feature, its sequence of ids is empty.

    Returns:
      feature -> the ids of each record.

    Raises:
      UserError: if a file cannot be read, is damaged or holds other data. The message names the
        file.
    """
    chunks: dict[str, list[Ragged]] = {name: [] for name in names}
    counts = []
    for file in files:
        counts.append(0)
        for decoded in read_batches(file, names):
            counts[-1] += len(decoded[names[0]].lengths)
            for name in names:
                chunks[name].append(decoded[name])
    turns = reading_order(counts) if len(files) > 1 else None
    return {name: _join_sequences(chunks[name], turns) for name in names}


def reading_order(counts: Sequence[int], files: int = _FILES_IN_TURNS) -> np.ndarray:
    """Returns the order in which `read_ids` returns the records of files.

    It is the order of `tf.data.Dataset.interleave`.

    Args:
      counts: the number of records of each file. The numbers in the result count the records of all
        files in order.
      files: the number of files that are open together (`cycle_length`). If a file ends, the first
        record of the next file comes one round later.

    >>> reading_order([3, 1, 2], 2).tolist()
    [0, 3, 1, 2, 4, 5]
    """
    if len(counts) == 1:
        return np.arange(counts[0])
    ends = itertools.accumulate(counts, initial=0)
    waiting = deque(iter(range(first, end)) for first, end in itertools.pairwise(ends))
    open_files: list[Iterator[int] | None] = [None] * files
    order: list[int] = []
    while waiting or any(open_files):
        for slot, file in enumerate(open_files):
            open_files[slot] = file or (waiting.popleft() if waiting else iter(()))
            number = next(open_files[slot], None)
            if number is None:
                open_files[slot] = None
            else:
                order.append(number)
    return np.array(order, np.int64)


def read_batches(file: str, names: Sequence[str]) -> Iterator[dict[str, Ragged]]:
    """Yields the ids of a file's records, thousands of records at a time; see `read_ids`."""
    for records in record_batches(file):
        try:
            yield ids_of(records, names)
        except ValueError as error:
            raise _unreadable(file, error) from error


def record_batches(file: str, at_once: int = _RECORDS_AT_ONCE) -> Iterator[list[bytes]]:
    """Yields the records of a file, `at_once` at a time.

    Raises:
      UserError: if the file cannot be read or is damaged. The message names the file.
    """
    try:
        with paths.opened(file) as stream:
            records = tfrecord.unframed(stream)
            while batch := list(itertools.islice(records, at_once)):
                yield batch
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: Exception) -> UserError:
    return UserError(f"{file} cannot be read: {error}")


def _join_sequences(sequences: Sequence[Ragged], order: np.ndarray | None) -> Ragged:
    values = np.concatenate([np.zeros(0, np.int32), *(batch.values for batch in sequences)])
    ends = np.append(
        0, np.cumsum(np.concatenate([np.zeros(0, int), *(b.lengths for b in sequences)]))
    )
    if order is None:
        return Ragged(values, ends)
    return slices(values, ends[order], np.diff(ends)[order])


def ids_of(records: Sequence[bytes], names: Sequence[str]) -> dict[str, Ragged]:
    """Decodes integer features of `tf.train.Example` messages.

    Raises:
      ValueError: if a record is not a `tf.train.Example`, or if a feature has values of another
        type.
    """
    buffer, spans, unusual = _find_features(records, names)
    if unusual.size:
        records = list(records)
        for number in unusual.tolist():
            records[number] = _rewrite_usual(records[number], names)
        buffer, spans, _ = _find_features(records, names)
    decoded = {}
    for name, (starts, stops) in spans.items():
        pieces = [buffer[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        packed_ends = np.append(0, np.cumsum(stops - starts))
        decoded[name] = decode_varints(np.frombuffer(b"".join(pieces), np.uint8), packed_ends)
    return decoded


def texts_of(records: Sequence[bytes], names: Sequence[str]) -> dict[str, list[bytes | None]]:
    """Finds text features in `tf.train.Example` messages.

    Returns:
      feature -> a list with the bytes of each record's first value, or None for a record that does
      not have the feature.

    Raises:
      ValueError: if a record is not a `tf.train.Example`.
    """
    buffer, spans, unusual = _find_features(records, names, _BYTES_LIST)
    columns: dict[str, list[bytes | None]] = {
        name: [buffer[a:b] if b else None for a, b in zip(*map(np.ndarray.tolist, span))]  # noqa: B905
        for name, span in spans.items()
    }
    for number in unusual.tolist():
        features = features_of(records[number])
        for name in names:
            values = dict(nested(features.get(name, b""), 1))
            texts = nested(values[1], 1) if 1 in values else iter(())
            columns[name][number] = next((text for _, text in texts), None)
    return columns


# Feature -> (begin, end), both int64 [records]: where the feature's packed integers or its text
# begin and end in a buffer.
Spans = dict[str, tuple[np.ndarray, np.ndarray]]


def _find_features(
    records: Sequence[bytes], names: Sequence[str], kind: int = _INT64_LIST
) -> tuple[bytes, Spans, np.ndarray]:
    """Finds features of one kind in records.

    Returns:
      the joined records; the features' spans in them; and the numbers of the records that do not
      have the common layout. The spans of these records are invalid.
    """
    buffer = b"".join([*records, b"\0"])  # the extra byte keeps it from being empty
    data = np.frombuffer(buffer, np.uint8)
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    starts = np.append(0, ends[:-1])
    spans = {name: (np.zeros_like(ends), np.zeros_like(ends)) for name in names}
    size, at = _varints(data, starts + 1)
    usual = (_bytes(data, starts) == _FIELD_1) & (at + size == ends)
    rows = np.flatnonzero(usual & (at < ends))
    at = at[rows]
    for _ in range(_MOST_ENTRIES):
        if not rows.size:
            break
        good, at = _read_entries(data, at, ends[rows], rows, spans, kind)
        usual[rows[~good]] = False
        more = good & (at < ends[rows])
        rows, at = rows[more], at[more]
    usual[rows] = False
    return buffer, spans, np.flatnonzero(~usual)


def _read_entries(
    data: np.ndarray, at: np.ndarray, stops: np.ndarray, rows: np.ndarray, spans: Spans, kind: int
) -> tuple[np.ndarray, np.ndarray]:
    """Reads one entry of each record, and writes its feature's span into `spans`.

    Args:
      data: the bytes of all records.
      at: the offsets at which the entries begin.
      stops: the offsets at which the records end.
      rows: the records' numbers.
      spans: the features' spans, which are changed.
      kind: the protocol buffer tag of the features' list type.

    Returns:
      (for each entry, whether it has the common layout; the offset at which it ends).
    """
    size, inside = _varints(data, at + 1)
    end = inside + size
    name_size, name_at = _varints(data, inside + 1)
    feature_tag = name_at + name_size
    feature_size, feature = _varints(data, feature_tag + 1)
    good = (end <= stops) & (feature + feature_size == end)
    for offset, tag in ((at, _FIELD_1), (inside, _FIELD_1), (feature_tag, _FIELD_2)):
        good &= _bytes(data, offset) == tag
    for name, (starts, ends) in spans.items():
        name_bytes = np.frombuffer(name.encode(), np.uint8)
        matches = np.flatnonzero(good & (name_size == name_bytes.size))
        letters = _bytes(data, name_at[matches, None] + np.arange(name_bytes.size))
        matches = matches[(letters == name_bytes).all(axis=1)]
        starts[rows[matches]], ends[rows[matches]], packed = _locate_packed(
            data, feature[matches], end[matches], kind
        )
        good[matches[~packed]] = False
    return good, end


def _locate_packed(
    data: np.ndarray, at: np.ndarray, end: np.ndarray, kind: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the packed integer or text of each entry.

    Returns:
      the begin and end of each packed integer or text, and whether its entry has the common layout.
    """
    list_size, inside = _varints(data, at + 1)
    packed_size, packed = _varints(data, inside + 1)
    empty = (at == end) | ((list_size == 0) & (inside == end))
    usual = (_bytes(data, at) == kind) & (inside + list_size == end)
    full = usual & (_bytes(data, inside) == _FIELD_1) & (packed + packed_size == end)
    if kind == _INT64_LIST:
        # The last integer is complete if its last byte is below 128.
        full &= _bytes(data, end - 1) < 128
    empty &= usual | (at == end)
    return np.where(empty, end, packed), end, empty | full


def _bytes(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Returns the bytes of `data` at `offsets`.

    Other layouts than the common one can lead to offsets after the end of `data`. The bytes that
    are returned for such offsets are arbitrary.
    """
    return data.take(offsets, mode="clip")


def _varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of the varints that begin at `at`, and the offsets at which they end."""
    value = np.zeros(at.shape, np.int64)
    after = at.copy()
    rows = np.arange(at.size)
    for shift in range(0, 35, 7):
        byte = _bytes(data, after[rows])
        value[rows] |= (byte & 127).astype(np.int64) << shift
        after[rows] += 1
        rows = rows[byte > 127]
        if not rows.size:
            break
    value[rows] = _TOO_LARGE
    return value, after


def decode_varints(
    packed: np.ndarray, packed_ends: np.ndarray, kind: type[np.integer] = np.int32
) -> Ragged:
    """Decodes sequences of varints.

    Args:
      packed: the bytes of all sequences, one sequence after another.
      packed_ends: first a 0, then the index in `packed` at which each sequence ends.
      kind: the type of the result's values.

    Raises:
      ValueError: if an integer has more than ten bytes.
    """
    stops = np.flatnonzero(packed < 128)
    starts = np.append(0, stops[:-1] + 1)[: stops.size]
    sizes = stops - starts + 1
    longest = int(sizes.max(initial=1))
    if longest > _LONGEST_VARINT:
        raise ValueError("an integer has more than ten bytes")
    values = (packed[starts] & 127).astype(np.int32 if longest <= 4 else np.int64)
    rows = np.arange(stops.size)
    for byte_index in range(1, longest):
        rows = rows[sizes[rows] > byte_index]
        values[rows] |= (packed[starts[rows] + byte_index] & 127).astype(
            values.dtype
        ) << 7 * byte_index
    return Ragged(values.astype(kind, copy=False), np.searchsorted(stops, packed_ends))


def _rewrite_usual(record: bytes, names: Sequence[str]) -> bytes:
    """Returns a `tf.train.Example` with only the integer features `names`, in the common layout."""
    features = features_of(record)
    try:
        packed = {name: packed_integers(name, features.get(name, b"")) for name in names}
    except ValueError as error:
        raise ValueError(f"a record is not a tf.train.Example: {error}") from error
    return tf_examples.example(
        b"".join(tf_examples.packed_entry(name, content) for name, content in packed.items())
    )


def features_of(record: bytes) -> dict[str, bytes]:
    """Returns name -> encoded `tf.train.Feature`, for a record of any layout.

    Raises:
      ValueError: if the record is not a `tf.train.Example`.
    """
    by_name = {}
    try:
        for _, features in nested(record, 1):
            for _, entry in nested(features, 1):
                content = dict(nested(entry, 1, 2))
                by_name[content.get(1, b"").decode("utf-8", "replace")] = content.get(2, b"")
    except ValueError as error:
        raise ValueError(f"a record is not a tf.train.Example: {error}") from error
    return by_name


def packed_integers(name: str, feature: bytes) -> bytes:
    """Returns the integers of a `tf.train.Feature` as consecutive varints.

    Raises:
      ValueError: if the feature has values of another type, or is damaged.
    """
    packed = []
    for kind, content in nested(feature, 1, 2, 3):
        if kind != 3:
            raise ValueError(f"its feature '{name}' holds no integers")
        for _, integers in fields(content):
            packed.append(integers if isinstance(integers, bytes) else varint(integers))
    if packed and packed[-1][-1:] > b"\x7f":
        raise ValueError(f"its feature '{name}' ends within an integer")
    return b"".join(packed)


def nested(message: bytes, *numbers: int) -> Iterator[tuple[int, bytes]]:
    """Yields (field number, content) of the length-delimited fields `numbers` of a message.

    Raises:
      ValueError: if the message is incomplete, or if one of these fields is not length-delimited.
    """
    for number, content in fields(message):
        if number in numbers:
            if not isinstance(content, bytes):
                raise ValueError(f"its field {number} is a number")
            yield number, content
