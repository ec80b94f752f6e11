"""The benchmarks of the PyTorch engine: the models that they measure, and that gpu.py works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def runs():
    sys.path.insert(0, str(BENCHMARKS))
    import torch_runs

    return torch_runs


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("small", 76_961_152), ("base", 247_577_856), ("large", 783_150_080)],  # as published
)
def test_benchmark_models_have_published_t5_parameter_counts(runs, size, parameters):
    from t0.config.model_spec import require_t5
    from t0.mesh import formulas

    model = require_t5(runs.run(size, rows=2, lengths={"inputs": 8, "targets": 8}).model)
    assert formulas.parameters(model.sizes) == parameters
    assert model.dropout.residual == model.dropout.attention == model.dropout.hidden == 0.1
    assert model.z_loss == 1e-4


def test_benchmark_cache_folder_without_caches_is_refused(runs, tmp_path):
    from t0.errors import UserError

    with pytest.raises(UserError, match="has no task with a split 'train'"):
        runs.cached(tmp_path, "train", {"inputs": 8, "targets": 8})


def _run(program, *words):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    command = [sys.executable, "-W", "ignore", BENCHMARKS / program, *words]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=own, capture_output=True, text=True)


@pytest.mark.parametrize("program", ["gpu.py", "gpu_acceptance.py"])
def test_gpu_benchmarks_report_a_missing_gpu_in_one_line(program):
    done = _run(program)
    assert done.returncode == 1 and "finds no GPU here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_gpu_acceptance_measures_gradients_memory_ranking_and_speed_on_cpu(tmp_path):
    parts = ["gradients", "xxl", "ranking", "speed"]
    done = _run(
        "gpu_acceptance.py", "--device=cpu", "--small", "--output", tmp_path, "--parts", *parts
    )
    found = json.loads((tmp_path / "gpu_acceptance.json").read_text())["parts"]
    assert all(len(found[part]) for part in parts), done.stderr
    assert "gradients: up to 150 s" in done.stderr
    runs = [
        (run["gradients"], run.get("equal losses"), run.get("largest"))
        for run in found["gradients"]
    ]
    keep = ("keep", None, None)
    assert runs == [keep, ("fused", True, 0.0), keep, ("offload", True, 0.0)]
    assert found["xxl"][0]["formula"] > 0
    assert found["ranking"][0]["ours"] > 0
    rates = {record["system"]: record["rate"] for record in found["speed"]}
    assert list(rates) == ["ours", "Transformers", "Transformers, SDPA"]
    assert all(rate > 0 for rate in rates.values())
