"""Mode `infer` on PyTorch: Mesh TensorFlow's files, from caches and files; killed, it goes on."""

import json

import pytest

from tests.torch.engine_world import MODEL, message

pytest.importorskip("torch")

INFER = [
    *MODEL,
    "--gin_file=runs/infer.gin",
    "--gin.MIXTURE_OR_TASK_NAME='weather_which_word'",
    "--gin.MIXTURE_OR_TASK_SPLIT='validation'",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 8}",
    "--gin.USE_CACHED_TASKS=True",
    "--gin.BATCH_SIZE=4",
]
BEAMS = ["--gin.BEAM_SIZE=3"]


def command(folder, *flags):
    return [
        *INFER,
        f"--gin.CHECKPOINT_PATH='{folder}'",
        f"--gin.INFER_OUTPUT_DIR='{folder}/infer'",
        *flags,
    ]


def lines_of(folder, name="weather_which_word_30"):
    return [json.loads(line) for line in (folder / "infer" / f"{name}.jsonl").open()]


def check_same(found, expected, apart):
    assert len(found) == len(expected)
    for line, other in zip(found, expected, strict=True):
        assert line["score"] == pytest.approx(other["score"], abs=apart)
        assert line == {**other, "score": line["score"]}


@pytest.fixture(scope="module")
def reference(world, trained):
    """Mesh TensorFlow's predictions by three beams."""
    done = world.mesh(trained["mtf"], 30, model=command(trained["mtf"], *BEAMS))
    assert done.returncode == 0, done.stderr
    return lines_of(trained["mtf"])


@pytest.fixture
def specified(world, trained):
    """Returns the specification of predictions into a new folder, from PyTorch's checkpoint."""

    def specified(name, *flags):
        folder = world.folder / name
        model = command(trained["torch"])
        made = world.specified(trained["torch"], 30, *flags, model=model).read_text()
        spec = world.folder / f"{name}.json"
        spec.write_text(made.replace(f"{trained['torch']}/infer", f"{folder}/infer"))
        return folder, spec

    return specified


@pytest.mark.parametrize("processes", [1, 2])
def test_infer_predictions_equal_mesh_tensorflow(world, reference, specified, processes):
    folder, spec = specified(f"predicted by {processes}", *BEAMS)
    done = world.torch(spec, processes=processes)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("30 predictions, ") == 1
    check_same(lines_of(folder), reference, 1e-4)


EVAL = [
    *(flag for flag in MODEL if "MIXTURE_NAME" not in flag and "sequence_length" not in flag),
    "--gin_file=runs/eval.gin",
    "--gin.MIXTURE_OR_TASK_NAME='weather_which_word'",
    "--gin.MIXTURE_OR_TASK_SPLIT='train'",
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}",
    "--gin.USE_CACHED_TASKS=True",
    "--gin.BATCH_SIZE=8",
    "--gin.MAX_DECODE_LENGTH=8",
    "--gin_param=Bitransformer.decode.beam_size = 3",
]


@pytest.mark.slow
def test_beam_search_is_equal_in_eval_and_infer_of_both_engines(world, trained):
    predictions = {}
    for engine, folder, run in [
        ("mesh", trained["mtf"], world.mesh),
        (
            "torch",
            trained["torch"],
            lambda *given, model: world.torch(*world.flags(*given, model=model)),
        ),
    ]:
        output = world.folder / f"same by {engine}"
        evaluation = [f"--gin.CHECKPOINT_PATH='{folder}'", f"--gin.EVAL_OUTPUT_DIR='{output}'"]
        inference = [
            *command(folder, *BEAMS, "--gin.MIXTURE_OR_TASK_SPLIT='train'"),
            f"--gin.INFER_OUTPUT_DIR='{output}'",
        ]
        for model in ([*EVAL, *evaluation], inference):
            done = run(folder, 30, model=model)
            assert done.returncode == 0, done.stderr
        for mode, path in [("eval", output / "predictions"), ("infer", output)]:
            lines = [json.loads(x) for x in (path / "weather_which_word_30.jsonl").open()]
            predictions[engine, mode] = [line["prediction"] for line in lines]
    assert len(predictions["mesh", "infer"]) == 240
    assert len({line["score"] for line in lines}) > 1  # the inputs matter, even if words are equal
    assert all(each == predictions["mesh", "infer"] for each in predictions.values())


KILLED = """
import os, signal
from t0.inference.predictions import PredictionFile

def save_batch(self, *given, whole=PredictionFile.save_batch):
    whole(self, *given)
    os.kill(os.getpid(), signal.SIGKILL)

PredictionFile.save_batch = save_batch
from t0.cli import torch_run
torch_run.main({words!r})
"""


def test_infer_resumes_after_last_batch_of_a_killed_run(world, reference, specified):
    folder, spec = specified("killed predicted", *BEAMS)
    done = world.python("-c", KILLED.format(words=[str(spec), "--device=cpu"]))
    assert done.returncode < 0, done.stderr
    assert len(list((folder / "infer").glob("*.partial/*batch*"))) == 1
    assert not list((folder / "infer").glob("*.jsonl"))
    done = world.torch(spec, processes=2)  # on another number of processes
    assert done.returncode == 0, done.stderr
    assert "30 predictions (4 of them before)" in done.stdout
    check_same(lines_of(folder), reference, 1e-4)


def test_infer_input_file_lines_are_predicted(world, reference, specified):
    """The same texts from a file, by a vocabulary that is read without TensorFlow."""
    lines = world.folder / "questions.txt"
    lines.write_text("".join(line["inputs"] + "\n" for line in reference))
    folder, spec = specified("predicted of a file", *BEAMS)
    given = {"task": None, "input_file": str(lines), "vocabulary": f"{world.folder}/vocab.model"}
    spec.write_text(json.dumps(of_job(json.loads(spec.read_text()), given)))
    assert world.torch(spec).returncode == 0
    expected = [{k: v for k, v in line.items() if k != "targets"} for line in reference]
    check_same(lines_of(folder), expected, 1e-4)


def of_job(spec, change):
    """A specification of predictions whose one job is changed."""
    infer = spec["infer"]
    return {**spec, "infer": {**infer, "jobs": [{**infer["jobs"][0], **change}]}}


def test_infer_error_message_of_a_wrong_job_is_one_line(world, specified):
    _, spec = specified("wrongly predicted", *BEAMS)
    whole = json.loads(spec.read_text())
    job = whole["infer"]["jobs"][0]
    for change, expected in [
        ({"task": {**job["task"], "cache_files": []}}, "seqio_cache_tasks --tasks=weather_which"),
        (
            {"task": None, "input_file": "/no/file", "vocabulary": f"{world.folder}/vocab.model"},
            "input file not found: /no/file",
        ),
        ({"path": "gs://b/predictions.jsonl"}, "only the command line names buckets"),
        ({"settings": {"beams": 3}}, "infer.jobs.settings has the unknown field 'beams'"),
    ]:
        spec.write_text(json.dumps(of_job(whole, change)))
        assert expected in message(world.torch(spec))
