"""Accuracy without the examples that overlap with the training data, and its paired test."""

import json

import numpy as np
import pytest

from t0.errors import UserError
from t0.reports import read_report
from t0.reports.clean_examples import clean_rows, read_overlap
from t0.reports.evaluations import read_runs
from tests.reports.made_up_evaluations import example_line, write_overlap

TASK = "super_glue_rte_{}_score_eval"
PROMPTS = ("can_we_infer", "should_assume")


def lines_of(right):
    return [
        example_line(i, [-1.0, -2.0] if one else [-2.0, -1.0], 0) for i, one in enumerate(right)
    ]


@pytest.fixture
def evaluated(evaluation):
    """Returns a maker of an evaluation of two prompts, from which examples are right."""

    def make(right, model="tiny", **run):
        made = evaluation(model, **run)
        for prompt, some in zip(PROMPTS, right, strict=True):
            made.add(TASK.format(prompt), "super_glue/rte", prompt, lines_of(some))
        return made.write()

    return make


def right_where(share_of, seed=0, examples=200):
    """Whether each example is right, under two prompts."""
    rng = np.random.default_rng(seed)
    shares = np.array([share_of(idx) for idx in range(examples)])
    return rng.random((2, examples)) < shares


def test_clean_accuracy_and_its_paired_test(evaluated, tmp_path):
    known = set(range(60))
    right = right_where(lambda idx: 0.95 if idx in known else 0.5)
    overlap = read_overlap(
        write_overlap(tmp_path / "o", prompts=PROMPTS, rows=dict.fromkeys(PROMPTS, known))
    )
    (row,) = clean_rows(read_runs([evaluated(right)]), overlap)
    assert (row["prompts"], row["examples"], row["overlapping"]) == (2, 200, 60)
    assert row["all"] == pytest.approx(100 * right.mean())
    assert row["clean"] == pytest.approx(100 * right[:, 60:].mean())
    assert row["difference"] == pytest.approx(row["clean"] - row["all"])
    assert row["difference_low"] < row["difference"] < row["difference_high"] < 0
    assert row["p_value"] < 1e-4
    assert row["gap_clean"] is None


def test_clean_accuracy_test_has_few_false_positives():
    """Two hundred evaluations in which overlap changes nothing: few differ."""
    from t0.reports.accuracies import Grid
    from t0.reports.clean_examples import _clean_minus_all
    from t0.reports.statistics import p_value

    rng = np.random.default_rng(5)
    clean = np.arange(150) >= 40
    small = 0
    for _ in range(300):
        skill = rng.random(150)  # the prompts of an example are alike
        right = rng.random((1, 4, 150)) < skill
        present = np.ones((4, 150), bool)
        grid = Grid(np.arange(150), (right,), present, None, (0,) * 4, (0,) * 4)
        small += p_value(_clean_minus_all(grid, clean)) < 0.05
    assert small <= 27  # of 300; with 5% true rejections more in one of 1,000


def test_clean_example_overlaps_under_no_prompt(evaluated, tmp_path):
    rows = {PROMPTS[0]: {1, 2, 3}, PROMPTS[1]: {3, 4, 5, 6}}
    overlap = read_overlap(write_overlap(tmp_path / "o", prompts=PROMPTS, rows=rows))
    (row,) = clean_rows(read_runs([evaluated(right_where(lambda idx: 0.5))]), overlap)
    assert row["overlapping"] == 6


@pytest.mark.parametrize("number", [0, 3, 197, 200])
def test_clean_accuracy_without_p_value_for_few_examples(evaluated, tmp_path, number):
    rows = dict.fromkeys(PROMPTS, set(range(number)))
    overlap = read_overlap(write_overlap(tmp_path / "o", prompts=PROMPTS, rows=rows))
    (row,) = clean_rows(read_runs([evaluated(right_where(lambda idx: 0.5))]), overlap)
    assert row["p_value"] is None
    assert (row["clean"] is None) == (number == 200)


def test_clean_accuracy_compares_two_runs(evaluated, tmp_path):
    known = set(range(80))
    same = right_where(lambda idx: 0.5)
    better = same.copy()
    better[:, :80] = True
    paths = [evaluated(same), evaluated(better, "other")]
    overlap = read_overlap(
        write_overlap(tmp_path / "o", prompts=PROMPTS, rows=dict.fromkeys(PROMPTS, known))
    )
    first, second = clean_rows(read_runs(paths), overlap)
    assert first["gap_all"] is None
    assert second["gap_all"] == pytest.approx(100 * (better.mean() - same.mean()))
    assert (second["gap_clean"], second["gap_p_value"]) == (0.0, 1.0)


@pytest.mark.usefixtures("rough_pictures")
def test_report_shows_clean_accuracy_without_overlap(evaluated, tmp_path):
    known = set(range(60))
    right = right_where(lambda idx: 0.95 if idx in known else 0.5)
    folder = write_overlap(tmp_path / "o", prompts=PROMPTS, rows=dict.fromkeys(PROMPTS, known))
    paths = [evaluated(right), evaluated(~right, "other")]
    report = read_report(paths, overlap_path=folder)
    made = report.write(tmp_path / "report")
    text = made.html.read_text()
    assert "without overlapping examples" in text
    assert "An example overlaps if 13 of its consecutive words" in text
    rows = json.loads(made.json.read_text())["clean_part"]
    assert [row["overlapping"] for row in rows] == [60, 60]
    lines = report.lines()
    head = lines.index("Accuracy (%) without overlapping examples")
    cells = lines[head + 2].split()
    assert cells[:4] == ["super_glue/rte", "A", "200", "60"]
    assert cells[4:6] == [f"{100 * right.mean():.1f}", f"{100 * right[:, 60:].mean():.1f}"]
    without = read_report(paths).write(tmp_path / "without")
    assert "clean_part" not in json.loads(without.json.read_text())
    assert "overlapping" not in without.html.read_text()


def damaged_rows(folder):
    (folder / "rows.jsonl").write_text("{}\n")


def unfinished(folder):
    (folder / "overlap.json").unlink()


def other_schema(folder):
    (folder / "overlap.json").write_text('{"kind": "overlap", "schema": 2}')


def no_object(folder):
    path = folder / "overlap.json"
    path.write_text(path.read_text().replace('{"prompts": {', '{"prompts": {"x": 3, '))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_object, "prompts.x is 3; expected an object"),
        (unfinished, "does not exist. Give the --output folder of a finished `t0 overlap`"),
        (damaged_rows, "does not match its checksum in "),
        (other_schema, "expected the output of this version's `t0 overlap`"),
    ],
)
def test_data_overlap_file_that_is_invalid_is_refused(tmp_path, change, message):
    folder = write_overlap(tmp_path / "o", prompts=PROMPTS, rows={})
    change(folder)
    with pytest.raises(UserError, match=message):
        read_overlap(folder)


@pytest.mark.parametrize(
    ("given", "run", "message"),
    [
        ({"examples": 100}, {}, "idx 199, so their rows differ"),
        ({"split": "test"}, {"split": "validation"}, "Run `t0 overlap --eval_split=validation`"),
    ],
)
def test_data_overlap_of_other_rows_is_refused(evaluated, tmp_path, given, run, message):
    overlap = read_overlap(write_overlap(tmp_path / "o", prompts=PROMPTS, rows={}, **given))
    runs = read_runs([evaluated(right_where(lambda idx: 0.5), **run)])
    with pytest.raises(UserError, match=message):
        clean_rows(runs, overlap)


def test_data_overlap_of_other_tasks_is_refused(evaluation, tmp_path):
    lines = lines_of([True, False])
    made = evaluation().add("copa_best_score_eval", "super_glue/copa", "best", lines).write()
    with pytest.raises(UserError, match="has none of the tasks that were scored"):
        clean_rows(
            read_runs([made]), read_overlap(write_overlap(tmp_path / "o", prompts=PROMPTS, rows={}))
        )
