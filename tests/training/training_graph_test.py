import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mesh_tensorflow.transformer import utils as mesh_utils

from t0.mesh import fused
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.mesh.lowering import loops
from t0.training import graph as training_graph
from tests.helpers.cases import one_quick
from tests.training import tiny_training as tiny


def mesh_graph(settings, features):
    """Mesh TensorFlow's own training graph: its spec, in the default graph."""
    model = mesh_utils.build_model(
        input_vocab_size=60,
        output_vocab_size=60,
        layout_rules=settings.layout_rules,
        mesh_shape=settings.mesh_shape,
    )
    tf.train.get_or_create_global_step()
    return mesh_utils.tpu_estimator_model_fn(
        model_type="bitransformer",
        transformer_model=model,
        vocabulary=tiny.Vocabulary,
        model_dir="",
        use_tpu=False,
        mesh_shape=settings.mesh_shape,
        layout_rules=settings.layout_rules,
        batch_size=8,
        sequence_length=tiny.LENGTHS,
        autostack=False,
        keep_checkpoint_max=1,
        save_checkpoints_steps=100,
        learning_rate_schedule=0.01,
        optimizer=settings.optimizer,
    )(features, None, tf.estimator.ModeKeys.TRAIN, {})


@pytest.mark.parametrize(
    "model", ["t5.1.1.tiny", pytest.param("t5.1.0.small", marks=pytest.mark.slow)]
)
def test_training_graph_equals_mesh_tensorflow(model):
    batches = tiny.first_batches(3)
    given = tiny.training_spec(dropout=0.0, model=model)
    with tf.Graph().as_default(), tf.Session() as session:
        # Adafactor divides a gradient by its size: one that only rounding makes differs in full.
        tf.set_random_seed(0)
        features = {name: tf.placeholder(tf.int32, x.shape) for name, x in batches[0].items()}
        spec = mesh_graph(given, dict(features))
        variables = {v.op.name: v for v in tf.global_variables()}
        session.run(tf.global_variables_initializer())
        initial = session.run(variables)
        wanted = []
        for batch in batches:
            fed = {features[name]: x for name, x in batch.items()}
            wanted.append(session.run([spec.loss, spec.train_op], fed)[0])
        trained = session.run(variables)
    given = tiny.training_spec(dropout=0.0, model=model)
    assert bind_gather_embedding(given.mesh_shape, given.layout_rules)
    steps = tiny.Steps(given)
    assert steps.variables.keys() == variables.keys()
    steps.load(initial)
    losses = [steps.step(batch)["loss"] for batch in batches]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    ours = steps.session.run(steps.variables)
    for name, value in trained.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("compiles", one_quick([True, False]))
def test_microbatches_do_not_change_the_training_step(compiles, monkeypatch):
    monkeypatch.setattr(fused, "WORTH_COMPILING", 0 if compiles else 1e9)
    batch = tiny.first_batches(1)[0]
    found = {}
    with loops(as_functions=False):  # as in commands, which turn TensorFlow 2's behaviour off
        for count in (1, 4):
            tokens = f"serialize_num_microbatches.tokens_per_microbatch_per_replica = {96 // count}"
            steps = tiny.Steps(tiny.training_spec(dropout=0.0, params=[tokens]))
            assert steps.graph.microbatches == count
            found[count] = [steps.step(batch) for _ in range(2)]
            functions = steps.graph.graph.as_graph_def().library.function
            in_loops = any("_XlaMustCompile" in f.attr for f in functions)
            assert in_loops == compiles
        assert not tf.control_flow_v2_enabled()
    for one, several in zip(found[1], found[4], strict=True):
        assert several == pytest.approx(one, rel=1e-5)


DROPOUT = {"dropout": 0.5, "rate": 0.0}


@functools.cache
def with_dropout(mesh):
    """A graph that tests share: they look at it, or run it in sessions of their own."""
    given = tiny.training_spec(mesh=mesh, **DROPOUT)
    settings = {"activations": tf.float32, "validates": False}
    return training_graph.build(given, features=tiny.FEATURES, seed=0, **settings)


def test_weight_norm_is_summed_in_a_fixed_order():
    """AddN, which TensorFlow makes of added scalars, begins with any that nothing else reads."""
    metrics = with_dropout("").metrics
    found = metrics.op.inputs[training_graph.METRICS.index("weight_square")]
    while found.op.type in ("Identity", "Cast"):
        found = found.op.inputs[0]
    assert (found.op.type, found.op.inputs[0].op.type) == ("Sum", "Pack")


@pytest.mark.parametrize("mesh", ["", pytest.param("batch:2,model:2", marks=pytest.mark.slow)])
def test_training_step_reads_each_variable_once(mesh):
    # A second read could come after the step's own update of the variable.
    built = with_dropout(mesh)
    roots = [built.train.name, built.metrics.op.name]
    step = tf.graph_util.extract_sub_graph(built.graph.as_graph_def(), roots).node
    read = {node.name: node.input[0] for node in step if node.op == "ReadVariableOp"}
    updated = {name for node in step if "/assign" in f"/{node.name}" for name in node.input}
    updated |= {name for node in step if node.op.startswith("Assign") for name in node.input}
    others = [name for node in step for name in node.input if name in read and name not in updated]
    variables = [read[name] for name in others if read[name] != "global_step"]
    assert len(variables) > 20
    assert sorted(variables) == sorted(set(variables))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", one_quick(["batch:2,model:2", "batch:2", "model:2"]))
def test_training_steps_on_several_devices_equal_one_device(mesh):
    batches = tiny.first_batches(3)
    one = tiny.Steps(tiny.training_spec(dropout=0.0))
    several = tiny.Steps(tiny.training_spec(dropout=0.0, mesh=mesh))
    weights = one.weights()
    several.load(weights)
    for batch in batches:
        assert several.step(batch) == pytest.approx(one.step(batch), rel=1e-5)


def test_dropout_depends_on_seed_and_step():
    batch, given = tiny.first_batches(1)[0], DROPOUT
    first = tiny.Steps(tiny.training_spec(**given), built=with_dropout(""))
    again = tiny.Steps(tiny.training_spec(**given), built=first.graph)
    losses = [first.step(batch)["loss"] for _ in range(3)]
    assert [again.step(batch)["loss"] for _ in range(3)] == losses
    assert len(set(losses)) == 3
    again.load({"global_step": np.int64(1)})
    assert again.step(batch)["loss"] == losses[1]
    other = tiny.Steps(tiny.training_spec(**given), seed=1)
    other.load(first.weights() | {"global_step": np.int64(0)})
    assert other.step(batch)["loss"] != losses[0]


@pytest.mark.slow
def test_dropout_depends_on_the_microbatch():
    # All rows are one example: two microbatches differ only in what is dropped.
    batch, given = tiny.first_batches(1)[0], DROPOUT
    tokens = "serialize_num_microbatches.tokens_per_microbatch_per_replica = 12"
    same = {name: np.repeat(x[:1], 8, axis=0) for name, x in batch.items()}
    parts = tiny.Steps(tiny.training_spec(**given, params=[tokens]))
    alike = tiny.Steps(tiny.training_spec(**given, rows=1))
    alone = alike.step({name: x[:1] for name, x in same.items()})["loss"]
    assert parts.step(same)["loss"] != pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_bfloat16_loss_stays_close_to_float32():
    batches = tiny.first_batches(4)
    wide = tiny.Steps(tiny.training_spec(dropout=0.0))
    narrow = tiny.Steps(tiny.training_spec(dropout=0.0), activations=tf.bfloat16)
    narrow.load(wide.weights())
    for batch in batches:
        one, other = wide.step(batch), narrow.step(batch)
        assert other["loss"] == pytest.approx(one["loss"], rel=0.01)
        assert other["loss"] != one["loss"]


def test_packing_does_not_change_the_loss_of_an_example():
    # Sums over the batch: nats of all target tokens, packed in few rows or one to a row.
    rng = np.random.default_rng(0)
    examples = [
        {n: rng.integers(2, 60, rng.integers(1, 6)).astype(np.int32) for n in tiny.LENGTHS}
        for _ in range(8)
    ]
    from t0.feeding import packing

    packed = packing.pack(examples, tiny.LENGTHS)
    assert len(packed["inputs"]) < 6
    filler = {
        n: np.concatenate([x, np.zeros((8 - len(x), x.shape[1]), np.int32)])
        for n, x in packed.items()
    }
    steps = tiny.Steps(tiny.training_spec(dropout=0.0), validates=True)
    names = ("loss", *training_graph.losses.PARTS)

    def validated(batch):
        values = steps.session.run(steps.graph.validate, steps.fed(batch))
        return dict(zip(names, values.tolist(), strict=False))

    together = validated(filler)
    alone = []
    for example in examples:
        row = packing.pack([example], tiny.LENGTHS)
        batch = {
            n: np.concatenate([x, np.zeros((7, x.shape[1]), np.int32)]) for n, x in row.items()
        }
        alone.append(validated(batch)["nll"])
    assert together["nll"] == pytest.approx(sum(alone), rel=1e-5)
    # And each by itself: with one example more in the batch the sum grows by its own loss.
    for count in (1, 4, 7):
        part = packing.pack(examples[:count], tiny.LENGTHS)
        batch = {
            n: np.concatenate([x, np.zeros((8 - len(x), x.shape[1]), np.int32)])
            for n, x in part.items()
        }
        assert validated(batch)["nll"] == pytest.approx(sum(alone[:count]), rel=1e-5)
