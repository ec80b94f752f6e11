"""The line about a perplexity; whole runs are in tests/end_to_end."""

import math

import numpy as np
import tensorflow.compat.v1 as tf

from t0.evaluation.perplexity import with_printed_perplexity
from t0.training.graph import build_held_out
from tests.training.tiny_training import LENGTHS, training_spec

FOUND = {
    "global_step": 1200,
    "neg_log_perplexity": -math.log(8),
    "token_accuracy": 0.25,
    "sequence_accuracy": 0.125,
    "num_eval_tokens": 4096.0,
}


def test_perplexity_is_printed_and_returned_by_the_estimator(capsys):
    class Estimator:
        def __init__(self, given):
            self.given = given
            self.found = FOUND

        def evaluate(self, input_fn, *, name, steps):
            assert (input_fn, steps) == ("inputs", 2)
            return self.found

    estimator = with_printed_perplexity(lambda **keywords: Estimator(keywords))(mesh_shape="")
    assert estimator.given == {"mesh_shape": ""}
    assert estimator.evaluate("inputs", name="rte_validation_64", steps=2) is FOUND
    assert capsys.readouterr().out == (
        "rte_validation_64, step 1,200: 2.0794 nats a token, perplexity 8, "
        "token accuracy 25.0 %, 4,096 tokens\n"
    )
    estimator.found = {**FOUND, "neg_log_perplexity": -1e9}
    estimator.evaluate("inputs", name="x", steps=2)
    assert "perplexity 1.014e+304" in capsys.readouterr().out


def test_perplexity_sums_do_not_depend_on_batch_or_order():
    spec = training_spec(rows=4)
    held_out = build_held_out(spec, features=tuple(LENGTHS), activations=tf.float32)
    rng = np.random.default_rng(3)
    lengths = {"inputs": [12, 3, 7, 1], "targets": [2, 6, 1, 4]}
    rows = {name: np.zeros((4, length), np.int32) for name, length in LENGTHS.items()}
    for name, counts in lengths.items():
        for row, count in zip(rows[name], counts, strict=True):
            row[:count] = [*rng.integers(2, 60, count - 1), 1]
    with tf.Session(graph=held_out.graph) as session:
        with held_out.graph.as_default():
            session.run(tf.global_variables_initializer())
        session.run(held_out.to_slices)

        def sums(*chosen):  # of some rows; a batch is filled with empty rows
            feed = {}
            for name, values in rows.items():
                feed[held_out.features[name]] = np.zeros_like(values)
                feed[held_out.features[name]][: len(chosen)] = values[[*chosen]]
            return session.run(held_out.values, feed)[1:]

        together, backwards = sums(0, 1, 2, 3), sums(3, 2, 1, 0)
        alone = np.sum([sums(number) for number in range(4)], axis=0)
    assert together.min() >= 0 and together.max() > 10
    np.testing.assert_allclose(backwards, together, rtol=1e-5)
    np.testing.assert_allclose(alone, together, rtol=1e-5)
