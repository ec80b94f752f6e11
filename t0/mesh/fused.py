"""Computes attention, GELU and RMS norms with fewer passes over memory, on CPUs and GPUs.

Mesh TensorFlow computes each of these functions as a chain of small operations. It computes the
gradient as another chain of the same length. On a CPU each operation is a pass over the
activations, and these passes take a third of a training step. In this module each function is one
operation with an explicit gradient. The results are the same. XLA compiles the element-wise parts.

    with fused(model, mesh_shape, layout_rules):
        logits, loss = model.call_simple(inputs, targets, compute_loss=True)

In the `with` block, Mesh TensorFlow calls `attention`, `gelu` and `rms_norm` of this module instead
of its own functions. This module does not support layouts that split lengths or channels, or
attention with extra logits or a z-loss. In these cases, Mesh TensorFlow still calls its own
functions. Runs on a TPU do not use this module, because XLA already fuses operations there.

    @xla_compiled
    def mean_square(x):
        return row_sum(x * x) / int(x.shape[-1])

XLA compiles such a function on a CPU. Small tensors, and tensors on a GPU, are computed by
TensorFlow without compilation. XLA compiles the sums and maxima of this module well.
"""

import contextlib
import contextvars
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t0 import compat
from t0.compat import gin, mesh_attention, mtf, transformer
from t0.compat import tf as tf2
from t0.compat import tf1 as tf

_published_attention = mesh_attention.attention
_published_rms_norm = transformer.sublayer_rms_norm

# GELU approximated with tanh (Hendrycks and Gimpel 2016): x * sigmoid(x * (L + C * x^2)).
_LINEAR = 2 * np.sqrt(2 / np.pi)
_CUBIC = 0.044715 * _LINEAR
# If a layout splits one of these dimensions, a device's slice holds only parts of rows.
_UNSPLIT_DIMS = ("length", "memory_length", "d_kv", "d_model")
# If a tensor has at least this many elements, the faster execution outweighs the compilation time.
WORTH_COMPILING = 1 << 17
# To reduce a row, its two halves are combined, and this is repeated until _LANES numbers remain. To
# sum columns, blocks of _BLOCK rows are summed first.
_LANES, _BLOCK = 16, 32
_compiling = contextvars.ContextVar("compiling", default=False)


def xla_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of tensors, so that XLA compiles it for large tensors on a CPU.

    XLA computes element-wise operations in one pass, but needs a third of a second to compile each
    new shape. So small tensors, and tensors on a GPU, are computed without compilation. Functions
    are also not compiled inside TensorFlow 1 loops, because a compiled call has no loop frame.
    """

    def traced(*tensors: Any) -> Any:
        token = _compiling.set(True)
        try:
            return function(*tensors)
        finally:
            _compiling.reset(token)

    fast = tf2.function(traced, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def dispatch(*tensors: Any) -> Any:
        sizes = [x.shape.num_elements() or 0 for x in tensors if isinstance(x, tf.Tensor)]
        looping = tf.get_default_graph()._get_control_flow_context() is not None
        if looping or max(sizes) < WORTH_COMPILING or "gpu" in tensors[0].device.lower():
            return function(*tensors)
        _compile_first()
        return fast(*tensors)

    return dispatch


@functools.cache
def _compile_first() -> None:
    """Compiles a number, and hides the two lines that XLA prints when a process first compiles.

    No log level hides these lines, so the file descriptor of standard error is redirected.
    """
    double = tf2.function(lambda x: 2 * x, jit_compile=True, autograph=False)
    with tf.Graph().as_default(), Path(os.devnull).open("wb") as nothing:
        number, error = double(tf.ones([])), os.dup(2)
        try:
            os.dup2(nothing.fileno(), 2)
            with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
                session.run(number)
        finally:
            os.dup2(error, 2)
            os.close(error)


def row_sum(x: tf.Tensor) -> tf.Tensor:
    """Returns the sums over the last axis, [..., b] -> [...]."""
    return tf.reduce_sum(_fold_halves(tf.add, x), -1)


def row_max(x: tf.Tensor) -> tf.Tensor:
    """Returns the maxima over the last axis, [..., b] -> [...]."""
    return tf.reduce_max(_fold_halves(tf.maximum, x), -1)


def softmax(x: tf.Tensor) -> tf.Tensor:
    """Returns the softmax over the last axis."""
    if not _compiling.get():
        return tf.nn.softmax(x)
    powers = tf.exp(x - row_max(x)[..., None])
    return powers / row_sum(powers)[..., None]


def _fold_halves(combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    # XLA reduces a row one number at a time, but adds the halves of rows to each other with vector
    # instructions.
    while _compiling.get() and x.shape[-1] > _LANES and x.shape[-1] % 2 == 0:
        half = int(x.shape[-1]) // 2
        x = combine(x[..., :half], x[..., half:])
    return x


def column_sum(x: tf.Tensor) -> tf.Tensor:
    """Returns the sums over the first axis, [a, b] -> [b]. Compiled code sums blocks of rows."""
    rows = int(x.shape[0])
    if _compiling.get() and rows % _BLOCK == 0:
        x = tf.reshape(x, [rows // _BLOCK, _BLOCK, x.shape[1]])
        while x.shape[1] > 1:
            half = int(x.shape[1]) // 2
            x = x[:, :half] + x[:, half:]
        x = x[:, 0]
    return tf.reduce_sum(x, 0)


@contextlib.contextmanager
def loops(*, as_functions: bool) -> Iterator[None]:
    """Selects how TensorFlow builds loops in a `with` block.

    Args:
      as_functions: True to build loops as functions; False to build them as graph operations, as
        for Mesh TensorFlow on a TPU.
    """
    switch = {True: tf.enable_control_flow_v2, False: tf.disable_control_flow_v2}
    before = tf.control_flow_v2_enabled()
    switch[as_functions]()
    try:
        yield
    finally:
        switch[before]()


@contextlib.contextmanager
def fused(model: Any, mesh_shape: Any, layout_rules: Any) -> Iterator[None]:
    """Makes Mesh TensorFlow use the functions of this module while a model is called.

    Args:
      model: a `Unitransformer` or `Bitransformer`.
      mesh_shape: the mesh that the model will be lowered on.
      layout_rules: the layout of the model on that mesh.
    """
    if splits_rows(mesh_shape, layout_rules):
        yield
        return
    with (
        compat.replaced("mesh_attention.attention", attention),
        compat.replaced("mesh_ops.gelu", gelu),
        compat.replaced("transformer.sublayer_rms_norm", rms_norm),
        _replace_norms(model),
    ):
        yield


def splits_rows(mesh_shape: Any, layout_rules: Any) -> bool:
    """Returns whether a layout splits lengths or channels. If so, a slice has no whole rows."""
    dims = (mtf.Dimension(name, 0) for name in _UNSPLIT_DIMS)
    sizes = (mtf.tensor_dim_to_mesh_dim_size(layout_rules, mesh_shape, dim) for dim in dims)
    return any(size > 1 for size in sizes)


@contextlib.contextmanager
def _replace_norms(model: Any) -> Iterator[None]:
    """Replaces the RMS norms in a model's lists of sublayer functions during a `with` block."""
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


def _is_rms_norm(function: Any) -> bool:
    return inspect.unwrap(function) is inspect.unwrap(_published_rms_norm)


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
    """Computes dot-product attention in batched matrix products.

    The arguments and the result are those of Mesh TensorFlow's `attention`, which is slower. The
    einsums of Mesh TensorFlow use the order [batch, length, heads, channels], so each operand is
    copied into another order. Mesh TensorFlow's softmax and gradient are chains of small
    operations.

    If dropout is the same for all queries, as in T5, it is applied to the values instead of the
    weights. The sums are the same, and there are fewer values than weights.
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
        return _published_attention(
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
    dims = (memory_length_dim, key_dim, value_dim)
    outputs = _attend_in_mesh(
        q, k, v, bias, dims, float32_logits=float32_logits, train=context.train
    )
    return mtf.reshape(outputs, whole_shape)


# In the shapes below, B stands for batch and heads, "..." for queries, M for memory positions, and
# D for channels.
def _attend_in_mesh(
    q: mtf.Tensor,
    k: mtf.Tensor,
    v: mtf.Tensor,
    bias: mtf.Tensor | None,
    dims: tuple[mtf.Dimension, mtf.Dimension, mtf.Dimension],
    *,
    float32_logits: bool,
    train: bool,
) -> mtf.Tensor:
    """Returns the attended values, with their dimensions in the order of `q`.

    `dims` are the dimensions of memory length, key and value. The result has a gradient only in
    training.
    """
    memory_dim, key_dim, value_dim = dims
    # Batched matrix products need this order of dimensions: first the dimensions that the memory
    # also has, then the rows, then the last dimension.
    shared = [dim for dim in q.shape.dims if dim in k.shape.dims and dim != key_dim]
    rows = [dim for dim in q.shape.dims if dim not in (*shared, key_dim)]
    weights_shape = mtf.Shape([*shared, *rows, memory_dim])
    operands = [
        mtf.transpose(q, mtf.Shape([*shared, *rows, key_dim])),
        mtf.transpose(k, mtf.Shape([*shared, memory_dim, key_dim])),
        mtf.transpose(v, mtf.Shape([*shared, memory_dim, value_dim])),
    ]
    # The cast follows the transposition, which is faster with fewer bytes.
    if float32_logits:
        operands[:2] = map(mtf.to_float, operands[:2])
    bias_has = [bias is not None and dim in bias.shape.dims for dim in weights_shape.dims]
    if bias is not None:
        ordered = [
            dim for dim, present in zip(weights_shape.dims, bias_has, strict=True) if present
        ]
        operands.append(mtf.transpose(bias, mtf.Shape(ordered)))
    shape = mtf.Shape([*shared, *rows, value_dim])
    if train:
        outputs, _ = mtf.slicewise(
            lambda *slices: _attend(*slices, bias_has=bias_has, types=("float32", v.dtype.name)),
            operands,
            output_shape=[shape, weights_shape],
            output_dtype=[v.dtype, tf.float32],
            splittable_dims=shared,
            grad_function=_attention_gradient,
            name="attention",
        )
    else:
        outputs = mtf.slicewise(
            lambda *slices: _attend(*slices, bias_has=bias_has, types=(v.dtype.name,))[0],
            operands,
            output_shape=shape,
            output_dtype=v.dtype,
            splittable_dims=shared,
            name="attention",
        )
    return mtf.transpose(outputs, q.shape - key_dim + value_dim)


def _attend(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    bias: tf.Tensor | None = None,
    *,
    bias_has: Sequence[bool],
    types: tuple[str, ...],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes attention on one slice.

    Args:
      q: the queries, [B, ..., D].
      k: the keys, [B, M, D].
      v: the values, [B, M, D].
      bias: the bias of the logits; None if there is none.
      bias_has: for each dimension of the weights, whether the bias also has it.
      types: the type of the returned weights, followed by the type of `v`. If both types are the
        same, one entry is enough.

    Returns:
      the attended values [B, ..., D], and the weights [B, ..., M].
    """
    logits = tf.matmul(_as_matrices(q, k), k, transpose_b=True)
    logits = tf.reshape(logits, [*q.shape[:-1], k.shape[-2]])
    if bias is None:
        bias = tf.zeros([], logits.dtype)
    else:
        sizes = iter(bias.shape)
        bias = tf.reshape(bias, [next(sizes) if present else 1 for present in bias_has])
    weights = _softmax(logits, bias, tuple(dict.fromkeys(types)))
    outputs = tf.matmul(_as_matrices(weights[-1], v), v)
    return tf.reshape(outputs, [*q.shape[:-1], v.shape[-1]]), weights[0]


def _attention_gradient(
    op: mtf.Operation, dy: mtf.Tensor, weights_gradient: mtf.Tensor | None
) -> list[mtf.Tensor]:
    del weights_gradient  # no other operation reads the weights
    q, k, v, *bias = op.inputs
    outputs, weights = op.outputs
    *gradients, logits_gradient = mtf.slicewise(
        _attend_slope,
        [q, k, v, outputs, weights, dy],
        output_shape=[q.shape, k.shape, v.shape, weights.shape],
        output_dtype=[q.dtype, k.dtype, v.dtype, q.dtype],
        splittable_dims=op.outputs[0].shape.dims,
        grad_function=0,
        name="attention_gradient",
    )
    bias_gradients = [
        mtf.cast(mtf.reduce_sum(logits_gradient, output_shape=b.shape), b.dtype) for b in bias
    ]
    return [*gradients, *bias_gradients]


def _attend_slope(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor, dy: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Returns the gradients of the loss with respect to q, k, v and the logits."""
    weights_gradient = tf.matmul(_as_matrices(dy, v), v, transpose_b=True)
    weights_gradient = tf.reshape(weights_gradient, weights.shape)
    logits_gradient, narrow = _softmax_slope(weights, weights_gradient, outputs, dy)
    logits_gradient = tf.cast(logits_gradient, q.dtype)
    rows = _as_matrices(logits_gradient, k)
    q_gradient = tf.reshape(tf.matmul(rows, k), q.shape)
    k_gradient = tf.matmul(rows, _as_matrices(q, k), transpose_a=True)
    v_gradient = tf.matmul(_as_matrices(narrow, v), _as_matrices(dy, v), transpose_a=True)
    return q_gradient, k_gradient, v_gradient, logits_gradient


def _as_matrices(x: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
    """Reshapes x [B, ..., N] to [B, rows, N]. `memory` [B, M, D] shows which dimensions are B."""
    return tf.reshape(x, [*memory.shape[:-2], -1, x.shape[-1]])


@xla_compiled
def _softmax(logits: tf.Tensor, bias: tf.Tensor, types: tuple[str, ...]) -> tuple[tf.Tensor, ...]:
    """Computes the attention weights in float32, and returns them once in each of `types`."""
    weights = softmax(tf.cast(logits + tf.cast(bias, logits.dtype), tf.float32))
    return tuple(tf.cast(weights, name) for name in types)


@xla_compiled
def _softmax_slope(
    weights: tf.Tensor, weights_gradient: tf.Tensor, outputs: tf.Tensor, dy: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradient of the logits in float32, and the weights in the type of the outputs."""
    wide, wide_dy = tf.cast(outputs, tf.float32), tf.cast(dy, tf.float32)
    # In each row, the sum of the weights times their gradient equals the sum of the outputs times
    # their gradient (Dao et al. 2022, FlashAttention).
    mean = row_sum(wide * wide_dy)[..., None]
    return weights * (tf.cast(weights_gradient, tf.float32) - mean), tf.cast(weights, outputs.dtype)


def gelu(x: mtf.Tensor) -> mtf.Tensor:
    """Computes the Gaussian error linear unit, approximated with tanh like `mtf.gelu`."""
    return mtf.slicewise(
        _gelu, [x], splittable_dims=x.shape.dims, grad_function=_gelu_gradient, name="gelu"
    )


def _gelu_gradient(op: mtf.Operation, dy: mtf.Tensor) -> list[mtf.Tensor]:
    x = op.inputs[0]
    dims = x.shape.dims
    return [mtf.slicewise(_gelu_slope, [x, dy], splittable_dims=dims, grad_function=0)]


@xla_compiled
def _gelu(x: tf.Tensor) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    return tf.cast(wide * tf.sigmoid(wide * (_LINEAR + _CUBIC * wide * wide)), x.dtype)


@xla_compiled
def _gelu_slope(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    square = wide * wide
    gate = tf.sigmoid(wide * (_LINEAR + _CUBIC * square))
    slope = gate * (1.0 + wide * (1.0 - gate) * (_LINEAR + 3 * _CUBIC * square))
    return tf.cast(tf.cast(dy, tf.float32) * slope, x.dtype)


def rms_norm(x: mtf.Tensor, layer_stack: Any, context: Any, **options: Any) -> mtf.Tensor:
    """Normalizes by the root mean square, with the gin bindings of Mesh TensorFlow's `rms_norm`."""
    model_dim = context.model.model_dim
    if x.shape.dims[-1] != model_dim or context.model.ensemble_dims:
        return _published_rms_norm(x, layer_stack, context, **options)
    options = {
        "epsilon": 1e-6,
        "name": "rms_norm",
        **gin.get_bindings("sublayer_rms_norm"),
        **options,
    }
    with tf.variable_scope(options["name"]):
        scale = mtf.get_variable(
            context.mesh,
            "scale",
            mtf.Shape([model_dim]),
            initializer=tf.ones_initializer(),
            dtype=context.variable_dtype,
        )
    epsilon = float(options["epsilon"])

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
        return [dx, mtf.reduce_sum(products, output_shape=scale.shape)]

    return mtf.slicewise(
        lambda *slices: _rms_norm(*slices, epsilon),
        [x, scale],
        splittable_dims=x.shape.dims[:-1],
        grad_function=gradient,
        name="rms_norm",
    )


@xla_compiled
def _rms_norm(x: tf.Tensor, scale: tf.Tensor, epsilon: float) -> tf.Tensor:
    wide = tf.cast(x, tf.float32)
    root = tf.math.rsqrt(_row_mean(wide * wide) + epsilon)
    return tf.cast(wide * root * tf.cast(scale, tf.float32), x.dtype)


@xla_compiled
def _rms_norm_slope(
    x: tf.Tensor, scale: tf.Tensor, dy: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the gradient of x, and products whose sum over rows is the gradient of `scale`."""
    wide, wide_dy = tf.cast(x, tf.float32), tf.cast(dy, tf.float32)
    root = tf.math.rsqrt(_row_mean(wide * wide) + epsilon)
    scaled = wide_dy * tf.cast(scale, tf.float32)
    dx = root * (scaled - wide * (root * root * _row_mean(scaled * wide)))
    return tf.cast(dx, x.dtype), tf.cast(wide_dy * wide * root, x.dtype)


def _row_mean(x: tf.Tensor) -> tf.Tensor:
    return row_sum(x)[..., None] / int(x.shape[-1])
