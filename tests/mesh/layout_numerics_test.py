"""Splitting over a mesh changes no number: several CPU devices against one, each layout rule.

The SIMD mesh of TPUs and the placement mesh of CPUs lower the same operations by the same layout;
what is summed and where is Mesh TensorFlow's own code in both.
"""

import gin
import mesh_tensorflow as mtf
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from t0.mesh import lowering
from t0.rehearsal.virtual_pod import disable_graph_rewrites
from tests.mesh import planning

ALL = "batch:batch,d_ff:model,heads:model,vocab:model"
CASES = {
    "batch": ("batch:2", "batch:batch"),
    "heads": ("model:2", "heads:model"),
    "d_ff": ("model:2", "d_ff:model"),
    "vocab": ("model:2", "vocab:model"),
    "all": ("batch:2,model:2", ALL),
}


@pytest.fixture(scope="module")
def tokens():
    rng = np.random.default_rng(1)
    return {
        "inputs": rng.integers(2, 250, (4, 12)).astype(np.int32),
        "targets": rng.integers(2, 250, (4, 6)).astype(np.int32),
    }


def loss_and_gradients(shape, layout, tokens, weights=None):
    """Returns the loss, each variable's gradient, and the weights, by name."""
    planning.configure(
        *planning.TINY,
        "num_layers = 1",
        "run.mesh_shape = ''",
        "get_variable_dtype.activation_dtype = 'float32'",
        "get_variable_dtype.master_dtype = 'float32'",
    )
    shape, layout = mtf.convert_to_shape(shape), mtf.convert_to_layout_rules(layout)
    devices = [f"cpu:{i}" for i in range(shape.size)]
    with planning.graph_mode():
        tf.set_random_seed(5)
        model = lowering.mesh_utils.build_model(
            input_vocab_size=256, output_vocab_size=256, layout_rules=layout, mesh_shape=shape
        )
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        batch = mtf.Dimension("batch", 4)
        features = {
            name: mtf.import_fully_replicated(
                mesh,
                tf.constant(value),
                mtf.Shape([batch, mtf.Dimension("length", value.shape[1])]),
                name=name,
            )
            for name, value in tokens.items()
        }
        _, loss = model.call_simple(
            inputs=features["inputs"],
            targets=features["targets"],
            compute_loss=True,
            mode=tf.estimator.ModeKeys.TRAIN,
            variable_dtype=mtf.VariableDType(tf.float32, tf.float32, tf.float32),
        )
        variables = list(graph.trainable_variables)
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        names = [v.name for v in variables]
        impl = mtf.placement_mesh_impl.PlacementMeshImpl(shape, layout, devices)
        lowered = mtf.Lowering(graph, {mesh: impl}, autostack=False)
        exported = [lowered.export_to_tf_tensor(g) for g in [loss, *gradients]]
        config = disable_graph_rewrites(tf.ConfigProto(device_count={"CPU": shape.size}))
        with tf.Session(config=config) as session:
            planning.initialise(session)
            masters = {v.op.name: v for v in tf.global_variables()}
            fed = {masters[name]: value for name, value in (weights or {}).items()}
            session.run([v.initializer for v in fed], {v.initial_value: x for v, x in fed.items()})
            session.run(lowered.copy_masters_to_slices())
            loss_value, *values = session.run(exported)
            kept = dict(zip(names, session.run([masters[name] for name in names]), strict=True))
    gin.clear_config()
    return loss_value, dict(zip(names, values, strict=True)), kept


@pytest.fixture(scope="module")
def one_device(tokens):
    return loss_and_gradients("", "", tokens)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_layout_loss_and_gradients_equal_one_device(case, tokens, one_device):
    loss, gradients, weights = one_device
    shape, layout = CASES[case]
    got_loss, got, _ = loss_and_gradients(shape, layout, tokens, weights)
    np.testing.assert_allclose(got_loss, loss, rtol=1e-5)
    assert got.keys() == gradients.keys()
    for name, expected in gradients.items():
        scale = max(1e-3, np.abs(expected).max())
        assert np.abs(got[name] - expected).max() <= 1e-5 * scale, name


def test_layout_comparison_detects_changed_weights(tokens, one_device):
    loss, _, weights = one_device
    other = dict(weights)
    other["shared/embedding"] = weights["shared/embedding"] * 1.01
    changed, _, _ = loss_and_gradients("", "", tokens, other)
    assert abs(changed - loss) > 1e-5 * loss
