"""`--adapter` in commands: both engines compute the same as with the merged model."""

import csv
import json
import shlex
from pathlib import Path

import pytest

from tests.torch.torch_ranking_test import RANK, check_same, results

pytest.importorskip("torch")

LORA = {"method": "lora", "rank": 4, "projections": ["q", "k", "v", "o", "wi_0", "wi_1", "wo"]}


@pytest.fixture(scope="module")
def adapted(world, trained):
    """A model directory with an adapter, and the merged model."""
    folder, merged = world.folder / "adapted", world.folder / "adapted merged"
    changes = {"adapter": LORA, "init_checkpoint": str(trained["hf"]), "schedule": 0.01}
    done = world.torch(world.specified(folder, 12, **changes))
    assert done.returncode == 0, done.stderr
    words = [trained["hf"], merged, f"--adapter={folder}", "--merge", "--to=mtf"]
    done = world.command("convert", *words, program="t0")
    assert done.returncode == 0, done.stderr
    assert "adapter -> mtf: 52 tensors" in done.stdout
    return folder, merged


def scores(folder):
    """Task -> log-likelihoods of choices, of an evaluation."""
    return {
        path.stem.rpartition("_")[0]: [
            choice["log_likelihood"]
            for line in path.read_text().splitlines()
            for choice in json.loads(line)["choices"]
        ]
        for path in folder.rglob("*.jsonl")
        if "report" not in str(path)
    }


def test_adapter_in_eval_equals_the_merged_model(world, trained, adapted):
    folder, merged = adapted
    found = {}
    for name, words in {
        "base": [trained["mtf"], "--engine=tensorflow"],
        "merged": [merged, "--engine=tensorflow"],
        "tensorflow": [trained["mtf"], f"--adapter={folder}", "--engine=tensorflow"],
        "torch": [trained["hf"], f"--adapter={folder}", "--engine=torch", "--device=cpu"],
        "alone": [folder / "torch.ckpt-12", "--engine=torch", "--device=cpu"],
    }.items():
        output = world.folder / f"adapter eval {name}"
        if name == "torch":  # the default folder has the names of the base and the adapter
            output = world.folder / "t0_eval" / f"{trained['hf'].name}_{folder.name}"
        else:
            words += [f"--output={output}"]
        words += ["--tasks=weather_.*_score_eval", "--limit=6"]
        words += ["--module_import=t0.seqio_tasks", "--lengths=inputs=64,targets=16"]
        done = world.command("eval", *words, program="t0")
        assert done.returncode == 0, done.stderr
        found[name] = scores(output)
    assert len(found["merged"]) == 2
    for name in ("tensorflow", "torch", "alone"):
        assert found[name].keys() == found["merged"].keys()
        for file, expected in found["merged"].items():
            assert found[name][file] == pytest.approx(expected, abs=1e-4)
            assert found["base"][file] != pytest.approx(expected, abs=1e-2)


def test_adapter_in_predict_equals_the_merged_model(world, trained, adapted):
    folder, _ = adapted
    rows, found = world.folder / "data" / "weather" / "test.jsonl", {}
    for name, words in {
        "base": [trained["torch"]],
        "adapter": [trained["torch"], f"--adapter={folder}"],
        "alone": [folder],
    }.items():
        output = world.folder / f"adapter predicted {name}.csv"
        words += [rows, f"--output={output}", "--prompt=which word", "--all_choices"]
        done = world.command("predict", *words, "--engine=torch", "--device=cpu", program="t0")
        assert done.returncode == 0, done.stderr
        with output.open(newline="") as file:
            found[name] = [float(row["probability"]) for row in csv.DictReader(file)]
    assert found["adapter"] == pytest.approx(found["alone"], abs=1e-4)
    assert found["base"] != pytest.approx(found["alone"], abs=1e-3)


def test_adapter_in_score_eval_is_the_same_on_both_engines(world, trained, adapted):
    folder, _ = adapted
    flags = [f"--checkpoint={trained['hf']}", f"--adapter={folder}"]
    mesh = world.folder / "adapter ranked"
    done = world.mesh(mesh, 30, *flags, model=RANK)
    assert done.returncode == 0, done.stderr
    made = world.specified(mesh, 30, *flags, model=RANK)
    ours = world.folder / "adapter ranked by torch"
    changed = made.read_text().replace(f"{mesh}/validation_eval", f"{ours}/validation_eval")
    Path(made).write_text(changed)
    done = world.torch(made)
    assert done.returncode == 0, done.stderr
    for found in (expected := results(mesh), ours_found := results(ours)):
        for name in found:
            if name.endswith(".json"):
                found[name]["run"].pop("checkpoint_fingerprint")
    check_same(ours_found, expected, 1e-4)


def test_adapter_flags_that_do_not_fit_are_refused(world, trained, adapted):
    folder, merged = adapted
    for program, words, expected in (
        ("t0", ["convert", merged, "x", f"--adapter={folder}", "--to=hf"], "belong together"),
        ("t0", ["convert", merged, "x", "--merge", "--to=hf"], "belong together"),
        (
            "t0",
            ["eval", trained["hf"], f"--adapter={folder}", f"--adapter={merged}"],
            "--adapter is given 2 times; expected one adapter",
        ),
        (
            "t0",
            ["eval", trained["hf"], f"--adapter={merged}"],
            "has no adapter_config.json; expected a folder of PEFT",
        ),
        (
            "t5_mesh_transformer",
            world.flags(world.folder / "x", 1, f"--adapter={folder}"),
            "--adapter belongs to mode 'eval' and mode 'score_eval'",
        ),
        (
            "t5_mesh_transformer",
            world.flags(world.folder / "x", 1, f"--adapter={folder}", model=RANK),
            "--adapter needs its base: name it with --checkpoint",
        ),
    ):
        done = world.command(*words, program=program)
        assert done.returncode == 2, done.stdout
        assert expected in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_train_and_the_command_that_it_prints_give_the_same_adapter(world, trained):
    output = world.folder / "adapter trained"
    words = [f"--checkpoint={trained['hf']}", "--mixture=weather_train", "--adapter=lora"]
    words += ["--steps=2", "--batch_size=4", "--lr=0.1", f"--output={output}", "--device=cpu"]
    words += ["--lengths=inputs=64,targets=16", f"--cache_dirs={world.folder}/cache"]
    done = world.command("train", *words, program="t0")
    assert done.returncode == 0, done.stderr
    assert "training from step 0 to 2: 4 sequences a step, inputs 64" in done.stdout
    command = done.stdout.partition("\n")[2].replace("\\\n", " ").partition("\n")[0]
    again = world.folder / "adapter trained again"
    name, *words = shlex.split(command)
    words = [f"--model_dir={again}" if w.startswith("--model_dir=") else w for w in words]
    done = world.command(*words, program=name)
    assert done.returncode == 0, done.stderr
    ours, theirs = (
        (folder / "torch.ckpt-2" / "adapter_model.safetensors").read_bytes()
        for folder in (output, again)
    )
    assert ours == theirs
