"""Rank evaluation on PyTorch: Mesh TensorFlow's log-likelihoods and files; killed, it goes on."""

import csv
import json
import shutil

import pytest

from tests.torch.engine_world import MODEL, message

pytest.importorskip("torch")

from t0.checkpoints import conversion

RANK = [
    *MODEL,
    "--gin_file=score_eval.gin",
    "--gin_param=MIXTURE_NAME = 'weather_eval'",
    "--gin_param=run.dataset_split = 'validation'",
    "--gin_param=mesh_eval_dataset_fn.use_cached = True",
]


def results(model_dir):
    """Path below the folder for results -> what the file holds, but for when and by what."""
    folder = model_dir / "validation_eval"
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            found[name] = [json.loads(line) for line in path.read_text().splitlines()]
        elif path.suffix == ".json":
            found[name] = json.loads(path.read_text())
            assert found[name]["run"].pop("created")
            for fact in ("engine", "model_dir", "checkpoint"):
                found[name]["run"].pop(fact, None)
        else:
            assert path.is_dir() or path.name.startswith("events.")
    return found


def likelihoods(lines):
    """The log-likelihoods of a file of scores, taken out of it."""
    return [choice.pop("log_likelihood") for line in lines for choice in line["choices"]]


def check_same(ours, theirs, apart):
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if name.endswith(".jsonl"):
            assert likelihoods(ours[name]) == pytest.approx(likelihoods(expected), abs=apart)
        assert ours[name] == expected, name


@pytest.fixture(scope="module")
def reference(world, trained):
    """A folder with a checkpoint, which Mesh TensorFlow has ranked."""
    folder = world.folder / "ranked"
    shutil.copytree(trained["mtf"], folder)
    done = world.mesh(folder, 30, model=RANK)
    assert done.returncode == 0, done.stderr
    assert len(results(folder)) == 3
    return folder


@pytest.fixture
def specified(world, reference):
    """Returns the specification of the evaluation of a new folder with the same checkpoint."""

    def specified(name):
        folder = world.folder / name
        folder.mkdir()
        for path in [*reference.glob("model.ckpt-*"), reference / "checkpoint"]:
            shutil.copy(path, folder)
        made = world.specified(reference, 30, model=RANK).read_text()
        spec = world.folder / f"{name}.json"
        spec.write_text(made.replace(str(reference), str(folder)))
        return folder, spec

    return specified


@pytest.mark.parametrize("processes", [1, 2])
def test_rank_evaluation_scores_and_files_equal_mesh_tensorflow(
    world, reference, specified, processes
):
    folder, spec = specified(f"ranked by {processes}")
    done = world.torch(spec, processes=processes)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("restored 52 variables") == 1
    check_same(results(folder), results(reference), 1e-4)


def test_rank_evaluation_bfloat16_is_close_to_float32(world, reference, specified):
    folder, spec = specified("ranked in bfloat16")
    done = world.torch(changed(spec, rank__settings__dtype="bfloat16"))
    assert done.returncode == 0, done.stderr
    rounded, exact = results(folder), results(reference)
    for name in (name for name in exact if name.endswith(".jsonl")):
        found, expected = likelihoods(rounded[name]), likelihoods(exact[name])
        assert found != expected
        # Sums of up to 13 nats for each of some tokens, of values with 8 bits.
        assert found == pytest.approx(expected, rel=0.02, abs=0.02)


@pytest.mark.parametrize("kind", ["torch", "hf", "t5x"])
def test_rank_evaluation_reads_torch_hugging_face_and_t5x(world, reference, trained, kind):
    """The engine's own in a model directory; the others as --checkpoint, which is not converted."""
    folder = world.folder / f"ranked from {kind}"
    if kind == "torch":
        shutil.copytree(trained["torch"] / "torch.ckpt-30", folder / "torch.ckpt-30")
        spec = world.specified(folder, 30, model=RANK)
    elif kind == "hf":
        spec = world.specified(folder, 30, f"--checkpoint={trained['hf']}", model=RANK)
    else:
        conversion.convert(trained["hf"], world.folder / "t5x", to="t5x")
        made = world.specified(reference, 30, model=RANK).read_text()
        spec = world.folder / f"{kind}.json"
        spec.write_text(made.replace(str(reference), str(folder)))
        changed(spec, rank__checkpoint=str(world.folder / "t5x"))
    done = world.torch(spec)
    assert done.returncode == 0, done.stderr
    assert not (folder / "converted").exists()
    found, expected = results(folder), results(reference)
    for one in (found, expected):
        one["results_30.json"]["run"].pop("checkpoint_fingerprint")
    check_same(found, expected, 1e-4)


KILLED = """
import os, signal
from t0.evaluation.results import CheckpointResults

def add(self, *given, whole=CheckpointResults.add):
    whole(self, *given)
    os.kill(os.getpid(), signal.SIGKILL)

CheckpointResults.add = add
from t0.cli import torch_run
torch_run.main({words!r})
"""


def test_rank_evaluation_resumes_with_next_task_after_a_kill(world, specified):
    at_once, spec = specified("at once ranked")
    assert world.torch(spec).returncode == 0
    folder, spec = specified("killed ranked")
    done = world.python("-c", KILLED.format(words=[str(spec), "--device=cpu"]))
    assert done.returncode < 0, done.stderr
    scored = next((folder / "validation_eval" / "scores").iterdir())
    written = scored.stat().st_mtime_ns
    done = world.torch(spec)
    assert done.returncode == 0, done.stderr
    assert "step 30: 1 of 2 tasks were finished before" in done.stdout
    assert scored.stat().st_mtime_ns == written
    check_same(results(folder), results(at_once), 0)


def reported(world, folder):
    """The rows of `t0 report`'s tables, without what names the run; numbers are rounded."""

    def value(text):
        try:
            return pytest.approx(float(text), abs=1e-3)
        except ValueError:
            return text

    made = folder / "report"
    written = str(folder / "validation_eval" / "results_30.json")
    done = world.command("report", written, f"--output={made}", program="t0")
    assert done.returncode == 0, done.stderr
    assert "weather" in (made / "report.html").read_text()
    tables = {}
    for path in sorted(made.glob("*.csv")):
        with path.open(newline="") as file:
            rows = [*csv.DictReader(file)]
        tables[path.name] = [
            {name: value(text) for name, text in row.items() if folder.name not in text}
            for row in rows
        ]
    return tables


def test_rank_evaluation_report_is_equal_for_both_engines(world, reference, specified):
    folder, spec = specified("reported")
    assert world.torch(spec).returncode == 0
    for each in (folder, reference):
        found = results(each)
        tasks = found.pop("results_30.json")["tasks"]
        assert {task["documents"] for task in tasks.values()} == {10}
        for lines in found.values():
            assert [line["document"] for line in lines] == [n // 3 * 3 for n in range(30)]
    ours, theirs = (reported(world, each) for each in (folder, reference))
    assert "report.csv" in ours
    assert ours == theirs


def changed(spec, **changes):
    """Changes a specification: a field's name with __ between the levels -> its value."""
    content = json.loads(spec.read_text())
    for name, value in changes.items():
        *levels, last = name.split("__")
        place = content
        for level in levels:
            place = place[int(level) if level.isdigit() else level]
        place[last] = value
    spec.write_text(json.dumps(content))
    return spec


MISTAKES = {
    "not cached": ({"data__tasks__0__cache_files": []}, "seqio_cache_tasks --tasks=weather_"),
    "no file": ({"data__tasks__0__cache_files": ["/no/file"]}, "/no/file cannot be read"),
    "not ranked": ({"data__tasks__0__rank": None}, "is not a rank-evaluation task"),
    "own metric": ({"data__tasks__0__rank__other_metrics": ["mine"]}, "has the metric mine"),
    "no checkpoint": ({"rank__checkpoint": "/no/model.ckpt-1"}, "/no/model.ckpt-1 does not exist"),
    "a bucket": ({"rank__folder": "gs://b/results"}, "add --bucket=gs://b"),
    "too few": ({"rank__reading": {"num_eval_examples": 9}}, "num_eval_examples is set"),
}


def test_rank_evaluation_error_message_is_one_line(world, reference):
    """In one process, which ends the group of processes after each."""
    spec = world.specified(reference, 30, model=RANK)
    for place, (change, expected) in MISTAKES.items():
        wrong = changed(shutil.copy(spec, world.folder / "wrong.json"), **change)
        assert expected in message(world.torch(wrong)), place
