"""Writes, describes, publishes and reads the files of a cache in SeqIO's layout.

    outcome = join_parts(JoinParts(spec, parts, infos, options))
    outcome.files   # {"train.tfrecord-00000-of-00003": {"bytes": ..., "examples": ..., ...}, ...}
    publish(staging, final, manifest, replace=False)  # False: another run published first

A run writes the files of a task into a temporary directory next to the task's directory. The name
of the temporary directory is `<task>.incomplete-HOST-PID-START` (`-` cannot occur in a task's
name). `publish` writes `COMPLETED` into it and renames it to the task's directory (see
`t0.files.publishing`). So a killed run leaves no directory that looks finished, and two runs with
the same output directory never share a file. The first run that finishes a task publishes it.

If the output is an object store, a run writes the files on this machine, and then uploads them
under their final names. `COMPLETED` is written last, when all files have arrived.

SeqIO only checks that `COMPLETED` exists. In the caches of this project, it contains the sizes and
checksums that `verify` compares:

    {"schema": 1, "task": "toy", "absent_splits": {}, "splits": {"train": {"examples": 3,
     "files": {"train.tfrecord-00000-of-00001": {"bytes": 310, "crc32c": "4waSgw==", "examples": 3,
     "sha256": "..."}}}}}

A split is made in pieces. The records of each piece are first written to a file, which is called a
part (`t0.caching.parts`). `join_parts` divides the records of all parts evenly into the final files
of the split. So the final files are the same for every division of the split into pieces.

The records of rank evaluation contain the number of their row (`idx`). In each range of rows, the
rows are numbered as if no row before the range was dropped. If rows were dropped, `join_parts`
corrects the numbers in the later ranges, so that `idx` counts only the kept rows, as in SeqIO.

This module imports TensorFlow only for `gs://`.
"""

import base64
import hashlib
import io
import itertools
import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO

import google_crc32c

from t0.caching import parts, record_rows
from t0.caching.cache_plan import RecordOptions
from t0.caching.split_state import WRITTEN, JoinParts, PartInfo, SplitOutcome, sum_counts, summed
from t0.errors import refuse_unanswered
from t0.files import path_inside, paths, protobuf_wire, publishing, tf_examples, tfrecord
from t0.files.object_facts import Facts
from t0.files.untrusted import parsed_json
from t0.machine import installed_version

COMPLETED = "COMPLETED"
# The record of a cache's inputs; see `t0.caching.provenance`.
PROVENANCE = "provenance.json"
_INFO = re.compile(r"info\.(.+)\.json")
SHARD_BYTES = 100 * 10**6
# SeqIO reads a cache by interleaving 16 files and shuffles within a buffer of 1,000 examples.
INTERLEAVED_SHARDS = 16
SEQIO_MIN_SHARDS = 64
SHUFFLE_BUFFER_EXAMPLES = 1000
COPIED_BYTES = 2**20

_LIST, _SCALAR = [None], []
_PLAIN = {
    "inputs": (_LIST, "int32"),
    "inputs_pretokenized": (_SCALAR, "string"),
    "targets": (_LIST, "int32"),
    "targets_pretokenized": (_SCALAR, "string"),
}
_ANSWER_CHOICES = {"answer_choices": (_LIST, "string")}
_DOCUMENT = {"document": (_SCALAR, "string")}
_CHOICE = {"idx": (_LIST, "int32"), "is_correct": (_SCALAR, "bool"), "weight": (_SCALAR, "float32")}


def is_finished(directory: str) -> bool:
    """Returns whether `directory` holds a finished cache, written by this project or by SeqIO."""
    return paths.exists(posixpath.join(directory, COMPLETED))


def cached_splits(directory: str) -> set[str]:
    """Returns the splits of a cache, including splits that are recorded as empty."""
    matches = [_INFO.fullmatch(name) for name in paths.list_names(directory)]
    return {match[1] for match in matches if match} | set(
        read_manifest(directory).get("empty_splits", {})
    )


def read_manifest(directory: str) -> dict[str, Any]:
    """Returns the content of `COMPLETED`; {} if it is missing, damaged or written by SeqIO."""
    try:
        content = paths.read_bytes(posixpath.join(directory, COMPLETED))
        return checked_manifest(content) or {}
    except (OSError, ValueError) as error:
        refuse_unanswered(error)
        return {}


_CHECKSUM = re.compile(rb'(?<=\n "checksum": ")[0-9a-f]{64}(?=",\n)')
_NO_CHECKSUM = "0" * 64
_KEYS_BEFORE_CHECKSUMS = {"schema", "task", "absent_splits", "empty_splits", "splits"}


def with_checksum(content: Mapping[str, Any]) -> bytes:
    """Formats the content of `COMPLETED` or `provenance.json`, and adds the content's checksum."""
    text = json.dumps({**content, "checksum": _NO_CHECKSUM}, sort_keys=True, indent=1) + "\n"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return _CHECKSUM.sub(checksum.encode(), text.encode(), count=1)


def checked_manifest(content: bytes) -> dict[str, Any] | None:
    """Parses the content of `COMPLETED`; returns None if SeqIO itself wrote the cache.

    Raises:
      ValueError: if the content is damaged.
    """
    # SeqIO writes an empty file, or one word.
    if re.fullmatch(rb"\s*\w{0,40}\s*", content):
        return None
    try:
        manifest = parsed_json(content)
    except ValueError as error:
        raise ValueError("it is not JSON any more") from error
    if not _is_manifest(manifest):
        raise ValueError("it does not list files with their sizes and checksums")
    if not manifest.keys() <= _KEYS_BEFORE_CHECKSUMS:
        _check_checksum(content)
    return manifest


def _check_checksum(content: bytes) -> None:
    empty = _CHECKSUM.sub(_NO_CHECKSUM.encode(), content)
    if [hashlib.sha256(empty).hexdigest().encode()] != _CHECKSUM.findall(content):
        raise ValueError("its bytes are not those that were written")


def write_provenance(directory: str, made_from: Mapping[str, Any]) -> None:
    """Writes the record of a cache's inputs into its directory.

    Raises:
      OutputError: if it cannot be written.
    """
    publishing.write_whole(posixpath.join(directory, PROVENANCE), with_checksum(made_from))


def read_provenance(directory: str) -> dict[str, Any] | None:
    """Returns the record of a cache's inputs; None if the cache has no record.

    Raises:
      OSError: if the record cannot be read.
      ValueError: if it is damaged.
    """
    path = posixpath.join(directory, PROVENANCE)
    if not paths.exists(path):
        return None
    content = paths.read_bytes(path)
    _check_checksum(content)
    made_from = parsed_json(content)
    if not isinstance(made_from, dict) or "format" not in made_from:
        raise ValueError("it has no record format")
    return made_from


def _is_manifest(manifest: Any) -> bool:
    splits = manifest.get("splits") if isinstance(manifest, dict) else None
    if not isinstance(splits, dict):
        return False
    files = [split.get("files") if isinstance(split, dict) else None for split in splits.values()]
    return all(isinstance(of_split, dict) for of_split in files) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        and posixpath.basename(name) == name
        for of_split in files
        for name, entry in of_split.items()
    )


def publish(staging: str, final: str, manifest: Mapping[str, Any], *, replace: bool) -> bool:
    """Publishes the files in `staging` as the finished cache in `final`.

    Args:
      staging: the directory of the files. It no longer exists afterwards.
      final: the task's directory.
      manifest: the content of `COMPLETED`; `manifest["splits"][split]["files"]` names the files.
      replace: whether to replace a finished cache in `final`.

    Returns:
      whether this call published the task; False if another process published it first.

    Raises:
      OutputError: if publishing fails. `final` is then unchanged or, in an object store,
        unfinished.
    """
    publishing.write_whole(posixpath.join(staging, COMPLETED), with_checksum(manifest))
    splits = manifest.get("splits", {}).values()
    entries = {k: v for split in splits for k, v in split.get("files", {}).items()}
    # Older versions of this project did not write the CRC32C.
    files = {k: Facts(entry["bytes"], entry.get("crc32c", "")) for k, entry in entries.items()}
    return publishing.publish_folder(staging, final, last=COMPLETED, replace=replace, files=files)


def shard_count(options: RecordOptions, source_shards: int, records: int, size_bytes: int) -> int:
    """Returns the number of files of a split.

    If `min_shards` or `max_shards` is set, the rule is that of SeqIO's cache_tasks_main.py. The
    number is `min_shards` (64 by default) or the number of shards of the source, whichever is
    larger. But it is never more than `max_shards`.

    Otherwise there is one file for each 100 MB. Small splits have more files: one for each 1,000
    examples, up to 16 files. The reason is sorted datasets: in imdb, for example, all negative
    reviews come first. Each file holds consecutive records, and SeqIO shuffles only within 1,000
    examples. But SeqIO reads 16 files in parallel. So with 16 files, training reads a sorted
    dataset at 16 positions at the same time.

    Args:
      options: the options; only `min_shards` and `max_shards` are used.
      source_shards: the number of shards of the task's source.
      records: the number of examples.
      size_bytes: the size of all examples together.
    """
    if options.min_shards is not None or options.max_shards > 0:
        least = SEQIO_MIN_SHARDS if options.min_shards is None else options.min_shards
        count = max(source_shards, least)
    else:
        by_size = math.ceil(size_bytes / SHARD_BYTES)
        by_records = math.ceil(records / SHUFFLE_BUFFER_EXAMPLES)
        count = max(1, by_size, min(by_records, INTERLEAVED_SHARDS))
    return min(count, options.max_shards) if options.max_shards > 0 else count


def file_name(split: str, index: int, count: int) -> str:
    """Returns the name of file `index` of `count`, as `seqio.get_cached_tfrecord_prefix` does.

    >>> file_name("train", 0, 2)
    'train.tfrecord-00000-of-00002'
    """
    return f"{split}.tfrecord-{index:05d}-of-{count:05d}"


def join_parts(job: JoinParts) -> SplitOutcome:
    """Writes the final files of a split into its directory.

    Raises:
      OutputError: if they cannot be written.
    """
    spec, split = job.spec, job.spec.split
    directory, stats = split.directory, totals(job.infos)
    publishing.make_folder(directory)
    with ExitStack() as stack:
        with publishing.writing(directory):
            files = [stack.enter_context(paths.local_copy(path)) for path in job.parts]
        shifts = _find_shifts(job.infos) if spec.choices else [0] * len(files)
        sources = list(zip(files, shifts, job.infos, strict=True))
        size_bytes = sum(
            sum(map(len, _read_frames(path, shift))) if shift else info["bytes"]
            for path, shift, info in sources
        )
        count = shard_count(job.options, spec.source_shards, stats["examples"], size_bytes)
        bounds = [stats["examples"] * index // count for index in range(count + 1)]
        written = {}
        for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
            name = file_name(split.name, index, count)
            entry = write_file(path_inside(directory, name), _read_range(sources, start, stop))
            written[name] = {**entry, "examples": stop - start}
    info = {
        "features": _features(job),
        "num_shards": len(written),
        # pip installs SeqIO's nightly build, because T5 requires it. uv installs the release.
        "seqio_version": installed_version("seqio", "seqio-nightly"),
    }
    descriptions = {f"info.{split.name}.json": info, f"stats.{split.name}.json": stats}
    if spec.row_source and all(record_rows.MASK in part for part in job.infos):
        rows = record_rows.content_of(spec.row_source, job.infos)
        descriptions[f"rows.{split.name}.json"] = rows
    for name, content in descriptions.items():
        written[name] = _write_json(path_inside(directory, name), content)
    return SplitOutcome(
        split,
        WRITTEN,
        stats=stats,
        files=written,
        counts=sum_counts(job.infos),
        over=summed(job.infos, "over"),
        truncated=summed(job.infos, "truncated"),
        unknown=summed(job.infos, "unknown"),
        notes=job.notes,
    )


def _features(job: JoinParts) -> Mapping[str, Any]:
    """Returns the features of a split's records: name -> {"shape": ..., "dtype": ...}.

    Parts that `source_shards` made contain the features of their first example. Parts that
    `prompted_rows` made do not, because both kinds of T0's records have fixed features.
    """
    for info in job.infos:
        if info.get("features"):
            return info["features"]
    features = _PLAIN | (_ANSWER_CHOICES if job.spec.answer_choices else {})
    features |= _CHOICE if job.spec.choices else {}
    features |= _DOCUMENT if job.spec.document else {}
    return {name: {"shape": shape, "dtype": kind} for name, (shape, kind) in features.items()}


def totals(infos: Sequence[PartInfo]) -> dict[str, int]:
    """Returns the statistics for `stats.<split>.json` over all parts, with SeqIO's names."""
    tokens = {f"{name}_tokens": n for name, n in summed(infos, "tokens").items()}
    most: dict[str, int] = {}
    for info in infos:
        for name, count in info["max_tokens"].items():
            most[f"{name}_max_tokens"] = max(most.get(f"{name}_max_tokens", 0), count)
    characters = {f"{name}_chars": n for name, n in summed(infos, "chars").items()}
    return {"examples": sum(info["records"] for info in infos), **tokens, **most, **characters}


def _find_shifts(infos: Sequence[PartInfo]) -> list[int]:
    """Returns, for each part, the number to add to its row numbers, so that only kept rows count.

    If `source_shards` made a rank-evaluation split, it has only one part, whose numbers are right.
    """
    kept_rows = itertools.accumulate((info.get("kept", 0) for info in infos), initial=0)
    return [before - info["start"] for before, info in zip(kept_rows, infos, strict=False)]


def _read_range(
    sources: Sequence[tuple[str, int, PartInfo]], start: int, stop: int
) -> Iterator[bytes]:
    """Yields the frames of records `start` to `stop` of all parts together, in pieces.

    Args:
      sources: the path of each part, the number to add to its row numbers, and its counts.
      start: the number of the first record.
      stop: the number after the last record.
    """
    for path, shift, info in sources:
        first, end = max(start, 0), min(stop, info["records"])
        start, stop = start - info["records"], stop - info["records"]
        if first >= end:
            continue
        if shift:
            yield from itertools.islice(_read_frames(path, shift), first, end)
            continue
        with paths.opened(path) as file:  # bytes are copied, which is faster than reading records
            at, after = 0, info["bytes"]
            if end - first < info["records"]:
                at = tfrecord.end_of(file, 0, first)
                after = tfrecord.end_of(file, at, end - first)
            file.seek(at)
            for begin in range(at, after, COPIED_BYTES):
                yield file.read(min(COPIED_BYTES, after - begin))


def _read_frames(path: str, shift: int) -> Iterator[bytes]:
    """Yields the framed records of a part, with `shift` added to their row numbers."""
    records = parts.read_records(path)
    if shift:
        records = (_renumber(record, shift) for record in records)
    return map(tfrecord.framed, records)


def write_file(path: str, frames: Iterable[bytes]) -> dict[str, Any]:
    """Writes frames under a temporary name, and renames the file when it is complete and on disk.

    Args:
      path: the file.
      frames: the content, in pieces.

    Returns:
      the file's size and checksums, see `entry_of`.

    Raises:
      OutputError: if it cannot be written.
    """
    with publishing.whole_file(path, durable=True) as temporary:
        copy_frames(temporary, frames)
        with paths.opened(temporary) as file:
            return entry_of(file)


def entry_of(file: BinaryIO) -> dict[str, Any]:
    """Returns the size and checksums of an open file.

    Returns:
      a mapping with the size ("bytes") and two checksums: "sha256", which `t0 verify` compares, and
      "crc32c", which object stores also record.
    """
    digest, checksum, size = hashlib.sha256(), google_crc32c.Checksum(), 0
    while block := file.read(COPIED_BYTES):
        digest.update(block)
        checksum.update(block)
        size += len(block)
    crc32c = base64.b64encode(checksum.digest()).decode()
    return {"bytes": size, "crc32c": crc32c, "sha256": digest.hexdigest()}


def _write_json(path: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Writes `content` as JSON in SeqIO's format, and returns the file's entry for the manifest."""
    written = (json.dumps(content, sort_keys=True, indent=2) + "\n").encode()
    publishing.write_whole(path, written)
    return entry_of(io.BytesIO(written))


def copy_frames(path: str, frames: Iterable[bytes]) -> None:
    """Writes frames, one after another, to the file at `path`."""
    with open(path, "wb") as target:
        target.writelines(frames)


def _renumber(record: bytes, shift: int) -> bytes:
    """Adds `shift` to the row number of a record, which is in the record's first entry, `idx`."""
    _, start = protobuf_wire.read_varint(record, 1)
    size, start = protobuf_wire.read_varint(record, start + 1)
    entry = dict(protobuf_wire.fields(record[start : start + size]))
    if entry[1] != b"idx":
        raise ValueError("the record does not start with idx")
    (int64_list,) = dict(protobuf_wire.fields(entry[2])).values()
    (packed,) = dict(protobuf_wire.fields(int64_list)).values()
    row, end = protobuf_wire.read_varint(packed, 0)
    choice, _ = protobuf_wire.read_varint(packed, end)
    renumbered = tf_examples.ints_entry("idx", (row + shift, choice))
    return tf_examples.example(renumbered + record[start + size :])
