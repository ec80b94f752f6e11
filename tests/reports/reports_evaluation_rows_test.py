from types import SimpleNamespace

import numpy as np
import pytest

from t0.reports import read_named_runs, read_report, write_report
from t0.reports.evaluation_rows import decoded_results
from t0.reports.published import (
    held_out_titles,
    published_accuracies,
    published_mean,
    published_means,
)
from t0.reports.report_tables import group_tables
from t0.reports.tables import MARK
from tests.reports.made_up_evaluations import (
    SIGNATURE,
    change,
    example_line,
    random_lines,
    recipes_decoded,
)
from tests.reports.parsed_pages import table_texts


def test_summary_rows_equal_independent_computation(two_runs):
    summary = read_report(two_runs)
    runs, rows = summary.runs, [SimpleNamespace(**row) for row in summary.rows("datasets")]
    names = [(row.dataset, row.run) for row in rows]
    assert names == [
        (d, r) for d in ("super_glue/copa", "super_glue/rte", "dream/hop") for r in (0, 1)
    ]
    hop = rows[4]
    accuracies = sorted(t.accuracy for t in runs[0].tasks if t.dataset == "dream/hop")
    assert hop.mean == pytest.approx(sum(accuracies) / 2)
    assert (hop.low, hop.high) == tuple(accuracies)
    sizes = [t.scores.choices for t in runs[0].tasks if t.dataset == "dream/hop"]
    assert hop.chance == pytest.approx(np.mean([np.mean(100 / s) for s in sizes]))
    assert (hop.title, rows[2].title) == ("dream/hop", "RTE")
    assert hop.interval_low < hop.mean < hop.interval_high


def test_summary_counts_are_integers_and_unknown_values_are_none(evaluation):
    made = evaluation().add("a", "sciq", "q", random_lines(9, [4], 1), excluded={"cut": 2})
    made.add("b", "sciq", "r", random_lines(9, [4], 2), with_scores=False, excluded={"cut": 1})
    summary = read_report([made.write()])
    (dataset,) = (SimpleNamespace(**row) for row in summary.rows("datasets"))
    assert (dataset.prompts, dataset.fewest_examples, dataset.ties) == (2, 9, 0)
    # One prompt has no scores: its interval is unknown, and that of the mean.
    assert (dataset.interval_low, dataset.truncated_targets) == (None, None)
    assert (dataset.excluded, dataset.excluded_reasons) == (3, {"cut": 3})
    with_scores, without = (SimpleNamespace(**row) for row in summary.rows("prompts"))
    assert with_scores.interval_low_percent < with_scores.accuracy_percent
    assert (without.interval_low_percent, without.ties, without.chance_percent) == (None,) * 3
    assert type(without.examples) is int


def test_summary_compares_against_the_first_run(two_runs):
    summary = read_report(two_runs)
    (rte,) = [row for row in summary.comparison.rows if row.dataset == "super_glue/rte"]
    (gap,) = (SimpleNamespace(**one) for one in rte.differences.values())
    first, second = [
        r["mean"] for r in summary.rows("datasets") if r["dataset"] == "super_glue/rte"
    ]
    assert gap.difference == pytest.approx(second - first, abs=1e-4)
    assert gap.interval_low <= second - first <= gap.interval_high
    assert gap.prompts == len(rte.prompts[1]) == 4
    assert read_report(two_runs[:1]).comparison is None


def test_summary_baseline_is_the_first_ranked_run(two_runs, tmp_path):
    decoded = recipes_decoded(tmp_path / "other" / "eval", 5, 1.0).write()
    comparison = read_report([decoded, *two_runs]).comparison
    assert comparison.baseline == 0
    assert [run.mark.letter for run in comparison.runs] == ["B", "C"]
    assert read_report([decoded, two_runs[0]]).comparison is None


def test_summary_joins_checkpoints_of_one_model(evaluation, two_runs):
    for step in (20, 10):
        path = evaluation(step=step).add("a", "sciq", "a", random_lines(9, [4], step)).write()
    words = [path.parent / "results_10.json", two_runs[0], path.parent]
    summary = read_report(words)
    assert [run.mark.letter for run in summary.runs] == ["A.1", "A.2", "B"]
    assert [run.name for run in read_named_runs(words)[0]] == ["tiny, step 20", "first, step 100"]
    *absent, note = summary.notes
    assert all("has no example of the class 'choice " in one for one in absent)
    assert note.startswith("The runs are not compared: these runs share no example")


def test_summary_metrics_of_tasks_categories_and_parts(decoded):
    (run,) = runs = read_report([decoded]).runs
    tables = group_tables(runs)
    groups = tables["sni_def_pos_2"].rows
    names = ["data_to_text", "textual_entailment", "task1300_rte_weather", "task1301_rte_weather"]
    assert [row["group"] for row in groups] == names
    values = {"metric exact_match": 29.0, "metric rougeL": 47.5}
    assert groups[0] == {"group": "data_to_text", "label": run.label, MARK: run.mark} | values
    assert [*tables] == ["sni_def_pos_2"]
    assert decoded_results(runs)[0]["metrics"] == ["exact_match", "rougeL"]


def test_published_accuracies_cover_the_held_out_datasets():
    assert len(held_out_titles()) == 11
    assert published_means(["super_glue/rte"]) == {"T0-3B": 64.6, "T0-11B": 81.0}
    # Of ANLI's rounds only the mean is published; with it the cards' averages over nine come out.
    rounds = [f"anli/r{number}" for number in (1, 2, 3)]
    assert all(published_means([name]) == {} for name in rounds)
    for model, anli, average in (("T0-3B", 33.4, 55.2), ("T0-11B", 41.0, 65.2)):
        assert published_mean(rounds, model) == pytest.approx(anli)
        assert published_mean([*rounds[:2], "super_glue/rte"], model) is None
        others = [published_mean([name], model) for name in held_out_titles() if name not in rounds]
        assert (sum(others) + anli) / 9 == pytest.approx(average, abs=0.06)
    assert all(row["source"] for row in published_accuracies())


def test_summary_warns_of_different_bleu_signatures(folder, tmp_path):
    first = recipes_decoded(folder, 1000, 1.0).write()
    second = recipes_decoded(tmp_path / "other" / "eval", 1000, 1.0).write()
    other = {"bleu": SIGNATURE.replace("13a", "intl")}
    change(second, lambda content: content["tasks"]["mt_en_de"].update(signatures=other))
    (note,) = read_report([first, second]).notes
    assert note.startswith("mt_en_de: bleu was computed in different ways")
    assert read_report([first]).notes == ()
    assert (
        "do not compare its values"
        in write_report([first, second], tmp_path / "o").html.read_text()
    )


@pytest.mark.usefixtures("rough_pictures")
def test_report_warns_once_of_tied_choices(evaluation, tmp_path):
    tied = [example_line(i, [-1.0, -1.0], i % 2) for i in range(4)]
    told = [example_line(i, [-1.0, -2.0], i % 2) for i in range(4)]
    paths = [
        evaluation(model).add("a", "sciq", "a", tied).add("b", "sciq", "b", told).write()
        for model in ("one", "two")
    ]
    text = table_texts(write_report(paths, tmp_path / "out").html.read_text())
    assert text.count("several choices tie for the highest score in most examples") == 1
    assert "In 2 of 4 evaluations of a task" in text


@pytest.mark.usefixtures("rough_pictures")
def test_report_notes_results_without_example_scores(evaluation, tmp_path):
    made = evaluation().add("a", "sciq", "q", random_lines(9, [4], 1), with_scores=False, chance=25)
    html = write_report([made.write()], tmp_path / "out").html.read_text()
    assert "1 of 1 tasks have no per-example scores" in html
    assert 'id="examples"' not in html
