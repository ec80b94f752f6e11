"""The commands of T5X's guides, with other paths and small sizes, run to their end.

recipe_test.py does the same with the two commands of T0.
"""

import json
import shlex
import string

import pytest

from tests.end_to_end.t5x_guides import (
    EVALUATION,
    FILES,
    INFERENCE,
    LENGTHS,
    MINI,
    SHORT,
    TRAINING,
    file_text,
)
from tests.helpers.cases import one_quick


@pytest.fixture(scope="module")
def t5x_command(command, prepared_tfds, tmp_path_factory):
    """Runs a command of T5X's guides, and returns what it printed and its folder of results."""
    project = tmp_path_factory.mktemp("project")
    for name in FILES:
        (project / name).write_text(file_text(name))

    def run(text, *more, checkpoint=""):
        folder = tmp_path_factory.mktemp("results")
        names = dict.fromkeys(("MODEL_DIR", "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR"), folder)
        filled = string.Template(text).substitute(
            names, PROJECT_DIR=project, CHECKPOINT_PATH=checkpoint
        )
        words = [*shlex.split(filled), f"--tfds_data_dir={prepared_tfds}", *more]
        done = command(*words, tasks=False, cwd=folder)
        assert done.status == 0, done.err
        return done, folder

    return run


@pytest.fixture(scope="module")
def pretraining(t5x_command):
    """What the guide's first command prints, and its model directory."""
    words, last = TRAINING["pretraining"]
    return t5x_command(words, *SHORT, f"--gin.TRAIN_STEPS={last}")


@pytest.fixture(scope="module")
def t5x_checkpoint(pretraining):
    return pretraining[1] / "model.ckpt-2"


@pytest.mark.parametrize("name", one_quick(TRAINING))
def test_t5x_training_command_runs_to_its_end(t5x_command, pretraining, t5x_checkpoint, name):
    words, last = TRAINING[name]
    more = [*SHORT, f"--gin.TRAIN_STEPS={last}"]
    done, folder = (
        pretraining
        if name == "pretraining"
        else t5x_command(words, *more, checkpoint=t5x_checkpoint)
    )
    assert f"trained to step {last}: {folder}/model.ckpt-{last}" in done.out
    assert f"training from step {last - 2} to {last}: 2 sequences" in done.out
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert [line["step"] for line in metrics] == [last - 1, last]
    assert "has no effect" not in done.err
    if name == "deterministic training":
        assert (folder / "model.ckpt-1.index").is_file()
        assert "RANDOM_SEED = 42" in done.operative
        assert "mesh_train_dataset_fn.seed = 42" in done.operative
        assert "skipped T5X's 'utils.SaveCheckpointConfig.save_dataset'" in done.err


def test_t5x_evaluation_command_runs_to_its_end(t5x_command, t5x_checkpoint):
    more = [*MINI, "--gin.MAX_DECODE_LENGTH=4", "--gin.JSON_WRITE_N_RESULTS=1"]
    _, folder = t5x_command(EVALUATION, *more, checkpoint=t5x_checkpoint)
    content = json.loads((folder / "decoded_2.json").read_text())
    assert content["run"]["split"] == "test"
    entry = content["tasks"]["wmt_t2t_ende_v003"]
    assert entry["examples"] == 2
    assert "bleu" in entry["metrics"]
    assert len((folder / entry["predictions"]).read_text().splitlines()) == 1


def test_t5x_inference_command_runs_to_its_end(t5x_command, t5x_checkpoint):
    _, folder = t5x_command(INFERENCE, *MINI, LENGTHS, checkpoint=t5x_checkpoint)
    (predictions,) = folder.glob("*.jsonl")
    rows = [json.loads(line) for line in predictions.open()]
    assert [row["inputs"] for row in rows] == [
        f"translate English to German: It rains {n}." for n in range(2)
    ]
