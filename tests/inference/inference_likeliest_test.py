"""The likeliest tokens are those of float32 logits, whatever a product rounds."""

import numpy as np
import pytest

from t0 import compat

compat.apply()

import tensorflow.compat.v1 as tf  # noqa: E402
from tiny_generation import LIMITS, ending_variables, make_generator, predict  # noqa: E402
from tiny_models import write_checkpoint  # noqa: E402

from t0.inference import likeliest  # noqa: E402
from t0.mesh.devices import multiplies_bfloat16  # noqa: E402

# Another kernel computes these products elsewhere, and cuts instead of rounding.
pytestmark = pytest.mark.skipif(
    not multiplies_bfloat16(), reason="this processor does not multiply bfloat16 numbers"
)

ROWS, WIDTH, VOCABULARY = 9, 48, 8192


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(n, WIDTH)).astype("bfloat16") for n in (ROWS, VOCABULARY))


def found(hidden, table):
    with tf.Graph().as_default(), tf.Session() as session:
        # Fed: constants would be multiplied by another kernel, which cuts instead of rounding.
        fed = {tf.placeholder(tf.bfloat16, x.shape): x for x in (hidden, table)}
        return session.run(likeliest.likeliest(*fed), fed)


def expected(hidden, table):
    logits = hidden.astype(np.float64) @ table.astype(np.float64).T
    top = logits.max(-1)
    return logits.argmax(-1), -np.log(np.exp(logits - top[:, None]).sum(-1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0])
def test_tokens_are_those_of_all_logits(seed, scale):
    hidden, table = drawn(seed)
    hidden = (hidden * scale).astype(hidden.dtype)
    tokens, nats = found(hidden, table)
    best, scores = expected(hidden, table)
    assert tokens.tolist() == best.tolist()
    assert nats == pytest.approx(scores, abs=2e-3)


@pytest.mark.parametrize("size", [128 * 40, 128 * 4, 1000])
def test_the_largest_are_in_order_and_of_equals_the_first(size):
    # Many equal numbers, in parts whose largest differ.
    rows = np.random.default_rng(0).integers(0, size // 3, (50, size)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        few, places = session.run(likeliest.largest(tf.constant(rows), 16))
    assert places.tolist() == np.argsort(-rows, -1, kind="stable")[:, :16].tolist()
    assert few.tolist() == np.take_along_axis(rows, places, -1).tolist()


@pytest.fixture
def whole(monkeypatch):
    """The number of times that a graph computed all logits in float32."""
    computed = []
    compute = likeliest._in_float32

    def counted(hidden, table):
        with tf.control_dependencies([tf.py_func(lambda: computed.append(1), [], [])]):
            return compute(tf.identity(hidden), table)

    monkeypatch.setattr(likeliest, "_in_float32", counted)
    return computed


def test_a_hundred_tokens_that_rounding_makes_equal_are_told_apart(whole):
    hidden, table = drawn()
    found(hidden, table)
    assert not whole
    # Their logits differ by less than 1/256, and are the largest of one row.
    table[1000:1100] = hidden[3]
    table[1000:1100, 0] += np.linspace(0, 0.5, 100).astype(table.dtype)
    tokens, nats = found(hidden, table)
    assert whole
    logits = hidden.astype(np.float64) @ table.astype(np.float64).T
    assert logits[range(ROWS), tokens] == pytest.approx(logits.max(-1), abs=1e-6)
    assert nats[3] == pytest.approx(expected(hidden, table)[1][3], abs=1e-5)
    # The other rows are not changed by it.
    alone = [found(hidden[row : row + 1], table)[1][0] for row in range(ROWS)]
    assert nats == pytest.approx(alone, abs=1e-6)


def test_a_rounded_logit_does_not_displace_a_larger_one():
    hidden, table = np.ones((1, 2)), np.zeros((4096, 2))
    table[[7, 9]] = [1.0, 2.0**-8 + 2.0**-10], [1.0, 2.0**-8 + 2.0**-9]
    rounded = (hidden @ table.T).astype("bfloat16")
    assert rounded[0, 7] == rounded[0, 9]
    assert found(hidden.astype("bfloat16"), table.astype("bfloat16"))[0].tolist() == [9]


@pytest.mark.parametrize("model", ["t5.1.1", "t5.1.0"])
def test_predictions_in_bfloat16_are_those_of_float32_logits(tmp_path, monkeypatch, model):
    checkpoint = write_checkpoint(tmp_path, ending_variables(model))
    used = []
    compute = likeliest.likeliest
    monkeypatch.setattr(likeliest, "likeliest", lambda *a: used.append(1) or compute(*a))
    predicted = []
    for places in (8, 128):  # of the tiny vocabulary of 128, as many parts as it takes, and too few
        monkeypatch.setattr(likeliest, "_PLACES", places)
        monkeypatch.setattr(likeliest, "_CANDIDATES", 4)
        generator = make_generator(model=model, activations=tf.bfloat16)
        generator.restore(checkpoint)
        predicted.append(predict(generator))
        generator.close()
        assert bool(used) == (places == 8)
        used.clear()
    assert max(LIMITS) > 30
    for (tokens, score), (other, whole) in zip(*predicted, strict=True):
        assert tokens == other
        assert score == pytest.approx(whole, abs=1e-3 * len(tokens))
