"""Sentences in two languages, as the hub has them and as columns."""

import pytest

from t0.errors import UserError
from t0.sources.folders import SplitFile, folder_splits
from t0.sources.questions import count_pairs, languages, read_pairs
from tests.sources.tiny_recipes import PAIRS, write_lines


def found(folder, rows):
    return SplitFile("jsonl", write_lines(folder / "train.jsonl", rows))


def test_translation_pairs_as_on_the_hub(tmp_path):
    split = found(tmp_path, PAIRS)
    assert languages(split) == ("en", "de")
    assert list(read_pairs(split, "de", "en")) == [
        ("Es regnet.", "It rains."),
        ("Es schneit.", "It snows."),
    ]
    assert count_pairs(split) == 2


def test_translation_pairs_from_language_columns(tmp_path):
    (tmp_path / "train.tsv").write_text("line\ten\tpt-BR\n1\tIt rains.\tChove.\n")
    split = folder_splits(tmp_path)["train"]
    assert languages(split) == ("en", "pt-BR")
    assert list(read_pairs(split, "en", "pt-BR")) == [("It rains.", "Chove.")]


def test_translation_tsv_keeps_quotes_and_numbers(tmp_path):
    lines = ["en\tde", '"Yes," she said.\t"Ja", sagte sie.', '"No\t"Nein', "1.10\t1,10", "2\t2"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    split = folder_splits(tmp_path)["train"]
    assert list(read_pairs(split, "en", "de")) == [tuple(x.split("\t")) for x in lines[1:]]
    assert count_pairs(split) == 4
    (tmp_path / "train.tsv").write_text("en\tde\n1\t2\n")
    assert list(read_pairs(split, "en", "de")) == [("1", "2")]
    (tmp_path / "test.csv").write_text('en,de\n"Go,Geh\nStay,Bleib\nNo",Nein\nYes,Ja\n')
    with pytest.raises(UserError, match=r"test\.csv, line 2: a quoted cell that begins here"):
        list(read_pairs(folder_splits(tmp_path)["test"], "en", "de"))


def test_translation_empty_file_has_no_languages(tmp_path):
    assert languages(found(tmp_path, [])) == ()


@pytest.mark.parametrize(
    "row", [{"text": "a"}, {"en": "a"}, {"translation": {"en": "a"}}, {"translation": "a"}]
)
def test_translation_without_two_languages_is_refused(tmp_path, row):
    with pytest.raises(
        UserError, match="has columns for fewer than two languages; its columns: " + next(iter(row))
    ):
        languages(found(tmp_path, [row]))


@pytest.mark.parametrize("row", [{"translation": {"en": "a", "de": None}}, {"translation": None}])
def test_translation_missing_side_names_the_row(tmp_path, row):
    with pytest.raises(UserError, match=r"row 2 \(the first is 0\): has no text for the language"):
        list(read_pairs(found(tmp_path, [*PAIRS, row]), "en", "de"))


def test_translation_pairs_of_a_json_document(tmp_path):
    path = tmp_path / "train.json"
    path.write_text('{"en": ["a", "b"], "de": ["c", "d"]}')
    assert list(read_pairs(SplitFile("jsonl", path), "en", "de")) == [("a", "c"), ("b", "d")]
