"""A device beside the CPU in float32: losses, gradients, steps, resuming, ranking, decoding.

Needs no TensorFlow and no other test's fixtures, so that `bin/gpu_acceptance` runs it anywhere.
What a GPU computes is held to these tolerances, relative to the CPU's result.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import torch_runs  # noqa: E402

from t0.config.model_spec import Dropout, require_t5  # noqa: E402
from t0.evaluation.model import DecodingMethod  # noqa: E402
from t0.torch import evaluation, processes, torch_session  # noqa: E402
from t0.torch.generator import TorchGenerator  # noqa: E402
from t0.torch.model import KERNELS, T5, move_to_device  # noqa: E402
from t0.training.loop import LoopOptions  # noqa: E402

LENGTHS = {"inputs": 150, "targets": 24}  # distances go beyond the largest bucket
ROWS = 4
CPU = torch.device("cpu")
# Type of activations -> what a loss, and what the gradients of a weight may differ by.
TOLERANCES = {"float32": (1e-5, 1e-3), "bfloat16": (0.01, 0.06)}
GPUS = torch.cuda.device_count()
CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no GPU here")]
)
PLACES = pytest.mark.parametrize("place", ["cpu", CUDA])


@pytest.fixture(autouse=True)
def _exact_products():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def spec_of(folder="", microbatches=1):
    spec = torch_runs.run("tiny", rows=ROWS, lengths=LENGTHS, microbatches=microbatches)
    return dataclasses.replace(spec, model_dir=str(folder))


def model_spec():
    return dataclasses.replace(require_t5(spec_of().model), dropout=Dropout())


def batch(seed=0):
    draw = np.random.default_rng(seed)
    found = {n: draw.integers(2, 30000, (ROWS, x)).astype(np.int32) for n, x in LENGTHS.items()}
    found["targets"][1, 15:] = 0
    found["inputs"][2, 100:] = 0
    for name, values in list(found.items()):
        segments = np.sort(draw.integers(1, 4, values.shape), 1)
        found[f"{name}_segmentation"] = (segments * (values > 0)).astype(np.int32)
    return found


def filled(model):
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw).mul(0.08))
    return model


def gradients(place, dtype, kernel="auto"):
    """The loss, and name -> gradient of a model with dropout of none."""
    device = torch.device(place)
    model = filled(T5(model_spec())).to(device, dtype).train()
    model.set_attention_kernel(kernel)
    sums = model(move_to_device(batch(), device))
    (sums[0] + sums[1]).backward()
    return float(sums[0]), {n: p.grad.cpu().float() for n, p in model.named_parameters()}


@pytest.fixture(scope="module")
def exact():
    return gradients("cpu", torch.float32)


def check_gradients(found, exact, name):
    (loss, grads), (true_loss, true) = found, exact
    of_loss, of_gradient = TOLERANCES[name]
    assert loss == pytest.approx(true_loss, rel=of_loss)
    for weight, expected in true.items():
        apart = float((grads[weight] - expected).norm() / expected.norm())
        assert apart < of_gradient, weight


@PLACES
@pytest.mark.parametrize("name", TOLERANCES)
def test_device_losses_and_gradients_equal_cpu(place, name, exact):
    check_gradients(gradients(place, getattr(torch, name)), exact, name)


@pytest.mark.gpu
@pytest.mark.skipif(not GPUS, reason="no GPU here")
@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_attention_kernels_on_gpu_equal_cpu_gradients(kernel, name, exact):
    found = gradients("cuda", getattr(torch, name), kernel)
    apart = {w: float((found[1][w] - x).norm() / x.norm()) for w, x in exact[1].items()}
    print(kernel, name, sorted(apart.items(), key=lambda each: -each[1])[:6])
    # Kernels that keep no probabilities round their gradients' sums to bfloat16.
    of_loss, of_gradient = {"float32": (1e-4, 5e-3), "bfloat16": (0.01, 0.2)}[name]
    assert found[0] == pytest.approx(exact[0], rel=of_loss)
    assert max(apart.values()) < of_gradient


def engine(joined, folder="", name="float32", **settings):
    parts = settings.pop("microbatches", 1)
    made = torch_session.TorchEngine(
        dataclasses.replace(spec_of(folder, parts)),
        LoopOptions(train_steps=100),
        None,
        joined,
        torch_session.ComputeOptions(getattr(torch, name), **settings),
    )
    made.fill_at_random()
    return made


def losses(place, steps=4, **given):
    """The losses of steps without dropout, by an engine of its own."""
    with processes.join_processes(place) as joined:
        made = engine(joined, **given)
        for model in (made.model, made._replayed and made._replayed._local):
            for module in model.modules() if model else ():
                if hasattr(module, "_rate"):
                    module._rate = 0.0
        return [made.take(batch(step))["loss"] for step in range(steps)]


@pytest.fixture(scope="module")
def exact_losses():
    return losses("cpu")


@PLACES
@pytest.mark.parametrize(
    ("settings", "apart"),
    [
        ({"name": "float32"}, 1e-3),
        ({"name": "bfloat16"}, 0.01),
        ({"name": "bfloat16", "microbatches": 2, "recompute": "on"}, 0.01),
    ],
    ids=["float32", "bfloat16", "recomputed"],
)
def test_device_training_step_losses_equal_cpu(place, settings, apart, exact_losses):
    # The third step of a GPU is the first that is replayed.
    assert losses(place, **settings) == pytest.approx(exact_losses, rel=apart)
    assert exact_losses[-1] < exact_losses[0] + 1


@pytest.mark.gpu
@pytest.mark.skipif(not GPUS, reason="no GPU here")
def test_compiled_training_step_losses_equal_cpu(exact_losses):
    assert losses("cuda", name="bfloat16", compiled=True) == pytest.approx(exact_losses, rel=0.01)


def saved(folder, place="cpu", name="float32"):
    """Writes the checkpoint of step 2; returns what step 3 has."""
    with processes.join_processes(place) as joined:
        made = engine(joined, folder, name)
        for step in range(2):
            made.take(batch(step))
        made.save(2, {"began": 0, "seed": 0, "position": None, "own": [2]}, None)
        return made.take(batch(2))


@PLACES
@pytest.mark.parametrize("name", TOLERANCES)
def test_resume_on_device_gives_the_same_next_loss(place, name, tmp_path):
    expected = saved(tmp_path, place, name)
    with processes.join_processes(place) as joined:
        made = engine(joined, tmp_path, name)
        made.checkpoints.restore(2)
        made._step = 2
        found = made.take(batch(2))
    # Bit for bit on a CPU; a GPU sums gradients of embeddings in any order.
    apart = 0 if place == "cpu" else 1e-5
    assert found["loss"] == pytest.approx(expected["loss"], rel=apart)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    saved(folder)
    return str(folder / "torch.ckpt-2")


def likelihoods(place, name, checkpoint):
    draw = np.random.default_rng(1)
    inputs, targets = draw.integers(2, 30000, (3, 90)), draw.integers(2, 30000, (3, 4, 11))
    targets[0, 1, 5:] = targets[2, 3] = 0
    with processes.join_processes(place) as joined:
        scorer = evaluation.ShardedScorer(model_spec(), joined, getattr(torch, name))
        scorer.restore(checkpoint)
        return scorer.log_likelihoods(inputs.astype(np.int32), targets.astype(np.int32))


@PLACES
@pytest.mark.parametrize(("name", "apart"), [("float32", 1e-4), ("bfloat16", 0.02)])
def test_device_log_likelihoods_equal_cpu(place, name, apart, checkpoint):
    found = likelihoods(place, name, checkpoint)
    expected = likelihoods("cpu", "float32", checkpoint)
    assert expected[2, 3] == found[2, 3] == 0
    np.testing.assert_allclose(found, expected, rtol=apart, atol=apart)


def predicted(place, name, beams, checkpoint):
    method = DecodingMethod(beam_size=beams, alpha=0.6)
    generator = TorchGenerator(model_spec(), torch.device(place), getattr(torch, name), method)
    generator.restore(checkpoint)
    inputs = np.random.default_rng(2).integers(2, 30000, (5, 40)).astype(np.int32)
    inputs[3, 20:] = 0
    limits = np.array([12, 12, 7, 12, 0], np.int32)
    return generator.generate(inputs, limits, np.zeros((5, 12), np.float32))


@PLACES
@pytest.mark.parametrize("beams", [1, 4])
def test_device_greedy_and_beam_search_predictions_equal_cpu(place, beams, checkpoint):
    tokens, scores = predicted(place, "float32", beams, checkpoint)
    expected, nats = predicted("cpu", "float32", beams, checkpoint)
    assert np.array_equal(tokens, expected)
    np.testing.assert_allclose(scores, nats, rtol=1e-4, atol=1e-3)
    rounded = predicted(place, "bfloat16", beams, checkpoint)[1]
    np.testing.assert_allclose(rounded, nats, rtol=0.05, atol=0.1)


TWO_GPUS = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="there are not two GPUs here")],
)


@pytest.mark.parametrize("place", ["cpu", TWO_GPUS])
def test_sharding_over_two_processes_gives_losses_of_one(place, exact_losses):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [sys.executable, *launch, __file__, place],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    kept, fused = (json.loads(x) for x in done.stdout.splitlines() if x.startswith("["))
    assert kept == pytest.approx(exact_losses, rel=1e-4)
    assert fused == pytest.approx(exact_losses, rel=1e-4)


if __name__ == "__main__":
    for choice in ("keep", "fused"):
        printed = json.dumps(losses(sys.argv[1], gradients=choice))
        if os.environ["RANK"] == "0":
            print(printed, flush=True)
