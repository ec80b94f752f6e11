"""Adafactor in few passes takes the paper's steps, also by the rows that a batch looks up."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from t0.mesh.gather_embedding import bind_gather_embedding
from t0.training import optimizers
from tests.training import tiny_training as tiny


def stepped(make, weights, gradients):
    """The weights after each gradient, by an optimizer that `make` gives its rate."""
    shape = mtf.Shape([mtf.Dimension(f"d{n}", size) for n, size in enumerate(weights.shape)])
    found = []
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        fed = tf.placeholder(tf.float32, weights.shape)
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        variable = mtf.get_variable(mesh, "w", shape, initializer=tf.constant_initializer(weights))
        gradient = mtf.import_tf_tensor(mesh, fed, shape)
        operations = make(tf.constant(0.02)).apply_grad(gradient, variable.operation)
        mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl("", "", [""])
        lowering = mtf.Lowering(graph, {mesh: mesh_impl}, autostack=False)
        update = tf.group([lowering.lowered_operation(op) for op in operations])
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        now = next(v for v in tf.global_variables() if v.op.name == "w")
        for gradient in gradients:
            session.run(update, {fed: gradient})
            session.run(tf.assign_add(step, 1))
            found.append(session.run(now))
    return found


@pytest.mark.parametrize(("shape", "size"), [((7, 5), 0.3), ((6,), 1e-5)])
def test_adamw_with_rms_scaling_equals_nanot5(shape, size):
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=shape) * size).astype(np.float32)
    # Small ones too, so that the place of epsilon shows.
    gradients = [(rng.normal(size=shape) * 10.0**-n).astype(np.float32) for n in (2, 5, 6, 3)]
    found = stepped(optimizers.AdamWScaleOptimizer, weights, gradients)
    w, m, v = weights.astype(np.float64), 0.0, 0.0
    for step, (gradient, ours) in enumerate(zip(gradients, found, strict=True), start=1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient.astype(np.float64) ** 2
        rate = 0.02 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        rate *= max(1e-3, np.sqrt(np.mean(w**2)))
        w = w - rate * m / (np.sqrt(v) + 1e-6)
        np.testing.assert_allclose(ours, w, rtol=1e-6, atol=5e-7 * np.abs(w).max())


def _one_variable(params, optimizer, steps=3):
    """Weights before, and after each of some steps with real gradients; and the gradients."""
    tied = tiny.Steps(tiny.training_spec(dropout=0.0, params=params, optimizer=optimizer))
    batch = tiny.first_batches(1)[0]
    found = [tied.weights()]
    norms = []
    for _ in range(steps):
        norms.append(tied.step(batch))
        found.append(tied.weights())
    return found, norms


NAME = "encoder/block_000/layer_000/SelfAttention/q"


@pytest.mark.slow
def test_momentum_sgd_and_nesterov_steps():
    # From two steps the gradients follow; the third is checked against velocity's rule.
    plain, _ = _one_variable(
        ["MomentumSGDOptimizer.momentum = 0.0"], optimizers.MomentumSGDOptimizer, 1
    )
    heavy, _ = _one_variable(
        ["MomentumSGDOptimizer.momentum = 0.9"], optimizers.MomentumSGDOptimizer, 1
    )
    np.testing.assert_allclose(plain[1][NAME], heavy[1][NAME], rtol=1e-6)
    look, _ = _one_variable(
        ["MomentumSGDOptimizer.momentum = 0.9", "MomentumSGDOptimizer.nesterov = True"],
        optimizers.MomentumSGDOptimizer,
        1,
    )
    step = plain[1][NAME] - plain[0][NAME]
    np.testing.assert_allclose(look[1][NAME] - look[0][NAME], 1.9 * step, rtol=1e-3, atol=1e-7)


@pytest.mark.slow
def test_adamw_first_step_weight_decay_and_rms_clipping():
    found, _ = _one_variable([], optimizers.AdamWOptimizer, 1)
    step = found[1][NAME] - found[0][NAME]
    # With corrected moments the first update is the gradient's sign.
    np.testing.assert_allclose(np.abs(step), 0.01, rtol=1e-2)
    decayed, _ = _one_variable(
        ["AdamWOptimizer.weight_decay_rate = 0.1"], optimizers.AdamWOptimizer, 1
    )
    np.testing.assert_allclose(
        decayed[1][NAME] - found[1][NAME], -0.01 * 0.1 * found[0][NAME], rtol=1e-2, atol=1e-6
    )
    scale = "encoder/block_000/layer_000/rms_norm/scale"
    np.testing.assert_array_equal(decayed[1][scale], found[1][scale])
    bounded, _ = _one_variable(
        ["AdamWOptimizer.rms_clipping_threshold = 0.5"], optimizers.AdamWOptimizer, 1
    )
    half = bounded[1][NAME] - bounded[0][NAME]
    np.testing.assert_allclose(np.sqrt(np.mean(half**2)), 0.005, rtol=1e-2)


def test_gradient_clipping_limits_the_norm():
    plain, norms = _one_variable([], optimizers.MomentumSGDOptimizer, 1)
    limit = np.sqrt(norms[0]["gradient_square"]) / 4
    clipped, clipped_norms = _one_variable(
        [f"apply_updates.clip_gradient_norm = {limit}"], optimizers.MomentumSGDOptimizer, 1
    )
    assert clipped_norms[0]["gradient_square"] == pytest.approx(norms[0]["gradient_square"])
    whole = plain[1][NAME] - plain[0][NAME]
    part = clipped[1][NAME] - clipped[0][NAME]
    np.testing.assert_allclose(part * 4, whole, rtol=1e-2, atol=1e-7)


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
    rule = optimizers.AdafactorRule(axes=axes, clip=1.0, epsilon1=1e-30, epsilon2=1e-3, scaled=True)
    now = weights
    with tf.Graph().as_default(), tf.Session() as session:
        for number, gradient in enumerate(gradients):
            decay = tf.constant(1.0 - (number + 1.0) ** -0.8, tf.float32)
            g, w, *moments = (tf.constant(x) for x in (gradient, now, *old))
            rates = tf.constant(0.01), decay
            made = optimizers.adafactor_step(rule, rates, g, w, tuple(moments))
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
    rule = optimizers.AdafactorRule(axes=axes, clip=1.0, epsilon1=1e-30, epsilon2=1e-3, scaled=True)
    with tf.Graph().as_default(), tf.Session() as session:
        rates = tf.constant(0.01), tf.constant(0.9)
        kept = tf.constant(weights), tuple(tf.constant(x) for x in old)
        wanted = optimizers.adafactor_step(rule, rates, tf.constant(dense), *kept)
        rows, distinct = optimizers._distinct_rows([tf.constant(x) for pair in pairs for x in pair])
        found = optimizers.adafactor_step(rule, rates, rows, *kept, ids=distinct)
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
        monkeypatch.setattr(optimizers, "_SPARSE", sparse)
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
