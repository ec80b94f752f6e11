"""Writes the batches of a run to files in training order, for hosts that have only TensorFlow.

    manifest = build(data, rows=1024, start=Start(step=0))
    for line in write("gs://bucket/tuned/stream", manifest, data, first=1, last=12_200, workers=8):
        print(line)
    stream = open_stream("gs://bucket/tuned/stream")    # checks sizes and checksums of the files
    stream.check(manifest, done=0, last=12_200)         # UserError if it belongs to another run

A stream is a folder of TFRecord files, each with the batches of consecutive steps. A record is one
packed row, a `tf.train.Example` with the features of a batch. `data_manifest.json` in the folder
identifies the run to which the batches belong. `stream.json`, which is written last, lists the
files with their steps, sizes and checksums. If writing stops, the same call continues after the
last complete file.

    dataset = stream_dataset(stream, step=100)          # the batches of steps 101, 102, ...

`stream_dataset` reads a stream with TensorFlow's own operations, which a TPU's hosts support. Only
this function imports TensorFlow.
"""

import contextlib
import dataclasses
import itertools
import json
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from t0.caching import cache_files
from t0.child_processes import spawn_context
from t0.config.plain_data import Count, Positive, read_file
from t0.config.specification import DataSpec
from t0.errors import UserError
from t0.feeding import manifest as manifests
from t0.feeding.manifest import Manifest
from t0.feeding.reading import find_facts
from t0.feeding.training_data import Batch, TrainingData, open_training_data
from t0.files import paths, tf_examples, tfrecord, write_whole
from t0.files.object_facts import Facts
from t0.files.publishing import remove_leftovers

STREAM = "stream.json"
# Takes the number of a window, and yields the rows of that window and of all later ones.
_WindowsFrom = Callable[[int], Iterator[list[bytes]]]
_FILE_BYTES = 200 * 10**6
_READ_BYTES = 8 << 20
_BYTES_OF_TOKEN = 4  # fixed, so that the number of steps per file does not depend on the data


@dataclasses.dataclass(frozen=True)
class StreamFile:
    """A file of a stream.

    Attributes:
      name: the file's name.
      first: the number of the first step whose batch is in the file, counted from 1.
      last: the number of the last step whose batch is in the file.
      bytes: the file's size.
      crc32c: the file's CRC-32C, in base 64.
    """

    name: str
    first: Positive
    last: Positive
    bytes: Count
    crc32c: str


@dataclasses.dataclass(frozen=True)
class Stream:
    """A finished stream.

    Attributes:
      folder: the folder that holds the stream.
      manifest: the manifest of the run to which the stream belongs.
      files: the stream's files, in the order of the steps.
    """

    folder: str
    manifest: Manifest
    files: tuple[StreamFile, ...]

    def check(self, current: Manifest | None, *, done: int, last: int) -> None:
        """Checks that the stream has the batches of all remaining steps of a run.

        Args:
          current: the manifest of the run. Its start is ignored. None for a user's own dataset.
          done: the number of completed steps.
          last: the last step of the run.

        Raises:
          UserError: if the stream has other data than the run, or if the batch of a remaining step
            is missing.
        """
        change = (
            manifests.find_difference(self.manifest, current)
            if current
            else "the run reads its own dataset"
        )
        fix = "Write the stream again with the flags of this run and --write_stream, or remove it"
        if change:
            raise UserError(f"the stream {self.folder} is of another run: {change}. {fix}")
        first, end = self.files[0].first, self.files[-1].last
        if done + 1 < first or last > end:
            raise UserError(
                f"the stream {self.folder} has steps {first:,} to {end:,}, and the run needs "
                f"{done + 1:,} to {last:,}. {fix}"
            )


def open_stream(folder: str) -> Stream | None:
    """Opens a finished stream, and checks the size and checksum of each file.

    Returns:
      the stream; None if the folder has no stream.

    Raises:
      UserError: if the stream is not finished, or if a file is missing or damaged.
    """
    recorded = manifests.read(folder)
    if recorded is None:
        return None
    files = _read_files(folder)
    if not files:
        raise UserError(
            f"the stream {folder} is not finished. Run the command with --write_stream again, "
            "which continues it"
        )
    written = _find_written(folder, [file.name for file in files])
    for file in files:
        facts = written.get(file.name)
        if facts != (file.bytes, file.crc32c):
            raise UserError(
                f"{posixpath.join(folder, file.name)}, with steps {file.first:,} to "
                f"{file.last:,} of the stream, is {'damaged' if facts else 'missing'}. Run the "
                "command with --write_stream again, which writes it"
            )
    return Stream(folder, recorded, files)


def _read_files(folder: str) -> tuple[StreamFile, ...]:
    """Returns the files that a finished stream lists; () if the stream is not finished."""

    def check(files: Sequence[StreamFile]) -> None:
        follow = all(a.last + 1 == b.first for a, b in itertools.pairwise(files))
        if not files or not follow or any(posixpath.basename(f.name) != f.name for f in files):
            raise ValueError("its files have no consecutive steps")

    fix = "Remove it, and run the command with --write_stream again"
    return read_file(posixpath.join(folder, STREAM), tuple[StreamFile, ...], fix, check) or ()


def _find_written(folder: str, names: Iterable[str]) -> dict[str, Facts]:
    """Returns name -> size and checksum of those files that exist in a folder."""
    present = set(paths.list_names(folder))
    names = [name for name in names if name in present]
    facts = find_facts([posixpath.join(folder, name) for name in names])
    return dict(zip(names, facts, strict=True))


def encode(batch: Batch) -> list[bytes]:
    """Returns the rows of a batch as frames of a TFRecord file."""
    names = sorted(batch)
    columns = [tf_examples.pack_rows(batch[name]) for name in names]
    return [
        tfrecord.framed(tf_examples.example(b"".join(map(tf_examples.packed_entry, names, row))))
        for row in zip(*columns, strict=True)
    ]


def plan_files(recorded: Manifest, first: int, last: int) -> list[tuple[str, int, int]]:
    """Returns (name, first step, last step) of each file of a stream."""
    tokens = recorded.batch * sum(recorded.data.lengths.values())
    each = max(1, _FILE_BYTES // (tokens * _BYTES_OF_TOKEN))
    # Only the first and the last file depend on `first` and `last`. So streams of a run with
    # different ranges of steps have the files between them in common.
    begins = range(recorded.start.step + 1, last + 1, each)
    bounds = [first, *(begin for begin in begins if begin > first), last + 1]
    return [
        (f"batches-{a:08d}-{b - 1:08d}.tfrecord", a, b - 1) for a, b in itertools.pairwise(bounds)
    ]


def write(
    folder: str, recorded: Manifest, data: TrainingData, *, first: int, last: int, workers: int
) -> Iterator[str]:
    """Writes the batches of steps `first` to `last`, and yields lines that report the progress.

    Args:
      folder: the folder, local or `gs://`.
      recorded: the manifest of the run.
      data: the run's opened data.
      first: the first step, counted from 1.
      last: the last step.
      workers: the number of processes that pack examples.

    Raises:
      UserError: if the folder has the stream of another run, or if a file cannot be written.
    """
    remove_leftovers([folder])  # of writers that were killed
    _claim(folder, recorded)
    manifests.load_windows(folder, recorded, data)
    planned = plan_files(recorded, first, last)
    frames = encode(data.window(recorded.start.window))
    size = sum(map(len, frames)) / len(frames) * recorded.batch * (last + 1 - first)
    listed = {file.name: (file.bytes, file.crc32c) for file in _read_files(folder)}
    written = _find_written(folder, [name for name, *_ in planned])
    done = {name: facts for name, facts in written.items() if listed.get(name, facts) == facts}
    yield (
        f"stream of steps {first:,} to {last:,}: about {size / 1e9:,.1f} GB in {len(planned):,} "
        f"files in {folder}" + (f", {len(done):,} of them written before" if done else "")
    )
    with _open_windows(data, workers) as windows_from:
        next_step, rows = 0, iter(())
        for name, begin, end in planned:
            if name in done:
                continue
            if begin != next_step:
                rows = _rows_from(windows_from, recorded, data, begin)
            frames = itertools.islice(rows, (end + 1 - begin) * recorded.batch)
            entry = cache_files.write_file(posixpath.join(folder, name), frames)
            next_step = end + 1
            done[name] = Facts(entry["bytes"], entry["crc32c"])
            manifests.save_windows(folder, recorded, data)
            yield f"{name}: {entry['bytes']:,} bytes"
    content = [dataclasses.asdict(StreamFile(name, a, b, *done[name])) for name, a, b in planned]
    write_whole(posixpath.join(folder, STREAM), json.dumps(content, indent=1) + "\n")
    total = sum(facts.size_bytes for facts in done.values())
    yield f"the stream is complete: {total:,} bytes, {total / (last + 1 - first):,.0f} a step"


def _claim(folder: str, recorded: Manifest) -> None:
    before = manifests.read(folder)
    change = before and manifests.find_difference(before, recorded, starts=True)
    if before is None and paths.names_like(folder, "batches-*"):
        change = f"its {manifests.MANIFEST} is missing"
    if change:
        raise UserError(
            f"{folder} has the stream of another run: {change}. Choose another folder, or remove "
            "this one"
        )
    manifests.publish(folder, recorded)


def _rows_from(
    windows_from: _WindowsFrom, recorded: Manifest, data: TrainingData, step: int
) -> Iterator[bytes]:
    """Yields the frames of all rows, beginning with the batch of a step."""
    position = manifests.locate(recorded, data, step - 1)
    window, row = position["window"], position["row"]
    for number, frames in enumerate(windows_from(window), start=window):
        data.window_sizes[number] = len(frames)
        yield from frames[row:]
        row = 0


@contextlib.contextmanager
def _open_windows(data: TrainingData, workers: int) -> Iterator[_WindowsFrom]:
    """Yields a function that packs all windows, beginning with the window of a given number.

    If there are several workers, their processes pack windows in advance.
    """
    if workers < 2:
        yield lambda first: (encode(data.window(number)) for number in itertools.count(first))
        return
    context = spawn_context()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_open_in_worker, initargs=(data.spec,)
    ) as pool:

        def windows_from(first: int) -> Iterator[list[bytes]]:
            pending = deque(pool.submit(_encode_window, first + n) for n in range(2 * workers))
            for number in itertools.count(first + 2 * workers):
                yield pending.popleft().result()
                pending.append(pool.submit(_encode_window, number))

        try:
            yield windows_from
        except BrokenProcessPool as error:
            raise UserError(
                "a process that packs examples has ended, perhaps because memory was full. Run the "
                "same command again, which continues after the last complete file"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_opened: list[TrainingData] = []  # the opened data, in a worker process


def _open_in_worker(spec: DataSpec) -> None:
    _opened[:] = [open_training_data(spec)]


def _encode_window(number: int) -> list[bytes]:
    return encode(_opened[0].window(number))


def stream_dataset(stream: Stream, step: Any) -> Any:
    """Returns the batches that follow a step, as a `tf.data.Dataset` of feature -> int32.

    Args:
      stream: a stream that has the batches of the following steps.
      step: the number of completed steps, a number or a scalar tensor, such as the global step. The
        value of a tensor is read when the dataset's iterator is initialized. So if the session is
        restarted, the batches continue at the restored checkpoint.
    """
    from t0.compat import tf1 as tf

    batch, lengths = stream.manifest.batch, stream.manifest.data.lengths
    files = [posixpath.join(stream.folder, file.name) for file in stream.files]
    step = tf.cast(step, tf.int64)
    lasts = tf.constant(np.array([file.last for file in stream.files], np.int64))
    befores = tf.constant(np.array([file.first - 1 for file in stream.files], np.int64))
    index = tf.searchsorted(lasts, step[None], side="right")[0]
    # After the last step of the stream, `index` is the number of files, which is no valid index.
    before = tf.gather(befores, tf.minimum(index, len(files) - 1))
    features = {
        name: tf.io.FixedLenFeature(
            [lengths[re.sub("_(segmentation|position)$", "", name)]], tf.int64
        )
        for name in open_training_data(stream.manifest.data).features
    }

    def parse(records: Any) -> dict[str, Any]:
        parsed = tf.io.parse_example(records, features)
        return {name: tf.cast(value, tf.int32) for name, value in parsed.items()}

    dataset = tf.data.Dataset.from_tensor_slices(files).skip(tf.cast(index, tf.int64))
    dataset = dataset.flat_map(lambda file: tf.data.TFRecordDataset(file, buffer_size=_READ_BYTES))
    dataset = dataset.skip((step - before) * batch).batch(batch, drop_remainder=True)
    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
