"""Every core of a slice is fed what TPUEstimator's own operations enqueue for it."""

import itertools

import numpy as np
import pytest

from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.rehearsal.feeding import open_batches, other_batches, random_batches, random_input
from tests.mesh import planning


def read(name):
    return planning.read(*planning.TINY, *planning.on_slice(name, 2))


@pytest.mark.parametrize("name", ["v3-8", "v3-32", "v4-16"])
def test_rehearsal_feeds_the_global_batch_to_every_core(name):
    run = read(name)
    with open_batches(run, random_input(run)) as batches:
        steps = list(itertools.islice(batches, 2))
    for cores, expected in zip(steps, random_batches(run), strict=False):
        assert len(cores) == run.slice_.cores
        assert other_batches(cores) == []
        assert cores[0].keys() == expected.keys()
        for feature, value in expected.items():
            np.testing.assert_array_equal(cores[-1][feature], value)
    assert other_batches([steps[0][0], steps[1][0]])[0][0] == 1


def test_rehearsal_data_that_ends_gives_a_one_line_error():
    run = read("v3-8")

    def one(params):
        del params
        return tf.data.Dataset.from_tensors(next(random_batches(run)))

    with open_batches(run, one) as batches:
        next(batches)
        with pytest.raises(UserError, match="too few examples to fill a batch"):
            next(batches)


def test_rehearsal_input_function_without_dataset_is_refused():
    run = read("v3-8")

    def tensors(params):
        del params
        return {name: tf.constant(x) for name, x in next(random_batches(run)).items()}

    with (
        pytest.raises(UserError, match=r"returns no tf\.data\.Dataset"),
        open_batches(run, tensors),
    ):
        pass
