import gzip
import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t0.errors import UserError
from t0.sources import json_lines
from t0.sources.json_lines import JsonLines


def write(path, text):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return JsonLines(path)


def everything(reader):
    return list(reader.rows(0, None))


@pytest.fixture(params=["x.jsonl", "x.jsonl.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
TABLES = st.lists(st.text(), max_size=4, unique=True).flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, VALUES)), max_size=8)
)
BOUNDS = st.integers(0, 10)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=TABLES, start=BOUNDS, stop=BOUNDS | st.none(), ascii_only=st.booleans())
def test_json_lines_rows_equal_what_was_written(path, rows, start, stop, ascii_only):
    lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    data = "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n"
    reader = write(path, data)
    assert everything(reader) == rows
    assert list(reader.rows(start, stop)) == rows[start:stop]
    assert reader.count() == len(rows)
    assert reader.columns() == (tuple(rows[0]) if rows else ())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ranges=st.lists(st.tuples(BOUNDS, BOUNDS | st.none(), st.booleans()), max_size=6),
    count=st.integers(0, 9),
)
def test_json_lines_row_ranges_equal_those_of_new_readers(path, ranges, count):
    rows = [{"a": number} for number in range(count)]
    reader = write(path, "".join(f"{json.dumps(row)}\n\n" for row in rows))
    for start, stop, to_the_end in ranges:
        found = reader.rows(start, stop)
        if to_the_end:
            assert list(found) == rows[start:stop]
        else:
            assert next(found, None) == next(iter(rows[start:stop]), None)
    assert pickle.loads(pickle.dumps(reader)) == reader


def test_json_lines_next_row_range_continues_without_reopening(path, monkeypatch):
    reader = write(path, "".join(f'{{"a": {number}}}\n' for number in range(1000)))
    opened = []
    unpacked = json_lines.unpacked
    monkeypatch.setattr(json_lines, "unpacked", lambda path: opened.append(path) or unpacked(path))
    for start in range(0, 1000, 100):
        assert [row["a"] for row in reader.rows(start, start + 50)] == [*range(start, start + 50)]
    assert len(opened) == 3  # once to see that it is no document, and once for the first object
    assert next(reader.rows(10, 20)) == {"a": 10}  # further back
    assert len(opened) == 4


def test_json_lines_blank_lines_and_byte_order_mark(path):
    reader = write(path, b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
    assert everything(reader) == [{"a": 1}, {"a": 2}]
    assert reader.count() == 2


def test_json_lines_unicode_line_separators_stay_in_text(path):
    reader = write(path, '{"a": "x\u2028y\x85z"}\n')
    assert everything(reader) == [{"a": "x\u2028y\x85z"}]


def test_json_lines_empty_file_has_no_rows(path):
    reader = write(path, "")
    assert (everything(reader), reader.count(), reader.columns()) == ([], 0, ())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"a": 1', "not JSON"),
        ("plain text", "plain text"),
        ("[1, 2]", r"got \[1, 2\], expected"),
        ("3", "got 3, expected"),
        ("null", "got None, expected"),
        ('{"b": 1}', r"has no column 'a' and has a column 'b'"),
        ('{"a": 1, "b": 1}', r"has a column 'b' that line 1 does not have"),
        ("{}", r"has no column 'a' that line 1 has"),
        (b'{"a": "\xff"}', "utf-8"),
    ],
)
def test_json_lines_bad_line_error_names_file_and_line(path, line, told):
    line = line if isinstance(line, bytes) else line.encode()
    reader = write(path, b'{"a": 0}\n\n' + line + b'\n{"a": 2}\n')
    rows = reader.rows(0, None)
    assert next(rows) == {"a": 0}
    with pytest.raises(UserError, match=told) as error:
        next(rows)
    assert f"{path}, line 3" in str(error.value)


def test_json_lines_bad_first_line_is_refused_by_columns(path):
    with pytest.raises(UserError, match="line 1"):
        write(path, '{"a": 1},\n {"a": 2}').columns()


ROWS = [{"a": "x", "b": [1]}, {"a": "y", "b": [2, 3]}, {"a": "z", "b": []}]
COLUMNS = {"a": ["x", "y", "z"], "b": [[1], [2, 3], []]}
DOCUMENTS = {
    "list": ROWS,
    "under data": {"version": "1.0", "data": ROWS},
    "columns": COLUMNS,
    "columns under data": {"data": COLUMNS},
    "pandas": {n: {str(i): v for i, v in enumerate(c)} for n, c in COLUMNS.items()},
}


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("form", DOCUMENTS)
def test_json_document_is_read_as_rows(tmp_path, form, indent, name):
    text = "\ufeff\n " * (indent is None) + json.dumps(DOCUMENTS[form], indent=indent) + "\n"
    reader = write(tmp_path / name, text)
    assert everything(reader) == ROWS
    assert (reader.columns(), reader.count()) == (("a", "b"), 3)
    assert list(reader.rows(2, None)) == ROWS[2:]
    assert list(pickle.loads(pickle.dumps(reader)).rows(0, 1)) == ROWS[:1]


@pytest.mark.parametrize("form", ["list", "under data"])
def test_json_document_may_be_named_jsonl(tmp_path, form):
    assert everything(write(tmp_path / "x.jsonl", json.dumps(DOCUMENTS[form]))) == ROWS


def test_json_lines_lists_stay_and_json_document_has_columns(tmp_path):
    text = '{"a": [1, 2], "b": [3, 4]}'
    assert everything(write(tmp_path / "x.jsonl", text)) == [{"a": [1, 2], "b": [3, 4]}]
    assert everything(write(tmp_path / "x.json", text)) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    assert everything(write(tmp_path / "x.json", '{"a": "x", "b": [3]}')) == [{"a": "x", "b": [3]}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[{"a": 1},\n {"a": 2', "line 2: not JSON"),
        ('{\n "data": [\n  {"a": 1} {"a": 2}]}', "line 3: not JSON"),
        ('[{"a": 1}, 5]', r"row 1 \(the first is 0\): got 5, expected"),
        ('[{"a": 1}, {"b": 5}]', r"row 1 .*has no column 'a' .* that row 0 \(the first is 0\)"),
        ('{"a": [1, 2], "b": [3]}', "its columns differ in length: {'a': 2, 'b': 1}"),
    ],
)
def test_json_document_malformed_error_names_the_place(tmp_path, text, told):
    with pytest.raises(UserError, match=told) as error:
        everything(write(tmp_path / "x.json", text))
    assert str(tmp_path / "x.json") in str(error.value)


def test_json_document_larger_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "LARGEST_DOCUMENT", 20)
    with pytest.raises(UserError, match="more than 20 bytes.*Write JSON Lines"):
        everything(write(tmp_path / "x.json", '[{"a": 1},\n {"a": 2},\n {"a": 3}]'))


HALVES = {
    "x.jsonl": '{"a": "w"}\n{"a": "\\ud83d\\ude00"}\n\n{"a": "cut \\uD83D"}\n{"a": "\\\\ud83d"}',
    "x.json": '[{"a": "w"}, {"a": "\\ud83d\\ude00"}, {"a": ["\\ude00"]}, {"a": "\\\\ud83d"}]',
}


@pytest.mark.parametrize(("name", "place"), [("x.jsonl", "line 4"), ("x.json", "row 2 (the")])
def test_json_surrogate_error_names_file_and_row(tmp_path, name, place):
    rows = write(tmp_path / name, HALVES[name]).rows(0, None)
    assert [next(rows), next(rows)] == [{"a": "w"}, {"a": "\U0001f600"}]
    with pytest.raises(UserError) as error:
        next(rows)
    assert f"{tmp_path / name}, {place}" in str(error.value)
    assert "column 'a'" in str(error.value)
    assert "--skip_bad_rows" in str(error.value)
    str(error.value).encode()


@pytest.mark.parametrize("name", HALVES)
def test_json_surrogate_rows_skipped_are_counted(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv(json_lines.SKIP_VARIABLE, "1")
    reader = write(tmp_path / name, HALVES[name])
    wanted = [{"a": "w"}, {"a": "\U0001f600"}, {"a": "\\ud83d"}]
    assert everything(reader) == wanted
    assert reader.count() == 3
    assert list(reader.rows(1, 3)) == wanted[1:]
    told = capsys.readouterr().err
    assert told.count("skipped 1 rows") == 1
    assert str(tmp_path / name) in told


def test_json_lines_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    whole = gzip.compress(b"".join(b'{"a": "%d"}\n' % (i**7) for i in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    for ask in (everything, JsonLines.count):
        with pytest.raises(UserError, match=r"x\.jsonl\.gz"):
            ask(JsonLines(path))


def test_json_lines_file_that_is_not_gzip_is_named(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(UserError, match=r"x\.jsonl\.gz"):
        JsonLines(path).columns()


def test_json_lines_rows_after_stop_are_not_read(path):
    reader = write(path, '{"a": 1}\n{"a": 2}\nbroken\n')
    assert list(reader.rows(1, 2)) == [{"a": 2}]


def test_json_lines_too_long_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "LARGEST_LINE", 20)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "of twenty"}\n\n{"a": "of twenty-one"}\n')
    rows = JsonLines(path).rows(0, None)
    assert next(rows) == {"a": "of twenty"}
    with pytest.raises(UserError, match="rows.jsonl, line 3: has more than 20 bytes"):
        next(rows)


@pytest.mark.parametrize("line", ["[" * 10**5, '{"a":' * 5000, f'{{"a": {"[" * 200}{"]" * 200}}}'])
def test_json_lines_too_deep_nesting_is_refused(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match="line 1: not JSON .(nested more than 100|Expecting)"):
        list(JsonLines(path).rows(0, None))
