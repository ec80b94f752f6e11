"""Predictions for rows (`t0 predict`) by a scorer without a model: tables, resuming, notes."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from t0.errors import UserError
from t0.evaluation.batching import BatchLimits, SortedPlan
from t0.files.table_files import write_table
from t0.inference import row_predictions
from t0.inference.predictions import PredictionFile
from t0.inference.row_predictions import RowTask, open_rows, rank_rows, write_predictions
from t0.prompts.few_shot import Exemplar, FewShot
from t0.prompts.model_prompts import ModelPrompts, RecordedPrompt, read_model_prompts
from t0.prompts.templates import Template

COLUMNS = (("label", "stars"), ("review_text", "review text"))
FIXED = ("{{review_text}} Good? ||| {{answer_choices[label]}}", "bad ||| good")
OF_ROW = ("{{review_text}} ||| {{answer_choices[label]}}", "{{a}} ||| {{b}}")


class Letters:
    """A vocabulary with a token for each letter."""

    eos_id = 1

    @staticmethod
    def encode(text):
        return [3 + ord(letter) % 90 for letter in text]


class Scorer:
    """Log-likelihoods that anyone can compute from the tokens; fails after some batches."""

    replicas = 1
    device_kind = "cpu"

    def __init__(self, batches=None):
        self.batches, self.scored = batches, 0

    def restore(self, checkpoint):
        return 1

    def plan(self, tasks, limits, **options):
        return SortedPlan(limits)

    def score(self, batch):
        inputs, targets = batch.lay_out()
        if self.batches is not None and self.scored == self.batches:
            raise KeyboardInterrupt
        self.scored += 1
        return -((inputs.sum(-1)[:, None] * targets.sum(-1)) % 11).astype(np.float32) / 4


def expected_scores(text, choices):
    """What `Scorer` gives the choices of a rendered text."""
    total = sum(Letters.encode(text))
    return [-((total * (sum(Letters.encode(choice)) + 1)) % 11) / 4 for choice in choices]


def prompt(jinja, choices):
    template = Template("which", jinja, choices, "", True, True, (), "which", columns=COLUMNS)
    return RecordedPrompt("reviews_which", "reviews", False, template)


def write_csv(path, count=30, **more):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["no", "review text", *more])
        for n in range(count):
            text = "" if n == 4 else f'film, "{n % 7}"'
            writer.writerow([f"{n:03d}", text, *(value(n) for value in more.values())])
    return path


def run(task, folder, scorer=None):
    file = PredictionFile(str(folder / "predictions.jsonl"), task.facts())
    rank_rows(
        task,
        file,
        lambda *_, **__: scorer or Scorer(),
        lambda _: BatchLimits(120, 4000),
        "checkpoint",
        "float32",
    )
    return str(folder / "predictions.jsonl")


@pytest.fixture
def task(tmp_path):
    rows = open_rows(str(write_csv(tmp_path / "rows.csv", stars=lambda n: "" if n % 3 else "1")))
    return RowTask(rows, prompt(*FIXED), Letters(), {"inputs": 64, "targets": 16})


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_predict_puts_the_stored_exemplars_before_the_input(task, tmp_path):
    shots = tuple(Exemplar(n, f"shot {n}", "good") for n in range(3))
    few_shot = FewShot(k=3, example_separator=" ## ", x_y_delimiter=" = ")
    stored = dataclasses.replace(task.prompt, few_shot=few_shot, exemplars=shots)
    model_prompts = ModelPrompts({"inputs": 64, "targets": 16}, "v.model", (stored,))
    (tmp_path / "prompts.json").write_text(model_prompts.to_json())
    (read_back,) = read_model_prompts(str(tmp_path)).prompts
    assert (read_back.few_shot, read_back.exemplars) == (few_shot, shots)
    task = dataclasses.replace(task, prompt=read_back)
    (_, example), *_ = task.examples()
    # 64 letters have room for two of the exemplars.
    assert example.inputs == 'shot 0 = good ## shot 1 = good ## film, "0" Good? = '
    assert "few_shot" not in ModelPrompts({}, "", (prompt(*FIXED),)).to_json()


@pytest.mark.parametrize("k", [0, 1])
def test_predict_puts_the_first_outer_template_around_the_input(task, tmp_path, k):
    shots = (Exemplar(0, "Q: shot", "good"),) * k
    few_shot = FewShot(k=k, outer_templates=("Q: {inputs} {choices}", "{inputs}!"))
    stored = dataclasses.replace(task.prompt, few_shot=few_shot, exemplars=shots)
    (tmp_path / "prompts.json").write_text(
        ModelPrompts({"inputs": 90, "targets": 16}, "v.model", (stored,)).to_json()
    )
    (read_back,) = read_model_prompts(str(tmp_path)).prompts
    changed = dataclasses.replace(task, prompt=read_back)
    (_, example), *_ = changed.examples()
    row = 'Q: film, "0" Good? bad; good'
    assert example.inputs == (f"Q: shot\n\ngood\n\n\n{row}\n\n" if k else row)


NOTHING = {"row": 0, "inputs": "", "targets": ""}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"exemplars": [{"row": 0, "inputs": "a", "targets": "b"}] * 4}, "4 exemplars of 8 char"),
        ({"exemplars": [{"row": 0, "inputs": "a" * 2**21, "targets": "b"}]}, "1 exemplars of 2,0"),
        ({"few_shot": {"k": 10**6}, "exemplars": [NOTHING] * 1001}, "1,001 exemplars of 0 char"),
        (
            {"few_shot": {"k": 2, "final_suffix": "a" * 2**21}, "exemplars": [NOTHING]},
            "1 exemplars",
        ),
        ({"exemplars": [["a", "b"]]}, "exemplars"),
        ({"exemplars": [{"row": 0, "inputs": {"a": 1}, "targets": "b"}]}, "inputs"),
        ({"few_shot": None, "exemplars": [{"row": 0, "inputs": "a", "targets": "b"}]}, "at most 0"),
        ({"few_shot": {"k": -1}}, "k"),
    ],
)
def test_stored_exemplars_are_untrusted(tmp_path, changes, told):
    stored = dataclasses.replace(prompt(*FIXED), few_shot=FewShot(k=3))
    content = json.loads(ModelPrompts({"inputs": 64, "targets": 16}, "v", (stored,)).to_json())
    content["prompts"][0] |= changes
    (tmp_path / "prompts.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"prompts.json cannot be read: .*{told}"):
        read_model_prompts(str(tmp_path))


def test_predict_keeps_columns_and_adds_the_best_choice(task, tmp_path, monkeypatch):
    monkeypatch.setattr(row_predictions, "WINDOW_ROWS", 8)
    task.check("out.csv", all_choices=True)
    output = tmp_path / "out.csv"
    notes = write_predictions(task, run(task, tmp_path), str(output), all_choices=True)
    ours, given = read(output), read(tmp_path / "rows.csv")
    added = ["prediction", "probability", "probability_bad", "probability_good"]
    assert list(ours[0]) == [*given[0], *added]
    assert len(ours) == 30
    for row, original in zip(ours, given, strict=True):
        assert {name: row[name] for name in original} == original
        if not row["review text"]:
            assert not any(row[name] for name in added)
            continue
        scores = expected_scores(f"{row['review text']} Good?", ["bad", "good"])
        shares = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
        assert row["prediction"] == ["bad", "good"][int(np.argmax(scores))]
        assert [float(row[name]) for name in added[2:]] == pytest.approx(shares, abs=1e-5)
        assert float(row["probability"]) == pytest.approx(max(shares), abs=1e-5)
    assert "1 row could not be rendered" in notes[-1] and "row 4" in notes[-1]
    assert "labels in the column stars are ignored: 10 rows" in notes[1]


def test_predict_resumes_after_saved_rows_with_the_same_bytes(task, tmp_path, monkeypatch):
    monkeypatch.setattr(row_predictions, "WINDOW_ROWS", 1)
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    whole = Scorer()
    expected = run(task, tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        run(task, tmp_path / "resumed", Scorer(whole.scored - 1))
    rest = Scorer()
    path = run(task, tmp_path / "resumed", rest)
    assert Path(path).read_bytes() == Path(expected).read_bytes()
    assert 0 < rest.scored < whole.scored


def test_predict_writes_every_format(task, tmp_path):
    lines = run(task, tmp_path)
    for name in ("out.tsv", "out.jsonl", "out.parquet"):
        write_predictions(task, lines, str(tmp_path / name), all_choices=False)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == rows
    assert rows[4]["prediction"] is None
    again = open_rows(str(tmp_path / "out.tsv"))
    assert [r["review text"] for r in again.reader.rows(0, None)] == [
        r["review text"] for r in rows
    ]


@pytest.mark.parametrize("extension", ["csv", "tsv"])
def test_predict_table_reads_back_texts_with_any_line_end(tmp_path, extension):
    texts = ["a\rb", "c\r\nd", "e\nf", 'say "x"', '"q"', "a;b,c\td", '"']
    path = str(tmp_path / f"out.{extension}")
    write_table(path, ("text", "n"), [{"text": text, "n": "x"} for text in texts])
    assert [row["text"] for row in open_rows(path).reader.rows(0, None)] == texts
    assert Path(path).read_bytes().startswith(b"text,n\n" if extension == "csv" else b"text\tn\n")


def test_predict_with_choices_of_the_row(tmp_path):
    more = {"a": lambda n: f"yes {n}", "b": lambda n: "no"}
    rows = open_rows(str(write_csv(tmp_path / "rows.csv", **more)))
    task = RowTask(rows, prompt(*OF_ROW), Letters(), {"inputs": 64, "targets": 16})
    output = tmp_path / "out.csv"
    write_predictions(task, run(task, tmp_path), str(output), all_choices=True)
    row = read(output)[7]
    assert row["prediction"] in ("yes 7", "no")
    assert float(row["probability_1"]) + float(row["probability_2"]) == pytest.approx(1)


def test_predict_leaves_out_blank_options_and_keeps_their_columns(tmp_path):
    more = {"a": lambda n: "" if n == 7 else f"yes {n}", "b": lambda n: "no"}
    rows = open_rows(str(write_csv(tmp_path / "rows.csv", **more)))
    task = RowTask(rows, prompt(*OF_ROW), Letters(), {"inputs": 64, "targets": 16})
    output = tmp_path / "out.csv"
    notes = write_predictions(task, run(task, tmp_path), str(output), all_choices=True)
    row = read(output)[7]
    assert (row["prediction"], row["probability_1"], row["probability_2"]) == ("no", "", "1.0")
    assert "  blank options are left out: 1 row" in notes


@pytest.mark.parametrize("extension", ["jsonl", "csv"])
def test_predict_never_writes_nan(tmp_path, extension):
    output = tmp_path / f"out.{extension}"
    row = {"n": math.nan, "list": [math.nan, 1.5], "zero": 0.0}
    write_table(str(output), [*row], [row])
    expected = {
        "jsonl": '{"n": null, "list": [null, 1.5], "zero": 0.0}\n',
        "csv": 'n,list,zero\n,"[null, 1.5]",0.0\n',
    }
    assert output.read_text() == expected[extension]


def test_predict_mistakes_in_rows(task, tmp_path):
    for path, content, message in (
        ("none.csv", None, "does not exist"),
        ("empty.csv", "review text\n", "has no rows"),
        ("rows.txt", "review text\nfine\n", "is not a file with rows"),
    ):
        if content is not None:
            (tmp_path / path).write_text(content)
        with pytest.raises(UserError, match=message):
            open_rows(str(tmp_path / path))
    for content, message in (
        ("text\nfine\n", "has no column review text, which the prompt reviews_which uses"),
        ("review text,prediction\nfine,good\n", "already has a column prediction"),
        ('review text,n\n"",1\n', "none of the 1 rows can be rendered"),
    ):
        (tmp_path / "bad.csv").write_text(content)
        with pytest.raises(UserError, match=message):
            RowTask(open_rows(str(tmp_path / "bad.csv")), task.prompt).check(
                "out.csv", all_choices=False
            )


@pytest.mark.parametrize(
    ("second", "choices", "output", "message"),
    [
        ({}, "bad ||| good", "out.csv", "line 2: has no column 'n'"),
        ({"n": 2**70}, "bad ||| good", "out.parquet", "Parquet cannot hold.*64 bits"),
        ({"n": "a"}, "bad ||| good", "out.parquet", "Parquet cannot hold.*different types"),
        ({"n": 1}, None, "out.csv", "reviews_which has no answer choices"),
        ({"n": 1, "probability_good": 1}, "bad ||| good", "out.csv", "a column probability_good"),
        ({"n": 1, "probability_1": 1}, "{{n}} ||| b", "out.csv", "a column probability_1"),
    ],
)
def test_predict_finds_mistakes_before_the_predictions(tmp_path, second, choices, output, message):
    last = {"review text": "fine", **second}
    rows = [{**last, "n": 1}, last]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = RowTask(open_rows(str(path)), prompt("{{review_text}} Good? ||| x", choices))
    with pytest.raises(UserError, match=message):
        task.check(output, all_choices=True)


@pytest.mark.parametrize(
    ("jinja", "columns"),
    [
        (FIXED[0], {"review_text"}),
        ("{% if review_text %}{{review_text}} ||| {{label}}{% endif %}", {"review_text"}),
        ("{% if x %}a ||| b{% elif y %}{{z}} ||| c{% else %}{{u}} ||| d{% endif %}{{label}}",
         {"x", "y", "z", "u"}),
        ("{% if x %}{{a}} ||| b{% endif %}{% if y %}{{c}} ||| d{% endif %}{{label}}",
         {"x", "a", "y", "c"}),
        ("{% if label %}Is it good?{% endif %} ||| {{v}}", {"label"}),
    ],
)  # fmt: skip
def test_predict_needs_only_the_columns_before_the_target(jinja, columns):
    assert prompt(jinja, None).compiled.input_columns == columns
    assert prompt("fine {{n}} ||| {{1 // 0}}", None).compiled.example({"n": 1}, labeled=False)


QUIZ = [
    {"question": f"number {n}?", "options": ["red", f'"blue", {n}'], "hot": n % 2 == 0, "code": "1"}
    for n in range(8)
]
OF_LIST = (
    "{{question}} {% if hot %}hot{% else %}cold{% endif %} {{code[:1]}} "
    "{{options | join(', ')}} ||| {{options[label]}}",
    "{{options | join(' ||| ')}}",
)


def predict_quiz(path, recorded, output):
    task = RowTask(open_rows(str(path)), recorded, Letters(), {"inputs": 99, "targets": 32})
    task.check(str(output), all_choices=False)
    folder = path.parent / f"{output.name}.lines"
    folder.mkdir()
    return write_predictions(task, run(task, folder), str(output), all_choices=False), task


@pytest.mark.parametrize("extension", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_predict_reads_lists_and_truth_values_of_its_own_output(tmp_path, extension, is_recorded):
    kinds = {"options": "list", "hot": "truth value", "code": "text", "question": "text"}
    recorded = prompt(*OF_LIST)
    if not is_recorded:  # a file of an earlier version
        recorded = prompt(*[text.replace("hot %}hot", "1 %}").replace("code[:1]", "code")
                            for text in OF_LIST])  # fmt: skip
        kinds = {}
    recorded = dataclasses.replace(recorded, kinds=kinds)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in QUIZ))
    first, second = tmp_path / f"first.{extension}", tmp_path / "second.jsonl"
    _, task = predict_quiz(rows, recorded, first)
    expected = [example for _, example in task.examples()]
    assert expected[0].choices == ["red", '"blue", 0']
    notes, task = predict_quiz(first, recorded, second)
    assert [example for _, example in task.examples()] == expected
    assert "  replaced earlier predictions: prediction, probability" in notes
    lines = [json.loads(line) for line in second.read_text().splitlines()]
    assert list(lines[0]) == ["question", "options", "hot", "code", "prediction", "probability"]
    assert all(line["prediction"] in row["options"] for line, row in zip(lines, QUIZ, strict=True))


@pytest.mark.parametrize("cell", ["['red', 'blue']", "red;blue", '{"red": 1}'])
def test_predict_refuses_a_text_in_place_of_a_list(tmp_path, cell):
    recorded = dataclasses.replace(prompt(*OF_LIST), kinds={"options": "list"})
    path = tmp_path / "rows.csv"
    path.write_text("question,options,hot,code\nwhich?," + json.dumps(cell).replace('\\"', '""')
                    + ",true,1\n")  # fmt: skip
    with pytest.raises(UserError, match="none of the 1 rows.*'options': expected a list, as in"):
        RowTask(open_rows(str(path)), recorded).check("out.csv", all_choices=False)


def test_predict_keeps_a_column_prediction_that_the_prompt_reads(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,prediction,probability\nfine,good,0.5\n")
    task = RowTask(open_rows(str(path)), prompt("{{text}} {{prediction}}? ||| x", "a ||| b"))
    with pytest.raises(UserError, match="already has a column prediction"):
        task.check("out.csv", all_choices=False)


def test_predict_reads_prompts_with_and_without_kinds(tmp_path):
    recorded = dataclasses.replace(prompt(*OF_LIST), kinds={"options": "list"})
    prompts = ModelPrompts({"inputs": 9, "targets": 9}, "v", (recorded,))
    (tmp_path / "prompts.json").write_text(prompts.to_json())
    assert read_model_prompts(str(tmp_path)).prompts[0].kinds == {"options": "list"}
    old = json.loads(prompts.to_json())
    del old["prompts"][0]["kinds"]
    (tmp_path / "prompts.json").write_text(json.dumps(old))
    assert read_model_prompts(str(tmp_path)).prompts[0].kinds == {}


@pytest.mark.parametrize(
    ("jinja", "nested"),
    [
        ("{{a | join(', ')}} {{b | lower}}", {"a"}),
        ("{% for x in a %}{{x}}{% endfor %}", {"a"}),
        ("{{a.text}} {{b.split(',')}} {{c['k']}} {{d[0]}}", {"a", "c"}),
        ("{% for x, y in zip(a, b) %}{{x}}{% endfor %}{% for w in c.split() %}{{w}}{% endfor %}",
         {"a", "b"}),
        ("{{answer_choices | join(', ')}}", set()),
    ],
)  # fmt: skip
def test_predict_finds_the_columns_that_a_template_reads_as_lists(jinja, nested):
    assert prompt(jinja, None).compiled.nested_columns == nested
