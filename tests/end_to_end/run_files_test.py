"""The run files as their users call them: pretrain, fine-tune, go on, evaluate, and --dry_run."""

import json

import pytest

from tests.end_to_end.command_lines import LENGTHS, ONE_LAYER

TINY = ["--gin_file=models/t5.1.1.tiny.gin", ONE_LAYER]


def gin(**macros):
    return [f"--gin.{name}={value!r}" for name, value in macros.items()]


def training(folder, steps, **more):
    values = {"MODEL_DIR": str(folder), "TRAIN_STEPS": steps, "BATCH_SIZE": 4, **more}
    return gin(MIXTURE_OR_TASK_NAME="weather_train", TASK_FEATURE_LENGTHS=LENGTHS, **values)


@pytest.fixture(scope="module")
def pretrained_here(command, world):
    folder = world.folder / "run_files" / "pretrained"
    done = command("--gin_file=runs/pretrain.gin", *TINY, *training(folder, 3))
    assert done.status == 0, done.err
    return done, folder


@pytest.fixture(scope="module")
def finetuned(command, pretrained_here, world):
    folder = world.folder / "run_files" / "finetuned"
    start = str(pretrained_here[1] / "model.ckpt-3")
    words = ["--gin_file=runs/finetune.gin", *TINY, *gin(INIT_CHECKPOINT=start)]
    done = command(*words, *training(folder, 6))
    assert done.status == 0, done.err
    return words, done, folder


@pytest.mark.slow
def test_pretraining_begins_with_random_weights(pretrained_here):
    done, folder = pretrained_here
    assert "training from step 0 to 3: 4 sequences" in done.out
    assert (folder / "model.ckpt-3.index").exists()
    assert "--gin.TRAIN_STEPS=3" in (folder / "commands" / "command").read_text()
    rates = [json.loads(line)["learning_rate"] for line in (folder / "metrics.jsonl").open()]
    assert rates == pytest.approx([0.01] * 3)  # 1 / sqrt(10,000 steps of warmup)
    assert "\ndropout_rate = %DROPOUT_RATE" in (folder / "operative_config.gin").read_text()


@pytest.mark.slow
def test_fine_tuning_begins_with_the_checkpoint(finetuned):
    _, done, folder = finetuned
    assert "training from step 3 to 6" in done.out
    assert "\nstarting from " in done.err
    rates = [json.loads(line)["learning_rate"] for line in (folder / "metrics.jsonl").open()]
    assert rates == pytest.approx([0.001] * 3)
    operative = (folder / "operative_config.gin").read_text()
    # The run's dropout, though the model's file, with none, was named last.
    assert "DROPOUT_RATE = 0.1" in operative
    assert "\ndropout_rate = %DROPOUT_RATE" in operative
    # Nothing of this folder: the config serves for others.
    assert str(folder) not in operative


@pytest.mark.slow
def test_fine_tuning_resumes_with_more_steps(finetuned, command):
    words, _, folder = finetuned
    done = command(*words, *training(folder, 7))
    assert done.status == 0, done.err
    assert "training from step 6 to 7" in done.out


@pytest.mark.slow
def test_evaluation_gin_file_of_one_checkpoint(finetuned, command, tmp_path):
    _, _, folder = finetuned
    before = sorted(folder.rglob("*"))
    out = tmp_path / "out"
    words = gin(MIXTURE_OR_TASK_NAME="weather_which_word", EVAL_OUTPUT_DIR=str(out))
    words += gin(CHECKPOINT_PATH=str(folder / "model.ckpt-6"), MAX_DECODE_LENGTH=3)
    config = f"--gin_file={folder}/operative_config.gin"
    done = command("--gin_file=runs/eval.gin", config, *words)
    assert done.status == 0, done.err
    assert "eval/weather_which_word" in done.err
    assert len((out / "weather_which_word_6_predictions").read_text().splitlines()) == 30
    assert (out / "commands" / "command").exists()
    assert sorted(folder.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("source", ["task", "file"])
def test_inference_gin_file_of_one_checkpoint(finetuned, command, tmp_path, source):
    _, _, folder = finetuned
    before = sorted(folder.rglob("*"))
    lines = tmp_path / "lines.txt"
    lines.write_text("much rain today\nmuch snow today in Oslo\n")
    what = {"task": gin(MIXTURE_OR_TASK_NAME="weather_which_word", MIXTURE_OR_TASK_SPLIT="test")}
    what["file"] = gin(INPUT_FILE=str(lines))
    words = gin(CHECKPOINT_PATH=str(folder), INFER_OUTPUT_DIR=str(tmp_path / "out"))
    words += gin(TASK_FEATURE_LENGTHS={"inputs": 96, "targets": 4})
    config = f"--gin_file={folder}/operative_config.gin"
    done = command("--gin_file=runs/infer.gin", config, *words, *what[source])
    assert done.status == 0, done.err
    (predictions,) = (tmp_path / "out").glob("*.jsonl")
    found = [json.loads(line) for line in predictions.open()]
    assert len(found) == {"task": 8, "file": 2}[source]
    assert all({"inputs", "prediction", "score"} <= line.keys() for line in found)
    assert (tmp_path / "out" / "commands" / "command").exists()
    assert sorted(folder.rglob("*")) == before


def test_dry_run_shows_sources_of_values_and_writes_nothing(command, tmp_path):
    for run in ("pretrain", "finetune"):
        extra = gin(INIT_CHECKPOINT="/no/model.ckpt-1") if run == "finetune" else []
        words = [f"--gin_file=runs/{run}.gin", *TINY, *training(tmp_path / "model", 5), *extra]
        done = command(*words, "--dry_run", "--seed=7", tasks=False)
        assert done.status == 0, done.err
        assert done.err == "dry run: nothing is written or trained\n"
        lines = done.out.splitlines()
        assert "BATCH_SIZE = 4  # the command line" in lines
        assert "train_loop.seed = 7  # --seed" in lines
        assert any(line.startswith("d_ff = 64  # models/t5.1.1.tiny.gin:") for line in lines)
        assert any(
            line.startswith("run.batch_size = ('sequences_per_batch', 4)  # runs/")
            and line.endswith("; BATCH_SIZE: the command line")
            for line in lines
        )
        assert "run.autostack = True  # default" in lines
    assert not list(tmp_path.iterdir())
