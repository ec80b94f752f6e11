"""The gather gives what Mesh TensorFlow's one-hot products give: values and gradients."""

from t0 import compat

compat.apply()

import gin  # noqa: E402
import mesh_tensorflow as mtf  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from mesh_tensorflow.transformer import transformer  # noqa: E402

from t0.mesh import gather_embedding  # noqa: E402

V, D, B, L = 12, 6, 4, 5
VOCAB, MODEL = mtf.Dimension("vocab", V), mtf.Dimension("d_model", D)
IDS = mtf.Shape([mtf.Dimension("batch", B), mtf.Dimension("length", L)])
LAYOUT = "batch:batch,vocab:model"


pytestmark = pytest.mark.usefixtures("empty_gin")


def compute(build, mesh_shape="", layout=LAYOUT):
    """Runs `build(mesh, importer) -> (y, xs)`; returns y and the gradients of sum(w * y)."""
    shape = mtf.convert_to_shape(mesh_shape)
    rng = np.random.default_rng(1)
    with tf.Graph().as_default(), tf.Session() as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "gather")
        y, xs = build(mesh)
        weights = mtf.import_tf_tensor(
            mesh, tf.constant(rng.normal(size=y.shape.to_integer_list), tf.float32), y.shape
        )
        loss = mtf.reduce_sum(mtf.cast(y, tf.float32) * weights)
        gradients = mtf.gradients([loss], xs)
        impl = mtf.placement_mesh_impl.PlacementMeshImpl(
            shape, mtf.convert_to_layout_rules(layout), [""] * shape.size
        )
        lowering = mtf.Lowering(graph, {mesh: impl}, autostack=False)
        fetches = [tf.cast(lowering.export_to_tf_tensor(t), tf.float32) for t in (y, *gradients)]
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        return session.run(fetches)


def ids_of(mesh):
    # Ids that repeat, the first, the last.
    values = np.random.default_rng(0).integers(0, V, IDS.to_integer_list)
    values[0, :3] = [0, V - 1, V - 1]
    return mtf.import_tf_tensor(mesh, tf.constant(values, tf.int32), IDS)


def embedding(cls, dtype=None):
    def build(mesh):
        # Read from a seed, as both classes make the same variable.
        tf.set_random_seed(3)
        with tf.variable_scope("shared", initializer=tf.random_normal_initializer(seed=4)):
            made = cls(mesh, VOCAB, MODEL, dtype or mtf.VariableDType(), "embedding", None)
        x = made.ids_to_embedding(ids_of(mesh), None)
        logits = made.hidden_to_logits(mtf.tanh(x), None)
        return logits, [mesh.graph.trainable_variables[0].outputs[0], x]

    return build


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("mesh_shape", ["", "batch:2"])
def test_gather_embedding_and_gradient_equal_one_hot_product(mesh_shape, scaled):
    gin.bind_parameter("VocabEmbedding.scale_variable_like_classifier_weights", scaled)
    wanted = compute(embedding(transformer.VocabEmbedding))
    found = compute(embedding(gather_embedding.GatherVocabEmbedding), mesh_shape)
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(other).max() > 0.1
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_gather_embedding_bfloat16_activations_of_float32_table():
    types = mtf.VariableDType(tf.float32, tf.float32, tf.bfloat16)
    wanted = compute(embedding(transformer.VocabEmbedding, types))
    found = compute(embedding(gather_embedding.GatherVocabEmbedding, types))
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], atol=0.1)


def log_probabilities(function, dims=None):
    def build(mesh):
        values = np.random.default_rng(2).normal(size=(B, L, V)) * 20
        shape = mtf.Shape([*IDS.dims, VOCAB])
        logits = mtf.import_tf_tensor(mesh, tf.constant(values, tf.float32), shape)
        if dims:
            logits = mtf.transpose(logits, mtf.Shape([shape.dims[i] for i in dims]))
        return function(logits, ids_of(mesh)), [logits]

    return build


def by_one_hot(logits, targets):
    return -mtf.layers.softmax_cross_entropy_with_logits(logits, targets, VOCAB)


def by_gather(logits, targets):
    return gather_embedding.target_log_probabilities(logits, targets, VOCAB)


@pytest.mark.parametrize("dims", [None, (2, 0, 1)])
@pytest.mark.parametrize("mesh_shape", ["", "batch:2"])
def test_gather_log_probability_and_gradient_equal_one_hot_product(mesh_shape, dims):
    wanted = compute(log_probabilities(by_one_hot, dims))
    found = compute(log_probabilities(by_gather, dims), mesh_shape)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert found[0].min() < -20


def test_gather_embedding_of_split_vocabulary_is_refused():
    with pytest.raises(ValueError, match="splits vocab"):
        compute(embedding(gather_embedding.GatherVocabEmbedding), "model:2")


class Own(transformer.VocabEmbedding):
    """A user's class."""


def test_gather_embedding_binding():
    assert gather_embedding.bind_gather_embedding("batch:2", LAYOUT)
    assert transformer.get_vocab_embedding_cls() is gather_embedding.GatherVocabEmbedding
    assert gather_embedding.bind_gather_embedding("batch:2", LAYOUT)  # again
    gin.finalize()
    assert gather_embedding.bind_gather_embedding("batch:2", LAYOUT)
    assert "GatherVocabEmbedding" not in gin.operative_config_str()


def test_gather_embedding_off_for_split_vocabulary_or_own_class():
    assert not gather_embedding.bind_gather_embedding("batch:2,model:2", LAYOUT)
    assert transformer.get_vocab_embedding_cls() is transformer.VocabEmbedding
    assert gather_embedding.bind_gather_embedding("batch:2,model:1", "batch:batch,vocab:model")
    gin.clear_config()
    gin.bind_parameter("get_vocab_embedding_cls.cls", Own)
    assert not gather_embedding.bind_gather_embedding("", LAYOUT)
    assert transformer.get_vocab_embedding_cls() is Own
