"""How a task's directory appears: whole, at once, and never two runs' files mixed."""

import json

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from t0.caching import cache_files, parts
from t0.caching.cache_files import publish
from t0.errors import UserError
from t0.files import OutputError, tf_examples, tfrecord

MANIFEST = {"schema": 1, "splits": {"train": {"examples": 1, "files": {"x": {"bytes": 4}}}}}


@pytest.fixture(params=["local", "remote"])
def root(request, tmp_path):
    """A directory of the machine, and one of TensorFlow's file systems."""
    return str(tmp_path) if request.param == "local" else f"ram://{tmp_path.name}"


def write(path, text="text"):
    tf.io.gfile.makedirs(path.rpartition("/")[0])
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)


def read(path):
    with tf.io.gfile.GFile(path) as file:
        return file.read()


def test_cache_publish_writes_completed_marker(root):
    write(f"{root}/a.incomplete-h-1-2/x")
    assert not cache_files.is_finished(f"{root}/a")
    assert publish(f"{root}/a.incomplete-h-1-2", f"{root}/a", MANIFEST, replace=False)
    written = json.loads(read(f"{root}/a/COMPLETED"))
    assert len(written.pop("checksum")) == 64
    assert written == MANIFEST
    assert read(f"{root}/a/x") == "text"
    assert cache_files.is_finished(f"{root}/a")
    assert not tf.io.gfile.exists(f"{root}/a.incomplete-h-1-2")


def test_cache_publish_first_run_to_finish_wins(root):
    for pid in (1, 2):
        write(f"{root}/a.incomplete-h-{pid}-0/x", f"of {pid}")
    assert publish(f"{root}/a.incomplete-h-1-0", f"{root}/a", MANIFEST, replace=False)
    assert not publish(f"{root}/a.incomplete-h-2-0", f"{root}/a", MANIFEST, replace=False)
    assert read(f"{root}/a/x") == "of 1"
    assert not tf.io.gfile.exists(f"{root}/a.incomplete-h-2-0")


@pytest.mark.parametrize("finished", [True, False])
def test_cache_publish_replaces_the_whole_folder(root, finished):
    write(f"{root}/a/train.tfrecord-00000-of-00007", "old")
    write(f"{root}/a/info.train.json", "old")
    if finished:
        write(f"{root}/a/COMPLETED", "")
    write(f"{root}/a.incomplete-h-1-0/x")
    assert publish(f"{root}/a.incomplete-h-1-0", f"{root}/a", MANIFEST, replace=finished)
    assert sorted(tf.io.gfile.listdir(f"{root}/a")) == ["COMPLETED", "x"]
    assert [name.strip("/") for name in tf.io.gfile.listdir(root)] == ["a"]


@pytest.mark.parametrize("failing", ["rename", "remove"])
def test_cache_publish_removes_remote_completed_marker_first(tmp_path, monkeypatch, failing):
    root = f"ram://{tmp_path.name}"
    write(f"{root}/a/x", "old")
    write(f"{root}/a/AA", "old")
    write(f"{root}/a/COMPLETED", "")
    write(f"{root}/a.incomplete-h-1-0/x")

    working = getattr(tf.io.gfile, failing)

    def fail(path, *args, **kwargs):
        if path.endswith("COMPLETED"):
            return working(path, *args, **kwargs)
        raise tf.errors.UnavailableError(None, None, "the network is down")

    monkeypatch.setattr(tf.io.gfile, failing, fail)
    with pytest.raises(OutputError, match="the network is down"):
        publish(f"{root}/a.incomplete-h-1-0", f"{root}/a", MANIFEST, replace=True)
    assert not cache_files.is_finished(f"{root}/a")


def test_cached_splits_are_found_from_info_files(tmp_path):
    for name in ("info.train.json", "info.a.b.json", "stats.train.json", "info.json"):
        write(f"{tmp_path}/{name}")
    assert cache_files.cached_splits(str(tmp_path)) == {"train", "a.b"}


@pytest.mark.parametrize(
    "splits", [None, 5, {"train": 5}, {"train": {"files": {"x": {"bytes": "1", "sha256": ""}}}}]
)
def test_cache_manifest_without_file_list_is_refused(splits):
    content = cache_files.with_checksum({"schema": 1, "splits": splits})
    with pytest.raises(ValueError, match="does not list files"):
        cache_files.checked_manifest(content)


@pytest.mark.parametrize("name", ["../x", "a/b", ".."])
def test_cache_part_path_outside_its_folder_is_refused(tmp_path, name):
    (tmp_path / "parts").mkdir()
    with pytest.raises(UserError, match="would be written elsewhere"):
        parts.PartWriter(str(tmp_path / "parts"), name)
    assert [path.name for path in tmp_path.rglob("*")] == ["parts"]


@hypothesis.settings(
    max_examples=50, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    numbers=st.tuples(st.integers(0, 25), st.integers(0, 25)),
    block=st.integers(1, 40),
)
def test_cache_parts_are_cut_at_records(tmp_path, counts, numbers, block):
    frames, sources = [], []
    for part, count in enumerate(counts):
        own = [tfrecord.framed(bytes([part]) * (3 * number)) for number in range(count)]
        with parts.PartWriter(str(tmp_path), f"{part}.part") as writer:
            writer.append(own)
            sources.append((str(tmp_path / f"{part}.part"), 0, writer.finish({})))
        frames += own
    start, stop = sorted(numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_files, "COPIED_BYTES", block)
        patch.setattr(tfrecord, "_BLOCK_BYTES", 12 + block)
        assert b"".join(cache_files._read_range(sources, start, stop)) == b"".join(
            frames[start:stop]
        )


@pytest.mark.parametrize("row", [0, 127, 128, 20_000, 2**40])
def test_cache_record_row_number_is_renumbered(row):
    rest = tf_examples.ints_entry("inputs", [3, 4])
    before, after = (
        tf_examples.example(tf_examples.ints_entry("idx", [number, 200]) + rest)
        for number in (row + 9, row)
    )
    assert cache_files._renumber(before, -9) == after
