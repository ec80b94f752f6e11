from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from t0.reports import accuracies, read_report, read_runs
from t0.reports.diagnosis import diagnose
from t0.reports.example_scores import ExampleScores
from tests.reports.made_up_evaluations import example_line, random_lines


def scores(correct, idx=None, gold=None, choices=2, texts=None, documents=None):
    count = len(correct)
    return ExampleScores(
        path=Path("made-up.jsonl"),
        idx=np.arange(count) if idx is None else np.array(idx),
        gold=np.zeros(count, np.int32) if gold is None else np.array(gold),
        prediction=np.zeros(count, np.int32),
        correct=np.array(correct, bool),
        confidence=np.ones(count),
        choices=np.full(count, choices),
        tied=np.zeros(count, bool),
        labels=None,
        texts=np.zeros(count, np.uint32) if texts is None else np.array(texts, np.uint32),
        documents=None if documents is None else np.array(documents, object),
    )


def test_prompt_spread_quartiles_by_hand():
    s = accuracies.summarize_spread([40.0, 50.0, 60.0, 90.0])
    assert (s["mean"], s["median"], s["low"], s["high"]) == (60.0, 55.0, 40.0, 90.0)
    assert (s["first_quartile"], s["third_quartile"]) == (47.5, 67.5)


def test_confidence_interval_of_one_prompt_is_wilsons():
    right = np.random.default_rng(3).random(56) < 0.6
    found = accuracies.accuracy([accuracies.shared_grid([[scores(right)]])], 0)
    wanted = stats.binomtest(int(right.sum()), 56).proportion_ci(method="wilson")
    assert (found["low"], found["high"]) == pytest.approx((100 * wanted.low, 100 * wanted.high))
    # Of rows that share documents it is wider: 14 documents say less than 56 examples.
    several = scores(np.repeat(right[:14], 4), documents=np.repeat(np.arange(14), 4).astype(str))
    wider = accuracies.accuracy([accuracies.shared_grid([[several]])], 0)
    assert wider["high"] - wider["low"] > 1.5 * (found["high"] - found["low"])


def test_shared_grid_has_the_rows_that_all_runs_scored():
    first = scores([True, False, True, True], idx=[5, 3, 1, 2], gold=[0, 1, 0, 0])
    second = scores([False, True, True, True], idx=[1, 5, 9, 3], gold=[0, 0, 0, 0])
    grid = accuracies.shared_grid([[first], [second]])
    assert grid.rows.tolist() == [1, 5]
    assert [one[0, 0].tolist() for one in grid.right] == [[True, True], [False, True]]
    assert grid.left_out == (3,)  # rows 2, 9, and 3 of another right choice
    nothing = accuracies.shared_grid([[first], [scores([True], idx=[5], choices=3)]])
    assert not nothing.present.any()


def test_shared_grid_leaves_out_an_example_under_one_prompt_only():
    whole, first_rows = scores([True] * 4), scores([True] * 3)
    grid = accuracies.shared_grid([[whole, first_rows], [whole, scores([True] * 2)]])
    present = [[True] * 4, [True, True, False, False]]
    assert grid.present.tolist() == present
    assert [run[0].tolist() for run in grid.right] == [present] * 2
    assert grid.left_out == (0, 1)  # no run scored row 3 under the second prompt
    assert accuracies.accuracy([grid], 0)["mean"] == 100.0


def test_shared_grid_drops_examples_with_other_texts():
    first = scores([True] * 4, texts=[1, 2, 3, 4])
    second = scores([False] * 4, texts=[1, 2, 9, 0])  # 0: the file does not have it
    grid = accuracies.shared_grid([[first], [second]])
    assert (grid.rows.tolist(), grid.other_texts, grid.left_out) == ([0, 1, 3], (1,), (0,))
    assert len(accuracies.shared_grid([[first], [second]], any_texts=True).rows) == 4


def test_accuracy_gap_equals_paired_t_test_with_pseudo_examples():
    a = np.array([True] * 30 + [False] * 70)
    b = np.array([True] * 50 + [False] * 50)
    grid = accuracies.shared_grid([[scores(a), scores(a)], [scores(b), scores(b)]])
    found = SimpleNamespace(**accuracies.gap([grid], 0, 1))
    gains = b.astype(float) - a
    observed, pseudo = gains.var(ddof=1) / 100, 1.959964**2 / (100 + 1.959964**2) ** 2
    error = np.sqrt(observed + pseudo)
    degrees = error**4 / (observed**2 / 99)
    assert (found.examples, found.prompts) == (100, 2)
    assert found.difference == pytest.approx(20)
    assert found.fixed_p_value == pytest.approx(2 * stats.t.sf(0.2 / error, degrees))
    low, high = stats.t.interval(0.95, degrees, 0.2, error)
    assert (found.fixed_low, found.fixed_high) == pytest.approx((100 * low, 100 * high))
    # The two prompts agree in all: nothing is known of other prompts that these do not say.
    assert found.interval_low <= found.fixed_low and 10 < found.detectable < 40
    assert found.correlation == pytest.approx(np.corrcoef(a, b)[0, 1])
    other = SimpleNamespace(**accuracies.gap([grid, grid], 0, 1))
    assert other.difference == pytest.approx(20)
    width = found.interval_high - found.interval_low
    assert other.interval_high - other.interval_low < width


def test_confidence_interval_over_seeds_is_wider():
    rng = np.random.default_rng(6)
    easy = rng.random(200)
    seeds = [[scores(easy < level) for _ in range(3)] for level in (0.5, 0.6, 0.4)]
    grid = accuracies.shared_grid([seeds, [scores(easy < 0.5)] * 3])
    assert grid.right[0].shape == (3, 3, 200)
    several, alone = (SimpleNamespace(**accuracies.accuracy([grid], run)) for run in (0, 1))
    assert several.mean == pytest.approx(alone.mean, abs=4)
    assert several.fixed_high - several.fixed_low > 1.5 * (alone.fixed_high - alone.fixed_low)


def test_report_notes_excluded_examples_and_adjusts_p_values(evaluation):
    paths = []
    for model, word in (("first", "old"), ("second", "new")):
        made = evaluation(model)
        for name, dataset in (("rte", "super_glue/rte"), ("cb", "super_glue/cb")):
            lines = random_lines(40, [2], 1 + len(word), skill=len(model) / 4)
            for line in lines:
                line["inputs"] = f"{word if line['idx'] < 3 else ''} row {line['idx']}"
            made.add(f"{name}_1", dataset, "one", lines)
        paths.append(made.write())
    report = read_report(paths)
    _, *rows = report.comparison.rows  # the first is the mean
    found = [one for row in rows for one in row.differences.values()]
    assert [one["examples"] for one in found] == [37, 37]
    assert [one["adjusted_p_value"] for one in found] == pytest.approx(
        stats.false_discovery_control([one["p_value"] for one in found])
    )
    assert any("rte_1: 3 examples have different inputs" in note for note in report.notes)


def test_example_scores_have_documents_and_texts(evaluation):
    lines = random_lines(20, [2], 1, inputs="the  same", document=7)
    lines += [example_line(20, [-1.0, -2.0], 0, inputs="the same", document="7")]
    (run,) = read_runs([evaluation().add("rte_1", "super_glue/rte", "one", lines).write()])
    found = run.tasks[0].scores
    assert set(found.documents) == {"7"} and len(set(found.texts)) == 1 and found.texts[0] > 0


def test_diagnosis_of_ties_entropy_and_calibration(evaluation):
    tied = [example_line(i, [-1.0, -1.0], 0) for i in range(4)]  # predicts the first: right
    decided = [example_line(4 + i, [-1.0, -2.0], i % 2) for i in range(4)]
    made = evaluation().add("rte_1", "super_glue/rte", "one", tied + decided)
    (run,) = read_runs([made.write()])
    found = diagnose(run.tasks[0].scores)
    assert run.tasks[0].accuracy == 75.0
    assert (found["accuracy_without_ties"], found["entropy_bits"]) == (50.0, 0.0)
    low, high = found["calibration_interval"]
    assert low <= found["calibration_error"] <= high
