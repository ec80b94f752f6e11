"""Questions out of every format that they come in, and what is said of malformed ones."""

import json

import pytest

from t0.errors import UserError
from t0.sources.questions import Question, count_questions, question_splits, read_questions
from tests.sources.tiny_recipes import NESTED_SQUAD, SQUAD_ROW, UNANSWERABLE_ROW, write_lines

WHOLE = [
    Question("q1", "Where does it rain?", "In Oslo it rains.", ("Oslo", "in Oslo")),
    Question("q2", "Where does it snow?", "In Oslo it rains.", ()),
]
ROWS = [SQUAD_ROW, UNANSWERABLE_ROW]


def found(folder, name, content):
    """Writes a file of a split and finds it."""
    if name.endswith((".jsonl", ".jsonl.gz")):
        write_lines(folder / name, content)
    else:
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    (split,) = question_splits(folder).values()
    return split


def read(folder, name, content):
    split = found(folder, name, content)
    questions = list(read_questions(split))
    assert count_questions(split) == len(questions)
    return questions


FORMATS = {
    "lines": ("train.jsonl", ROWS),
    "packed lines": ("train.jsonl.gz", ROWS),
    "lines called json": ("train.json", "\n".join(map(json.dumps, ROWS))),
    "list": ("train.json", ROWS),
    "list under data": ("train.json", {"data": ROWS}),
    "articles": ("dev-v2.0.json", NESTED_SQUAD),
    "columns": ("train.json", {name: [row[name] for row in ROWS] for name in SQUAD_ROW}),
    "columns of pandas": (
        "train.json",
        {name: {str(n): row[name] for n, row in enumerate(ROWS)} for name in SQUAD_ROW},
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_question_answering_file_formats(tmp_path, name):
    assert read(tmp_path, *FORMATS[name]) == WHOLE


def test_question_answering_single_json_row(tmp_path):
    assert read(tmp_path, "train.json", SQUAD_ROW) == WHOLE[:1]


def test_question_answering_csv_file(tmp_path):
    text = "question,context,answer\nWhere?,Here it is.,Here\nWhy?,,Because\n"
    assert read(tmp_path, "test.csv", text) == [
        Question("0", "Where?", "Here it is.", ("Here",)),
        Question("1", "Why?", "", ("Because",)),
    ]


def test_question_answering_csv_numbers_are_text(tmp_path):
    text = "id,question,answer\n007,2 and 2?,4\n008,half of 3?,1.50\n"
    assert read(tmp_path, "test.csv", text) == [
        Question("007", "2 and 2?", "", ("4",)),
        Question("008", "half of 3?", "", ("1.50",)),
    ]
    (tmp_path / "tsv").mkdir()
    text = "question\tanswer\n1 or 2?\t2\n"
    assert read(tmp_path / "tsv", "test.tsv", text)[0].answers == ("2",)


def test_question_answering_stray_quotes(tmp_path):
    rows = "".join(f'"Who sang song {i}?\tsinger {i}"\n' for i in range(9))
    found = read(tmp_path, "train.tsv", "question\tanswer\n" + rows)
    assert [(q.question, *q.answers) for q in found] == [
        (f'"Who sang song {i}?', f'singer {i}"') for i in range(9)
    ]
    (tmp_path / "csv").mkdir()
    with pytest.raises(UserError, match=r"test\.csv, line 3: the quote before 'How"):
        read(tmp_path / "csv", "test.csv", 'question,answer\nWhy?,So\n"How,Thus\n')


def test_question_answering_processed_columns_are_preferred(tmp_path):
    row = {
        "id": 7,
        "question": "WHY ?",
        "question_processed": "why?",
        "context": "BECAUSE",
        "context_processed": "because",
        "answer": "RAIN",
        "answer_processed": ["rain"],
    }
    assert read(tmp_path, "train.jsonl", [row]) == [Question("7", "why?", "because", ("rain",))]
    del row["context_processed"]
    (tmp_path / "train.jsonl").unlink()
    assert read(tmp_path, "train.jsonl", [row])[0].context == "BECAUSE"


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ("one", ("one",)),
        (["one", "two"], ("one", "two")),
        ([{"text": "one", "answer_start": 0}], ("one",)),
        ({"text": ["one"], "answer_start": [3]}, ("one",)),
        ([], ()),
        (None, ()),
    ],
)
def test_question_answering_answer_forms(tmp_path, answers, wanted):
    row = {"question": "?", "context": ["a", "b"], "answers": answers}
    assert read(tmp_path, "train.jsonl", [row]) == [Question("0", "?", "a\nb", wanted)]


def test_question_answering_splits_from_file_names(tmp_path):
    names = ("train-v1.1.json", "dev-v1.1.json", "test_1.csv", "eval_predictions.jsonl.gz")
    for name in (*names, "trained.json", "metrics.json"):
        (tmp_path / name).touch()
    splits = {split: data.path.name for split, data in question_splits(tmp_path).items()}
    assert splits == {"train": names[0], "validation": names[1], "test": names[2]}
    (tmp_path / "validation.jsonl").touch()
    with pytest.raises(UserError, match="both dev-v1.1.json and validation.jsonl are the split"):
        question_splits(tmp_path)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ([{"text": "?", "answer": "a"}], "has no column 'question'; its columns: text, answer"),
        ([{"question": "?", "reply": "a"}], "has no column 'answers' or 'answer'"),
        ([{"question": "?", "answer": "a"}, {"question": 1, "answer": "a"}], "row 1 (the first"),
        ([{"question": "?", "context": 3, "answer": "a"}], "'context' must be"),
        ([{"question": "?", "answer": 3}], "'answer' must be a text, a list"),
        ([{"question": "?", "answer": [3]}], "'answer' must be a text, a list"),
        (["?"], "row 0 (the first is 0): got '?', expected an object"),
        ({"question": ["?"], "answer": []}, "its columns differ in length"),
        ("3", "got 3, expected an object"),
        ({"data": [{"paragraphs": [{"qas": []}, {"context": ""}]}]}, "has no 'qas'"),
        ('{"question": ', "not JSON"),
    ],
)
def test_question_answering_malformed_rows_are_refused(tmp_path, content, wanted):
    with pytest.raises(UserError) as raised:
        list(read_questions(found(tmp_path, "train.json", content)))
    assert wanted in str(raised.value)
    assert str(tmp_path / "train.json") in str(raised.value)


def test_question_answering_real_squad_and_nq(shared_data):
    folder = shared_data / "data_recipes" / "qa"
    if not folder.is_dir():
        pytest.skip("needs copies of SQuAD and NQ, not part of this project")
    counts = {
        (path.name, split): (
            count_questions(data),
            sum(not q.answers for q in read_questions(data)),
        )
        for path in sorted(folder.iterdir())
        for split, data in question_splits(path).items()
    }
    assert counts["squad", "validation"] == (1057, 0)
    assert counts["squad_v2", "train"] == (1573, 106)
    assert counts["squad_v2", "validation"] == (1407, 702)
    assert counts["nq_open", "validation"] == (3610, 0)
