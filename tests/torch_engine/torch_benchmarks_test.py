"""The benchmarks of the PyTorch engine: the models that they measure, and that gpu.py works."""

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
    from t0.mesh import formulas
    from t0.torch.shape import t5

    model = t5(runs.run(size, rows=2, lengths={"inputs": 8, "targets": 8}).model)
    assert formulas.parameters(model.sizes) == parameters
    assert model.dropout.residual == model.dropout.attention == model.dropout.hidden == 0.1
    assert model.z_loss == 1e-4


def test_benchmark_cache_folder_without_caches_is_refused(runs, tmp_path):
    from t0.errors import UserError

    with pytest.raises(UserError, match="has no task with a split 'train'"):
        runs.cached(tmp_path, "train", {"inputs": 8, "targets": 8})


@pytest.mark.exhaustive
def test_gpu_benchmark_runs_on_cpu_and_reports_missing_gpu():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    own = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def run(*words):
        command = [sys.executable, "-W", "ignore", BENCHMARKS / "gpu.py", *words]
        return subprocess.run(command, env=own, capture_output=True, text=True)

    without = run()
    assert without.returncode == 1 and "finds no GPU here" in without.stderr
    assert len(without.stderr.splitlines()) == 1
    tiny = ["--sizes", "tiny", "--shapes", "512+114", "--rounds=1", "--steps=1"]
    done = run("--device=cpu", *tiny)
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if "| tiny" in line]
    assert [row[3].strip() for row in rows] == ["ours", "Transformers", "Transformers, SDPA"], (
        done.stderr
    )
    assert all(float(row[4]) > 0 and "does not run" not in row[4] for row in rows)
