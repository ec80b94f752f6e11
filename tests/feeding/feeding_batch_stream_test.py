"""A stream has a run's batches in training order; TensorFlow's operations read it at any step."""

import dataclasses
import itertools
import multiprocessing

import numpy as np
import pytest

from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.feeding import batch_stream, host_graphs, manifest
from t0.feeding.batch_stream import stream_dataset
from t0.feeding.manifest import Start
from t0.feeding.training_data import open_training_data
from t0.feeding.uncached import elements
from t0.files import paths, publishing, write_whole
from tests.feeding import tiny_caches

ROWS, BEGAN, LAST = 4, 10, 33


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_stream, "_FILE_BYTES", 4000)  # ten steps in a file
    return tiny_caches.data_spec(tmp_path / "cache")


def write(spec, folder, first=BEGAN + 1, last=LAST, workers=1):
    data = open_training_data(spec)
    recorded = manifest.build(data, ROWS, Start(step=BEGAN))
    return list(
        batch_stream.write(str(folder), recorded, data, first=first, last=last, workers=workers)
    )


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def expected(spec, first, count):
    """The batches of steps, from an unbroken run."""
    batches = (batch for batch, _ in open_training_data(spec).batches(ROWS))
    return list(itertools.islice(batches, first - BEGAN - 1, first - BEGAN - 1 + count))


def check_equal(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].dtype == np.int32
            np.testing.assert_array_equal(mine[name], theirs[name])


@pytest.mark.parametrize("pack", [True, False])
def test_stream_is_read_from_the_step_of_any_checkpoint(spec, tmp_path, pack):
    spec = dataclasses.replace(spec, pack=pack)
    lines = write(spec, tmp_path / "s")
    assert lines[0].startswith("stream of steps 11 to 33: about 0.0 GB in ")
    stream = batch_stream.open_stream(str(tmp_path / "s"))
    assert len(stream.files) > 1
    for step in (BEGAN, 19, 20, 21, LAST - 1):
        found = list(elements(lambda step=step: stream_dataset(stream, step)))
        check_equal(found, expected(spec, step + 1, LAST - step))
    assert list(elements(lambda: stream_dataset(stream, LAST))) == []


def test_stream_continues_at_the_global_step_when_a_session_restarts(spec, tmp_path):
    write(spec, tmp_path / "s")
    stream = batch_stream.open_stream(str(tmp_path / "s"))
    with tf.Graph().as_default() as graph:
        step = tf.get_variable("step", initializer=np.int64(BEGAN), use_resource=True)
        iterator = tf.data.make_initializable_iterator(stream_dataset(stream, step))
        batch = iterator.get_next()
        for begin in (BEGAN, 25):
            with tf.Session(graph=graph) as session:
                session.run(step.initializer, {step.initializer.inputs[1]: begin})
                session.run(iterator.initializer)
                check_equal([session.run(batch)], expected(spec, begin + 1, 1))
    assert host_graphs.foreign_operations(graph) == {}


def test_stream_writing_continues_after_the_last_complete_file(spec, tmp_path):
    write(spec, tmp_path / "whole")
    writing = batch_stream.write(
        str(tmp_path / "s"),
        manifest.build(data := open_training_data(spec), ROWS, Start(step=BEGAN)),
        data,
        first=BEGAN + 1,
        last=LAST,
        workers=1,
    )
    next(writing), next(writing)  # the estimate and the first file
    writing.close()
    with pytest.raises(UserError, match="the stream .* is not finished"):
        batch_stream.open_stream(str(tmp_path / "s"))
    # Files that killed writers left. The process IDs are above the largest of any system.
    name = f"batches-00000001-00000002.tfrecord.0123.incomplete-{publishing._host()}-{2**30}-1"
    (tmp_path / "s" / name).write_bytes(b"half")
    lines = write(spec, tmp_path / "s")
    assert "1 of them written before" in lines[0]
    assert files(tmp_path / "s") == files(tmp_path / "whole")


def test_stream_in_a_bucket_equals_that_on_the_disk(spec, tmp_path, bucket):
    write(spec, tmp_path / "s")
    write(spec, "gs://b/s")
    stream = batch_stream.open_stream("gs://b/s")
    assert stream.files == batch_stream.open_stream(str(tmp_path / "s")).files
    found = list(elements(lambda: stream_dataset(stream, 30)))
    check_equal(found, expected(spec, 31, LAST - 30))
    name = stream.files[1].name
    write_whole(f"gs://b/s/{name}", paths.read_bytes(f"gs://b/s/{stream.files[0].name}"))
    with pytest.raises(UserError, match=f"{name}, with steps .* of the stream, is damaged"):
        batch_stream.open_stream("gs://b/s")
    paths.remove(f"gs://b/s/{name}")
    assert "written before" in write(spec, "gs://b/s")[0]
    assert batch_stream.open_stream("gs://b/s") == stream


@pytest.mark.slow
def test_stream_of_several_processes_is_the_same(spec, tmp_path):
    write(spec, tmp_path / "one")
    write(spec, tmp_path / "three", workers=3)
    assert files(tmp_path / "one") == files(tmp_path / "three")


@pytest.mark.slow
def test_stream_whose_worker_process_is_killed_can_be_continued(spec, tmp_path):
    data = open_training_data(spec)
    recorded = manifest.build(data, ROWS, Start(step=BEGAN))
    writing = batch_stream.write(
        str(tmp_path / "s"), recorded, data, first=BEGAN + 1, last=400, workers=2
    )
    next(writing), next(writing)  # the estimate and the first file
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(UserError, match="a process that packs examples has ended.*continues"):
        list(writing)


def test_stream_of_a_range_of_steps_has_the_same_batches(spec, tmp_path):
    write(spec, tmp_path / "s", first=18, last=27)
    stream = batch_stream.open_stream(str(tmp_path / "s"))
    found = list(elements(lambda: stream_dataset(stream, 20)))
    check_equal(found, expected(spec, 21, 7))
    current = manifest.build(open_training_data(spec), ROWS, Start())
    stream.check(current, done=17, last=27)
    for done, last in ((16, 27), (17, 28)):
        with pytest.raises(UserError, match="has steps 18 to 27, and the run needs"):
            stream.check(current, done=done, last=last)


@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_stream_with_a_bad_file_is_refused_by_name_and_mended(spec, tmp_path, fault):
    write(spec, tmp_path / "s")
    before = files(tmp_path / "s")
    shard = sorted((tmp_path / "s").glob("batches-*"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.unlink()
    if fault == "damaged":
        shard.write_bytes(content)
    with pytest.raises(UserError, match=f"{shard.name}, with steps .* of the stream, is {fault}"):
        batch_stream.open_stream(str(tmp_path / "s"))
    lines = write(spec, tmp_path / "s")
    assert "2 of them written before" in lines[0]
    assert files(tmp_path / "s") == before


def test_stream_of_another_run_is_refused(spec, tmp_path):
    write(spec, tmp_path / "s")
    stream = batch_stream.open_stream(str(tmp_path / "s"))
    longer = dataclasses.replace(spec, lengths={"inputs": 16, "targets": 9})
    other = manifest.build(open_training_data(longer), ROWS, Start())
    with pytest.raises(UserError, match=r"is of another run: lengths was .*: 8.*, now .*: 9"):
        stream.check(other, done=BEGAN, last=LAST)
    other = manifest.build(open_training_data(spec), 8, Start())
    with pytest.raises(UserError, match="is of another run: the batch was 4, now 8"):
        stream.check(other, done=BEGAN, last=LAST)
    with pytest.raises(UserError, match="has the stream of another run: seed was 3, now 4"):
        write(dataclasses.replace(spec, seed=4), tmp_path / "s")
    assert batch_stream.open_stream(str(tmp_path)) is None
    # Without a manifest, the run of the files is unknown.
    (tmp_path / "s" / manifest.MANIFEST).unlink()
    with pytest.raises(UserError, match="of another run: its data_manifest.json is missing. Ch"):
        write(dataclasses.replace(spec, seed=4), tmp_path / "s")


@pytest.mark.parametrize("content", ["", "[]", "{}", '[{"name": "../x"}]'])
def test_stream_with_a_damaged_list_is_refused(spec, tmp_path, content):
    write(spec, tmp_path / "s")
    (tmp_path / "s" / batch_stream.STREAM).write_text(content)
    with pytest.raises(UserError, match=r"stream\.json is damaged"):
        batch_stream.open_stream(str(tmp_path / "s"))
