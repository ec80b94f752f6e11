"""Log-likelihoods of answer choices under a Mesh TensorFlow model, which encodes an input once.

Legend: B examples of a batch, C choices of an example, L input tokens, T target tokens,
V vocabulary.

The encoder runs on inputs [B, L]. The decoder's targets are [B, C, T]: they have a `choices`
dimension that the encoder's output lacks, so all choices of an example attend to one encoding. Mesh
TensorFlow's shapes are static: each (B, C, L, T) has its own lowering, which is made on first use.
All lowerings share one set of variables, which is restored once. `t0.scoring.batch_planning` keeps
the number of shapes small.

Logits and their softmax are float32, whatever the type of activations. Unless the mesh splits the
vocabulary, embeddings are looked up by a gather.

    scorer = Scorer(model, variable_dtype, Placement(mesh_shape, layout_rules, devices=[""]))
    scorer.restore("/models/tiny/model.ckpt-1000")
    scorer.log_likelihoods(inputs, targets)      # [B, L], [B, C, T] -> [B, C], nats
"""

import dataclasses
from typing import Any

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.mesh import gather_embedding
from t0.mesh.batch import replicas
from t0.mesh.fused import fused
from t0.scoring.mesh_model import (
    Placement,
    SharedVariables,
    restore_variables,
    session_of_shapes,
)


@dataclasses.dataclass(frozen=True)
class _Lowered:
    inputs: tf.Tensor
    targets: tf.Tensor
    scores: tf.Tensor


class Scorer:
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
        self._mesh_impl = SharedVariables(placement)
        self._graph = tf.Graph()
        self._session = session_of_shapes(self._graph)
        self._lowered: dict[tuple[int, int, int, int], _Lowered] = {}

    @property
    def replicas(self) -> int:
        """The number of parts into which the mesh splits a batch: B must be a multiple of it."""
        return replicas(self._placement.mesh_shape, self._placement.layout_rules)

    @property
    def device_kind(self) -> str:
        """ "gpu" or "cpu"."""
        named = any("gpu" in device.lower() for device in self._placement.devices)
        return "gpu" if named else "cpu"

    def restore(self, checkpoint: str) -> int:
        """Loads every variable of the model from `checkpoint`, for all batch shapes.

        Returns:
          the number of variables restored.

        Raises:
          UserError: if the checkpoint cannot be read, lacks a variable of the model, has it in
            another shape or type, or has weights that the model lacks.
        """
        self._lower((self.replicas, 1, 1, 1))
        restored = restore_variables(self._session, checkpoint)
        self._session.run(self._slice_copies)
        return restored

    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns log p(choice | input) in nats, summed over the choice's tokens and its EOS.

        Args:
          inputs: int [B, L], 0 is padding; B is a multiple of `replicas`.
          targets: int [B, C, T] with EOS, 0 is padding; the score of a choice of zeros is 0.

        Returns:
          the log-likelihoods, float32 [B, C].
        """
        shape = (*targets.shape[:2], inputs.shape[1], targets.shape[2])
        lowered = self._lower(shape)
        return self._session.run(lowered.scores, {lowered.inputs: inputs, lowered.targets: targets})

    def close(self) -> None:
        """Frees the session and its weights."""
        self._session.close()

    def _lower(self, shape: tuple[int, int, int, int]) -> _Lowered:
        if shape not in self._lowered:
            with self._graph.as_default(), tf.variable_scope("", reuse=tf.AUTO_REUSE):
                self._lowered[shape] = self._build(*shape)
        return self._lowered[shape]

    def _build(self, batch: int, choices: int, input_length: int, target_length: int) -> _Lowered:
        batch_dim = mtf.Dimension("batch", batch)
        choices_dim = mtf.Dimension("choices", choices)
        memory_dim = mtf.Dimension("length", input_length)
        length_dim = mtf.Dimension("length", target_length)

        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "scoring")
        inputs = tf.placeholder(tf.int32, [batch, input_length])
        targets = tf.placeholder(tf.int32, [batch, choices, target_length])
        mtf_inputs = mtf.import_fully_replicated(
            mesh, inputs, mtf.Shape([batch_dim, memory_dim]), name="inputs"
        )
        mtf_targets = mtf.import_fully_replicated(
            mesh, targets, mtf.Shape([batch_dim, choices_dim, length_dim]), name="targets"
        )
        place = self._placement
        with fused(self._model, place.mesh_shape, place.layout_rules):
            logits, _ = self._model.call_simple(
                inputs=mtf_inputs,
                targets=mtf_targets,
                compute_loss=False,
                mode=tf.estimator.ModeKeys.EVAL,
                variable_dtype=self._variable_dtype,
            )
        logits = _in_float32(logits)
        # [B, C, T, V] -> [B, C]
        nats = self._log_probabilities(logits, mtf_targets, logits.shape.dims[-1])
        nats *= mtf.cast(mtf.greater(mtf_targets, 0), tf.float32)
        scores = mtf.anonymize(mtf.reduce_sum(nats, reduced_dim=length_dim))

        lowering = mtf.Lowering(graph, {mesh: self._mesh_impl}, autostack=False)
        # The slices are those of the first lowering. If they are the masters, this does nothing.
        if not self._lowered:
            self._slice_copies = lowering.copy_masters_to_slices()
        return _Lowered(inputs, targets, lowering.export_to_tf_tensor(scores))


def _in_float32(logits: mtf.Tensor) -> mtf.Tensor:
    """Returns logits that are computed (not only stored) in float32, from the last hidden state."""
    product = logits.operation
    if logits.dtype == tf.float32 or not isinstance(product, mtf.EinsumOperation):
        return mtf.cast(logits, tf.float32)
    return mtf.einsum([mtf.cast(x, tf.float32) for x in product.inputs], logits.shape)


def _log_probabilities_by_one_hot(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    return -mtf.layers.softmax_cross_entropy_with_logits(logits, targets, vocab_dim)
