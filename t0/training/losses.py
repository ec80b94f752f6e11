"""Computes cross entropy with z-loss in float32, and the sums over a batch that runs record.

Mesh TensorFlow computes the loss in the type of the activations, from a one-hot tensor as large as
the logits. `computed_in_float32` makes the model compute the same loss in float32. If the mesh does
not split the vocabulary, two functions compiled by XLA compute the loss and its gradient. Otherwise
they are computed with Mesh TensorFlow's own formula.

Legend: V is the size of the vocabulary. [...] are the batch and length dimensions.

    with computed_in_float32(model, mesh_impl) as sums:
        _, loss = model.call_simple(inputs, targets, compute_loss=True)
    sums["nll"]                         # scalar: nats summed over the target tokens
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from t0.compat import mtf, transformer
from t0.compat import tf1 as tf
from t0.mesh.fused import row_max, row_sum, xla_compiled
from t0.training.loop import check_no_other_normalization

# The sums over a batch: nats, z-loss (with its weight in the loss), correct tokens, target tokens,
# correct tokens except EOS, target tokens except EOS. EOS is the easiest token to predict.
PARTS = ("nll", "z_loss", "correct", "tokens", "correct_before_eos", "tokens_before_eos")
_EOS = 1


@contextlib.contextmanager
def computed_in_float32(
    model: Any, mesh_impl: Any, loss_weights: mtf.Tensor | None = None
) -> Iterator[dict[str, mtf.Tensor]]:
    """Makes a model compute its loss in float32 while the context is open.

    If gin gives the model its own loss function, that function stays in use.

    Args:
      model: Mesh TensorFlow's model: a stack of layers, or an encoder and a decoder.
      mesh_impl: the mesh, which decides whether the vocabulary is split.
      loss_weights: the weight of each target token's loss, in the shape of the targets; None to
        divide the summed loss by the model's denominator.

    Yields:
      a mapping that each call of the model fills: name in `PARTS` -> sum over the batch, a scalar
      of the mesh. It stays empty if the model keeps its own loss function.

    Raises:
      UserError: if there are loss weights, and gin sets another loss or denominator.
    """
    sums: dict[str, mtf.Tensor] = {}
    stack = getattr(model, "decoder", model)
    if loss_weights is not None:
        settings = {"loss_fn": stack._loss_fn, "loss_denominator": stack._loss_denominator}
        check_no_other_normalization({f"Unitransformer.{n}": x for n, x in settings.items()})
    if getattr(stack, "_loss_fn", model) is not None:
        yield sums
        return
    # The model calls `_loss_fn`, which its constructor sets from its argument `loss_fn`.
    stack._loss_fn = _loss_function(sums, mesh_impl, loss_weights)
    try:
        yield sums
    finally:
        stack._loss_fn = None


def _loss_function(
    sums: dict[str, mtf.Tensor], mesh_impl: Any, loss_weights: mtf.Tensor | None
) -> Callable[..., mtf.Tensor]:
    def loss_fn(
        model: Any, context: Any, logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension
    ) -> mtf.Tensor:
        weights = mtf.cast(mtf.greater(targets, 0), tf.float32)
        if model.loss_on_targets_only:
            outside = mtf.logical_not(transformer.delimited_lm_inputs_mask(targets))
            weights *= mtf.cast(outside, tf.float32)
        split = mesh_impl.tensor_dimension_to_mesh_axis(vocab_dim) is not None
        hard = not model.label_smoothing and model.ensemble_dim is None
        compute = _fused if hard and not split else _general
        nll, log_z, right = compute(model, logits, mtf.maximum(targets, 0), vocab_dim)
        z_loss = mtf.square(log_z) * (model.z_loss if context.train else 0.0)
        sums["nll"] = mtf.reduce_sum(nll * weights)
        sums["z_loss"] = mtf.reduce_sum(z_loss * weights)
        sums["correct"] = mtf.reduce_sum(right * weights)
        sums["tokens"] = mtf.reduce_sum(weights)
        words = weights * mtf.cast(mtf.not_equal(targets, _EOS), tf.float32)
        sums["correct_before_eos"] = mtf.reduce_sum(right * words)
        sums["tokens_before_eos"] = mtf.reduce_sum(words)
        if loss_weights is not None:
            return mtf.reduce_sum((nll + z_loss) * loss_weights)
        denominator = model.loss_denominator(targets, context.num_microbatches)
        return (sums["nll"] + sums["z_loss"]) / denominator

    return loss_fn


def _general(
    model: Any, logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension
) -> tuple[mtf.Tensor, mtf.Tensor, mtf.Tensor]:
    logits = mtf.cast(logits, tf.float32)
    off = model.label_smoothing / vocab_dim.size
    on = 1.0 - model.label_smoothing + off
    target_distribution = mtf.one_hot(
        targets, vocab_dim, dtype=tf.float32, on_value=on, off_value=off
    )
    log_z = mtf.reduce_logsumexp(logits, vocab_dim)
    nll = mtf.negative(
        mtf.reduce_sum((logits - log_z) * target_distribution, reduced_dim=vocab_dim)
    )
    right = mtf.equal(mtf.argmax(mtf.stop_gradient(logits), vocab_dim), targets)
    return nll, log_z, mtf.cast(right, tf.float32)


def _fused(
    model: Any, logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension
) -> tuple[mtf.Tensor, mtf.Tensor, mtf.Tensor]:
    del model
    dims = [dim for dim in logits.shape.dims if dim != vocab_dim]
    logits = mtf.transpose(logits, mtf.Shape([*dims, vocab_dim]))
    targets = mtf.transpose(targets, mtf.Shape(dims))
    shape = mtf.Shape(dims)
    nll, log_z, right = mtf.slicewise(
        _forward,
        [logits, targets],
        output_shape=[shape] * 3,
        output_dtype=[tf.float32] * 3,
        splittable_dims=dims,
        grad_function=_fused_gradient,
        name="cross_entropy",
    )
    return nll, log_z, right


@xla_compiled
def _forward(logits: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns nll, log Z, accuracy, each float32 [...], from logits [..., V] and targets [...]."""
    wide = tf.cast(logits, tf.float32)
    largest = row_max(wide)
    log_z = largest + tf.math.log(row_sum(tf.exp(wide - largest[..., None])))
    target_logits = row_sum(tf.where_v2(_is_target(logits, targets), wide, 0.0))
    return log_z - target_logits, log_z, tf.cast(target_logits >= largest, tf.float32)


def _is_target(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.equal(tf.range(logits.shape[-1]), targets[..., None])


def _fused_gradient(op: mtf.Operation, *grad_ys: mtf.Tensor | None) -> list[mtf.Tensor | None]:
    by_nll, by_log_z, _ = grad_ys
    logits, targets = op.inputs
    gradients = mtf.slicewise(
        _backward,
        [logits, targets, op.outputs[1], by_nll, by_log_z],
        splittable_dims=targets.shape.dims,
        grad_function=0,
        name="cross_entropy_gradient",
    )
    return [gradients, None]


@xla_compiled
def _backward(
    logits: tf.Tensor, targets: tf.Tensor, log_z: tf.Tensor, by_nll: tf.Tensor, by_log_z: tf.Tensor
) -> tf.Tensor:
    """Returns the gradient of the logits, from d log Z = softmax and d nll = softmax - one-hot."""
    softmax = tf.exp(tf.cast(logits, tf.float32) - log_z[..., None])
    target_gradient = tf.where_v2(_is_target(logits, targets), by_nll[..., None], 0.0)
    return tf.cast((by_nll + by_log_z)[..., None] * softmax - target_gradient, logits.dtype)
