"""The programs that compare training runs: bfloat16 beside float32, optimizers and schedules."""

import ast
import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from tests.training import tiny_training as tiny

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import budgets  # noqa: E402
import training_bands as bands  # noqa: E402

from t0 import testing  # noqa: E402
from t0.cli import torch_run  # noqa: E402
from t0.config import flags, parse  # noqa: E402
from t0.config.bindings import bound  # noqa: E402
from t0.errors import UserError  # noqa: E402
from t0.run import configure  # noqa: E402

configure.register()

NANOT5 = {"4h": (13_333, 1_666), "8h": (26_666, 3_332), "16h": (53_332, 6_666)}
NANOT5["24h"] = (79_998, 10_000)


@pytest.mark.slow
def test_bfloat16_stays_within_the_stated_band_of_float32():
    batches = tiny.first_batches(4 * bands.WINDOW)
    wide = tiny.Steps(tiny.training_spec(rate=0.01))
    narrow = tiny.Steps(tiny.training_spec(rate=0.01), activations=tf.bfloat16)
    narrow.load(wide.weights())
    curves = [
        {step: steps.step(batch)["loss"] for step, batch in enumerate(batches)}
        for steps in (wide, narrow)
    ]
    assert bands.means(curves[0])[-1] < 0.9 * bands.means(curves[0])[0]  # it learns
    assert 0 < bands.largest_difference(*curves) < bands.BAND


def test_training_curves_are_compared_by_windows():
    curve = dict.fromkeys(range(1, 51), 4.0)
    other = curve | dict.fromkeys(range(26, 51), 4.2)
    assert bands.largest_difference(curve, other) == pytest.approx(0.05)
    assert bands.means({3: 1.0, 1: 3.0, 2: 2.0}, window=2) == [2.5]


@pytest.mark.parametrize("hours", NANOT5)
def test_nanot5_budget_gin_files_have_its_settings(hours):
    parsed = parse.parse(
        [f"runs/budget_{hours}.gin"], ["MIXTURE_OR_TASK_NAME='a'", "MODEL_DIR='m'"]
    )
    parse.check_required(parsed)
    assert parsed.unread_macros == ()
    steps, warmup_steps = NANOT5[hours]
    wanted = {
        "run.train_steps": steps,
        "cosine_with_warmup.warmup_steps": warmup_steps,
        "train_loop.max_hours": float(hours.rstrip("h")),
        "run.batch_size": ("sequences_per_batch", 256),
        "run.sequence_length": {"inputs": 512, "targets": 114},
        "serialize_num_microbatches.tokens_per_microbatch_per_replica": 128 * 512,
        "cosine_with_warmup.peak": 0.02,
        "cosine_with_warmup.begin": 0.5,
        "cosine_with_warmup.end": 1e-5,
        "apply_updates.clip_gradient_norm": 1.0,
        "train_loop.log_every_steps": 100,
        "Unitransformer.d_model": 768,
    }
    assert {name: bound(name) for name in wanted} == wanted
    assert bound("%dropout_rate", evaluate=False) == 0.0


def test_nanot5_gin_file_takes_optimizer_and_schedule_macros():
    words = ["MIXTURE_OR_TASK_NAME='a'", "MODEL_DIR='m'", "BATCH_SIZE=144"]
    words += ["OPTIMIZER=@optimize.AdafactorOptimizer", "SCHEDULE=@t0.rsqrt_then_linear"]
    parsed = parse.parse(["runs/nanot5.gin"], words)
    parse.check_required(parsed)
    assert bound("run.train_steps") == 65536
    assert bound("run.batch_size") == ("sequences_per_batch", 144)
    chosen = [bound(f"%{name}", evaluate=False) for name in ("OPTIMIZER", "SCHEDULE")]
    assert [str(value).rpartition(".")[2] for value in chosen] == [
        "AdafactorOptimizer",
        "rsqrt_then_linear",
    ]


def test_nanot5_fine_tuning_starts_from_a_given_step():
    words = ["MODEL_DIR='m'", "INIT_CHECKPOINT='/i/model.ckpt-65536'", "TRAIN_STEPS=84366"]
    parsed = parse.parse(["runs/nanot5_sni.gin"], words)
    with pytest.raises(UserError, match="START_STEP"):
        parse.check_required(parsed)
    parse.check_required(parse.parse(["runs/nanot5_sni.gin"], [*words, "START_STEP=65536"]))
    wanted = {
        "AdamWOptimizer.offset": 65536,
        "AdamWOptimizer.epsilon": 1e-6,
        "constant_learning_rate.learning_rate": 5e-5,
        "mesh_train_dataset_fn.pack": False,
        "mesh_train_dataset_fn.mixture_or_task_name": "sni_def_pos_2",
        "run.batch_size": ("sequences_per_batch", 8),
        "run.sequence_length": {"inputs": 1024, "targets": 128},
        "sublayer_dropout.dropout_rate": 0.0,
        "Unitransformer.d_model": 768,
    }
    assert {name: bound(name) for name in wanted} == wanted


def nanot5_cells():
    """Yields (run file, nanoT5's options, our flags) of the tables in docs/pretraining.md."""
    page = (BENCHMARKS.parent / "docs" / "pretraining.md").read_text()
    section = page.partition("### nanoT5's command line\n")[2].partition("\n### ")[0]
    pretraining, fine_tuning = re.findall(r"^\| nanoT5 \| here \|\n((?:\|.*\n)+)", section, re.M)
    for name, table in (("nanot5", pretraining), ("nanot5_sni", fine_tuning)):
        for line in table.splitlines()[1:]:
            options, ours = re.fullmatch(r"\| `(.+?)`.* \| `(.+)` \|", line).groups()
            yield f"runs/{name}.gin", options, ours


# Of nanoT5's guide.
NANOT5_OPTIONS = {"optim.name", "optim.batch_size", "optim.lr_scheduler", "optim.grad_acc", "task"}
NANOT5_OPTIONS |= {f"model.{name}" for name in ("compile", "name", "random_init")}
NANOT5_OPTIONS.add("model.checkpoint_path")


def test_nanot5_command_line_table_has_the_options_of_its_guide():
    found = {word.partition("=")[0] for _, options, _ in nanot5_cells() for word in options.split()}
    assert found >= NANOT5_OPTIONS


@pytest.mark.parametrize(("file", "options", "ours"), [*nanot5_cells()])
def test_nanot5_command_line_table_cell_parses(file, options, ours):
    words = shlex.split(ours)
    if "--compile" in words:  # a flag of the PyTorch engine
        arguments, words = torch_run.make_parser().parse_known_args(words)
        assert arguments.compile
    values = flags.parse(["t5_mesh_transformer", *words])
    needed = ["MODEL_DIR='m'"]
    if file == "runs/nanot5.gin":
        needed.append("MIXTURE_OR_TASK_NAME='a'")
    else:
        needed += ["START_STEP=1", "INIT_CHECKPOINT='/i/model.ckpt-1'", "TRAIN_STEPS=2"]
    parsed = parse.parse([file], [*needed, *(values.gin_param or [])])
    parse.check_required(parsed)
    assert not parsed.unread_macros
    assert not parsed.deprecated
    for binding in values.gin_param or []:
        name, value = binding.split("=", 1)
        found = bound(f"%{name}" if name.isupper() else name, evaluate=False)
        if value.startswith("@"):
            assert str(found).rpartition(".")[2] == value.rpartition(".")[2]
        else:
            assert found == ast.literal_eval(value)


def test_training_budget_of_fifteen_minutes_gin_file():
    parse.parse(["runs/budget_15min_cpu.gin"], [])
    assert bound("train_loop.max_hours") == 0.25
    assert bound("run.sequence_length") == {"inputs": 128, "targets": 29}


def test_benchmark_table_of_optimizers_and_schedules():
    cells = [budgets.Cell(o, s) for o in budgets.OPTIMIZERS for s in budgets.SCHEDULES]
    found = {cell: [budgets.Outcome(2.0 + n, 0.5), budgets.Outcome(2.5 + n, 0.7)] for n, cell in
             enumerate(cells)}  # fmt: skip
    assert budgets.table(found).splitlines() == [
        "| | inverse square root | cosine | s/step |",
        "|---|---|---|---|",
        "| Adafactor | 2.250 (2.000 to 2.500) | 3.250 (3.000 to 3.500) | 0.60 |",
        "| AdamW, RMS scaling | 4.250 (4.000 to 4.500) | 5.250 (5.000 to 5.500) | 0.60 |",
    ]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A folder of text and a vocabulary of it."""
    folder = tmp_path_factory.mktemp("documents")
    rng = random.Random(1)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrst", k=rng.randrange(2, 7))) for _ in range(300)
    ]
    for split, count in (("train", 120), ("validation", 30)):
        path = folder / "text" / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        texts = (" ".join(rng.choices(words, k=150)) for _ in range(count))
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    testing.train_vocabulary(folder / "vocab.model", words, size=200)
    return folder


def program(name, documents, *words, monkeypatch):
    monkeypatch.setenv("T0_VOCAB", str(documents / "vocab.model"))
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), f"--data_dir={documents}"]
        + ["--model=t5.1.1.tiny", *words],
        capture_output=True,
        text=True,
    )


@pytest.mark.exhaustive
def test_benchmark_of_bfloat16_bands_on_a_short_run(documents, tmp_path, monkeypatch):
    words = [f"--out={tmp_path}", "--steps=50"]
    done = program("training_bands.py", documents, *words, monkeypatch=monkeypatch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"bfloat16 stays within 0\.\d\d% of float32; the stated band is 1%", done.stdout
    )


@pytest.mark.exhaustive
def test_benchmark_of_training_budgets_on_a_short_run(documents, tmp_path, monkeypatch):
    words = [f"--out={tmp_path}", "--steps=4", "--seeds", "0", "--validation_batches=1"]
    words += ["--gin_param=train_loop.log_every_steps = 2"]
    done = program("budgets.py", documents, *words, monkeypatch=monkeypatch)
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.index("| | inverse") :]
    values = re.findall(r"\d\.\d{3}", table)
    assert len(set(values)) == 4
    assert len(list(tmp_path.glob("*/0/metrics.jsonl"))) == 4
