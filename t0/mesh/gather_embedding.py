"""Embeds tokens with a gather, instead of Mesh TensorFlow's product with one-hot matrices.

Mesh TensorFlow embeds a token as `one_hot(id) @ table`, and computes a target's log-probability as
`sum(one_hot(id) * log_softmax(logits))`. Both products suit a TPU, and work with a vocabulary that
is split over cores. But on a CPU or GPU that holds the whole table, these products are up to half
of a small model's FLOPs. A gather gives the same values and gradients.

`bind_gather_embedding` binds `GatherVocabEmbedding` to Mesh TensorFlow's gin parameter
`get_vocab_embedding_cls.cls`. Call it after gin files are parsed and before a model is lowered:

    bind_gather_embedding("batch:2", "batch:batch,vocab:model")     # True: models gather

The function does nothing if the layout splits the vocabulary, or if the user bound another class.
Runs on a TPU do not call it. The embedding's variable has the same name, type and initial values as
Mesh TensorFlow's, so checkpoints do not change. The operative config does not change either,
because gin omits classes.

Ids must be within the vocabulary. For any other id, a one-hot vector would be all zeros, but a
gather raises an error.
"""

from typing import Any

from t0.compat import gin, mtf, transformer
from t0.compat import tf1 as tf
from t0.config.bindings import bound

_PARAMETER = "get_vocab_embedding_cls.cls"


class GatherVocabEmbedding(transformer.VocabEmbedding):
    """Mesh TensorFlow's vocabulary embedding, except that `ids_to_embedding` is a gather.

    The table and its gradient have the type of the table's slices (`slice_dtype`). Only the rows
    that are looked up are cast to the type of activations.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        vocab_dim: mtf.Dimension,
        output_dim: mtf.Dimension,
        variable_dtype: mtf.VariableDType,
        name: str,
        ensemble_dim: mtf.Dimension | None,
    ) -> None:
        self._activation_dtype = variable_dtype.activation_dtype
        stored = mtf.VariableDType(
            variable_dtype.master_dtype, variable_dtype.slice_dtype, variable_dtype.slice_dtype
        )
        super().__init__(mesh, vocab_dim, output_dim, stored, name, ensemble_dim)

    def ids_to_embedding(self, ids: mtf.Tensor, context: Any) -> mtf.Tensor:
        """Returns the embeddings of `ids`: the dimensions of `ids`, then the model dimension."""
        del context
        rows = look_up(self._embedding_weights, ids, self._vocab_dim)
        rows = mtf.cast(rows, self._activation_dtype)
        if self._scale_variable_like_classifier_weights:
            rows *= self._output_dim.size**0.5
        return rows

    def hidden_to_logits(self, hidden: mtf.Tensor, context: Any) -> mtf.Tensor:
        """Returns the logits of the whole vocabulary for each state, in the type of activations."""
        stored = self._embedding_weights
        self._embedding_weights = mtf.cast(stored, hidden.dtype)
        try:
            return super().hidden_to_logits(hidden, context)
        finally:
            self._embedding_weights = stored


def bind_gather_embedding(mesh_shape: Any, layout_rules: Any) -> bool:
    """Binds `GatherVocabEmbedding` if the mesh allows it and no other class is bound.

    Args:
      mesh_shape: anything that `mtf.convert_to_shape` accepts.
      layout_rules: anything that `mtf.convert_to_layout_rules` accepts.

    Returns:
      whether models that are lowered after this call embed with a gather.
    """
    embedding = bound(_PARAMETER, evaluate=False)
    if embedding is not None:
        return embedding is GatherVocabEmbedding
    if splits_vocabulary(mesh_shape, layout_rules):
        return False
    with gin.unlock_config():
        gin.bind_parameter(_PARAMETER, GatherVocabEmbedding)
    return True


def splits_vocabulary(mesh_shape: Any, layout_rules: Any) -> bool:
    """Returns whether a layout splits the vocabulary over more than one device."""
    vocab = mtf.Dimension("vocab", 0)
    return mtf.tensor_dim_to_mesh_dim_size(layout_rules, mesh_shape, vocab) > 1


def look_up(table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension) -> mtf.Tensor:
    """Returns rows of a table, like `mtf.gather`.

    If the table and the ids share a dimension, as in an ensemble, the function calls `mtf.gather`.

    Args:
      table: the table, [vocab, ...].
      ids: the numbers of the rows, int [*I].
      vocab_dim: the first dimension of the table.

    Returns:
      the rows, [*I, ...].
    """
    rest = [dim for dim in table.shape.dims if dim != vocab_dim]
    if table.shape.dims[0] != vocab_dim or set(rest) & set(ids.shape.dims):
        return mtf.gather(table, ids, vocab_dim)
    return _LookUp(table, ids).outputs[0]


class _LookUp(mtf.Operation):
    """Looks up rows: table [V, *R], ids [*I] -> [*I, *R]."""

    def __init__(self, table: mtf.Tensor, ids: mtf.Tensor) -> None:
        super().__init__([table, ids], name="look_up")
        shape = mtf.Shape(ids.shape.dims + table.shape.dims[1:])
        self._outputs = [mtf.Tensor(self, shape, table.dtype)]

    def gradient(self, grad_ys: list[mtf.Tensor]) -> list[mtf.Tensor | None]:
        table, ids = self.inputs
        return [_SumRows(grad_ys[0], ids, table.shape).outputs[0], None]

    def lower(self, lowering: mtf.Lowering) -> None:
        table, ids = self.inputs
        _check_unsplit(lowering.mesh_impl(self), table.shape.dims[0])
        rows = lowering.mesh_impl(self).slicewise(
            tf.gather, lowering.tensors[table], lowering.tensors[ids]
        )
        lowering.set_tensor_lowering(self.outputs[0], rows)


class _SumRows(mtf.Operation):
    """Computes the gradient of `_LookUp`, [V, *R].

    The gradient starts as zeros. Then dy [*I, *R] is added to the rows that ids [*I] name.
    """

    def __init__(self, dy: mtf.Tensor, ids: mtf.Tensor, shape: mtf.Shape) -> None:
        super().__init__([dy, ids], name="sum_rows")
        self._outputs = [mtf.Tensor(self, shape, dy.dtype)]

    def lower(self, lowering: mtf.Lowering) -> None:
        dy, ids = self.inputs
        vocab_dim = self.outputs[0].shape.dims[0]
        mesh_impl = lowering.mesh_impl(self)
        _check_unsplit(mesh_impl, vocab_dim)

        def add_up(dy_slice: tf.Tensor, ids_slice: tf.Tensor) -> tf.Tensor:
            # The sum is in float32, because thousands of small terms may be added to one row.
            wide = tf.cast(dy_slice, tf.float32)
            table = tf.math.unsorted_segment_sum(wide, ids_slice, vocab_dim.size)
            return tf.cast(table, dy_slice.dtype)

        summed = mesh_impl.slicewise(add_up, lowering.tensors[dy], lowering.tensors[ids])
        # Each device has only the sum over its own tokens, so the devices' sums are added.
        axes = [mesh_impl.tensor_dimension_to_mesh_axis(dim) for dim in ids.shape.dims]
        axes = sorted(axis for axis in axes if axis is not None)
        if axes:
            summed = mesh_impl.allreduce(summed, axes, "SUM")
        lowering.set_tensor_lowering(self.outputs[0], summed)


def looked_up_rows(gradient: mtf.Tensor) -> list[tuple[mtf.Tensor, mtf.Tensor]] | None:
    """Splits the gradient of a table into the gradients of its lookups.

    Args:
      gradient: the gradient of a table, [vocab, ...].

    Returns:
      for each lookup, the gradient of its result [*I, ...] and its ids [*I]; None if the gradient
      has terms that do not come from lookups.
    """
    operation = gradient.operation
    if isinstance(operation, _SumRows):
        return [tuple(operation.inputs)]
    if not isinstance(operation, mtf.AddOperation):
        return None
    lookups = [looked_up_rows(x) for x in operation.inputs]
    return None if None in lookups else [pair for pairs in lookups for pair in pairs]


def target_log_probabilities(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension, *, split: bool = False
) -> mtf.Tensor:
    """Returns log p(target) in nats, float32 [...]: the target's logit minus the log-sum-exp.

    Args:
      logits: [..., vocab], of any floating type; the function computes in float32.
      targets: int [...], with the same dimensions as the logits, except for the vocabulary.
      vocab_dim: the vocabulary's dimension. One-hot vectors are used instead of a gather if this is
        not the last dimension of the logits, or if the other dimensions of logits and targets are
        in different orders.
      split: whether the mesh splits the vocabulary. If so, one-hot vectors are used.
    """
    logits = mtf.cast(logits, tf.float32)
    if split or logits.shape.dims != [*targets.shape.dims, vocab_dim]:
        return -mtf.layers.softmax_cross_entropy_with_logits(logits, targets, vocab_dim)
    return mtf.slicewise(
        _log_probability,
        [logits, targets],
        output_shape=targets.shape,
        splittable_dims=targets.shape.dims,
        name="target_log_probability",
    )


def _log_probability(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def _check_unsplit(mesh_impl: Any, vocab_dim: mtf.Dimension) -> None:
    if mesh_impl.tensor_dimension_to_mesh_axis(vocab_dim) is not None:
        raise ValueError(
            f"the layout splits {vocab_dim.name}, which must be unsplit for a gather; "
            "see bind_gather_embedding"
        )
