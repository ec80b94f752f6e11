"""T5's gin files that change the model or read a task's text: adapters, `infer_from_task.gin`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.end_to_end.command_lines import EVALUATE, TRAIN, TWO_LAYERS, message

ADAPTERS = ["--gin_file=task_adapter.gin", "--gin_param=run.train_steps = 3"]
ADAPTERS += ["--gin_param=mesh_train_dataset_fn.use_cached = True"]  # rendering takes longer
LATEST = ["--gin_param=run.eval_checkpoint_step = -1"]
LATEST += ["--gin_param=get_variable_dtype.master_dtype = 'float32'"]


def variables(checkpoint):
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def adapters(command, pretrained, tmp_path_factory):
    """A run that trained adapters to step 3, with a checkpoint of each step; its command."""
    folder = tmp_path_factory.mktemp("adapters")
    words = [f"--model_dir={folder}", *TRAIN, *ADAPTERS, f"--checkpoint={pretrained}"]
    words.append("--gin_param=run.save_checkpoints_steps = 1")
    done = command(*words)
    assert done.status == 0, done.err
    return done, folder, words


def check_adapters(pretrained, folder, first, second):
    """Only the adapters differ between two checkpoints; all else is as it was pretrained."""
    before = variables(f"{pretrained}/model.ckpt-1")
    after, later = (variables(f"{folder}/model.ckpt-{step}") for step in (first, second))
    new = {name for name in after.keys() - before.keys() if "_slot_" not in name}
    assert len(new) == 2 * 4  # in a block of each stack: wi, wi_1 or its like, wo and the norm
    assert all("/task_adapter/" in name for name in new)
    assert all(not np.array_equal(after[name], later[name]) for name in new if "norm" not in name)
    weights = {name for name in before if "_slot_" not in name and name != "global_step"}
    assert all(np.array_equal(before[name], later[name]) for name in weights)


def test_adapters_are_the_only_weights_trained(command, pretrained, adapters):
    done, folder, _ = adapters
    assert "left random: " in done.out
    assert "training from step 1 to 3" in done.out
    check_adapters(pretrained, folder, 2, 3)
    # Rank evaluation reads the adapters with the same gin file.
    done = command(f"--model_dir={folder}", *EVALUATE, ADAPTERS[0], *LATEST)
    assert done.status == 0, done.err
    assert (folder / "validation_eval" / "results_3.json").exists()


@pytest.mark.slow
def test_adapters_resume_from_the_checkpoint_of_their_run(command, pretrained, adapters):
    _, folder, words = adapters
    done = command(*words, "--gin_param=run.train_steps = 4")
    assert done.status == 0, done.err
    check_adapters(pretrained, folder, 3, 4)


@pytest.mark.slow
def test_adapters_may_be_trained_with_all_other_weights(command, pretrained, tmp_path):
    every = "--gin_param=run.variable_filter = None"
    done = command(
        f"--model_dir={tmp_path}", *TRAIN, *ADAPTERS, f"--checkpoint={pretrained}", every
    )
    assert done.status == 0, done.err
    assert "left random: encoder/block_000/task_adapter/" in done.out


def test_adapters_hide_no_other_checkpoint_difference(command, pretrained, tmp_path):
    words = [*TRAIN, *ADAPTERS, TWO_LAYERS, f"--checkpoint={pretrained}"]
    text = message(command(f"--model_dir={tmp_path}", *words))
    assert "does not match the model that the gin files configure: num_layers: 1 in the" in text
    assert f"--gin_file={pretrained}/operative_config.gin, or another --model_dir" in text
    assert not list(tmp_path.glob("model.ckpt*"))


def test_infer_from_task_gin_file_needs_a_language_model(command, pretrained, tmp_path):
    words = [*EVALUATE, "--gin_file=infer_from_task.gin", f"--checkpoint={pretrained}"]
    text = message(command(f"--model_dir={tmp_path}", *words))
    assert "continues the text of a task, which only a language model can" in text
    assert "this model is an encoder-decoder. To predict a task's targets, use --gin_file=" in text
    assert not list(tmp_path.rglob("*output*"))
