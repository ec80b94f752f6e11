"""A pod that is stopped at any step and restarted sees the batches of an unbroken run."""

import contextlib
import random

import pytest

from t0.compat import seqio
from t0.errors import UserError
from t0.feeding.batch_stream import stream_dataset
from t0.rehearsal import feeding
from t0.rehearsal.feeding import open_batches
from t0.rehearsal.restarting import feed_with_restart, rehearse_restart
from tests.helpers import cached_letters
from tests.mesh import planning

STEPS = 30


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A slice's run, and a function that opens its batches from a step on, through a stream."""
    folder = tmp_path_factory.mktemp("restarting")
    cached_letters.write_cache(folder / "letters")
    before = list(seqio.get_global_cache_dirs())
    seqio.set_global_cache_dirs([str(folder)])
    cached_letters.add_task("letters", metric_fns=[])
    run = read()
    stream = feeding.write_stream(run, str(folder / "stream"), steps=STEPS)
    yield run, lambda step: open_batches(run, lambda _: stream_dataset(stream, step))
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
    def open(cls):
        return contextlib.nullcontext(cls())

    def initialise(self):
        pass

    def restore(self, prefix):
        assert prefix in OnlyReads.saved

    def step(self, cores):
        pass

    def save(self, prefix):
        OnlyReads.saved |= {prefix}


@pytest.fixture(scope="module")
def unbroken(letters):
    hashes = feed_with_restart(OnlyReads.open, letters[1], steps=STEPS, kill_at=None)
    assert list(hashes) == list(range(1, STEPS + 1))
    assert len({cores[0] for cores in hashes.values()}) == STEPS
    return hashes


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_restart_after_random_kills_equals_the_unbroken_run(letters, unbroken, kills):
    draws = random.Random(kills)
    for _ in range(kills):
        kill_at = draws.randrange(1, STEPS)
        hashes = feed_with_restart(OnlyReads.open, letters[1], steps=STEPS, kill_at=kill_at)
        assert hashes == unbroken, kill_at


def test_restart_that_reads_other_batches_is_found(letters):
    def begins_again(step):
        return letters[1](0)

    with pytest.raises(UserError, match="after the restart, step 11 got another batch"):
        feed_with_restart(OnlyReads.open, begins_again, steps=STEPS, kill_at=12)


@pytest.mark.slow
def test_restart_of_the_cores_program_writes_the_same_hashes(letters, unbroken, tmp_path, capsys):
    run, batches_from = read(), letters[1]
    path = tmp_path / "hashes"
    rehearse_restart(run, batches_from, steps=12, kill_at=7, file=str(path))
    assert (
        "stopped after step 7, restarted from the checkpoint of step 5" in capsys.readouterr().out
    )
    lines = [line.split() for line in path.read_text().splitlines()]
    assert lines == [
        [str(step), str(core), digest]
        for step in range(1, 13)
        for core, digest in enumerate(unbroken[step])
    ]
