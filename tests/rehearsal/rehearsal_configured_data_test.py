"""The run's own mixture, as TPUEstimator would be given it, reaches every core."""

import itertools

import numpy as np
import pytest

from t0.compat import seqio
from t0.config.flags import from_values
from t0.errors import UserError
from t0.rehearsal import feeding
from t0.rehearsal.feeding import open_batches, other_batches
from tests.helpers import cached_letters
from tests.mesh import planning


@pytest.fixture
def cached(tmp_path, clean_registries):
    del clean_registries
    cached_letters.write_cache(tmp_path / "letters")
    cached_letters.add_task("letters", metric_fns=[])
    before = list(seqio.get_global_cache_dirs())
    yield tmp_path
    seqio.set_global_cache_dirs(before)


def read():
    return planning.read(
        *planning.TINY,
        *planning.on_slice("v3-8", 2),
        "MIXTURE_NAME = 'letters'",
        "mesh_train_dataset_fn.use_cached = True",
        "run.sequence_length = {'inputs': 12, 'targets': 6}",
        "run.batch_size = ('sequences_per_batch', 8)",
    )


def flags(*folders):
    return from_values({"additional_task_cache_dirs": [str(x) for x in folders]})


def test_rehearsal_feeds_mixture_batches_to_every_core(cached):
    run = read()
    vocabulary = feeding.check_mixture(flags(cached))
    assert feeding.vocabulary_size(vocabulary) == seqio.ByteVocabulary().vocab_size
    with open_batches(run, feeding.configured_input(vocabulary)) as batches:
        steps = list(itertools.islice(batches, 6))
    seen = set()
    for cores in steps:
        assert len(cores) == run.slice_.cores
        assert other_batches(cores) == []
        batch = cores[0]
        assert {f"{name}_segmentation" for name in cached_letters.NAMES} < batch.keys()
        assert batch["inputs"].shape == (8, 12)
        assert batch["targets"].shape == (8, 6)
        seen |= set(np.unique(batch["inputs"]).tolist())
    assert seen <= {0, *range(2, 2 + cached_letters.COUNT)}
    assert len(seen) > cached_letters.COUNT / 2


def test_rehearsal_of_uncached_mixture_is_refused(cached, tmp_path_factory):
    del cached
    read()
    with pytest.raises(UserError, match="1 of the 1 tasks of letters are not cached"):
        feeding.check_mixture(flags(tmp_path_factory.mktemp("empty")))


def test_rehearsal_vocabularies_of_two_sizes_are_refused():
    two = (seqio.ByteVocabulary(), seqio.ByteVocabulary(extra_ids=50))
    with pytest.raises(UserError, match="the vocabularies of inputs and targets have 259 and 309"):
        feeding.vocabulary_size(two)
