"""A manifest and the number of a step determine a batch."""

import dataclasses
import itertools
import json
import os
import shutil
import types

import numpy as np
import pytest

from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.feeding import manifest, reading
from t0.feeding.manifest import Start
from t0.feeding.reading import CachedSource
from t0.feeding.training_data import open_training_data
from t0.feeding.uncached import DatasetBatches
from t0.files import tfrecord, write_whole
from tests.feeding import tiny_caches

ROWS = 4


@pytest.fixture
def spec(tmp_path):
    return tiny_caches.data_spec(tmp_path / "cache")


def taken(spec, count, position=None):
    return list(itertools.islice(open_training_data(spec).batches(ROWS, position), count))


def test_manifest_locates_the_batch_of_every_step(spec, tmp_path, monkeypatch):
    monkeypatch.setattr("t0.feeding.reading.BLOCK_EXAMPLES", 20)  # a block for each file
    whole = taken(spec, 150)
    assert whole[-1][1]["window"] > 2
    recorded = manifest.build(open_training_data(spec), ROWS, Start(step=10))
    for step in (10, 11, 63, 157):
        data = open_training_data(spec)
        position = manifest.locate(recorded, data, step)
        again = list(itertools.islice(data.batches(ROWS, position), 2))
        for (mine, _), (theirs, _) in zip(again, whole[step - 10 :], strict=False):
            for name in theirs:
                np.testing.assert_array_equal(mine[name], theirs[name])
        if step > 10:
            before = whole[step - 11][1]
            assert {k: position[k] for k in ("window", "row")} == {
                k: before[k] for k in ("window", "row")
            }
    with pytest.raises(UserError, match="began after step 10, so it has no step 10"):
        manifest.locate(recorded, data, 9)


def test_manifest_position_is_an_index(spec):
    position = taken(spec, 90)[-1][1]
    assert position["tasks"] == {}
    assert len(json.dumps(position)) < 100


def test_manifest_each_epoch_uses_each_example_once(spec):
    """Windows of a fixed number of draws lose and repeat no example."""
    data = open_training_data(spec)
    used = {name: np.zeros(count, int) for name, count in tiny_caches.COUNTS.items()}
    names = list(used)
    for window in range(4):
        tasks, records = data.mixture.records_of(window * data.draws, data.draws)
        for example, task, record in zip(data.examples_in(window), tasks, records, strict=True):
            assert example["inputs"][0] == record + 2
            used[names[task]][record] += 1
        rows = data.rows_in(data.examples_in(window), window)
        assert sorted(itertools.chain(*rows)) == list(range(len(tasks)))
    for counts in used.values():
        assert counts.min() > 3 and counts.max() - counts.min() <= 1


def test_manifest_windows_file_saves_packing(spec, tmp_path):
    data = open_training_data(spec)
    position = next(itertools.islice(data.batches(ROWS), 149, None))[1]
    recorded = manifest.build(data, ROWS, Start())
    manifest.save_windows(str(tmp_path), recorded, data)
    other = open_training_data(spec)
    manifest.load_windows(str(tmp_path), recorded, other)
    assert other.window_sizes == data.window_sizes
    assert len(other.window_sizes) > position["window"]
    # The sizes of other data are not used, nor are damaged ones.
    for changed in (dataclasses.replace(spec, seed=4), spec):
        other = open_training_data(changed)
        manifest.load_windows(str(tmp_path), manifest.build(other, ROWS, Start()), other)
        assert bool(other.window_sizes) == (changed is spec)
    path = tmp_path / manifest.WINDOWS
    path.write_text(path.read_text().replace('"sizes": [', '"sizes": [7, '))
    other = open_training_data(spec)
    manifest.load_windows(str(tmp_path), recorded, other)
    assert not other.window_sizes


def test_manifest_of_other_data_is_refused_by_name(spec, tmp_path):
    recorded = manifest.build(open_training_data(spec), ROWS, Start())
    folder = str(tmp_path)
    manifest.publish(folder, recorded)
    assert manifest.read(folder) == recorded

    def follow(spec, rows=ROWS, **given):
        return manifest.follow(folder, recorded, open_training_data(spec), rows, (0, None), **given)

    assert follow(spec)[0] == recorded
    moved = tmp_path / "elsewhere" / "cache"
    shutil.copytree(tmp_path / "cache", moved)
    followed = follow(tiny_caches.data_spec(moved))[0]
    assert manifest.find_difference(recorded, followed, starts=True) is None
    assert all(file.startswith(str(moved)) for file in followed.shards)
    with pytest.raises(UserError, match="the batch was 4, now 8"):
        follow(spec, rows=8)
    longer = dataclasses.replace(spec, lengths={"inputs": 16, "targets": 9})
    with pytest.raises(UserError, match="lengths was .*'targets': 8.*now.*'targets': 9"):
        follow(longer)
    shard = moved / "toy_b" / "train.tfrecord-00001-of-00003"
    shard.write_bytes((moved / "toy_b" / "train.tfrecord-00000-of-00003").read_bytes())
    with pytest.raises(UserError, match="shard train.tfrecord-00001-of-00003 of task toy_b has ch"):
        follow(tiny_caches.data_spec(moved))
    changed, position = follow(longer, allow_change=True)
    assert (changed.start, position["window"], position["row"]) == (Start(0, 1, 0), 1, 0)
    # A checkpoint without a position, as a TPU writes it, in a later window.
    place = 100, None
    window = manifest.locate(recorded, open_training_data(longer), 100)["window"]
    assert window > 1
    changed, _ = manifest.follow(
        folder, recorded, open_training_data(longer), ROWS, place, allow_change=True
    )
    assert changed.start == Start(100, window + 1, 0)


def test_manifest_difference_names_the_changed_setting(spec):
    recorded = manifest.build(open_training_data(spec), ROWS, Start())
    first, second = spec.tasks
    rated = dataclasses.replace(spec, tasks=(first, dataclasses.replace(second, rate=2.0)))
    difference = manifest.find_difference(recorded, dataclasses.replace(recorded, data=rated))
    assert difference == "rate of task toy_b was 1.0, now 2.0"
    fewer = dataclasses.replace(recorded, data=dataclasses.replace(spec, tasks=(first,)))
    assert manifest.find_difference(recorded, fewer) == "name of task toy_b was toy_b, now None"


def test_manifest_of_an_own_dataset_keeps_its_position(tmp_path):
    data = DatasetBatches(lambda: tf.data.Dataset.from_tensor_slices({"inputs": [[1], [2]]}))
    place = 5, {"batches": 5}
    assert manifest.follow(str(tmp_path), None, data, ROWS, place) == (None, {"batches": 5})


def test_manifest_of_a_run_that_resumes_before_its_recorded_start(spec, tmp_path):
    """As after a change of the batch at step 100, when the checkpoints from there are removed."""
    position = taken(spec, 50)[-1][1]
    recorded = manifest.build(open_training_data(spec), 8, Start(100, 1, 0))
    data = open_training_data(spec)
    place = 50, position
    followed, there = manifest.follow(str(tmp_path), recorded, data, 8, place)
    assert there == position
    assert followed.start == Start(50, position["window"], position["row"])


def test_manifest_of_changed_live_data_has_a_position_that_exists(spec, tmp_path):
    def live(task, data):
        cached = CachedSource(task.name, files[task.name], task.examples, tuple(data.lengths))
        return types.SimpleNamespace(
            name=task.name, examples=None, cache=None, blocks=cached.blocks
        )

    files = {task.name: task.cache_files for task in spec.tasks}
    tasks = tuple(dataclasses.replace(task, cache_files=()) for task in spec.tasks)
    uncached = dataclasses.replace(spec, tasks=tasks)
    data = open_training_data(uncached, live)
    positions = (position for _, position in data.batches(ROWS))
    position = next(x for x in positions if x["window"] == 1 and x["row"] > 90)
    recorded = manifest.build(data, ROWS, Start())
    lengths = {"inputs": 160, "targets": 80}
    fewer = open_training_data(dataclasses.replace(uncached, lengths=lengths), live)
    with pytest.raises(UserError, match="has only"):
        next(fewer.batches(ROWS, position))
    place = 18, position
    followed, there = manifest.follow(
        str(tmp_path), recorded, fewer, ROWS, place, allow_change=True
    )
    assert followed.start == Start(18, 1, 0) and there["tasks"] == position["tasks"]
    next(fewer.batches(ROWS, there))
    # A TPU's checkpoint has no position, and live data cannot be located.
    cached = manifest.build(open_training_data(spec), ROWS, Start())
    place = 18, None
    followed, there = manifest.follow(str(tmp_path), cached, data, ROWS, place, allow_change=True)
    assert followed.start == Start(18) and there is None


def test_manifest_reads_unchanged_files_only_once(spec, tmp_path, monkeypatch):
    """Stock caches list no checksums; a later start compares sizes and times of their files."""
    recorded = manifest.build(open_training_data(spec), ROWS, Start())
    manifest.publish(str(tmp_path), recorded)
    recorded = manifest.read(str(tmp_path))
    read = []
    binary = reading.binary
    monkeypatch.setattr(reading, "binary", lambda file: read.append(file) or binary(file))
    of_file = reading.object_facts.of_file
    monkeypatch.setattr(reading.object_facts, "of_file", lambda f: read.append(f) or of_file(f))
    data = open_training_data(spec)
    assert manifest.follow(str(tmp_path), recorded, data, ROWS, (0, None))[0] == recorded
    assert data.mixture.streams[0].source.cache.counts.sum() == tiny_caches.COUNTS["toy_a"]
    assert read == []
    touched = spec.tasks[0].cache_files[1]
    os.utime(touched, ns=(0, 0))
    current = manifest.build(open_training_data(spec), ROWS, Start(), recorded)
    assert set(read) == {touched}
    assert manifest.find_difference(recorded, current) is None


def test_manifest_of_a_bucket_reads_unchanged_files_only_once(spec, tmp_path, bucket, monkeypatch):
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            name = file.relative_to(tmp_path)
            write_whole(f"gs://b/{name}", file.read_bytes())
    moved = tuple(
        dataclasses.replace(
            task,
            cache_files=tuple(
                f"gs://b/{file[len(str(tmp_path)) + 1 :]}" for file in task.cache_files
            ),
        )
        for task in spec.tasks
    )
    spec = dataclasses.replace(spec, tasks=moved)
    recorded = manifest.build(open_training_data(spec), ROWS, Start())
    monkeypatch.setattr(reading, "binary", None)
    assert manifest.build(open_training_data(spec), ROWS, Start(), recorded) == recorded
    # For other object stores, TensorFlow's file system tells size and time.
    monkeypatch.undo()
    monkeypatch.setattr(reading.object_facts, "applies", lambda path: False)
    recorded = manifest.build(open_training_data(spec), ROWS, Start())
    monkeypatch.setattr(reading, "binary", None)
    assert manifest.build(open_training_data(spec), ROWS, Start(), recorded) == recorded
    assert min(shard.modified for shard in recorded.shards.values()) > 0


@pytest.mark.parametrize("content", ["", "{}", '{"batch": 0}', "[1"])
def test_manifest_that_is_damaged_is_refused(tmp_path, content):
    assert manifest.read(str(tmp_path)) is None
    (tmp_path / manifest.MANIFEST).write_text(content)
    with pytest.raises(UserError, match="data_manifest.json is damaged"):
        manifest.read(str(tmp_path))


def test_manifest_cache_with_missing_records_is_refused(spec, tmp_path):
    stats = tmp_path / "cache" / "toy_a" / "stats.train.json"
    stats.write_text('{"examples": 61}')
    task = dataclasses.replace(spec.tasks[0], examples=61)
    data = open_training_data(dataclasses.replace(spec, tasks=(task,)))
    with pytest.raises(UserError, match="toy_a has 60 records, but its stats file says 61"):
        manifest.build(data, ROWS, Start())


def test_manifest_is_not_needed_to_count_records_of_a_foreign_cache(tmp_path, monkeypatch):
    """Counting reads the lengths of the records, and no checksum of the whole file."""
    files = [tmp_path / f"train.tfrecord-0000{n}-of-00002" for n in range(2)]
    for count, file in zip((3, 5), files, strict=True):
        file.write_bytes(b"".join(tfrecord.framed(b"record") for _ in range(count)))
    monkeypatch.delattr(reading, "_compute_facts")
    assert reading.count_records(list(map(str, files))) == [3, 5]
