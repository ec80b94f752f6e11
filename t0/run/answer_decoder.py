"""Decodes the answers of a rank evaluation by Mesh TensorFlow's model; see `t0.scoring.answers`.

decoder = AnswerDecoder(model, vocabularies, dtype="float32", lengths=None, batch_size=32)
decoder.restore("/models/tiny/model.ckpt-1000")
decoder.decode([np.array([363, 19, 42])], 16)         # ["True"]
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import mesh_utils, mtf
from t0.compat import tf1 as tf
from t0.inference.generator import Generator
from t0.inference.inputs import InferenceExample, LengthLimits, batches
from t0.inference.methods import DecodingMethod
from t0.inference.prediction_jobs import predicted_tokens
from t0.mesh import devices
from t0.scoring.mesh_model import MeshModel, build_model

# More rows at once are no faster, and leave more of a task's last batch empty.
_MOST_ROWS = 32
_UNLIMITED = 1 << 20


class AnswerDecoder:
    """Decodes greedily.

    Args:
      model: the model's type and mesh.
      vocabularies: those of inputs and targets.
      dtype: the type of activations.
      lengths: the limits in tokens, or None for no limits.
      batch_size: the most sequences of full length in a batch.
    """

    def __init__(
        self,
        model: MeshModel,
        vocabularies: tuple[Any, Any],
        *,
        dtype: str,
        lengths: Mapping[str, int] | None,
        batch_size: int,
    ) -> None:
        built, placement = build_model(model, vocabularies)
        types = mesh_utils.get_variable_dtype()
        activations = devices.activation_dtype(dtype)
        if activations != tf.float32:
            types = mtf.VariableDType(types.master_dtype, activations, activations)
        self._method = DecodingMethod()
        self._generator = Generator(built, types, placement, self._method)
        self._vocabulary = vocabularies[1]
        self._longest = lengths["inputs"] if lengths else _UNLIMITED
        replicas = self._generator.replicas
        self._rows = max(1, min(_MOST_ROWS, batch_size) // replicas) * replicas

    def restore(self, checkpoint: str) -> int:
        """Loads a checkpoint's weights; returns the number of variables."""
        return self._generator.restore(checkpoint)

    def decode(self, inputs: Sequence[np.ndarray], most_tokens: int) -> list[str]:
        """Returns the text of each input [L], of at most so many tokens."""
        window = [InferenceExample(n, "", None, one.tolist()) for n, one in enumerate(inputs)]
        limits = LengthLimits(self._longest, most_tokens)
        given = {"batch_size": self._rows, "method": self._method, "seed": 0}
        texts = [""] * len(window)
        for batch in batches(window, limits, **given):
            ids, _ = self._generator.predict(batch.inputs, batch.limits, batch.draws)
            for row, place in enumerate(batch.places):
                tokens = predicted_tokens(ids[row], most_tokens)
                texts[place] = self._vocabulary.decode(tokens)
        return texts
