"""Results of lm-evaluation-harness in our reports: a recorded run, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from t0.errors import UserError
from t0.measures.choice_lengths import WITH_EOS
from t0.reports import read_report, read_runs
from t0.reports.comparison import compare
from t0.reports.examples import collect_examples
from t0.reports.report_runs import notes_on, read_named_runs

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "lm_eval"


@pytest.fixture
def theirs(tmp_path):
    shutil.copytree(RECORDED / "theirs", tmp_path / "theirs")
    return tmp_path / "theirs"


def samples(folder, name="weather"):
    (path,) = folder.glob(f"samples_{name}_*.jsonl")
    return path


def results(folder):
    (path,) = folder.glob("results_*.json")
    return path


def edited(path, edit):
    """Changes the samples of a file; `edit` changes one, in place, or returns another."""
    records = [json.loads(line) for line in path.open()]
    records = [edit(record) or record for record in records]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_lm_eval_run_has_our_choices_and_log_likelihoods():
    ours, theirs = (read_runs([RECORDED / name])[0] for name in ("ours", "theirs"))
    assert [task.name for task in theirs.tasks] == [task.name for task in ours.tasks]
    compared = 0
    for one, other in zip(ours.tasks, theirs.tasks, strict=True):
        assert (one.dataset, one.prompt) == (other.dataset, other.prompt)
        assert one.accuracy == other.accuracy
        assert one.scores.texts.tolist() == other.scores.texts.tolist()
        pairs = zip(one.scores.records(), other.scores.records(), strict=True)
        for mine, found in pairs:
            keys = ("idx", "gold", "prediction")
            assert [mine[key] for key in keys] == [found[key] for key in keys]
            choices = (mine["choices"], found["choices"])
            texts = [[choice["text"] for choice in listed] for listed in choices]
            assert texts[0] == texts[1]
            expected, values = (
                [choice["log_likelihood"] for choice in listed] for listed in choices
            )
            assert values == pytest.approx(expected, abs=1e-4, rel=0)
            compared += len(values)
    assert compared == 50


def test_lm_eval_prompt_means_and_medians_equal_the_harness():
    content = json.loads(results(RECORDED / "theirs").read_text())
    (run,) = read_runs([RECORDED / "theirs"])
    accuracies = sorted(task.accuracy for task in run.tasks if task.dataset == "weather")
    found = content["results"]["weather_score_eval"]
    assert 100 * found["prompt_mean,none"] == pytest.approx(sum(accuracies) / 3)
    assert 100 * found["prompt_median,none"] == pytest.approx(accuracies[1])


def test_lm_eval_run_facts_and_warnings():
    (run,) = read_runs([RECORDED / "theirs"])
    assert run.name == "model"
    assert run.facts["engine"].startswith("lm-evaluation-harness 0.4.")
    assert run.facts["normalisation"] == WITH_EOS
    assert run.facts["split"] == "validation"
    assert run.facts["dtype"] == "float32"
    assert "output matrix is not its embedding" in run.notes[0]
    (ours,) = read_runs([RECORDED / "ours"])
    assert ours.facts["normalisation"] == run.facts["normalisation"]


def test_lm_eval_and_own_results_are_compared():
    folders = [str(RECORDED / name) for name in ("ours", "theirs")]
    runs = read_runs([RECORDED / "ours", RECORDED / "theirs"])
    assert any("Such models need transformers 4" in note for note in read_report(folders).notes)
    index, scripts = collect_examples(runs)
    assert [entry["name"] for entry in index] == ["film", "weather"]
    # One record for both runs: they scored the same texts.
    (film,) = index[0]["tasks"]
    assert film["examples"] == 4
    assert "a dull film 0 Good or bad?" in scripts[0]
    found = compare(read_named_runs(folders)[0])
    gaps = [one for row in found.rows for one in row.differences.values()]
    # The mean, and the two datasets.
    assert [(gap["difference"], gap["examples"]) for gap in gaps] == [(0, 10), (0, 4), (0, 6)]


def test_lm_eval_comparison_notes_run_without_eos(theirs):
    def without_eos(record):
        record["doc"]["continuations"] = record["doc"]["choices"]

    for path in theirs.glob("samples_*"):
        edited(path, without_eos)
    notes = notes_on(read_named_runs([RECORDED / "ours", theirs])[0])
    assert any("different sums for a choice, with its EOS or without" in note for note in notes)


def other_task(record):
    return record | {"doc": {"question": "Why?", "answer": 1}}


def without_likelihoods(record):
    record["filtered_resps"] = ["rain"]


def one_missing(record):
    del record["filtered_resps"][-1]


def not_a_number(record):
    record["filtered_resps"][0][0] = "nan"


def without_row(record):
    record["doc"]["idx"] = -2


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (without_likelihoods, "must have a log-likelihood for each of the 2 choices, got ['rain']"),
        (one_missing, "Run lm_eval again on the exported tasks"),
        (not_a_number, "'filtered_resps' must have a log-likelihood"),
        (without_row, "line 1: idx is -2; expected a whole number from 0"),
    ],
)
def test_lm_eval_damaged_samples_name_file_line_and_remedy(theirs, edit, told):
    edited(samples(theirs), edit)
    with pytest.raises(UserError) as raised:
        read_runs([theirs])
    assert told in str(raised.value)
    assert f"{samples(theirs)}, line 1" in str(raised.value)


def test_lm_eval_task_that_t0_did_not_export_is_skipped(theirs):
    edited(samples(theirs), other_task)
    (run,) = read_runs([theirs])
    assert [task.dataset for task in run.tasks] == ["film"]
    assert run.skipped == ("weather_score_eval",)
    samples(theirs, "film").unlink()
    with pytest.raises(UserError) as raised:
        read_runs([theirs])
    assert (
        "t0 did not export task 'weather_score_eval' of lm-evaluation-harness. Its rows "
        "have question, answer; expected idx, dataset, prompt, task, inputs, choices, gold"
    ) in str(raised.value)
    assert "export-eval" in str(raised.value)


def test_lm_eval_truncated_samples_are_refused(theirs):
    path = samples(theirs)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"line \d+: not valid JSON"):
        read_runs([theirs])
    path.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="has 13 samples, but lm-evaluation-harness evaluated 14"):
        read_runs([theirs])


def test_lm_eval_results_without_samples_name_the_flag(theirs):
    for path in theirs.glob("samples_*"):
        path.unlink()
    with pytest.raises(UserError, match="Run lm_eval again with --log_samples"):
        read_runs([theirs])


@pytest.mark.parametrize("change", [{"configs": []}, {"results": None}, {"schema": 7}])
def test_lm_eval_results_of_another_schema_are_refused(theirs, change):
    path = results(theirs)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="schema"):
        read_runs([theirs])
