"""Mistakes that users make, by the commands: each is one message that says what to do."""

import pytest
from command_lines import TRAIN, message

FINETUNE = "--gin_file=runs/finetune.gin"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([FINETUNE, "--gin.TRAIN_STEP=5"], ["macro 'TRAIN_STEP'", "Did you mean TRAIN_STEPS?"]),
        ([FINETUNE, "--gin.MIXTURE_OR_TASK_NAME=weather_train"], ["Text needs quotes of its own"]),
        (["--gin_file=runs/finetun.gin"], ["not found", "runs/finetune.gin"]),
        (
            [*TRAIN, "--gin_param=run.sequence_length = {'input': 96, 'targets': 32}"],
            ["unknown feature 'input'", "Did you mean 'inputs'?", "weather_train has inputs and"],
        ),
        (
            [*TRAIN, "--gin_param=run.mesh_shape = 'model:3'"],
            ["the mesh model:3 cannot split", "model may be 1, 2"],
        ),
        ([*TRAIN, "--gin.utils.DatasetConfig.seed=3"], ["is T5X's", "RANDOM_SEED"]),
    ],
)
def test_mistake_is_one_message(command, tmp_path, words, parts):
    text = message(command(f"--model_dir={tmp_path / 'model'}", *words))
    for part in parts:
        assert part in text


def test_files_and_flags_of_t5x(command, tmp_path):
    words = ["--gin_file=t5_1_1/small.gin", "--gin_file=t5x/configs/runs/pretrain.gin"]
    words += ["--gin.MIXTURE_OR_TASK_NAME='weather_train'", "--gin.TRAIN_STEPS=3", "--dry_run"]
    done = command(f"--model_dir={tmp_path}", *words, f"--tfds_data_dir={tmp_path}")
    assert done.status == 0, done.err
    assert "models/t5.1.1.small.gin" in done.out
    assert "runs/pretrain.gin" in done.out


def test_caching_without_a_module_means_the_catalogue(server, world, tmp_path):
    words = ["--tasks=weather_retell", f"--output_cache_dir={tmp_path}", "--splits=test"]
    done = server.run(*words, "--num_workers=0", program="seqio_cache_tasks")
    assert done.status == 0, done.err
    assert (tmp_path / "weather_retell" / "COMPLETED").is_file()
