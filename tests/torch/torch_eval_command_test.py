"""`t0 eval --engine`: PyTorch evaluates what TensorFlow does, from the same command."""

import json

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def evaluate(world, trained):
    """Runs `t0 eval` without caches; returns the process and its output folder."""
    texts = world.folder / "data" / "text"
    texts.mkdir(exist_ok=True)
    line = json.dumps({"text": " ".join(f"much {n} today" for n in range(60))})
    (texts / "validation.jsonl").write_text(f"{line}\n" * 3)

    def run(name, *words):
        folder = world.folder / "eval command" / name
        modules = ["--module_import=t0.seqio_tasks", "--module_import=t0.recipes"]
        lengths = "--lengths=inputs=64,targets=16"
        given = [trained["mtf"], f"--output={folder}", *modules, lengths, "--limit=7", *words]
        return world.command("eval", *given, program="t0"), folder

    return run


def read(folder):
    """Name -> content of the results, without the facts that depend on the engine or the time."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(("report", "gin", "model")) or path.suffix not in (".json", ".jsonl"):
            continue
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        contents[name] = [json.loads(line) for line in lines]
        for content in contents[name]:
            for fact in ("created", "engine"):
                content.get("run", {}).pop(fact, None)
    return contents


def check_equal(ours, theirs, where=""):
    """Compares nested values; numbers to 1e-4."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key, value in theirs.items():
            check_equal(ours[key], value, f"{where}/{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for number, value in enumerate(theirs):
            check_equal(ours[number], value, f"{where}/{number}")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4), where
    else:
        assert ours == theirs, where


@pytest.mark.parametrize(
    ("tasks", "words", "files"),
    [
        ("weather_.*_score_eval", ["--decode_answers"], {"results_30.json"}),
        ("weather_which_word", [], {"decoded_30.json"}),
        ("text_span_corruption", [], {"perplexity_30.json"}),
    ],
    ids=["ranked", "decoded", "perplexity"],
)
def test_eval_engine_torch_equals_tensorflow(evaluate, tasks, words, files):
    found = {}
    for engine in ("tensorflow", "torch"):
        device = ["--device=cpu"] if engine == "torch" else []
        name = f"{tasks.strip('._*')} {engine}"
        done, folder = evaluate(name, f"--tasks={tasks}", f"--engine={engine}", *device, *words)
        assert done.returncode == 0, done.stderr
        assert ("evaluated with PyTorch on the CPU" in done.stdout) == (engine == "torch")
        found[engine] = read(folder)
    assert files <= found["torch"].keys()
    check_equal(found["torch"], found["tensorflow"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--engine=tensorflow", "--device=cpu"], "--device=cpu is for PyTorch"),
        (["--engine=torch", "--device=cuda"], "finds no GPU"),
    ],
)
def test_eval_engine_mistakes_are_one_line(evaluate, words, text):
    done, folder = evaluate("mistake", "--tasks=weather_which_word", *words)
    assert done.returncode == 2
    assert text in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize("expected", ["float32", "bfloat16"])
def test_eval_engine_torch_resolves_auto_activations_for_its_device(monkeypatch, expected):
    """TensorFlow's choice for this machine's CPU does not count."""
    import torch

    from t0.checkpoints.prepared_checkpoint import Described
    from t0.compat import seqio
    from t0.run.whole_evaluation import WholeEvaluation, flag_values
    from t0.tasks.recipe_tasks import t5_features
    from t0.testing.state import registries_restored

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: expected == "bfloat16")
    evaluation = WholeEvaluation(
        "out", "mine", ["mine"], activations="auto", engine="torch", device="cuda"
    )
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, ["validation"])
    with registries_restored():
        seqio.TaskRegistry.add("mine", source, preprocessors=[], output_features=t5_features())
        values = flag_values(Described("m", "m.ckpt-1", "m.gin"), evaluation)
    assert values["activation_dtype"] == expected
