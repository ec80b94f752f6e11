"""Judged in a stream, as T5's metric judges lists; and in memory that examples do not fill."""

import functools
import math
import tracemalloc

import numpy as np
import pytest
from t5.evaluation import metrics as t5_metrics

from t0.errors import UserError
from t0.evaluation.batching import BatchLimits, SortedPlan
from t0.evaluation.rank_metrics import RankMetrics, classes_of
from t0.evaluation.ranked_examples import (
    AnswerChoice,
    MultipleChoiceExample,
    RankTaskFacts,
    count_task,
)
from t0.evaluation.ranking import score_tasks, with_scores
from t0.evaluation.records import record_of, sort_records
from t0.evaluation.results import CheckpointResults
from t0.prompts.templates import Template
from t0.tasks import PromptedTask, task_definitions

rank = t5_metrics.rank_classification


def with_classes(number):
    return functools.partial(rank, num_classes=number)


def made_up(seed, sizes, examples=300, rights=(1,)):
    """Examples of a model that is often undecided, with their scores."""
    rng = np.random.default_rng(seed)
    for idx in range(examples):
        count = int(rng.choice(sizes))
        right = rng.choice(count, size=min(count, int(rng.choice(rights))), replace=False)
        choices = tuple(
            AnswerChoice(
                "", tokens=np.ones(c + 1, np.int32), is_correct=c in right, inputs=np.ones(1)
            )
            for c in range(count)
        )
        yield MultipleChoiceExample(idx, choices), rng.integers(-9, 0, count).astype(np.float32) / 8


def accumulated(metric_fns, scored):
    metrics = RankMetrics(metric_fns)
    assert len(list(metrics.accumulate(scored))) == len(scored)
    return metrics


def as_lists(scored):
    """What T5's metric takes: of every choice a tuple and a score."""
    kept = [(example, row) for example, row in scored if not example.excluded]
    targets = [
        ((example.idx, number), choice.is_correct, 1.0, len(choice.tokens))
        for example, _ in kept
        for number, choice in enumerate(example.choices)
    ]
    return targets, [float(score) for _, row in kept for score in row]


@pytest.mark.parametrize(
    ("sizes", "metric"),
    [
        ([1, 2, 3, 7], rank),
        ([2], with_classes(2)),
        ([3], with_classes(3)),
        ([5], with_classes(5)),
        ([4], with_classes(None)),
        ([2, 4], functools.partial(rank, normalize_by_target_length=True)),
    ],
)
def test_rank_metrics_equal_t5(sizes, metric):
    for seed in range(4):
        scored = list(made_up(seed, sizes, rights=(0, 1, 1, 1, 1, 2)))
        metrics = accumulated([metric], scored)
        wanted = metric(*as_lists(scored))
        assert metrics.compute("t") == pytest.approx(wanted, abs=1e-9)
        counts = [len(row) for example, row in scored if not example.excluded]
        assert metrics.examples == len(counts) < 300
        assert metrics.chance == pytest.approx(np.mean(100 / np.array(counts)))
        rows = [row for example, row in scored if not example.excluded]
        assert metrics.ties == sum(list(row).count(max(row)) > 1 for row in rows)


def test_ties_predict_the_first_of_equal_scores():
    scored = [(next(made_up(0, [3]))[0], np.array([-1, -1, -1], np.float32))]
    right = scored[0][0].gold == 0
    assert accumulated([rank], scored).compute("t") == {"accuracy": 100.0 * right}


def test_rank_metrics_omit_auc_if_all_examples_have_one_class():
    scored = [pair for pair in made_up(1, [2]) if pair[0].gold == 1]
    found = accumulated([with_classes(2)], scored).compute("t")
    assert found.keys() == {"accuracy", "f1"}
    assert all(map(math.isfinite, found.values()))


def test_custom_metrics_get_lists_of_targets_and_scores():
    def count(targets, scores):
        return {"choices": len(targets), "sum": sum(scores)}

    scored = list(made_up(2, [2, 3], examples=20))
    found = accumulated([rank, count], scored).compute("t")
    targets, scores = as_lists(scored)
    assert found == {**rank(targets, scores), "choices": len(targets), "sum": sum(scores)}
    assert classes_of(count) is None


def test_rank_metrics_name_choices_missing_in_the_template():
    metrics = accumulated([with_classes(2)], list(made_up(3, [2, 3])))
    with pytest.raises(UserError, match=r"task rte: its template has 2 answer.*first: 3.*cache"):
        metrics.compute("rte")


@pytest.mark.parametrize(
    ("choices", "known"), [("yes ||| no ||| maybe", 3), ("{{ options | join('|||') }}", None)]
)
def test_template_number_of_classes_comes_from_answer_choices(choices, known):
    template = Template(
        name="x", jinja="a ||| b", answer_choices=choices, reference="", original_task=True,
        choices_in_prompt=False, metrics=("Accuracy",), id="x",
    )  # fmt: skip
    task = PromptedTask("made", "up", template, {}, {})
    (metric,) = task_definitions(task)["made_up_x_score_eval"]["metric_fns"]
    assert classes_of(metric) == (known,)


class _Guesses:
    """Scores without a model."""

    def score(self, batch):
        _, targets = batch.lay_out()
        return -1.0 - (targets.sum(-1) % 7).astype(np.float32)


def _records(examples):
    for idx in range(examples):
        for choice in range(4):
            yield {
                "idx": (idx, choice),
                "inputs": np.full(500, 1 + idx % 90, np.int32),
                "targets": np.array([1 + (idx * 31 + choice * 17) % 97, 1], np.int32),
                "is_correct": choice == idx % 4,
                "inputs_pretokenized": f"input {idx} " * 60,
                "targets_pretokenized": f"choice {choice} of {idx}",
            }


def _peak_bytes(folder, examples):
    """The most memory that Python holds while a task is scored, judged and written."""
    plan = SortedPlan(BatchLimits(8 * 508, 8 * 508))
    facts = RankTaskFacts("made_up", "mine", "", [with_classes(4)])
    task = count_task(facts, sort_records(map(record_of, _records(examples))), None)
    results = CheckpointResults(str(folder), {"step": 1}, ["made_up"])
    tracemalloc.start()
    for one, scores in score_tasks(
        _Guesses(), [task], plan, task_names=["made_up"], tick=lambda _: None
    ):
        results.add(one, with_scores(one, scores))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    lines = (folder / "scores" / "made_up_1.jsonl").read_text().count("\n")
    assert lines == examples
    return peak


@pytest.mark.slow
def test_rank_metrics_memory_does_not_grow_with_examples(tmp_path):
    _peak_bytes(tmp_path / "warm", 100)
    few, many = 200, 2000
    growth = _peak_bytes(tmp_path / "b", many) - _peak_bytes(tmp_path / "a", few)
    # An example's texts and arrays take over 3,000 bytes, T5's lists 1,300: here a few numbers.
    assert growth / (many - few) < 300
