"""Scores answer choices with a Mesh TensorFlow model that encodes each input only once.

Legend: B inputs of a batch, C choices of an input, L input tokens, T target tokens, V vocabulary; R
packed rows, N input tokens of a row, M target tokens of a row, S sequences of a row, H heads, D key
or value size of a head, W tokens of the longest sequence.

If the mesh does not split rows or the vocabulary, a T5 reads packed rows. They contain inputs [R,
N] and all of their choices [R, M] almost without padding. All other models read padded inputs [B,
L] and targets [B, C, T]. Their decoder has a `choices` dimension that the encoder's output does not
have, so all choices of an input attend to one encoding.

A sequence is an input or a choice. All layers except attention work token by token, so they compute
[R, N] or [R, M] tokens, whatever the lengths of the sequences. Attention gathers the tokens of a
row into [S, H, W, D], attends within each sequence, and puts the results back in their places. S
and W are computed from each batch, so one lowering works for sequences of all lengths. To save
padding, a row's sequences are split into parts, and each part is only as wide as its own longest
sequence.

`t0.evaluation.batching` limits the number of shapes, because each shape has its own lowering.

Logits and their softmax are always float32. If the mesh does not split the vocabulary, embeddings
are looked up with a gather operation.

    scorer = MeshScorer(model, types, Placement(mesh_shape, layout_rules, devices=[""]))
    scorer.restore("/models/tiny/model.ckpt-1000")
    scorer.score(batch)                          # log-likelihoods [B, C] in nats
    scorer.log_likelihoods(inputs, targets)      # [B, L], [B, C, T] -> [B, C]
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import mtf, transformer, transformer_layers
from t0.compat import tf1 as tf
from t0.evaluation.batching import (
    BatchLimits,
    BatchPlan,
    PackedBatch,
    PackedShape,
    PackedTokens,
    ScoringBatch,
    model_costs,
    pack_groups,
    plan_packed,
    plan_padded,
)
from t0.evaluation.mesh_model import (
    Placement,
    Program,
    ShapedPrograms,
    copy_as_class,
    has_t5_options,
)
from t0.evaluation.ranked_examples import ChoiceGroup, ScoringTask
from t0.mesh import gather_embedding
from t0.mesh.fused import splits_rows

# The padded shape (B, C, L, T) of a batch.
_Padded = tuple[int, int, int, int]
# The number of target tokens whose logits [tokens, V] are computed together in float32.
_BLOCK = 512
# The number of parts into which a row's sequences are split. If sequences are sorted by length,
# more parts have less padding, but need more operations.
_PARTS = 4
# This is added to the logits of masked positions, so that the exponential of these logits is 0.
_HIDDEN = -1e9
# The keys under which layers find the values that they share: the tokens, and the gathers for each
# set of sequence numbers.
_PACKED, _GATHERS = "packed tokens", "gathers of packed tokens"


class MeshScorer(ShapedPrograms):
    """Scores choices with one set of weights and any number of batch shapes.

    If it packs, a batch has `replicas` rows. In a padded batch, B is a multiple of `replicas`.
    """

    def __init__(self, model: Any, types: mtf.VariableDType, placement: Placement) -> None:
        super().__init__(model, types, placement)
        split = gather_embedding.splits_vocabulary(*self._mesh)
        self._log_probabilities = (
            _log_probabilities_by_one_hot if split else gather_embedding.target_log_probabilities
        )
        self.packs = not split and pack_attention(model, *self._mesh)

    def plan(
        self,
        tasks: Sequence[ScoringTask],
        limits: BatchLimits,
        *,
        checkpoint: str,
        most_shapes: int,
    ) -> BatchPlan:
        """Plans batches with few shapes; see `t0.evaluation.model.Model`."""
        if not self.packs:
            return plan_padded(tasks, limits, most_shapes=most_shapes)
        variables = checkpoint_files.read(checkpoint).items()
        costs = model_costs({n: shape for n, (shape, _) in variables if "_slot_" not in n})
        return plan_packed(tasks, costs, limits, most_shapes=most_shapes)

    def score(self, batch: ScoringBatch) -> np.ndarray:
        """Returns the log-likelihoods of a batch of the plan; see `t0.evaluation.model.Model`."""
        if not isinstance(batch, PackedBatch):
            return self.log_likelihoods(*batch.lay_out())
        tokens, owners = batch.lay_out()
        return batch.sum_choices(self.log_probabilities(tokens, batch.shape), owners)

    def log_likelihoods(
        self, inputs: np.ndarray, targets: np.ndarray, shape: PackedShape | None = None
    ) -> np.ndarray:
        """Returns log p(choice | input) in nats, summed over the choice's tokens and its EOS.

        Args:
          inputs: int [B, L], 0 is padding. If the scorer does not pack, B is a multiple of
            `replicas`.
          targets: int [B, C, T] with EOS, 0 is padding. If a choice has only zeros, its score is 0.
          shape: the shape of the rows if the scorer packs; None for the smallest rows into which
            the tokens fit.

        Returns:
          the log-likelihoods, float32 [B, C].
        """
        if not self.packs:
            padded = (*targets.shape[:2], inputs.shape[1], targets.shape[2])
            values = {"inputs": inputs, "targets": targets}
            return self._run(padded, values, self._build_padded)[0]
        groups = [
            ChoiceGroup(_unpadded(ids), tuple(map(_unpadded, choices)), ((0, number, 0),))
            for number, (ids, choices) in enumerate(zip(inputs, targets, strict=True))
        ]
        if shape is None:
            tokens = np.sum([group.tokens for group in groups], axis=0)
            shape = PackedShape(self.replicas, int(tokens[0]), max(1, int(tokens[1])))
        return self.score(pack_groups(groups, shape))

    def log_probabilities(self, tokens: PackedTokens, shape: PackedShape) -> np.ndarray:
        """Returns the log-probability of each target token in packed rows, float32 [R, M].

        The values of padding are arbitrary.
        """
        return self._run(shape, vars(tokens), self._build_packed)[0]

    def _build_smallest(self) -> Program:
        rows = self.replicas
        if self.packs:
            return self._build_packed(PackedShape(rows, 1, 1))
        return self._build_padded((rows, 1, 1, 1))

    def _build_packed(self, shape: PackedShape) -> Program:
        row_dim = mtf.Dimension("batch", shape.rows)
        input_dim = mtf.Dimension("length", shape.inputs)
        target_dim = mtf.Dimension("length", shape.targets)
        dims = {field.name: [row_dim, target_dim] for field in dataclasses.fields(PackedTokens)}
        dims |= dict.fromkeys(("inputs", "input_numbers"), [row_dim, input_dim])

        def compute(**tokens: mtf.Tensor) -> list[mtf.Tensor]:
            targets = tokens["targets"]
            logits = packed_logits(self._model, PackedTokens(**tokens), self._types)
            hidden, weights = _in_float32(logits).operation.inputs
            by_row = weights.shape.dims[0] == logits.shape.dims[-1]
            nats = mtf.slicewise(
                lambda *slices: _log_probabilities_in_blocks(*slices, by_row=by_row),
                [hidden, weights, targets],
                output_shape=targets.shape,
                output_dtype=tf.float32,
                splittable_dims=[row_dim],
                name="log_probabilities",
            )
            return [nats]

        return self._build(dims, compute)

    def _build_padded(self, shape: _Padded) -> Program:
        batch, choices, input_length, target_length = shape
        batch_dim = mtf.Dimension("batch", batch)
        length_dim = mtf.Dimension("length", target_length)
        dims = {
            "inputs": [batch_dim, mtf.Dimension("length", input_length)],
            "targets": [batch_dim, mtf.Dimension("choices", choices), length_dim],
        }

        def compute(inputs: mtf.Tensor, targets: mtf.Tensor) -> list[mtf.Tensor]:
            logits, _ = self._model.call_simple(
                inputs,
                targets,
                compute_loss=False,
                mode=tf.estimator.ModeKeys.EVAL,
                variable_dtype=self._types,
            )
            logits = _in_float32(logits)
            # [B, C, T, V] -> [B, C]
            nats = self._log_probabilities(logits, targets, logits.shape.dims[-1])
            nats *= mtf.cast(mtf.greater(targets, 0), tf.float32)
            return [mtf.anonymize(mtf.reduce_sum(nats, reduced_dim=length_dim))]

        return self._build(dims, compute)


def _unpadded(ids: np.ndarray) -> np.ndarray:
    return np.trim_zeros(ids, "b")


def _in_float32(logits: mtf.Tensor) -> mtf.Tensor:
    """Returns logits that are computed in float32, instead of logits converted to float32."""
    product = logits.operation
    if logits.dtype == tf.float32 or not isinstance(product, mtf.EinsumOperation):
        return mtf.cast(logits, tf.float32)
    return mtf.einsum([mtf.cast(x, tf.float32) for x in product.inputs], logits.shape)


def _log_probabilities_by_one_hot(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    return -mtf.layers.softmax_cross_entropy_with_logits(logits, targets, vocab_dim)


def _log_probabilities_in_blocks(
    hidden: tf.Tensor, weights: tf.Tensor, targets: tf.Tensor, *, by_row: bool
) -> tf.Tensor:
    """Returns the log-probabilities of targets [R, M], given hidden states [R, M, D] and weights.

    The weights of the softmax are [D, V], or [V, D] if `by_row` is set.
    """
    size = hidden.shape[-1]
    rows, ids = tf.reshape(hidden, [-1, size]), tf.reshape(targets, [-1])
    blocks = []
    for start in range(0, int(ids.shape[0]), _BLOCK):
        block = slice(start, start + _BLOCK)
        with tf.control_dependencies(blocks[-1:]):  # only the logits of one block are in memory
            logits = tf.matmul(rows[block], weights, transpose_b=by_row)
        # This sequence of operations is faster than TensorFlow's cross entropy.
        above = logits - tf.reduce_max(logits, -1, keepdims=True)
        log_sum = tf.math.log(tf.reduce_sum(tf.exp(above), -1))
        blocks.append(tf.gather(above, ids[block], batch_dims=1) - log_sum)
    return tf.reshape(tf.concat(blocks, 0), targets.shape)


def pack_attention(model: Any, mesh_shape: Any, layout_rules: Any) -> bool:
    """Changes a model's attention layers to accept packed rows, if the model has only T5's layers.

    Args:
      model: Mesh TensorFlow's model, which is changed.
      layout_rules: the layout, which must not split lengths, channels or the vocabulary.

    Returns:
      whether the model accepts packed rows after this call.
    """
    if type(model) is not transformer.Bitransformer or splits_rows(mesh_shape, layout_rules):
        return False
    stacks = (model.encoder, model.decoder)
    if not all(map(_is_t5_stack, stacks)):
        return False
    for stack in stacks:
        layers = stack.layer_stack._layers
        for index, layer in enumerate(layers):
            layers[index] = copy_as_class(_KINDS[type(layer)], layer)
    return True


def _is_t5_stack(stack: Any) -> bool:
    return (
        type(stack.layer_stack) is transformer.LayerStack
        and not stack.ensemble_dim
        and not stack.positional_embedding
        and not stack.input_full_attention
        and all(
            type(layer) in _KINDS
            and (type(layer) is transformer_layers.DenseReluDense or has_t5_options(layer))
            for layer in stack.layer_stack._layers
        )
    )


def packed_logits(
    model: Any, tokens: PackedTokens, variable_dtype: mtf.VariableDType
) -> mtf.Tensor:
    """Computes the logits [R, M, vocabulary] of a model that `pack_attention` changed."""
    mesh = tokens.inputs.mesh
    arguments: dict[str, Any] = {
        "compute_loss": False,
        "mode": tf.estimator.ModeKeys.EVAL,
        "variable_dtype": variable_dtype,
        "shared_params": {
            **model._shared_params(mesh, variable_dtype),
            _PACKED: tokens,
            _GATHERS: {},
        },
    }
    # The encoder masks only tokens with id 0, in the same way as in rows with a single input. An
    # empty input has one token with id 0, so the encoding of this input stays zero.
    real = mtf.minimum(tokens.inputs, 1)
    encoded, _ = model.encoder.call_simple(tokens.inputs, None, sequence_id=real, **arguments)
    encoded = mtf.layers.rename_length_to_memory_length(encoded)
    logits, _ = model.decoder.call_simple(
        tokens.decoder_inputs, None, encoder_output=encoded, **arguments
    )
    return logits


class _PackedSelfAttention(transformer_layers.SelfAttention):
    def call(self, context: Any, x: mtf.Tensor, losses: Any = None) -> mtf.Tensor:
        """Attends within each sequence of a row."""
        params = self.make_params(context)
        tokens = context.shared_params[_PACKED]
        causal = context.model.fully_autoregressive
        numbers = tokens.choice_numbers if causal else tokens.input_numbers
        biases = self._biases_by_offset(context, x, params.query_heads_dims, causal=causal)
        q, k, v = params.compute_q(x), params.compute_k(x), params.compute_v(x)
        attended = _attend_sequences(context, q, k, v, [numbers, numbers, biases])
        return params.compute_output(attended, output_shape=x.shape)

    def _biases_by_offset(
        self, context: Any, x: mtf.Tensor, heads: list[mtf.Dimension], *, causal: bool
    ) -> mtf.Tensor:
        """Returns the bias for each offset between key and query, from -N to N-1, [H, 2N]."""
        # Layers that share the table of relative positions also share the biases.
        key = ("biases by offset", self.relative_attention_type)
        if self.relative_attention_type == "bias" or key not in context.cache:
            length = context.length_dim.size
            offset_dim = mtf.Dimension("offset", 2 * length)
            offset = mtf.range(context.mesh, offset_dim, tf.int32) - length
            shape = mtf.Shape([*heads, offset_dim])
            bias = mtf.zeros(context.mesh, shape)
            if self.relative_attention_type:
                plain = copy_as_class(type(context), context)
                plain.position = mtf.zeros(context.mesh, [], tf.int32)
                plain.read_priority = plain.sequence_id = plain.subsequence_id = None
                bias = self.compute_bias(plain, offset, x, heads, None)
                bias = mtf.transpose(mtf.cast(bias, tf.float32), shape)
            if causal:
                bias += mtf.cast(mtf.greater(offset, 0), tf.float32) * _HIDDEN
            context.cache[key] = bias
        return context.cache[key]


class _PackedEncDecAttention(transformer_layers.EncDecAttention):
    def call(self, context: Any, x: mtf.Tensor, losses: Any = None) -> mtf.Tensor:
        """Attends from the choices of an input to that input."""
        params = self.make_params(context)
        tokens = context.shared_params[_PACKED]
        memory = self._get_memory_antecedent(context)
        q, k, v = params.compute_q(x), params.compute_k(memory), params.compute_v(memory)
        attended = _attend_sequences(context, q, k, v, [tokens.choice_inputs, tokens.input_numbers])
        return params.compute_output(attended, output_shape=x.shape)


# Mesh TensorFlow names variables after the layer's class, so the new classes need the names of the
# classes that they replace.
_PackedSelfAttention.__name__ = transformer_layers.SelfAttention.__name__
_PackedEncDecAttention.__name__ = transformer_layers.EncDecAttention.__name__
_KINDS = {
    transformer_layers.SelfAttention: _PackedSelfAttention,
    transformer_layers.EncDecAttention: _PackedEncDecAttention,
    transformer_layers.DenseReluDense: transformer_layers.DenseReluDense,
}


def _attend_sequences(
    context: Any, q: mtf.Tensor, k: mtf.Tensor, v: mtf.Tensor, tensors: list[mtf.Tensor]
) -> mtf.Tensor:
    gathers = context.shared_params[_GATHERS]

    def attend(*slices: tf.Tensor) -> tf.Tensor:
        qkv, numbers = slices[:3], slices[3:]
        key = tuple(x.name for x in numbers)
        if key not in gathers:
            gathers[key] = _Gathers(*numbers, heads=int(qkv[0].shape[2]))
        return _attend(*qkv, gathers[key])

    batch_dim, _, *heads, _ = q.shape.dims
    return mtf.slicewise(
        attend, [q, k, v, *tensors], splittable_dims=[batch_dim, *heads], name="packed_attention"
    )


class _Sequences:
    """The positions of the sequences in a row.

    Args:
      numbers: for each token, the number of its sequence, ascending from 1; 0 for padding, [N].
      count: the number of sequences S, a scalar.
    """

    def __init__(self, numbers: tf.Tensor, count: tf.Tensor) -> None:
        bounds = count * tf.range(_PARTS + 1) // _PARTS
        self._sizes = bounds[1:] - bounds[:-1]
        self.lengths = tf.math.unsorted_segment_sum(tf.ones_like(numbers), numbers - 1, count)
        self.starts = tf.cumsum(self.lengths, exclusive=True)

    def parts(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields (positions, padding) for each part. For a part of s sequences, both are [s, W].

        `positions` are the positions of tokens in the row, and `padding` says which entries are
        padding.
        """
        columns = (self.lengths[:, None], self.starts[:, None])
        lengths_and_starts = [tf.split(x, self._sizes, num=_PARTS) for x in columns]
        for lengths, starts in zip(*lengths_and_starts, strict=True):
            width = tf.maximum(tf.reduce_max(lengths), 0)  # a part may have no sequences
            steps = tf.range(width)[None]
            yield tf.where_v2(steps < lengths, starts + steps, 0), steps >= lengths


class _Gathers:
    """The indices and biases with which attention reads a row. All layers share them.

    Args:
      of_queries: the number of each query's sequence, [1, M].
      of_keys: the number of each key's sequence, [1, N].
      biases: the bias for each offset between key and query, [H, 2N]; None if there are no biases.
      heads: the number of heads, H.

    Attributes:
      parts: three tensors for each part of s sequences: indices into queries [M * H, D], with
        shape [s, H, W]; indices into keys [N * H, D], with shape [s, H, X]; and biases that are
        added to logits, with shape [s, H or 1, W or 1, X]. W is the largest number of queries of a
        sequence in the part, and X is the largest number of keys.
      back: for each query and head, the index of its result in the joined outputs of all parts, [M,
        H].
    """

    def __init__(
        self,
        of_queries: tf.Tensor,
        of_keys: tf.Tensor,
        biases: tf.Tensor | None = None,
        *,
        heads: int,
    ) -> None:
        count = tf.reduce_max(of_keys)
        queries = _Sequences(of_queries[0], count)
        query_parts = list(queries.parts())
        of_same = of_keys is of_queries  # self-attention
        key_parts = query_parts if of_same else _Sequences(of_keys[0], count).parts()
        self.parts, firsts, widths, total = [], [], [], 0
        for (rows, _), (columns, outside) in zip(query_parts, key_parts, strict=True):
            added = tf.cast(outside, tf.float32)[:, None, None] * _HIDDEN
            if biases is not None:
                added += _expand_to_pairs(biases, tf.shape(rows)[1])
            by_head = _by_head(rows, heads)
            self.parts.append((by_head, by_head if of_same else _by_head(columns, heads), added))
            # In the joined outputs of all parts, `firsts` is the offset of each sequence, and
            # `widths` is the distance between its heads.
            sequences, width = tf.unstack(tf.shape(rows))
            firsts.append(total + tf.range(sequences) * (heads * width))
            widths.append(tf.fill([sequences], width))
            total += sequences * width * heads
        sequence_of_query = tf.maximum(of_queries[0] - 1, 0)
        index = tf.range(tf.size(sequence_of_query)) - tf.gather(queries.starts, sequence_of_query)
        index += tf.gather(tf.concat(firsts, 0), sequence_of_query)
        steps = tf.gather(tf.concat(widths, 0), sequence_of_query)
        # Padding at the end of a row gets arbitrary values, but nothing reads these values.
        back = index[:, None] + tf.range(heads) * steps[:, None]
        self.back = tf.minimum(back, total - 1)


def _by_head(tokens: tf.Tensor, heads: int) -> tf.Tensor:
    """Turns the positions of tokens, [s, W], into indices into [N * H, D], with shape [s, H, W]."""
    return tokens[:, None] * heads + tf.range(heads)[:, None]


def _expand_to_pairs(biases: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Expands biases for offsets -N to N-1, [H, 2N], to biases for queries and keys, [H, W, W]."""
    heads, length = biases.shape[0], biases.shape[1] // 2
    # Repeat the biases of the offsets 0 to W-1 and -W to -1, and cut the result into rows of 2W-1.
    # Each row then begins one offset lower than the previous row.
    around = tf.concat([biases[:, length : length + width], biases[:, length - width : length]], 1)
    many = tf.tile(around, [1, width])[:, : width * (2 * width - 1)]
    return tf.reshape(many, [heads, width, 2 * width - 1])[:, :, :width]


def _attend(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, gathers: _Gathers) -> tf.Tensor:
    """Returns the attended values with the shape of the queries.

    Args:
      q: the queries, [1, M, H, D].
      k: the keys, [1, N, H, D].
      v: the values, [1, N, H, D].
      gathers: the indices and biases with which rows are read.
    """
    size = q.shape[-1]
    flat = [tf.reshape(x, [-1, size]) for x in (q, k, v)]
    outputs = []
    for rows, columns, added in gathers.parts:
        queries, keys, values = map(tf.gather, flat, (rows, columns, columns))
        queries, keys = tf.cast(queries, tf.float32), tf.cast(keys, tf.float32)
        weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) + added)
        attended = tf.matmul(tf.cast(weights, v.dtype), values)
        outputs.append(tf.reshape(attended, [-1, size]))
    return tf.gather(tf.concat(outputs, 0), gathers.back)[None]
