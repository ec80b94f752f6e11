"""What a run changes in its process is undone."""

import tensorflow as tf
from tensorflow.python.eager import context

from t0.run import configure


def test_reset_forgets_the_global_seed_that_perplexity_evaluation_sets(monkeypatch):
    # `reset` removes these two, which the next test may need.
    monkeypatch.setenv("T0_DATA_DIR", "data")
    monkeypatch.setenv("T0_VOCAB", "vocabulary")
    tf.random.set_seed(12345)
    configure.reset()
    assert context.global_seed() is None
