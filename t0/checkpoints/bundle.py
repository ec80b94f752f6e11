"""Reads and writes TensorFlow's checkpoint files tensor by tensor, without TensorFlow.

    with BundleReader("/models/tiny/model.ckpt-1000") as reader:
        shape_of(reader.entries["shared/embedding"])
        array = reader.load("shared/embedding")

    writer = BundleWriter(folder / "model.ckpt-1000")
    writer.add("shared/embedding", array)
    writer.finish()                          # writes the index, which completes the checkpoint

The data files hold the tensors' bytes. The index file, `PREFIX.index`, contains the location of
each tensor. It is a sorted table in LevelDB's format: blocks of key-value entries, then a block
with the locations of these blocks, then a footer. Each block is followed by its compression type
and its checksum. Within a block, a key is stored without the prefix that it shares with the key
before it. The value of the key "" is a `BundleHeaderProto`. Every other key is a tensor's name, and
its value is a `BundleEntryProto`.

This module does not use TensorFlow, because TensorFlow is a library of 500 MB and copies whole
tensors several times. This module holds one tensor in memory at a time, so a checkpoint may be
larger than memory. It reads the same files as TensorFlow's C++ classes BundleReader and
table::Table, except that the blocks must not be compressed. TensorFlow never compresses them.

Files are little-endian. TensorFlow writes big-endian files only on big-endian machines.
"""

import contextlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import ml_dtypes
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from t0.checkpoints.formats import nbytes_of, pieces, read_into
from t0.checkpoints.shape import shown
from t0.errors import UserError
from t0.files.any_path import any_path, binary
from t0.files.paths import read_bytes
from t0.files.protobuf_wire import read_varint, varint
from t0.files.tfrecord import masked, masked_crc

# TensorFlow's DataType numbers.
_DTYPES = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    9: np.dtype(np.int64),
    10: np.dtype(np.bool_),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype(np.float16),
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_SHARD_BYTES = 2 << 30
# Constants of the index.
_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_BLOCK_BYTES = 262_144
_RESTART_INTERVAL = 16
_PLAIN = 0  # the compression type of a block that is not compressed
_MOST_DATA_FILES = 100_000


# The protocol buffers of TensorFlow's saver, with the fields that we read or write. `BundleHeader`
# and `BundleEntry` are the values in an index. `CheckpointState` is the text file `checkpoint` of a
# model directory. Sizes and offsets are unsigned, so that a damaged value cannot be negative.
_FIELD = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
_UINT, _FIXED32, _DOUBLE = _FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED32, _FIELD.TYPE_DOUBLE
_BYTES, _TEXT = _FIELD.TYPE_BYTES, _FIELD.TYPE_STRING

# Message -> its fields: name, number, optional or repeated, and type (or the name of a message).
_MESSAGES = {
    "Dim": [("size", 1, _ONE, _UINT)],
    "Shape": [("dim", 2, _MANY, "Dim")],
    "Version": [("producer", 1, _ONE, _UINT)],
    "BundleHeader": [("num_shards", 1, _ONE, _UINT), ("version", 3, _ONE, "Version")],
    "BundleEntry": [
        ("dtype", 1, _ONE, _UINT),
        ("shape", 2, _ONE, "Shape"),
        ("shard_id", 3, _ONE, _UINT),
        ("offset", 4, _ONE, _UINT),
        ("size", 5, _ONE, _UINT),
        ("crc32c", 6, _ONE, _FIXED32),
        ("slices", 7, _MANY, _BYTES),
    ],
    "CheckpointState": [
        ("model_checkpoint_path", 1, _ONE, _TEXT),
        ("all_model_checkpoint_paths", 2, _MANY, _TEXT),
        ("all_model_checkpoint_timestamps", 3, _MANY, _DOUBLE),
        ("last_preserved_timestamp", 4, _ONE, _DOUBLE),
    ],
}


def _define_messages() -> dict[str, type]:
    file = descriptor_pb2.FileDescriptorProto(
        name="t0/saver_messages.proto", package="t0", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind in fields:
            other = {"type": kind}
            if isinstance(kind, str):
                other = {"type": _FIELD.TYPE_MESSAGE, "type_name": f".t0.{kind}"}
            message.field.add(name=field, number=number, label=label, **other)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t0.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _define_messages()
BundleEntry, BundleHeader = _CLASSES["BundleEntry"], _CLASSES["BundleHeader"]
CheckpointState = _CLASSES["CheckpointState"]


def shape_of(entry: BundleEntry) -> tuple[int, ...]:
    """Returns the shape of an entry's tensor."""
    return tuple(dim.size for dim in entry.shape.dim)


class BundleReader(contextlib.AbstractContextManager):
    """Reads the tensors of a TensorFlow checkpoint by name.

    Args:
      prefix: the checkpoint's path without `.index`.

    Attributes:
      entries: tensor name -> its location, dtype and shape; see `shape_of`.

    Raises:
      UserError: if a file is missing, truncated or damaged.
    """

    def __init__(self, prefix: str | Path) -> None:
        self._prefix = str(prefix)
        index = any_path(f"{self._prefix}.index")
        try:
            shards, self.entries = read_index(read_bytes(index))
        except OSError as error:
            raise UserError(
                f"checkpoint {self._prefix} cannot be read ({error.strerror}: {index}). Expected "
                "the path of a checkpoint without its ending, such as /models/t5/model.ckpt-1000000"
            ) from error
        except (DecodeError, IndexError, ValueError, struct.error) as error:
            raise UserError(f"{index} is not a complete index: {error}. Copy it again") from error
        self._paths = [
            any_path(f"{self._prefix}.data-{i:05d}-of-{shards:05d}") for i in range(shards)
        ]
        self._files: dict[int, BinaryIO] = {}
        self._check_sizes()

    def dtype(self, name: str) -> np.dtype:
        """Returns the numpy dtype of a tensor.

        Raises:
          UserError: if the tensor has a dtype that never occurs in T5 checkpoints, such as strings.
        """
        number = self.entries[name].dtype
        if number not in _DTYPES:
            raise UserError(f"{self._prefix}: {name} has TensorFlow's dtype {number}, not a number")
        return _DTYPES[number]

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor.

        Raises:
          UserError: if its bytes do not match their checksum.
        """
        entry = self.entries[name]
        shape = shape_of(entry)
        if nbytes_of(shape, self.dtype(name)) != entry.size:
            raise UserError(
                f"{self._prefix}.index: {name} has {entry.size:,} bytes, which do not match "
                f"{self.dtype(name)} {shown(list(shape))}"
            )
        array = np.empty(shape, self.dtype(name))
        path = self._paths[entry.shard_id]
        if entry.shard_id not in self._files:
            self._files[entry.shard_id] = binary(path)
        file = self._files[entry.shard_id]
        file.seek(entry.offset)
        crc = 0
        for piece in pieces(array):
            read_into(file, piece, path)
            crc = _extend_crc(crc, piece)
        if masked(crc) != entry.crc32c:
            raise UserError(f"{path}: the checksum of {name} does not match. Copy the file again")
        return array

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_sizes(self) -> None:
        ends = [0] * len(self._paths)
        for name, entry in self.entries.items():
            if entry.slices:
                raise UserError(f"{self._prefix}: {name} is a partitioned variable")
            if entry.shard_id >= len(ends):
                raise UserError(f"{self._prefix}.index names more data files than it declares")
            ends[entry.shard_id] = max(ends[entry.shard_id], entry.offset + entry.size)
        for path, end in zip(self._paths, ends, strict=True):
            if not path.is_file():
                raise UserError(f"{path} is missing: the checkpoint has {len(ends)} data files")
            size = path.stat().st_size
            if size < end:
                raise UserError(f"{path} is truncated: {size:,} bytes of {end:,}. Copy it again")


class BundleWriter:
    """Writes a checkpoint, which is complete once `finish` has returned.

    Args:
      prefix: the checkpoint's path without `.index`, in an existing folder.
      shard_bytes: the size in bytes at which a data file is full. The next tensor goes into a new
        file.
    """

    def __init__(self, prefix: Path, *, shard_bytes: int = _SHARD_BYTES) -> None:
        self._prefix = prefix
        self._shard_bytes = shard_bytes
        self._entries: dict[str, BundleEntry] = {}
        self._shard = -1
        self._file: BinaryIO | None = None

    def add(self, name: str, array: np.ndarray) -> None:
        """Appends a tensor."""
        if self._file is None or self._file.tell() >= self._shard_bytes:
            self._close_shard()
            self._shard += 1
            self._file = self._part(self._shard).open("wb")
        offset = self._file.tell()
        crc = 0
        for piece in pieces(np.ascontiguousarray(array)):
            crc = _extend_crc(crc, piece)
            self._file.write(piece.data)
        self._entries[name] = BundleEntry(
            dtype=_NUMBERS[array.dtype],
            shape={"dim": [{"size": size} for size in array.shape]},
            shard_id=self._shard,
            offset=offset,
            size=array.nbytes,
            crc32c=masked(crc),
        )

    def finish(self) -> None:
        """Renames the data files to their final names, then writes the index."""
        self._close_shard()
        shards = self._shard + 1
        for number in range(shards):
            name = f"{self._prefix.name}.data-{number:05d}-of-{shards:05d}"
            self._part(number).rename(self._prefix.with_name(name))
        index = self._prefix.with_name(f"{self._prefix.name}.index")
        index.write_bytes(write_index(self._entries, shards=shards))

    def close(self) -> None:
        """Closes the current data file. If `finish` was not called, the files have no index."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _part(self, number: int) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}.part-{number:05d}")

    def _close_shard(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self.close()


def _extend_crc(crc: int, piece: np.ndarray) -> int:
    # google_crc32c accepts only read-only buffers.
    frozen = piece.view()
    frozen.flags.writeable = False
    return google_crc32c.extend(crc, frozen)


def write_index(entries: Mapping[str, BundleEntry], *, shards: int) -> bytes:
    """Encodes the index of a checkpoint with the given entries in `shards` data files."""
    header = BundleHeader(num_shards=shards, version={"producer": 1})
    rows = [(b"", header.SerializeToString())]
    rows += sorted((name.encode(), entry.SerializeToString()) for name, entry in entries.items())
    return _write_table(rows)


def read_index(data: bytes) -> tuple[int, dict[str, BundleEntry]]:
    """Parses an index; returns the number of data files, and the entries by name.

    Raises:
      ValueError, IndexError, DecodeError or struct.error: if the bytes are not a complete index.
    """
    if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("its footer is wrong")
    footer = data[-_FOOTER_BYTES:]
    _, position = _read_handle(footer, 0)
    index_handle, _ = _read_handle(footer, position)
    shards, entries, read_bytes = 0, {}, 0
    for _, value in _read_block(data, index_handle):
        handle, _ = _read_handle(value, 0)
        read_bytes += handle[1]
        if read_bytes > len(data):  # two references to one block, which no valid index has
            raise ValueError("its blocks are larger than the file")
        for key, proto in _read_block(data, handle):
            if key:
                entries[key.decode()] = BundleEntry.FromString(proto)
            else:
                shards = BundleHeader.FromString(proto).num_shards
    if shards > _MOST_DATA_FILES:
        raise ValueError(f"it counts {shards} data files")
    return shards, entries


def _read_block(data: bytes, handle: tuple[int, int]) -> list[tuple[bytes, bytes]]:
    offset, size = handle
    block = data[offset : offset + size]
    trailer = data[offset + size : offset + size + _TRAILER_BYTES]
    if len(trailer) < _TRAILER_BYTES:
        raise ValueError("a block is cut off")
    if masked_crc(block + trailer[:1]) != struct.unpack("<I", trailer[1:])[0]:
        raise ValueError("a block's checksum does not match")
    if trailer[0] != _PLAIN:
        raise ValueError("a block is compressed, which TensorFlow never does")
    restarts = struct.unpack("<I", block[-4:])[0]
    end = len(block) - 4 * (restarts + 1)
    rows, position, key = [], 0, b""
    while position < end:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        rows.append((key, block[position : position + length]))
        position += length
    return rows


def _write_table(rows: list[tuple[bytes, bytes]]) -> bytes:
    out, index = bytearray(), []
    pending: list[tuple[bytes, bytes]] = []
    size = 0
    for number, row in enumerate(rows):
        pending.append(row)
        size += len(row[0]) + len(row[1])
        following = rows[number + 1][0] if number + 1 < len(rows) else None
        if size >= _BLOCK_BYTES or following is None:
            index.append((_separator(row[0], following), _append_block(out, pending)))
            pending, size = [], 0
    meta = _append_block(out, [])
    footer = meta + _append_block(out, index)
    return bytes(out + footer.ljust(_FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", _MAGIC))


def _separator(last: bytes, following: bytes | None) -> bytes:
    """Returns LevelDB's choice of a short key >= `last` and < `following` (None at the end)."""
    if following is None:
        for position, byte in enumerate(last):
            if byte != 0xFF:
                return last[:position] + bytes([byte + 1])
        return last
    same = len(os.path.commonprefix([last, following]))
    if same == len(last) or last[same] == 0xFF or last[same] + 1 >= following[same]:
        return last
    return last[:same] + bytes([last[same] + 1])


def _append_block(out: bytearray, rows: list[tuple[bytes, bytes]]) -> bytes:
    """Appends a block and its trailer, and returns the block's handle."""
    block, restarts, previous = bytearray(), [0], b""
    for number, (key, value) in enumerate(rows):
        shared = len(os.path.commonprefix([key, previous]))
        if number and number % _RESTART_INTERVAL == 0:
            shared = 0
            restarts.append(len(block))
        block += varint(shared) + varint(len(key) - shared) + varint(len(value))
        block += key[shared:] + value
        previous = key
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    typed = bytes(block) + bytes([_PLAIN])
    handle = varint(len(out)) + varint(len(typed) - 1)
    out += typed + struct.pack("<I", masked_crc(typed))
    return handle


def _read_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position
