"""Where a run ends, when it is said in steps beyond a checkpoint or in passes over the data."""

import json

import gin
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from t0.config import parse
from t0.config.flags import from_values
from t0.errors import UserError
from t0.feeding import manifest
from t0.feeding.manifest import Manifest, Start
from t0.run import train_steps
from t0.run.flag_checks import check_steps
from t0.training.model_directory import ESTIMATOR_FILE
from tests.feeding import tiny_caches
from tests.training import tiny_training as tiny

PARAMS = [
    "run.train_dataset_fn = @made_up_for_steps",
    "run.sequence_length = {'inputs': 12, 'targets': 6}",
    "run.batch_size = 8",
    "run.mesh_shape = ''",
]


@gin.configurable("made_up_for_steps")
def made_up_for_steps(**arguments):
    return tiny.made_up_data(pack=arguments["sequence_length"]["inputs"] == 12)


@gin.configurable("unknown_for_steps")
def unknown_for_steps(**arguments):
    return tf.data.Dataset.from_tensors({"inputs": [1], "targets": [1]})


def plan_steps(folder, *params, finetune_steps=None, epochs=None):
    gin.clear_config()
    parse.parse([], [*PARAMS, *params])
    return train_steps.plan_steps(str(folder), finetune_steps=finetune_steps, epochs=epochs)


def save(folder, step, began=None):
    """A checkpoint of nothing but its step; one of our own loop knows where the run began."""
    folder.mkdir(exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable(np.int64(step), name="global_step", use_resource=False)
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(folder / "model.ckpt"), global_step=step)
    if began is not None:
        record = {"began": began, "seed": 0, "position": None, "own": [step]}
        np.savez(path + ".resume.npz", record=np.array(json.dumps(record)))
    return path


def test_finetune_steps_of_new_model_count_from_zero(tmp_path):
    found = plan_steps(tmp_path, finetune_steps=1200)
    assert found[0] == 1200
    assert found[1] == "--finetune_steps=1,200: from 0 to 1,200"


@pytest.mark.parametrize("name", ["run.init_checkpoint", "tpu_estimator_model_fn.init_checkpoint"])
def test_finetune_steps_count_from_the_initial_checkpoint(tmp_path, name):
    initial = save(tmp_path / "initial", 1_100_000)
    found = plan_steps(tmp_path / "new", f"{name} = '{initial}'", finetune_steps=12_200)
    assert found[0] == 1_112_200
    assert "from 1,100,000 to 1,112,200" in found[1]


def test_finetune_steps_of_resumed_run_keep_the_first_end(tmp_path):
    # Its initial checkpoint may be gone by now.
    save(tmp_path, 1_100_700, began=1_100_000)
    gone = "run.init_checkpoint = '/no/model.ckpt-1100000'"
    assert plan_steps(tmp_path, gone, finetune_steps=12_200)[0] == 1_112_200


def test_finetune_steps_count_from_checkpoint_of_another_loop(tmp_path):
    save(tmp_path, 500)
    assert plan_steps(tmp_path, finetune_steps=100)[0] == 600
    # A TPU's checkpoints have no resume file; the manifest of the data has the first step.
    spec = tiny_caches.data_spec(tmp_path / "cache")
    manifest.publish(str(tmp_path), Manifest(spec, 8, Start(step=450), {}))
    assert plan_steps(tmp_path, finetune_steps=100)[0] == 550
    record = '{"step": 500, "seconds": 7.5, "began": 420}'
    (tmp_path / ESTIMATOR_FILE).write_text(record)
    assert plan_steps(tmp_path, finetune_steps=100)[0] == 520


def test_epochs_are_passes_over_packed_examples(tmp_path):
    found = plan_steps(tmp_path, epochs=3)
    batches = tiny.made_up_data()
    next(batches.batches(8))
    each = 8 * batches.filling.examples / batches.filling.rows
    assert each > 8  # several examples share a row
    assert found[0] == int(np.ceil(3 * 70 / each))
    assert found[1].startswith("--epochs=3: 70 examples at ")
    # Unpacked, a row is an example: 70 / 8 steps a pass.
    unpacked = "run.sequence_length = {'inputs': 13, 'targets': 6}"
    assert plan_steps(tmp_path, unpacked, epochs=2)[0] == 18
    assert plan_steps(tmp_path, unpacked, epochs=0.5)[0] == 5


def test_epochs_count_from_the_start_of_the_run(tmp_path):
    save(tmp_path, 50, began=40)
    unpacked = "run.sequence_length = {'inputs': 13, 'targets': 6}"
    found = plan_steps(tmp_path, unpacked, epochs=2)
    assert found[0] == 58
    assert found[1].endswith("are 18 steps, from 40 to 58")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"finetune_steps": 5, "epochs": 1.0}, "--finetune_steps and --epochs both set"),
        ({"finetune_steps": 0}, "--finetune_steps is 0; expected a number above 0"),
        ({"epochs": -1.0}, "--epochs is -1.0; expected a number above 0"),
    ],
)
def test_finetune_steps_and_epochs_with_wrong_numbers_are_refused(asked, message):
    with pytest.raises(UserError, match=message):
        check_steps(from_values(asked))


def test_epochs_of_data_of_unknown_size_are_refused(tmp_path):
    with pytest.raises(
        UserError, match="is unknown for this .* Cache its tasks, or use --finetune_steps"
    ):
        plan_steps(tmp_path, "run.train_dataset_fn = @unknown_for_steps", epochs=1)
