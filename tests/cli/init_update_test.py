"""`t0 init FOLDER --update`: what it measures again, what it replaces and what it keeps."""

import json

import pytest

from t0.testing import train_vocabulary
from tests.cli.init_test import TEXTS, init, rows_with, write_csv, written

__all__ = ["init"]  # a fixture


@pytest.fixture
def films(init, tmp_path):
    """A starter folder, and the file of its rows; returns a function that adds rows to the file."""
    rows = rows_with(["no", "yes"], 60)
    model = train_vocabulary(tmp_path / "v.model", [*TEXTS, "0 1 2 3 4 5 6 7 8 9"], size=300)
    words = ["--text=review text", "--choices=bad,good", f"--vocab={model}"]
    assert init("films", write_csv(tmp_path / "films.csv", rows), *words)[0] == 0
    return lambda *more: write_csv(tmp_path / "films.csv", [*rows, *more])


def files_of(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_init_update_measures_again_and_keeps_an_edited_prompt(init, tmp_path, films):
    folder = tmp_path / "films"
    templates = folder / "data" / "films" / "templates.yaml"
    before = json.loads((folder / "starter.json").read_text())["lengths"]["inputs"]
    edited = templates.read_text().replace(
        "Which sent", "the question is long " * 20 + "Which sent"
    )
    templates.write_text(edited)
    files = files_of(folder)
    status, out, _ = init("films", "--update", "--vocab=v.model")
    assert status == 0
    vocabulary = json.loads((folder / "starter.json").read_text())["vocabulary"]
    assert vocabulary == str(tmp_path / "v.model")
    after = json.loads((folder / "starter.json").read_text())["lengths"]["inputs"]
    assert after > before + 60
    assert "edited since `t0 init`: data/films/templates.yaml" in out
    assert f"length of inputs: {before} before, {after} tokens now" in out
    changed = {path for path, content in files_of(folder).items() if files[path] != content}
    assert changed == {str(folder / "starter.json")}


def test_init_update_removes_the_lengths_of_an_earlier_version_from_train_gin(
    init, tmp_path, films
):
    train, settings = tmp_path / "films" / "train.gin", tmp_path / "films" / "starter.json"
    text, fields = train.read_text(), json.loads(settings.read_text())
    line = f"TASK_FEATURE_LENGTHS = {json.dumps(fields['lengths'])}\n"
    train.write_text(text.replace("BATCH_SIZE", f"{line}BATCH_SIZE"))
    settings.write_text(json.dumps({n: fields[n] for n in ("name", "vocabulary", "lengths")}))
    assert init("films", "--update")[0] == 0
    assert train.read_text() == text
    assert json.loads(settings.read_text())["lengths"] == fields["lengths"]


def test_init_update_replaces_rows_and_edited_files_only_with_yes(init, tmp_path, films):
    folder, data = (
        tmp_path / "films",
        films({"n": 9, "review text": "a new film", "sentiment": "no"}),
    )
    templates = folder / "data" / "films" / "templates.yaml"
    templates.write_text(templates.read_text().replace("Which", "What"))
    status, out, _ = init("films", data, "--update")
    assert status == 0
    assert "# replaced: data/films/train.jsonl\n" in out
    assert "a new film" in str(written(tmp_path, "train")) and "What" in templates.read_text()
    assert "no file, since the data is the same" in init("films", data, "--update")[1]

    (folder / "data" / "films" / "train.jsonl").write_text("{}\n")
    data, files = films({"n": 9, "review text": "odd", "sentiment": "odd"}), files_of(folder)
    words = ["films", data, "--update", "--choices=bad,fair,good"]
    status, _, err = init(*words)
    assert status == 2
    assert "would replace data/films/templates.yaml, data/films/train.jsonl" in err
    assert "you edited data/films/templates.yaml, data/films/train.jsonl: save a copy, and" in err
    assert files_of(folder) == files
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("films.")] == [
        "films.csv"
    ]
    assert init(*words, "--yes")[0] == 0
    assert "bad ||| fair ||| good" in templates.read_text() and "What" not in templates.read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["films"], "needs the data"),
        (["films", "films.csv", "--yes"], "--yes is for --update"),
        (["nothing", "--update"], "expected a folder of `t0 init`"),
        (["films/data", "--update"], "expected a folder of `t0 init`"),
        (["films", "--update", "--output=x"], "no --output"),
    ],
)
def test_init_update_refuses(init, films, words, text):
    status, _, err = init(*words)
    assert (status, text in err) == (2, True)


def test_init_update_that_cannot_measure_changes_nothing(init, tmp_path, films):
    data = films({"n": 9, "review text": "a new film", "sentiment": "no"})
    templates = tmp_path / "films" / "data" / "films" / "templates.yaml"
    templates.write_text(templates.read_text() + "x: [")
    files = files_of(tmp_path)
    status, _, err = init("films", data, "--update")
    assert (status, "films/data/films/templates.yaml:" in err) == (2, True)
    assert files_of(tmp_path) == files


def test_init_update_after_an_interrupted_update_keeps_no_file_as_edited(init, tmp_path, films):
    settings = tmp_path / "films" / "starter.json"
    before, data = settings.read_text(), films({"n": 9, "review text": "new", "sentiment": "no"})
    assert init("films", data, "--update")[0] == 0
    settings.write_text(before)  # it is written last
    assert init("films", data, "--update")[0] == 0
    assert "edited" not in init("films", "--update")[1]


@pytest.mark.parametrize("file", ["templates.yaml", "train.jsonl", "validation.jsonl"])
def test_init_update_writes_missing_files_if_the_data_is_set(init, tmp_path, films, file):
    path = tmp_path / "films" / "data" / "films" / file
    content = path.read_bytes()
    path.unlink()
    if file != "validation.jsonl":
        status, _, err = init("films", "--update")
        assert (status, f"films/data/films/{file}: cannot be read" in err) == (2, True)
    status, out, _ = init("films", films(), "--update")
    assert (status, f"# replaced: data/films/{file}\n" in out) == (0, True)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "text"),
    [("{", "line 2"), ("[]", "line 2"), ('{"n": 1}', "line 2: has no column 'review_text'")],
)
def test_init_update_names_the_line_of_a_malformed_row(init, tmp_path, films, line, text):
    rows = tmp_path / "films" / "data" / "films" / "train.jsonl"
    first, *rest = rows.read_text().splitlines()
    rows.write_text("\n".join([first, line, *rest]))
    status, _, err = init("films", "--update")
    assert (status, f"films/data/films/train.jsonl, {text}" in err) == (2, True)


@pytest.mark.parametrize(
    "name", ["../../evil", "/tmp/evil", "a/b", "", "a\0b", "\ud800", "films_.*"]
)
def test_init_update_and_show_refuse_a_starter_folder_with_an_unsafe_name(
    init, tmp_path, films, name
):
    settings = tmp_path / "films" / "starter.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"name": name}))
    files = files_of(tmp_path)
    for words in (["--update"], [films(), "--update"]):
        status, _, err = init("films", *words)
        assert (status, "cannot be the name of a dataset" in err) == (2, True)
    assert files_of(tmp_path) == files


def test_init_update_takes_only_the_columns_and_choices_from_starter_json(init, tmp_path, films):
    settings = tmp_path / "films" / "starter.json"
    fields = json.loads(settings.read_text())
    fields["flags_of_init"] |= {"yes": "1", "skip_bad_rows": "1", "unknown": "x"}
    settings.write_text(json.dumps(fields))
    (tmp_path / "films" / "data" / "films" / "train.jsonl").write_text("{}\n")
    data = films({"n": 9, "review text": "a new film", "sentiment": "no"})
    status, _, err = init("films", data, "--update")
    assert (status, "add --yes" in err) == (2, True)


def test_init_update_stores_the_absolute_path_of_a_vocabulary(init, tmp_path, films):
    assert init("films", "--update", "--vocab=v.model")[0] == 0
    fields = json.loads((tmp_path / "films" / "starter.json").read_text())
    assert fields["vocabulary"] == str(tmp_path / "v.model")
