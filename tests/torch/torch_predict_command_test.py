"""`t0 predict --engine`: both engines predict the same for new rows, from a model directory."""

import csv
import json
import shutil

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model(world, trained):
    """A model directory of the PyTorch engine, whose prompts also have one without choices."""
    folder = world.folder / "predicting" / "model"
    shutil.copytree(trained["torch"], folder)
    prompts = json.loads((folder / "prompts.json").read_text())
    # The vocabulary must come from the model directory.
    prompts["vocabulary"] = "/nowhere/vocab.model"
    free = json.loads(json.dumps(prompts["prompts"][0]))
    free["task"] = "weather_retell"
    free["template"] |= {
        "name": "retell",
        "jinja": "Where? {{report}} ||| {{place}}",
        "answer_choices": None,
    }
    prompts["prompts"].append(free)
    (folder / "prompts.json").write_text(json.dumps(prompts))
    return folder


@pytest.fixture(scope="module")
def predict(world, model):
    """Predicts for rows with an engine; returns the rows that are written, and what is printed."""
    rows = model.parent / "rows.jsonl"
    lines = (world.folder / "data" / "weather" / "validation.jsonl").read_text().splitlines()
    unlabeled = [{k: v for k, v in json.loads(line).items() if k != "label"} for line in lines]
    unlabeled[3]["report"] = unlabeled[3]["place"] = None
    rows.write_text("".join(json.dumps(row) + "\n" for row in unlabeled))

    def run(engine, prompt, *words):
        output = model.parent / f"{prompt} {engine}.csv"
        device = ["--device=cpu"] if engine == "torch" else []
        given = [model, rows, f"--output={output}", f"--prompt={prompt}", f"--engine={engine}"]
        done = world.command("predict", *given, *device, *words, program="t0")
        assert done.returncode == 0, done.stderr
        assert not output.with_name(f"{output.name}.partial").exists()
        with output.open(newline="") as file:
            return unlabeled, list(csv.DictReader(file)), done.stdout

    return run


@pytest.mark.parametrize(
    ("prompt", "numbers"),
    [("which word", ["probability"]), ("weather_own_choices", ["probability"])],
    ids=["fixed choices", "choices of the row"],
)
def test_predict_engines_agree_on_ranked_prompts(predict, prompt, numbers):
    found = {}
    for engine in ("tensorflow", "torch"):
        given, found[engine], printed = predict(engine, prompt, "--all_choices")
        assert ("evaluated with PyTorch on the CPU" in printed) == (engine == "torch")
    assert len(given) == len(found["torch"])
    for row, ours, theirs in zip(given, found["torch"], found["tensorflow"], strict=True):
        assert ours["place"] == (row["place"] or "")
        assert ours["prediction"] == theirs["prediction"]
        choices = ["rain", "snow", "wind", "heat"] if prompt == "which word" else row["options"]
        shares = [
            float(ours[name]) for name in ours if name.startswith("probability_") and ours[name]
        ]
        if prompt == "which word" and not row["report"]:
            assert not ours["prediction"] and not ours["probability"] and not shares
            continue
        assert len(shares) == len(choices)
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert ours["prediction"] == choices[shares.index(max(shares))]
        for name in ours:
            if name.startswith("probability") and ours[name]:
                assert float(ours[name]) == pytest.approx(float(theirs[name]), abs=1e-3)


def test_predict_engines_agree_on_generated_texts(predict):
    (given, ours, _), (_, theirs, _) = (
        predict(engine, "retell") for engine in ("torch", "tensorflow")
    )
    assert [row["prediction"] for row in ours] == [row["prediction"] for row in theirs]
    for row, our, their in zip(given, ours, theirs, strict=True):
        if not row["report"]:
            assert our["prediction"] == our["score"] == ""
        else:
            assert float(our["score"]) == pytest.approx(float(their["score"]), abs=1e-3)
