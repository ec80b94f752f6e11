"""Predicts tokens with one set of weights, over as many batch shapes as come.

Legend: B examples, L input tokens, T target tokens.

    generator = Generator(model, types, Placement(mesh_shape, layout_rules, [""]), Method())
    generator.restore("/models/tiny/model.ckpt-1000")
    ids, scores = generator.predict(inputs, limits, draws)  # [B, L], [B], [B, T] -> [B, T], [B]

Mesh TensorFlow's shapes are static: each (B, L, T) is its own lowering, made on first use, over one
set of variables that is restored once. `t0.inference.batches` keeps them few.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.inference import attention, decoding
from t0.inference.choice import Method
from t0.mesh import gather_embedding
from t0.mesh.batch import replicas
from t0.mesh.fused import fused
from t0.scoring.mesh_model import Placement, restore_variables, session_of_shapes


@dataclasses.dataclass(frozen=True)
class _Lowered:
    inputs: tf.Tensor
    limits: tf.Tensor
    draws: tf.Tensor
    ids: tf.Tensor
    scores: tf.Tensor


class _Devices(mtf.placement_mesh_impl.PlacementMeshImpl):
    """The devices of a mesh, with plain matrix products where an einsum is one.

    TensorFlow's Einsum has no oneDNN kernel for the few rows of a decoding step.
    """

    def einsum(self, equation: str, *slices: tf.Tensor) -> tf.Tensor:
        """See Mesh TensorFlow."""
        given, _, found = equation.partition("->")
        left, _, right = given.partition(",")
        if len(right) != 2 or left[-1:] != right[:1] or found != left[:-1] + right[1]:
            return super().einsum(equation, *slices)
        x, table = slices
        rows = tf.matmul(tf.reshape(x, [-1, x.shape.as_list()[-1]]), table)
        return tf.reshape(rows, [*x.shape.as_list()[:-1], table.shape.as_list()[-1]])


class Generator:
    """Predicts with one set of weights.

    Args:
      model: a Mesh TensorFlow `Bitransformer`; its decoder's attention layers are replaced.
      types: master, slice and activation types. Scores are of float32 logits in any.
      placement: mesh, layout and devices.
      method: how tokens are chosen.
    """

    def __init__(
        self, model: Any, types: mtf.VariableDType, placement: Placement, method: Method
    ) -> None:
        self._model = model
        self._types = types
        self._placement = placement
        self._method = method
        gather_embedding.bind_gather_embedding(placement.mesh_shape, placement.layout_rules)
        attention.cache_attention(model.decoder)
        self._graph = tf.Graph()
        self._session = session_of_shapes(self._graph)
        self._slice_copies: tf.Operation | None = None
        self._lowered: dict[tuple[int, int, int], _Lowered] = {}

    @property
    def replicas(self) -> int:
        """Into how many parts the mesh splits a batch: B must be a multiple of it."""
        return replicas(self._placement.mesh_shape, self._placement.layout_rules)

    def restore(self, checkpoint: str) -> int:
        """Loads every variable of the model from `checkpoint`, for all shapes to come.

        Returns:
          the number of variables restored.

        Raises:
          UserError: if the checkpoint cannot be read, or lacks a variable of the model or holds
            it in another shape or type.
        """
        if self._slice_copies is None:
            *_, lowering = self._build(self.replicas, 1, 1, decoding.make_variables)
            with self._graph.as_default():
                # Later lowerings reuse the slices; where slices are the masters this does nothing.
                self._slice_copies = lowering.copy_masters_to_slices()
        restored = restore_variables(self._session, checkpoint)
        self._session.run(self._slice_copies)
        return restored

    def predict(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns predicted tokens and their scores.

        Args:
          inputs: int [B, L], 0 is padding; B is a multiple of `replicas`.
          limits: int [B], the most tokens to predict; 0 for a row that only fills the batch.
          draws: float [B, T], uniform from 0 to below 1; read only where tokens are drawn. T is
            the most tokens of any row.

        Returns:
          int32 [B, T], each row's tokens up to EOS or its limit, then zeros; float32 [B], the sums
          of the tokens' log-probabilities in nats.
        """
        lowered = self._lower((*inputs.shape, draws.shape[1]))
        feeds = {lowered.inputs: inputs, lowered.limits: limits, lowered.draws: draws}
        return tuple(self._session.run([lowered.ids, lowered.scores], feeds))

    def close(self) -> None:
        """Frees the session and its weights."""
        self._session.close()

    def _lower(self, shape: tuple[int, int, int]) -> _Lowered:
        if shape not in self._lowered:
            fed, outputs, lowering = self._build(*shape, decoding.decode)
            with self._graph.as_default():
                exported = [lowering.export_to_tf_tensor(output) for output in outputs]
            self._lowered[shape] = _Lowered(*fed.values(), *exported)
        return self._lowered[shape]

    def _build(
        self, batch: int, input_length: int, length: int, build: Callable[..., Any]
    ) -> tuple[dict[str, tf.Tensor], Any, mtf.Lowering]:
        """Returns placeholders, what `build` gives for feeds of a shape, and its lowering."""
        batch_dim = mtf.Dimension("batch", batch)
        dims = {
            "inputs": [batch_dim, mtf.Dimension("length", input_length)],
            "limits": [batch_dim],
            "draws": [batch_dim, mtf.Dimension("length", length)],
        }
        graph, place = mtf.Graph(), self._placement
        mesh = mtf.Mesh(graph, "inference")
        with self._graph.as_default(), tf.variable_scope("", reuse=tf.AUTO_REUSE):
            fed = {
                name: tf.placeholder(
                    tf.float32 if name == "draws" else tf.int32, [dim.size for dim in shape]
                )
                for name, shape in dims.items()
            }
            feeds = decoding.Feeds(
                **{
                    name: mtf.import_fully_replicated(mesh, fed[name], mtf.Shape(shape), name=name)
                    for name, shape in dims.items()
                }
            )
            with fused(self._model, place.mesh_shape, place.layout_rules):
                built = build(self._model, self._types, feeds, self._method)
            mesh_impl = _Devices(place.mesh_shape, place.layout_rules, list(place.devices))
            return fed, built, mtf.Lowering(graph, {mesh: mesh_impl}, autostack=False)
