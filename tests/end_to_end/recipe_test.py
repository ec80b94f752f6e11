"""Train 20 steps, rank-evaluate, report: the installed commands, flags as published."""

import json
import re

import numpy as np
import pytest
import sentencepiece
from t5.evaluation.metrics import rank_classification

from tests.evaluation.numpy_t5 import NumpyT5

import tensorflow as tf  # isort: skip (t5 has brought it by now)

TASKS = ("weather_own_choices_score_eval", "weather_which_word_score_eval")


# TensorFlow's, Mesh's, T5's and Python's ways to say more than a user asked for.
NOISE = re.compile(r"WARNING|INFO|ERROR|Warning|Traceback|^[IWE]\d{4} |^\d{4}-\d\d-\d\d ", re.M)


def test_t0_recipe_training_prints_only_progress(trained):
    done, model_dir = trained
    lines = done.stdout.splitlines()
    assert lines[0].startswith("restored ") or lines[0].startswith("no checkpoint: ")
    start = lines.index("training from step 0 to 20: 16 sequences a step, inputs 96, targets 32")
    # Only lines with paths, which come before these, may be longer.
    assert max(map(len, lines[start:-2])) <= 80
    steps = [line for line in lines if line.startswith("step ")]
    first = lines.index(steps[0])
    assert lines[first : first + len(steps)] == steps
    checkpoint, command = lines[first + len(steps) :]
    assert checkpoint == f"trained to step 20: {model_dir}/model.ckpt-20"
    assert f"t0 eval {model_dir}" in command
    shown = [line.split()[1] for line in steps]  # a line every few seconds, and the ends
    assert (shown[0], shown[-1]) == ("1/20", "20/20") and len(shown) <= 20
    # XLA logs two lines of its own when it compiles for the first time.
    own = re.compile(r"WARNING: All log messages before absl|I\d{4} .*XLA")
    assert [line for line in done.stderr.splitlines() if not own.match(line)] == [
        "gin: nothing reads the macro 'model_info': it has no effect",
        "gin: nothing reads the macro 'tokens_per_batch': it has no effect",
        "no --tpu: running on one device (the TPU topology 'v3-512' is ignored)",
        "data: 2 task(s) at inputs 96, targets 32: nothing is cut",
    ]
    metrics = [json.loads(line) for line in (model_dir / "metrics.jsonl").open()]
    assert [line["step"] for line in metrics] == list(range(1, 21))
    losses = [line["loss"] for line in metrics]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert metrics[-1]["learning_rate"] == pytest.approx(0.001)
    assert metrics[-1]["tokens_per_second"] > 0


def test_model_directory_has_checkpoint_gin_file_and_command(trained, world):
    _, model_dir = trained
    assert {path.name for path in model_dir.glob("model.ckpt-*.index")} >= {"model.ckpt-20.index"}
    operative = (model_dir / "operative_config.gin").read_text()
    assert "mesh_train_dataset_fn.use_cached = True" in operative
    assert "mesh_train_dataset_fn.pack = True" in operative
    # Nothing of this machine: the same file serves on a TPU.
    assert "mesh_shape" not in operative.replace("tpu_mesh_shape", "")
    assert "mesh_devices" not in operative
    command = (model_dir / "commands" / "command").read_text()
    assert command.startswith("t5_mesh_transformer ") or "/t5_mesh_transformer " in command
    assert "--gin_file=dataset.gin" in command


def test_rank_evaluation_prints_a_line_for_a_dataset(scored):
    done, results = scored
    lines = done.out.splitlines()
    assert any(line.startswith("restored ") for line in lines)
    [line] = [line for line in lines if f", {30 * len(TASKS)} examples" in line]
    assert f"weather: mean of {len(TASKS)} prompts (" in line
    assert lines[-1].startswith("results: ")
    assert {
        "no --tpu: running on one device (the TPU topology 'v3-128' is ignored)",
        "no checkpoint of step 1,112,200: using the closest, 20",
    } <= set(done.err.splitlines())
    assert not NOISE.search(done.out + done.err)
    assert results["run"]["step"] == 20
    assert set(results["tasks"]) == set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_rank_evaluation_equals_an_independent_forward_pass(task, scored, model_dir, world):
    reader = tf.train.load_checkpoint(str(model_dir / "model.ckpt-20"))
    names = [n for n in reader.get_variable_to_shape_map() if "_slot_" not in n]
    model = NumpyT5({name: reader.get_tensor(name) for name in names})
    text = sentencepiece.SentencePieceProcessor(model_file=str(world.folder / "vocab.model"))
    with (model_dir / "validation_eval" / "scores" / f"{task}_20.jsonl").open() as lines:
        examples = [json.loads(line) for line in lines]
    rows = [json.loads(line) for line in (world.folder / "data/weather/validation.jsonl").open()]
    assert len(examples) == len(rows) == 30
    targets, wanted = [], []
    for example, row in zip(examples, rows, strict=True):
        assert row["report"] in example["inputs"]
        ids = text.encode(example["inputs"])[:96]
        for number, choice in enumerate(example["choices"]):
            score = model.log_likelihood(ids, [*text.encode(choice["text"]), 1])
            assert choice["log_likelihood"] == pytest.approx(score, abs=1e-4)
            right = choice["text"] == ("rain", "snow", "wind", "heat")[row["label"]]
            targets.append(((example["idx"], number), right, 1.0, choice["tokens"]))
            wanted.append(score)
    _, results = scored
    expected = rank_classification(targets, wanted)["accuracy"]
    assert results["tasks"][task]["metrics"]["accuracy"] == pytest.approx(expected)
    judged = np.mean([example["prediction"] == example["gold"] for example in examples])
    assert results["tasks"][task]["metrics"]["accuracy"] == pytest.approx(100 * judged)


@pytest.mark.slow
def test_report_of_rank_evaluation_results(scored, model_dir, world):
    out = world.folder / "report"
    done = world.run(
        *("t0", "report", str(model_dir / "validation_eval"), "--output", str(out)),
        *("--metrics", str(model_dir / "metrics.jsonl")),
    )
    assert done.returncode == 0, done.stderr
    text = "".join(path.read_text() for path in out.glob("*.csv"))
    assert "which word" in text
    assert "own choices" in text
    assert list(out.glob("*.html"))
