"""Commands whose data, prompts, vocabulary, cache and gin files are in a bucket."""

import json
import posixpath

import pytest

from tests.end_to_end.command_lines import TRAIN, message

CACHE = "gs://b/cache"
TASKS = "weather_which_word,weather_which_word_score_eval"


@pytest.fixture
def run(server, world, bucket):
    """Runs a command line with the small world's data and vocabulary in the bucket."""
    for path in (world.folder / "data").rglob("*"):
        if path.is_file():
            bucket.put("b", str(path.relative_to(world.folder)), path.read_bytes())
    bucket.put("b", "vocab.model", (world.folder / "vocab.model").read_bytes())
    places = {"T0_DATA_DIR": "gs://b/data", "T0_VOCAB": "gs://b/vocab.model"}

    def run(program, *words, here=False):
        environment = {} if here else {**bucket.environment(), **places}
        return server.run(*words, program=program, environment=environment)

    return run


@pytest.fixture
def cached_there(run, bucket):
    """Two tasks, cached from the bucket into it."""
    words = [f"--tasks={TASKS}", f"--output_cache_dir={CACHE}", "--num_workers=0"]
    done = run("seqio_cache_tasks", *words, "--module_import=t0.seqio_tasks")
    assert done.status == 0, done.err
    return {n: c for n, c in bucket.files("b").items() if n.startswith("cache/")}


@pytest.mark.parametrize(
    "words",
    [
        ["tasks", "weather_train"],
        ["tasks", "weather_.*", "--json"],
        ["lint", "weather_which_word", "--json"],
        ["lint", "broken_which_word", "--json"],
        ["show", "weather_which_word"],
    ],
)
def test_bucket_prompts_and_mixtures_equal_those_on_disk(run, world, words):
    there, here = run("t0", *words), run("t0", *words, here=True)
    said = here.out.replace(str(world.folder), "gs://b")
    assert (there.status, there.out) == (here.status, said), there.err


def test_bucket_cache_equals_that_on_disk_and_is_verified(run, cached_there, bucket, world):
    out = world.folder / "cache_here"
    words = [f"--tasks={TASKS}", f"--output_cache_dir={out}", "--num_workers=0"]
    assert run("seqio_cache_tasks", *words, "--module_import=t0.seqio_tasks", here=True).status == 0
    files = {f"cache/{p.relative_to(out)}": p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert cached_there.keys() == files.keys()
    # Only a local vocabulary is recorded.
    differing = {name for name in files if cached_there[name] != files[name]}
    assert {posixpath.basename(name) for name in differing} <= {"provenance.json"}
    listed = json.loads(run("t0", "tasks", "weather_.*", f"--cache_dirs={CACHE}", "--json").out)
    cached = {task["task"] for task in listed if task["cached"] not in (False, "no", "")}
    assert cached == set(TASKS.split(","))
    assert run("t0", "verify", CACHE).status == 0
    name = next(name for name in cached_there if "train.tfrecord" in name)
    bucket.put("b", name, cached_there[name][:-1] + b"x")
    done = run("t0", "verify", CACHE)
    assert done.status == 1
    assert name.rpartition("/")[2] in done.out


@pytest.mark.slow
def test_bucket_training_with_gin_file_cache_and_vocabulary(run, cached_there, bucket):
    bucket.put("b", "gin/shorter.gin", b"run.train_steps = 2\n")
    bucket.put("b", "gin/mine.gin", b"include 'gs://b/gin/shorter.gin'\nrun.batch_size = 2\n")
    words = [*TRAIN, "--gin_param=mesh_train_dataset_fn.use_cached = True"]
    words = [word for word in words if "run.train_steps" not in word and "batch_size" not in word]
    words += ["--module_import=t0.seqio_tasks", f"--additional_task_cache_dirs={CACHE}"]
    words += ["--gin_param=MIXTURE_NAME = 'weather_which_word'", "--gin_file=gs://b/gin/mine.gin"]
    done = run("t5_mesh_transformer", *words, "--model_dir=gs://b/model")
    assert done.status == 0, done.err
    assert "model/model.ckpt-2.index" in bucket.files("b")
    assert "run.batch_size = 2" in bucket.files("b")["model/operative_config.gin"].decode()


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        ("t5_mesh_transformer", ["--gin_file=gs://b/gin/none.gin"], "gs://b/gin/none.gin"),
        ("t0", ["tasks", "--data_dir=gs://b/none"], "gs://b/none"),
        ("t0", ["lint", "weather_which_word", "--vocab=gs://b/none.model"], "gs://b/none.model"),
        ("t0", ["verify", "gs://b/none"], "gs://b/none"),
    ],
)
def test_bucket_file_that_is_missing_is_named_in_one_message(run, program, words, said):
    done = run(program, *words)
    assert done.status == 2, done.out + done.err
    assert said in (message(done) if program != "t0" else done.err)
    assert "Traceback" not in done.err
