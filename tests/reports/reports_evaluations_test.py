"""Result files of both modes are read into runs, strictly."""

import json

import pytest

from t0.errors import UserError
from t0.reports.evaluations import read_predictions, read_runs
from t0.reports.result_files import find_results
from t0.reports.training_curves import read_curves
from tests.reports.made_up_evaluations import SIGNATURE, Decoded, change, example_line


@pytest.fixture
def results(evaluation):
    lines = [example_line(i, [-1.0, -2.0], i % 2) for i in range(4)]
    return evaluation(notes=["toy"]).add("rte_a", "super_glue/rte", "a", lines).write()


def test_results_file_is_read_as_written(results):
    (run,) = read_runs([results])
    assert (run.label, run.step, run.notes) == ("tiny, step 100", 100, ("toy",))
    (task,) = run.tasks
    assert (task.dataset, task.prompt, task.examples) == ("super_glue/rte", "a", 4)
    assert task.group == "held-out"  # one of T0's, where the results do not say it
    assert (task.accuracy, task.chance, task.truncated_targets) == (50.0, 50.0, None)
    assert "notes" not in run.facts


BAD_RESULTS = {
    "NaN accuracy": (
        lambda c: c["tasks"]["rte_a"]["metrics"].update(accuracy=float("nan")),
        "accuracy is nan; expected 0 to 100",
    ),
    "fraction above 100": (
        lambda c: c["tasks"]["rte_a"]["metrics"].update(accuracy=154),
        "percent",
    ),
    "unknown schema": (lambda c: c.update(schema=2), "schema 2"),
    "no dataset": (lambda c: c["tasks"]["rte_a"].pop("dataset"), "no field 'dataset'"),
    "examples as text": (
        lambda c: c["tasks"]["rte_a"].update(examples="4"),
        "tasks.rte_a.examples is '4'; expected a whole number from 0",
    ),
    "excluded not counted": (lambda c: c["tasks"]["rte_a"].update(excluded={"x": -1}), "x is -1"),
    "task not an object": (lambda c: c["tasks"].update(x=3), "x is 3; expected an object"),
    "path in a task's name": (lambda c: c["tasks"].update({"../x": {"examples": 1}}), "separators"),
    "other scores by count": (lambda c: c["tasks"]["rte_a"].update(examples=5), "has 4"),
    "other scores by accuracy": (
        lambda c: c["tasks"]["rte_a"]["metrics"].update(accuracy=75.0),
        "gives 50. The files",
    ),
    "notes not texts": (
        lambda c: c["run"].update(notes="toy"),
        "run.notes is 'toy'; expected a list",
    ),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_results_file_that_is_invalid_is_refused(results, name):
    edit, message = BAD_RESULTS[name]
    with pytest.raises(UserError, match=message) as caught:
        read_runs([change(results, edit)])
    assert results.name in str(caught.value)


def test_results_file_optional_fields_may_be_missing(tmp_path):
    path = tmp_path / "results_7.json"
    task = {"dataset": "sciq", "examples": 3, "metrics": {"accuracy": 25}, "chance": None}
    path.write_text(json.dumps({"schema": 1, "tasks": {"sciq_q": task | {"of_later_versions": 1}}}))
    (run,) = read_runs([path])
    assert run.step == 7
    assert (run.tasks[0].prompt, run.tasks[0].chance, run.tasks[0].scores) == ("sciq_q", None, None)


def test_results_task_without_accuracy_is_skipped(results):
    change(results, lambda c: c["tasks"].update(gen={"examples": 1, "metrics": {"rouge1": 3.0}}))
    (run,) = read_runs([results])
    assert run.skipped == ("gen",)
    change(results, lambda c: c["tasks"].pop("rte_a"))
    with pytest.raises(UserError, match="no task with an accuracy"):
        read_runs([results])


def test_results_of_anli_rounds_are_three_datasets(evaluation):
    lines = [example_line(0, [-1.0, -2.0, -3.0], 0)]
    made = evaluation()
    for r in (1, 2, 3):
        made.add(f"anli_GPT_3_style_r{r}_score_eval", "anli", "GPT-3 style", lines)
    (run,) = read_runs([made.write()])
    assert [task.dataset for task in run.tasks] == ["anli/r1", "anli/r2", "anli/r3"]


def test_results_folders_are_searched_and_labels_are_unique(evaluation):
    lines = [example_line(0, [-1.0, -2.0], 0)]
    paths = [evaluation(step=s).add("a", "sciq", "q", lines).write() for s in (1000, 900)]
    folder = paths[0].parent
    assert find_results([folder.parent, paths[0]]) == [paths[1], paths[0]]
    runs = read_runs([folder])
    assert [run.label for run in runs] == ["tiny, step 900", "tiny, step 1,000"]
    assert len({run.series for run in runs}) == 1
    copy = folder.parent / "eval2"
    copy.mkdir()
    (copy / "results_900.json").write_bytes(paths[1].read_bytes())
    labels = [run.label for run in read_runs([paths[1], copy])]
    assert labels == [
        "tiny, step 900 (eval/results_900.json)",
        "tiny, step 900 (eval2/results_900.json)",
    ]


def test_run_labels_of_equal_folder_names_use_longer_paths(tmp_path):
    paths = []
    for folder in ("out/sni/model", "out/qa/model", "other/qa/model", "plain"):
        results = tmp_path / folder / "eval" / "results_9.json"
        results.parent.mkdir(parents=True)
        task = {"dataset": "d", "prompt": "p", "examples": 2, "metrics": {"accuracy": 50.0}}
        content = {"schema": 1, "run": {"model_dir": folder, "step": 9}, "tasks": {"t": task}}
        results.write_text(json.dumps(content))
        (tmp_path / folder / "metrics.jsonl").write_text('{"step": 9, "loss": 1.0}\n')
        paths.append(results)
    names = ["sni/model", "out/qa/model", "other/qa/model", "plain"]
    runs = read_runs(paths)
    assert [run.name for run in runs] == names
    curves = read_curves([path.parents[1] for path in paths])
    assert [curve.label for curve in curves] == names


@pytest.mark.parametrize("make", [lambda p: p / "absent.json", lambda p: p], ids=["file", "folder"])
def test_missing_results_are_a_user_error(tmp_path, make):
    with pytest.raises(UserError, match=r"does not exist|no results_\*\.json"):
        read_runs([make(tmp_path)])


def test_report_without_results_is_a_user_error():
    with pytest.raises(UserError, match="no results given"):
        read_runs([])


def test_decoded_results_metrics_groups_and_counts(decoded):
    (run,) = read_runs([decoded])
    assert (run.label, run.step, run.tasks, run.ranked) == ("tiny, step 3,000", 3000, (), False)
    assert "mode" not in run.facts
    instructions, questions, translation, own = run.decoded
    assert instructions.metrics == {"exact_match": 30.0, "rougeL": 46.5}
    assert instructions.groups["data_to_text"] == {"exact_match": 29.0, "rougeL": 47.5}
    assert (instructions.truncated_inputs, instructions.truncated_targets) == (3, 0)
    assert (questions.examples, questions.groups) == (10570, {})
    assert translation.signatures == {"bleu": SIGNATURE}
    assert translation.truncated_targets == 4
    assert own.metrics == {"accuracy": 37.5, "edit_distance": 3.25}


def test_predictions_file_formats_are_read(decoded):
    (run,) = read_runs([decoded])
    instructions, questions, translation, own = (
        list(read_predictions(task.predictions_file)) for task in run.decoded
    )
    assert (len(instructions), len(translation)) == (20, 24)
    assert translation[4].prediction == "Es ist rain 4."
    assert translation[0].targets == ("Es ist rain 0.",)
    assert instructions[4].heading == "task1300_rte_weather"
    assert instructions[4].inputs == "Say which weather the report tells of.\n\nReport 4."
    assert instructions[4].targets == ("rain", "snow", "wind", "heat")
    assert questions[0].inputs == "Where does it rain?\n\nIn Oslo it rains."
    assert (questions[0].heading, questions[1].targets) == ("q1", ())
    assert own == []


BAD_DECODED = {
    "metric as text": (lambda t: t["mt_en_de"]["metrics"].update(bleu="21"), "expected a number"),
    "no examples": (lambda t: t["mt_en_de"].pop("examples"), "no field 'examples'"),
    "not an object": (lambda t: t.update(mt_en_de=3), "expected an object"),
    "elsewhere": (
        lambda t: t["mt_en_de"].update(predictions="../x.jsonl"),
        "below the folder of the results",
    ),
    "from the root": (
        lambda t: t["mt_en_de"].update(predictions="/etc/x"),
        "below the folder of the results",
    ),
    "signatures as a list": (lambda t: t["mt_en_de"].update(signatures=[]), "expected an object"),
}


@pytest.mark.parametrize("name", BAD_DECODED)
def test_decoded_results_that_are_invalid_are_refused(decoded, name):
    edit, message = BAD_DECODED[name]
    with pytest.raises(UserError, match=message) as caught:
        read_runs([change(decoded, lambda content: edit(content["tasks"]))])
    assert str(caught.value).startswith(f"{decoded}: tasks.mt_en_de")


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"pred', "not valid JSON"), ("[1]", "expected an object"), ("{}", "text")],
)
def test_predictions_file_error_names_file_and_line(folder, line, message):
    path = Decoded(folder).add("x", {"accuracy": 1.0}, [{"prediction": "a"}]).write()
    (folder / "predictions" / "x_100.jsonl").write_text(line + "\n")
    (task,) = read_runs([path])[0].decoded
    with pytest.raises(UserError, match=message) as caught:
        list(read_predictions(task.predictions_file))
    assert "x_100.jsonl, line 1" in str(caught.value)
