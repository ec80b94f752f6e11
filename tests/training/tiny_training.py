"""A tiny model and endless made-up data, for tests of the training loop without a command."""

import functools

import gin
import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf
from mesh_tensorflow import optimize
from mesh_tensorflow.transformer import learning_rate_schedules

from t0.config import parse
from t0.feeding.mixing import MixedStream
from t0.feeding.reading import ExampleBlock
from t0.feeding.token_files import Ragged
from t0.feeding.training_data import TrainingData
from t0.rehearsal.virtual_pod import disable_graph_rewrites
from t0.training import graph
from t0.training.graph import TrainingSpec

LENGTHS = {"inputs": 12, "targets": 6}
FEATURES = tuple(f"{n}{s}" for n in LENGTHS for s in ("", "_segmentation", "_position"))
SIZES = ["d_model = 8", "d_ff = 16", "d_kv = 4", "num_heads = 2", "num_layers = 1"]


class Vocabulary:
    vocab_size = 60


class MadeUp:
    """A task of `count` examples, the same in each process."""

    cache = property(lambda self: self)

    def __init__(self, name, count=40):
        self.name, self.examples = name, count

    def locate(self, served, seed):
        epoch, offset = divmod(served, self.examples)
        return epoch, *divmod(offset, self.examples // 2)

    def blocks(self, *, epoch, first, seed):
        rng = np.random.default_rng(len(self.name))
        sizes = {n: rng.integers(1, length, self.examples) for n, length in LENGTHS.items()}
        values = {n: rng.integers(2, 60, x.sum()).astype(np.int32) for n, x in sizes.items()}
        ids = {n: Ragged(values[n], np.cumsum([0, *x])) for n, x in sizes.items()}
        half = self.examples // 2
        for number in range(first, 2):
            order = np.arange(half) + number * half
            if seed is not None:
                order = np.random.default_rng([seed, epoch, number]).permutation(order)
            yield ExampleBlock(ids, order)


def made_up_data(seed=0, pack=True):
    tasks = [MadeUp("long name"), MadeUp("short", 30)]
    mixture = MixedStream(tasks, [3, 1], seed=seed)
    return TrainingData(
        mixture, LENGTHS, seed=seed, pack=pack, ends_in_eos=("targets",), window_rows=8
    )


def training_spec(
    model_dir="", *, mesh="", rows=8, dropout=0.1, rate=0.01, params=(), model="t5.1.1.tiny", **more
):
    gin.clear_config()
    bindings = [f"dropout_rate = {dropout}", "get_variable_dtype.master_dtype = 'float32'"]
    bindings.append("get_variable_dtype.activation_dtype = 'float32'")
    bindings.append("serialize_num_microbatches.tokens_per_microbatch_per_replica = None")
    parse.parse([f"models/{model}.gin"], [*SIZES, *bindings, *params])
    shape = mtf.convert_to_shape(mesh)
    return TrainingSpec(
        model_type="bitransformer",
        vocabulary=Vocabulary,
        mesh_shape=shape,
        layout_rules=mtf.convert_to_layout_rules(gin.query_parameter("run.layout_rules")),
        mesh_devices=[f"cpu:{n}" for n in range(shape.size)] if mesh else [""],
        model_dir=str(model_dir),
        batch_size=rows,
        sequence_length=LENGTHS,
        learning_rate_schedule=functools.partial(
            learning_rate_schedules.constant_learning_rate,
            learning_rate=rate,
            total_train_steps=100,
        ),
        **{"optimizer": optimize.AdafactorOptimizer, "save_checkpoints_steps": 4, **more},
    )


class Steps:
    """A lowered step and its session."""

    def __init__(self, given, seed=0, activations=tf.float32, validates=False, built=None):
        self.graph = built or graph.build(
            given, features=FEATURES, seed=seed, activations=activations, validates=validates
        )
        devices = disable_graph_rewrites(
            tf.ConfigProto(device_count={"CPU": given.mesh_shape.size})
        )
        devices.allow_soft_placement = True
        self.session = tf.Session(graph=self.graph.graph, config=devices)
        with self.graph.graph.as_default():
            self.variables = {v.op.name: v for v in tf.global_variables()}
            self.session.run(tf.global_variables_initializer())
        self.session.run(self.graph.to_slices)

    def fed(self, batch):
        return {self.graph.features[name]: batch[name] for name in self.graph.features}

    def step(self, batch):
        values, _ = self.session.run([self.graph.metrics, self.graph.train], self.fed(batch))
        return dict(zip(graph.METRICS, values.tolist(), strict=False))

    def load(self, values):
        initializers = {name: self.variables[name].initializer for name in values}
        feeds = {initializers[name].inputs[1]: value for name, value in values.items()}
        self.session.run(list(initializers.values()), feeds)
        self.session.run(self.graph.to_slices)

    def weights(self):
        self.session.run(self.graph.to_masters)
        return self.session.run({n: v for n, v in self.variables.items() if "slot" not in n})


def first_batches(count, rows=8, **data):
    batches = made_up_data(**data).batches(rows)
    return [next(batches)[0] for _ in range(count)]
