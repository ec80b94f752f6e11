"""Computes the attention of a decoding step, with keys and values cached from step to step.

Legend: B examples, K beams, H heads, D key or value size of a head, L input tokens, T target
tokens, C target positions of a chunk of the cache, N chunks, n chunks that contain tokens so far.

Mesh TensorFlow's layers also cache keys and values while decoding, but they rewrite the whole cache
at each step, and the order of the cache's dimensions requires a transpose in each matrix product.
`cache_attention` replaces these layers with layers that have the same variables and

- write a step's keys and values in place, into chunks of C positions: [N, B, H, K*C, D];
- read only the chunks that contain tokens, so that a large T costs nothing;
- compute the encoder's keys [B, H, D, L] and values [B, H, L, D] once, and share them among the
  beams;
- compute the weighted sums of the encoder's values in the activation type, and everything else in
  float32.

The beams of an example share one cache. Each beam writes to its own column of the cache. When beams
are reordered, no cached value moves. Instead, `ancestors` [B, K, T] says which column has the keys
and values of each earlier token of a beam. All other columns are masked.

    model = mesh_utils.build_model(...)
    cache_attention(model.decoder)

Layers of other kinds stay unchanged.
"""

from typing import Any

from t0.compat import mtf, transformer, transformer_layers
from t0.compat import tf1 as tf
from t0.evaluation.mesh_model import copy_as_class, has_t5_options

CHUNK = 32
# This is added to the logits of masked positions, so that the exponential of these logits is 0.
_HIDDEN = -1e9


def cache_attention(decoder: Any) -> int:
    """Replaces a decoder's attention layers, except layers with options that T5 does not use.

    Args:
      decoder: Mesh TensorFlow's `Unitransformer`; its layers are replaced in place.

    Returns:
      the number of replaced layers.
    """
    if decoder.ensemble_dim or type(decoder.layer_stack) is not transformer.LayerStack:
        return 0
    layers = decoder.layer_stack._layers
    replaced = 0
    for index, layer in enumerate(layers):
        kind = KINDS.get(type(layer))
        if kind and has_t5_options(layer):
            layers[index] = copy_as_class(kind, layer)
            replaced += 1
    return replaced


class _CachedSelfAttention(transformer_layers.SelfAttention):
    """The decoder's self-attention to earlier positions."""

    def call(self, context: Any, x: mtf.Tensor, losses: Any = None) -> mtf.Tensor:
        """Computes one decoding step; in mode "first_part", creates the cache and returns `x`."""
        if context.mode == "first_part":
            self._prepare(context, x)
            return x
        params = self.make_params(context)
        q, k, v = params.compute_q(x), params.compute_k(x), params.compute_v(x)
        keys, values = context.get_states(2)
        ancestors = [context.ancestors] if context.beam_dim else []
        attended, keys, values = mtf.slicewise(
            _attend_to_past,
            [q, k, v, keys, values, context.position, context.get_constant_state(), *ancestors],
            output_shape=[q.shape, keys.shape, values.shape],
            output_dtype=[x.dtype, tf.float32, tf.float32],
            splittable_dims=[*context.batch_dims[:1], *params.query_heads_dims],
            name="attend_to_past",
        )
        context.record_new_states([keys, values])
        return params.compute_output(attended, output_shape=x.shape)

    def _prepare(self, context: Any, x: mtf.Tensor) -> None:
        params = self.make_params(context)
        context.record_constant_state(self._biases(context, x, params.query_heads_dims))
        beams = context.beam_dim.size if context.beam_dim else 1
        shape = mtf.Shape(
            [
                _chunks(context.length_dim),
                context.batch_dims[0],
                *params.query_heads_dims,
                mtf.Dimension("cache_rows", beams * CHUNK),
                self.kv_dim,
            ]
        )
        context.record_new_states([_fresh_zeros(context.mesh, shape) for _ in ("keys", "values")])

    def _biases(self, context: Any, x: mtf.Tensor, heads: list[mtf.Dimension]) -> mtf.Tensor:
        """Returns the biases of all steps for relative positions and causality, [T, N, H, C]."""
        # Layers with the same table of relative positions share the biases.
        key = ("biases of every step", self.relative_attention_type)
        if self.relative_attention_type == "bias" or key not in context.cache:
            memory_dim = self.memory_length(context)
            position = self.rename_length_to_memory_length(context.position, context)
            bias = self.compute_bias(context, position, x, heads, None)
            whole = mtf.Shape([context.length_dim, *heads, memory_dim])
            chunk = mtf.Dimension("cache_chunk", CHUNK)
            context.cache[key] = mtf.slicewise(
                _in_chunks,
                [mtf.broadcast(mtf.cast(bias, tf.float32), whole)],
                output_shape=mtf.Shape([context.length_dim, _chunks(memory_dim), *heads, chunk]),
                splittable_dims=heads,
                name="biases",
            )
        return context.cache[key]


class _CachedEncDecAttention(transformer_layers.EncDecAttention):
    """The decoder's attention to the encoder's output."""

    def call(self, context: Any, x: mtf.Tensor, losses: Any = None) -> mtf.Tensor:
        """Computes one step; in mode "first_part", computes keys and values and returns `x`."""
        params = self.make_params(context)
        if context.mode == "first_part":
            self._prepare(context, params)
            return x
        q = params.compute_q(x)
        attended = mtf.slicewise(
            _attend_to_inputs,
            [q, *context.get_constant_state()],
            output_shape=q.shape,
            output_dtype=x.dtype,
            splittable_dims=[*context.batch_dims[:1], *params.query_heads_dims],
            name="attend_to_inputs",
        )
        return params.compute_output(attended, output_shape=x.shape)

    def _prepare(self, context: Any, params: Any) -> None:
        memory = self._get_memory_antecedent(context)
        batch_dim, memory_dim = context.batch_dims[0], context.encoder_length_dim
        outer = [batch_dim, *params.query_heads_dims]
        keys = mtf.transpose(params.compute_k(memory), mtf.Shape([*outer, self.kv_dim, memory_dim]))
        values = mtf.transpose(
            params.compute_v(memory), mtf.Shape([*outer, memory_dim, self.kv_dim])
        )
        bias = transformer_layers.enc_dec_attention_bias(self, context, params.query_heads_dims)
        bias = mtf.cast(mtf.transpose(bias, mtf.Shape([batch_dim, memory_dim])), tf.float32)
        context.record_constant_state((mtf.cast(keys, tf.float32), values, bias))


# Mesh TensorFlow names variables after the layer's class, so the new classes need the names of the
# classes that they replace.
_CachedSelfAttention.__name__ = transformer_layers.SelfAttention.__name__
_CachedEncDecAttention.__name__ = transformer_layers.EncDecAttention.__name__
KINDS = {
    transformer_layers.SelfAttention: _CachedSelfAttention,
    transformer_layers.EncDecAttention: _CachedEncDecAttention,
}


def _chunks(length_dim: mtf.Dimension) -> mtf.Dimension:
    return mtf.Dimension("cache_chunks", -(-length_dim.size // CHUNK))


def _fresh_zeros(mesh: mtf.Mesh, shape: mtf.Shape) -> mtf.Tensor:
    """Returns zeros in a new buffer, which can be written in place."""
    return mtf.slicewise(
        lambda like: tf.raw_ops.Empty(shape=like.shape, dtype=like.dtype, init=True),
        [mtf.zeros(mesh, shape, tf.float32)],
        splittable_dims=shape.dims,
        name="cache",
    )


def _in_chunks(bias: tf.Tensor) -> tf.Tensor:
    """Divides biases [T, H, T] into chunks [T, N, H, C], and masks positions beyond T."""
    steps, heads, length = bias.shape.as_list()
    bias = tf.pad(bias, [(0, 0), (0, 0), (0, -length % CHUNK)], constant_values=_HIDDEN)
    return tf.transpose(tf.reshape(bias, [steps, heads, -1, CHUNK]), [0, 2, 1, 3])


def _attend_to_past(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    step: tf.Tensor,
    biases: tf.Tensor,
    ancestors: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Writes the keys and values of one step to the cache, and attends to all steps so far.

    Args:
      q: the queries, [B, (K,) H, D].
      k: the keys of this step, [B, (K,) H, D].
      v: the values of this step, [B, (K,) H, D].
      keys: the cached keys, [N, B, H, K*C, D], which are changed in place.
      values: the cached values, in the shape of `keys`, which are changed in place.
      step: the number of this step, a scalar.
      biases: the biases that are added to the logits of each step, [T, N, H, C].
      ancestors: the column of the cache for each token of each beam, [B, K, T]; None without beam
        search.

    Returns:
      (weighted sum of values in the shape and type of `q`, cached keys, cached values).
    """
    _, batch, heads, rows, size = keys.shape.as_list()
    beams = rows // CHUNK
    chunk, offset = step // CHUNK, step % CHUNK
    first = tf.range(batch * heads * beams) * CHUNK + chunk * (batch * heads * rows) + offset

    def write(cache: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        # Writing in place is safe, because the next step's keys and values depend on this step's
        # tokens, and these tokens depend on this step's reads. So all reads of a step precede the
        # next step's writes.
        flat = tf.reshape(cache, [-1, size])
        new = tf.reshape(_by_head(new), [-1, size])
        return tf.reshape(tf.raw_ops.InplaceUpdate(x=flat, i=first, v=new), cache.shape)

    keys, values = write(keys, k), write(values, v)
    bias = tf.gather(biases, step)[: chunk + 1]  # [n, H, C]
    bias = tf.tile(bias[:, tf.newaxis, :, tf.newaxis], [1, 1, 1, 1, beams])
    if ancestors is not None:
        bias += _mask_of_other_beams(ancestors, chunk)
    logits = tf.matmul(_by_head(q)[tf.newaxis], keys[: chunk + 1], transpose_b=True) + bias
    # This is a softmax over chunks and positions. The division by the sum of weights comes last.
    weights = tf.exp(logits - tf.reduce_max(logits, [0, 4], keepdims=True))
    mixed = tf.reduce_sum(tf.matmul(weights, values[: chunk + 1]), 0)
    mixed /= tf.reduce_sum(weights, [0, 4])[..., tf.newaxis]
    return _by_position(mixed, q), keys, values


def _mask_of_other_beams(ancestors: tf.Tensor, chunk: tf.Tensor) -> tf.Tensor:
    """Converts ancestors [B, K, T] to a mask [n, B, 1, K, K*C] that hides other beams' tokens."""
    batch, beams, length = ancestors.shape.as_list()
    padded = tf.pad(ancestors, [(0, 0), (0, 0), (0, -length % CHUNK)])
    padded = tf.transpose(tf.reshape(padded, [batch, beams, -1, CHUNK]), [2, 0, 1, 3])[: chunk + 1]
    own_beam = tf.equal(padded[:, :, :, tf.newaxis], tf.range(beams)[:, tf.newaxis])
    hidden = tf.where(
        own_beam, tf.zeros_like(own_beam, tf.float32), tf.fill(tf.shape(own_beam), _HIDDEN)
    )
    return tf.reshape(hidden, [chunk + 1, batch, 1, beams, beams * CHUNK])


def _attend_to_inputs(
    q: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, bias: tf.Tensor
) -> tf.Tensor:
    """Attends from `q` to the encoder's keys and values.

    Args:
      q: the queries, [B, (K,) H, D].
      keys: the encoder's keys, float32 [B, H, D, L].
      values: the encoder's values, [B, H, L, D].
      bias: the bias that is added to the logits, float32 [B, L].

    Returns:
      the weighted sum of values, in the shape and type of `q`.
    """
    logits = tf.matmul(_by_head(q), keys) + bias[:, tf.newaxis, tf.newaxis]
    weights = tf.cast(tf.nn.softmax(logits), values.dtype)
    return _by_position(tf.matmul(weights, values), q)


def _by_head(x: tf.Tensor) -> tf.Tensor:
    """Converts [B, (K,) H, D] to float32 [B, H, K, D]."""
    x = tf.cast(x, tf.float32)
    return x[:, :, tf.newaxis] if len(x.shape) == 3 else _swapped(x)


def _by_position(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Converts [B, H, K, D] to the shape and type of `like`, [B, (K,) H, D]."""
    x = x if len(like.shape) == 3 else _swapped(x)
    return tf.cast(tf.reshape(x, like.shape), like.dtype)


def _swapped(x: tf.Tensor) -> tf.Tensor:
    """Swaps the second and third of four dimensions.

    If these two dimensions are small, this is faster than a transpose.
    """
    return tf.stack(tf.unstack(x, axis=1), axis=2)
