"""The examples: each has its parts, its commands resolve, and (slow) each runs with few steps."""

import contextlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.examples import small_data

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MODULES = {
    "seqio_cache_tasks": "t0.cli.cache_tasks",
    "t0": "t0.cli.main",
    "t5_mesh_transformer": "t0.cli.mesh_transformer",
}
COMMANDS = (*MODULES, "accelerate", "python")
# Examples that do not train one model with the TensorFlow engine.
OTHERS = {"adapters", "flan_t0", "infer", "mmlu", "seq2seq_trainer"}
NO_PLOT = {"custom_model", "flan_t0", "infer", "mmlu", "seq2seq_trainer"}
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/run.sh"))

# What is appended to each command to make it short, and the example whose model it needs.
VALIDATED = ["--gin.EVAL_PERIOD=2", "--gin.EVAL_STEPS=1"]
FEW_STEPS = {
    "adapters": (["--gin.TRAIN_STEPS=4"], None),
    "pretrain": (["--gin.TRAIN_STEPS=4", *VALIDATED], None),
    "prefix_lm": (["--finetune_steps=4", *VALIDATED], "pretrain"),
    "budget": (["--gin.TRAIN_STEPS=4", *VALIDATED], None),
    "t0_finetune": (["--finetune_steps=4"], "pretrain"),
    "own_prompts": (["--gin.TRAIN_STEPS=4", *VALIDATED], None),
    "custom_model": (["--gin.TRAIN_STEPS=4", *VALIDATED], None),
    "sni": (["--finetune_steps=4"], "pretrain"),
    "qa": (["--finetune_steps=4", *VALIDATED], "pretrain"),
    "translation": (["--finetune_steps=4", *VALIDATED], "pretrain"),
    "infer": (["--gin.BATCH_SIZE=2"], "own_prompts"),
    "mmlu": (["--limit=4"], "own_prompts"),
    "flan_t0": (["--dry_run"], None),
    "seq2seq_trainer": (["--max_steps=4", "--batch=4", "--cpu"], None),
}
RANKED = {"t0_finetune": 5, "own_prompts": 2, "custom_model": 2}  # tasks
DECODED = {  # what is evaluated, its metric, its number of examples in the small data
    "sni": ("sni_def_pos_2", "rougeL", 22),
    "qa": ("qa_squad", "f1", 200),
    "translation": ("short_en_de", "bleu", 50),
}


def command_of(name):
    """The one command that the example's README names: the first indented line."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    return re.search(r"^    (.*)$", text, re.M)[1]


def test_example_folders_are_all_tested_and_listed():
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert folders == NAMES == sorted(FEW_STEPS)
    listed = re.findall(r"^\| \[(\w+)\]\(\1/README\.md\) ", _text(EXAMPLES / "README.md"), re.M)
    assert sorted(listed) == NAMES


def test_mmlu_files_with_a_byte_order_mark_and_missing_files(tmp_path):
    def prepare():
        words = [sys.executable, EXAMPLES / "mmlu" / "prepare.py", tmp_path, tmp_path / "data"]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    assert "no file test/SUBJECT_test.csv" in prepare().stderr
    for split in ("test", "dev"):
        (tmp_path / split).mkdir()
        (tmp_path / split / f"law_{split}.csv").write_text("Why?,a,b,c,d,A\n", "utf-8-sig")
        printed = prepare().stderr
        assert printed == "" if split == "dev" else "law_dev.csv is missing" in printed
    rows = (tmp_path / "data" / "mmlu" / "law" / "train.csv").read_text("utf-8").splitlines()
    assert rows == ["question,A,B,C,D,answer", "Why?,a,b,c,d,A"]


@pytest.mark.parametrize("name", NAMES)
def test_example_has_command_readme_and_plot(name):
    folder = EXAMPLES / name
    data = "" if re.search(r"\bDATA\b", _text(folder / "run.sh")) is None else "DATA=data "
    assert command_of(name) == f"{data}examples/{name}/run.sh"
    assert os.access(folder / "run.sh", os.X_OK)
    assert "](plot.png)" in _text(folder / "README.md") or name in NO_PLOT
    for picture in folder.glob("*.png"):
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) < 80_000
    assert (folder / "plot.png").exists() == (name not in NO_PLOT)
    needed = FEW_STEPS[name][1]
    assert needed is None or f"](../{needed}/README.md)" in _text(folder / "README.md")


@pytest.mark.parametrize("name", NAMES)
def test_example_script_has_no_logic(name):
    logic = r"^\s*(if|for(?! seed in )|while|case|until|function)\b|\|\||&&"
    assert not re.search(logic, _text(EXAMPLES / name / "run.sh"), re.M)


@pytest.mark.parametrize("name", NAMES)
def test_example_command_lines_are_valid(name, tmp_path, monkeypatch, empty_gin, clean_registries):
    import gin

    from t0.config import flags as mesh_flags
    from t0.config import parse
    from t0.config.bindings import bound, macro_defined
    from t0.run import configure

    monkeypatch.syspath_prepend(str(EXAMPLES / name))
    configure.register()
    called = _called(name, tmp_path)
    assert [words[0] for words in called][-1] in ("t0", "seqio_cache_tasks")
    steps = []
    for _, *words in (words for words in called if words[0] == "t5_mesh_transformer"):
        # A trained model's configuration stands for its model here.
        words = [re.sub(r"=.*operative_config", "=models/t5.1.1.mini", word) for word in words]
        flags = mesh_flags.parse(["t5_mesh_transformer", *words])
        gin.clear_config()
        parsed = parse.parse(
            flags.gin_file, flags.gin_param or [], location_prefixes=mesh_flags.gin_folders(flags)
        )
        parse.check_required(parsed, except_for=mesh_flags.macros_set_by_flags(flags))
        assert not parsed.unread_macros
        assert not parsed.deprecated
        if flags.finetune_steps is None and macro_defined("TRAIN_STEPS"):
            steps.append(bound("%TRAIN_STEPS", evaluate=False))
        else:
            steps.append(flags.finetune_steps)
    # What is appended to the command reaches the training, the first to run.
    assert steps[:1] == {"infer": [None], "flan_t0": [], "mmlu": [], "seq2seq_trainer": []}.get(
        name, [4]
    )


def _called(name, tmp_path):
    """Runs the example with programs that only note what they were called with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for command in COMMANDS:
        program = programs / command
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {command} "$@" "" >> "{tmp_path}/called"\n')
        program.chmod(0o755)
    _run(name, tmp_path, path=programs, flags=FEW_STEPS[name][0]).check_returncode()
    blocks = (tmp_path / "called").read_text().strip().split("\n\n")
    return [block.split("\n") for block in blocks]


def _run(name, folder, *, path, flags=()):
    """Runs the README's command in a folder that has examples/ and data/, as a user would."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    line = f"{command_of(name)} {shlex.join(flags)}"
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True
    )


def _run_modules(name, folder, monkeypatch):
    """Runs an example with the commands of this checkout, which need not be installed."""
    programs = folder / "bin"
    programs.mkdir()
    for command, module in MODULES.items():
        program = programs / command
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return _run(name, folder, path=programs, flags=FEW_STEPS[name][0])


def _text(path):
    return path.read_text(encoding="utf-8")


def test_flan_example_has_flans_rates_and_every_prompt_of_its_datasets(monkeypatch):
    from t0.catalogue import catalogue_entries
    from t0.catalogue.listing import read_listing

    monkeypatch.setenv("T0_DATA_DIR", str(EXAMPLES / "flan_t0"))
    listing = read_listing()
    datasets = ("cos_e", "ropes", "social_i_qa", "web_questions")
    tasks = [entry.task for entry in catalogue_entries() if entry.task.dataset in datasets]
    whole = dict(listing.members("t0_flan"))
    for form, k in (("zs", 0), ("fs", 5)):
        # FLAN adds choices to prompts of its type "multiple choice, separated options".
        plain = {f"{task.name}_{k}shot": min(20_000, task.size("train")) for task in tasks}
        hidden = {
            f"{task.name}_{k}shot"
            for task in tasks
            if task.template.answer_choices and not task.template.choices_in_prompt
        }
        options = {name + "_opt" * (name in hidden): rate for name, rate in plain.items()}
        assert dict(listing.members(f"t0_{form}noopt")) == plain
        assert dict(listing.members(f"t0_{form}opt")) == options
        # The four mixtures have equal weights.
        total = sum(plain.values())
        for name, rate in (plain | options).items():
            copies = (name in plain) + (name in options)
            assert whole.pop(name) == pytest.approx(copies * rate / total)
    assert not whole


def test_example_error_message_without_data_names_what_is_missing(tmp_path):
    done = subprocess.run([EXAMPLES / "qa" / "run.sh"], capture_output=True, text=True, env={})
    assert done.returncode != 0
    assert "DATA: names the folder with qa/ and t5.spiece.model" in done.stderr


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs examples in one folder, each once, those that it needs before it."""
    folder = tmp_path_factory.mktemp("examples")
    small_data.lay_out(folder / "data")
    done = {}

    def run(name):
        flags, needed = FEW_STEPS[name]
        if needed:
            run(needed)
        if name not in done:
            done[name] = _run(name, folder, path=Path(sys.executable).parent, flags=flags)
        assert done[name].returncode == 0, done[name].stdout + done[name].stderr
        return folder / "examples_out" / name

    return run


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERS])
def test_example_training_and_its_report(ran, name):
    out = ran(name)
    records = [json.loads(line) for line in (out / "model" / "metrics.jsonl").open()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses
    assert all(0 < loss < 20 and math.isfinite(loss) for loss in losses)
    held_out = [r for r in records if "validation_loss_per_token" in r]
    assert bool(held_out) == (VALIDATED[0] in FEW_STEPS[name][0])
    assert records[-1]["step"] - records[0]["step"] <= 4
    assert list((out / "model").glob("model.ckpt-*.index"))
    assert "Training curves" in _text(out / "report" / "report.html")
    assert (out / "report" / "training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RANKED)
def test_example_rank_evaluation_results(ran, name):
    out = ran(name)
    (results,) = (out / "eval").glob("results_*.json")
    tasks = json.loads(results.read_text())["tasks"]
    assert len(tasks) == RANKED[name]
    for entry in tasks.values():
        assert entry["examples"] >= 20
        assert 0 <= entry["metrics"]["accuracy"] <= 100
    assert (out / "report" / "accuracy.png").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DECODED)
def test_example_decoded_evaluation_results(ran, name):
    task, metric, count = DECODED[name]
    results = max((ran(name) / "eval").glob("decoded_*.json"))  # one, or the best and the last
    entry = json.loads(results.read_text())["tasks"][task]
    assert entry["examples"] == count
    assert 0 <= entry["metrics"][metric] <= 100
    assert (results.parent / entry["predictions"]).is_file()


@pytest.mark.exhaustive
def test_example_predictions_and_checkpoint_conversion(ran):
    out = ran("infer")
    inputs = _text(EXAMPLES / "infer" / "inputs.txt").splitlines()
    for search in ("greedy", "beam"):
        (predictions,) = (out / search).glob("*.jsonl")
        found = [json.loads(line) for line in predictions.open()]
        assert [line["inputs"] for line in found] == inputs
        assert all(line["score"] < 0 for line in found)
    assert (out / "huggingface" / "model.safetensors").exists()


@pytest.mark.exhaustive
def test_example_ranks_questions_with_solved_ones_before(ran):
    out = ran("mmlu")
    (results,) = (out / "eval").glob("results_*.json")
    tasks = json.loads(results.read_text())["tasks"]
    assert list(tasks) == [
        f"mmlu_{subject}_letters_5shot_score_eval"
        for subject in ("harbour_logistics", "kitchen_chemistry")
    ]
    assert all(entry["examples"] == 4 for entry in tasks.values())


@pytest.mark.exhaustive
def test_example_with_own_layer_resumes_and_is_evaluated_again(ran):
    out = ran("custom_model")
    info = _text(out / "model" / "model-info.txt")
    for block in ("encoder/block_001/layer_001", "decoder/block_001/layer_002"):
        wi = rf"{block}/SquaredReluDense/wi/kernel +size \d+ +shape \(d_model=192, d_ff=384\)"
        assert re.search(wi, info)
    assert "DenseReluDense/" not in info.replace("SquaredReluDense/", "")
    flags = ["--gin.TRAIN_STEPS=6", *VALIDATED]
    done = _run("custom_model", out.parents[1], path=Path(sys.executable).parent, flags=flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "restored 48 of 48 variables" in done.stdout
    assert "training from step 4 to 6" in done.stdout
    records = [json.loads(line) for line in (out / "model" / "metrics.jsonl").open()]
    assert records[-1]["step"] == 6
    assert sorted(path.name for path in (out / "eval").glob("results_*.json"))[-1] == (
        "results_6.json"
    )


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory):
    """A Hugging Face folder of a tiny T5 for the vocabulary of the small data."""
    for package in ("accelerate", "torch"):
        pytest.importorskip(package)
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny") / "t5"
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=2048, feed_forward_proj="gated-gelu", decoder_start_token_id=0, **sizes
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_example_seq2seq_trainer_pads_labels_that_the_loss_ignores(tiny_t5, monkeypatch):
    import numpy as np
    import torch
    import transformers

    monkeypatch.syspath_prepend(str(EXAMPLES / "seq2seq_trainer"))
    from train import collate

    records = [
        {"inputs": np.array([5, 6, 7]), "targets": np.array([8, 1])},
        {"inputs": np.array([9, 10, 11, 12, 13]), "targets": np.array([14, 15, 16, 1])},
    ]
    batch = collate(records, {"inputs": 4, "targets": 32}, 0)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0], [9, 10, 11, 12]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[8, 1, -100, -100], [14, 15, 16, 1]]
    model = transformers.T5ForConditionalGeneration.from_pretrained(tiny_t5).eval()
    lengths = {"inputs": 4, "targets": 32}
    with torch.no_grad():
        loss = model(**batch).loss.item()
        parts = [model(**collate([record], lengths, 0)).loss.item() for record in records]
    assert loss == pytest.approx((2 * parts[0] + 4 * parts[1]) / 6, rel=1e-5)


@pytest.mark.slow
def test_example_seq2seq_trainer_trains_on_a_cache(tiny_t5, tmp_path, monkeypatch):
    small_data.lay_out(tmp_path / "data")
    monkeypatch.setenv("MODEL", str(tiny_t5))
    name = "seq2seq_trainer"
    done = _run_modules(name, tmp_path, monkeypatch)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = re.findall(r"'(?:train|eval)_loss': '?([\d.]+)", done.stdout)
    assert len(losses) == 2
    assert all(0 < float(loss) < 20 for loss in losses)
    out = tmp_path / "examples_out" / name
    (results,) = (out / "eval").glob("decoded_*.json")
    entry = json.loads(results.read_text())["tasks"]["qa_squad"]
    assert entry["examples"] == 200
    assert 0 <= entry["metrics"]["f1"] <= 100
    lines = [json.loads(line) for line in (out / "eval" / entry["predictions"]).open()]
    assert {"prediction", "answers"} <= lines[0].keys()


def _weights(path):
    """Canonical name -> weight of a checkpoint; an adapter is merged into its base."""
    from t0.checkpoints import open_source

    with contextlib.closing(open_source(path, keep_slots=False)) as source:
        return {name: source.load(name) for name in source.entries}


@pytest.mark.exhaustive
def test_example_adapters_are_compared_over_seeds_on_an_unchanged_base(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    small_data.lay_out_quickstart(tmp_path / "quickstart_out")
    monkeypatch.setenv("STEPS", "2")
    done = _run_modules("adapters", tmp_path, monkeypatch)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "examples_out" / "adapters"
    weights = {}
    for method, steps in (("ia3", 2), ("lora", 2), ("full", 6)):
        for seed in range(3):
            folder = out / method / str(seed)
            records = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
            assert records[-1]["step"] == steps
            files = {path.name for path in (folder / f"torch.ckpt-{steps}").iterdir()}
            assert ("adapter_model.safetensors" in files) == (method != "full")
            weights[method, seed] = _weights(folder)
    base = _weights(out / "base")
    adapted = {"ia3": ("/k", "/v", "/wo/kernel"), "lora": ("/q", "/v"), "full": ("",)}
    for (method, _), own in weights.items():
        changed = {name for name in base if not np.array_equal(base[name], own[name])}
        assert changed == {name for name in base if name.endswith(adapted[method])}, method
    key = next(name for name in base if name.endswith("/v"))
    assert len({own[key].tobytes() for own in weights.values()}) == 9  # no two seeds are equal
    report = json.loads(_text(out / "report" / "report.json"))
    (row,) = report["accuracies"]
    assert row["accuracies"].keys() == {"base", "ia3", "lora", "full"}
    assert [each["run"] for each in report["differences"]] == ["ia3", "lora", "full"]
    for each in report["differences"]:
        assert each["interval_low"] <= each["difference"] <= each["interval_high"]
