"""Decoding and scoring with the weights of a training session, and the metrics made of them."""

import gin
import numpy as np
import pytest

from t0.errors import UserError
from t0.feeding import packing
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.training import validation
from t0.training.validation import ModelInTraining
from tests.training import tiny_tasks
from tests.training import tiny_training as tiny

tiny_tasks.register()


def read(examples=64, mixture="tiny_judged", split="validation"):
    settings = {"examples": examples, "mixture_or_task_name": mixture, "split": split}
    with gin.unlock_config():
        for name, value in settings.items():
            gin.bind_parameter(f"t0.task_metrics.{name}", value)
    return validation.read_tasks(None, tiny.LENGTHS)


@pytest.fixture(scope="module")
def trained():
    """A tiny model after some steps, and what it says."""
    gin.clear_config()
    given = tiny.training_spec(dropout=0.0, rate=0.03)
    bind_gather_embedding(given.mesh_shape, given.layout_rules)
    steps = tiny.Steps(given, validates=True)
    for batch in tiny.first_batches(10):
        steps.step(batch)
    return steps, ModelInTraining(given, steps.graph, steps.session)


@pytest.fixture
def unpacked():
    rng = np.random.default_rng(3)
    examples = [
        {name: rng.integers(2, 60, rng.integers(1, n)).astype(np.int32) for name, n in SIZES}
        for _ in range(8)
    ]
    return packing.pad(examples, tiny.LENGTHS)


SIZES = tuple(tiny.LENGTHS.items())


def test_scoring_in_training_equals_the_validation_loss(trained, unpacked):
    steps, model = trained
    scores = model.score(unpacked["inputs"], unpacked["targets"])
    fed = {tensor: unpacked.get(name) for name, tensor in steps.graph.features.items()}
    fed = {
        tensor: x if x is not None else _ones_where(unpacked, tensor) for tensor, x in fed.items()
    }
    validated = steps.session.run(steps.graph.validate, fed)
    assert -scores.sum() == pytest.approx(validated[1], rel=1e-5)


def _ones_where(batch, tensor):
    """Segment ids and positions of a batch that is not packed."""
    name = tensor.op.name.split("_")[0]
    if tensor.op.name.endswith("segmentation"):
        return (batch[name] > 0).astype(np.int32)
    return np.broadcast_to(np.arange(batch[name].shape[1], dtype=np.int32), batch[name].shape)


def test_greedy_decoding_picks_the_likeliest_token(trained, unpacked):
    _, model = trained
    inputs = unpacked["inputs"][:1]
    (decoded,) = model.decode(inputs)
    prefix = np.zeros_like(decoded)
    for place, chosen in enumerate(decoded):
        # All ids but 0, which is no target; the vocabulary of 60 is padded to 128.
        candidates = np.repeat(prefix[None], 128, axis=0)
        candidates[1:, place] = np.arange(1, 128)
        scores = model.score(np.repeat(inputs, 128, axis=0), candidates)
        assert chosen == 1 + np.argmax(scores[1:]), place
        prefix[place] = chosen
        if chosen == 1:
            break


def test_decoding_of_any_number_of_examples(trained, unpacked):
    _, model = trained
    many = np.concatenate([unpacked["inputs"]] * 2)[:11]
    decoded = model.decode(many)
    assert decoded.shape == (11, tiny.LENGTHS["targets"])
    np.testing.assert_array_equal(decoded[8:], decoded[:3])


@pytest.mark.slow
def test_scoring_on_several_devices_is_the_same(trained, unpacked):
    steps, model = trained
    given = tiny.training_spec(dropout=0.0, mesh="batch:2")
    several = tiny.Steps(given)
    several.load(steps.weights())
    others = ModelInTraining(given, several.graph, several.session)
    scores = others.score(unpacked["inputs"], unpacked["targets"])
    np.testing.assert_allclose(
        scores, model.score(unpacked["inputs"], unpacked["targets"]), rtol=1e-4
    )


def test_evaluation_reads_first_examples_with_all_choices():
    decoded, ranked = read(examples=4)
    assert (decoded.task.name, ranked.task.name) == ("tiny_decoded", "tiny_ranked")
    assert len(decoded.rows) == 4
    assert decoded.inputs.shape == (4, 12)
    assert [list(x) for x in decoded.postprocessed_targets] == [
        list(row["targets"]) for row in decoded.rows
    ]
    # Four rows are one example of three choices and the first choice of another.
    assert [tuple(row["idx"]) for row in ranked.rows] == [(n, c) for n in (0, 1) for c in range(3)]
    assert len(read(examples=1000)[1].rows) == 3 * tiny_tasks.COUNT


class Oracle:
    """Says the right answers of the tiny tasks."""

    def decode(self, inputs):
        decoded = np.full((len(inputs), tiny.LENGTHS["targets"]), 7, np.int32)
        decoded[:, 0], decoded[:, 1] = inputs[:, 0], 1
        return decoded

    def score(self, inputs, targets):
        return -np.abs(inputs[:, 0] - targets[:, 0]).astype(np.float32)


class Wrong(Oracle):
    def decode(self, inputs):
        return np.zeros((len(inputs), 6), np.int32)


def test_evaluation_metric_names_are_t5s_with_means_over_tasks():
    found = validation.task_fields(read(), Oracle())
    assert found == {
        "eval/tiny_decoded/accuracy": 100.0,
        "eval/tiny_ranked/accuracy": 100.0,
        "eval/tiny_ranked/examples": 11.0,
        "eval/accuracy": 100.0,
        "eval/examples": 11.0,
    }
    found = validation.task_fields(read(), Wrong())
    assert found["eval/tiny_decoded/accuracy"] == 0.0
    assert found["eval/accuracy"] == 50.0


def test_evaluation_in_training_user_errors(trained):
    with pytest.raises(UserError, match="no task of tiny_unjudged has metrics and a split"):
        read(mixture="tiny_unjudged")
    with pytest.raises(UserError, match="a split 'test': set another mixture"):
        read(split="test")
    with pytest.raises(UserError, match="'tiny_juged'.*tiny_judged"):
        read(mixture="tiny_juged")
    with pytest.raises(
        UserError, match="no examples of tiny_decoded.*task_metrics.examples, 0, is"
    ):
        read(examples=0)
    steps, _ = trained
    with pytest.raises(UserError, match="run.model_type is 'lm'"):
        given = tiny.training_spec(ensemble_inputs=None)
        ModelInTraining(
            type(given)(**{**vars(given), "model_type": "lm"}), steps.graph, steps.session
        )
