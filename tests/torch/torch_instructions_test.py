"""Super-NaturalInstructions on PyTorch: nanoT5's run file trains as on Mesh TensorFlow."""

import json

import pytest

from tests.torch.engine_world import MODEL, losses, message

pytest.importorskip("torch")

from tests.sources import tiny_recipes

NAME = "sni_def_pos_2"
# Flags of the small model that nanoT5's run file sets otherwise.
CHANGED = ("MIXTURE_NAME", "sequence_length", "use_cached", "learning_rate", "dataset.gin")


@pytest.fixture(scope="module")
def flags(world):
    """The flags of runs over a cached task with instructions, some of whose examples do not fit."""
    tiny_recipes.lay_out_sni(world.folder / "recipes" / "sni")
    data = ["--module_import=t0.recipes", f"--data_dir={world.folder}/recipes"]
    cache = f"{world.folder}/cache of recipes"
    done = world.command(
        *data, f"--tasks={NAME}", f"--output_cache_dir={cache}", program="seqio_cache_tasks"
    )
    assert done.returncode == 0, done.stderr
    return [*data, f"--additional_task_cache_dirs={cache}"]


def training(flags, trained, *, cached=True):
    model = [flag for flag in MODEL if not any(name in flag for name in CHANGED)]
    return [
        *flags,
        "--gin_file=runs/nanot5_sni.gin",
        *model,
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 140, 'targets': 16}",
        f"--gin.USE_CACHED_TASKS={cached}",
        f"--checkpoint={trained['mtf']}",
        "--gin.START_STEP=30",
    ]


def test_instruction_training_losses_equal_mesh_tensorflow(world, flags, trained):
    reference, folder = world.folder / "sni mesh", world.folder / "sni torch"
    done = world.mesh(reference, 35, model=training(flags, trained))
    assert done.returncode == 0, done.stderr
    spec = world.specified(folder, 35, model=training(flags, trained))
    content = json.loads(spec.read_text())
    assert content["optimizer"]["selector"] == "t0.AdamWOptimizer"
    (task,) = content["data"]["tasks"]
    assert task["instructions"] == {
        "positives": 2,
        "longest_inputs": 140,
        "eos": {"inputs": 1, "targets": 1},
    }
    done = world.torch(spec)
    assert done.returncode == 0, done.stderr
    ours, theirs = losses(folder), losses(reference)
    assert ours.keys() == theirs.keys() == set(range(31, 36))
    for step, loss in theirs.items():
        assert ours[step] == pytest.approx(loss, rel=1e-4), step


def test_instruction_training_without_cache_names_caching_command(world, flags, trained):
    live = training(flags, trained, cached=False)
    spec = world.specified(world.folder / "sni live", 35, model=live)
    assert "seqio_cache_tasks" in message(world.torch(spec))


@pytest.mark.exhaustive
def test_instruction_evaluation_equals_mesh_tensorflow(world, flags, trained):
    def evaluated(engine):
        output = world.folder / f"sni evaluated {engine}"
        model = [
            *flags,
            *(flag for flag in MODEL if not any(name in flag for name in CHANGED)),
            "--gin_file=dataset.gin",
            "--gin_file=runs/eval.gin",
            f"--gin.MIXTURE_OR_TASK_NAME='{NAME}'",
            "--gin.MIXTURE_OR_TASK_SPLIT='test'",
            "--gin.TASK_FEATURE_LENGTHS={'inputs': 140, 'targets': 16}",
            "--gin.USE_CACHED_TASKS=True",
            "--gin.BATCH_SIZE=4",
            "--gin.MAX_DECODE_LENGTH=6",
            "--gin_param=t0.evaluation.examples = 10",
            f"--gin.CHECKPOINT_PATH='{trained[engine]}'",
            f"--gin.EVAL_OUTPUT_DIR='{output}'",
        ]
        words = world.flags(trained[engine], 30, model=model)
        done = world.torch(*words) if engine == "torch" else world.command(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        tasks = json.loads((output / "decoded_30.json").read_text())["tasks"]
        return tasks, (output / tasks[NAME]["predictions"]).read_text()

    ours, theirs = evaluated("torch"), evaluated("mtf")
    assert ours == theirs
    assert ours[0][NAME]["examples"] == 10
    assert ours[0][NAME]["truncated_inputs"] == 0
