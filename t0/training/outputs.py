"""What a model in training says to inputs: decoded targets, or the log-likelihood of given ones.

    outputs = Outputs(settings, graph, session)
    outputs.decode(inputs)              # int32 [N, L] -> int32 [N, T], greedy unless gin says else
    outputs.score(inputs, targets)      # [N, L], [N, T] -> float32 [N], nats

Both are further programs over the training graph's variables, in its session: no weights are copied
and no checkpoint is read. Each is lowered when first asked for. Legend: N examples, L inputs, T
targets.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t0.compat import mtf
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.mesh.gather_embedding import target_log_probabilities
from t0.training.graph import Program, TrainingGraph
from t0.training.settings import Settings

# (placeholders, result) of a lowered program.
_Lowered = tuple[Mapping[str, tf.Tensor], tf.Tensor]


class Outputs:
    """Decodes and scores with the weights of a training session.

    Args:
      settings: of the run.
      graph: the training graph.
      session: holds its variables.

    Raises:
      UserError: for a model without an encoder, or an ensemble.
    """

    def __init__(self, settings: Settings, graph: TrainingGraph, session: tf.Session) -> None:
        if settings.model_type != "bitransformer" or settings.ensemble_inputs:
            raise UserError(
                f"task metrics in training need a model with an encoder and a decoder, not an "
                f"ensemble; run.model_type is '{settings.model_type}'. Leave "
                "train_loop.evaluate_every_steps unset"
            )
        self._settings = settings
        self._graph = graph
        self._session = session
        self._lowered: dict[str, _Lowered] = {}

    def decode(self, inputs: np.ndarray) -> np.ndarray:
        """Returns the ids that the model makes of `inputs`; after an EOS they mean nothing."""
        return self._run("decode", _decode, {"inputs": inputs})

    def score(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns log p(targets | inputs) in nats, summed over the targets' tokens."""
        return self._run("score", _score, {"inputs": inputs, "targets": targets})

    def _run(
        self, name: str, build: Callable[..., Any], values: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        if name not in self._lowered:
            self._lowered[name] = self._lower(build, tuple(values))
        placeholders, result = self._lowered[name]
        rows, count = self._settings.batch_size, len(values["inputs"])
        found = []
        for start in range(0, count, rows):
            fed = {
                placeholders[key]: _padded(value[start : start + rows], rows)
                for key, value in values.items()
            }
            found.append(self._session.run(result, fed))
        return np.concatenate(found)[:count]

    def _lower(self, build: Callable[..., Any], names: tuple[str, ...]) -> _Lowered:
        batch = mtf.Dimension("batch", self._settings.batch_size)
        with (
            self._graph.graph.as_default(),
            tf.variable_scope("", use_resource=True, reuse=tf.AUTO_REUSE),
        ):
            program = self._graph.another()
            placeholders, features = {}, {}
            for name in names:
                length = mtf.Dimension("length", self._settings.sequence_length[name])
                shape = mtf.Shape([batch, length])
                placeholders[name] = tf.placeholder(tf.int32, shape.to_integer_list)
                features[name] = mtf.import_fully_replicated(
                    program.mesh, placeholders[name], shape, name=name
                )
            made = build(program, features, self._settings.sequence_length["targets"])
            return placeholders, program.lower().export_to_tf_tensor(made)


def _decode(program: Program, features: Mapping[str, mtf.Tensor], length: int) -> mtf.Tensor:
    return program.model.decode(
        features["inputs"], variable_dtype=program.types, max_decode_length=length
    )


def _score(program: Program, features: Mapping[str, mtf.Tensor], length: int) -> mtf.Tensor:
    del length
    targets = features["targets"]
    logits, _ = program.model.call_simple(
        inputs=features["inputs"],
        targets=targets,
        compute_loss=False,
        mode=tf.estimator.ModeKeys.EVAL,
        variable_dtype=program.types,
    )
    vocab_dim = logits.shape.dims[-1]
    present = mtf.cast(mtf.greater(targets, 0), tf.float32)
    if program.mesh_impl.tensor_dimension_to_mesh_axis(vocab_dim) is None:
        each = target_log_probabilities(logits, targets, vocab_dim)
    else:
        wide = mtf.cast(logits, tf.float32)
        each = -mtf.layers.softmax_cross_entropy_with_logits(wide, targets, vocab_dim)
    return mtf.reduce_sum(each * present, reduced_dim=targets.shape.dims[-1])


def _padded(values: np.ndarray, rows: int) -> np.ndarray:
    missing = rows - len(values)
    return np.pad(values, [(0, missing), (0, 0)]) if missing else values
