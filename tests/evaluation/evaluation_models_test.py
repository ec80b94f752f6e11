"""One evaluation for all engines: each gives the oracle's numbers, resumes, and divides its work.

An engine is a function in `ENGINES` that returns the `OpenModel` of a tiny T5.
"""

import functools
import json

import numpy as np
import pytest

from t0.evaluation import ranking
from t0.evaluation.batching import BatchLimits
from t0.evaluation.merging import merge
from t0.evaluation.model import Ability, DecodingMethod
from t0.evaluation.perplexity import measure
from t0.evaluation.rank_metrics import RankClassification
from t0.evaluation.ranked_examples import RankTaskFacts
from t0.evaluation.ranking import RankEvaluationSettings
from t0.evaluation.records import TaskRecords, record_of
from tests.evaluation.evaluation_runs import LIMITS, Vocabulary, make_records
from tests.evaluation.numpy_model import NumpyModel
from tests.evaluation.tiny_models import LAYOUT, bind, write_checkpoint
from tests.helpers.cases import one_quick
from tests.inference.tiny_generation import INPUTS, TWO_LAYERS, ending_variables, predict

TASKS = {"first": 7, "second": 12}
ROWS = 4


def _numpy():
    return NumpyModel


def _mesh():
    from t0.compat import mtf, optimize
    from t0.run import models

    kinds = ("master", "slice", "activation")
    bind("t5.1.1", TWO_LAYERS, *(f"get_variable_dtype.{k}_dtype = 'float32'" for k in kinds))
    arguments = {
        "model_type": "bitransformer",
        "vocabulary": Vocabulary(),
        "mesh_shape": mtf.convert_to_shape(""),
        "layout_rules": mtf.convert_to_layout_rules(LAYOUT),
        "mesh_devices": [""],
        "model_dir": "",
        "batch_size": ROWS,
        "sequence_length": LIMITS,
        "learning_rate_schedule": 0.1,
        "optimizer": optimize.AdafactorOptimizer,
    }
    return models.opener(arguments, "tensorflow")


def _torch():
    torch = pytest.importorskip("torch")
    from t0.torch.evaluation import open_model
    from t0.torch.processes import World
    from tests.torch.torch_generator_test import spec_of

    return functools.partial(open_model, spec_of("t5.1.1"), World(0, 1, torch.device("cpu")))


def _transformers():
    pytest.importorskip("transformers")
    from tests.evaluation.transformers_t5 import open_model

    return open_model


ENGINES = {"numpy": _numpy, "mesh": _mesh, "torch": _torch, "transformers": _transformers}


@pytest.fixture(params=ENGINES)
def open_model(request):
    return ENGINES[request.param]()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("models"), ending_variables(), step=7)


def opened(open_model, ability, checkpoint, **options):
    model = open_model(ability, dtype="float32", **options)
    assert model.restore(checkpoint) > 20
    return model


class Interrupted:
    """A model that is interrupted before one of its batches."""

    def __init__(self, model, batches):
        self._model, self._batches = model, batches

    def __getattr__(self, name):
        return getattr(self._model, name)

    def score(self, batch):
        if not self._batches:
            raise KeyboardInterrupt
        self._batches -= 1
        return self._model.score(batch)


def rank(open_model, checkpoint, folder, *, batches=None, shard=(0, 1)):
    """Ranks made-up records; returns the files of scores and results without times."""

    def open_maybe_interrupted(ability, **options):
        model = open_model(ability, **options)
        return model if batches is None else Interrupted(model, batches)

    ranking.rank(
        [{"step": 7, "checkpoint": checkpoint, "created": "then"}],
        str(folder),
        {
            name: (
                RankTaskFacts(name, f"data/{name}", "", [RankClassification(None)]),
                lambda by_row, seed=seed: TaskRecords(map(record_of, make_records(seed))),
            )
            for name, seed in TASKS.items()
        },
        lengths=LIMITS,
        open_model=open_maybe_interrupted,
        limits=lambda model: BatchLimits(tokens=160, target_tokens=60),
        settings=RankEvaluationSettings(shard_id=shard[0], num_shards=shard[1], max_shapes=2),
    )
    return contents(folder)


def contents(folder):
    files = [*folder.glob("scores/*.jsonl"), *folder.glob("results_*.json")]
    return {file.name: file.read_text() for file in files}


def log_likelihoods(files):
    lines = [json.loads(line) for name in sorted(files) for line in files[name].splitlines()
             if name.endswith(".jsonl")]  # fmt: skip
    return [choice["log_likelihood"] for line in lines for choice in line["choices"]]


def test_model_ranks_like_the_oracle(open_model, checkpoint, tmp_path):
    expected = rank(NumpyModel, checkpoint, tmp_path / "numpy")
    found = rank(open_model, checkpoint, tmp_path / "found")
    assert found.keys() == expected.keys()
    assert len(found) == 3
    np.testing.assert_allclose(log_likelihoods(found), log_likelihoods(expected), rtol=1e-4)
    tasks = [json.loads(files["results_7.json"])["tasks"] for files in (found, expected)]
    assert tasks[0] == tasks[1]


@pytest.mark.parametrize("open_model", one_quick(ENGINES), indirect=True)
def test_model_resumes_a_ranking_with_the_same_bits(open_model, checkpoint, tmp_path):
    expected = rank(open_model, checkpoint, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        rank(open_model, checkpoint, tmp_path / "killed", batches=3)
    assert not (tmp_path / "killed" / "results_7.json").exists()
    assert rank(open_model, checkpoint, tmp_path / "killed") == expected


@pytest.mark.parametrize("open_model", one_quick(ENGINES), indirect=True)
def test_model_ranks_in_shards_with_the_same_bits(open_model, checkpoint, tmp_path):
    expected = rank(open_model, checkpoint, tmp_path / "whole")
    for number in range(2):
        rank(open_model, checkpoint, tmp_path / "shards", shard=(number, 2))
    merge([str(tmp_path / "shards")], str(tmp_path / "merged"))
    found = contents(tmp_path / "merged")
    assert log_likelihoods(found) == log_likelihoods(expected)
    assert found.keys() == expected.keys()


METHODS = {
    "greedy": DecodingMethod(),
    "beams": DecodingMethod(beam_size=3),
    "draws": DecodingMethod(temperature=0.7, top_k=5),
}
# By default, all methods with the oracle only: `inference_generator_test` compares Mesh TensorFlow
# with it.
QUICK = [("numpy", name) for name in METHODS]


@pytest.mark.parametrize(
    ("open_model", "method"),
    [
        pytest.param(engine, method, marks=() if (engine, name) in QUICK else pytest.mark.slow)
        for engine in ENGINES
        for name, method in METHODS.items()
    ],
    ids=[f"{engine}-{name}" for engine in ENGINES for name in METHODS],
    indirect=["open_model"],
)
def test_model_generates_like_the_oracle(open_model, checkpoint, method):
    if open_model.__module__.endswith("transformers_t5") and method != DecodingMethod():
        pytest.skip("models of transformers decode greedily")
    limits = [14, 11, 12, 1]
    draws = np.random.default_rng(5).random((4, max(limits)), np.float32)
    oracle = opened(NumpyModel, Ability.GENERATE, checkpoint, method=method)
    expected = predict(oracle, limits=limits, draws=draws)
    model = opened(open_model, Ability.GENERATE, checkpoint, method=method)
    found = predict(model, limits=limits, draws=draws)
    alone = [
        predict(model, INPUTS[n : n + 1], limits[n : n + 1], draws=draws[n : n + 1])[0]
        for n in range(4)
    ]
    model.close()
    assert len({len(tokens) for tokens, _ in expected}) > 1  # rows end at different steps
    for outputs in (found, alone):
        assert [tokens for tokens, _ in outputs] == [tokens for tokens, _ in expected]
        np.testing.assert_allclose(
            [score for _, score in outputs], [score for _, score in expected], atol=1e-4
        )


def _held_out():
    """A batch of examples, of which the last is padding."""
    rng = np.random.default_rng(2)
    batch = {name: np.zeros((ROWS, length), np.int32) for name, length in LIMITS.items()}
    for name, lengths in (("inputs", (9, 1, 24)), ("targets", (2, 5, 3))):
        for row, length in enumerate(lengths):
            batch[name][row, :length] = [*rng.integers(3, 100, length - 1), 1]
    return batch


def test_model_measures_like_the_oracle(open_model, checkpoint, tmp_path):
    batch, features = _held_out(), ("inputs", "targets")

    def results(open_one, folder):
        model = opened(open_one, Ability.MEASURE, checkpoint, features=features)
        measure(
            {"text": lambda: iter([(batch, 3)])},
            model,
            checkpoints={7: checkpoint},
            folder=str(folder),
            facts={},
        )
        model.close()
        return json.loads((folder / "perplexity_7.json").read_text())["tasks"]["text"]

    expected = results(NumpyModel, tmp_path / "numpy")
    found = results(open_model, tmp_path / "found")
    assert (found["examples"], found["tokens"]) == (3, 10)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-4)


def test_model_results_do_not_depend_on_the_batch(open_model, checkpoint):
    batch = _held_out()
    model = opened(open_model, Ability.MEASURE, checkpoint, features=("inputs", "targets"))
    together = model.measure(batch)[:4]
    backwards = model.measure({name: rows[::-1].copy() for name, rows in batch.items()})[:4]
    alone = [
        model.measure(
            {name: np.where(np.arange(ROWS)[:, None] == n, rows, 0) for name, rows in batch.items()}
        )[:4]
        for n in range(ROWS)
    ]
    model.close()
    np.testing.assert_allclose(backwards, together, rtol=1e-5)
    np.testing.assert_allclose(np.sum(alone, axis=0), together, rtol=1e-5)
