"""Models of transformers: batches change no result, and a wrong model is refused before data."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from t0.errors import UserError  # noqa: E402
from t0.torch import model_checks, pretrained_folder  # noqa: E402
from t0.torch.pretrained_folder import PretrainedFolder  # noqa: E402
from t0.torch.processes import World  # noqa: E402
from t0.torch.transformers_model import TransformersModel  # noqa: E402
from tests.torch import encoder_decoder_table as table  # noqa: E402
from tests.torch import tiny_transformers as tiny  # noqa: E402

WORLD = World(0, 1, torch.device("cpu"))
TEXTS = ["snow", f"Report from Oslo: {'much rain ' * 6}today.", "Which weather?", "heat, wind"]
CHOICES = ["rain", "much snow today", "wind in Kyoto"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")

    def save(kind):
        if not (root / kind).exists():
            tiny.ENCODER_DECODERS.setdefault(kind, table.CONFIGS.get(kind))
            tiny._TEMPLATES.setdefault(kind, "<s> $A </s>")
            tiny.save(kind, root / kind)
        return root / kind

    return save


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)


def opened(folder, batch_tokens=4096, activations=torch.float32):
    model = TransformersModel(PretrainedFolder(str(folder)), WORLD, activations, batch_tokens)
    model.restore(str(folder))
    return model


def padded(rows):
    array = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, ids in zip(array, rows, strict=True):
        row[: len(ids)] = np.array(ids) + 1
    return array


def end_early(folder, model, rows):
    """Exchanges the end token with a token that the model writes soon after some of the rows."""
    end = model.end_ids[0]
    used = {int(token) for row in rows for token in row}
    model.model.generation_config.eos_token_id = None
    written = [model.generate_rows([row], 8)[0].sequences[0, len(row) :].tolist() for row in rows]
    counts = {t: sum(t in row for row in written) for row in written for t in row}
    token = next(t for t, n in counts.items() if t not in used | {0, end} and n < len(rows))
    inputs, outputs = model.model.get_input_embeddings(), model.model.get_output_embeddings()
    for weight in {id(each.weight): each.weight for each in (inputs, outputs)}.values():
        weight.data[[token, end]] = weight.data[[end, token]].clone()  # tied weights only once
    model.model.save_pretrained(folder)


@pytest.fixture(scope="module")
def without_padding(tmp_path_factory):
    """A decoder without a padding token, whose id 0 is "!", as in GPT-2 and Llama 3."""

    def save(kind):
        folder = tmp_path_factory.mktemp("no padding") / kind
        tiny.save(kind, folder)
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        vocabulary = content["model"]["vocab"]
        ordinary = vocabulary["!"]
        vocabulary["<end>"], vocabulary["!"] = ordinary, 0
        content["added_tokens"][0]["id"] = ordinary
        content["post_processor"] = None
        path.write_text(json.dumps(content))
        for name in ("config.json", "generation_config.json"):
            settings = json.loads((folder / name).read_text())
            settings |= {"eos_token_id": ordinary, "bos_token_id": ordinary, "pad_token_id": None}
            (folder / name).write_text(json.dumps(settings))
        model = opened(folder)
        end_early(folder, model, [np.array(model.encode(text, "a")[0]) for text in TEXTS])
        return folder

    return save


def results(model, order):
    """Returns the scores, the sums of losses and the decoded texts of rows in an order."""
    pairs = [[model.encode(TEXTS[n], choice) for choice in CHOICES] for n in order]
    inputs = padded([row[1][0] for row in pairs])
    width = max(len(scored) for row in pairs for _, scored in row)
    targets = np.zeros((len(order), len(CHOICES), width), np.int32)
    for n, row in enumerate(pairs):
        for c, (_, scored) in enumerate(row):
            targets[n, c, : len(scored)] = np.array(scored) + 1
    sums = [
        model.measure({"inputs": inputs[n : n + size], "targets": targets[n : n + size, 0]})
        for size in (1, len(order))
        for n in range(0, len(order), size)
    ]
    texts = list(model.decode([np.array(row[0][0]) + 1 for row in pairs], 24))
    scores = model.log_likelihoods(inputs, targets)
    by_row = {n: (scores[k], texts[k]) for k, n in enumerate(order)}
    return [by_row[n] for n in sorted(by_row)], sum(sums[: len(order)]), sums[-1]


@pytest.mark.parametrize("kind", [*tiny.ENCODER_DECODERS, *tiny.DECODERS])
def test_batch_size_and_order_change_no_result(saved, without_padding, kind):
    decoder = kind in tiny.DECODERS
    folder = without_padding(kind) if decoder else saved(kind)
    reference, *_ = results(opened(folder, 1), range(len(TEXTS)))
    for batch_tokens, order in ((1 << 14, [0, 1, 2, 3]), (200, [3, 1, 0, 2]), (1 << 14, [2, 3, 1])):
        found, alone, together = results(opened(folder, batch_tokens), order)
        for row, (scores, text) in zip(sorted(order), found, strict=True):
            np.testing.assert_allclose(scores, reference[row][0], rtol=1e-5)
            assert text == reference[row][1]
        np.testing.assert_allclose(together, alone, rtol=1e-5)


@pytest.mark.parametrize("kind", tiny.DECODERS)
def test_decoded_text_ends_at_its_end_token(without_padding, kind):
    model = opened(without_padding(kind))
    rows = [np.array(model.encode(text, "a")[0]) for text in TEXTS]
    lengths = [len(ids) for ids in model._generate(rows, 24)]
    assert min(lengths) < max(lengths)
    texts = list(model.decode([row + 1 for row in rows], 24))
    for row, text in zip(rows, texts, strict=True):
        ids = model.generate_rows([row], 24)[0].sequences[0, len(row) :]
        assert text == model.folder.tokenizer.decode(ids, skip_special_tokens=True).strip()
        assert not text.endswith("!!!!")


def test_led_has_a_window_for_each_side(saved):
    folder = PretrainedFolder(str(saved("led")))
    assert (folder.encoder.positions, folder.decoder.positions) == (128, 64)
    model = opened(saved("led"))
    assert "129 tokens, but the context window has 128" in model.excess(129, 3)
    assert "65 tokens, but the context window has 64" in model.excess(3, 65)
    assert "--lengths=inputs=96,targets=16" in model.excess(3, 65)
    assert not model.excess(128, 64)


def test_roberta_numbers_positions_after_padding(saved):
    model = opened(saved("roberta"))
    assert "127 tokens, but the context window has 126" in model.excess(127, 3)
    rows = np.ones((1, 126), np.int32) * 9
    assert np.isfinite(model.log_likelihoods(rows, rows[:, None])).all()


def _own_loss(folder, given, scored):
    """Returns the negative loss of transformers, in nats."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    labels = {"labels": torch.tensor([scored])}
    if model.config.model_type == "fsmt":  # it does not make the inputs of its decoder
        shift = model.prepare_decoder_input_ids_from_labels
        labels["decoder_input_ids"] = shift(labels["labels"].clone())
    with torch.no_grad():
        return -float(model(input_ids=torch.tensor([given]), **labels).loss) * len(scored)


def test_table_of_encoder_decoders_is_complete():
    names = transformers.models.auto.modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    texts = {
        kind
        for kind in names
        if getattr(transformers.AutoConfig.for_model(kind), "is_encoder_decoder", False)
    }
    assert texts - table.T5S <= set(table.CONFIGS)


@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces a better way:FutureWarning")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=() if k == "m2m_100" else pytest.mark.slow) for k in table.CONFIGS],
)
def test_encoder_decoder_ranks_as_its_own_loss_or_is_refused(saved, kind):
    folder = saved(kind)
    if kind in table.REFUSED:
        with pytest.raises(UserError, match=table.REFUSED[kind]) as caught:
            opened(folder)
        assert "\n" not in str(caught.value)
        return
    model = opened(folder)
    model.check_decoding()
    given, _ = model.encode(TEXTS[1], "a")
    choices = [model.encode("", choice)[1] for choice in CHOICES]
    inputs, targets = padded([given]), padded(choices)[None]
    found = model.log_likelihoods(np.pad(inputs, ((0, 0), (0, 5))), targets)[0]
    assert np.ptp(found) > 5
    expected = [_own_loss(folder, given, scored) for scored in choices]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


DECODERS = {
    "gpt2": tiny.gpt2,  # learned positions
    "llama": tiny.llama,  # rotary positions
    "bloom": lambda: transformers.BloomConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=32, n_layer=2, n_head=2
    ),  # ALiBi
    "mistral": lambda: transformers.MistralConfig(
        **tiny.llama().to_dict() | {"model_type": "mistral", "sliding_window": 8}
    ),
    "mamba": lambda: transformers.MambaConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4
    ),
    # Its rotary frequencies depend on the length of the text.
    "dynamic": lambda: transformers.LlamaConfig(
        **tiny.llama(16).to_dict() | {"rope_parameters": None},
        rope_scaling={"rope_type": "dynamic", "factor": 8.0},
    ),
}
NOT_SHARED = ("mamba", "dynamic")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    def save(kind):
        folder = tmp_path_factory.mktemp("decoders") / kind
        tiny.DECODERS.setdefault(kind, DECODERS[kind])
        tiny.save(kind, folder)
        return opened(folder, 600)

    return save


def _random_rows():
    """Returns inputs [6, 40] of different lengths, and targets [6, 4, 7] of 1 to 4 choices."""
    rng = np.random.default_rng(0)
    inputs, targets = np.zeros((6, 40), np.int32), np.zeros((6, 4, 7), np.int32)
    for row, length in enumerate([40, 2, 3, 25, 31, 39]):
        inputs[row, :length] = rng.integers(1, 300, length)
        for choice in range(row % 4 + 1):
            length = rng.integers(1, 8)
            targets[row, choice, :length] = rng.integers(1, 300, length)
    return inputs, targets


@pytest.mark.parametrize("kind", DECODERS)
def test_choices_of_one_input_share_its_keys_and_keep_their_scores(decoder, monkeypatch, kind):
    model = decoder(kind)
    assert model.shares_inputs == (kind not in NOT_SHARED)
    read = []
    forward = model.forward
    monkeypatch.setattr(
        model,
        "forward",
        lambda ids, *rest, **kw: read.append(ids.numel()) or forward(ids, *rest, **kw),
    )
    inputs, targets = _random_rows()
    shared, tokens = model.score_choices(inputs, targets), sum(read)
    model.shares_inputs = False
    read.clear()
    alone = model.score_choices(inputs, targets)
    np.testing.assert_allclose(shared[..., 0], alone[..., 0], atol=1e-4)
    np.testing.assert_array_equal(shared[..., 1], alone[..., 1])
    assert (tokens < sum(read) / 1.5) == (kind not in NOT_SHARED)


def test_inputs_of_one_token_are_read_with_each_choice(decoder):
    model = decoder("gpt2")
    inputs = np.array([[5, 0], [6, 7]], np.int32)
    targets = np.array([[[9, 8], [10, 0]], [[9, 8], [10, 0]]], np.int32)
    together = model.score_choices(inputs, targets)
    alone = [model.score_choices(inputs[:1, :1], targets[:1, [n]]) for n in range(2)]
    np.testing.assert_allclose(together[0, :, 0], np.ravel(alone)[::2], atol=1e-4)


def test_cache_that_changes_scores_is_not_used(decoder, monkeypatch):
    model = decoder("gpt2")
    forward = model.forward

    def forget_positions(ids, seen, positions=None, **options):
        return forward(ids, seen, **options)

    monkeypatch.setattr(model, "forward", forget_positions)
    assert not model_checks.can_share_inputs(model)
