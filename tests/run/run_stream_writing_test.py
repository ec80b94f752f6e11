"""A stream has the batches of its run, also after the run has begun."""

import pytest

from t0.errors import UserError
from t0.feeding import batch_stream, manifest
from t0.feeding.manifest import Start
from t0.feeding.training_data import open_training_data
from t0.run import stream_writing
from tests.feeding import tiny_caches

ROWS = 4


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a stream of a run whose latest checkpoint has the step `done`."""

    def run(done, steps=None, **changes):
        data = open_training_data(tiny_caches.data_spec(tmp_path / "cache", **changes))
        arguments = {
            "model_dir": str(tmp_path / "model"),
            "init_checkpoint": None,
            "batch_size": ROWS,
            "ensemble_inputs": None,
            "train_steps": 12,
            "train_dataset_fn": None,
            "sequence_length": tiny_caches.LENGTHS,
            "vocabulary": None,
            "dataset_split": "train",
        }
        monkeypatch.setattr(stream_writing.run_arguments, "read", lambda passed: arguments)
        monkeypatch.setattr(stream_writing, "open_dataset_function", lambda *_, **__: data)
        monkeypatch.setattr(stream_writing.checkpointing, "steps_done", lambda folder: done)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
        stream_writing.write_stream(str(tmp_path / "stream"), {}, steps)
        return batch_stream.open_stream(str(tmp_path / "stream"))

    return run


def test_stream_is_written_again_after_a_tpu_has_trained(write, tmp_path):
    stream = write(done=0)
    manifest.publish(str(tmp_path / "model"), stream.manifest)  # as a TPU's run does
    (tmp_path / "stream" / stream.files[0].name).unlink()
    assert write(done=8) == stream


def test_stream_begins_where_the_run_began(write, tmp_path):
    data = open_training_data(tiny_caches.data_spec(tmp_path / "cache"))
    recorded = manifest.build(data, ROWS, Start(step=5, window=1, row=3))
    manifest.publish(str(tmp_path / "model"), recorded)
    assert write(done=8).manifest.start == Start(step=5, window=1, row=3)


def test_stream_of_other_data_than_the_run_began_with_is_refused(write, tmp_path):
    manifest.publish(str(tmp_path / "model"), write(done=0).manifest)
    with pytest.raises(UserError, match="does not fit .*model/data_manifest.json: seed was 3, now"):
        write(done=8, seed=4)
