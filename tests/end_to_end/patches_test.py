"""Imports and runs leave no changes of other packages' modules behind, except patches."""

import json
import subprocess
import sys

import pytest

from tests.end_to_end.command_lines import EVALUATE, LENGTHS, TRAIN
from tests.helpers.command_server import ROOT

pytestmark = pytest.mark.slow
FLOAT32 = "--gin_param=get_variable_dtype.master_dtype = 'float32'"


@pytest.fixture(scope="module")
def changes(world, tmp_path_factory):
    """What a process of its own finds changed: by patches, imports, a training run, a scoring."""
    to_model = [f"--model_dir={tmp_path_factory.mktemp('model')}"]
    to_model += ["--module_import=t0.seqio_tasks"]
    train = [*to_model, *TRAIN, "--gin_param=run.train_steps = 2"]
    score = [*to_model, *EVALUATE, FLOAT32, "--gin_param=run.batch_size = 4"]
    score += [f"--gin_param=run.sequence_length = {LENGTHS}"]
    score += ["--gin_param=mesh_eval_dataset_fn.num_eval_examples = 4"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.end_to_end.watched_modules",
            json.dumps({"train": train, "score": score}),
        ],
        cwd=ROOT,
        env=world.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stderr
    assert "scored 8 choices" in done.stderr
    return json.loads(done.stdout)


def test_compat_import_of_modules_patches_nothing(changes):
    assert changes["imports"] == []


@pytest.mark.parametrize("run", ["train", "score"])
def test_compat_run_leaves_no_patch_behind(changes, run):
    assert not changes[run]
