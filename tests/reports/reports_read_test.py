import json

import pytest
from made_up_evaluations import example_line

from t0.errors import UserError
from t0.reports.curves import read_curves
from t0.reports.files import find_results
from t0.reports.lines import curve_legend
from t0.reports.read import read_runs
from t0.reports.scores import read_scores


def write_scores(path, *lines):
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def change(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def results(evaluation):
    lines = [example_line(i, [-1.0, -2.0], i % 2) for i in range(4)]
    return evaluation(notes=["toy"]).add("rte_a", "super_glue/rte", "a", lines).write()


def test_reads_what_is_written(results):
    (run,) = read_runs([results])
    assert (run.label, run.step, run.notes) == ("tiny, step 100", 100, ("toy",))
    (task,) = run.tasks
    assert (task.dataset, task.prompt, task.group, task.examples) == ("super_glue/rte", "a", "", 4)
    assert (task.accuracy, task.chance, task.truncated_targets) == (50.0, 50.0, None)
    assert "notes" not in run.facts


def test_scores_ragged_choices_ties_and_worst_errors(tmp_path):
    lines = [
        example_line(7, [-1.0, -1.0], 0),  # tied, right
        example_line(3, [-1.0, -9.0, -4.0], 2),  # wrong by 3
        example_line(9, [-1.0, -2.0, -6.5, -8.0], 2),  # wrong by 5.5
        example_line(1, [-1.0, -2.0], None),  # excluded
        example_line(4, [-3.0, -2.0], 1),
    ]
    scores = read_scores(write_scores(tmp_path / "s.jsonl", *lines))
    assert scores.idx.tolist() == [7, 3, 9, 4]
    assert scores.correct.tolist() == [True, False, False, True]
    assert scores.tied.tolist() == [True, False, False, False]
    assert scores.accuracy == 50.0
    assert scores.chance == pytest.approx((50 + 100 / 3 + 25 + 50) / 4)
    assert [(e.idx, e.margin_nats) for e in scores.worst] == [(9, 5.5), (3, 3.0)]
    kept = read_scores(tmp_path / "s.jsonl", keep=1)
    assert [e.idx for e in kept.worst] == [9]


BAD_LINES = {
    "NaN": (
        '{"idx": 1, "choices": [{"text": "a", "log_likelihood": NaN}], "gold": 0, "prediction": 0}',
        "finite number",
    ),
    "missing score": (
        {"idx": 1, "choices": [{"text": "a"}], "gold": 0, "prediction": 0},
        "finite number",
    ),
    "gold out of range": (example_line(1, [-1.0, -2.0], 2), "2 choices"),
    "prediction is not the best": (
        example_line(1, [-1.0, -2.0], 0, prediction=1),
        "not the choice",
    ),
    "no choices": ({"idx": 1, "choices": [], "gold": 0, "prediction": 0}, "at least one"),
    "no idx": ({**example_line(1, [-1.0], 0), "idx": None}, "'idx'"),
    "idx twice": (example_line(0, [-1.0, -2.0], 0), "twice"),
    "cut short": ('{"idx": 1, "choi', "not valid JSON"),
    "not an object": ("[1]", "wanted an object"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_score_line_names_file_and_line(tmp_path, name):
    line, message = BAD_LINES[name]
    path = write_scores(tmp_path / "s.jsonl", example_line(0, [-1.0, -2.0], 0), line)
    with pytest.raises(UserError, match=message) as caught:
        read_scores(path)
    assert f"{path}, line 2" in str(caught.value)


BAD_RESULTS = {
    "NaN accuracy": (
        lambda c: c["tasks"]["rte_a"]["metrics"].update(accuracy=float("nan")),
        "finite",
    ),
    "fraction above 100": (
        lambda c: c["tasks"]["rte_a"]["metrics"].update(accuracy=154),
        "percent",
    ),
    "unknown schema": (lambda c: c.update(schema=2), "schema 2"),
    "no dataset": (lambda c: c["tasks"]["rte_a"].pop("dataset"), "'dataset' is missing"),
    "examples as text": (
        lambda c: c["tasks"]["rte_a"].update(examples="4"),
        "'examples' must be int",
    ),
    "excluded not counted": (lambda c: c["tasks"]["rte_a"].update(excluded={"x": -1}), "a count"),
    "task not an object": (lambda c: c["tasks"].update(x=3), "must be an object"),
    "path in a task's name": (lambda c: c["tasks"].update({"../x": {}}), "separators"),
    "other scores by count": (lambda c: c["tasks"]["rte_a"].update(examples=5), "holds 4"),
    "other scores by accuracy": (
        lambda c: c["tasks"]["rte_a"]["metrics"].update(accuracy=75.0),
        "gives 50 %",
    ),
    "notes not texts": (lambda c: c["run"].update(notes="toy"), "list of texts"),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_bad_results_are_refused_by_name(results, name):
    edit, message = BAD_RESULTS[name]
    with pytest.raises(UserError, match=message) as caught:
        read_runs([change(results, edit)])
    assert results.name in str(caught.value)


def test_optional_fields_may_be_absent(tmp_path):
    path = tmp_path / "results_7.json"
    task = {"dataset": "sciq", "examples": 3, "metrics": {"accuracy": 25}}
    path.write_text(json.dumps({"schema": 1, "tasks": {"sciq_q": task}}))
    (run,) = read_runs([path])
    assert run.step == 7
    assert (run.tasks[0].prompt, run.tasks[0].chance, run.tasks[0].scores) == ("sciq_q", None, None)


def test_task_without_accuracy_is_set_aside_and_alone_refused(results):
    change(results, lambda c: c["tasks"].update(gen={"examples": 1, "metrics": {"rouge1": 3.0}}))
    (run,) = read_runs([results])
    assert run.skipped == ("gen",)
    change(results, lambda c: c["tasks"].pop("rte_a"))
    with pytest.raises(UserError, match="no task with an accuracy"):
        read_runs([results])


def test_anli_rounds_are_three_datasets(evaluation):
    lines = [example_line(0, [-1.0, -2.0, -3.0], 0)]
    made = evaluation()
    for r in (1, 2, 3):
        made.add(f"anli_GPT_3_style_r{r}_score_eval", "anli", "GPT-3 style", lines)
    (run,) = read_runs([made.write()])
    assert [task.dataset for task in run.tasks] == ["anli/r1", "anli/r2", "anli/r3"]


def test_folders_are_searched_and_labels_are_unique(evaluation):
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
    assert labels == ["tiny, step 900 (eval)", "tiny, step 900 (eval2)"]


def test_models_whose_folders_end_alike_are_named_by_more_of_the_path(tmp_path):
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
    # Read alone its label is shorter, and still it has the colour of its checkpoints.
    (alone,) = read_curves([tmp_path / "out/qa/model"])
    ((colour, label),) = curve_legend([alone], runs)
    assert (colour, label) == (curve_legend(curves, runs)[1][0], "model")


@pytest.mark.parametrize("make", [lambda p: p / "absent.json", lambda p: p], ids=["file", "folder"])
def test_missing_results_are_a_user_error(tmp_path, make):
    with pytest.raises(UserError, match=r"does not exist|no results_\*\.json"):
        read_runs([make(tmp_path)])


def test_nothing_given_is_a_user_error():
    with pytest.raises(UserError, match="no results given"):
        read_runs([])


def test_curves_keep_the_last_value_of_a_step_and_a_cut_last_line(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    records = [
        {"step": 2, "loss": 3.0, "note": "x"},
        {"step": 1, "loss": 4.0},
        {"step": 2, "loss": 2},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text + '{"step": 3, "loss": NaN}\n{"step": 4, "lo')
    (curves,) = read_curves([path.parent])
    assert curves.points == {"loss": ((1, 4.0), (2, 2.0))}
    assert (curves.label, curves.not_finite) == ("run", 1)
    assert [c.label for c in read_curves([path, path])] == ["run", "run #2"]
    path.write_text('{"step": 3, "lo\n' + text)
    with pytest.raises(UserError, match="line 1"):
        read_curves([path])
    with pytest.raises(UserError, match="does not exist"):
        read_curves([tmp_path / "absent.jsonl"])
