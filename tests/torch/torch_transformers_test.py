"""Ranking with decoder-only models: transformers' numbers, the published joins, and the files."""

import dataclasses
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
safetensors = pytest.importorskip("safetensors.torch")

from t0.checkpoints import other_folders  # noqa: E402
from t0.errors import UserError  # noqa: E402
from t0.torch import pretrained_folder, tokenizer_check  # noqa: E402
from t0.torch.pretrained_folder import PretrainedFolder  # noqa: E402
from t0.torch.processes import World  # noqa: E402
from t0.torch.transformers_model import JOINS, TransformersModel  # noqa: E402
from tests.torch import tiny_transformers as tiny  # noqa: E402

WORLD = World(0, 1, torch.device("cpu"))


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Kind -> the folder of a tiny random model with its tokenizer."""
    root = tmp_path_factory.mktemp("models")
    kinds = (*tiny.DECODERS, "bart", "longt5")
    for kind in kinds:
        tiny.save(kind, root / kind)
    return {kind: root / kind for kind in kinds}


def opened(folder, batch_tokens=64):
    return TransformersModel(PretrainedFolder(str(folder)), WORLD, torch.float32, batch_tokens)


def loaded(folder, batch_tokens=64):
    model = opened(folder, batch_tokens)
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
def test_transformers_batched_log_likelihoods_equal_single_texts(folders, kind):
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


def test_transformers_join_flag_offers_every_join():
    assert tuple(JOINS) == other_folders.JOINS


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_transformers_join_splits_tokens_as_published(folders, kind):
    folder = PretrainedFolder(str(folders[kind]))
    tokenizer = folder.tokenizer
    bos = [0] if kind == "llama" else []
    joined = JOINS["lm-eval"].join
    given, scored = joined(folder, "Which weather?", "rain")
    assert given == tokenizer.encode("Which weather?")
    assert given[: len(bos)] == bos
    assert tokenizer.decode(scored) == " rain"
    # Spaces at the end of an input are the choice's.
    given, scored = joined(folder, "Which weather? ", "rain")
    assert given == tokenizer.encode("Which weather?")
    assert tokenizer.decode(scored) == "  rain"
    given, scored = joined(folder, "", "rain")
    assert (given, tokenizer.decode(scored)) == ([0], " rain")
    given, scored = JOINS["t-zero"].join(folder, "Which weather?", "rain")
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
        done = world.with_transformers(
            *("eval", folders[kind], "--tasks=weather_eval"),
            *(f"--output={output}", f"--join={join}", "--limit=12", *words),
            environment={"T0_VOCAB": "/no/vocabulary"},
        )
        assert done.returncode == 0, done.stderr
        assert (output / "report" / "report.html").exists()
    return found


def test_transformers_rank_evaluation_records_its_join(evaluated, folders):
    found = results(evaluated["gpt2"])
    assert found["run"]["joined"].startswith("lm-evaluation-harness: ")
    assert found["run"]["model_type"] == "gpt2"
    assert found["run"]["normalisation"] == "none: sum of log-probabilities over a choice's tokens"
    task = "weather_which_word_score_eval"
    assert found["tasks"][task]["examples"] == 12
    folder = PretrainedFolder(str(folders["gpt2"]))
    lines = (evaluated["gpt2"] / "scores" / f"{task}_0.jsonl").read_text().splitlines()
    for line in map(json.loads, lines[:3]):
        assert [choice["text"] for choice in line["choices"]] == ["rain", "snow", "wind", "heat"]
        for choice in line["choices"]:
            given, scored = JOINS["lm-eval"].join(folder, line["inputs"], choice["text"])
            assert choice["tokens"] == len(scored)
            expected = alone(folders["gpt2"], given, scored)
            assert choice["log_likelihood"] == pytest.approx(expected, abs=1e-4)


def test_transformers_truncation_to_sequence_length(evaluated):
    found = results(evaluated["llama"])
    assert found["run"]["joined"].startswith("bigscience-workshop/t-zero: ")
    assert found["run"]["sequence_length"] == {"inputs": 9, "targets": 4}
    assert found["tasks"]["weather_which_word_score_eval"]["truncated_inputs"] == 12


def test_transformers_compare_warns_about_different_joins(world, evaluated):
    runs = [f"{kind}={folder}" for kind, folder in evaluated.items()]
    done = world.command("compare", *runs, program="t0")
    assert done.returncode == 0, done.stderr
    assert "different ways to join an input and a choice" in " ".join(done.stdout.split())


def test_transformers_unusable_model_folder_is_refused(folders, tmp_path):
    def refused(folder, expected):
        with pytest.raises(UserError, match=expected):
            opened(folder).restore(str(folder))

    bare = shutil.copytree(folders["gpt2"], tmp_path / "bare")
    for path in bare.glob("token*"):
        path.unlink()
    refused(bare, "has no tokenizer")
    pickled = shutil.copytree(folders["gpt2"], tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    refused(pickled, "has no safetensors")
    cut = shutil.copytree(folders["gpt2"], tmp_path / "cut")
    (cut / "model.safetensors").write_bytes(b"0" * 40)
    refused(cut, "is truncated or not a safetensors file")
    settings = {"vocab_size": 320, "intermediate_size": 48, **tiny.SMALL}
    for kind, expected in (
        (transformers.BertForMaskedLM, "a BertForMaskedLM, which is not trained to write texts"),
        (transformers.BertLMHeadModel, "is no decoder: its first token sees those after it"),
    ):
        folder = shutil.copytree(folders["gpt2"], tmp_path / kind.__name__)
        (folder / "model.safetensors").unlink()
        kind(transformers.BertConfig(**settings)).save_pretrained(folder)
        refused(folder, expected)


def change_weights(folder, change):
    path = folder / "model.safetensors"
    safetensors.save_file(change(safetensors.load_file(path)), path, {"format": "pt"})


def change_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def settings(**values):
    return lambda folder: change_json(folder / "config.json", lambda found: found.update(values))


def weights(change):
    return lambda folder: change_weights(folder, change)


def save_shards(folder, change=lambda weight_map: None):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="60KB")
    index = folder / "model.safetensors.index.json"
    change_json(index, lambda found: change(found["weight_map"]))


def drop_a_shard(weight_map):
    last = max(weight_map.values())
    for name in [name for name, shard in weight_map.items() if shard == last]:
        del weight_map[name]


BLOCK = "transformer.h.1."
# A change of a tiny GPT-2's folder -> the error.
UNREADABLE = {
    "compiled": (
        weights(lambda found: {f"_orig_mod.{k}": v for k, v in found.items()}),
        r"29 missing \('lm_head.weight'.* 26 unexpected \('_orig_mod.transformer.h.0",
    ),
    "wrapped block": (
        weights(lambda found: {k.replace(".h.1.", ".h.1.module."): v for k, v in found.items()}),
        r"12 missing \('transformer.h.1.*11 unexpected \('transformer.h.1.module.",
    ),
    "no block": (
        weights(lambda found: {k: v for k, v in found.items() if BLOCK not in k}),
        r"12 missing \('transformer.h.1.attn.c_attn.bias'",
    ),
    "one bias missing": (
        weights(lambda found: {k: v for k, v in found.items() if k != "transformer.ln_f.bias"}),
        r"1 missing \('transformer.ln_f.bias'\)",
    ),
    "a tensor too many": (
        weights(lambda found: found | {"transformer.gate": torch.ones(3)}),
        r"1 unexpected \('transformer.gate'\)",
    ),
    "more layers": (settings(n_layer=3), r"12 missing \('transformer.h.2"),
    "fewer layers": (settings(n_layer=1), r"unexpected \('transformer.h.1"),
    "a million layers": (settings(n_layer=10**6), "describes a model of 1,000,000 layers"),
    "a wide model": (settings(n_embd=10**6), "describes a model of .* parameters"),
    "untied": (settings(tie_word_embeddings=False), r"1 missing \('lm_head.weight'\)"),
    "other shape": (settings(vocab_size=321), r"1 of another shape \('transformer.wte.weight'\)"),
    "shard not in the index": (lambda folder: save_shards(folder, drop_a_shard), "missing"),
    "not finite": (
        weights(lambda found: {k: v * float("inf") for k, v in found.items()}),
        "its logits are not finite",
    ),
    "quantized": (settings(quantization_config={"quant_method": "mxfp4"}), "quantization_config"),
    "other file": (settings(transformers_weights="other.safetensors"), "transformers_weights"),
    "adapter": (
        lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}'),
        "has an adapter next to a model",
    ),
    "pipe": (lambda folder: os.mkfifo(folder / "merges.txt"), "it is a pipe or a device"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_transformers_unread_weights_are_an_error(folders, tmp_path, monkeypatch, name):
    """Transformers fills what is missing at random, and logs it."""
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders["gpt2"], tmp_path / "changed")
    change, expected = UNREADABLE[name]
    change(folder)
    with pytest.raises(UserError, match=expected) as caught:
        opened(folder).restore(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        save_shards,
        weights(lambda found: {k.removeprefix("transformer."): v for k, v in found.items()}),
        weights(lambda found: found | {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8)}),
        settings(attn_implementation="kernels-community/flash-attn"),
        settings(experts_implementation="kernels-community/moe"),
        settings(auto_map={"AutoModelForCausalLM": "code.Model"}),
    ],
    ids=["shards", "bare names", "old masks", "attention kernel", "expert kernel", "own code"],
)
def test_transformers_restore_reads_and_counts_every_tensor(folders, tmp_path, monkeypatch, change):
    """Of two blocks with 12 tensors each, two embeddings and a norm; no kernel of a hub is run."""
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders["gpt2"], tmp_path / "changed")
    change(folder)
    model = opened(folder)
    assert model.restore(str(folder)) == 2 * 12 + 2 + 2
    inputs, targets = np.array([[5, 9, 44]]) + 1, np.array([[[10, 7]]]) + 1
    expected = alone(folders["gpt2"], [5, 9, 44], [10, 7])
    assert model.log_likelihoods(inputs, targets)[0, 0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "bart"])
def test_flex_attention_is_never_selected(folders, tmp_path, monkeypatch, kind):
    """In transformers 5.23, it computes wrong losses for T5."""
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders[kind], tmp_path / "changed")
    settings(attn_implementation="flex_attention", _attn_implementation="flex_attention")(folder)
    model = opened(folder)
    model.restore(str(folder))
    configs = [module.config for module in model.model.modules() if hasattr(module, "config")]
    assert {config._attn_implementation for config in configs} <= {"sdpa", "eager"}


def repeat_normalizer(found):
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    found["normalizer"] = {"type": "Sequence", "normalizers": [twice] * 40}


def repeat_decoder(found):
    twice = {"type": "Replace", "pattern": {"Regex": "a"}, "content": "a"}
    found["decoder"] = {"type": "Sequence", "decoders": [twice] * 20}


def break_normalizer(found):
    found["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (repeat_normalizer, r"tokenizer.json: its rules can make a text 1.1e\+12 times as long"),
        (repeat_decoder, r"tokenizer.json: its rules can make a text 1.05e\+06 times as long"),
        (break_normalizer, "index out of bounds"),
        (lambda found: found.update(model=None), "cannot be loaded"),
    ],
)
def test_tokenizer_is_loaded_within_memory_and_time_limits(
    folders, tmp_path, monkeypatch, change, expected
):
    """A few letters that become 2**40, and a panic of the library, are a message."""
    monkeypatch.setattr(tokenizer_check, "LIMIT_SECONDS", 30)
    folder = shutil.copytree(folders["gpt2"], tmp_path / "changed")
    change_json(folder / "tokenizer.json", change)
    with pytest.raises(UserError, match=expected) as caught:
        opened(folder)
    assert "\n" not in str(caught.value)


IDS = {
    "config.json": ("decoder_start_token_id",),
    "generation_config.json": ("decoder_start_token_id", "forced_bos_token_id"),
}


@pytest.mark.parametrize("value", [320, -1, 10**30, "2", 2.5, [2], True])
@pytest.mark.parametrize(
    ("file", "name"), [(f, name) for f, names in IDS.items() for name in names]
)
def test_transformers_first_token_that_the_model_lacks_is_an_error(
    folders, tmp_path, monkeypatch, file, name, value
):
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders["bart"], tmp_path / "changed")
    change_json(folder / file, lambda found: found.update({name: value}))
    with pytest.raises(UserError, match=name) as caught:
        opened(folder).restore(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("eos", [320, -1, 10**30, [2, 320, -7], [10**30]])
def test_transformers_end_tokens_that_the_model_lacks_are_not_used(
    folders, tmp_path, monkeypatch, eos
):
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders["bart"], tmp_path / "changed")
    change_json(folder / "generation_config.json", lambda found: found.update(eos_token_id=eos))
    model = opened(folder)
    model.restore(str(folder))
    assert model.end_ids == ([2] if eos == [2, 320, -7] else [])


@pytest.mark.parametrize("kind", ["gpt2", "bart"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", ["2", 2.5, [[2]], {}, True])
def test_transformers_end_token_that_is_no_integer_is_an_error(
    folders, tmp_path, monkeypatch, kind, file, value
):
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders[kind], tmp_path / "changed")
    change_json(folder / file, lambda found: found.update(eos_token_id=value))
    with pytest.raises(UserError, match="eos_token_id") as caught:
        opened(folder).restore(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["gpt2", "bart", "longt5"])
@pytest.mark.parametrize("value", [321, 319, 0, -1, 10**30, "320", 320.5, None, [320], True])
def test_transformers_vocabulary_size_of_another_model_is_an_error(
    folders, tmp_path, monkeypatch, kind, value
):
    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders[kind], tmp_path / "changed")
    settings(vocab_size=value)(folder)
    with pytest.raises(UserError, match=re.escape(str(folder))) as caught:
        opened(folder).restore(str(folder))
    assert "\n" not in str(caught.value)


def test_tokenizer_panic_in_a_text_is_a_user_error(folders, monkeypatch):
    panic = type("PanicException", (BaseException,), {})

    def join(*_):
        raise panic("index out of bounds")

    model = loaded(folders["gpt2"])
    model.join = dataclasses.replace(JOINS["lm-eval"], join=join)
    with pytest.raises(UserError, match="cannot encode a text.*index out of bounds"):
        model.encode("It rains.", "yes")


def _text_record(given, choice):
    """Returns the record of a choice whose texts are not tokenized yet."""
    from t0.evaluation.records import ChoiceRecord

    none = np.zeros(0, np.int32)
    return ChoiceRecord(3, 0, none, none, True, choice, given, None)


def test_tokenizer_ids_outside_the_embedding_are_refused(folders, tmp_path, monkeypatch):
    from t0.run.transformers_evaluation import TextJoiner

    monkeypatch.setattr(pretrained_folder, "check_within_limits", lambda folder: None)
    folder = shutil.copytree(folders["gpt2"], tmp_path / "small")
    settings(vocab_size=100)(folder)
    embedding = "transformer.wte.weight"
    change_weights(folder, lambda found: found | {embedding: found[embedding][:100].clone()})
    model = opened(folder)
    joined = TextJoiner(model, "mine")
    record = _text_record("snow €", "wind")
    expected = "task mine, example 3: .*makes the id .*embeddings for the ids 0 to 99"
    with pytest.raises(UserError, match=expected):
        list(joined.records([record]))
    tokenizer = model.folder.tokenizer
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(UserError, match="neither a BOS nor an EOS"):
        list(joined.records([record._replace(input_text="")]))


def test_missing_pytorch_error_message_names_install_command(world, folders):
    """The command names the package, and the command that installs it."""
    folder = str(Path(importlib.util.find_spec("torch").origin).parents[1])
    if (Path(folder) / "tensorflow").exists():
        pytest.skip("PyTorch is in the folder of the locked packages, and cannot be hidden")
    hidden = f"import sys; sys.path.remove({folder!r}); from t0.cli.main import main; "
    words = ["eval", str(folders["gpt2"]), "--tasks=weather_eval", f"--output={world.folder}/none"]
    done = world.python("-c", f"{hidden}sys.exit(main({words}))")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "is not a T5" in done.stderr and "torch" in done.stderr
    assert "bin/setup --with hf" in done.stderr and "--engine" not in done.stderr


def test_transformers_text_over_position_limit_is_refused(folders):
    from t0.run.transformers_evaluation import TextJoiner

    joined = TextJoiner(loaded(folders["gpt2"]), "mine")
    record = _text_record("rain " * 300, "wind")
    expected = (
        "task mine, example 3: input and choice have .* tokens, but the context window has 128"
    )
    with pytest.raises(UserError, match=expected):
        list(joined.records([record]))
