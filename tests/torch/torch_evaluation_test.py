"""Mode `eval` on PyTorch: a task decoded with beams and a ranked task, as on Mesh TensorFlow."""

import json

import pytest

from tests.torch.engine_world import MODEL, message

pytest.importorskip("torch")

EVALUATE = [
    *(flag for flag in MODEL if "MIXTURE_NAME" not in flag and "sequence_length" not in flag),
    "--gin_file=runs/eval.gin",
    "--gin.MIXTURE_OR_TASK_NAME='weather_both'",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}",
    "--gin.USE_CACHED_TASKS=True",
    "--gin.BATCH_SIZE=4",
    "--gin.MAX_DECODE_LENGTH=8",
    "--gin_param=Bitransformer.decode.beam_size = 3",
    "--gin_param=t0.evaluation.examples = 18",
]


def command(checkpoint, output):
    return [*EVALUATE, f"--gin.CHECKPOINT_PATH='{checkpoint}'", f"--gin.EVAL_OUTPUT_DIR='{output}'"]


def read(folder):
    """Name -> content of the results that do not say when they were made."""
    found = {}
    for name in ("decoded_30.json", "results_30.json"):
        content = json.loads((folder / name).read_text())
        assert content["run"].pop("created")
        for fact in ("engine", "model_dir", "checkpoint", "checkpoint_fingerprint"):
            content["run"].pop(fact, None)
        found[name] = content
    for path in [*folder.glob("predictions/*"), *folder.glob("weather*_*")]:
        found[str(path.relative_to(folder))] = path.read_text()
    return found


@pytest.fixture(scope="module")
def reference(world, trained):
    folder = world.folder / "evaluated by mesh"
    done = world.mesh(trained["mtf"], 30, model=command(trained["mtf"], folder))
    assert done.returncode == 0, done.stderr
    return read(folder)


def test_evaluation_results_equal_mesh_tensorflow(world, trained, reference):
    folder = world.folder / "evaluated"
    given = command(trained["torch"], folder)
    done = world.torch(world.specified(trained["torch"], 30, model=given))
    assert done.returncode == 0, done.stdout + done.stderr
    # A file's words are printed, and not carried out.
    assert "if you trust the source of the specification, run: python -m t0.cli" in done.stdout
    assert not (folder / "decoded_30.json").exists()
    done = world.torch(*world.flags(trained["torch"], 30, model=given))
    assert done.returncode == 0, done.stdout + done.stderr
    found = read(folder)
    assert found.keys() == reference.keys()
    assert found == reference
    entry = found["decoded_30.json"]["tasks"]["weather_which_word"]
    assert (entry["examples"], set(entry["metrics"])) == (18, {"accuracy"})
    assert len(found["predictions/weather_which_word_30.jsonl"].splitlines()) == 18


def test_evaluation_missing_from_specification_is_refused(world, trained):
    folder = world.folder / "evaluated"
    spec = world.specified(trained["torch"], 30, model=command(trained["torch"], folder))
    content = json.loads(spec.read_text())
    spec.write_text(json.dumps({**content, "rank": None, "infer": None}))
    assert "the specification has no evaluation" in message(world.torch(spec))


def limited(checkpoint, output, *flags):
    """Evaluates two decoded tasks on their first five examples."""
    kept = [f for f in command(checkpoint, output) if "examples" not in f and "beam" not in f]
    tasks = ["weather_which_word", "weather_own_choices"]
    return [
        *kept,
        f"--gin_param=t0.evaluation.tasks = {tasks}",
        "--gin_param=mesh_eval_dataset_fn.num_eval_examples = 5",
        *flags,
    ]


@pytest.mark.parametrize(
    "flags", [[], ["--gin_param=t0.evaluation.examples = 3"]], ids=["first", "sample"]
)
def test_first_examples_of_two_decoded_tasks_equal_mesh_tensorflow(world, trained, flags):
    found = {}
    for engine, run in (("mtf", world.mesh), ("torch", None)):
        folder = world.folder / f"limited {engine} {len(flags)}"
        given = limited(trained[engine], folder, *flags)
        if run is None:
            done = world.torch(*world.flags(trained[engine], 30, model=given))
        else:
            done = run(trained[engine], 30, model=given)
        assert done.returncode == 0, done.stdout + done.stderr
        tasks = json.loads((folder / "decoded_30.json").read_text())["tasks"]
        found[engine] = tasks, *(path.read_text() for path in sorted(folder.glob("predictions/*")))
    assert found["torch"] == found["mtf"]
    examples = 3 if flags else 5
    assert [entry["examples"] for entry in found["mtf"][0].values()] == [examples] * 2
    texts = (folder / "decoding" / "weather_own_choices_30.jsonl").read_text().splitlines()
    assert len(texts) == examples  # no more than needed


def test_shuffled_examples_of_a_decoded_task_are_refused(world, trained):
    shuffled = "--gin_param=mesh_eval_dataset_fn.shuffle_eval_examples = True"
    given = limited(trained["torch"], world.folder / "shuffled", shuffled)
    done = world.torch(*world.flags(trained["torch"], 30, model=given))
    assert "shuffle_eval_examples is True, but --engine=torch" in done.stdout + done.stderr
    assert done.returncode and "Traceback" not in done.stderr
    assert not (world.folder / "shuffled").exists()
