"""`t0 report --examples` writes the examples of a run to a table."""

import csv
import json

import pytest

from t0.cli import main as t0_main
from tests.reports.made_up_evaluations import Decoded, example_line

KINDS = ["billing", "other"]


def line(idx, gold, predicted, texts=KINDS, **fields):
    scores = [-1.0 if n == predicted else -2.5 for n in range(len(texts))]
    return example_line(idx, scores, gold, texts=texts, inputs=f"=Ticket\n{idx}", **fields)


@pytest.fixture
def tickets(evaluation):
    lines = [line(0, 0, 0, id="T-1"), line(1, 1, 0, id="T-2"), line(2, 1, 1)]
    return evaluation().add("tickets_which", "tickets", "which", lines).write()


def read(path, delimiter=","):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_examples_that_are_wrong_as_csv(tickets, tmp_path, capsys):
    out = tmp_path / "wrong.csv"
    assert t0_main.main(["report", str(tickets), "--examples", str(out), "--only", "wrong"]) == 0
    assert f"{out}: 1 examples" in capsys.readouterr().out
    assert read(out) == [
        {
            "id": "T-2",
            "prompt": "which",
            "text": "'=Ticket\n1",
            "target": "other",
            "prediction": "billing",
            "correct": "false",
            "score billing": "-1.0",
            "score other": "-2.5",
        }
    ]


def test_examples_for_excel_begin_with_a_byte_order_mark(tickets, tmp_path):
    contents = []
    for words in ([], ["--excel"]):
        assert (
            t0_main.main(["report", str(tickets), "--examples", str(tmp_path / "a.csv"), *words])
            == 0
        )
        contents.append((tmp_path / "a.csv").read_bytes())
    assert contents[1] == b"\xef\xbb\xbf" + contents[0]


def test_examples_all_as_tsv_and_json_lines(tickets, tmp_path):
    for ending in ("tsv", "jsonl"):
        words = ["--examples", str(tmp_path / f"all.{ending}")]
        assert t0_main.main(["report", str(tickets), *words]) == 0
    assert [row["id"] for row in read(tmp_path / "all.tsv", "\t")] == ["T-1", "T-2", "2"]
    first, *_ = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert (first["text"], first["correct"], first["score other"]) == ("=Ticket\n0", True, -2.5)


def test_examples_of_other_choices_datasets_runs_and_steps(evaluation, tmp_path):
    runs = []
    for model, step in (("one", 5), ("one", 9), ("two", 9)):
        made = evaluation(model, step)
        made.add("a_p", "a", "p", [line(0, 0, 1)])
        made.add("b_p", "b", "p", [line(0, 0, 1, ["x", "y"]), line(1, 2, 2, ["x", "y", "z"])])
        runs.append(str(made.write()))
    out = tmp_path / "all.csv"
    assert t0_main.main(["report", *runs, "--examples", str(out)]) == 0
    rows = read(out)
    assert [(row["run"], row["dataset"]) for row in rows] == [
        (f"{model}, step 9", dataset) for model in ("one", "two") for dataset in "abb"
    ]
    assert [rows[2][f"{kind} 3"] for kind in ("choice", "score")] == ["z", "-1.0"]
    assert rows[0]["choice 3"] == ""


def test_examples_of_decoded_texts(tmp_path):
    lines = [
        {"inputs": f"Where {n}?", "targets": "Oslo", "prediction": text}
        for n, text in enumerate((" Oslo", "Lima"))
    ]
    folder = tmp_path / "eval"
    Decoded(folder).add("where", {"accuracy": 50.0}, lines).write()
    out = tmp_path / "wrong.csv"
    assert t0_main.main(["report", str(folder), "--examples", str(out), "--only=wrong"]) == 0
    (row,) = read(out)
    assert (row["id"], row["target"], row["prediction"]) == ("1", "Oslo", "Lima")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--examples", "wrong.xlsx"], "tables are written as .csv, .tsv, .jsonl, .parquet"),
        (["--only", "wrong"], "--only selects what --examples writes: add --examples FILE"),
        (["--examples", "no/folder/wrong.csv"], "cannot write no/folder/wrong.csv"),
        (["--excel"], "--excel is for tables of --examples"),
        (["--examples", "wrong.parquet", "--excel"], "add --examples FILE.csv or FILE.tsv"),
    ],
)
def test_examples_with_a_wrong_flag_are_one_line(
    tickets, words, told, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        t0_main.main(["report", str(tickets), *words])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("wrong*"))


def test_examples_without_scores_are_refused(evaluation, tmp_path, capsys):
    path = evaluation().add("a_p", "a", "p", [line(0, 0, 0)], with_scores=False).write()
    with pytest.raises(SystemExit):
        t0_main.main(["report", str(path), "--examples", str(tmp_path / "all.csv")])
    assert "these results have no per-example scores or decoded texts" in capsys.readouterr().err
    assert not (tmp_path / "all.csv").exists()
