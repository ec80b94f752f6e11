"""Tables of rows as CSV, TSV, JSON Lines and Parquet."""

import csv
import json

import pyarrow.parquet
import pytest

from t0.errors import UserError
from t0.files.table_files import check_format, write_table

ROWS = [
    {"text": "a\rb", "label": 1, "right": True, "tags": ["x", "y"]},
    {"text": 'c\r\n"d",\te\n', "label": 2, "right": False, "tags": []},
    {"text": None, "label": 3, "right": None, "tags": None},
]


@pytest.mark.parametrize(("extension", "separator"), [("csv", ","), ("tsv", "\t")])
def test_every_text_stays_in_its_cell_of_a_separated_table(tmp_path, extension, separator):
    path = tmp_path / f"rows.{extension}"
    write_table(str(path), ["text", "right", "tags"], ROWS)
    # Spreadsheets end a row at each of these, unless it is in quotes.
    assert b'"a\rb"' in path.read_bytes()
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter=separator))
    assert rows == [
        ["text", "right", "tags"],
        ["a\rb", "true", '["x", "y"]'],
        ['c\r\n"d",\te\n', "false", "[]"],
        ["", "", ""],
    ]


def test_table_without_rows_has_a_header(tmp_path):
    write_table(str(tmp_path / "rows.csv"), ["text", "label"], [])
    assert (tmp_path / "rows.csv").read_text() == "text,label\n"


def test_json_lines_and_parquet_have_the_values(tmp_path):
    write_table(str(tmp_path / "rows.jsonl"), list(ROWS[0]), ROWS)
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, lines)) == ROWS
    write_table(str(tmp_path / "rows.parquet"), list(ROWS[0]), ROWS)
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == ROWS


def test_values_that_parquet_cannot_hold_leave_no_file(tmp_path):
    rows = [{"label": 1}, {"label": "two"}]
    with pytest.raises(UserError, match="Parquet cannot hold these rows"):
        write_table(str(tmp_path / "rows.parquet"), ["label"], rows)
    assert not list(tmp_path.iterdir())


def test_unknown_extension_names_the_flag():
    with pytest.raises(UserError, match=r"--examples=x.xlsx: .* .csv, .tsv, .jsonl, .parquet"):
        check_format("x.xlsx", "--examples")
