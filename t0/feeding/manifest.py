"""Writes and reads a run's data manifest, from which the batch of any step can be computed.

    manifest = build(data, rows=16, start=Start(step=0))
    publish("/models/tiny", manifest)               # /models/tiny/data_manifest.json
    recorded = read("/models/tiny")
    find_difference(recorded, manifest)             # "shard train.tfrecord-00001-of-00003 of ..."
    position = locate(recorded, data, step=100)     # where the batch after step 100 begins

The manifest has the specification of the data (mixture, rates, seed, lengths, packing), the batch,
and a checksum of each file of the caches. It is written at the start of the run. A window is a
group of examples that are packed together. Next to the manifest, `data_windows.json` lists the
number of rows of each window that the run has read. This file only saves time. Without it, `locate`
packs the earlier windows again.
"""

import dataclasses
import hashlib
import itertools
import json
import posixpath
from collections.abc import Collection, Mapping
from typing import Any

from t0.config.plain_data import Count, Positive, Rows, read_file, to_json
from t0.config.specification import DataSpec, TaskSpec
from t0.errors import UserError
from t0.feeding.reading import Shard, find_shards
from t0.feeding.training_data import Position, TrainingData
from t0.files import paths, write_whole, writing
from t0.files.untrusted import parsed_json

MANIFEST, WINDOWS = "data_manifest.json", "data_windows.json"


@dataclasses.dataclass(frozen=True)
class Start:
    """The position in the data at which a run's first batch begins.

    Attributes:
      step: the number of completed steps before that batch.
      window: the number of the window in which the batch begins.
      row: the number of rows before the batch in that window.
    """

    step: Count = 0
    window: Count = 0
    row: Count = 0


@dataclasses.dataclass(frozen=True)
class Manifest:
    """All facts that determine the batches of a run.

    Attributes:
      data: the specification of the data.
      batch: the number of sequences of a batch.
      start: the position at which the first batch begins.
      shards: path of a cache's file -> the facts that identify the file's content.
    """

    data: DataSpec
    batch: Rows
    start: Start
    shards: Mapping[str, Shard]

    @property
    def indexed(self) -> bool:
        """Whether all tasks are cached as examples, so that any step's batch can be computed."""
        return all(map(is_indexed, self.data.tasks))


def is_indexed(task: TaskSpec) -> bool:
    """Returns whether a task is cached as examples, so that each draw has a known record."""
    makes_examples = task.objective is not None or task.eos is not None or task.choices
    return bool(task.cache_files) and not makes_examples


def build(data: Any, rows: int, start: Start, recorded: Manifest | None = None) -> Manifest | None:
    """Builds the manifest of a run; None if its data is a user's own dataset.

    Args:
      data: the opened data.
      rows: the number of sequences of a batch.
      start: the position at which the first batch begins.
      recorded: an earlier manifest, which saves reading the files that have not changed since.

    Raises:
      UserError: if a file of a cache cannot be read, or if records are missing.
    """
    if data.spec is None:
        return None
    files = [file for task in data.spec.tasks for file in task.cache_files]
    contents = find_shards(files, recorded.shards if recorded else {})
    shards = dict(zip(files, contents, strict=True))
    for stream in data.mixture.streams:
        if cache := stream.source.cache:
            cache.set_counts([shards[file].records for file in cache.files])
    return Manifest(data.spec, rows, start, shards)


def publish(folder: str, manifest: Manifest) -> None:
    """Writes a manifest into a folder. If the folder does not exist, it is created."""
    with writing(folder):
        paths.make_folder(folder)
    write_whole(posixpath.join(folder, MANIFEST), to_json(manifest) + "\n")


def read(folder: str) -> Manifest | None:
    """Returns the manifest in a folder; None if the folder has no manifest.

    Raises:
      UserError: if the manifest is damaged.
    """
    fix = "To continue from the latest checkpoint, remove it; the next start writes it again"
    return read_file(posixpath.join(folder, MANIFEST), Manifest, fix)


def find_difference(recorded: Manifest, current: Manifest, *, starts: bool = False) -> str | None:
    """Describes the first difference between two manifests; None if they give equal batches.

    The folders of caches may differ. The starts are only compared if `starts` is true.
    """
    # Earlier versions read the caches of some tasks with SeqIO, and recorded no files of them.
    live = {task.name for task in recorded.data.tasks if not task.cache_files}
    before, now = _facts(recorded), _facts(current, live)
    if starts:
        before["the start"], now["the start"] = map(
            dataclasses.asdict, (recorded.start, current.start)
        )
    for name in before | now:
        if before.get(name) == now.get(name):
            continue
        if name.startswith("shard "):
            return f"{name} {'has changed' if name in before and name in now else 'is not in both'}"
        return f"{name} was {before.get(name)!s:.80}, now {now.get(name)!s:.80}"
    return None


def _facts(manifest: Manifest, live: Collection[str] = ()) -> dict[str, Any]:
    """Returns name -> value, for every fact that determines the batches.

    Args:
      live: tasks that SeqIO read, for which EOS and files are no facts.
    """
    data = parsed_json(to_json(manifest.data))
    tasks = data.pop("tasks")
    facts = {"the batch": manifest.batch, **data}
    for task in tasks:
        files = task.pop("cache_files")
        if task["eos"] and task["name"] in live:
            files, task["eos"] = (), None
        for feature in task["features"].values():
            feature.pop("vocabulary", None)
        facts |= _flatten(f"task {task['name']}", task)
        for file in files:
            name = f"shard {posixpath.basename(file)} of task {task['name']}"
            facts[name] = file in manifest.shards and manifest.shards[file].crc32c
    return facts


def _flatten(name: str, value: Any) -> dict[str, Any]:
    """Returns "key of ... of `name`" -> value, for all values of nested mappings."""
    if not isinstance(value, dict):
        return {name: value}
    pairs = [_flatten(f"{key} of {name}", inner) for key, inner in value.items()]
    return {key: inner for pair in pairs for key, inner in pair.items()}


def follow(
    folder: str,
    recorded: Manifest | None,
    data: Any,
    rows: int,
    place: tuple[int, Position | None],
    *,
    allow_change: bool = False,
) -> tuple[Manifest | None, Position | None]:
    """Compares a run's data with its manifest, and finds the position of the next batch.

    Args:
      folder: the model directory.
      recorded: the manifest in that folder; None if the folder has no manifest, as in a new run.
      data: the opened data.
      rows: the number of sequences of a batch.
      place: (the number of completed steps, the position in the checkpoint or None).
      allow_change: whether the data may differ from the data in the manifest.

    Returns:
      the manifest that is now valid, and the position. The manifest is None for data that cannot
      have a manifest. The position is None at the start of the data.

    Raises:
      UserError: if the data differs from the data in the manifest and this is not allowed, or if
        the position cannot be found.
    """
    step, position = place
    if data.spec is None:  # a user's own dataset, whose position has no window
        return None, position
    current = build(data, rows, _start_at(step, position), recorded)
    if recorded is None:
        return current, position
    change = find_difference(recorded, current)
    if change and not allow_change:
        raise change_error(folder, change)
    if not change:
        load_windows(folder, recorded, data)
    if position is None and recorded.indexed and current.indexed:
        position = locate(recorded, data, step)
    if not change:  # `current` has the present folders and modification times of the caches
        # A run that resumes before the recorded start takes other batches than this start gives.
        start = recorded.start if step >= recorded.start.step else current.start
        return dataclasses.replace(current, start=start), position
    if find_difference(dataclasses.replace(recorded, batch=rows), current):
        # The new data has other rows in this window, so it begins with the next window. For tasks
        # that are not cached, only the state at the start of this window is known.
        if current.indexed:
            position = data.locate(0, rows, position["window"] + 1 if position else 1)
        elif position:
            position = {**position, "row": 0}
    return dataclasses.replace(current, start=_start_at(step, position)), position


def change_error(folder: str, change: str) -> UserError:
    """Returns the error for a run whose data differs from the manifest in its model directory."""
    return UserError(
        f"the data does not fit {posixpath.join(folder, MANIFEST)}: {change}. Restore the data of "
        "this run, use another --model_dir, or continue with the new data: --allow_config_change"
    )


def _start_at(step: int, position: Position | None) -> Start:
    return Start(step, position["window"], position["row"]) if position else Start(step)


def locate(manifest: Manifest, data: TrainingData, step: int) -> Position:
    """Returns the position at which the batch that follows `step` begins.

    Raises:
      UserError: if the step is before the manifest's first step, or if a task is not cached.
    """
    start = manifest.start
    if step < start.step:
        raise UserError(
            f"the run began after step {start.step:,}, so it has no step {step + 1:,}. Choose a "
            "later step"
        )
    return data.locate(step - start.step, manifest.batch, start.window, start.row)


@dataclasses.dataclass(frozen=True)
class _Windows:
    """The sizes of the first windows, and a digest of these sizes and of the manifest's facts."""

    sizes: tuple[Positive, ...]
    digest: str


def save_windows(folder: str, manifest: Manifest, data: TrainingData) -> None:
    """Writes the sizes of windows 0, 1, ... up to the first window whose size is unknown."""
    numbers = itertools.takewhile(data.window_sizes.__contains__, itertools.count())
    sizes = tuple(data.window_sizes[number] for number in numbers)
    content = to_json(_Windows(sizes, _digest(manifest, sizes)))
    write_whole(posixpath.join(folder, WINDOWS), content + "\n")


def load_windows(folder: str, manifest: Manifest, data: TrainingData) -> None:
    """Adds the windows' sizes to `data`, if the folder has such a file for this manifest.

    Raises:
      UserError: if the file is damaged.
    """
    windows = read_file(posixpath.join(folder, WINDOWS), _Windows, "Remove it, which loses no data")
    if windows and windows.digest == _digest(manifest, windows.sizes):
        data.window_sizes.update(enumerate(windows.sizes))


def copy_windows(source: str, target: str) -> None:
    """Copies the file with the windows' sizes from one folder to another."""
    path = posixpath.join(source, WINDOWS)
    if paths.exists(path):
        write_whole(posixpath.join(target, WINDOWS), paths.read_bytes(path))


def remove(folder: str) -> None:
    """Removes a manifest that is no longer valid from a folder, if the folder has one."""
    for name in (MANIFEST, WINDOWS):
        paths.remove(posixpath.join(folder, name))


def _digest(manifest: Manifest, sizes: Any) -> str:
    facts = {name: value for name, value in _facts(manifest).items() if name != "the batch"}
    return hashlib.sha256(json.dumps([facts, list(sizes)]).encode()).hexdigest()
