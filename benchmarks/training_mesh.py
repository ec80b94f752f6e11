"""A worker of `training.py`: `stock` or `ours TYPE`; reads numbers, takes that many steps for each.

More arguments are size=SIZE and device=DEVICE.
"""

import functools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from t0 import compat  # noqa: E402

compat.apply()

import mesh_tensorflow as mtf  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from mesh_tensorflow import optimize  # noqa: E402
from mesh_tensorflow.transformer import learning_rate_schedules as schedules  # noqa: E402
from mesh_tensorflow.transformer import utils as mesh_utils  # noqa: E402
from training_shapes import SHAPES, option  # noqa: E402

from t0.config import parse  # noqa: E402
from t0.config.bindings import bound  # noqa: E402
from t0.mesh import devices  # noqa: E402
from t0.mesh.gather_embedding import bind_gather_embedding  # noqa: E402
from t0.training import graph  # noqa: E402
from t0.training.graph import TrainingSpec  # noqa: E402

SIZE = option(sys.argv, "size", "small")
ROWS = SHAPES[SIZE].rows
LENGTHS = {"inputs": SHAPES[SIZE].inputs, "targets": SHAPES[SIZE].targets}
RATE = functools.partial(
    schedules.constant_learning_rate, learning_rate=1e-3, total_train_steps=1000
)


class Vocabulary:
    """The attributes of a vocabulary that the model needs."""

    vocab_size = 32100


def _arguments(device: str) -> dict:
    parse.parse(
        [f"models/t5.1.1.{SIZE}.gin"],
        [
            "dropout_rate = 0.1",
            "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
            "get_variable_dtype.master_dtype = 'float32'",
            "get_variable_dtype.activation_dtype = 'float32'",
        ],
    )
    return {
        "model_type": "bitransformer",
        "vocabulary": Vocabulary,
        "mesh_shape": mtf.convert_to_shape(""),
        "layout_rules": mtf.convert_to_layout_rules(bound("run.layout_rules")),
        "mesh_devices": [device],
        "model_dir": "",
        "batch_size": ROWS,
        "sequence_length": LENGTHS,
        "learning_rate_schedule": RATE,
        "optimizer": optimize.AdafactorOptimizer,
    }


def _batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(2, 32000, (ROWS, length)).astype(np.int32)
        for name, length in LENGTHS.items()
    }


def stock(device: str):  # noqa: ANN201
    """Mesh TensorFlow's own model function, in float32, the only type that it supports off TPU."""
    tf.set_random_seed(0)
    arguments = _arguments(device)
    model = mesh_utils.build_model(
        input_vocab_size=Vocabulary.vocab_size,
        output_vocab_size=Vocabulary.vocab_size,
        layout_rules=arguments["layout_rules"],
        mesh_shape=arguments["mesh_shape"],
    )
    tf.train.get_or_create_global_step()
    placeholders = {
        name: tf.placeholder(tf.int32, [ROWS, length]) for name, length in LENGTHS.items()
    }
    model_fn = mesh_utils.tpu_estimator_model_fn(
        transformer_model=model,
        use_tpu=False,
        autostack=True,
        keep_checkpoint_max=1,
        save_checkpoints_steps=1000,
        **arguments,
    )
    spec = model_fn(placeholders, None, tf.estimator.ModeKeys.TRAIN, {})
    session = tf.Session(config=tf.ConfigProto(allow_soft_placement=True))
    session.run(tf.global_variables_initializer())
    lowering = spec.training_chief_hooks[0]._lowering
    session.run(lowering.copy_masters_to_slices())
    fed = {placeholders[name]: ids for name, ids in _batch().items()}
    return lambda: session.run([spec.train_op, spec.loss], fed)


def ours(device: str, activations: str):  # noqa: ANN201
    """The training step of `t0.training`, with the bindings of `train_loop`."""
    settings = TrainingSpec(**_arguments(device))
    bind_gather_embedding(settings.mesh_shape, settings.layout_rules)
    lowered = graph.build(
        settings, features=tuple(LENGTHS), seed=0, activations=devices.activation_dtype(activations)
    )
    with lowered.graph.as_default():
        initialise = tf.global_variables_initializer()
    session = tf.Session(graph=lowered.graph, config=tf.ConfigProto(allow_soft_placement=True))
    session.run(initialise)
    session.run(lowered.to_slices)
    fed = {lowered.features[name]: ids for name, ids in _batch().items()}
    return lambda: session.run([lowered.train, lowered.metrics], fed)


def main() -> None:
    """Builds the system, then serves."""
    tf.disable_v2_behavior()
    words = [word for word in sys.argv[1:] if "=" not in word]
    device = option(sys.argv, "device", "")
    step = stock(device) if words[0] == "stock" else ours(device, words[1])
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(f"seconds {time.perf_counter() - began}", flush=True)


if __name__ == "__main__":
    main()
