"""Live data in the PyTorch engine: a worker process makes the batches of the TensorFlow engine."""

import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.torch.engine_world import MODEL, ROOT, losses, message

pytest.importorskip("torch")

from t0.cli import torch_run
from t0.config.specification import DataSpec, from_json
from t0.errors import UserError
from t0.torch import data_worker

LENGTHS = {"inputs": 64, "targets": 32}
ROWS, BATCHES = 4, 6
LIVE = [flag for flag in MODEL if "use_cached" not in flag]
# The TensorFlow engine's feed, without the command that the worker process runs.
REFERENCE = """
import dataclasses, importlib, itertools, json, sys
import numpy as np
from t0 import compat
compat.apply()
name, module, folder, lengths, rows, batches = json.loads(sys.argv[1])
importlib.import_module(module)
from t0.config.plain_data import to_json
from t0.feeding.data_spec import data_spec, open_data
spec = dataclasses.replace(data_spec(name, lengths, seed=7), window_rows=9)
open(f"{folder}/spec.json", "w").write(to_json(spec))
made = itertools.islice(open_data(spec).batches(rows), batches)
arrays = {f"{n}/{key}": x for n, (batch, _) in enumerate(made) for key, x in batch.items()}
np.savez(f"{folder}/batches.npz", **arrays)
"""
# A task like T5's C4 tasks: a source with shards, whose records have the field `text`.
C4 = """
import functools, os
from t0.compat import seqio, t5_preprocessors, tf
from t0.tasks.vocabulary import default_vocabulary

def read(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    path = os.environ["T0_DATA_DIR"] + "/text/0.txt"
    lines = tf.data.TextLineDataset(path)
    return lines.map(lambda line: {"text": line})

feature = seqio.Feature(default_vocabulary(), add_eos=True)
rekey = functools.partial(t5_preprocessors.rekey, key_map={"inputs": None, "targets": "text"})
seqio.TaskRegistry.add(
    "c4_like",
    source=seqio.FunctionDataSource(read, splits=["train"]),
    preprocessors=[
        rekey,
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        t5_preprocessors.span_corruption,
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={"inputs": feature, "targets": feature},
    metric_fns=[],
)
"""
# Task -> the module that registers it.
TASKS = {
    "weather_which_word": "t0.seqio_tasks",
    "text_span_corruption": "t0.recipes",
    "c4_like": "c4_like",
}


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    """A folder with a text, with the rows of the small world, and with a module of the user."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "data" / "text").mkdir(parents=True)
    (folder / "data" / "weather").symlink_to(world.folder / "data" / "weather")
    rows = (world.folder / "data" / "weather" / "train.jsonl").read_text().splitlines()
    texts = "\n".join(json.loads(row)["report"] for row in rows)
    for number in range(3):
        (folder / "data" / "text" / f"{number}.txt").write_text(texts + "\n")
    (folder / "c4_like.py").write_text(C4)
    return folder


@pytest.fixture
def opened(world, folder, monkeypatch):
    """A function that returns (data from a worker process, batches of the TensorFlow engine)."""
    environment = world.environment | {"T0_DATA_DIR": f"{folder}/data"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}")

    def opened(name):
        spec, path = folder / name / "spec.json", folder / name / "batches.npz"
        if not path.exists():
            (folder / name).mkdir()
            arguments = [name, TASKS[name], str(folder / name), LENGTHS, ROWS, BATCHES]
            command = [sys.executable, "-c", REFERENCE, json.dumps(arguments)]
            subprocess.run(command, check=True, cwd=folder)
        words = [
            f"--module_import={TASKS[name]}",
            f"--model_dir={folder}/model",
            "--gin_param=run.train_steps = 9",
            *LIVE,
            f"--gin_param=MIXTURE_NAME = '{name}'",
        ]
        monkeypatch.syspath_prepend(str(folder))
        expected = [{} for _ in range(BATCHES)]
        for key, values in np.load(path).items():
            number, _, feature = key.partition("/")
            expected[int(number)][feature] = values
        register = functools.partial(torch_run.register_tasks, words)
        return data_worker.open_data(from_json(spec.read_text(), DataSpec), register), expected

    return opened


def check_equal(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        assert all((batch[name] == other[name]).all() for name in batch)


@pytest.mark.parametrize("name", TASKS)
def test_data_worker_batches_equal_tensorflow_engine(opened, name):
    data, expected = opened(name)
    made = list(itertools.islice(data.batches(ROWS), BATCHES))
    check_equal([batch for batch, _ in made], expected)
    assert data.filling.rows > ROWS
    (share,) = data.shares()
    assert share.name == name and share.served >= ROWS


def test_data_worker_that_is_killed_resumes_at_next_batch(opened):
    data, expected = opened("text_span_corruption")
    batches = data.batches(ROWS)
    for _ in range(3):
        _, position = next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="has ended.*-9.*resumes"):
        list(batches)
    again, _ = opened("text_span_corruption")
    position = again.read_position(json.loads(json.dumps(position)))
    rest = itertools.islice(again.batches(ROWS, position), BATCHES - 3)
    check_equal([batch for batch, _ in rest], expected[3:])


def test_data_worker_sends_batches_after_sigterm_to_all_processes(opened):
    data, expected = opened("text_span_corruption")
    batches = data.batches(ROWS)
    made = [next(batches)[0]]
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGTERM)
    # More batches than the pipe and the buffers hold.
    made += [batch for batch, _ in itertools.islice(batches, 40)]
    check_equal(made[:BATCHES], expected)
    batches.close()
    assert not worker.is_alive()


@pytest.mark.parametrize(
    ("ending", "status"),
    [("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL), ("raise SystemExit(3)", 3)],
)
def test_data_worker_ends_if_training_process_ends(opened, folder, ending, status):
    data, _ = opened("text_span_corruption")
    script = (
        "import functools, json, multiprocessing, os, signal, sys\n"
        "from t0.cli import torch_run\n"
        "from t0.config.specification import DataSpec, from_json\n"
        "from t0.torch import data_worker\n"
        "if __name__ == '__main__':\n"
        "    register = functools.partial(torch_run.register_tasks, json.loads(sys.argv[2]))\n"
        "    data = data_worker.open_data(from_json(open(sys.argv[1]).read(), DataSpec), register)\n"
        "    batches = data.batches(4)\n"
        "    next(batches)\n"
        "    print(multiprocessing.active_children()[0].pid, flush=True)\n"
        f"    {ending}\n"
    )
    (folder / "trains.py").write_text(script)
    spec = folder / "text_span_corruption" / "spec.json"
    command = [sys.executable, "trains.py", str(spec), json.dumps(data._register.args[0])]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == status, done.stderr
    until = time.monotonic() + 60
    while is_running(int(done.stdout)):
        assert time.monotonic() < until, "the worker process still runs"
        time.sleep(0.1)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_data_worker_reports_mistake_in_data(opened, folder):
    data, _ = opened("text_span_corruption")
    words = [word.replace("t0.recipes", "no_such_module") for word in data._register.args[0]]
    with pytest.raises(UserError, match="no_such_module"):
        register = functools.partial(torch_run.register_tasks, words)
        next(data_worker.open_data(data.spec, register).batches(ROWS))


def test_data_worker_needs_flags_and_tensorflow(monkeypatch):
    task = {"name": "own", "rate": 1.0, "features": {}}
    spec = from_json(
        json.dumps({"mixture": "own", "split": "train", "tasks": [task], "lengths": LENGTHS}),
        DataSpec,
    )
    with pytest.raises(UserError, match="own is not cached.*seqio_cache_tasks.*file"):
        data_worker.open_data(spec, None)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(UserError, match="own is not cached.*seqio_cache_tasks.*TensorFlow"):
        data_worker.open_data(spec, print)
    with pytest.raises(UserError, match="no task"):
        data_worker.open_data(dataclasses.replace(spec, tasks=()), None)


def test_live_training_equals_mesh_tensorflow_and_resumes(world, tmp_path):
    pytest.importorskip("torch")
    reference, ours = tmp_path / "mesh", tmp_path / "torch"
    validates = "--gin_param=train_loop.validate_every_steps = 3"
    done = world.mesh(reference, 6, validates, model=LIVE)
    assert done.returncode == 0, done.stderr
    ours.mkdir()
    for path in reference.glob("model.ckpt-0.*"):
        (ours / path.name).write_bytes(path.read_bytes())
    assert list(ours.iterdir())
    for steps in (3, 6):
        done = world.torch(*world.flags(ours, steps, validates, model=LIVE))
        assert done.returncode == 0, done.stderr
    assert "step 3" in done.stdout
    theirs = losses(reference)
    assert theirs.keys() >= set(range(1, 7))
    for step, loss in losses(ours).items():
        assert loss == pytest.approx(theirs[step], rel=1e-4), step


def test_live_training_from_specification_file_is_refused(world, tmp_path):
    spec = world.specified(tmp_path / "live", 3, model=LIVE)
    assert "start the run with its flags" in message(world.torch(spec))
