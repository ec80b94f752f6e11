"""The searches by themselves, over tables of what follows a token: many small cases."""

import numpy as np
import pytest

from t0 import compat
from tests.inference.slow_search import SlowSearch

compat.apply()

import tensorflow.compat.v1 as tf  # noqa: E402

from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.inference.search import _largest, search  # noqa: E402

EXAMPLES, WORDS, LENGTH = 300, 7, 8
RNG = np.random.default_rng(11)
# Of every step its own: else many orders of the same tokens would have one score.
TABLES = RNG.normal(size=(EXAMPLES, LENGTH, WORDS, WORDS)).astype(np.float32)
LIMITS = RNG.integers(0, LENGTH + 1, EXAMPLES).astype(np.int32)
DRAWS = RNG.random((EXAMPLES, LENGTH), np.float32)


class TableSearch(SlowSearch):
    """A model that knows the step and the last token."""

    def __init__(self, table):
        nats = np.asarray(table, np.float64)
        self._table = nats - np.log(np.exp(nats).sum(-1, keepdims=True))

    def _memory(self, inputs):
        return None

    def _next(self, memory, tokens):
        return self._table[len(tokens), tokens[-1] if tokens else 0]


def found(method):
    chosen = search(method)
    with tf.Graph().as_default(), tf.Session() as session:
        limits, tables = tf.constant(LIMITS), tf.constant(TABLES)
        state = dict(zip(chosen.fields, chosen.start(limits, LENGTH), strict=True))
        running = [state["running"]]
        for step in range(LENGTH):
            logits = tf.gather(tables[:, step], state["tokens"], batch_dims=1)
            now = tf.constant(step)
            following = chosen.step(now, logits, limits, tf.constant(DRAWS), *state.values())
            state = dict(zip(chosen.fields, following, strict=True))
            running.append(state["running"])
        return session.run([state["ids"], state["score"], tf.stack(running)])


def expected(row, method):
    slow = TableSearch(TABLES[row])
    if method.beam_size > 1:
        return slow.beams(None, LIMITS[row], method.beam_size, method.alpha)
    if method.temperature:
        return slow.sample(None, LIMITS[row], DRAWS[row], method.temperature, method.top_k)
    return slow.greedy(None, LIMITS[row])


@pytest.mark.parametrize(
    "method",
    [
        DecodingMethod(),
        DecodingMethod(temperature=0.6),
        DecodingMethod(temperature=1.5, top_k=3),
        DecodingMethod(beam_size=2, alpha=0.0),
        DecodingMethod(beam_size=2, alpha=1.0),
        DecodingMethod(beam_size=3, alpha=0.6),
        DecodingMethod(beam_size=5, alpha=2.0),
    ],
    ids=str,
)
def test_beam_search_and_sampling_equal_a_simple_search(method):
    ids, scores, running = found(method)
    steps = set()
    for row, limit in enumerate(LIMITS):
        tokens, score = expected(row, method) if limit else ([], 0.0)
        assert ids[row].tolist() == tokens + [0] * (LENGTH - len(tokens))
        assert scores[row] == pytest.approx(score, abs=1e-4)
        steps.add((int(running[:, row].sum()), int(limit)))
    # Some examples end before their limit, and all at it.
    assert any(took < limit for took, limit in steps)
    assert all(took <= limit for took, limit in steps)


@pytest.mark.parametrize("size", [128 * 40, 128 * 4, 1000])
def test_top_k_selection_is_ordered_and_takes_first_of_ties(size):
    # Many equal numbers, in parts whose largest differ.
    rows = np.random.default_rng(0).integers(0, size // 3, (50, size)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        few, places = session.run(_largest(tf.constant(rows), 16))
    assert places.tolist() == np.argsort(-rows, -1, kind="stable")[:, :16].tolist()
    assert few.tolist() == np.take_along_axis(rows, places, -1).tolist()
