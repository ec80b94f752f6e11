"""Predictions against a search without batches, padding or states; what must not change them."""

import numpy as np
import pytest

from t0.errors import UserError
from t0.evaluation.model import DecodingMethod
from tests.evaluation.tiny_models import write_checkpoint
from tests.inference.slow_search import EOS, SlowSearch
from tests.inference.tiny_generation import (
    INPUTS,
    LIMITS,
    ending_variables,
    make_generator,
    predict,
    tf,
)

METHODS = {
    "greedy": DecodingMethod(),
    "beams": DecodingMethod(beam_size=3, alpha=0.6),
    "beams without a penalty": DecodingMethod(beam_size=4, alpha=0.0),
}
DRAWS = np.random.default_rng(5).random((4, max(LIMITS)), np.float32)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        model: write_checkpoint(folder / model, ending_variables(model))
        for model in ("t5.1.1", "t5.1.0")
    }


def restored(checkpoints, *args, model="t5.1.1", **kwargs):
    generator = make_generator(*args, model=model, **kwargs)
    generator.restore(checkpoints[model])
    return generator


@pytest.fixture(scope="module")
def shared(checkpoints):
    """Returns the generator of a method, whose programs tests share."""
    opened = {}

    def generator(method, model="t5.1.1"):
        if (method, model) not in opened:
            opened[method, model] = restored(checkpoints, method, model=model)
        return opened[method, model]

    yield generator
    for generator in opened.values():
        generator.close()


def expected(method, model="t5.1.1"):
    slow = SlowSearch(ending_variables(model))
    for row, (inputs, limit) in enumerate(zip(INPUTS, LIMITS, strict=True)):
        if method.beam_size > 1:
            yield slow.beams(inputs, limit, method.beam_size, method.alpha)
        elif method.temperature:
            yield slow.sample(inputs, limit, DRAWS[row], method.temperature, method.top_k)
        else:
            yield slow.greedy(inputs, limit)


# What greedy decoding does here, beam search does, too.
GREEDY_IS_SLOW = [pytest.param(METHODS["greedy"], marks=pytest.mark.slow), METHODS["beams"]]


def assert_same(found, wanted):
    for (tokens, score), (wanted_tokens, wanted_score) in zip(found, wanted, strict=True):
        assert tokens == wanted_tokens
        assert score == pytest.approx(wanted_score, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("greedy", "t5.1.1"),
        ("beams", "t5.1.1"),
        pytest.param("beams without a penalty", "t5.1.1", marks=pytest.mark.slow),
        ("greedy", "t5.1.0"),
    ],
)
def test_decoding_equals_a_search_without_cached_states(shared, name, model):
    method = METHODS[name]
    assert_same(predict(shared(method, model)), expected(method, model))


def test_decoding_examples_end_in_eos_or_at_their_limit():
    ended = [tokens[-1] == EOS for tokens, _ in expected(METHODS["greedy"])]
    assert any(ended[:-1])
    assert not all(ended[:-1])


@pytest.mark.parametrize("top_k", [pytest.param(0, marks=pytest.mark.slow), 5])
def test_sampling_with_temperature_and_top_k_equals_slow_search(checkpoints, top_k):
    method = DecodingMethod(temperature=0.7, top_k=top_k)
    generator = restored(checkpoints, method)
    assert_same(predict(generator, draws=DRAWS), expected(method))
    generator.close()


@pytest.mark.parametrize("method", GREEDY_IS_SLOW, ids=["greedy", "beams"])
def test_decoding_does_not_depend_on_padding_or_batch(shared, method):
    generator = shared(method)
    together = predict(generator)
    assert_same(predict(generator, length=96, rows=6), together)
    assert_same(predict(generator, INPUTS[:1], LIMITS[:1]), together[:1])


@pytest.mark.slow
@pytest.mark.parametrize("method", [METHODS["greedy"], METHODS["beams"]], ids=["greedy", "beams"])
def test_decoding_sharding_over_devices_keeps_predictions(checkpoints, method):
    generator = restored(checkpoints, method, mesh="batch:2,model:2")
    assert generator.replicas == 2
    assert_same(predict(generator), expected(method))
    generator.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", GREEDY_IS_SLOW, ids=["greedy", "beams"])
def test_decoding_without_cached_attention_keeps_predictions(checkpoints, method, monkeypatch):
    # As for a decoder whose attention is none of those known here: Mesh TensorFlow's own states.
    monkeypatch.setattr("t0.inference.cached_attention.KINDS", {})
    generator = restored(checkpoints, method)
    assert_same(predict(generator), expected(method))
    generator.close()


@pytest.mark.slow
def test_decoding_bfloat16_scores_are_close_to_float32(checkpoints):
    generator = restored(checkpoints, activations=tf.bfloat16)
    (_, found), *_ = predict(generator, INPUTS[:1], [1])
    first = SlowSearch(ending_variables()).greedy(INPUTS[0], 1)[1]
    assert found != first
    assert found == pytest.approx(first, abs=0.3)
    generator.close()


def test_decoding_with_checkpoint_of_another_model_is_refused(checkpoints):
    generator = make_generator(params=["d_ff = 64"])
    with pytest.raises(UserError, match="does not match the model that the gin files configure"):
        generator.restore(checkpoints["t5.1.1"])
    generator.close()
