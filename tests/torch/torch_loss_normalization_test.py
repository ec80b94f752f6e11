"""Loss per sequence, held-out loss of another task and model-info.txt: equal on both engines."""

import json
import re

import numpy as np
import pytest

from tests.torch.engine_world import losses, message
from tests.torch.torch_training_test import MICROBATCHES, begun, whole

torch = pytest.importorskip("torch")

from t0.torch.model import SUM_NAMES, sums  # noqa: E402
from t0.training.loop import LOSS_WEIGHTS, add_loss_weights  # noqa: E402

PER_SEQUENCE = [
    "--gin_param=train_loop.loss_average = 'sequences'",
    "--gin_param=train_loop.validate_every_steps = 10",
    "--gin_param=train_loop.validation_batches = 2",
    "--gin_param=train_loop.validation_mixture = 'weather_own_choices'",
]
RUNS = {
    "unpacked, microbatches": ["--gin_param=mesh_train_dataset_fn.pack = False", *MICROBATCHES],
    "packed": [],
}


def test_loss_sum_per_sequence_in_closed_form():
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 50)
    targets = np.array([[3, 1, 0, 0], [4, 7, 9, 1]])
    weights = torch.from_numpy(add_loss_weights({"targets": targets}, "sequences")[LOSS_WEIGHTS])
    flat = logits.flatten(0, 1), torch.from_numpy(targets).flatten()
    found = dict(zip(SUM_NAMES, sums(*flat, 0.01, 0.1, weights.flatten()).tolist(), strict=True))
    expected = [
        torch.nn.functional.cross_entropy(row[:count], target[:count], label_smoothing=0.1)
        + 0.01 * row[:count].logsumexp(-1).square().mean()
        for row, target, count in zip(logits, torch.from_numpy(targets), (2, 4), strict=True)
    ]
    assert found["loss"] == pytest.approx(float(sum(expected)) / 2, rel=1e-6)
    plain = dict(zip(SUM_NAMES, sums(*flat, 0.01, 0.1).tolist(), strict=True))
    assert plain["loss"] == pytest.approx(plain["nll"] + plain["z_loss"], rel=1e-6)


def held_out(folder):
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {x["step"]: x["validation_loss"] for x in records if "validation_loss" in x}


@pytest.mark.parametrize("run", RUNS)
def test_loss_per_sequence_and_validation_mixture_equal_mesh_tensorflow(world, run):
    flags = [*PER_SEQUENCE, *RUNS[run]]
    reference = whole(world, f"mesh per sequence {run}", *flags)
    processes = 2 if "micro" in run else 1
    folder = begun(world, reference, f"torch per sequence {run}")
    spec = world.specified(folder, 30, *flags)
    validation = json.loads(spec.read_text())["validation"]
    assert [task["name"] for task in validation["tasks"]] == ["weather_own_choices"]
    done = world.torch(spec, processes=processes)
    assert done.returncode == 0, done.stderr
    ours, theirs = losses(folder), losses(reference)
    assert theirs[30] < 0.5 * theirs[1]
    for step, loss in theirs.items():
        assert ours[step] == pytest.approx(loss, rel=1e-4), step
    assert held_out(folder) == pytest.approx(held_out(reference), rel=1e-4)
    assert set(held_out(folder)) == {10, 20, 30}
    info = [(path / "model-info.txt").read_text() for path in (folder, reference)]
    assert info[0] == info[1]
    assert re.search(r"shared/embedding +size \d+ +shape \(vocab=\d+, d_model=128\)", info[0])
    assert "_slot_vr" in info[0].partition("Total number of parameters: ")[2]


def test_loss_average_of_a_run_cannot_change_silently(world, tmp_path):
    folder = tmp_path / "model"
    done = world.torch(world.specified(folder, 1))
    assert done.returncode == 0, done.stderr
    done = world.torch(world.specified(folder, 2, *PER_SEQUENCE))
    assert done.returncode
    assert "train_loop.loss_average: was 'positions', is 'sequences'" in done.stderr


WRONG = {
    "weather_retel": "did you mean 'weather_retell",
    "broken_which_word": "has a split 'validation'.*train_loop.validation_mixture",
    "halfhidden_which_word": "cache",
}


@pytest.mark.parametrize("mixture", WRONG)
def test_validation_mixture_mistakes_give_one_line(world, tmp_path, mixture):
    flags = [*PER_SEQUENCE, f"--gin_param=train_loop.validation_mixture = '{mixture}'"]
    done = world.mesh(tmp_path / "model", 2, *flags)
    assert done.returncode
    assert "Traceback" not in done.stderr
    assert re.search(WRONG[mixture], done.stderr.splitlines()[-1], re.I), done.stderr


def test_loss_average_wrong_values_in_a_specification(world, tmp_path):
    spec = world.specified(tmp_path / "model", 2, training__loss_average="rows")
    assert "training.loss_average is 'rows'; expected 'positions' or" in message(world.torch(spec))
    conflict = "model__t5__loss_denominator"
    spec = world.specified(
        tmp_path / "model", 2, training__loss_average="tokens", **{conflict: 9.0}
    )
    assert "Unitransformer.loss_denominator = 9.0 are both set" in message(world.torch(spec))
