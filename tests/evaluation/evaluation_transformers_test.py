"""The same log-likelihoods as Hugging Face Transformers gives, from the same weights."""

import numpy as np
import pytest

from tests.evaluation.tiny_models import (
    D_FF,
    D_KV,
    D_MODEL,
    HEADS,
    LAYERS,
    make_scorer,
    padded,
    random_variables,
    write_checkpoint,
)

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not in the lock")
transformers = pytest.importorskip("transformers")

INPUTS = [[5, 9, 44, 17, 3, 100, 61], [7], list(range(3, 60)), [90, 91, 92]]
CHOICES = [[[10, 11, 1], [12, 1]], [[1], [33, 34, 35, 36, 1]], [[70, 1], [71, 1]], [[8, 1], [9, 1]]]


def hf_model(variables, layers=LAYERS):
    """Transformers' T5.1.1 with our weights: names and transposition spelled out here."""
    settings = transformers.T5Config(
        vocab_size=128,
        d_model=D_MODEL,
        d_kv=D_KV,
        d_ff=D_FF,
        num_layers=layers,
        num_heads=HEADS,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(settings).eval()
    # Release 5 ties the two tables of a new model, whatever the configuration says.
    model.lm_head.weight = torch.nn.Parameter(torch.empty(128, D_MODEL))
    state = {}
    for name, value in variables.items():
        parts = name.split("/")
        transposed = value.T
        if name == "shared/embedding":
            for owner in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
                state[f"{owner}.weight"] = value
            continue
        if name == "decoder/logits/kernel":
            state["lm_head.weight"] = transposed
            continue
        if parts[1] == "rms_norm":
            state[f"{parts[0]}.final_layer_norm.weight"] = value
            continue
        block, layer = (int(part.rpartition("_")[2]) for part in parts[1:3])
        place = f"{parts[0]}.block.{block}.layer.{layer}"
        if parts[3] == "rms_norm":
            state[f"{place}.layer_norm.weight"] = value
        else:
            state[f"{place}.{parts[3]}.{parts[4]}.weight"] = transposed
    state = {name: torch.tensor(np.ascontiguousarray(value)) for name, value in state.items()}
    left_out = model.load_state_dict(state, strict=False)
    assert not left_out.unexpected_keys
    assert not left_out.missing_keys
    return model


def test_log_likelihoods_equal_hugging_face(tmp_path):
    variables = random_variables("t5.1.1", seed=3)
    scorer = make_scorer()
    scorer.restore(write_checkpoint(tmp_path, variables))
    found = scorer.log_likelihoods(padded(INPUTS), padded(CHOICES))
    scorer.close()
    model = hf_model(variables)
    for row, (ids, choices) in enumerate(zip(INPUTS, CHOICES, strict=True)):
        for column, choice in enumerate(choices):
            targets = torch.tensor([choice])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), labels=targets).logits
            nats = torch.log_softmax(logits, -1).gather(-1, targets[..., None]).sum()
            assert found[row, column] == pytest.approx(float(nats), abs=1e-3)
