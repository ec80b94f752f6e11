"""Encoder-decoders that are not T5s: transformers' numbers, one encoder pass, and `t0 eval`."""

import itertools
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from t0.errors import UserError  # noqa: E402
from t0.torch.pretrained_folder import PretrainedFolder  # noqa: E402
from t0.torch.processes import World  # noqa: E402
from t0.torch.transformers_model import TransformersModel  # noqa: E402
from tests.torch import tiny_transformers as tiny  # noqa: E402

WORLD = World(0, 1, torch.device("cpu"))
INPUTS = ["Which weather?", f"Report from Oslo: {'much rain ' * 6}today. Which weather?", "snow"]
CHOICES = ["rain", "much snow today", "wind in Kyoto"]


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Returns the folder of a tiny random model of a kind."""
    root, done = tmp_path_factory.mktemp("models"), set()

    def save(kind):
        if kind not in done:
            tiny.save(kind, root / kind)
            done.add(kind)
        return root / kind

    return save


def opened(folder, batch_tokens=4096):
    model = TransformersModel(PretrainedFolder(str(folder)), WORLD, torch.float32, batch_tokens)
    model.restore(str(folder))
    return model


def plain(folder):
    kind = transformers.AutoConfig.from_pretrained(folder).is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if kind else transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder).eval()


def padded(rows, width):
    array = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(array, rows, strict=True):
        row[: len(ids)] = np.array(ids) + 1
    return array


@pytest.mark.parametrize("batch_tokens", [4096, 16])
@pytest.mark.parametrize("kind", tiny.ENCODER_DECODERS)
def test_encoder_decoder_log_likelihoods_equal_plain_forward_passes(saved, kind, batch_tokens):
    """Each input is encoded once for all of its choices."""
    folder = saved(kind)
    model, reference = opened(folder, batch_tokens), plain(folder)
    pairs = [[model.encode(given, choice) for choice in CHOICES] for given in INPUTS]
    inputs = padded([row[0][0] for row in pairs], max(len(row[0][0]) for row in pairs) + 3)
    width = max(len(scored) for row in pairs for _, scored in row)
    targets = np.stack([padded([scored for _, scored in row], width) for row in pairs])
    targets[2, 1] = 0  # an input with two choices
    encoded = []
    encoder = model.model.get_encoder()
    encoder.register_forward_hook(lambda *seen: encoded.append(len(seen[2][0])))
    found = model.log_likelihoods(inputs, targets)
    assert sum(encoded) == len(INPUTS)
    for row, column in itertools.product(range(3), range(3)):
        given, scored = pairs[row][column]
        with torch.no_grad():
            logits = reference(
                input_ids=torch.tensor([given]), labels=torch.tensor([scored])
            ).logits[0]
        nats = logits.log_softmax(-1)[range(len(scored)), scored]
        expected = float(nats.double().sum()) if (row, column) != (2, 1) else 0
        assert found[row, column] == pytest.approx(expected, abs=1e-5)


def greedy(folder, given, most):
    """The ids that forward passes without a cache choose, up to EOS."""
    model, ids = plain(folder), []
    config, generation = model.config, model.generation_config
    start = generation.decoder_start_token_id
    start = generation.bos_token_id if start is None else start
    for _ in range(most):
        with torch.no_grad():
            if config.is_encoder_decoder:
                before = torch.tensor([[start, *ids]])
                logits = model(input_ids=torch.tensor([given]), decoder_input_ids=before).logits
            else:
                logits = model(input_ids=torch.tensor([[*given, *ids]])).logits
        ids.append(int(logits[0, -1].argmax()))
        if ids[-1] == generation.eos_token_id:
            break
    return ids


@pytest.mark.parametrize("kind", [*tiny.ENCODER_DECODERS, *tiny.DECODERS])
def test_transformers_decode_equals_greedy_forward_passes(saved, kind):
    folder = saved(kind)
    model = opened(folder, batch_tokens=64)
    given = [model.encode(text, "")[0] for text in INPUTS]
    texts = list(model.decode([np.array(ids) + 1 for ids in given], 9))
    assert any(texts)
    for ids, text in zip(given, texts, strict=True):
        expected = model.folder.tokenizer.decode(greedy(folder, ids, 9), skip_special_tokens=True)
        assert text == expected.strip()


def test_corrected_settings_of_a_folder_make_another_model(tmp_path):
    folder = tmp_path / "bart"
    tiny.save("bart", folder)
    opened_folder = opened(folder).folder
    hashes = [opened_folder.settings_sha256]
    files = ("config.json", "generation_config.json", "source.spm", "added_tokens.json")
    for name in (*files, "README.md"):
        path = folder / name
        text = path.read_text() if path.exists() else "{}"
        path.write_text(text + "\n")
        hashes.append(opened_folder.settings_sha256)
    assert len(set(hashes)) == len(hashes) - 1
    assert hashes[-1] == hashes[-2]  # the README does not count


def test_transformers_decode_ignores_saved_generation_settings(saved, tmp_path):
    """A folder's number of beams and penalties do not change greedy search."""
    folder = tmp_path / "beams"
    tiny.save("bart", folder)
    path = folder / "generation_config.json"
    settings = {"num_beams": 4, "no_repeat_ngram_size": 1, "min_length": 8, "do_sample": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    inputs = [np.array(opened(folder).encode(INPUTS[0], "")[0]) + 1]
    assert list(opened(folder).decode(inputs, 9)) == list(opened(saved("bart")).decode(inputs, 9))


@pytest.mark.parametrize("kind", tiny.ENCODER_DECODERS)
def test_encoder_decoder_choice_ends_with_eos_and_starts_once(saved, kind):
    model = opened(saved(kind))
    given, scored = model.encode("Which weather?", "rain")
    tokenizer = model.folder.tokenizer
    assert given == tokenizer("Which weather?")["input_ids"]
    assert scored[-1] == tiny.EOS
    assert (scored[0] == tiny.BOS) == (kind in ("bart", "mbart"))
    assert tokenizer.decode(scored, skip_special_tokens=True) == "rain"
    short = model.truncate(given, len(given) - 1)
    assert len(short) == len(given) - 1
    assert (short[-1] == tiny.EOS) == (given[-1] == tiny.EOS)


def test_encoder_decoder_text_over_position_limit_is_refused(saved):
    model = opened(saved("bart"))
    assert "129 tokens, but the context window has 128" in model.excess(129, 3)
    assert not model.excess(128, 128)
    with pytest.raises(UserError, match="decoded text may have 200 tokens.*--lengths"):
        list(model.decode([np.array([5])], 200))


@pytest.fixture(scope="module")
def evaluate(world, saved):
    """Runs `t0 eval` on the model of a kind; returns the process and the folder of results."""
    texts = world.folder / "data" / "text"
    texts.mkdir(exist_ok=True)
    line = json.dumps({"text": " ".join(f"much {n} today" for n in range(60))})
    (texts / "validation.jsonl").write_text(f"{line}\n" * 3)
    (world.folder / "letters.py").write_text(
        "import seqio\n"
        "from t0.tasks.recipe_tasks import t5_features, tokenized\n"
        "import tensorflow as tf\n"
        "def letters(split, shuffle_files=False, seed=None):\n"
        "    rows = {'inputs': ['rain', 'much snow'] * 9, 'targets': ['snow', 'wind today'] * 9}\n"
        "    return tf.data.Dataset.from_tensor_slices(rows)\n"
        "seqio.TaskRegistry.add('letters', seqio.FunctionDataSource(letters, ['validation']),\n"
        "    preprocessors=tokenized(), output_features=t5_features(), metric_fns=[])\n"
    )

    def run(kind, name, *words):
        folder = world.folder / "transformers" / name
        modules = [f"--module_import={m}" for m in ("t0.seqio_tasks", "t0.recipes", "letters")]
        given = ["eval", str(saved(kind)), f"--output={folder}", *modules, *words]
        return world.with_transformers(*given), folder

    return run


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_eval_ranks_and_decodes_an_encoder_decoder(evaluate, saved):
    tasks = "--tasks=weather_which_word.*"
    done, folder = evaluate("bart", "bart", tasks, "--limit=7", "--decode_answers")
    assert done.returncode == 0, done.stderr
    results = read(folder, "results_0.json")
    assert results["run"]["model_type"] == "bart"
    assert results["run"]["joined"].startswith("encoder-decoder: ")
    assert results["run"]["inputs_eos"] is True
    entry = results["tasks"]["weather_which_word_score_eval"]
    assert entry["examples"] == 7
    assert entry["decoded"]["examples"] == 7
    model = opened(saved("bart"))
    path = folder / "scores" / "weather_which_word_score_eval_0.jsonl"
    for line in map(json.loads, path.read_text().splitlines()[:2]):
        for choice in line["choices"]:
            given, scored = model.encode(line["inputs"], choice["text"])
            nats = model.log_likelihoods(
                padded([given], len(given)), padded([scored], len(scored))[None]
            )
            assert choice["log_likelihood"] == pytest.approx(float(nats[0, 0]), abs=1e-4)


@pytest.mark.parametrize("cached", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_eval_decodes_texts_with_an_encoder_decoder(evaluate, saved, world, cached):
    words = [f"--cache_dirs={world.folder}/cache"] if cached else []
    name = f"decoded {cached}"
    done, folder = evaluate("longt5", name, "--tasks=weather_which_word", "--limit=5", *words)
    assert done.returncode == 0, done.stderr
    entry = read(folder, "decoded_0.json")["tasks"]["weather_which_word"]
    assert entry["examples"] == 5
    lines = (folder / entry["predictions"]).read_text().splitlines()
    model = opened(saved("longt5"))
    for line in map(json.loads, lines):
        ids = np.array(model.encode(line["inputs"], "")[0]) + 1
        assert line["prediction"] == next(model.decode([ids], 128))


def test_eval_shards_of_an_encoder_decoder_merge_to_the_whole(evaluate, world):
    tasks = ["--tasks=weather_.*_score_eval", "--batch_tokens=256"]
    done, whole = evaluate("mbart", "whole", *tasks)
    assert done.returncode == 0, done.stderr
    for number in range(2):
        shard = ["--num_shards=2", f"--shard_id={number}"]
        done, parts = evaluate("mbart", "parts", *tasks, *shard)
        assert done.returncode == 0, done.stderr
    merged = world.folder / "merged"
    done = world.command("merge", parts, "--output", merged, program="t0")
    assert done.returncode == 0, done.stderr
    assert read(merged, "results_0.json")["tasks"] == read(whole, "results_0.json")["tasks"]


@pytest.mark.parametrize(
    ("kind", "task"),
    [("t5gemma", "letters"), pytest.param("gpt2", "letters", marks=pytest.mark.exhaustive)],
)
def test_eval_measures_perplexity_of_texts(evaluate, saved, kind, task):
    done, folder = evaluate(kind, f"{kind} {task}", f"--tasks={task}", "--limit=3")
    assert done.returncode == 0, done.stderr
    results = read(folder, "perplexity_0.json")
    assert results["run"]["examples"] == 3
    assert "sample_seed" not in results["run"]  # the first examples are measured
    entry = results["tasks"][task]
    assert entry["examples"] == 3
    model = opened(saved(kind))
    rows = [("rain", "snow"), ("much snow", "wind today"), ("rain", "snow")]
    pairs = [model.encode(*row) for row in rows]
    nats = sum(
        float(model.log_likelihoods(padded([a], len(a)), padded([b], len(b))[None])[0, 0])
        for a, b in pairs
    )
    assert entry["tokens"] == sum(len(scored) for _, scored in pairs)
    assert entry["metrics"]["nats_per_token"] == pytest.approx(-nats / entry["tokens"], abs=1e-5)


def test_eval_measures_perplexity_of_documents_in_windows(evaluate, saved):
    """Every token of a document is scored once, each window after one token."""
    words = ["--tasks=text_lm", "--lengths=inputs=64,targets=32"]
    done, folder = evaluate("gpt2", "documents", *words)
    assert done.returncode == 0, done.stderr
    entry = read(folder, "perplexity_0.json")["tasks"]["text_lm"]
    assert entry["examples"] == 3
    model = opened(saved("gpt2"))
    text = " ".join(f"much {n} today" for n in range(60))
    ids = model.folder.tokenizer.encode(text, add_special_tokens=False)
    assert entry["tokens"] == 3 * len(ids)
    reference, whole, nats = plain(saved("gpt2")), [tiny.BOS, *ids], 0.0
    for start in range(0, len(ids), 32):
        scored = ids[start : start + 32]
        with torch.no_grad():
            logits = reference(torch.tensor([whole[start : start + len(scored)]])).logits[0]
        nats += float(logits.log_softmax(-1)[range(len(scored)), scored].sum())
    assert entry["metrics"]["nats_per_token"] == pytest.approx(-nats / len(ids), abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "words", "text"),
    [
        ("bart", ["--engine=tensorflow"], "only PyTorch evaluates it: leave the flag out"),
        pytest.param(
            "bart", ["--vocab=/v"], "--vocab is for T5 models", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "bart",
            ["--join=lm-eval"],
            "--join=lm-eval is for decoder-only models",
            marks=pytest.mark.exhaustive,
        ),
        ("bart", ["--device=cuda"], "finds no GPU"),
        ("bart", ["--tasks=text_span_corruption"], "makes its examples from T5's tokens"),
        ("bart", ["--tasks=text_lm"], "which an encoder-decoder needs"),
        pytest.param(
            "gpt2",
            ["--tasks=text_prefix_lm"],
            "makes its examples from T5's tokens",
            marks=pytest.mark.exhaustive,
        ),
        ("gpt2", ["--tasks=letters", "--num_shards=2", "--shard_id=0"], "is for ranked tasks"),
        ("gpt2", ["--tasks=weather_which_word"], "context window has 128"),
        pytest.param(
            "gpt2",
            ["--tasks=letters", "--lengths=inputs=9"],
            "--lengths sets only inputs",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_eval_mistakes_with_transformers_are_one_line(evaluate, kind, words, text):
    done, _ = evaluate(kind, "mistake", "--tasks=weather_which_word", *words)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model_type": "nonsense"}, "cannot be read as a model.*nonsense"),
        ({"model_type": "whisper", "is_encoder_decoder": True}, "not trained to write texts"),
    ],
)
def test_unsupported_architecture_is_refused(saved, tmp_path, config, text):
    folder = tmp_path / "changed"
    tiny.save("bart", folder)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=text) as caught:
        PretrainedFolder(str(folder))
    assert "\n" not in str(caught.value)


def test_missing_tokenizer_of_an_encoder_decoder_is_refused(tmp_path):
    tiny.save("bart", tmp_path)
    for path in tmp_path.glob("token*"):
        path.unlink()
    with pytest.raises(UserError, match="has no tokenizer.*copy the files"):
        PretrainedFolder(str(tmp_path))
