"""Whole rank evaluations over made-up tasks: their files hold what an independent computation gives."""

import collections
import hashlib
import json
import shutil

import numpy as np
import pytest
from t5.evaluation.metrics import rank_classification

from tests.evaluation.evaluation_runs import (
    LIMITS,
    SIGNATURE,
    by_hand,
    dataset,
    evaluate,
    evaluate_on_mesh,
    make_records,
    read_scores,
)
from tests.evaluation.numpy_model import NumpyModel
from tests.evaluation.tiny_models import random_variables, write_checkpoint
from tests.helpers.cases import one_quick

import tensorflow as tf  # isort: skip
from mesh_tensorflow.transformer.dataset import EvalDataset

from t0.errors import UserError
from t0.evaluation.results import CheckpointResults


@pytest.fixture(scope="module")
def variables():
    return random_variables("t5.1.1", seed=5)


@pytest.fixture(scope="module")
def written(tmp_path_factory, variables):
    folder = tmp_path_factory.mktemp("written")
    write_checkpoint(folder, variables, step=7)
    return folder


@pytest.fixture
def model_dir(tmp_path, written):
    for path in written.iterdir():
        shutil.copy(path, tmp_path)
    state = tmp_path / "checkpoint"
    state.write_text(state.read_text().replace(str(written), str(tmp_path)))
    return tmp_path


@pytest.mark.parametrize(
    ("run", "limits", "differing_inputs"),
    [
        (evaluate_on_mesh, LIMITS, True),
        *(
            pytest.param(evaluate_on_mesh, *given, marks=pytest.mark.slow)
            for given in [(None, False), (LIMITS, False), (None, True)]
        ),
        *(
            (evaluate, limits, differing)
            for limits in (LIMITS, None)
            for differing in (True, False)
        ),
    ],
)
def test_rank_evaluation_files_equal_computation_by_hand(
    model_dir, variables, run, limits, differing_inputs
):
    records = make_records(0, differing_inputs=differing_inputs)
    folder = run(model_dir, [dataset("made_up", records)], limits=limits)
    wanted = by_hand(variables, records, limits)

    lines = read_scores(folder, "made_up", 7)
    assert [line["idx"] for line in lines] == list(range(14))
    for record, score in zip(records, wanted, strict=True):
        example, choice = record["idx"]
        line = lines[example]
        assert line["choices"][choice]["log_likelihood"] == pytest.approx(score, abs=1e-4)
        assert line["choices"][choice]["text"] == f"choice {choice}"
        assert (line["gold"] == choice) == record["is_correct"]

    flat = [((tuple(r["idx"]), r["is_correct"], 1.0, len(r["targets"]))) for r in records]
    result = json.loads((folder / "results_7.json").read_text())["tasks"]["made_up"]
    assert result["metrics"]["accuracy"] == pytest.approx(
        rank_classification(flat, wanted)["accuracy"]
    )
    recomputed = np.mean([line["prediction"] == line["gold"] for line in lines])
    assert result["metrics"]["accuracy"] == pytest.approx(100 * recomputed)
    assert result["examples"] == 14
    cut = [r for r in records if len(r["targets"]) > 5] if limits else []
    assert result["truncated_targets"] == len(cut)
    inputs = {int(r["idx"][0]) for r in records if len(r["inputs"]) > 24} if limits else ()
    assert result["truncated_inputs"] == len(inputs)


@pytest.mark.slow
def test_rank_evaluation_does_not_depend_on_batch_or_mesh(model_dir):
    records = make_records(3, examples=9)

    def scores(**arguments):
        folder = evaluate_on_mesh(model_dir, [dataset("made_up", records)], **arguments)
        lines = read_scores(folder, "made_up", 7)
        return np.array([c["log_likelihood"] for line in lines for c in line["choices"]])

    wanted = scores(batch_size=64)
    for other in (
        scores(batch_size=1),
        scores(batch_size=7),
        scores(batch_size=64, shapes=3),
        scores(mesh="batch:2"),
    ):
        np.testing.assert_allclose(other, wanted, atol=2e-5)


def test_excluded_examples_without_one_correct_choice_are_counted(model_dir, variables):
    def correct(example):
        return {0: [], 1: [0, 1]}.get(example, [0])

    records = make_records(1, correct=correct)
    folder = evaluate(model_dir, [dataset("made_up", records)])
    result = json.loads((folder / "results_7.json").read_text())["tasks"]["made_up"]
    assert result["excluded"] == {"no correct choice": 1, "several correct choices": 1}
    assert result["excluded_examples"] == {"no correct choice": [0], "several correct choices": [1]}
    assert result["examples"] == 12
    lines = read_scores(folder, "made_up", 7)
    assert len(lines) == 14
    judged = [line for line in lines if line["gold"] >= 0]
    assert len(judged) == 12
    right = np.mean([line["prediction"] == line["gold"] for line in judged])
    assert result["metrics"]["accuracy"] == pytest.approx(100 * right)


@pytest.mark.parametrize(
    ("correct", "params", "message"),
    [
        (lambda example: [], (), "none of its 14 examples has a correct choice.*hidden"),
        (lambda example: [0, 1], ("score_eval.max_excluded_share = 1.0",), "several correct"),
        (
            lambda example: [] if example < 9 else [0],
            (),
            "9 of 14 examples.*the first: example 0, no correct choice.*score_eval.max_excluded",
        ),
    ],
)
def test_rank_evaluation_without_usable_labels_is_refused(model_dir, correct, params, message):
    records = make_records(1, correct=correct)
    with pytest.raises(UserError, match=message):
        evaluate(model_dir, [dataset("made_up", records)], params=params)
    assert not list(model_dir.rglob("results_*.json"))


def test_excluded_examples_share_is_a_setting(model_dir):
    records = make_records(1, examples=6, correct=lambda example: [] if example < 4 else [0])
    params = ["score_eval.max_excluded_share = 0.7"]
    folder = evaluate(model_dir, [dataset("made_up", records)], params=params)
    result = json.loads((folder / "results_7.json").read_text())["tasks"]["made_up"]
    assert result["examples"] == 2


def test_rank_evaluation_with_nan_weights_is_refused(tmp_path, variables):
    broken = {**variables, "encoder/rms_norm/scale": np.full(16, np.nan, np.float32)}
    write_checkpoint(tmp_path, broken)
    with pytest.raises(UserError, match="made_up: a choice .* nan; .*weights are broken"):
        evaluate(tmp_path, [dataset("made_up", make_records(0, examples=2))])
    assert not list(tmp_path.rglob("*.json*"))


def test_rank_evaluation_of_plain_task_or_empty_split_is_refused(model_dir):
    plain = {"inputs": np.array([4]), "targets": np.array([1])}
    signature = {name: SIGNATURE[name] for name in plain}

    def dataset_fn():
        return tf.data.Dataset.from_generator(lambda: iter([plain]), output_signature=signature)

    with pytest.raises(UserError, match="not a rank-evaluation task.*plain_score_eval"):
        evaluate(model_dir, [EvalDataset("plain", dataset_fn, None, [rank_classification])])
    with pytest.raises(UserError, match="made_up has no examples in this split"):
        evaluate(model_dir, [dataset("made_up", [])])
    with pytest.raises(UserError, match="no task of the mixture has a split 'validation'"):
        evaluate(model_dir, [])


def test_rank_evaluation_writes_results_per_checkpoint(model_dir, variables):
    other = random_variables("t5.1.1", seed=6)
    write_checkpoint(model_dir, other, step=9)
    records = make_records(2, examples=4)
    folder = evaluate(model_dir, [dataset("made_up", records)], step="all")
    for step, weights in ((7, variables), (9, other)):
        lines = read_scores(folder, "made_up", step)
        for record, score in zip(records, by_hand(weights, records), strict=True):
            example, choice = record["idx"]
            found = lines[example]["choices"][choice]["log_likelihood"]
            assert found == pytest.approx(score, abs=1e-4)
        run = json.loads((folder / f"results_{step}.json").read_text())["run"]
        assert run["step"] == step
        assert run["vocabulary"] == "made/up.model"
        assert run["vocabulary_sha256"] == hashlib.sha256(b"pieces").hexdigest()
        assert (run["dtype"], run["split"]) == ("float32", "validation")
        assert run["template_version"] == "promptsource 0.1.0"
        assert run["sequence_length"] == LIMITS


@pytest.mark.slow
def test_rank_evaluation_takes_a_list_of_steps(model_dir, variables):
    for step in (8, 9):
        write_checkpoint(model_dir, variables, step=step)
    folder = evaluate(model_dir, [dataset("made_up", make_records(2))], step=[7, 9])
    assert {path.name for path in folder.glob("*.json")} == {"results_7.json", "results_9.json"}


def test_tensorboard_events_of_each_step_have_published_tags(model_dir, variables):
    """TensorFlow names event files by the second, in which more than one step can be scored."""
    write_checkpoint(model_dir, variables, step=8)
    folder = evaluate(model_dir, [dataset("made_up", make_records(2))], step="all")
    found = [
        (event.step, value.tag, value.simple_value)
        for path in folder.glob("events.out.tfevents.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    ]
    results = {step: json.loads((folder / f"results_{step}.json").read_text()) for step in (7, 8)}
    accuracies = {step: r["tasks"]["made_up"]["metrics"]["accuracy"] for step, r in results.items()}
    assert sorted(found) == [
        (step, "eval/made_up/accuracy", pytest.approx(value)) for step, value in accuracies.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shapes", one_quick([3, 1]))
def test_rank_evaluation_tasks_share_batches_and_keep_scores(model_dir, variables, shapes):
    tasks = {f"task_{i}": make_records(20 + i, examples=2 + i % 3) for i in range(12)}
    folder = evaluate_on_mesh(model_dir, [dataset(*task) for task in tasks.items()], shapes=shapes)
    assert list(json.loads((folder / "results_7.json").read_text())["tasks"]) == list(tasks)
    for name, records in tasks.items():
        lines = read_scores(folder, name, 7)
        for record, score in zip(records, by_hand(variables, records), strict=True):
            example, choice = record["idx"]
            found = lines[example]["choices"][choice]["log_likelihood"]
            assert found == pytest.approx(score, abs=1e-4)


class NoisyModel(NumpyModel):
    """Its scores depend on the batch in which a choice is, as rounding does."""

    def score(self, batch):
        return super().score(batch) + np.float32(batch.lay_out()[0].sum() % 101 / 1000)


def test_resume_of_rank_evaluation_after_last_finished_task(model_dir, monkeypatch, capsys):
    names = ("first", "second", "third")
    tasks = {name: make_records(seed, examples=4) for seed, name in enumerate(names)}
    read = []

    def noted(name):
        made = dataset(name, tasks[name])

        def dataset_fn():
            read.append(name)
            return made.dataset_fn()

        return made._replace(dataset_fn=dataset_fn)

    def run():
        # No limits: with as few examples, too many of a task's targets would be cut.
        datasets = [noted(name) for name in tasks]
        return evaluate(model_dir, datasets, limits=None, open_model=NoisyModel)

    def files():
        scores = {name: (folder / "scores" / f"{name}_7.jsonl").read_text() for name in tasks}
        return scores, json.loads((folder / "results_7.json").read_text())["tasks"]

    folder = model_dir / "validation_eval"
    add, finished = CheckpointResults.add, []

    def interrupted(self, task, scored):
        if finished:
            raise KeyboardInterrupt
        finished.append(task.name)
        return add(self, task, scored)

    monkeypatch.setattr(CheckpointResults, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert not (folder / "results_7.json").exists()
    monkeypatch.setattr(CheckpointResults, "add", add)

    del read[:]
    capsys.readouterr()
    run()
    out = capsys.readouterr().out
    assert "1 of 3 tasks were finished before" in out
    left = sum(len(records) for name, records in tasks.items() if name not in finished)
    assert f"scored {left} choices" in out
    scores, results = files()
    assert sorted(read) == sorted(tasks)
    assert not list(folder.glob("unfinished*"))

    # A finished evaluation is done anew when it is asked for again.
    del read[:]
    run()
    assert sorted(read) == sorted(tasks)
    assert "finished before" not in capsys.readouterr().out
    # Batches are planned from all tasks: the same scores to the last bit.
    whole_scores, whole_results = files()
    assert scores == whole_scores
    assert list(results.items()) == list(whole_results.items())


def test_resume_with_changed_checkpoint_scores_again(model_dir, variables, monkeypatch):
    tasks = [dataset("made_up", make_records(0))]

    def fails(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(CheckpointResults, "write", fails)
        evaluate(model_dir, tasks)
    other = random_variables("t5.1.1", seed=6)
    write_checkpoint(model_dir, other, step=7)
    folder = evaluate(model_dir, tasks)
    line = read_scores(folder, "made_up", 7)[0]
    record = next(r for r in make_records(0) if list(r["idx"]) == [0, 0])
    (score,) = by_hand(other, [record])
    assert line["choices"][0]["log_likelihood"] == pytest.approx(score, abs=1e-4)


@pytest.mark.slow
def test_rank_evaluation_bfloat16_is_a_setting(model_dir, variables):
    records = make_records(0)
    params = ["score_eval.dtype = 'bfloat16'"]
    folder = evaluate_on_mesh(model_dir, [dataset("made_up", records)], params=params)
    lines = read_scores(folder, "made_up", 7)
    found = np.array(
        [lines[r["idx"][0]]["choices"][r["idx"][1]]["log_likelihood"] for r in records]
    )
    wanted = np.array(by_hand(variables, records))
    assert 1e-4 < np.abs(found - wanted).max() < 2.0
    assert json.loads((folder / "results_7.json").read_text())["run"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dtype = 'float16'", "score_eval.dtype is 'float16'; expected 'float32' or 'bfloat16'"),
        ("max_shapes = 0", "score_eval.max_shapes is 0; expected a whole number from 1"),
        ("max_excluded_share = 5", "max_excluded_share is 5; expected a number from 0 to 1"),
    ],
)
def test_rank_evaluation_invalid_setting_is_refused(model_dir, setting, message):
    with pytest.raises(UserError, match=message):
        evaluate(model_dir, [dataset("made_up", [])], params=[f"score_eval.{setting}"])


def test_truncation_of_too_many_targets_is_refused(model_dir):
    records = make_records(0)
    with pytest.raises(UserError, match=r"made_up: \d+ of \d+ choices are longer than 2 tokens"):
        evaluate(model_dir, [dataset("made_up", records)], limits={"inputs": 24, "targets": 2})
    params = ["score_eval.max_truncated_targets_share = 1.0"]
    folder = evaluate(
        model_dir, [dataset("made_up", records)], limits={"inputs": 24, "targets": 2}, params=params
    )
    result = json.loads((folder / "results_7.json").read_text())["tasks"]["made_up"]
    assert result["truncated_targets"] == len(records)


def test_ties_are_counted_and_equal_choices_are_excluded(model_dir):
    records = make_records(0, correct=lambda example: [2])
    numbers = collections.Counter(int(record["idx"][0]) for record in records)
    equal, *same = [example for example in sorted(numbers) if numbers[example] == 3][:3]
    for record in records:
        if record["idx"][0] == equal:
            record["targets"] = np.array([5, 1], np.int32)
        elif record["idx"][0] in same:  # the two wrong choices tie, and are shorter
            ids = [5, 6, 7, 8, 1] if record["is_correct"] else [5, 1]
            record["targets"] = np.array(ids, np.int32)
    folder = evaluate(model_dir, [dataset("made_up", records)])
    result = json.loads((folder / "results_7.json").read_text())["tasks"]["made_up"]
    lines = read_scores(folder, "made_up", 7)
    nats = [[choice["log_likelihood"] for choice in line["choices"]] for line in lines]
    assert result["ties"] == len(same)
    assert all(lines[idx]["prediction"] == 0 and nats[idx][0] == nats[idx][1] for idx in same)
    reason = "the right choice has the same tokens as a wrong one"
    assert result["excluded_examples"][reason] == [equal]
    assert lines[equal]["gold"] == -1
