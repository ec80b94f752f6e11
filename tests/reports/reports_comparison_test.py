"""`t0 compare`'s data: what runs share, what is refused, tied sets, seeds."""

import json

import pytest
from scipy import stats

from t0.errors import UserError
from t0.reports import comparison, read_report
from t0.reports.accuracies import estimate, shared_grid
from t0.reports.comparison import legend_lines, tied_letters
from t0.reports.evaluations import read_runs
from t0.reports.report_runs import notes_on, read_named_runs
from tests.reports.made_up_evaluations import example_line, random_lines


def compare(words, **options):
    return comparison.compare(read_named_runs(words)[0], **options)


def model(evaluation, name, skill, *, seed=0, step=100, **run):
    """A model on two datasets; models of one seed differ by their skill alone."""
    made = evaluation(name, step, **run)
    for number, (dataset, prompts) in enumerate((("super_glue/rte", 4), ("super_glue/cb", 3))):
        for p in range(prompts):
            lines = random_lines(80, [2], 100 * seed + 10 * number + p, skill=skill)
            for line in lines:
                line["inputs"] = f"row {line['idx']} of {dataset} <b>"
            made.add(f"{dataset[-3:].strip('/')}_{p}", dataset, f"prompt {p}", lines)
    return str(made.write())


def alike(evaluation, **skills):
    return [f"{name}={model(evaluation, name, skill)}" for name, skill in skills.items()]


def test_comparison_of_clear_difference_and_tied_runs(evaluation):
    words = alike(evaluation, weak=0.0, good=3.0, same=3.05)
    found = compare(words)
    for row in found.rows:
        assert row.tied == [(0,), (1, 2)]
        assert [tied_letters(row, run) for run in range(3)] == ["b", "a", "a"]
        gaps = row.differences.values()
        assert all(one["adjusted_p_value"] < 0.05 and one["difference"] > 20 for one in gaps)
    mean, *datasets = found.rows
    assert mean.title == "Mean of 2 datasets"
    gaps = [one for row in datasets for one in row.differences.values()]
    assert [one["adjusted_p_value"] for one in gaps] == pytest.approx(
        stats.false_discovery_control([one["p_value"] for one in gaps])
    )
    rte = next(row for row in datasets if row.title == "RTE")
    assert rte.number_of_examples == 80 and len(rte.prompts[1]) == 4
    assert rte.differences[1]["won"] > rte.differences[1]["lost"]
    # The same runs with the last as the baseline: the signs change, what is tied does not.
    other = compare(words, baseline=2)
    assert other.rows[1].tied == datasets[0].tied
    assert other.rows[1].differences[0]["difference"] < -20
    assert other.rows[1].differences[1]["adjusted_p_value"] > 0.05


def test_comparison_of_equal_runs_finds_no_difference(evaluation):
    words = [model(evaluation, "one", 1.0), model(evaluation, "two", 1.0)]
    found = compare(words)
    gaps = [one for row in found.rows for one in row.differences.values()]
    assert all(gap["p_value"] == 1 and gap["difference"] == 0 for gap in gaps)
    assert "no two runs differ significantly on any dataset" in legend_lines(found)


def test_comparison_averages_seeds(evaluation):
    seeds = [model(evaluation, f"seed{n}", 1.0, seed=n) for n in range(3)]
    # Other seeds draw other right choices here: those of seed 0 are put into all.
    single, _ = read_named_runs([seeds[0], model(evaluation, "other", 1.0)])
    assert [one.name for one in single] == ["seed0, step 100", "other, step 100"]
    words = [
        f"several={model(evaluation, 'a', 0.5)},{model(evaluation, 'b', 1.5)}",
        f"one={seeds[0]}",
    ]
    contenders, _ = read_named_runs(words)
    assert [len(one.seeds) for one in contenders] == [2, 1]
    found = compare(words)
    tasks = [
        [t.accuracy for t in run.tasks if t.dataset == "super_glue/rte"]
        for run in contenders[0].seeds
    ]
    rte = next(row for row in found.rows if row.title == "RTE")
    assert rte.accuracies[0]["mean"] == pytest.approx(sum(map(sum, tasks)) / 8)
    assert all(prompt["first_only"] is None for prompt in rte.prompts[1])
    assert any("mean of 2 seeds" in line for line in legend_lines(found))


def test_comparison_notes_what_runs_do_not_share(evaluation):
    first = evaluation("first").add("rte_0", "super_glue/rte", "0", random_lines(50, [2], 1))
    first.add("rte_1", "super_glue/rte", "1", random_lines(50, [2], 2))
    first.add("cb_0", "super_glue/cb", "0", random_lines(50, [2], 3))
    lines = random_lines(40, [2], 1)
    lines[0]["gold"] = 1 - lines[0]["gold"]
    second = evaluation("second", vocabulary_sha256="b").add("rte_0", "super_glue/rte", "0", lines)
    first.run["vocabulary_sha256"] = "a"
    found = compare([str(first.write()), str(second.write())])
    (rte,) = found.rows  # without a mean over datasets
    assert (rte.number_of_prompts, rte.number_of_examples) == (1, 39)
    said = "\n".join(found.notes)
    assert "different vocabularies" in said and "(first, step 100: a; second, step 100: b)" in said
    assert (
        "super_glue/cb is left out: fewer than two runs have scores of it (first, step 100)."
        in said
    )
    assert "first, step 100 has prompts that not every run has: rte_1 (1 in all)" in said
    assert "11 of 50 examples" in said


def test_comparison_of_other_prompt_versions_drops_examples(evaluation):
    paths = []
    for name in ("old", "new"):
        lines = random_lines(30, [2], 1)
        for line in lines:
            line["inputs"] = f"{line['idx']}  in the {name if line['idx'] < 10 else 'same'} words"
        paths.append(str(evaluation(name).add("rte_0", "super_glue/rte", "0", lines).write()))
    found = compare(paths)
    assert found.rows[0].number_of_examples == 20
    assert any("rte_0: 10 examples have different inputs" in note for note in found.notes)
    every = compare(paths, any_texts=True)
    assert every.rows[0].number_of_examples == 30
    assert any("compared nonetheless" in note for note in every.notes)


def test_comparison_interval_is_wider_with_shared_documents(evaluation):
    paths, grouped = [], []
    for name, skill in (("one", 0.5), ("two", 1.5)):
        for made, field in ((paths, {}), (grouped, {"document": "same"})):
            lines = random_lines(60, [2], 1, skill=skill)
            for line in lines:
                line |= dict.fromkeys(field, f"{line['idx'] // 6}")
            folder = f"{name}{len(field)}"
            made.append(str(evaluation(folder).add("rte_0", "super_glue/rte", "0", lines).write()))
    alone, together = (compare(p).rows[0] for p in (paths, grouped))
    assert alone.differences[1]["difference"] == together.differences[1]["difference"]
    gaps = (estimate(row.grids, 0, 1)[0] for row in (together, alone))
    assert [gap.clusters for gap in gaps] == [10, 60]


def refused(words):
    with pytest.raises(UserError) as error:
        compare(words)
    return str(error.value)


def test_comparison_of_incompatible_runs_is_refused(evaluation, tmp_path):
    first = model(evaluation, "first", 1.0, split="validation")
    assert "cannot be compared by 'split'" in refused(
        [first, model(evaluation, "b", 1.0, split="test")]
    )
    by_tokens = model(evaluation, "c", 1.0, split="validation", normalisation="tokens")
    plain = model(evaluation, "d", 1.0, normalisation="none")
    assert "different ways" in refused([by_tokens, plain])
    assert "is given twice" in refused([first, f"again={first}"])
    assert "does not exist" in refused([first, str(tmp_path / "nowhere")])
    assert "expected NAME=RUN" in refused([first, "name="])
    assert "are named 'a'" in refused([f"a={first}", f"a={plain}"])
    # Steps of one model are one run, of which the last is compared; names make two of them.
    second = model(evaluation, "first", 2.0, step=200, split="validation")
    assert "got one run, first, step 200; expected two or more" in refused([first, second])
    assert len(compare([f"early={first}", f"late={second}"]).runs) == 2
    assert "has 4 models" in refused([f"both={tmp_path}", plain])
    other = evaluation("other").add("x", "sciq", "x", random_lines(9, [2], 1)).write()
    assert "share no example of any prompt" in refused([plain, str(other)])
    bare = evaluation("bare").add("x", "sciq", "x", random_lines(9, [2], 1), with_scores=False)
    message = refused([plain, str(bare.write())])
    assert "no per-example scores" in message and "scores/<task>_<step>.jsonl" in message
    assert "evaluate again" in message


def test_comparison_baseline_by_name_or_by_path(evaluation):
    words = alike(evaluation, one=0.1, two=0.2)
    for word in ("two", words[1]):
        assert read_named_runs(words, baseline=word)[1] == 1
    with pytest.raises(UserError, match="two"):
        read_named_runs(words, baseline="tow")


def test_comparison_report_numbers_plots_and_page(evaluation, tmp_path):
    words = []
    for name, skill in (("weak", 0.0), ("good", 3.0)):
        lines = random_lines(60, [2], 1, skill=skill, inputs="of rte <b>")
        made = evaluation(name).add("rte_0", "super_glue/rte", "0", lines)
        words.append(f"{name}={made.write()}")
    paths = read_report(words, title="T <i>").write(tmp_path / "out")
    assert {path.name for path in (*paths.csv, *paths.plots)} > {
        "report_differences.csv",
        "report_prompt_differences.csv",
        "run_differences.png",
    }
    page = paths.html.read_text()
    assert "T &lt;i&gt;" in page and "of rte \\u003cb\\u003e" in page and "<i>" not in page
    data = json.loads(paths.json.read_text())
    (difference,) = data["differences"]
    assert (data["baseline"], difference["run"]) == ("weak", "good")
    assert difference["adjusted_p_value"] < 0.01 < difference["detectable"]
    assert data["accuracies"][0]["tied_sets"] == [["weak"], ["good"]]


def test_comparison_of_equal_runs_claims_no_more_than_their_examples_show(evaluation, tmp_path):
    words = []
    for name in ("first", "second"):
        lines = [example_line(idx, [-1.0, -2.0], idx % 2) for idx in range(277)]
        words.append(f"{name}={evaluation(name).add('x_0', 'x', '0', lines).write()}")
    paths = read_report(words).write(tmp_path / "out")
    (difference,) = json.loads(paths.json.read_text())["differences"]
    assert (difference["difference"], difference["p_value"]) == (0.0, 1.0)
    interval = difference["interval_low"], difference["interval_high"]
    assert interval == pytest.approx((-1.37, 1.37), abs=0.005)
    assert difference["detectable"] > 1.37 and difference["differing"] == 0
    assert "0 of 277 examples differ" in paths.html.read_text()


def test_comparison_on_one_document_has_no_detectable_difference(evaluation, tmp_path):
    words = []
    for name in ("first", "second"):
        lines = [example_line(idx, [-1.0, -2.0], 0, document="7") for idx in range(3)]
        words.append(f"{name}={evaluation(name).add('x_0', 'x', '0', lines).write()}")
    report = read_report(words)
    (difference,) = json.loads(report.write(tmp_path / "out").json.read_text())["differences"]
    assert (difference["detectable"], difference["p_value"]) == (None, 1.0)
    assert "nan" not in "\n".join(report.lines())


@pytest.mark.parametrize("count", [2, 4])
def test_comparison_tables_fit_eighty_terminal_columns(evaluation, count):
    words = alike(evaluation, **{f"run{n}": n / 2 for n in range(count)})
    lines = read_report(words).lines(width=80)
    tables = lines[lines.index("Compared accuracy (%)") :]
    assert max(map(len, tables)) <= 80 and not any("…" in line for line in tables)
    assert sum(line.startswith("Mean of 2 datasets  ") for line in tables) == count


def test_comparison_names_the_malformed_score_file(evaluation):
    words = [model(evaluation, "one", 1.0), model(evaluation, "two", 1.0)]
    change_path = evaluation("two").folder / "scores" / "rte_0_100.jsonl"
    line = example_line(0, [-1.0, -2.0], 0)
    change_path.write_text(json.dumps(line | {"prediction": 1}) + "\n")
    assert "rte_0_100.jsonl, line 1" in refused(words)


@pytest.mark.parametrize("cut", [0, 1, None])
def test_comparison_notes_other_lengths_only_if_a_text_may_be_cut(evaluation, cut):
    for name, length in (("short", 64), ("long", 512)):
        made = evaluation(name, sequence_length={"inputs": length, "targets": 16})
        lines = random_lines(20, [2], 1)
        truncated = {"truncated_targets": 0}
        if name == "short":
            truncated = {"truncated_inputs": cut, "truncated_targets": 0 if cut == 0 else None}
        truncated = {key: value for key, value in truncated.items() if value is not None}
        made.add("rte_0", "super_glue/rte", "prompt 0", lines, **truncated).write()
    runs = read_named_runs(
        [str(made.folder.parents[1] / name / "eval") for name in ("short", "long")]
    )
    notes = "".join(notes_on(runs[0]))
    assert ("may have truncated text" in notes) == (cut != 0)


def test_comparison_of_runs_that_number_examples_differently_is_refused(evaluation):
    earlier, now = (
        model(evaluation, "earlier", 0.0),
        model(evaluation, "now", 1.0, numbered_by="row"),
    )
    with pytest.raises(
        UserError, match=r"number their examples in .*earlier.*: by example; now.*: by row"
    ):
        compare([earlier, now])
    report = read_report([earlier, now])
    assert report.comparison is None
    (note,) = [note for note in report.notes if "in different ways" in note]
    assert note.startswith("The runs are not compared: these runs number their examples")
    other = model(evaluation, "other", 0.5, numbered_by="row")
    assert compare([now, other]).rows[0].number_of_prompts == 7


def test_comparison_leaves_out_prompts_that_are_numbered_differently(evaluation):
    words = []
    for name, kind in (("one", "row"), ("two", "example")):
        made = evaluation(name, numbered_by="row")
        for prompt in ("a", "b"):
            lines = [line | {"inputs": "x"} for line in random_lines(40, [2], 3)]
            numbering = {"numbered_by": kind} if prompt == "b" else {}
            made.add(prompt, "mine", prompt, lines, **numbering)
        words.append(str(made.write()))
    found = compare(words)
    assert [row.number_of_prompts for row in found.rows] == [1]
    (note,) = [note for note in found.notes if "by row and others do not" in note]
    assert note.startswith("mine: 1 prompts, such as b, are left out")


def test_prompts_of_a_run_that_are_numbered_differently_are_not_paired(evaluation):
    made = evaluation("mixed", numbered_by="row")
    lines = random_lines(40, [2], 3)
    made.add("a", "mine", "a", lines).add("b", "mine", "b", lines, numbered_by="example")
    (run,) = read_runs([made.write()])
    (note,) = run.notes
    assert note.startswith("mine: the examples of 1 prompts, such as b, are not numbered by row")
    grid = shared_grid([[task.scores for task in run.tasks]])
    assert len(grid.rows) == 80  # no row of one prompt is a row of the other
    assert grid.present.sum(axis=0).tolist() == [1] * 80
    lines = [line | {"document": str(line["idx"] // 4)} for line in lines]
    made.add("a", "mine", "a", lines).add("b", "mine", "b", lines, numbered_by="example")
    (run,) = read_runs([made.write()])
    grid = shared_grid([[task.scores for task in run.tasks]])
    assert set(grid.documents) == {f"{kind}{n}" for kind in ("", "example ") for n in range(10)}
    made.add("b", "mine", "b", lines)
    (run,) = read_runs([made.write()])
    assert not run.notes
    assert len(shared_grid([[task.scores for task in run.tasks]]).rows) == 40
