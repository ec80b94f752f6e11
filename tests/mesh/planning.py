"""What the tests of planning share: gin configured anew, a small model, initial values."""

import contextlib

import gin
import tensorflow.compat.v1 as tf
from absl import flags

from t0.config import parse
from t0.mesh import pod_run
from t0.mesh.fused import loops

TINY = ("d_model = 64", "d_ff = 128", "d_kv = 16", "num_heads = 4", "num_layers = 2")


def configure(*params, files=("models/t5.1.1.tiny.gin",), score=False):
    """Parses a configuration as `t0 plan` does, over whatever was there."""
    flags.FLAGS.mark_as_parsed()
    gin.clear_config()
    base = ["dataset.gin", *files, "learning_rate_schedules/constant_0_001.gin"]
    parse.parse(
        [*base, "score_eval.gin"] if score else base,
        [
            "run.sequence_length = {'inputs': 32, 'targets': 16}",
            "run.batch_size = ('sequences_per_batch', 32)",
            "serialize_num_microbatches.tokens_per_microbatch_per_replica = 64",
            "run.train_steps = 100",
            *params,
        ],
    )


def on_slice(name, parallelism):
    """Returns the parameters that put a run on a slice."""
    return (
        f"utils.tpu_mesh_shape.tpu_topology = '{name}'",
        f"tpu_mesh_shape.model_parallelism = {parallelism}",
    )


def read(*params, vocabulary_size=500, **kwargs):
    """Configures a run and reads it."""
    configure(*params, **kwargs)
    return pod_run.read_pod_run(vocabulary_size=vocabulary_size)


# Small runs whose lowering and formulas are compared: parameters, and whether they score.
LAYERS = ("num_layers = 2", "d_model = 128", "d_ff = 256", "d_kv = 32", "num_heads = 4")
BATCH = ("run.batch_size = ('sequences_per_batch', 32)",)
CASES = {
    "train, two ways of parallelism": (on_slice("v3-8", 2), False),
    "train, whole batch at once": (
        (
            *on_slice("v3-8", 4),
            "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
            "run.batch_size = ('sequences_per_batch', 4)",
            "DenseReluDense.activation = 'relu'",
            "Unitransformer.shared_embedding_and_softmax_weights = True",
        ),
        False,
    ),
    "score": (on_slice("v3-8", 2), True),
}


def read_case(name, *more):
    """Configures one of the small runs, with more parameters, and reads it."""
    params, score = CASES[name]
    return read(*LAYERS, *params, *(BATCH if score else ()), *more, score=score)


@contextlib.contextmanager
def graph_mode():
    """Mesh TensorFlow builds TensorFlow 1 graphs."""
    with (
        loops(as_functions=False),
        tf.Graph().as_default(),
        tf.variable_scope("", use_resource=True),
    ):
        tf.train.create_global_step()
        yield


def initialise(session):
    """Gives every variable, slices too, a value."""
    session.run(tf.global_variables_initializer())
    session.run([v.initializer for v in tf.get_collection("TPU_VAR")])
    session.run(tf.local_variables_initializer())
