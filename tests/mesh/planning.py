"""What the tests of planning share: gin configured anew, a small model, a session's programs."""

import contextlib

import gin
import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags
from mesh_tensorflow.transformer import utils as mesh_utils
from tensorflow.compat.v1 import estimator as tf_estimator

from t0.config import parse
from t0.mesh import lowering, pod_run
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


def cpu_model_fn(run):
    """Returns Mesh TensorFlow's model function for one device, and features to feed it."""
    model_fn = mesh_utils.tpu_estimator_model_fn(
        model_type="bitransformer",
        transformer_model=lowering.build_model(run),
        vocabulary=None,
        model_dir="unused",
        use_tpu=False,
        mesh_shape=mtf.Shape([]),
        layout_rules=run.layout_rules,
        batch_size=run.batch_sequences,
        sequence_length=dict(run.sequence_length),
        autostack=True,
        keep_checkpoint_max=None,
        save_checkpoints_steps=1000,
        learning_rate_schedule=run.learning_rate_schedule,
        optimizer=run.optimizer,
        score_in_predict_mode=run.mode == "score_eval",
    )
    keys = tf_estimator.ModeKeys
    mode = keys.TRAIN if run.mode == "train" else keys.PREDICT
    return lambda features: model_fn(dict(features), None, mode, params={})


def fetches(spec, mode):
    """Returns what a step computes, tensors first."""
    return [spec.loss, spec.train_op] if mode == "train" else [spec.predictions["scores"]]


def initialise(session):
    """Gives every variable, slices too, a value."""
    session.run(tf.global_variables_initializer())
    session.run([v.initializer for v in tf.get_collection("TPU_VAR")])
    session.run(tf.local_variables_initializer())


def values_for(features, vocabulary=450):
    """Returns unpacked random tokens for placeholders."""
    rng = np.random.default_rng(0)
    fed = {}
    for name, placeholder in features.items():
        shape = [int(size) for size in placeholder.shape]
        if name.endswith("_segmentation"):
            fed[placeholder] = np.ones(shape, np.int32)
        elif name.endswith("_position"):
            fed[placeholder] = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
        else:
            fed[placeholder] = rng.integers(2, vocabulary, shape).astype(np.int32)
    return fed
