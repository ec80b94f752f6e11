"""Writes a split's final files, each of contiguous stretches of the dataset.

    copy_as = format_of(options, count)
    size, sha256 = write_file("/cache/toy/train.tfrecord-00000-of-00002",
                              lambda local: copy_as(local, [(part, 0, 1200)]))

`unit.shard_count` says how many there are, and why contiguous. A file is hashed as it stands on the
disk, and only then named.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t0.caching.unit import Options
from t0.files import whole_file, write_whole

COPIED_BYTES = 2**20
_LENGTH = struct.Struct("<Q")


def _array_record_writer(group_size: int) -> Callable[[str], Any]:
    """Returns what opens an ArrayRecord file whose records stand in groups of `group_size`."""
    from array_record.python import array_record_module

    return lambda path: array_record_module.ArrayRecordWriter(path, f"group_size:{group_size}")


def write_file(path: str, fill: Callable[[str], None]) -> tuple[int, str]:
    """Writes a file that has its name only when it is whole and on the disk.

    Args:
      fill: is given the path of a local file and writes it.

    Returns:
      its size in bytes and its SHA-256.

    Raises:
      OutputError: if it cannot be written.
    """
    with whole_file(path, durable=True) as temporary:
        fill(temporary)
        with open(temporary, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return file.tell(), digest.hexdigest()


def write_json(path: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Writes `content` as SeqIO does, and returns the file's entry in a manifest."""
    written = (json.dumps(content, sort_keys=True, indent=2) + "\n").encode()
    write_whole(path, written)
    return {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}


def file_name(split: str, options: Options, index: int, count: int) -> str:
    """Returns the name of shard `index` of `count`, as `seqio.get_cached_tfrecord_prefix` has it.

    >>> file_name("train", Options(), 0, 2)
    'train.tfrecord-00000-of-00002'
    """
    kind = "tfrecord" if options.output_format == "tfrecord" else "array_record"
    return f"{split}.{kind}-{index:05d}-of-{count:05d}"


# A stretch of frames in a file on this machine: path, first byte, end.
Stretch = tuple[str, int, int]


def format_of(options: Options, count: int) -> Callable[[str, Sequence[Stretch]], None]:
    """Returns what writes a local file of the wanted format out of stretches of frames.

    Args:
      count: the number of files of the split, which an ArrayRecord's groups follow, as in SeqIO.
    """
    if options.output_format == "tfrecord":
        return _copy_frames
    open_writer = _array_record_writer(1 if options.preserve_random_access else count)
    return lambda path, stretches: _copy_records(path, stretches, open_writer)


def _copy_frames(path: str, stretches: Sequence[Stretch]) -> None:
    with open(path, "wb") as target:
        for block in _blocks(stretches):
            target.write(block)


def _blocks(stretches: Sequence[Stretch]) -> Iterator[bytes]:
    for path, start, end in stretches:
        with open(path, "rb") as source:
            source.seek(start)
            while start < end:
                block = source.read(min(COPIED_BYTES, end - start))
                if not block:
                    raise OSError(f"{path} ends at byte {start}, {end} were wanted")
                start += len(block)
                yield block


def _copy_records(
    path: str, stretches: Sequence[Stretch], open_writer: Callable[[str], Any]
) -> None:
    writer = open_writer(path)
    for source_path, start, end in stretches:
        with open(source_path, "rb") as source:
            source.seek(start)
            while source.tell() < end:
                size = _LENGTH.unpack(source.read(_LENGTH.size))[0]
                source.seek(4, os.SEEK_CUR)
                writer.write(source.read(size))
                source.seek(4, os.SEEK_CUR)
    writer.close()
