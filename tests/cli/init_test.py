"""`t0 init`: the columns it finds, the labels it reads, what it writes and refuses."""

import gzip
import io
import json
import os
import re
import subprocess
import sys

import pytest

from t0.catalogue.columns import label_text, read_labels, summarize_columns
from t0.cli import main as cli
from t0.errors import UserError
from t0.testing import train_vocabulary

TEXTS = ["a fine film", "a dull film", "what a long film", "short and good", "never seen worse"]


def rows_with(labels, count=40):
    """Rows whose text tells their label's place."""
    return [
        {"n": i, "review text": f"{TEXTS[i % 5]} number {i}", "sentiment": labels[i % len(labels)]}
        for i in range(count)
    ]


def write_csv(path, rows):
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def init(capsys, monkeypatch, tmp_path):
    """Runs `t0 init WORDS` in a folder of its own; returns (status, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        try:
            status = cli.main(["init", *map(str, words)])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def written(tmp_path, split, name="films"):
    lines = (tmp_path / name / "data" / name / f"{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_init_warns_of_unknown_tokens_and_truncation(init, tmp_path):
    asked = ["number 0123456789", "Which sentiment is it?: dull, fine The of this"]
    vocabulary = train_vocabulary(tmp_path / "v.model", [*TEXTS, *asked], size=80)
    rows = rows_with(["☂", "☀"])
    for row in rows[:30]:
        row["review text"] += " 😀\n" * 2 + "so"
    rows[0]["review text"] *= 150
    write_csv(tmp_path / "films.csv", rows)
    status, out, _ = init("films", "films.csv", "--text=review text", f"--vocab={vocabulary}")
    assert status == 0
    assert "WARNING: not in the vocabulary: '☀', '☂'" in out
    assert "WARNING: '☀' and '☂' have the same tokens" in out
    assert "WARNING: 1 of the first" in out and "cut at 2,048 characters" in out
    train = written(tmp_path, "train")
    smiles = sum("😀" in row["review_text"] for row in train)
    assert f"of the first {len(train)} rows, {len(train)} have characters that are not in" in out
    assert f"'😀' ({smiles})" in out
    assert out.count(f"line breaks become spaces ({smiles} of the first {len(train)} rows") == 1
    write_csv(tmp_path / "words.csv", rows_with(["dull", "fine"], 240))
    _, out, _ = init("words", "words.csv", "--text=review text", f"--vocab={vocabulary}")
    assert "WARNING" not in out


def test_init_csv_with_missing_label_and_float_labels(init, tmp_path):
    rows = rows_with(["0.0", "1.0"])
    rows[3]["sentiment"] = ""
    write_csv(tmp_path / "films.csv", rows)
    status, out, err = init("films", "films.csv", "--choices=bad,good")
    assert (status, err) == (0, "")
    assert "1 without text or label left out. Text: review text" in out
    assert "sentiment 0 is 'bad': 20 rows" in out
    assert "sentiment 1 is 'good': 19 rows" in out
    train, validation = written(tmp_path, "train"), written(tmp_path, "validation")
    assert len(train) + len(validation) == 39
    assert validation
    assert train[0] == {"n": 0, "review_text": "a fine film number 0", "label": 0}
    assert os.access(tmp_path / "films" / "commands.sh", os.R_OK)
    names = [line.split()[0] for line in out.splitlines() if not line.startswith("#")]
    assert names == ["t0", "seqio_cache_tasks", "t5_mesh_transformer", "t0", "t0"]
    assert "# predict\nt0 predict films/model new.csv --output predictions.csv\n" in out
    script = (tmp_path / "films" / "commands.sh").read_text()
    assert all(line in script for line in out.splitlines() if not line.startswith("#"))


def test_init_prompts_render_their_labels(init, tmp_path, capsys):
    write_csv(tmp_path / "films.csv", rows_with(["no", "yes"]))
    assert init("films", "films.csv")[0] == 0
    words = ["show", "films_which", "--all_prompts", f"--data_dir={tmp_path / 'films/data'}"]
    assert cli.main([*words, "--row=1"]) == 0
    out = capsys.readouterr().out
    assert "The sentiment of this is\n  target\n    yes\n" in out
    assert "Which sentiment is it: no, yes?\n  target\n    yes\n" in out
    assert cli.main(["lint", "films_.*", *words[3:]]) == 0
    assert cli.main(["tasks", "films_rank", *words[3:]]) == 0


def test_lint_reads_the_lengths_of_the_starter_folder(init, tmp_path, capsys):
    model = train_vocabulary(tmp_path / "v.model", [*TEXTS, "0 1 2 3 4 5 6 7 8 9"], size=300)
    write_csv(tmp_path / "films.csv", rows_with(["no", "yes"]))
    assert init("films", "films.csv", f"--vocab={model}")[0] == 0
    folder = tmp_path / "films"
    capsys.readouterr()
    assert cli.main(["lint", str(folder)]) == 0
    assert "inputs over" not in capsys.readouterr().out
    templates = next((folder / "data").rglob("templates.yaml"))
    longer = "the question is long " * 60
    templates.write_text(
        templates.read_text().replace("Which sentiment", f"{longer} Which sentiment")
    )
    assert cli.main(["lint", str(folder)]) == 1
    limit = json.loads((folder / "starter.json").read_text())["lengths"]["inputs"]
    assert f"inputs over {limit}: " in capsys.readouterr().out


def test_init_reads_folder_of_splits_gzip_jsonl_and_parquet(init, tmp_path):
    rows = rows_with([True, False])
    (tmp_path / "d").mkdir()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "d" / "train.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "d" / "dev.jsonl").write_text(text)
    status, out, err = init("films", "d")
    assert status == 0, err
    assert "train 40, validation 40 rows" in out
    assert "sentiment false is 'false': 40 rows" in out
    assert written(tmp_path, "validation")[0]["label"] == 1

    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert init("parquet", "x.parquet")[0] == 0
    assert written(tmp_path, "train", "parquet")[0] == written(tmp_path, "train")[0]


def test_init_warns_of_a_class_without_examples_in_validation(init, tmp_path):
    rows = rows_with([True, False])
    (tmp_path / "d").mkdir()
    for split, some in (("train", rows), ("dev", [row for row in rows if row["sentiment"]])):
        text = "".join(json.dumps(row) + "\n" for row in some)
        (tmp_path / "d" / f"{split}.jsonl").write_text(text)
    status, out, err = init("films", "d")
    assert status == 0, err
    warning = "validation has no example of the class 'false', so it cannot measure its recall"
    assert f"#   WARNING: {warning}" in out


def test_init_train_validation_split_keeps_equal_rows_together(init, tmp_path):
    rows = [{"text": f"words number {i % 31} here", "label": i % 2} for i in range(310)]
    write_csv(tmp_path / "x.csv", rows)
    assert init("films", "x.csv", "--text=text")[0] == 0
    texts = [{row["text"] for row in written(tmp_path, split)} for split in ("train", "validation")]
    assert all(texts)
    assert not texts[0] & texts[1]


def test_init_classes_of_one_text_have_validation_rows(init, tmp_path):
    write_csv(tmp_path / "x.csv", [{"text": f"text {i % 2}", "label": i % 2} for i in range(40)])
    assert init("films", "x.csv", "--text=text")[0] == 0
    assert len(written(tmp_path, "validation")) == 4


def test_init_every_class_is_in_both_splits(init, tmp_path):
    rows = [
        {"text": f"words number {i} here", "label": ["often", "often", "rare"][i % 3]}
        for i in range(300)
    ]
    rows = [row for i, row in enumerate(rows) if row["label"] == "often" or i in (2, 5)]
    rows += [rows[2], {"text": "only one text", "label": "single"}]
    write_csv(tmp_path / "x.csv", rows)
    status, out, _ = init("films", "x.csv", "--text=text", "--label=label")
    assert status == 0
    assert out.count("validation has no example of the class 'single'") == 1
    few = "validation has fewer than 10 rows of 1 of 3 classes, such as 'rare': their recall"
    assert out.count("WARNING") == 2 and few in out
    sides = {
        s: {(r["text"], r["label"]) for r in written(tmp_path, s)} for s in ("train", "validation")
    }
    assert [sum(label == 1 for _, label in side) for side in sides.values()] == [1, 1]
    assert not {text for text, _ in sides["train"]} & {text for text, _ in sides["validation"]}
    assert ("only one text", 2) in sides["train"]


def test_init_row_with_one_of_two_texts_is_kept(init, tmp_path, capsys):
    rows = [
        {
            "subject": f"on film {i}" * (i % 3 > 0),
            "body": f"a film {i}" * (i % 3 < 2),
            "label": i % 2,
        }
        for i in range(40)
    ]
    rows[7] |= {"subject": "", "body": " "}
    write_csv(tmp_path / "films.csv", rows)
    status, out, _ = init("films", "films.csv", "--text=subject,body", "--choices=no,yes")
    assert status == 0
    assert "1 without text or label left out" in out
    assert cli.main(["show", "films", "--rows=20"]) == 0
    out = capsys.readouterr().out
    for only in ("body: a", "subject: on"):
        assert re.search(rf"inputs\n    {only} film \d+\n    \n    Which label is it: no, yes", out)
    assert re.search(r"subject: on film \d+\n    body: a film \d+\n    \n    The label of", out)


def test_init_prompts_print_0_and_false_but_no_missing_value(init, tmp_path):
    from t0.prompts import CompiledTemplate, read_template_file

    values = [0, False, 0.0, "0", " ", "", None, 3]
    rows = [
        {"note": f"a flat {i}", "beds": values[i % len(values)], "label": i % 2} for i in range(40)
    ]
    (tmp_path / "films.json").write_text(json.dumps(rows))
    assert init("films", "films.json", "--text=note,beds")[0] == 0
    templates = read_template_file(tmp_path / "films/data/films/templates.yaml").templates
    copied = [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    for template in templates:
        compiled = CompiledTemplate(template)
        for row in [*copied, {"note": "a", "beds": ""}, {"note": "a", "beds": " "}]:
            inputs = compiled.example(row, labeled=False).inputs
            shown = None if row["beds"] in (None, "", " ") else f"beds: {row['beds']}"
            lines = [line for line in inputs.split("\n") if line.startswith("beds:")]
            assert lines == [line for line in [shown] if line]
    assert {str(row["beds"]) for row in copied} == {"0", "False", "0.0", "None", "3"}


def test_init_new_prompt_joins_the_mixtures(init, tmp_path, capsys):
    write_csv(tmp_path / "films.csv", rows_with(["no", "yes"]))
    assert init("films", "films.csv")[0] == 0
    templates = tmp_path / "films" / "data" / "films" / "templates.yaml"
    text = templates.read_text()
    new = text[text.index("  films_say:") :].replace("say", "judge").replace("this is", "it is")
    templates.write_text(text + new)
    for mixture, ending in (("films_train", ""), ("films_rank", "_score_eval")):
        words = ["tasks", mixture, "--json", f"--data_dir={tmp_path / 'films/data'}"]
        assert cli.main(words) == 0
        listed = {row["task"] for row in json.loads(capsys.readouterr().out)}
        assert listed == {f"films_{name}{ending}" for name in ("which", "say", "judge")}


def test_init_sequence_lengths_fit_the_rows(init, tmp_path):
    from t0.testing import train_vocabulary

    model = train_vocabulary(tmp_path / "v.model", [*TEXTS, "0 1 2 3 4 5 6 7 8 9"], size=300)
    write_csv(tmp_path / "films.csv", rows_with(["bad", "good"]))
    assert init("films", "films.csv", f"--vocab={model}")[0] == 0
    lengths = json.loads((tmp_path / "films/starter.json").read_text())["lengths"]
    assert "TASK_FEATURE_LENGTHS =" not in (tmp_path / "films/train.gin").read_text()
    assert 0 < lengths["inputs"] <= 128
    assert lengths["targets"] == 16


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["films", "no.csv"], ["no.csv: expected a file of rows"]),
        (
            ["films", "x.txt"],
            ["x.txt: expected a file of rows, whose extension is one of .jsonl, .json, .csv"],
        ),
        (["my films", "films.csv"], ["'my films' cannot be the name"]),
        (["sciq", "films.csv"], ["tasks of T0's own dataset sciq begin with it"]),
        (["super", "films.csv"], ["tasks of T0's own dataset super_glue begin with it"]),
        (["films", "films.csv", "--label=sentimant"], ["unknown column", "'sentiment'"]),
        (["films", "films.csv", "--text=txt"], ["unknown column 'txt'", "review text"]),
        (["films", "films.csv", "--text=sentiment"], ["would reveal the answer"]),
        (["films", "films.csv", "--label=review text"], ["cannot", "choice"]),
        (["films", "films.csv", "--choices=a,b,c"], ["names 3", "has 2 labels: bad, good"]),
        (["films", "films.csv", "--choices=a,a"], ["not all different"]),
        (["films", "films.csv", "--vocab=no.model"], ["vocabulary not found: no.model"]),
        (["films", "two.csv"], ["Set it with --label=COLUMN", "one: 2 different values", "two: 2"]),
        (["films", "empty.csv"], ["empty.csv"]),
        (["films", "few.csv"], ["2 rows of train have a text and a label; expected at least 10"]),
        (["films", "films.csv", "--output=there"], ["there exists already", "--output"]),
    ],
)
def test_init_user_error_writes_no_files(init, tmp_path, words, parts):
    rows = rows_with(["bad", "good"])
    rows[5]["review text"] = "{{ braces }}"
    write_csv(tmp_path / "films.csv", rows)
    both = [{"text": f"{TEXTS[i % 5]} {i}", "one": i % 2, "two": i % 2} for i in range(20)]
    write_csv(tmp_path / "two.csv", both)
    (tmp_path / "empty.csv").write_text("")
    write_csv(tmp_path / "few.csv", [{"text": "a b c", "label": i} for i in range(2)])
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "there").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    status, _, err = init(*words)
    assert status == 2, err
    for part in parts:
        assert part in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("values", "choices", "wanted"),
    [
        ([1.0, 0.0], None, {"0": "0", "1": "1"}),
        ([1, 2, 3], ("a", "b", "c"), {"1": "a", "2": "b", "3": "c"}),
        ([0, 2], ("a", "b", "c"), {"0": "a", "2": "c"}),
        ([-1, 0, 1], ("a", "b", "c"), {"-1": "a", "0": "b", "1": "c"}),
        ([-1, 1], None, {"-1": "-1", "1": "1"}),
        ([1, 3], ("a", "b", "c"), {"1": "a", "3": "c"}),
        (["TRUE", False], ("wrong", "right"), {"false": "wrong", "true": "right"}),
        (["yes", "no"], None, {"no": "no", "yes": "yes"}),
        (["Good", "bad"], ("bad", "good"), {"Good": "good", "bad": "bad"}),
        ([10, 9, 2], None, {"2": "2", "9": "9", "10": "10"}),
        ([0.5, 1.5], ("low", "high"), {"0.5": "low", "1.5": "high"}),
        ([0, 1], ("1.0", "0.0"), {"0": "0.0", "1": "1.0"}),
    ],
)
def test_init_label_values_are_read_by_type(values, choices, wanted):
    table = summarize_columns([{"l": value} for value in values * 2], where="rows")
    labels = read_labels(table, "l", choices)
    assert {label: labels.choices[i] for label, i in labels.indices.items()} == wanted
    for value in values:
        assert labels.choices[labels.index(value)] == wanted[label_text(value)]
    notes = " ".join(labels.notes)
    assert ("-1 is read as a class" in notes) == (-1 in values)
    assert ("the order decides: false is 'wrong', true is 'right'" in notes) == ("TRUE" in values)
    assert labels.index(None) is None
    assert labels.index(float("nan")) is None


@pytest.mark.parametrize(
    ("values", "choices", "message"),
    [
        # A choice that is a label keeps it, so the others must be labels too.
        (["positive", "negative"], "Positive,Negatve", r"'Negatve' \(did you mean 'negative'\?\)"),
        (["a b", "neutral", "c"], "a b,neutrl,c", r"'neutrl' \(did you mean 'neutral'\?\)"),
        ([0, 1, 2], "1,2,3", "'3'.*without a choice: 0"),
        (["yes", "no", "maybe"], "yes,no", "names 2, but column 'l' of rows has 3 labels"),
        (["US", "us", "x"], "US,us,y", "'y'.*without a choice: x"),
        # All are misspelled or abbreviated, and the order would swap them.
        (["positive", "negative"], "Postive,Negatve", "'Postive' .*'positive'.*'negative'"),
        (["pos", "neg"], "positive,negative", "did you mean 'pos'.*did you mean 'neg'"),
        (["cat", "dog"], "dogs,cats", "in order: cat, dog; without a choice: cat, dog"),
    ],
)
def test_init_choices_never_swap_labels(values, choices, message):
    table = summarize_columns([{"l": value} for value in values * 4], where="rows")
    with pytest.raises(UserError, match=message):
        read_labels(table, "l", choices.split(","))


@pytest.mark.parametrize(
    ("values", "choices", "expected"),
    [
        (["cat", "dog"], "cats,dogs", {"cat": "cats", "dog": "dogs"}),
        (["ham", "spam"], "good,bad", {"ham": "good", "spam": "bad"}),
        (["pos", "neg"], "negative,positive", {"pos": "positive", "neg": "negative"}),
    ],
)
def test_init_choices_by_order_of_words_are_shown(init, tmp_path, values, choices, expected):
    write_csv(tmp_path / "films.csv", rows_with(values))
    status, out, _ = init("films", "films.csv", f"--choices={choices}")
    assert status == 0
    pairs = ", ".join(f"{label} is '{expected[label]}'" for label in sorted(values))
    assert (
        f"#   note: no choice is the name of a label, so the order decides: {pairs}. Check" in out
    )
    labels = {value: expected[value] for value in values}
    choices = choices.split(",")
    rows = [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    assert {choices[r["label"]] for r in rows if r["n"] % 2} == {labels[values[1]]}


def test_init_choice_without_rows_is_kept_next_to_names_of_all_labels():
    table = summarize_columns([{"l": value} for value in ("good", "bad") * 4], where="rows")
    labels = read_labels(table, "l", ("good", "so so", "bad"))
    assert (labels.indices, labels.counts) == ({"good": 0, "bad": 2}, (4, 0, 4))
    assert not labels.notes


def test_init_label_column_of_one_value_is_refused():
    with pytest.raises(UserError, match="at least two"):
        read_labels(summarize_columns([{"l": 1}] * 9, where="rows"), "l", None)


@pytest.mark.parametrize("rows", [[], [{"txt": "other columns", "lab": "bad"}] * 20])
def test_init_validation_split_without_usable_rows_is_refused(init, tmp_path, rows):
    folder = tmp_path / "splits"
    folder.mkdir()
    for split, written_rows in (("train", rows_with(["bad", "good"])), ("validation", rows)):
        lines = "".join(json.dumps(row) + "\n" for row in written_rows)
        (folder / f"{split}.jsonl").write_text(lines)
    status, _, err = init("films", "splits", "--text=review text")
    assert status == 2
    assert "40 rows of train and 0 rows of validation have a text and a label" in err
    assert not (tmp_path / "films").exists()


@pytest.mark.parametrize("column", ["text", "label"])
def test_init_bytes_that_are_not_utf8_are_refused(init, tmp_path, column):
    import pyarrow as pa
    import pyarrow.parquet

    columns = {
        "text": [f"{TEXTS[i % 5]} {i}".encode() for i in range(40)],
        "label": [b"bad" if i % 2 else b"good" for i in range(40)],
        "picture": [b"\xff\xd8"] * 40,
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "films.parquet")
    assert init("films", "films.parquet")[0] == 0, "columns that no prompt shows may be bytes"
    columns[column] = [value + b"\xff" for value in columns[column]]
    pa.parquet.write_table(pa.table(columns), tmp_path / "broken.parquet")
    status, _, err = init("broken", "broken.parquet", "--text=text", "--label=label")
    assert status == 2
    assert f"column '{column}' of broken.parquet contains bytes that are not valid UTF-8" in err
    assert not (tmp_path / "broken").exists()


def test_init_does_not_import_tensorflow(tmp_path):
    write_csv(tmp_path / "films.csv", rows_with(["bad", "good"]))
    code = (
        "import sys\nfrom t0.cli.main import main\n"
        "assert main(['init', 'films', 'films.csv']) == 0\n"
        "assert not {'tensorflow', 'gin', 'seqio'} & set(sys.modules)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_init_keeps_csv_spelling_of_labels_and_columns(init, tmp_path):
    rows = rows_with(["1", "01", "10"])
    for i, row in enumerate(rows):
        row |= {"code": f"{i:05d}", "price": f"{i}.50", "count": i}
    write_csv(tmp_path / "films.csv", rows)
    status, out, err = init("films", "films.csv", "--label=sentiment", "--text=review text")
    assert (status, err) == (0, "")
    for label, count in (("01", 13), ("1", 14), ("10", 13)):
        assert f"#   sentiment {label} is '{label}': {count} rows" in out
    found = {
        row["review_text"]: row
        for row in [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    }
    for row in rows:
        copy = found[row["review text"]]
        assert [copy[name] for name in ("code", "price", "count")] == [
            row["code"],
            row["price"],
            row["count"],
        ]


def test_init_tsv_stray_quotes_are_text(init, tmp_path):
    lines = [
        f"{chr(34) * (i % 4 == 0)}{TEXTS[i % 5]} {i}\t{['no', 'yes'][i % 2]}" for i in range(40)
    ]
    (tmp_path / "films.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    assert init("films", "films.tsv")[0] == 0
    texts = [row["text"] for row in [*written(tmp_path, "train"), *written(tmp_path, "validation")]]
    assert sorted(texts) == sorted(line.split("\t")[0] for line in lines)


def test_init_csv_stray_quote_is_refused_with_its_line(init, tmp_path):
    write_csv(tmp_path / "films.csv", rows_with(["no", "yes"]))
    lines = (tmp_path / "films.csv").read_text().splitlines()
    lines[7] = lines[7].replace(",", ',"', 1)
    (tmp_path / "films.csv").write_text("\n".join(lines) + "\n")
    status, out, err = init("films", "films.csv")
    assert (status, out) == (2, "")
    assert "films.csv, line 8: the quote before 'a dull film number 6,no'" in err
    assert not (tmp_path / "films").exists()


@pytest.mark.parametrize("name", ["films.csv", "films.jsonl"])
def test_init_large_file_prints_progress(init, tmp_path, monkeypatch, name):
    rows = rows_with(["no", "yes"], 2500)
    if name == "films.csv":
        write_csv(tmp_path / name, rows)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr("t0.progress.PLAIN_SECONDS", 0.0)
    status, _, err = init("films", name)
    assert status == 0
    assert f"reading {name}: 2,000 rows" in err
    assert ("checking films.csv: 2,000 rows" in err) == (name == "films.csv")


def test_init_output_that_is_not_utf8_gets_escapes(init, tmp_path, monkeypatch):
    rows = rows_with(["caf\u00e9", "\u8336"])
    write_csv(tmp_path / "films.csv", rows)
    for encoding, shown in (("ascii", "caf\\xe9"), ("latin-1", "caf\u00e9")):
        printed = io.TextIOWrapper(io.BytesIO(), encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", printed)
            assert init("films", "films.csv", f"--output={encoding}")[0] == 0
        text = printed.buffer.getvalue().decode(encoding)
        assert f"is '{shown}': 20 rows" in text
        assert "is '\\u8336': 20 rows" in text


NESTED = {
    "tokens": lambda text: text.split(),
    "question": lambda text: {"stem": text, "choices": []},
}


@pytest.mark.parametrize("column", NESTED)
def test_init_text_column_of_lists_or_objects_is_refused(init, tmp_path, column):
    rows = [{column: NESTED[column](f"a film {i} of words"), "label": i % 2} for i in range(40)]
    (tmp_path / "films.json").write_text(json.dumps(rows))
    status, out, err = init("films", "films.json")
    assert (status, out) == (2, "")
    assert "which is the column with the text?" in err
    assert f"{column}: lists or objects" in err
    status, out, err = init("films", "films.json", f"--text={column}")
    assert (status, out) == (2, "")
    assert f"column '{column}' of films.json (--text) contains lists or objects, such as" in err
    rows = [{"plain": f"film {i} of many words", **row} for i, row in enumerate(rows)]
    (tmp_path / "films.json").write_text(json.dumps(rows))
    status, out, _ = init("films", "films.json")
    assert (status, "Text: plain\n" in out) == (0, True)
    assert written(tmp_path, "train")[0][column] == rows[0][column]


def test_init_label_column_of_lists_is_refused(init, tmp_path):
    rows = [{"text": f"a film {i} of words", "label": [["bad", "good"][i % 2]]} for i in range(40)]
    (tmp_path / "films.json").write_text(json.dumps({"data": rows}))
    assert "which is the column with the answers?" in init("films", "films.json")[2]
    assert "(--label) contains lists or objects" in init("films", "films.json", "--label=label")[2]


def write_splits(folder, **labels):
    folder.mkdir()
    for split, values in labels.items():
        rows = [{"text": f"{TEXTS[i % 5]} {i}", "mood": values[i % len(values)]} for i in range(30)]
        write_csv(folder / f"{split}.csv", rows)


def test_init_label_minus_one_is_a_class_next_to_other_labels(init, tmp_path):
    write_splits(tmp_path / "in", train=[-1, 0, 1], validation=[1, -1])
    status, out, _ = init("films", "in", "--choices=bad,so so,good")
    assert status == 0
    for value, choice, count in ((-1, "bad", 25), (0, "so so", 10), (1, "good", 25)):
        assert f"#   mood {value} is '{choice}': {count} rows (" in out
    assert "note: mood -1 is read as a class" in out
    assert {row["label"] for row in written(tmp_path, "validation")} == {0, 2}
    status, _, err = init("films", "in", "--choices=bad,good", "--output=two")
    assert (status, "has 3 labels: -1, 0, 1" in err) == (2, True)


def test_init_split_of_only_minus_one_has_hidden_labels(init, tmp_path):
    write_splits(tmp_path / "in", train=[0, 1], test=[-1])
    status, out, _ = init("films", "in")
    assert status == 0
    assert "# test.csv has no labels in the column mood: skipped" in out
    assert "is read as a class" not in out
    rows = [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    assert [row["label"] for row in rows].count(1) == 15
    assert len(rows) == 30
    write_splits(tmp_path / "other", train=[-1], test=[0, 1])
    status, _, err = init("films", "other", "--output=none")
    assert (status, "the split train hides its labels" in err) == (2, True)


def test_init_labels_that_count_from_0_or_1_are_refused():
    table = summarize_columns([{"l": value} for value in (1, 2) * 9], where="rows")
    with pytest.raises(UserError, match="count from 0 or from 1"):
        read_labels(table, "l", ("a", "b", "c"))


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(
    ("values", "choices", "wanted"),
    [
        (["Good", "Good", "good", "bad"], None, {"Good": "Good", "good": "Good", "bad": "bad"}),
        (["good", "GOOD", "bad"], ("bad", "good"), {"good": "good", "GOOD": "good", "bad": "bad"}),
        (
            [COMPOSED, DECOMPOSED, COMPOSED, "tea"],
            None,
            {COMPOSED: COMPOSED, DECOMPOSED: COMPOSED, "tea": "tea"},
        ),
        ([DECOMPOSED, "tea"], (COMPOSED, "tea"), {DECOMPOSED: COMPOSED, "tea": "tea"}),
        (["d", "D", "x"], ("D", "d", "x"), {"D": "D", "d": "d", "x": "x"}),
        (["\uff11", "1", "2"], None, {"1": "1", "\uff11": "1", "2": "2"}),
    ],
)
def test_init_merges_case_and_unicode_spellings_of_a_label(values, choices, wanted):
    labels = read_labels(
        summarize_columns([{"l": v} for v in values * 4], where="rows"), "l", choices
    )
    assert {value: labels.choices[labels.index(value)] for value in values} == wanted
    merged = len({*values}) > len({*wanted.values()})
    assert ("differ only in case or Unicode form" in "".join(labels.notes)) == merged


NAMES = ["bad", "so so", "good"]


def save_with_datasets(tmp_path, form, values):
    """Writes rows of `datasets` with a ClassLabel; returns the path for `t0 init`."""
    datasets = pytest.importorskip("datasets")
    features = {"text": datasets.Value("string"), "mark": datasets.ClassLabel(names=NAMES)}
    texts = [f"{TEXTS[i % 5]} {i}" for i in range(len(values))]
    rows = datasets.Dataset.from_dict(
        {"text": texts, "mark": values}, features=datasets.Features(features)
    )
    if form == "parquet":
        rows.to_parquet(str(tmp_path / "films.parquet"))
        return "films.parquet"
    if form == "saved":
        rows.save_to_disk(str(tmp_path / "saved"))
        return "saved"
    (tmp_path / "plain").mkdir()
    rows.to_json(str(tmp_path / "plain" / "train.jsonl"))
    rows.info.write_to_directory(str(tmp_path / "plain"))
    return "plain"


@pytest.mark.parametrize("form", ["parquet", "saved", "dataset_info.json"])
def test_init_class_label_names_of_hugging_face_datasets(init, tmp_path, form):
    data = save_with_datasets(tmp_path, form, [2, 1] * 15)  # no row is bad
    status, out, err = init("films", data)
    assert status == 0, err
    for number, name, count in ((1, "so so", 15), (2, "good", 15)):
        assert f"#   mark {number} is '{name}': {count} rows (" in out
    assert "is 'bad': 0 rows" in out
    rows = [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    assert sorted(row["label"] for row in rows) == [1] * 15 + [2] * 15
    # Choices are matched by name if they are the names, else taken in the order of the numbers.
    out = init("films", data, "--choices=good,bad,so so", "--output=named")[1]
    assert "#   mark 2 is 'good': 15 rows (" in out
    out = init("films", data, "--choices=-,=,+", "--output=signs")[1]
    assert "#   mark 2 is '+': 15 rows (" in out
    status, _, err = init("films", data, "--choices=one,two", "--output=two")
    assert (status, "has 3 labels: bad, so so, good" in err) == (2, True)


def test_init_class_label_minus_one_is_left_out(init, tmp_path):
    status, out, _ = init("films", save_with_datasets(tmp_path, "parquet", [-1, 0, 2] * 10))
    assert status == 0
    assert "10 without text or label left out" in out
    assert "note: -1 of column 'mark' of films.parquet is not a label" in out
    assert "#   mark 2 is 'good': 10 rows (" in out


@pytest.mark.parametrize("name", ["test.csv", "test.jsonl", "validation.parquet"])
@pytest.mark.parametrize("label", [None, "", "no column"])
def test_init_split_without_labels_is_skipped(init, tmp_path, name, label):
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [
        {"id": i, "text": f"{TEXTS[i % 5]} {i}", "mood": ["bad", "good"][i % 2]} for i in range(30)
    ]
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "sample_submission.csv", [{"id": 1, "mood": "bad"}])
    rows = [{**row, "mood": label, "only here": "some other words"} for row in rows]
    if label == "no column":
        rows = [{name: row[name] for name in ("id", "text", "only here")} for row in rows]
    if name.endswith("csv"):
        write_csv(folder / name, rows)
    elif name.endswith("jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet

        pa.parquet.write_table(pa.Table.from_pylist(rows), folder / name)
    status, out, err = init("films", "in", "--text=text")
    assert status == 0, err
    assert f"# {name} has no labels in the column mood: skipped\n" in out
    rows = [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    assert [sorted(row) for row in rows] == [["id", "label", "text"]] * 30
    assert sum(row["label"] for row in rows) == 15


def test_init_stored_label_names_of_train_are_read_next_to_a_split_without_labels(init, tmp_path):
    data = save_with_datasets(tmp_path, "dataset_info.json", [2, 1] * 15)
    info = tmp_path / data / "dataset_info.json"
    (tmp_path / data / "test.csv").write_text("text\n" + "a film\n" * 5)
    assert info.is_file()
    status, out, err = init("films", data)
    assert status == 0, err
    assert "#   mark 2 is 'good': 15 rows (" in out
    assert "# test.csv has no labels" in out


def test_init_takes_a_label_column_of_150_classes(init, tmp_path, capsys):
    rows = [
        {"text": f"please do the thing {i}", "intent": f"intent {i % 150:03}"} for i in range(600)
    ]
    write_csv(tmp_path / "x.csv", rows)
    status, _, err = init("films", "x.csv", "--text=text")
    assert (status, "which is the column with the answers?" in err) == (2, True)
    status, out, err = init("films", "x.csv", "--text=text", "--label=intent")
    assert status == 0, err
    assert (
        "#   intent intent 099 is 'intent 099': 4 rows (train 3, validation 1)\n"
        "#   and 50 more classes: 200 rows (train 150, validation 50)\n" in out
    )
    assert cli.main(["show", "films", "--rows=1"]) == 0
    out = capsys.readouterr().out
    assert "inputs" in out
    assert "Which intent is it?\n" in out
    rows = [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    assert all(f"thing {i}" in row["text"] and row["label"] == i % 150
               for row in rows for i in [int(row["text"].split()[-1])])  # fmt: skip
    # A column of texts is no label column.
    status, _, err = init("films", "x.csv", "--text=intent", "--label=text", "--output=texts")
    assert (status, "600 different values in 600 rows, too many for labels" in err) == (2, True)


def test_init_warns_of_a_class_that_only_validation_has(init, tmp_path):
    write_splits(tmp_path / "in", train=["bad", "good"], dev=["bad", "good", "so so"])
    status, out, _ = init("films", "in")
    assert status == 0
    assert "#   WARNING: train has no example of 'so so', which validation has, so the model" in out


@pytest.mark.parametrize(("name", "mark"), [("x.csv", ","), ("x.tsv", "\t"), ("X.CSV", ",")])
@pytest.mark.parametrize("labels", [("good", "bad"), (1, 0)])
def test_init_asks_whether_the_first_line_is_a_row(init, tmp_path, name, mark, labels):
    lines = [f"{TEXTS[i % 5]} {i}{mark}{labels[i % 2]}\n" for i in range(40)]
    (tmp_path / name).write_text("".join(lines))
    status, out, err = init("films", name)
    assert (status, out) == (2, "")
    assert f"is the first line of {name} a row? The column '{labels[0]}' also has the value" in err
    # A column may have the name of one of its labels.
    status, out, _ = init("films", name, f"--label={labels[0]}")
    assert status == 0
    assert f"WARNING: is the first line of {name} a row?" in out
    (tmp_path / name).write_text(f"text{mark}label\n" + "".join(lines))
    status, out, err = init("films", name, "--output=named")
    assert status == 0, err
    assert "a row?" not in out


@pytest.mark.parametrize("name", ["X.CSV", "X.JsonL", "x.JSON", "X.JSONL.GZ", "x.csv.Gz"])
def test_init_reads_extensions_in_capitals(init, tmp_path, name):
    rows = rows_with(["no", "yes"])
    kind = name.lower().removesuffix(".gz")
    write_csv(tmp_path / "plain.csv", rows)
    text = (tmp_path / "plain.csv").read_text()
    if kind == "x.jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "x.json":
        text = json.dumps({name: [row[name] for row in rows] for name in rows[0]})
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    status, _, err = init("films", name)
    assert status == 0, err
    rows = [*written(tmp_path, "train"), *written(tmp_path, "validation")]
    assert sorted(row["n"] for row in rows) == [*range(40)]


def test_init_names_the_only_column_of_different_ids_id(init, tmp_path):
    rows = [
        {"Message ID": f"M-{i}", "user id": i % 3, **row} for i, row in enumerate(rows_with("ab"))
    ]
    for row in rows:
        del row["user id"]
    write_csv(tmp_path / "films.csv", rows)
    assert init("films", "films.csv")[0] == 0
    assert written(tmp_path, "train")[0]["id"].startswith("M-")
    assert "Message ID" in (tmp_path / "films/data/films/templates.yaml").read_text()


def test_init_validation_is_a_tenth_of_each_class(init, tmp_path):
    rows = [
        {"text": f"words {i} here", "label": "rare" if i % 20 == 0 else "often"} for i in range(800)
    ]
    write_csv(tmp_path / "x.csv", rows)
    status, out, _ = init("films", "x.csv", "--text=text", "--label=label")
    assert status == 0
    assert "is 'rare': 40 rows (train 36, validation 4)" in out
    assert "is 'often': 760 rows (train 684, validation 76)" in out
    assert "validation has fewer than 10 rows of 1 of 2 classes, such as 'rare'" in out
