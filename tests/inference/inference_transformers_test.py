"""The same predictions as Hugging Face Transformers' `generate` makes with the same weights."""

import pytest

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not in the lock")
transformers = pytest.importorskip("transformers")

from t0.evaluation.model import DecodingMethod  # noqa: E402
from tests.evaluation.evaluation_transformers_test import hf_model  # noqa: E402
from tests.evaluation.tiny_models import write_checkpoint  # noqa: E402
from tests.inference.tiny_generation import INPUTS, ending_variables, make_generator, predict  # noqa: E402

LIMIT = 40
# Beams are judged by log p / len ** length_penalty there and by log p / ((5 + len) / 6) ** alpha
# here: the same for an exponent of 0. "never" stops when no beam can be judged better, as here;
# other settings stop by a guess.
METHODS = {
    "greedy": (DecodingMethod(), {"num_beams": 1}),
    "beams": (
        DecodingMethod(beam_size=4, alpha=0.0),
        {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"},
    ),
}


@pytest.mark.parametrize("seed", [3, 5, 8])
@pytest.mark.parametrize(("method", "settings"), METHODS.values(), ids=METHODS)
def test_decoding_equals_hugging_face_generate(tmp_path, method, settings, seed):
    variables = ending_variables(seed=seed)
    generator = make_generator(method)
    generator.restore(write_checkpoint(tmp_path, variables))
    found = predict(generator, INPUTS, [LIMIT] * len(INPUTS))
    generator.close()

    longest = max(map(len, INPUTS))
    inputs = torch.tensor([ids + [0] * (longest - len(ids)) for ids in INPUTS])
    with torch.no_grad():
        theirs = hf_model(variables, layers=2).generate(
            input_ids=inputs,
            attention_mask=(inputs > 0).long(),
            max_new_tokens=LIMIT,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
            eos_token_id=1,
            pad_token_id=0,
            **settings,
        )
    ended = 0
    for row, (tokens, score) in enumerate(found):
        assert tokens == theirs.sequences[row, 1 : len(tokens) + 1].tolist()
        assert tokens[-1] == 1 or len(tokens) == LIMIT
        ended += tokens[-1] == 1
        if method.beam_size > 1:
            # With an exponent of 0 what they judge by is the sum of the log-probabilities.
            assert score == pytest.approx(float(theirs.sequences_scores[row]), abs=1e-3)
    assert ended
