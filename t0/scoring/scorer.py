"""Scores answer choices with a Mesh TensorFlow model that encodes each input only once.

Legend: B inputs of a batch, C choices of an input, L input tokens, T target tokens, V vocabulary; R
packed rows, N input tokens of a row, M target tokens of a row.

If the mesh does not split rows or the vocabulary, a T5 reads packed rows. They contain inputs [R,
N] and all of their choices [R, M] almost without padding (`t0.scoring.packed_model`). All other
models read padded inputs [B, L] and targets [B, C, T]. Their decoder has a `choices` dimension that
the encoder's output does not have, so all choices of an input attend to one encoding.

Mesh TensorFlow's shapes are static, so each shape has its own lowering, which is built on first
use. All lowerings share one set of variables, which is restored once. `t0.scoring.batching` limits
the number of shapes.

Logits and their softmax are always float32. If the mesh does not split the vocabulary, embeddings
are looked up with a gather operation.

    scorer = MeshScorer(model, variable_dtype, Placement(mesh_shape, layout_rules, devices=[""]))
    scorer.restore("/models/tiny/model.ckpt-1000")
    scorer.log_likelihoods(inputs, targets)      # [B, L], [B, C, T] -> [B, C], nats
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.mesh import gather_embedding
from t0.mesh.devices import replicas
from t0.mesh.fused import fused
from t0.scoring.batching import PackedShape, PackedTokens, pack_groups
from t0.scoring.examples import ChoiceGroup
from t0.scoring.mesh_model import Placement, SharedVariables, restore_variables, session_of_shapes
from t0.scoring.packed_model import pack_attention, packed_logits

# The padded shape (B, C, L, T) of a batch.
_Padded = tuple[int, int, int, int]
# The number of target tokens whose logits [tokens, V] are computed together in float32.
_BLOCK = 512
# The inputs of a packed shape's program.
_PACKED_INPUTS = tuple(field.name for field in dataclasses.fields(PackedTokens))


@dataclasses.dataclass(frozen=True)
class _LoweredShape:
    """The lowered program of a batch shape.

    The program has placeholders for the inputs, and a tensor of log-likelihoods, [B, C] or [R, M].
    """

    fed: Mapping[str, tf.Tensor]
    scores: tf.Tensor


class MeshScorer:
    """Scores choices with one set of weights and any number of batch shapes.

    Args:
      model: a Mesh TensorFlow `Bitransformer`.
      variable_dtype: the types of masters, slices and activations.
      placement: the mesh, its layout and its devices.
    """

    def __init__(self, model: Any, variable_dtype: mtf.VariableDType, placement: Placement) -> None:
        self._model = model
        self._variable_dtype = variable_dtype
        self._placement = placement
        where = (placement.mesh_shape, placement.layout_rules)
        gather_embedding.bind_gather_embedding(*where)
        split = gather_embedding.splits_vocabulary(*where)
        self._log_probabilities = (
            _log_probabilities_by_one_hot if split else gather_embedding.target_log_probabilities
        )
        self.packs = not split and pack_attention(model, *where)
        self._mesh_impl = SharedVariables(placement)
        self._graph = tf.Graph()
        self._session = session_of_shapes(self._graph)
        self._lowered: dict[PackedShape | _Padded, _LoweredShape] = {}

    @property
    def replicas(self) -> int:
        """The number of parts into which the mesh splits a batch.

        A packed batch has this number of rows. In a padded batch, B is a multiple of this number.
        """
        return replicas(self._placement.mesh_shape, self._placement.layout_rules)

    @property
    def device_kind(self) -> str:
        """ "gpu" or "cpu"."""
        return self._placement.device_kind

    def restore(self, checkpoint: str) -> int:
        """Restores every variable of the model from `checkpoint`, for all batch shapes.

        Returns:
          the number of restored variables.

        Raises:
          UserError: if the checkpoint cannot be read, if a variable of the model is missing in the
            checkpoint or has a different shape or type there, or if the checkpoint has weights that
            the model does not have.
        """
        first = PackedShape(self.replicas, 1, 1) if self.packs else (self.replicas, 1, 1, 1)
        self._lower(first)
        restored = restore_variables(self._session, checkpoint)
        self._session.run(self._slice_copies)
        return restored

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
            return self._run(padded, {"inputs": inputs, "targets": targets})
        groups = [
            ChoiceGroup(_unpadded(ids), tuple(map(_unpadded, choices)), ((0, number, 0),))
            for number, (ids, choices) in enumerate(zip(inputs, targets, strict=True))
        ]
        if shape is None:
            tokens = np.sum([group.tokens for group in groups], axis=0)
            shape = PackedShape(self.replicas, int(tokens[0]), max(1, int(tokens[1])))
        return pack_groups(groups, shape).score(self)

    def log_probabilities(self, tokens: PackedTokens, shape: PackedShape) -> np.ndarray:
        """Returns the log-probability of each target token in packed rows, float32 [R, M].

        The values of padding are arbitrary.
        """
        return self._run(shape, {name: getattr(tokens, name) for name in _PACKED_INPUTS})

    def _run(self, shape: PackedShape | _Padded, values: Mapping[str, np.ndarray]) -> np.ndarray:
        lowered = self._lower(shape)
        return self._session.run(
            lowered.scores, {lowered.fed[name]: values[name] for name in values}
        )

    def close(self) -> None:
        """Frees the session and its weights."""
        self._session.close()

    def _lower(self, shape: PackedShape | _Padded) -> _LoweredShape:
        if shape not in self._lowered:
            with self._graph.as_default(), tf.variable_scope("", reuse=tf.AUTO_REUSE):
                build = self._build_packed if isinstance(shape, PackedShape) else self._build_padded
                self._lowered[shape] = build(shape)
        return self._lowered[shape]

    def _build_packed(self, shape: PackedShape) -> _LoweredShape:
        row_dim = mtf.Dimension("batch", shape.rows)
        input_dim = mtf.Dimension("length", shape.inputs)
        target_dim = mtf.Dimension("length", shape.targets)
        dims = dict.fromkeys(_PACKED_INPUTS, [row_dim, target_dim])
        dims |= dict.fromkeys(("inputs", "input_numbers"), [row_dim, input_dim])
        mesh, fed, tokens = _placeholders(dims)
        targets = tokens["targets"]
        placement = self._placement
        with fused(self._model, placement.mesh_shape, placement.layout_rules):
            logits = packed_logits(self._model, PackedTokens(**tokens), self._variable_dtype)
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
        return self._export(mesh, fed, nats)

    def _build_padded(self, shape: _Padded) -> _LoweredShape:
        batch, choices, input_length, target_length = shape
        batch_dim = mtf.Dimension("batch", batch)
        choices_dim = mtf.Dimension("choices", choices)
        length_dim = mtf.Dimension("length", target_length)
        dims = {
            "inputs": [batch_dim, mtf.Dimension("length", input_length)],
            "targets": [batch_dim, choices_dim, length_dim],
        }
        mesh, fed, tokens = _placeholders(dims)
        placement = self._placement
        with fused(self._model, placement.mesh_shape, placement.layout_rules):
            logits, _ = self._model.call_simple(
                **tokens,
                compute_loss=False,
                mode=tf.estimator.ModeKeys.EVAL,
                variable_dtype=self._variable_dtype,
            )
        logits, targets = _in_float32(logits), tokens["targets"]
        # [B, C, T, V] -> [B, C]
        nats = self._log_probabilities(logits, targets, logits.shape.dims[-1])
        nats *= mtf.cast(mtf.greater(targets, 0), tf.float32)
        scores = mtf.anonymize(mtf.reduce_sum(nats, reduced_dim=length_dim))
        return self._export(mesh, fed, scores)

    def _export(
        self, mesh: mtf.Mesh, fed: Mapping[str, tf.Tensor], scores: mtf.Tensor
    ) -> _LoweredShape:
        lowering = mtf.Lowering(mesh.graph, {mesh: self._mesh_impl}, autostack=False)
        # All lowerings share the slices of the first lowering. If the slices are the masters,
        # nothing is copied.
        if not self._lowered:
            self._slice_copies = lowering.copy_masters_to_slices()
        return _LoweredShape(fed, lowering.export_to_tf_tensor(scores))


def _unpadded(ids: np.ndarray) -> np.ndarray:
    return np.trim_zeros(ids, "b")


def _placeholders(
    dims: Mapping[str, Sequence[mtf.Dimension]],
) -> tuple[mtf.Mesh, dict[str, tf.Tensor], dict[str, mtf.Tensor]]:
    """Returns (new mesh, placeholders for ids of these dimensions, the ids on the mesh)."""
    mesh = mtf.Mesh(mtf.Graph(), "scoring")
    fed = {name: tf.placeholder(tf.int32, [d.size for d in of]) for name, of in dims.items()}
    imported = {
        name: mtf.import_fully_replicated(mesh, fed[name], mtf.Shape(of), name=name)
        for name, of in dims.items()
    }
    return mesh, fed, imported


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
