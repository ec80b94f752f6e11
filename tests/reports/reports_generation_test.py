"""What mode `eval` found, on the page, in Markdown, CSV and JSON; with rank evaluation or alone."""

import csv
import io
import json
import re

import pytest
from made_up_evaluations import SIGNATURE, Decoded, random_lines, recipes_decoded

from t0.cli import main as t0_main
from t0.errors import UserError
from t0.reports import write_report
from t0.reports.generation import generations, signature_notes
from t0.reports.markdown import plain
from t0.reports.metric_lines import metric_panels
from t0.reports.read import read_runs


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tiny" / "eval"


@pytest.fixture
def decoded(folder):
    return recipes_decoded(folder, 3000, 1.5).write()


def change(path, edit):
    content = json.loads(path.read_text())
    edit(content["tasks"])
    path.write_text(json.dumps(content))
    return path


def test_reads_measures_groups_and_counts(decoded):
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
    (found, *_) = generations([run])
    assert [row.group for row in found.categories] == ["data_to_text", "textual_entailment"]
    assert [row.group for row in found.parts] == ["task1300_rte_weather", "task1301_rte_weather"]
    assert found.categories[0].values == (29.0, 47.5)


def test_predictions_of_three_forms(decoded):
    (run,) = read_runs([decoded])
    instructions, questions, translation, own = (task.predictions for task in run.decoded)
    assert len(instructions) == len(translation) == 5
    # Spread evenly: 24 lines, every fifth or so.
    rows = [re.search(r"row (\d+)", one.inputs)[1] for one in translation]
    assert rows == ["0", "4", "9", "14", "19"]
    assert translation[1].prediction == "Es ist rain 4."
    assert translation[0].targets == ("Es ist rain 0.",)
    assert instructions[1].heading == "task1300_rte_weather"
    assert instructions[1].inputs == "Say which weather the report tells of.\n\nReport 4."
    assert instructions[1].targets == ("rain", "snow", "wind", "heat")
    assert questions[0].inputs == "Where does it rain?\n\nIn Oslo it rains."
    assert (questions[0].heading, questions[1].targets) == ("q1", ())
    assert own == ()


@pytest.mark.parametrize("name", ["nan", "null"])
def test_undefined_metric_is_a_dash_not_an_error(decoded, tmp_path, name):
    value = float("nan") if name == "nan" else None
    change(decoded, lambda tasks: tasks["my_task"]["metrics"].update(accuracy=value))
    paths = write_report([decoded], tmp_path / "out")
    data = json.loads(paths.json.read_text())
    assert data["generation"][3]["metrics"] == {"accuracy": None, "edit_distance": 3.25}
    assert "| my\\_task | accuracy | tiny, step 3,000 | – |" in paths.markdown.read_text()


BAD = {
    "metric as text": (lambda t: t["mt_en_de"]["metrics"].update(bleu="21"), "must be a number"),
    "no examples": (lambda t: t["mt_en_de"].pop("examples"), "'examples' is missing"),
    "not an object": (lambda t: t.update(mt_en_de=3), "must be an object"),
    "elsewhere": (lambda t: t["mt_en_de"].update(predictions="../x.jsonl"), "below the results"),
    "from the root": (lambda t: t["mt_en_de"].update(predictions="/etc/x"), "below the results"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused_by_name(decoded, name):
    edit, message = BAD[name]
    with pytest.raises(UserError, match=message) as caught:
        read_runs([change(decoded, edit)])
    assert f"{decoded}: task 'mt_en_de'" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"), [('{"pred', "not valid JSON"), ("[1]", "wanted an object"), ("{}", "text")]
)
def test_bad_predictions_name_file_and_line(folder, line, message):
    path = Decoded(folder).add("x", {"accuracy": 1.0}, [{"prediction": "a"}]).write()
    (folder / "predictions" / "x_100.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=message) as caught:
        read_runs([path])
    assert "x_100.jsonl, line 1" in str(caught.value)
    (folder / "predictions" / "x_100.jsonl").unlink()
    assert read_runs([path])[0].decoded[0].predictions == ()


def test_decoded_files_alone_make_a_report(folder, tmp_path, capsys):
    for step in (1000, 2000, 3000):
        recipes_decoded(folder, step, step / 2000).write()
    out = tmp_path / "out"
    assert t0_main.main(["report", str(folder), "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Metrics of decoded text" in printed
    assert "46.50" in printed
    assert str(out / "report_metrics.csv") in printed
    assert "Accuracy (%) over prompts" not in printed
    names = {file.name for file in out.iterdir()}
    assert {"metrics_by_step.png", "report_metrics.csv"} < names
    assert "accuracy.png" not in names
    page = (out / "report.html").read_text()
    assert "<title>Evaluation</title>" in page
    assert 'id="generation"' in page
    assert all(f'id="{name}"' not in page for name in ("datasets", "prompts", "method", "errors"))
    assert SIGNATURE.replace("|", "|<wbr>") in page
    assert "data to text" in page
    markdown = (out / "report.md").read_text()
    assert f"mt\\_en\\_de: bleu is sacreBLEU’s {plain(SIGNATURE)}" in markdown
    assert "### sni\\_def\\_pos\\_2 by category" in markdown
    assert "![Metrics against step](metrics_by_step.png)" in markdown
    assert "## Datasets" not in markdown


def test_one_checkpoint_evaluated_in_both_modes_is_one_run(folder, evaluation, tmp_path):
    recipes_decoded(folder, 3000, 1.0, split="validation").write()
    ranked = evaluation(step=3000, split="validation")
    ranked.add("rte_a", "super_glue/rte", "a", random_lines(20, [2], 1)).write()
    (run,) = read_runs([folder])
    assert (len(run.tasks), len(run.decoded)) == (1, 4)
    assert run.files == "results_3000.json, decoded_3000.json"
    paths = write_report([folder], tmp_path / "out")
    page = paths.html.read_text()
    assert "<title>T0 evaluation</title>" in page
    assert all(f'id="{name}"' in page for name in ("datasets", "generation", "prompts"))
    # Of another split it is another run, told apart by it.
    recipes_decoded(folder, 3000, 1.0, split="test").write()
    labels = [run.label for run in read_runs([folder])]
    assert labels == ["tiny, step 3,000, test", "tiny, step 3,000, validation"]


def test_csv_holds_every_value(decoded, tmp_path):
    paths = write_report([decoded], tmp_path / "out")
    rows = list(csv.DictReader(io.StringIO(paths.metrics_csv.read_text())))
    found = {(row["task"], row["group"], row["metric"]): row["value"] for row in rows}
    assert found["mt_en_de", "", "bleu"] == "32.25"
    assert found["sni_def_pos_2", "task1301_rte_weather", "rougeL"] == "49.5"
    assert len(rows) == 2 + 4 * 2 + 2 + 1 + 2
    (bleu,) = (row for row in rows if row["metric"] == "bleu")
    assert (bleu["signature"], bleu["examples"], bleu["truncated_targets"]) == (
        SIGNATURE,
        "24",
        "4",
    )


def test_values_of_two_signatures_are_not_compared_in_silence(folder, tmp_path):
    first = recipes_decoded(folder, 1000, 1.0).write()
    second = recipes_decoded(tmp_path / "other" / "eval", 1000, 1.0).write()
    other = {"bleu": SIGNATURE.replace("13a", "intl")}
    change(second, lambda tasks: tasks["mt_en_de"].update(signatures=other))
    runs = read_runs([first, second])
    (note,) = signature_notes(generations(runs))
    assert note.startswith("mt_en_de: bleu was computed in different ways")
    assert signature_notes(generations(runs[:1])) == []
    assert (
        "do not compare its values"
        in write_report([first, second], tmp_path / "o").html.read_text()
    )


def test_curves_over_steps_and_what_the_last_checkpoints_wrote(folder, tmp_path):
    for step in (10, 20):
        recipes_decoded(folder, step, step / 10).write()
    other = recipes_decoded(tmp_path / "other" / "eval", 20, 1.0).write()
    runs = read_runs([folder, other])
    found = generations(runs)
    titles = [panel.title for panel in metric_panels(found, runs)]
    assert titles[:3] == [
        "sni_def_pos_2: exact_match", "sni_def_pos_2: rougeL", "qa_squad: em",
    ]  # fmt: skip
    assert metric_panels(generations(runs[1:]), runs[1:]) == []
    cards = found[2].cards
    assert len(cards) == 5
    assert [run for run, _ in cards[0].answers] == [1, 2]


EVIL = "</script><img src=x onerror=alert(1)>&\"'`|"


def test_untrusted_text_stays_text(folder, tmp_path):
    line = {"inputs": EVIL, "prediction": EVIL, "targets": EVIL}
    path = (
        Decoded(folder, model_dir=EVIL)
        .add("x", {EVIL: 1.0, f"{EVIL}_for_{EVIL}": 1.0}, [line], signatures={EVIL: EVIL})
        .write()
    )
    paths = write_report([path], tmp_path / "out")
    for text in (paths.html.read_text(), paths.markdown.read_text()):
        assert "<img" not in text
        assert "</script><" not in text
    tables = paths.markdown.read_text().split("## Generation")[1]
    for block in re.findall(r"(?:^\|.*\n)+", tables, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_many_predictions_do_not_swell_the_page(folder, tmp_path, monkeypatch):
    lines = [{"inputs": "x" * 5000, "prediction": "y" * 5000, "targets": "z" * 5000}] * 9
    path = Decoded(folder).add("x", {"accuracy": 1.0}, lines).write()
    large = write_report([path], tmp_path / "large").html.read_text()
    assert large.count("x" * 1000) == 5
    assert "more characters]" in large
    monkeypatch.setattr("t0.reports.page.PAGE_LIMIT_BYTES", len(large) - 100)
    small = write_report([path], tmp_path / "small").html.read_text()
    assert 0 < small.count("x" * 1000) < 5
