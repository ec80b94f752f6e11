"""Texts from files are untrusted: page, spreadsheet and terminal show them as text.

No character of theirs ends a plot or a page.
"""

import csv
import io
import itertools
import json
import math
import os
import re

import pytest

from t0.cli import main as t0_main
from t0.errors import UserError, printable
from t0.files.untrusted import DEEPEST
from t0.reports import read_runs, write_report
from t0.reports.result_files import parsed_json
from tests.reports.made_up_evaluations import Decoded, Evaluation, example_line
from tests.reports.parsed_pages import parsed

EVIL = "</script><img src=x onerror=alert(1)>&\"'"
# What a terminal obeys, half of a surrogate pair, and what XML cannot hold.
HOSTILE = "\x1b]0;x\x07\x1b[2J\x00\x9b1m\r \ud800 \uffff"
SHOWN = r"\x1b]0;x\x07\x1b[2J\x00\x9b1m\r \ud800 \uffff"
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]|\r(?!\n)")


@pytest.fixture(scope="module")
def evil_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    lines = [
        example_line(i, [-1.0, -3.0], 1, texts=[EVIL, f"b\u2028{EVIL}"], inputs=EVIL)
        for i in range(3)
    ]
    path = (
        Evaluation(folder / "evil" / "eval", name=EVIL, notes=[EVIL], mixture=EVIL)
        .add("evil", EVIL, EVIL, lines, group=EVIL, excluded={EVIL: 1})
        .write()
    )
    return write_report([path], folder / "out", title=EVIL, notes=["{{ 7 * 7 }}" + EVIL])


def test_untrusted_text_stays_text_in_the_page(evil_page):
    html = evil_page.html.read_text()
    found = parsed(html)
    assert "img" not in found.tags
    assert not [a for a in found.attributes if a[1].startswith("on")]
    assert found.tags.count("script") == 3
    index, data = map(json.loads, found.scripts[:2])
    assert index["groups"][0]["tasks"][0]["prompt"] == EVIL
    assert index["groups"][0]["tasks"][0]["diagnoses"][0]["most_predicted_answer"] == EVIL
    assert data["strings"] == [EVIL, f"b\u2028{EVIL}"]
    assert "<" not in found.scripts[0] + found.scripts[1]
    assert "{{ 7 * 7 }}" + EVIL in "".join(found.text)
    assert "innerHTML" not in html


@pytest.mark.usefixtures("rough_pictures")
def test_untrusted_text_stays_text_in_separate_scripts(evil_page, tmp_path, monkeypatch):
    monkeypatch.setattr("t0.reports.report.EMBEDDED_BYTES", 0)
    results = evil_page.html.parent.parent / "evil"
    out = write_report([results], tmp_path / "beside").html.parent
    text = (out / "report_examples_0.js").read_text()
    assert text.startswith("t0Examples(0, {")
    assert not set("<>&\u2028") & set(text)


def test_untrusted_text_of_decoded_results_stays_text(folder, tmp_path):
    evil = EVIL + "`|"
    line = {"inputs": evil, "prediction": evil, "targets": evil}
    path = (
        Decoded(folder, model_dir=evil)
        .add("x", {evil: 1.0, f"{evil}_for_{evil}": 1.0}, [line], signatures={evil: evil})
        .write()
    )
    paths = write_report([path], tmp_path / "out")
    text = paths.html.read_text()
    assert "<img" not in text
    assert "</script><" not in text


@pytest.fixture
def hostile(tmp_path):
    """Evaluations of both modes and a training run, with hostile characters in every text."""
    model = tmp_path / "a model\x1b[2J"
    lines = [example_line(i, [-1.0, -3.0], 1, texts=[HOSTILE, "b"], inputs=HOSTILE) for i in (0, 1)]
    for step in (1, 2):
        facts = {"mixture": HOSTILE, HOSTILE: [HOSTILE], "notes": [HOSTILE], "name": HOSTILE}
        fields = {"group": HOSTILE, "excluded": {HOSTILE: 1}}
        ranked = Evaluation(model / "eval", step, **facts)
        ranked.add("ranked", HOSTILE, HOSTILE, lines, **fields).write()
        line = {"id": HOSTILE, "question": HOSTILE, "prediction": HOSTILE, "answers": [HOSTILE]}
        decoded = Decoded(model / "eval", step, name=HOSTILE, split=None)
        metrics = {HOSTILE: 1.0, f"{HOSTILE}_for_{HOSTILE}": 2.0}
        decoded.add("decoded", metrics, [line], signatures={HOSTILE: HOSTILE})
        decoded.tasks[HOSTILE] = decoded.tasks.pop("decoded")
        decoded.write()
    key = f"eval/{HOSTILE}"
    records = [{"step": 1, "loss": 1.0, key: 1.0}, {"step": 1, "best_by": key, "best_step": 1}]
    (model / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return model


def all_texts(value):
    if isinstance(value, dict):
        return "".join(key + all_texts(part) for key, part in value.items())
    return "".join(map(all_texts, value)) if isinstance(value, list) else str(value)


@pytest.mark.parametrize("character", [*HOSTILE.replace(" ", ""), "\b", "\f", "\x7f", "\udfff"])
@pytest.mark.parametrize("escaped", [True, False])
def test_control_characters_are_escaped_when_json_is_read(character, escaped):
    text = json.dumps({character: [f"a {character}"]}, ensure_ascii=escaped)
    if escaped or character > "\x1f":  # JSON holds the others as escapes only
        (key, values), *_ = parsed_json(text).items()
        wanted = printable(character)
        assert (key, values) == (wanted, [f"a {wanted}"])


def test_unicode_text_is_unchanged_when_json_is_read():
    text = "tab\t line\n return\r\n Grüße 你好 😀 \u2028"
    for escaped in (True, False):
        assert parsed_json(json.dumps([text], ensure_ascii=escaped)) == [text]


def test_control_characters_reach_no_file_and_no_terminal(hostile, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["report", str(hostile), "--metrics", str(hostile), "--output", str(out)]
    assert t0_main.main([*words, "--title", HOSTILE, "--note", HOSTILE]) == 0
    printed = capsys.readouterr()
    pictures = {"accuracy.png", "accuracy_by_step.png", "metrics_by_step.png", "training.png"}
    assert pictures < {file.name for file in out.iterdir()}
    binary = (".png", ".pdf")
    texts = {f.name: f.read_bytes().decode() for f in out.iterdir() if f.suffix not in binary}
    for name, text in {**texts, "printed": printed.out, "errors": printed.err}.items():
        assert not UNPRINTABLE.search(text), name
    for name in ("report.html", "report.csv", "report_metrics.csv"):
        assert SHOWN in texts[name], name
    # JSON writes them as escapes, which its reader would turn back.
    assert not UNPRINTABLE.search(all_texts(json.loads(texts["report.json"])))
    assert SHOWN in json.loads(parsed(texts["report.html"]).scripts[1])["strings"]
    assert json.loads(texts["report.json"])["runs"][0]["run"][SHOWN] == [SHOWN]


@pytest.mark.usefixtures("rough_pictures")
def test_report_of_folder_whose_name_is_not_utf8(hostile, tmp_path, capsys):
    """Python reads such a name as lone surrogates; here it names the model, too."""
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    (folder / "eval").mkdir(parents=True)
    task = {"dataset": "sciq", "examples": 1, "metrics": {"accuracy": 25}}
    results = {"schema": 1, "tasks": {"a": task}}
    (folder / "results_1.json").write_text(json.dumps(results))
    (folder / "metrics.jsonl").write_bytes((hostile / "metrics.jsonl").read_bytes())
    out = folder / "out"
    words = ["report", str(folder), "--metrics", str(folder), "--output", str(out)]
    assert t0_main.main(words) == 0
    assert r"\udcff\udcfe/out/report.html" in capsys.readouterr().out
    assert r"\udcff\udcfe" in (out / "report.html").read_text()


def test_error_message_escapes_control_characters(tmp_path, capsys):
    path = tmp_path / "results_1.json"
    path.write_text(json.dumps({"schema": 1, "tasks": {HOSTILE: 3}}))
    with pytest.raises(SystemExit):
        t0_main.main(["report", str(path), "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        t0_main.main(["report", f"no\x1b[2J\r{path}", "--output", str(tmp_path / "out")])
    message = capsys.readouterr().err
    assert f"tasks.{SHOWN} is 3; expected an object" in message
    assert r"no\x1b[2J\r" in message
    assert not UNPRINTABLE.search(message)
    assert "\r" not in message


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1", "\r\n=1", "=cmd|' /C calc'!A0"]


@pytest.mark.usefixtures("rough_pictures")
@pytest.mark.parametrize("formula", FORMULAS)
def test_csv_formula_injection_is_escaped(folder, tmp_path, formula):
    lines = [example_line(0, [-1.0, -2.0], 0)]
    ranked = Evaluation(folder, name=formula)
    ranked.add("a", formula, formula, lines, group=formula, excluded={formula: 1}).write()
    decoded = Decoded(folder, name=formula)
    metrics = {formula: -3.5, f"{formula}_for_{formula}": -1.0}
    decoded.add("x", metrics, [], signatures={formula: formula})
    decoded.tasks[formula] = decoded.tasks.pop("x")
    decoded.write()
    paths = write_report([folder], tmp_path / "out")
    assert len(paths.csv) == 4
    for path in paths.csv:
        # Carriage returns outside of quotes end a row, and begin a cell.
        text = path.read_bytes().decode()
        assert "\r" not in text
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert len({len(row) for row in rows}) == 1
        cells = [cell for row in rows for cell in row]
        assert "'" + formula.replace("\r\n", "\n") in cells
        numbers = {"-3.5", "-1.0"} if path.name == "report_metrics.csv" else set()
        assert {cell for cell in cells if cell[:1] in set("=+-@\t\r")} == numbers


@pytest.mark.parametrize(
    "nested", ["[" * 100_000, "[" * 400 + "]" * 400, '{"a":' * 120 + "1" + "}" * 120]
)
def test_deeply_nested_json_error_message_is_one_line(tmp_path, nested):
    path = tmp_path / "results_1.json"
    path.write_text(f'{{"schema": 1, "tasks": {{}}, "run": {{"x": {nested}}}}}')
    with pytest.raises(UserError, match=f"not valid JSON: nested more than {DEEPEST} levels deep"):
        read_runs([path])


def test_results_with_huge_integers_are_refused(folder, evaluation):
    lines = [example_line(10**30, [-1.0, -2.0], 0)]
    with pytest.raises(UserError, match="idx is 1000.*; expected a whole number from 0"):
        read_runs([evaluation().add("a", "sciq", "q", lines).write()])
    lines = [example_line(1, [-1.0, -(10**400)], 0, prediction=0)]
    with pytest.raises(UserError, match="log_likelihood is -1000.*; expected a number"):
        read_runs([evaluation("other").add("a", "sciq", "q", lines).write()])
    path = Decoded(folder, step=1).add("a", {"em": 10**400}, [], examples=10**30).write()
    with pytest.raises(UserError, match="examples is 1000.*; expected a whole number"):
        read_runs([path])


@pytest.mark.usefixtures("rough_pictures")
def test_facts_that_are_no_numbers_of_json_are_null(evaluation, tmp_path, capsys):
    facts = {"nan": math.nan, "options": [{"infinity": -math.inf}], "huge": 10**400}
    path = evaluation(**facts).add("a", "b", "c", [example_line(0, [-1.0, -3.0], 0)]).write()
    written = json.loads(
        write_report([path], tmp_path / "out").json.read_text(), parse_constant=int
    )
    assert t0_main.main(["report", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=int)
    assert printed == written
    assert (
        printed["runs"][0]["run"].items()
        >= {"nan": None, "options": [{"infinity": None}], "huge": 10**400}.items()
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(["results_1.json", "metrics.jsonl"], ["pipe", "zero", "proc", "sparse"]),
        *(("scores", "proc"), ("scores", "sparse")),  # a pipe is not listed as scores
    ],
)
def test_report_on_pipes_and_devices_is_one_line(tmp_path, capsys, kind, name):
    made = Evaluation(tmp_path / "eval")
    made.add("task", "d", "p", [example_line(0, [-1.0, -2.0], 0)])
    results = made.write()
    words = [str(tmp_path / "eval")]
    path = results.with_name(name)
    if name == "scores":
        path = next((tmp_path / "eval" / "scores").iterdir())
    if name == "metrics.jsonl":
        words = ["--metrics", str(path)]
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "proc":
        path.symlink_to("/proc/self/environ")
    else:
        path.touch()
        os.truncate(path, 2**40)
    with pytest.raises(SystemExit) as status:
        t0_main.main(["report", *words, "--output", str(tmp_path / "out")])
    assert status.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert path.name in said[-1] and not any("Traceback" in line for line in said)
