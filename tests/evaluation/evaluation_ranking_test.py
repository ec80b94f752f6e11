"""On a fixture the ranking equals one-forward-per-choice in every example, in float32.

One forward for each choice is made twice: by an independent computation without any padding, and
by the same model with a batch of one input and one choice.
"""

import re

import numpy as np
import pytest

from t0.evaluation import ranking
from t0.evaluation import scorer as scorer_module
from tests.evaluation import readable_examples
from tests.evaluation.evaluation_runs import dataset, evaluate_on_mesh, read_scores
from tests.evaluation.numpy_t5 import NumpyT5
from tests.evaluation.tiny_models import make_scorer, random_variables, write_checkpoint

LIMITS = {"inputs": 80, "targets": 20}


@pytest.fixture(scope="module")
def variables():
    return readable_examples.twin_variables(random_variables("t5.1.1", seed=8))


@pytest.fixture(scope="module")
def checkpoint(variables, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("ranked"), variables, step=7)


@pytest.fixture(scope="module")
def unpadded(variables):
    """The log-likelihoods of each example's choices, in float64."""
    model = NumpyT5(variables)
    return [
        np.array([model.log_likelihood(inputs, choice) for choice in choices])
        for inputs, choices in readable_examples.examples()
    ]


@pytest.fixture(scope="module")
def one_by_one(checkpoint):
    """The same from a batch of one input and one choice, in float32."""
    scorer = make_scorer()
    scorer.restore(checkpoint)

    def score(inputs, choice):
        padded = np.zeros((1, LIMITS["inputs"]), np.int32)
        targets = np.zeros((1, 1, LIMITS["targets"]), np.int32)
        padded[0, : len(inputs)], targets[0, 0, : len(choice)] = inputs, choice
        return scorer.log_likelihoods(padded, targets)[0, 0]

    yield [
        np.array([score(inputs, choice) for choice in choices])
        for inputs, choices in readable_examples.examples()
    ]
    scorer.close()


@pytest.fixture
def ranked(checkpoint, tmp_path, capsys):
    """Runs the evaluation; returns each example's line, and the number of batch shapes."""

    def run(**arguments):
        folder = evaluate_on_mesh(
            tmp_path,
            [dataset("readable", readable_examples.records())],
            limits=LIMITS,
            checkpoint=checkpoint,
            **arguments,
        )
        made = re.search(r"in (\d+) batch shapes?;", capsys.readouterr().out)
        return read_scores(folder, "readable", 7), int(made[1]) if made else None

    return run


def order(scores):
    """The choices from the likeliest to the least; of equal ones the first comes first."""
    return np.argsort(-np.asarray(scores), kind="stable").tolist()


def scores_of(line):
    return [choice["log_likelihood"] for choice in line["choices"]]


def test_ranking_fixture_has_near_ties(unpadded):
    gaps = [gap for scores in unpadded for gap in np.diff(np.sort(scores))]
    near = [gap for gap in gaps if 0 < gap < 1e-2]
    assert len(near) >= 4
    assert min(near) > 1e-5  # float32 can tell
    assert gaps.count(0.0) == 1  # the same choice twice
    counts = {len(scores) for scores in unpadded}
    assert counts == {2, 3, 4, 5, 7}


@pytest.mark.parametrize(
    ("packs", "shapes", "batch_size", "mesh"),
    [
        pytest.param(True, 1, 64, "", marks=pytest.mark.slow),
        pytest.param(True, 1, 1, "", marks=pytest.mark.slow),
        pytest.param(True, 1, 7, "batch:2", marks=pytest.mark.slow),
        pytest.param(False, 3, 1, "", marks=pytest.mark.slow),
        pytest.param(False, 5, 64, "", marks=pytest.mark.slow),
        pytest.param(False, 5, 7, "batch:2", marks=pytest.mark.slow),
        pytest.param(False, 2, 64, "model:2", marks=pytest.mark.slow),
    ],
)
def test_ranking_equals_one_forward_pass_per_choice(  # noqa: PLR0913
    ranked, unpadded, one_by_one, packs, shapes, batch_size, mesh, monkeypatch
):
    if not packs:
        monkeypatch.setattr(scorer_module, "pack_attention", lambda *_: False)
    lines, made = ranked(shapes=shapes, batch_size=batch_size, mesh=mesh)
    assert made == (shapes if packs else None)
    assert len(lines) == len(unpadded)
    for line, exact, single in zip(lines, unpadded, one_by_one, strict=True):
        found = scores_of(line)
        np.testing.assert_allclose(found, exact, atol=1e-4)
        assert order(found) == order(exact) == order(single), line["inputs"]
        assert line["prediction"] == int(np.argmax(exact))


def test_prompts_of_a_dataset_share_a_line():
    def entry(accuracy, examples, excluded):
        counts = {"truncated_inputs": 1, "truncated_targets": 0, "excluded": {"no": excluded}}
        return {"metrics": {"accuracy": accuracy}, "chance": 50.0, "examples": examples, **counts}

    entries = {"rte_a": entry(40.0, 10, 0), "rte_b": entry(61.0, 9, 2)}
    assert ranking.dataset_line("rte", entries) == (
        " 50.5 %  (chance 50.0 %)  rte: mean of 2 prompts (40.0 to 61.0), 19 examples, "
        "2 left out, 2 truncated"
    )
    del entries["rte_b"]
    assert ranking.dataset_line("rte", entries) == (
        " 40.0 %  (chance 50.0 %)  rte_a: 10 examples, 1 truncated"
    )
    shard = {"scored": 3, "choices": 8}
    assert ranking.dataset_line("rte", {"a": shard, "b": shard}) == (
        "rte: 6 of 16 choices are in this shard"
    )
