"""Generators of tiny models with random weights, some of which end their predictions soon."""

from t0 import compat

compat.apply()

import mesh_tensorflow as mtf  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402

from t0.evaluation.mesh_model import Placement  # noqa: E402
from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.inference.generator import MeshGenerator  # noqa: E402
from tests.evaluation.tiny_models import LAYOUT, VOCABULARY, bind, padded, random_variables  # noqa: E402

INPUTS = [[5, 9, 44, 17, 3, 100, 61], [7], list(range(3, 60)), [90, 91, 92]]
# With one layer of random weights nearly every prediction ends at once.
TWO_LAYERS = "num_layers = 2"
# Longer than a chunk of the cache.
LIMITS = [40, 33, 12, 1]


def ending_variables(model="t5.1.1", seed=3):
    """Returns variables whose softmax likes EOS now and then."""
    variables = random_variables(model, seed, layers=2)
    table = "decoder/logits/kernel" if model == "t5.1.1" else "shared/embedding"
    rng = np.random.default_rng(seed)
    liked = 1.6 * rng.normal(size=16).astype(np.float32)
    if model == "t5.1.1":
        variables[table][:, 1] = liked
    else:
        variables[table][1] = 2 * liked
    return variables


def make_generator(method=None, *, model="t5.1.1", mesh="", activations=tf.float32, params=()):
    bind(model, TWO_LAYERS, *params)
    built = mesh_utils.build_model(
        input_vocab_size=VOCABULARY,
        output_vocab_size=VOCABULARY,
        layout_rules=LAYOUT,
        mesh_shape=mesh,
    )
    shape = mtf.convert_to_shape(mesh)
    types = mtf.VariableDType(tf.float32, activations, activations)
    placement = Placement(shape, mtf.convert_to_layout_rules(LAYOUT), [""] * shape.size)
    return MeshGenerator(built, types, placement, method or DecodingMethod())


def predict(generator, inputs=INPUTS, limits=LIMITS, *, rows=None, length=None, draws=None):
    """Returns [(tokens, score)] for `inputs`, padded to `length`, among `rows` rows."""
    array = padded(inputs, length)
    array = np.pad(array, [(0, (rows or len(inputs)) - len(inputs)), (0, 0)])
    most = np.pad(np.array(limits, np.int32), (0, len(array) - len(inputs)))
    if draws is None:
        draws = np.zeros((len(array), max(limits)), np.float32)
    ids, scores = generator.generate(array, most, draws)
    found = []
    for row, limit in enumerate(limits):
        ends = np.flatnonzero(ids[row] == 1)
        stop = ends[0] + 1 if len(ends) else limit
        assert not ids[row, stop:].any()
        found.append((ids[row, :stop].tolist(), float(scores[row])))
    assert not ids[len(inputs) :].any()
    return found
