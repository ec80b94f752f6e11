"""The model on PyTorch: Hugging Face's numbers and names, packed rows, and dropout's places."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from t0.config.model_spec import (  # noqa: E402
    Dropout,
    ModelShape,  # noqa: E402
    T5Spec,
)
from t0.torch.model import SUM_NAMES, T5, apply_dropout, bucket, shift_right, sums  # noqa: E402

SIZES = ModelShape(
    vocabulary=128,
    d_model=32,
    d_ff=48,
    inner=64,
    heads=4,
    buckets=32,
    encoder_layers=2,
    decoder_layers=3,
    gated=True,
    tied=False,
    shared_bias=True,
)
T5_1_1 = T5Spec(SIZES, "gelu", Dropout(), 0.0, 1e-4, None)
T5_1_0 = dataclasses.replace(
    T5_1_1, sizes=dataclasses.replace(SIZES, gated=False, tied=True), activation="relu"
)
VERSIONS = {"1.1": T5_1_1, "1.0": T5_1_0}


def theirs_of(spec):
    sizes = spec.sizes
    config = transformers.T5Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.d_model,
        d_kv=sizes.d_kv,
        d_ff=sizes.d_ff,
        num_heads=sizes.heads,
        num_layers=sizes.encoder_layers,
        num_decoder_layers=sizes.decoder_layers,
        feed_forward_proj="gated-gelu" if sizes.gated else "relu",
        tie_word_embeddings=sizes.tied,
        dropout_rate=0.0,
    )
    torch.manual_seed(1)
    return transformers.T5ForConditionalGeneration(config).eval()


def ours_of(theirs, spec):
    ours = T5(spec).eval()
    state = theirs.state_dict()
    for copy in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        state.pop(copy)
    if spec.sizes.tied:
        state.pop("lm_head.weight")
    ours.load_state_dict(state)
    return ours


def tokens(*shape):
    return torch.randint(2, SIZES.vocabulary, shape)


def logits(model, batch):
    return model.logits(model.decode(batch, *model.encode(batch)))


@pytest.mark.parametrize("version", VERSIONS)
def test_model_logits_equal_hugging_face(version):
    spec = VERSIONS[version]
    theirs = theirs_of(spec)
    ours = ours_of(theirs, spec)
    inputs, targets = tokens(3, 150), tokens(3, 11)  # further apart than the largest bucket
    inputs[1, 100:] = 0
    with torch.no_grad():
        expected = theirs(
            input_ids=inputs,
            attention_mask=(inputs > 0).long(),
            decoder_input_ids=shift_right(targets, torch.ones_like(targets)),
        ).logits
        found = logits(ours, {"inputs": inputs, "targets": targets})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize("version", VERSIONS)
def test_packing_attention_mask_separates_examples_of_a_row(version):
    model = ours_of(theirs_of(VERSIONS[version]), VERSIONS[version])
    lengths = [(5, 3), (9, 4), (2, 1)]
    examples = [(tokens(1, a), tokens(1, b)) for a, b in lengths]
    padding = torch.zeros(1, 4, dtype=torch.long)
    packed = {}
    for place, name in enumerate(("inputs", "targets")):
        parts = [example[place] for example in examples]
        packed[name] = torch.cat([*parts, padding], 1)
        numbers = [torch.full_like(part, n + 1) for n, part in enumerate(parts)]
        packed[f"{name}_segmentation"] = torch.cat([*numbers, padding], 1)
    with torch.no_grad():
        together = logits(model, packed)
        start = 0
        for inputs, targets in examples:
            alone = logits(model, {"inputs": inputs, "targets": targets})
            end = start + targets.shape[1]
            torch.testing.assert_close(together[:, start:end], alone, rtol=1e-4, atol=1e-5)
            start = end


def test_packing_decoder_inputs_shift_within_each_example():
    targets = torch.tensor([[5, 6, 1, 7, 1, 0]])
    segments = torch.tensor([[1, 1, 1, 2, 2, 0]])
    assert shift_right(targets, segments).tolist() == [[0, 5, 6, 0, 7, 0]]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_position_buckets_equal_hugging_face(bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, 32, 128)
    assert torch.equal(bucket(distance, 32, bidirectional), expected)


def test_model_gradients_reach_every_weight():
    model = T5(T5_1_1)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    batch = {"inputs": tokens(2, 9), "targets": tokens(2, 5)}
    model(batch)[:2].sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in model.parameters())


def test_dropout_mask_is_shared_by_all_positions_of_a_row():
    torch.manual_seed(0)
    drawn = apply_dropout(torch.ones(4, 7, 1000), 0.25, (4, 1, 1000))
    assert torch.equal(drawn[:, 0], drawn[:, -1])
    assert drawn.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert drawn.mean() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("place", ["residual", "attention", "hidden"])
def test_dropout_rate_changes_training_and_not_evaluation(place):
    spec = dataclasses.replace(T5_1_1, dropout=Dropout(**{place: 0.5}))
    model, plain = (ours_of(theirs_of(T5_1_1), each) for each in (spec, T5_1_1))
    batch = {"inputs": tokens(2, 9), "targets": tokens(2, 5)}
    with torch.no_grad():
        assert torch.equal(model(batch), plain(batch))
        assert not torch.allclose(model.train()(batch)[0], plain(batch)[0])


def test_loss_sums_with_z_loss_and_label_smoothing():
    torch.manual_seed(0)
    wide = torch.randn(6, 50)
    targets = torch.tensor([3, 1, 4, 1, 5, 9])
    wide[2, 4] = 99.0
    found = dict(zip(SUM_NAMES, sums(wide, targets, 0.01, 0.0).tolist(), strict=True))
    expected = torch.nn.functional.cross_entropy(wide, targets, reduction="sum")
    assert found["nll"] == pytest.approx(float(expected), rel=1e-6)
    assert found["z_loss"] == pytest.approx(0.01 * float(wide.logsumexp(-1).square().sum()))
    assert (found["tokens"], found["tokens_before_eos"]) == (6, 4)
    assert found["correct_before_eos"] >= 1
    smooth = torch.nn.functional.cross_entropy(wide, targets, reduction="sum", label_smoothing=0.1)
    assert float(sums(wide, targets, 0.0, 0.1)[0]) == pytest.approx(float(smooth), rel=1e-6)
