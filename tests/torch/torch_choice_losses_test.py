"""T-Few's losses over answer choices: their values, gradients, and training with them."""

import json
import math

import numpy as np
import pytest

from tests.torch.engine_world import MODEL, losses, message

torch = pytest.importorskip("torch")

from t0.config.model_spec import (  # noqa: E402
    Dropout,
    ModelShape,  # noqa: E402
    T5Spec,
)
from t0.config.specification import ChoiceLosses  # noqa: E402
from t0.torch import model as engine_losses  # noqa: E402
from t0.torch.model import T5, move_to_device  # noqa: E402

ALONE = [ChoiceLosses(1.0), ChoiceLosses(0.0, 1.0), ChoiceLosses(0.0, 0.0, 1.0)]


def loss_of(logits, choices, factors):
    """The sum of an engine's losses, from the logits [B, C, L, V] at all positions."""
    predicted = choices.flatten().nonzero().squeeze(1)
    sums = engine_losses.choice_sums(logits.flatten(0, 2)[predicted], choices, predicted, factors)
    return dict(zip(engine_losses.SUM_NAMES, sums, strict=True))


def plain_losses(logits, choices):
    """Likelihood, unlikelihood and length-normalized loss of one example, as the paper has them.

    Args:
      logits: float64 [C, L, V].
      choices: the choices [C, L], the right one first.
    """
    likelihoods, unlikely, count = [], 0.0, 0
    for number, choice in enumerate(choices.tolist()):
        total, length = 0.0, 0
        for position, token in enumerate(choice):
            if token == 0:
                continue
            probability = torch.softmax(logits[number, position], -1)[token]
            total, length = total + probability.log(), length + 1
            if number > 0:
                unlikely, count = unlikely - (1 - probability).log(), count + 1
        if length:
            likelihoods.append(total / length)
    normalized = likelihoods[0].exp() / sum(each.exp() for each in likelihoods)
    return -likelihoods[0], unlikely / max(count, 1), -normalized.log()


def random_batch(draw):
    """Logits [B, C, L, V] and choices [B, C, L] of different lengths; some examples have fewer."""
    rows, most, length, vocabulary = (int(draw.integers(1, high)) for high in (5, 6, 5, 30))
    vocabulary += 2
    choices = np.zeros((rows, most, length), np.int64)
    for row in choices:
        for choice in row[: draw.integers(1, most + 1)]:
            tokens = draw.integers(1, length + 1)
            choice[:tokens] = draw.integers(1, vocabulary, tokens)
    logits = 3 * draw.standard_normal((rows, most, length, vocabulary))
    return torch.tensor(logits), torch.from_numpy(choices)


@pytest.mark.parametrize("seed", range(50))
def test_choice_losses_equal_a_plain_implementation(seed):
    draw = np.random.default_rng(seed)
    logits, choices = random_batch(draw)
    factors = ChoiceLosses(*draw.uniform(0, 2, 3).tolist())
    given = (factors.likelihood, factors.unlikelihood, factors.length_normalized)
    exact, narrow = logits.clone().requires_grad_(), logits.float().requires_grad_()
    expected = sum(
        factor * loss
        for row, example in zip(exact, choices, strict=True)
        for factor, loss in zip(given, plain_losses(row, example), strict=True)
    )
    loss = loss_of(narrow, choices, factors)["loss"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    loss.backward()
    torch.testing.assert_close(narrow.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)


def test_choice_losses_in_closed_form():
    # The right choice has one token with p = 1/2. The wrong choice has two with p = 1/4, so its
    # likelihood per token is 1/4.
    choices = torch.tensor([[[2, 0], [3, 1]]])
    right = [[0.2, 0.1, 0.5, 0.2], [1.0, 0, 0, 0]]
    wrong = [[0.5, 0.125, 0.125, 0.25], [0.5, 0.25, 0.125, 0.125]]
    probabilities = torch.tensor([[right, wrong]])
    expected = (math.log(2), math.log(4 / 3), math.log(3 / 2))
    for factors, value in zip(ALONE, expected, strict=True):
        values = loss_of(probabilities.log(), choices, factors)
        assert values["loss"].item() == pytest.approx(value, rel=1e-6)
        assert values["nll"].item() == pytest.approx(math.log(2), rel=1e-6)
        assert (values["tokens"], values["correct"], values["z_loss"]) == (1, 1, 0)
    # With equal logits, the loss over C choices is log C, whatever their lengths are.
    values = loss_of(torch.zeros(1, 2, 2, 4), choices, ALONE[2])
    assert values["loss"].item() == pytest.approx(math.log(2), rel=1e-6)


def test_choice_losses_stay_finite_if_a_wrong_choice_is_certain():
    logits = torch.zeros(1, 2, 1, 4)
    logits[0, 1, 0, 3] = 200.0
    logits.requires_grad_()
    loss = loss_of(logits, torch.tensor([[[2], [3]]]), ALONE[1])["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(200 - math.log(3), rel=1e-6)
    assert logits.grad[0, 1, 0].tolist() == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1], rel=1e-5)


def test_choice_losses_of_the_model_equal_scores_of_single_choices():
    """Each choice as an ordinary example of a training batch, with the same weights."""
    sizes = ModelShape(32, 16, 24, 16, 2, 8, 2, 2, gated=True, tied=False, shared_bias=True)
    spec = T5Spec(sizes, "gelu", Dropout(), label_smoothing=0.0, z_loss=0.0, loss_denominator=None)
    torch.manual_seed(1)
    model = T5(spec)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    draw = np.random.default_rng(2)
    inputs = draw.integers(2, 32, (3, 5))
    inputs[1, 3:] = 0
    choices = np.array([[[5, 6, 1], [7, 1, 0]], [[8, 1, 0], [0, 0, 0]], [[9, 1, 0], [9, 9, 1]]])
    batch = move_to_device({"inputs": inputs, "targets": choices}, torch.device("cpu"))
    scores = np.full((3, 2), -np.inf)
    for row, column in np.ndindex(3, 2):
        single = {"inputs": inputs[[row]], "targets": choices[row, [column]]}
        sums = model(move_to_device(single, torch.device("cpu")))
        if tokens := (choices[row, column] > 0).sum():
            scores[row, column] = -sums[0].item() / tokens
    model.choice_losses = ALONE[2]
    expected = (np.log(np.exp(scores).sum(1)) - scores[:, 0]).sum()
    assert model(batch)[-1].item() == pytest.approx(expected, rel=1e-5)
    model.choice_losses = ALONE[0]
    assert model(batch)[-1].item() == pytest.approx(-scores[:, 0].sum(), rel=1e-5)


TFEW = [
    "--gin_param=MIXTURE_NAME = 'weather_eval'",
    "--gin_param=mesh_train_dataset_fn.pack = False",
    "--gin_param=choice_losses.likelihood = 1.0",
    "--gin_param=choice_losses.unlikelihood = 1.0",
    "--gin_param=choice_losses.length_normalized = 1.0",
    "--gin_param=train_loop.validate_every_steps = 15",
]


@pytest.fixture(scope="module")
def tfew(world):
    """A model that the command trained for 30 steps with T-Few's losses."""
    folder = world.folder / "tfew"
    done = world.python(
        "-m", "t0.cli.mesh_transformer", *world.flags(folder, 30, *TFEW), "--engine=torch",
        "--device=cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_choice_losses_train_through_the_command(tfew):
    folder, out = tfew
    assert "4 sequences a step, inputs 64, targets 64" in out  # 4 choices of 16
    assert "(240 examples, " in out  # not records
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    held_out = [r["validation_loss"] for r in records if "validation_loss" in r]
    assert len(held_out) == 2 and held_out[1] < held_out[0]
    values = list(losses(folder).values())
    assert len(values) == 30 and sum(values[-5:]) < 0.7 * sum(values[:5])


def test_choice_losses_of_tfew_train_an_adapter(world, trained):
    """T-Few's run file: (IA)3 with the three losses."""
    folder = world.folder / "tfew adapter"
    flags = [
        "--gin_file=runs/tfew.gin",
        "--gin_param=MIXTURE_NAME = 'weather_eval'",
        "--gin_param=run.batch_size = 4",
        f"--checkpoint={trained['hf']}",
    ]
    done = world.torch(world.specified(folder, 12, *flags))
    assert done.returncode == 0, done.stderr
    assert "adapter: ia3, " in done.stdout
    assert "4 sequences a step, inputs 64, targets 64" in done.stdout
    values = list(losses(folder).values())
    assert len(values) == 12 and all(0 < value < 20 for value in values)
    assert (folder / "torch.ckpt-12" / "adapter_model.safetensors").exists()


def test_choice_losses_are_the_same_on_two_processes_and_after_a_restart(world, tfew, tmp_path):
    expected = losses(tfew[0])
    folder = tmp_path / "model"
    for steps, processes in ((12, 2), (30, 1)):
        spec = world.specified(folder, steps, *TFEW, model=[*MODEL])
        done = world.torch(spec, processes=processes)
        assert done.returncode == 0, done.stderr
    assert losses(folder) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("binding", "said"),
    [
        (
            "choice_losses.likelihood = -1",
            "choice_losses.likelihood is -1; expected a number from 0",
        ),
        ("choice_losses.unlikelihood = 1e999", "expected a finite number"),
        ("choice_losses.length_normalized = 'on'", "is 'on'; expected a number"),
        ("mesh_train_dataset_fn.pack = True", "packing would split the answer choices"),
        ("MIXTURE_NAME = 'weather_both'", "weather_which_word has records without answer choices"),
    ],
)
def test_choice_losses_unsuitable_settings_are_refused(world, tmp_path, binding, said):
    spec = f"--save_spec={tmp_path / 'spec.json'}"
    done = world.mesh(tmp_path / "model", 2, *TFEW, f"--gin_param={binding}", spec)
    assert done.returncode and said in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_choice_losses_of_a_specification_fit_its_data(world, tmp_path, factor):
    factors = dict.fromkeys(("likelihood", "unlikelihood", "length_normalized"), factor)
    flags = TFEW if factor == 0 else []
    spec = world.specified(tmp_path / "model", 2, *flags, choice_losses=factors)
    assert "write it again with" in message(world.torch(spec))


def test_choice_losses_count_examples_in_epochs(world, tmp_path):
    spec = f"--save_spec={tmp_path / 'spec.json'}"
    words = world.flags(tmp_path / "model", 2, *TFEW, spec)
    done = world.command(*[w for w in words if "train_steps" not in w], "--epochs=1")
    assert done.returncode == 0, done.stderr
    assert "480 examples at 4.0 a step are 120 steps" in done.stderr  # 1,522 records


def test_choice_losses_are_refused_by_the_other_engine(world, tmp_path):
    done = world.mesh(tmp_path / "model", 2, *TFEW)
    assert done.returncode and "only the PyTorch engine computes T-Few's losses" in done.stderr
    assert not list(tmp_path.rglob("model.ckpt*"))
