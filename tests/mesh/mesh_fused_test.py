"""What is fused computes what Mesh TensorFlow computes, its gradients too."""

import mesh_tensorflow as mtf
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mesh_tensorflow.transformer import attention as published_attention
from mesh_tensorflow.transformer import transformer

from t0.mesh import fused

SIZES = {"batch": 2, "choices": 3, "length": 4, "heads": 2, "memory_length": 5, "d_kv": 8}
DIMS = {name: mtf.Dimension(name, size) for name, size in SIZES.items()}


class Context:
    """What the layers ask of one."""

    train = False

    def __init__(self, mesh):
        self.mesh = mesh
        self.model = type("Model", (), {"model_dim": DIMS["d_kv"], "ensemble_dims": []})()
        self.model.layout = self.model.mesh_shape = None
        self.variable_dtype = mtf.VariableDType(tf.float32, tf.float32, tf.float32)


def values_and_gradients(function, shapes):
    """Runs `function` of tensors of the mesh on random numbers: its value, and all gradients."""
    rng = np.random.default_rng(0)
    given = [rng.normal(size=[DIMS[n].size for n in names]).astype("f") for names in shapes]
    with tf.Graph().as_default(), tf.Session() as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        tensors = [
            mtf.import_fully_replicated(mesh, tf.constant(x), mtf.Shape([DIMS[n] for n in names]))
            for x, names in zip(given, shapes, strict=True)
        ]
        out = function(mesh, *tensors)
        weights = rng.normal(size=out.shape.to_integer_list).astype("f")
        loss = mtf.reduce_sum(
            out * mtf.import_fully_replicated(mesh, tf.constant(weights), out.shape)
        )
        variables = [v.outputs[0] for v in graph.trainable_variables]
        found = [out, *mtf.gradients([loss], [*tensors, *variables])]
        implementation = mtf.placement_mesh_impl.PlacementMeshImpl("", "", [""])
        lowering = mtf.Lowering(graph, {mesh: implementation})
        session.run(tf.global_variables_initializer())
        return session.run([lowering.export_to_tf_tensor(x) for x in found])


def same(one, other, shapes):
    wanted, found = values_and_gradients(one, shapes), values_and_gradients(other, shapes)
    assert len(wanted) > len(shapes)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [None, "heads length memory_length", "batch memory_length"])
@pytest.mark.parametrize("queries", ["batch length heads d_kv", "batch choices length heads d_kv"])
def test_fused_attention_equals_mesh_tensorflow(either_way, bias, queries):
    def attend(function):
        def run(mesh, q, k, v, bias=None):
            names = ("memory_length", "d_kv", "d_kv")
            return function(q, k, v, *(DIMS[n] for n in names), bias=bias, context=Context(mesh))

        return run

    memory = "batch memory_length heads d_kv"
    shapes = [text.split() for text in (queries, memory, memory, bias) if text]
    same(attend(published_attention.attention), attend(fused.attention), shapes)


def test_fused_gelu_equals_mesh_tensorflow(either_way):
    shapes = [["batch", "length", "d_kv"]]
    same(lambda mesh, x: mtf.gelu(x), lambda mesh, x: fused.gelu(x), shapes)


def test_fused_rms_norm_equals_mesh_tensorflow(either_way):
    def normalise(function):
        return lambda mesh, x: function(x * 3.0, None, Context(mesh))

    published = normalise(transformer.sublayer_rms_norm)
    same(published, normalise(fused.rms_norm), [["batch", "length", "d_kv"]])


def test_fused_layers_are_off_for_layouts_that_split_rows():
    published = published_attention.attention
    with fused.fused(object(), "model:2", "d_model:model"):
        assert published_attention.attention is published
    with fused.fused(object(), "model:2", "heads:model"):
        assert published_attention.attention is fused.attention
    assert published_attention.attention is published


def test_fused_first_compilation_prints_nothing(capfd, monkeypatch):
    monkeypatch.setattr(fused, "WORTH_COMPILING", 0)
    values_and_gradients(lambda mesh, x: fused.gelu(x), [["batch", "d_kv"]])
    assert "XLA" not in capfd.readouterr().err
