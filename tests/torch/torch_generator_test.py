"""Predictions on PyTorch: the tokens and scores of Mesh TensorFlow's engine and transformers'."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from t0.config.model_spec import (  # noqa: E402
    Dropout,
    ModelShape,  # noqa: E402
    T5Spec,
)
from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.torch.evaluation import ShardedScorer  # noqa: E402
from t0.torch.generator import TorchGenerator  # noqa: E402
from t0.torch.processes import World  # noqa: E402
from tests.evaluation.evaluation_transformers_test import hf_model  # noqa: E402
from tests.evaluation.tiny_models import D_FF, D_KV, D_MODEL, HEADS, write_checkpoint  # noqa: E402
from tests.inference.tiny_generation import (  # noqa: E402
    INPUTS,
    LIMITS,
    ending_variables,
    make_generator,
    predict,
)

METHODS = {
    "greedy": DecodingMethod(),
    "beams": DecodingMethod(beam_size=3, alpha=0.6),
    "beams without a penalty": DecodingMethod(beam_size=4, alpha=0.0),
    "draws": DecodingMethod(temperature=0.7, top_k=5),
}
DRAWS = np.random.default_rng(5).random((4, max(LIMITS)), np.float32)
CPU = torch.device("cpu")


def spec_of(model):
    gated = model == "t5.1.1"
    sizes = ModelShape(
        vocabulary=128,
        d_model=D_MODEL,
        d_ff=D_FF,
        inner=HEADS * D_KV,
        heads=HEADS,
        buckets=32,
        encoder_layers=2,
        decoder_layers=2,
        gated=gated,
        tied=not gated,
        shared_bias=True,
    )
    return T5Spec(sizes, "gelu" if gated else "relu", Dropout(), 0.0, 0.0, None)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        model: write_checkpoint(folder / model, ending_variables(model))
        for model in ("t5.1.1", "t5.1.0")
    }


def ours(checkpoint, method, model="t5.1.1", activations=torch.float32):
    generator = TorchGenerator(spec_of(model), CPU, activations, method)
    assert generator.restore(checkpoint) > 20
    return generator


def assert_same(found, wanted):
    for (tokens, score), (wanted_tokens, wanted_score) in zip(found, wanted, strict=True):
        assert tokens == wanted_tokens
        assert score == pytest.approx(wanted_score, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "model"), [*((name, "t5.1.1") for name in METHODS), ("beams", "t5.1.0")]
)
def test_decoding_tokens_and_scores_equal_mesh_tensorflow(checkpoints, name, model):
    reference = make_generator(METHODS[name], model=model)
    reference.restore(checkpoints[model])
    expected = predict(reference, draws=DRAWS)
    reference.close()
    found = predict(ours(checkpoints[model], METHODS[name], model), draws=DRAWS)
    assert_same(found, expected)
    ended = [tokens[-1] == 1 for tokens, _ in expected[:-1]]
    assert any(ended), "no prediction ends"


@pytest.mark.parametrize("seed", [3, 5])
def test_greedy_decoding_equals_hugging_face(tmp_path, seed):
    variables = ending_variables(seed=seed)
    generator = ours(write_checkpoint(tmp_path, variables), DecodingMethod())
    limit, longest = 40, max(map(len, INPUTS))
    inputs = torch.tensor([ids + [0] * (longest - len(ids)) for ids in INPUTS])
    with torch.no_grad():
        theirs = hf_model(variables, layers=2).generate(
            input_ids=inputs,
            attention_mask=(inputs > 0).long(),
            max_new_tokens=limit,
            do_sample=False,
            num_beams=1,
            eos_token_id=1,
            pad_token_id=0,
        )
    found = predict(generator, INPUTS, [limit] * len(INPUTS))
    for row, (tokens, _) in enumerate(found):
        assert tokens == theirs[row, 1 : len(tokens) + 1].tolist()


def test_decoding_second_restore_replaces_the_checkpoint(checkpoints, tmp_path):
    other = write_checkpoint(tmp_path, ending_variables(seed=5))
    generator = ours(other, DecodingMethod())
    expected = predict(generator)
    assert generator.restore(checkpoints["t5.1.1"]) > 20
    assert predict(generator) != expected
    assert generator.restore(other) > 20
    assert predict(generator) == expected


@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_decoding_does_not_depend_on_padding_or_batch(checkpoints, name):
    generator = ours(checkpoints["t5.1.1"], METHODS[name])
    together = predict(generator, length=64)
    assert_same(predict(generator, length=96, rows=6), together)
    assert_same(predict(generator, INPUTS[:1], LIMITS[:1]), together[:1])


def test_decoding_bfloat16_scores_are_close_to_float32(checkpoints):
    exact = predict(ours(checkpoints["t5.1.1"], DecodingMethod()), limits=[1] * 4)
    rounded = ours(checkpoints["t5.1.1"], DecodingMethod(), activations=torch.bfloat16)
    found = predict(rounded, limits=[1] * 4)
    for (_, score), (_, other) in zip(found, exact, strict=True):
        assert score != other
        assert score == pytest.approx(other, abs=0.3)


@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_t5_decoding_does_not_depend_on_batch_size_or_order(checkpoints, name):
    generator = ours(checkpoints["t5.1.1"], METHODS[name])
    together = predict(generator)
    alone = [predict(generator, INPUTS[n : n + 1], LIMITS[n : n + 1])[0] for n in range(4)]
    backwards = predict(generator, INPUTS[::-1], LIMITS[::-1], rows=6, length=70)[::-1]
    assert len({len(tokens) for tokens, _ in together}) > 1  # rows end at different steps
    for found in (together, backwards):
        for (tokens, score), (expected_tokens, expected_score) in zip(found, alone, strict=True):
            assert tokens == expected_tokens
            assert score == pytest.approx(expected_score, rel=1e-5)


def test_t5_scores_and_losses_do_not_depend_on_batch_size_or_order(checkpoints):
    scorer = ShardedScorer(spec_of("t5.1.1"), World(0, 1, CPU), torch.float32)
    scorer.restore(checkpoints["t5.1.1"])
    choices = [[[9, 1], [44, 7, 6, 1]], [[3, 1], [70, 1]], [[61, 60, 59, 1], [1]], [[8, 1], [9, 1]]]
    inputs, targets = np.zeros((4, 60), np.int32), np.zeros((4, 2, 5), np.int32)
    for row, ids in enumerate(INPUTS):
        inputs[row, : len(ids)] = ids
        for column, choice in enumerate(choices[row]):
            targets[row, column, : len(choice)] = choice
    together = scorer.log_likelihoods(inputs, targets)
    backwards = scorer.log_likelihoods(inputs[::-1].copy(), targets[::-1].copy())[::-1]
    alone = [
        scorer.log_likelihoods(
            np.array([ids], np.int32), targets[n : n + 1, :, : max(map(len, choices[n]))].copy()
        )[0]
        for n, ids in enumerate(INPUTS)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    np.testing.assert_allclose(backwards, alone, rtol=1e-5)
    losses = scorer.measure({"inputs": inputs, "targets": targets[:, 1]})
    reversed_losses = scorer.measure(
        {"inputs": inputs[::-1].copy(), "targets": targets[::-1, 1].copy()}
    )
    of_rows = [
        scorer.measure({"inputs": inputs[n : n + 1], "targets": targets[n : n + 1, 1]})
        for n in range(len(inputs))
    ]
    np.testing.assert_allclose(reversed_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(np.sum(of_rows, axis=0), losses, rtol=1e-5)
