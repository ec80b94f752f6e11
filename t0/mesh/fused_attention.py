"""Dot-product attention in batched matrix products, its gradient written out, for CPUs and GPUs.

`t0.mesh.fused` puts it in the place of Mesh TensorFlow's, whose einsums keep [batch, length, heads,
channels] and so move each operand about, and whose softmax and gradient are chains of small
operations. Legend: B batch and heads, ... queries, M memory, D channels.
"""

from collections.abc import Sequence
from typing import Any

from t0.compat import mesh_attention, mtf
from t0.compat import tf1 as tf
from t0.mesh.compiled import compiled

_published = mesh_attention.attention


def attention(  # noqa: PLR0913 (Mesh TensorFlow's signature)
    q: mtf.Tensor,
    k: mtf.Tensor,
    v: mtf.Tensor,
    memory_length_dim: mtf.Dimension,
    key_dim: mtf.Dimension,
    value_dim: mtf.Dimension,
    bias: mtf.Tensor | None = None,
    dropout_rate: float = 0.0,
    dropout_broadcast_dims: Sequence[mtf.Dimension] | None = None,
    extra_logit: Any = None,
    context: Any = None,
    float32_logits: bool = True,
    z_loss_coeff: float | None = None,
) -> mtf.Tensor:
    """Dot-product attention, as `mesh_tensorflow.transformer.attention.attention`.

    A dropout that is the same for all queries (T5's) is applied to the values: what is summed is
    the same, and there are fewer of them than weights.
    """
    dropped = context.train and dropout_rate
    weights_shape = q.shape - key_dim + memory_length_dim
    noise_shape = weights_shape - (dropout_broadcast_dims or [])
    covered = (
        extra_logit is None
        and z_loss_coeff is None
        and not mtf.layers.unit_scaling_convention()
        and set(k.shape.dims) - {memory_length_dim, key_dim} <= set(q.shape.dims)
        and set(v.shape.dims) - {value_dim} == set(k.shape.dims) - {key_dim}
        and (not dropped or set(noise_shape.dims) <= set(v.shape.dims))
        and (bias is None or set(bias.shape.dims) <= set(weights_shape.dims))
    )
    if not covered:
        return _published(
            q, k, v, memory_length_dim, key_dim, value_dim, bias=bias, dropout_rate=dropout_rate,
            dropout_broadcast_dims=dropout_broadcast_dims, extra_logit=extra_logit,
            context=context, float32_logits=float32_logits, z_loss_coeff=z_loss_coeff,
        )  # fmt: skip
    if dropped:
        v = mtf.dropout(v, context.train, 1.0 - dropout_rate, noise_shape=noise_shape)
    whole_shape = q.shape - key_dim + value_dim
    q, k, v, bias = mesh_attention.maybe_reshape_attention_input_for_2d_sharding(
        context, q, k, v, bias, [key_dim, value_dim]
    )
    if float32_logits:
        q, k = mtf.to_float(q), mtf.to_float(k)
    outputs = _attended(q, k, v, bias, (memory_length_dim, key_dim, value_dim))
    return mtf.reshape(outputs, whole_shape)


def _attended(
    q: mtf.Tensor,
    k: mtf.Tensor,
    v: mtf.Tensor,
    bias: mtf.Tensor | None,
    dims: tuple[mtf.Dimension, mtf.Dimension, mtf.Dimension],
) -> mtf.Tensor:
    """Returns what is attended to, in the order of `q`; dims: memory length, key, value."""
    memory_dim, key_dim, value_dim = dims
    # In the order of batched matrix products: what queries share with the memory, rows, the last.
    shared = [dim for dim in q.shape.dims if dim in k.shape.dims and dim != key_dim]
    rows = [dim for dim in q.shape.dims if dim not in (*shared, key_dim)]
    weights_shape = mtf.Shape([*shared, *rows, memory_dim])
    given = [
        mtf.transpose(q, mtf.Shape([*shared, *rows, key_dim])),
        mtf.transpose(k, mtf.Shape([*shared, memory_dim, key_dim])),
        mtf.transpose(v, mtf.Shape([*shared, memory_dim, value_dim])),
    ]
    has = [bias is not None and dim in bias.shape.dims for dim in weights_shape.dims]
    if bias is not None:
        ordered = [dim for dim, there in zip(weights_shape.dims, has, strict=True) if there]
        given.append(mtf.transpose(bias, mtf.Shape(ordered)))
    outputs, _ = mtf.slicewise(
        lambda *slices: _attend(*slices, has=has),
        given,
        output_shape=[mtf.Shape([*shared, *rows, value_dim]), weights_shape],
        output_dtype=[v.dtype, tf.float32],
        splittable_dims=shared,
        grad_function=_attention_gradient,
        name="attention",
    )
    return mtf.transpose(outputs, q.shape - key_dim + value_dim)


def _attend(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, bias: tf.Tensor | None = None, *, has: Sequence[bool]
) -> tuple[tf.Tensor, tf.Tensor]:
    """[B, ..., D], [B, M, D], [B, M, D] -> what is attended to [B, ..., D], weights [B, ..., M]."""
    logits = tf.matmul(_as_matrices(q, k), k, transpose_b=True)
    logits = tf.reshape(logits, [*q.shape[:-1], k.shape[-2]])
    if bias is None:
        weights, narrow = _softmax(logits, tf.zeros([], v.dtype), tf.zeros([], logits.dtype))
    else:
        sizes = iter(bias.shape)
        bias = tf.reshape(bias, [next(sizes) if there else 1 for there in has])
        weights, narrow = _softmax(logits, tf.zeros([], v.dtype), bias)
    outputs = tf.matmul(_as_matrices(narrow, v), v)
    return tf.reshape(outputs, [*q.shape[:-1], v.shape[-1]]), weights


def _attention_gradient(
    op: mtf.Operation, dy: mtf.Tensor, of_weights: mtf.Tensor | None
) -> list[mtf.Tensor]:
    del of_weights  # they are handed to nobody else
    q, k, v, *bias = op.inputs
    outputs, weights = op.outputs
    *gradients, of_logits = mtf.slicewise(
        _attend_slope,
        [q, k, v, outputs, weights, dy],
        output_shape=[q.shape, k.shape, v.shape, weights.shape],
        output_dtype=[q.dtype, k.dtype, v.dtype, q.dtype],
        splittable_dims=op.outputs[0].shape.dims,
        grad_function=0,
        name="attention_gradient",
    )
    of_bias = [mtf.cast(mtf.reduce_sum(of_logits, output_shape=b.shape), b.dtype) for b in bias]
    return [*gradients, *of_bias]


def _attend_slope(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor, dy: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Returns the gradients by q, k, v and the logits."""
    of_weights = tf.matmul(_as_matrices(dy, v), v, transpose_b=True)
    of_weights = tf.reshape(of_weights, weights.shape)
    of_logits, narrow = _softmax_slope(weights, of_weights, outputs, dy)
    of_logits = tf.cast(of_logits, q.dtype)
    rows = _as_matrices(of_logits, k)
    by_q = tf.reshape(tf.matmul(rows, k), q.shape)
    by_k = tf.matmul(rows, _as_matrices(q, k), transpose_a=True)
    by_v = tf.matmul(_as_matrices(narrow, v), _as_matrices(dy, v), transpose_a=True)
    return by_q, by_k, by_v, of_logits


def _as_matrices(x: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
    """[B, ..., N] -> [B, all the rows, N], B being the leading dimensions of `memory` [B, M, D]."""
    return tf.reshape(x, [*memory.shape[:-2], -1, x.shape[-1]])


@compiled
def _softmax(logits: tf.Tensor, like: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the weights in float32 and in the type of `like`."""
    weights = tf.nn.softmax(tf.cast(logits + tf.cast(bias, logits.dtype), tf.float32))
    return weights, tf.cast(weights, like.dtype)


@compiled
def _softmax_slope(
    weights: tf.Tensor, of_weights: tf.Tensor, outputs: tf.Tensor, dy: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradient by the logits in float32, and the weights in the type of the outputs."""
    wide, wide_dy = tf.cast(outputs, tf.float32), tf.cast(dy, tf.float32)
    # The weights' mean of their gradients is that of the outputs (Dao et al. 2022, FlashAttention).
    mean = tf.reduce_sum(wide * wide_dy, -1, keepdims=True)
    return weights * (tf.cast(of_weights, tf.float32) - mean), tf.cast(weights, outputs.dtype)
