"""The programs of docs/python.md run as they are printed."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from t0.testing import train_vocabulary

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
INIT = ["-m", "t0.cli.main", "init", "reviews", "reviews.csv", "--vocab=t5.spiece.model"]
CACHE = ["-m", "t0.cli.cache_tasks", "--output_cache_dir=reviews/cache", "--num_workers=0"]


def run(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A folder with the tutorial's folder `reviews`, its cache and a vocabulary."""
    folder = tmp_path_factory.mktemp("python")
    rows = [(f"a {['dull', 'fine'][i % 2]} film {i}", ["bad", "good"][i % 2]) for i in range(40)]
    with (folder / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "stars"), *rows])
    texts = [text for text, _ in rows]
    train_vocabulary(folder / "t5.spiece.model", [*texts, "Which stars is it: bad, good?"], size=90)
    run(folder, *INIT)
    return folder


def test_python_page_renders_prompts(tmp_path):
    assert len(PROGRAMS) == 5
    out = run(tmp_path, "-c", PROGRAMS[0])
    assert "GPT-3 style: 'It rains.\\nQuestion: It is wet. True or False?' -> 'True'" in out
    assert len(out.splitlines()) == 10


@pytest.mark.usefixtures("clean_registries")
def test_python_page_makes_a_seqio_task(reviews, monkeypatch, capsys):
    monkeypatch.chdir(reviews)
    exec(PROGRAMS[1], {})
    first, second = capsys.readouterr().out.splitlines()
    assert re.match(
        r"b'a (dull|fine) film \d+\\n\\nWhich stars is it: bad, good\?' \[.* 1\]", first
    )
    assert first != second


def test_python_page_ranks_choices_with_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["<end>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    model.train_from_iterator(["Which weather? rain", "snow and wind"], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")
    fast.save_pretrained(tmp_path)
    torch.manual_seed(3)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = transformers.GPT2Config(vocab_size=len(fast), **sizes)
    gpt2 = transformers.GPT2LMHeadModel(config).eval()
    gpt2.save_pretrained(tmp_path)
    program = PROGRAMS[2].replace('"/models/gpt2"', repr(str(tmp_path)))
    assert program != PROGRAMS[2]
    expected = {}
    for choice in ("rain", "snow", "wind"):
        context = fast.encode("Which weather?")
        whole = fast.encode(f"Which weather? {choice}")
        logits = gpt2(torch.tensor([whole])).logits[0].log_softmax(-1)
        scored = range(len(context), len(whole))
        expected[choice] = sum(logits[place - 1, whole[place]].item() for place in scored)
    printed = re.findall(r"(\w+): (-[\d.]+) nats", run(tmp_path, "-c", program))
    assert [choice for choice, _ in printed] == sorted(expected, key=lambda c: -expected[c])
    for choice, nats in printed:
        assert float(nats) == pytest.approx(expected[choice], abs=2e-3)


def test_python_page_reads_a_cache_in_pytorch(reviews):
    pytest.importorskip("torch")
    run(reviews, *CACHE)
    out = run(reviews, "-c", PROGRAMS[3])
    rows = [int(count) for count in re.findall(r"'inputs': \((\d+), ", out)]
    train = (reviews / "reviews" / "data" / "reviews" / "train.jsonl").read_text()
    assert sum(rows) == len(train.splitlines())
    assert max(rows) == 16


def test_python_page_tests_a_preprocessor(tmp_path):
    names = {}
    exec(PROGRAMS[4], names)
    names["test_ask"](tmp_path)
