"""The TensorFlow side of inference.py: our decoding and Mesh TensorFlow's.

Started as `inference_tensorflow.py THREADS`; speaks JSON lines (see inference.py). The first line
sets the model and the inputs, each further line asks for a measurement. EOS is never predicted, so
that each example takes every step.
"""

import json
import os
import sys
import tempfile
from typing import Any

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

from t0 import compat  # noqa: E402

compat.apply()

import mesh_tensorflow as mtf  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402
from random_weights import random_checkpoint  # noqa: E402
from workers import token_rates  # noqa: E402

from t0.config import parse  # noqa: E402
from t0.evaluation.mesh_model import Placement  # noqa: E402
from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.inference.generator import MeshGenerator  # noqa: E402
from t0.inference.search import EOS  # noqa: E402
from t0.mesh import gather_embedding  # noqa: E402

VOCABULARY = 32128
PLACE = Placement(mtf.convert_to_shape(""), mtf.convert_to_layout_rules(""), [""])


def build_model() -> Any:
    """Returns T5.1.1 small."""
    parse.parse(["models/t5.1.1.small.gin"], ["dropout_rate = 0.0"])
    return mesh_utils.build_model(
        input_vocab_size=VOCABULARY, output_vocab_size=VOCABULARY, layout_rules="", mesh_shape=""
    )


def types_of(question: dict[str, Any]) -> mtf.VariableDType:
    """Returns float32 masters, and slices and activations of the requested type."""
    dtype = tf.as_dtype(question["dtype"])
    return mtf.VariableDType(tf.float32, dtype, dtype)


def without_eos(softmax: np.ndarray) -> np.ndarray:
    """Sets EOS's column to 0. EOS is then never predicted, because some logit is above 0."""
    softmax[:, EOS] = 0.0
    return softmax


class Ours:
    """Predicts as `t0.infer` does."""

    def __init__(self, question: dict[str, Any], checkpoint: str) -> None:
        method = DecodingMethod(beam_size=question["beams"], alpha=0.0)
        self._generator = MeshGenerator(build_model(), types_of(question), PLACE, method)
        shape = (question["batch"], question["inputs"])
        self._feeds = (
            np.random.default_rng(0).integers(3, 32000, shape).astype(np.int32),
            np.full(question["batch"], question["targets"], np.int32),
            np.zeros((question["batch"], question["targets"]), np.float32),
        )
        self._generator.restore(checkpoint)

    def predict(self) -> np.ndarray:
        """Returns the tokens of the batch."""
        return self._generator.generate(*self._feeds)[0]


class Mesh:
    """Predicts with the program that Mesh TensorFlow's estimator runs, with gathered embeddings."""

    def __init__(self, question: dict[str, Any], checkpoint: str) -> None:
        batch, length = question["batch"], question["inputs"]
        model = build_model()
        gather_embedding.bind_gather_embedding(PLACE.mesh_shape, PLACE.layout_rules)
        rng = np.random.default_rng(0)
        self._inputs = rng.integers(3, 32000, (batch, length)).astype(np.int32)
        graph = mtf.Graph()
        with tf.Graph().as_default():
            mesh = mtf.Mesh(graph, "mesh")
            self._fed = tf.placeholder(tf.int32, [batch, length])
            shape = mtf.Shape([mtf.Dimension("batch", batch), mtf.Dimension("length", length)])
            inputs = mtf.import_fully_replicated(mesh, self._fed, shape, name="inputs")
            outputs = model.decode(
                inputs,
                variable_dtype=types_of(question),
                beam_size=question["beams"],
                alpha=0.0,
                max_decode_length=question["targets"],
            )
            outputs = mtf.anonymize(outputs)
            mesh_implementation = mtf.placement_mesh_impl.PlacementMeshImpl(
                PLACE.mesh_shape, PLACE.layout_rules, PLACE.devices
            )
            lowering = mtf.Lowering(graph, {mesh: mesh_implementation}, autostack=False)
            self._ids = lowering.export_to_tf_tensor(outputs)
            copies = lowering.copy_masters_to_slices()
            self._session = tf.Session()
            tf.train.Saver().restore(self._session, checkpoint)
            self._session.run(copies)

    def predict(self) -> np.ndarray:
        """Returns the tokens of the batch."""
        return self._session.run(self._ids, {self._fed: self._inputs})


def main() -> None:
    """Answers questions until there are no more."""
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    question = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        side = {"ours": Ours, "mesh": Mesh}[question["side"]]
        predictor = side(
            question,
            random_checkpoint(build_model(), folder, {"decoder/logits/kernel": without_eos})[0],
        )
    token_rates(predictor.predict, EOS)  # the first prediction also lowers the graph
    print("\n{}", flush=True)
    for _ in sys.stdin:
        print("\n" + json.dumps(token_rates(predictor.predict, EOS)), flush=True)


if __name__ == "__main__":
    main()
