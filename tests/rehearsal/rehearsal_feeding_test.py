"""A rehearsal reads the run's own mixture, or random tokens."""

import itertools
import types

import cached_letters
import numpy as np
import planning
import pytest

from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.rehearsal import feeding


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
    return types.SimpleNamespace(additional_task_cache_dirs=[str(x) for x in folders])


def test_rehearsal_reads_the_batches_of_the_mixture(cached):
    read()
    vocabulary = feeding.check_mixture(flags(cached))
    assert feeding.vocabulary_size(vocabulary) == seqio.ByteVocabulary().vocab_size
    with feeding.open_mixture(vocabulary) as batches:
        steps = list(itertools.islice(batches, 6))
    seen = set()
    for batch in steps:
        assert {f"{name}_segmentation" for name in cached_letters.NAMES} < batch.keys()
        assert batch["inputs"].shape == (8, 12)
        assert batch["targets"].shape == (8, 6)
        seen |= set(np.unique(batch["inputs"]).tolist())
    assert seen <= {0, *range(2, 2 + cached_letters.COUNT)}
    assert len(seen) > cached_letters.COUNT / 2


def test_rehearsal_data_that_ends_gives_a_one_line_error(monkeypatch):
    run = planning.read(*planning.TINY, *planning.on_slice("v3-8", 2))
    batch = next(feeding.random_batches(run))
    monkeypatch.setattr(
        feeding.preflight,
        "training_input",
        lambda _: lambda params: tf.data.Dataset.from_tensors(batch),
    )
    with feeding.open_mixture(None) as batches:
        np.testing.assert_array_equal(next(batches)["inputs"], batch["inputs"])
        with pytest.raises(UserError, match="too few examples to fill a batch"):
            next(batches)


def test_rehearsal_of_uncached_mixture_is_refused(cached, tmp_path_factory):
    del cached
    read()
    with pytest.raises(UserError, match="1 of the 1 tasks of letters are not cached"):
        feeding.check_mixture(flags(tmp_path_factory.mktemp("empty")))


def test_rehearsal_vocabularies_of_two_sizes_are_refused():
    two = (seqio.ByteVocabulary(), seqio.ByteVocabulary(extra_ids=50))
    with pytest.raises(UserError, match="the vocabularies of inputs and targets have 259 and 309"):
        feeding.vocabulary_size(two)
