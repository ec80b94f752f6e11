"""Attention, GELU and RMS normalisation in few passes over memory, for CPUs and GPUs.

Mesh TensorFlow writes these as chains of small operations, and its gradient doubles the chain. On a
CPU each link is a pass over the activations: a third of a training step. Here each is one operation
with its gradient written out, the values the same; elementwise parts are compiled by XLA.

    with fused(model, mesh_shape, layout_rules):
        logits, loss = model.call_simple(...)

Inside, Mesh TensorFlow's own functions stand back. What these here do not cover (a layout that
splits lengths or channels, attention with extra logits or a z-loss) goes the published way. Nothing
of it suits a TPU, where XLA fuses by itself.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from t0 import compat
from t0.compat import gin, mtf, transformer
from t0.compat import tf1 as tf
from t0.mesh.compiled import compiled
from t0.mesh.fused_attention import attention

# GELU in the approximation by tanh (Hendrycks and Gimpel 2016): x * sigmoid(x * (L + C * x^2)).
_LINEAR = 2 * np.sqrt(2 / np.pi)
_CUBIC = 0.044715 * _LINEAR
# A layout that splits one of these leaves a slice with less than a whole row.
_WHOLE = ("length", "memory_length", "d_kv", "d_model")


@contextlib.contextmanager
def fused(model: Any, mesh_shape: Any, layout_rules: Any) -> Iterator[None]:
    """While a model is called, makes Mesh TensorFlow use the functions of this module.

    Args:
      model: a `Unitransformer` or `Bitransformer`.
      mesh_shape: of the mesh that the model will be lowered on; layout_rules: its layout.
    """
    sizes = (
        mtf.tensor_dim_to_mesh_dim_size(layout_rules, mesh_shape, mtf.Dimension(name, 0))
        for name in _WHOLE
    )
    if any(size > 1 for size in sizes):
        yield
        return
    with (
        compat.replaced("mesh_attention.attention", attention),
        compat.replaced("mesh_ops.gelu", gelu),
        compat.replaced("transformer.sublayer_rms_norm", rms_norm),
        _our_norms_in(model),
    ):
        yield


@contextlib.contextmanager
def _our_norms_in(model: Any) -> Iterator[None]:
    """Replaces the RMS norms among the sublayers of a model, which has its functions in lists."""
    published = {(layers, name): getattr(layers, name) for layers, name in _sublayers(model)}
    try:
        for (layers, name), functions in published.items():
            ours = [rms_norm if _is_rms_norm(f) else f for f in functions]
            setattr(layers, name, ours)
        yield
    finally:
        for (layers, name), functions in published.items():
            setattr(layers, name, functions)


def _sublayers(model: Any) -> Iterator[tuple[Any, str]]:
    for stack in (getattr(model, name, None) for name in ("encoder", "decoder")):
        layers = getattr(stack or model, "layer_stack", None)
        for name in ("_sublayers_initial", "_sublayers_per_layer", "_sublayers_final"):
            if hasattr(layers, name):
                yield layers, name


_published_rms_norm = transformer.sublayer_rms_norm


def _is_rms_norm(function: Any) -> bool:
    return inspect.unwrap(function) is inspect.unwrap(_published_rms_norm)


def gelu(x: mtf.Tensor) -> mtf.Tensor:
    """Gaussian error linear unit in tanh's approximation, as `mtf.gelu`."""
    return mtf.slicewise(
        _gelu, [x], splittable_dims=x.shape.dims, grad_function=_gelu_gradient, name="gelu"
    )


def _gelu_gradient(op: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
    x = op.inputs[0]
    dims = x.shape.dims
    return [mtf.slicewise(_gelu_slope, [x, dy], splittable_dims=dims, grad_function=0)]


@compiled
def _gelu(x: tf.Tensor) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    return tf.cast(wide * tf.sigmoid(wide * (_LINEAR + _CUBIC * wide * wide)), x.dtype)


@compiled
def _gelu_slope(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    square = wide * wide
    gate = tf.sigmoid(wide * (_LINEAR + _CUBIC * square))
    slope = gate * (1.0 + wide * (1.0 - gate) * (_LINEAR + 3 * _CUBIC * square))
    return tf.cast(tf.cast(dy, tf.float32) * slope, x.dtype)


def rms_norm(x: mtf.Tensor, layer_stack: Any, context: Any, **given: Any) -> mtf.Tensor:
    """Root-mean-square normalisation, as `transformer.sublayer_rms_norm` with its gin bindings."""
    model_dim = context.model.model_dim
    if x.shape.dims[-1] != model_dim or context.model.ensemble_dims:
        return _published_rms_norm(x, layer_stack, context, **given)
    given = {"epsilon": 1e-6, "name": "rms_norm", **gin.get_bindings("sublayer_rms_norm"), **given}
    with tf.variable_scope(given["name"]):
        scale = mtf.get_variable(
            context.mesh,
            "scale",
            mtf.Shape([model_dim]),
            initializer=tf.ones_initializer(),
            dtype=context.variable_dtype,
        )
    epsilon = float(given["epsilon"])

    def gradient(op: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
        x, scale = op.inputs
        dx, products = mtf.slicewise(
            lambda *slices: _rms_norm_slope(*slices, epsilon),
            [x, scale, dy],
            output_shape=[x.shape, x.shape],
            output_dtype=[x.dtype, x.dtype],
            splittable_dims=x.shape.dims[:-1],
            grad_function=0,
        )
        ones = mtf.ones(x.mesh, mtf.Shape(x.shape.dims[:-1]), dtype=x.dtype)
        return [dx, mtf.einsum([ones, products], scale.shape)]

    return mtf.slicewise(
        lambda *slices: _rms_norm(*slices, epsilon),
        [x, scale],
        splittable_dims=x.shape.dims[:-1],
        grad_function=gradient,
        name="rms_norm",
    )


@compiled
def _rms_norm(x: tf.Tensor, scale: tf.Tensor, epsilon: float) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    root = tf.math.rsqrt(tf.reduce_mean(wide * wide, -1, keepdims=True) + epsilon)
    return tf.cast(wide * root * tf.cast(scale, tf.float32), x.dtype)


@compiled
def _rms_norm_slope(
    x: tf.Tensor, scale: tf.Tensor, dy: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns dx, and what sums over rows to dscale."""
    wide, wide_dy = tf.cast(x, tf.float32), tf.cast(dy, tf.float32)
    root = tf.math.rsqrt(tf.reduce_mean(wide * wide, -1, keepdims=True) + epsilon)
    scaled = wide_dy * tf.cast(scale, tf.float32)
    mean = tf.reduce_mean(scaled * wide, -1, keepdims=True)
    dx = root * (scaled - wide * (root * root * mean))
    return tf.cast(dx, x.dtype), tf.cast(wide_dy * wide * root, x.dtype)
