"""Adafactor in few passes takes the paper's steps, also by the rows that a batch looks up."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_training as tiny

from t0.mesh.gather_embedding import bind_gather_embedding
from t0.training import adafactor


def reference_adafactor(weights, gradients, rate):
    """Adafactor as in Shazeer and Stern (2018), algorithms 4 and 5, in float64."""
    w = weights.astype(np.float64)
    row = column = v = 0.0
    for step, gradient in enumerate(gradients):
        g = gradient.astype(np.float64)
        beta = 1.0 - (step + 1.0) ** -0.8
        scale = max(np.sqrt(np.mean(w**2)), 1e-3) * rate
        if w.ndim == 2:
            row = beta * row + (1 - beta) * np.mean(g**2 + 1e-30, axis=1)
            column = beta * column + (1 - beta) * np.mean(g**2 + 1e-30, axis=0)
            second = np.outer(row, column) / np.mean(row)
        else:
            second = v = beta * v + (1 - beta) * (g**2 + 1e-30)
        update = g / np.sqrt(second)
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        w = w - scale * update
    return w


@pytest.mark.parametrize("shape", [(128, 150), (150, 128), (33, 7), (40,)])
def test_adafactor_steps_equal_the_paper(either_way, shape):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=shape).astype(np.float32)
    gradients = [rng.normal(size=shape).astype(np.float32) * 3 for _ in range(4)]
    axes = None if len(shape) == 1 else ((1, 0) if shape[1] > shape[0] else (0, 1))
    old = [np.zeros(shape, np.float32)]
    if axes:
        old = [np.zeros(shape[1 - axis], np.float32) for axis in axes]
    rule = adafactor.StepRule(axes=axes, clip=1.0, epsilon1=1e-30, epsilon2=1e-3, scaled=True)
    now = weights
    with tf.Graph().as_default(), tf.Session() as session:
        for number, gradient in enumerate(gradients):
            decay = tf.constant(1.0 - (number + 1.0) ** -0.8, tf.float32)
            given = [tf.constant(x) for x in (gradient, now, *old)]
            made = adafactor.step(rule, tf.constant(0.01), decay, *given)
            assert len(made[1]) == 1 + len(old)
            (squares, sizes), (new, *old) = session.run(made)
            assert squares == pytest.approx(np.sum(gradient.astype(float) ** 2), rel=1e-5)
            assert sizes == pytest.approx(np.sum(now.astype(float) ** 2), rel=1e-5)
            now = new
    wanted = reference_adafactor(weights, gradients, 0.01)
    np.testing.assert_allclose(now, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
def test_adafactor_sparse_embedding_rows_equal_dense_gradient(axes):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(50, 8)).astype(np.float32)
    old = [rng.uniform(1, 2, size=weights.shape[1 - axis]).astype(np.float32) for axis in axes]
    ids = [np.array([[3, 7, 3]]), np.array([[49, 7]])]
    pairs = [(rng.normal(size=(*x.shape, 8)).astype(np.float32), x) for x in ids]
    dense = np.zeros_like(weights)
    for dy, x in pairs:
        np.add.at(dense, x, dy)
    rule = adafactor.StepRule(axes=axes, clip=1.0, epsilon1=1e-30, epsilon2=1e-3, scaled=True)
    with tf.Graph().as_default(), tf.Session() as session:
        numbers = tf.constant(0.01), tf.constant(0.9)
        kept = [tf.constant(x) for x in (weights, *old)]
        wanted = adafactor.step(rule, *numbers, tf.constant(dense), *kept)
        rows, distinct = adafactor._distinct_rows([tf.constant(x) for pair in pairs for x in pair])
        found = adafactor.step(rule, *numbers, rows, *kept, ids=distinct)
        wanted, found, distinct = session.run([wanted, found, distinct])
    assert sorted(distinct) == [3, 7, 49]
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    for one, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    untouched = np.setdiff1d(np.arange(50), distinct)
    assert (found[1][0][untouched] == weights[untouched]).all()


def test_adafactor_updates_few_embedding_rows_sparsely(monkeypatch):
    batches = tiny.first_batches(3)
    found = {}
    for sparse in (0, 1000):
        monkeypatch.setattr(adafactor, "_SPARSE", sparse)
        factored = ["AdafactorOptimizer.min_dim_size_to_factor = 8"]
        given = tiny.training_spec(dropout=0.0, params=factored)
        assert bind_gather_embedding(given.mesh_shape, given.layout_rules)
        steps = tiny.Steps(given)
        scattered = [op for op in steps.graph.graph.get_operations() if "ScatterSub" in op.type]
        assert len(scattered) == (sparse == 0)
        losses = [steps.step(batch) for batch in batches]
        found[sparse] = losses, steps.session.run(steps.variables)
    for one, other in zip(*(losses for losses, _ in found.values()), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(value, found[1000][1][name], rtol=1e-4, atol=1e-6, err_msg=name)
