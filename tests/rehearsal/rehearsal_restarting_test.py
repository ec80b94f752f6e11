"""A pod that is stopped at any step and restarted sees the batches of an unbroken run."""

import contextlib
import random

import cached_letters
import planning
import pytest

from t0.compat import seqio
from t0.errors import UserError
from t0.feeding import batch_stream
from t0.rehearsal import restarting
from t0.rehearsal.restarting import feed_with_restart, rehearse_restart

STEPS = 30


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A slice's run and the stream of its batches."""
    folder = tmp_path_factory.mktemp("restarting")
    cached_letters.write_cache(folder / "letters")
    before = list(seqio.get_global_cache_dirs())
    seqio.set_global_cache_dirs([str(folder)])
    cached_letters.add_task("letters", metric_fns=[])
    run = read()
    yield run, restarting.write_stream(run, str(folder / "stream"), steps=STEPS)
    seqio.TaskRegistry.remove("letters")
    seqio.set_global_cache_dirs(before)


def read():
    return planning.read(
        *planning.TINY,
        *planning.on_slice("1x1", 2),
        "num_layers = 1",
        "MIXTURE_NAME = 'letters'",
        "mesh_train_dataset_fn.use_cached = True",
        "run.sequence_length = {'inputs': 12, 'targets': 6}",
        "run.batch_size = ('sequences_per_batch', 4)",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
    )


class OnlyReads:
    """Stands for the programs of a pod, and only reads their batches."""

    saved = frozenset()

    @classmethod
    def open(cls, run):
        return contextlib.nullcontext(cls())

    def initialise(self):
        pass

    def restore(self, prefix):
        assert prefix in OnlyReads.saved

    def step(self, batch):
        pass

    def save(self, prefix):
        OnlyReads.saved |= {prefix}


@pytest.fixture
def only_reads(monkeypatch):
    monkeypatch.setattr(restarting, "VirtualPod", OnlyReads)


@pytest.fixture(scope="module")
def unbroken(letters):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restarting, "VirtualPod", OnlyReads)
        hashes = feed_with_restart(*letters, steps=STEPS, kill_at=None)
    assert list(hashes) == list(range(1, STEPS + 1))
    assert len(set(hashes.values())) == STEPS
    return hashes


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_restart_after_random_kills_equals_the_unbroken_run(letters, unbroken, only_reads, kills):
    draws = random.Random(kills)
    for _ in range(kills):
        kill_at = draws.randrange(1, STEPS)
        hashes = feed_with_restart(*letters, steps=STEPS, kill_at=kill_at)
        assert hashes == unbroken, kill_at


def test_restart_that_reads_other_batches_is_found(letters, only_reads, monkeypatch):
    whole = batch_stream.stream_dataset
    monkeypatch.setattr(batch_stream, "stream_dataset", lambda stream, step: whole(stream, 0))
    with pytest.raises(UserError, match="after the restart, step 11 got another batch"):
        feed_with_restart(*letters, steps=STEPS, kill_at=12)


@pytest.mark.slow
def test_restart_of_the_cores_program_writes_the_same_hashes(letters, unbroken, tmp_path, capsys):
    path = tmp_path / "hashes"
    rehearse_restart(read(), steps=12, kill_at=7, hashes_file=str(path))
    assert (
        "stopped after step 7, restarted from the checkpoint of step 5" in capsys.readouterr().out
    )
    lines = [line.split() for line in path.read_text().splitlines()]
    assert lines == [
        [str(step), str(core), unbroken[step]] for step in range(1, 13) for core in range(2)
    ]
