"""Ranking with decoder-only models: transformers' numbers, the published joins, and the files."""

import json
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from t0.checkpoints import decoder_folders  # noqa: E402
from t0.errors import UserError  # noqa: E402
from t0.torch.decoder_only import JOINS, DecoderOnly  # noqa: E402

CPU = torch.device("cpu")
TEXTS = [
    "Report from Oslo: early much rain today. Which weather? snow",
    "Report from Lima: late then much wind today. Which weather? heat",
    "much snow today in Kyoto. Choose: rain, wind",
] * 4
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def save_tokenizer(folder, vocabulary_size, *, bos):
    """Byte-level BPE, as GPT-2's; with `bos` every text begins with it, as Llama's."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(TEXTS, trainer)
    if bos:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single="<end> $A", special_tokens=[("<end>", 0)]
        )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<end>", eos_token="<end>"
    )
    fast.save_pretrained(folder)


def config_of(kind, positions=128):
    if kind == "gpt2":
        return transformers.GPT2Config(vocab_size=320, n_positions=positions, **SMALL)
    return transformers.LlamaConfig(
        vocab_size=320,
        max_position_embeddings=positions,
        intermediate_size=48,
        num_key_value_heads=1,
        **SMALL,
    )


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Kind -> the folder of a tiny random model with its tokeniser."""
    found = {}
    for kind in ("gpt2", "llama"):
        folder = found[kind] = tmp_path_factory.mktemp("decoders") / kind
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config_of(kind))
        for parameter in model.parameters():
            parameter.data *= 8  # logits that differ
        model.save_pretrained(folder)
        save_tokenizer(folder, 320, bos=kind == "llama")
    return found


def loaded(folder, batch_tokens=64):
    model = DecoderOnly(str(folder), CPU, torch.float32, batch_tokens)
    assert model.restore(str(folder)) > 10
    return model


def alone(folder, given, scored):
    """The sum of log-probabilities of ids after others, by transformers, one text at a time."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([given + scored])
    with torch.no_grad():
        nats = model(ids).logits[0].log_softmax(-1)
    places = range(len(given) - 1, len(given) + len(scored) - 1)
    return sum(float(nats[place, ids[0, place + 1]]) for place in places)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_log_likelihoods_are_those_of_single_texts(folders, kind):
    """Of padded batches, with the token 0, in parts of a few texts."""
    given = [[5, 9, 0, 44], [7], list(range(3, 30))]
    choices = [[[10, 0], [0]], [[33, 34, 35]], [[70, 71], [1, 2, 3]]]
    inputs = np.zeros((4, 27), np.int32)
    targets = np.zeros((4, 2, 3), np.int32)
    for row, (ids, scored) in enumerate(zip(given, choices, strict=True)):
        inputs[row, : len(ids)] = np.array(ids) + 1
        for column, choice in enumerate(scored):
            targets[row, column, : len(choice)] = np.array(choice) + 1
    found = loaded(folders[kind]).log_likelihoods(inputs, targets)
    for row, (ids, scored) in enumerate(zip(given, choices, strict=True)):
        for column, choice in enumerate(scored):
            expected = alone(folders[kind], ids, choice)
            assert found[row, column] == pytest.approx(expected, abs=1e-4)
    assert found[1, 1] == 0
    assert not found[3].any()


def test_the_command_offers_every_join():
    assert tuple(JOINS) == decoder_folders.JOINS


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_joins(folders, kind):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind])
    bos = [0] if kind == "llama" else []
    joined = JOINS["lm-eval"].join
    given, scored = joined(tokenizer, "Which weather?", "rain")
    assert given == tokenizer.encode("Which weather?")
    assert given[: len(bos)] == bos
    assert tokenizer.decode(scored) == " rain"
    # Spaces at the end of an input are the choice's.
    given, scored = joined(tokenizer, "Which weather? ", "rain")
    assert given == tokenizer.encode("Which weather?")
    assert tokenizer.decode(scored) == "  rain"
    given, scored = joined(tokenizer, "", "rain")
    assert (given, tokenizer.decode(scored)) == ([0], " rain")
    given, scored = JOINS["t-zero"].join(tokenizer, "Which weather?", "rain")
    assert given == tokenizer.encode("Which weather?", add_special_tokens=False)
    assert scored == tokenizer.encode("rain")
    assert scored[: len(bos)] == bos


def results(folder):
    return json.loads((folder / "results_0.json").read_text())


@pytest.fixture(scope="module")
def evaluated(world, folders):
    """Kind -> the folder of `t0 eval` of both weather tasks, the second from their caches."""
    found = {}
    for kind, join, words in (
        ("gpt2", "lm-eval", []),
        ("llama", "t-zero", [f"--cache_dirs={world.folder}/cache", "--lengths=inputs=9,targets=4"]),
    ):
        output = found[kind] = world.folder / f"evaluated {kind}"
        done = world.python(
            *("-m", "t0.cli.main", "eval", str(folders[kind]), "--tasks=weather_eval"),
            *(f"--output={output}", f"--join={join}", "--limit=12", *words),
            T0_VOCAB="/no/vocabulary",
        )
        assert done.returncode == 0, done.stderr
        assert (output / "report" / "report.html").exists()
    return found


def test_t0_eval_ranks_and_says_how_it_joined(evaluated, folders):
    found = results(evaluated["gpt2"])
    assert found["run"]["joined"].startswith("lm-evaluation-harness: ")
    assert found["run"]["model_type"] == "gpt2"
    assert found["run"]["normalisation"] == "none: sum of log-probabilities over a choice's tokens"
    task = "weather_which_word_score_eval"
    assert found["tasks"][task]["examples"] == 12
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["gpt2"])
    lines = (evaluated["gpt2"] / "scores" / f"{task}_0.jsonl").read_text().splitlines()
    for line in map(json.loads, lines[:3]):
        assert [choice["text"] for choice in line["choices"]] == ["rain", "snow", "wind", "heat"]
        for choice in line["choices"]:
            given, scored = JOINS["lm-eval"].join(tokenizer, line["inputs"], choice["text"])
            assert choice["tokens"] == len(scored)
            expected = alone(folders["gpt2"], given, scored)
            assert choice["log_likelihood"] == pytest.approx(expected, abs=1e-4)


def test_long_inputs_are_cut_where_lengths_say_so(evaluated):
    found = results(evaluated["llama"])
    assert found["run"]["joined"].startswith("bigscience-workshop/t-zero: ")
    assert found["run"]["sequence_length"] == {"inputs": 9, "targets": 4}
    assert found["tasks"]["weather_which_word_score_eval"]["truncated_inputs"] == 12


def test_runs_are_compared(world, evaluated):
    runs = [f"{kind}={folder}" for kind, folder in evaluated.items()]
    done = world.command("compare", *runs, program="t0")
    assert done.returncode == 0, done.stderr
    assert "other ways to join an input and a choice" in " ".join(done.stdout.split())


def test_wrong_folders_are_refused(folders, tmp_path):
    def refused(folder, expected):
        with pytest.raises(UserError, match=expected):
            DecoderOnly(str(folder), CPU, torch.float32, 64).restore(str(folder))

    bare = shutil.copytree(folders["gpt2"], tmp_path / "bare")
    for path in bare.glob("token*"):
        path.unlink()
    refused(bare, "has no tokeniser")
    pickled = shutil.copytree(folders["gpt2"], tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    refused(pickled, "has no safetensors")
    cut = shutil.copytree(folders["gpt2"], tmp_path / "cut")
    (cut / "model.safetensors").write_bytes(b"0" * 40)
    refused(cut, "cannot be read as a model of transformers")
    settings = {"vocab_size": 320, "intermediate_size": 48, **SMALL}
    for kind, expected in (
        (transformers.BertForMaskedLM, "a BertForMaskedLM, which is not trained to continue texts"),
        (transformers.BertLMHeadModel, "is no decoder: its first token sees those after it"),
    ):
        folder = shutil.copytree(folders["gpt2"], tmp_path / kind.__name__)
        (folder / "model.safetensors").unlink()
        kind(transformers.BertConfig(**settings)).save_pretrained(folder)
        refused(folder, expected)


def test_a_text_over_the_positions_is_refused(folders):
    from t0.run.decoder_evaluation import Settings, _Joined

    joined = _Joined(loaded(folders["gpt2"]), JOINS["lm-eval"], "mine", Settings("out"))
    record = {"idx": [3, 0], "inputs": b"rain " * 300, "targets": b"wind", "is_correct": True}
    expected = "task mine, example 3: input and choice have .* tokens, and the model reads 128"
    with pytest.raises(UserError, match=expected):
        list(joined.records([record]))
