import mesh_tensorflow as mtf
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_training as tiny

from t0.training import optimizers


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
