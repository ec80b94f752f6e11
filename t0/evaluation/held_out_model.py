"""Measures losses with Mesh TensorFlow, for the perplexity of held-out examples."""

from collections.abc import Mapping, Sequence

import numpy as np

from t0.compat import tf1 as tf
from t0.evaluation.mesh_model import restore_variables
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.training.graph import TrainingSpec, build_held_out


class MeshHeldOutModel:
    """A model of Mesh TensorFlow that measures; see `t0.evaluation.model.Model`.

    Args:
      spec: the model and the batch.
      features: the names of the features of a batch.
      activations: the type of activations.
    """

    def __init__(self, spec: TrainingSpec, features: Sequence[str], activations: tf.DType) -> None:
        bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
        self._held_out = build_held_out(spec, features=features, activations=activations)
        self._session = tf.Session(
            graph=self._held_out.graph, config=tf.ConfigProto(allow_soft_placement=True)
        )

    def restore(self, checkpoint: str) -> int:
        """Restores the weights of a checkpoint; returns the number of variables."""
        count = restore_variables(self._session, checkpoint)
        self._session.run(self._held_out.to_slices)
        return count

    def measure(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the sums of a batch; see `t0.evaluation.model.Model`."""
        features = self._held_out.features
        feed = {features[name]: batch[name] for name in features}
        return self._session.run(self._held_out.values, feed)[1:]

    def close(self) -> None:
        """Frees the session and its weights."""
        self._session.close()
