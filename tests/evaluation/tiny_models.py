"""Tiny T5 models with random weights, for the tests of scoring: checkpoints made without Mesh."""

from t0 import compat

compat.apply()

import gin  # noqa: E402
import mesh_tensorflow as mtf  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402

from t0.config import parse  # noqa: E402
from t0.evaluation.mesh_model import Placement  # noqa: E402
from t0.evaluation.scorer import MeshScorer  # noqa: E402

VOCABULARY = 120  # of 128 with Mesh's padding
D_MODEL, D_FF, D_KV, HEADS, LAYERS = 16, 32, 8, 2, 1
LAYOUT = "batch:batch,d_ff:model,heads:model,vocab:model"

# The arguments of a run that are about the model and its mesh.
MODEL = {"model_type": "bitransformer", "mesh_shape": "", "layout_rules": "", "mesh_devices": None}

SIZES = [f"{name} = {size}" for name, size in (("d_model", D_MODEL), ("d_ff", D_FF))]
SIZES += [f"d_kv = {D_KV}", f"num_heads = {HEADS}", f"num_layers = {LAYERS}"]
# T5.1.1 has a gated feed-forward layer and an untied softmax; T5.1.0 has neither.
MODELS = {"t5.1.1": "models/t5.1.1.tiny.gin", "t5.1.0": "models/t5.1.0.small.gin"}


def random_variables(model, seed=0, layers=LAYERS):
    """Returns Mesh's variable names -> values large enough for every part of the model to tell."""
    rng = np.random.default_rng(seed)
    variables = {"shared/embedding": rng.normal(size=(128, D_MODEL))}
    gated = model == "t5.1.1"
    if gated:
        variables["decoder/logits/kernel"] = rng.normal(size=(D_MODEL, 128)) / 2
    else:
        variables["shared/embedding"] *= 2
    for stack, kinds in (
        ("encoder", ["SelfAttention", "DenseReluDense"]),
        ("decoder", ["SelfAttention", "EncDecAttention", "DenseReluDense"]),
    ):
        for block in range(layers):
            for number, kind in enumerate(kinds):
                layer = f"{stack}/block_{block:03d}/layer_{number:03d}"
                variables[f"{layer}/rms_norm/scale"] = rng.uniform(0.5, 2, D_MODEL)
                shapes = _kernels(gated) if kind == "DenseReluDense" else _attention()
                for part, shape in shapes.items():
                    value = rng.normal(size=shape) / np.sqrt(shape[0])
                    variables[f"{layer}/{kind}/{part}"] = value
        first = f"{stack}/block_000/layer_000/SelfAttention"
        variables[f"{first}/relative_attention_bias"] = rng.normal(size=(HEADS, 32))
        variables[f"{stack}/rms_norm/scale"] = rng.uniform(0.5, 2, D_MODEL)
    return {name: value.astype(np.float32) for name, value in variables.items()}


def _kernels(gated):
    into = {"wi_0/kernel": (D_MODEL, D_FF), "wi_1/kernel": (D_MODEL, D_FF)}
    return {**(into if gated else {"wi/kernel": (D_MODEL, D_FF)}), "wo/kernel": (D_FF, D_MODEL)}


def _attention():
    inner = HEADS * D_KV
    return {**dict.fromkeys("qkv", (D_MODEL, inner)), "o": (inner, D_MODEL)}


def write_checkpoint(folder, variables, step=0, dtype="float32"):
    """Writes `variables` and the step as `model.ckpt-<step>`, and returns the prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in variables.items():
            tf.Variable(tf.cast(value, dtype), name=name, use_resource=False)
        tf.Variable(np.int64(step), name="global_step", use_resource=False)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(folder / "model.ckpt"), global_step=step)


def bind(model, *params):
    """Parses the configuration of a model into gin."""
    gin.clear_config()
    parse.parse([MODELS[model]], [*SIZES, "dropout_rate = 0.0", *params])


def build(mesh="", layout=LAYOUT):
    """Builds the bound model."""
    return mesh_utils.build_model(
        input_vocab_size=VOCABULARY,
        output_vocab_size=VOCABULARY,
        layout_rules=layout,
        mesh_shape=mesh,
    )


def make_scorer(  # noqa: PLR0913
    model="t5.1.1", *, mesh="", layout=LAYOUT, master="float32", computed="float32", layers=LAYERS
):
    bind(model, f"num_layers = {layers}")
    shape = mtf.convert_to_shape(mesh)
    types = mtf.VariableDType(*map(tf.as_dtype, (master, computed, computed)))
    rules = mtf.convert_to_layout_rules(layout)
    return MeshScorer(build(mesh, layout), types, Placement(shape, rules, [""] * shape.size))


def padded(rows, length=None):
    """Pads lists of ids, or lists of lists, to one array."""
    if isinstance(rows[0][0], list):
        choices = max(map(len, rows))
        longest = length or max(len(ids) for row in rows for ids in row)
        array = np.zeros((len(rows), choices, longest), np.int32)
        for b, row in enumerate(rows):
            for c, ids in enumerate(row):
                array[b, c, : len(ids)] = ids
        return array
    array = np.zeros((len(rows), length or max(map(len, rows))), np.int32)
    for b, ids in enumerate(rows):
        array[b, : len(ids)] = ids
    return array
