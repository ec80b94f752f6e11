"""Checkpoints that Mesh TensorFlow itself writes, on one device and stacked over several."""

import numpy as np
import pytest

from t0.checkpoints import convert, open_source
from t0.checkpoints.shape import expected_shapes
from tests.checkpoints.tiny_checkpoints import bits, loaded, model_shape

STEP = 2
LAYERS = {"encoder_layers": 1, "decoder_layers": 1}
PLAIN = model_shape(gated=False, tied=True, **LAYERS)
# Large enough for Adafactor to factor, and with square matrices.
FACTORED = model_shape(d_model=128, inner=128, d_ff=256, **LAYERS)


def train_and_save(model, folder, *, master, devices):
    """Trains some steps with Adafactor, as `t5_mesh_transformer` does, and saves in two files."""
    from t0.compat import mtf
    from t0.compat import tf1 as tf
    from tests.checkpoints.mesh_forward import bitransformer

    graph = tf.Graph()
    with graph.as_default(), tf.Session(graph=graph) as session:
        mesh_graph = mtf.Graph()
        mesh = mtf.Mesh(mesh_graph, "training")
        shape = mtf.Shape([mtf.Dimension("batch", 2), mtf.Dimension("length", 8)])
        ids = tf.constant(np.random.default_rng(0).integers(1, model.vocabulary, (2, 8)), tf.int32)
        inputs = mtf.import_fully_replicated(mesh, ids, shape, name="inputs")
        targets = mtf.import_fully_replicated(mesh, ids, shape, name="targets")
        _, loss = bitransformer(model, "gelu" if model.gated else "relu").call_simple(
            inputs=inputs,
            targets=targets,
            compute_loss=True,
            mode=tf.estimator.ModeKeys.TRAIN,
            variable_dtype=mtf.VariableDType(master, tf.float32, tf.float32),
        )
        step = tf.train.get_or_create_global_step()
        variables = mesh_graph.trainable_variables
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        optimizer = mtf.optimize.AdafactorOptimizer(learning_rate=0.01)
        updates = optimizer.apply_grads(gradients, variables)
        layout = mtf.LayoutRules({("d_ff", "model"), ("heads", "model"), ("vocab", "model")})
        mesh_shape = mtf.Shape([mtf.Dimension("model", devices)] if devices > 1 else [])
        placed = mtf.placement_mesh_impl.PlacementMeshImpl(
            mesh_shape, layout if devices > 1 else mtf.LayoutRules(set()), [""] * devices
        )
        lowering = mtf.Lowering(mesh_graph, {mesh: placed}, autostack=True)
        stacked = [v for v in mesh_graph.all_variables if type(v).__name__ == "StackedVariable"]
        assert bool(stacked) == (devices > 1)
        train = [lowering.lowered_operation(update) for update in updates]
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        for _ in range(STEP):
            session.run(train)
            session.run(tf.assign_add(step, 1))
        session.run(lowering.copy_slices_to_masters())
        saver = tf.train.Saver(tf.global_variables(), sharded=True)
        saver.save(session, str(folder / "model.ckpt"), global_step=STEP, write_meta_graph=False)
    return folder


@pytest.mark.parametrize(
    ("model", "devices", "master"),
    [(PLAIN, 1, "float32"), pytest.param(FACTORED, 2, "bfloat16", marks=pytest.mark.slow)],
    ids=["1.0", "1.1 stacked, bfloat16 masters"],
)
def test_mesh_tensorflow_checkpoint_round_trip_is_exact(tmp_path, model, devices, master):
    from t0.compat import tf1 as tf

    folder = train_and_save(model, tmp_path, master=tf.as_dtype(master), devices=devices)
    source = open_source(folder)
    assert source.facts.step == STEP
    assert source.model == model
    assert {entry.dtype.name for entry in source.parameters.values()} == {master}
    reader = tf.train.load_checkpoint(str(folder / f"model.ckpt-{STEP}"))
    stored = set(reader.get_variable_to_shape_map()) - {"global_step"}
    assert {entry.native for entry in source.entries.values()} == stored
    for entry_name, entry in source.entries.items():
        assert bits(source.load(entry_name)) == bits(reader.get_tensor(entry.native))
    if model is FACTORED:
        assert any(name.endswith("_slot_vr") for name in stored)

    convert(folder, tmp_path / "t5x", to="t5x")
    convert(tmp_path / "t5x", tmp_path / "back", to="mtf")
    assert loaded(tmp_path / "back") == loaded(folder)
    convert(folder, tmp_path / "hf", to="hf")
    assert set(loaded(tmp_path / "hf")) == set(expected_shapes(model))


@pytest.mark.slow
def test_mesh_tensorflow_restores_converted_checkpoints(tmp_path):
    """A saver over Mesh TensorFlow's own variables finds each, in its shape and dtype."""
    from tests.checkpoints.mesh_forward import mesh_logits
    from tests.checkpoints.tiny_checkpoints import weights, write_mtf

    model = model_shape(shared_bias=False, encoder_layers=1, decoder_layers=2)
    source = write_mtf(tmp_path / "source", weights(model))
    for kind in ("hf", "t5x"):
        convert(source, tmp_path / kind, to=kind)
        convert(tmp_path / kind, tmp_path / f"{kind}-mtf", to="mtf")
    ids = np.asarray([[5, 6, 7, 1, 0]], np.int32)
    logits = [
        mesh_logits(model, "gelu", open_source(tmp_path / name).path, ids, ids)
        for name in ("source", "hf-mtf", "t5x-mtf")
    ]
    assert logits[0].shape == (1, 5, 128)
    assert logits[0].std() > 0.1
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])
