import csv
import gzip
import io
import json

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t0.errors import UserError
from t0.sources import arrow_readers
from t0.sources.arrow_readers import Arrow, Csv, Parquet, saved_shards
from t0.sources.schema import features


def write(path, text, **options):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return Csv(path, **options)


def everything(reader):
    return list(reader.rows(0, None))


@pytest.fixture(params=["x.csv", "x.csv.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_numbers_are_numbers_and_everything_else_is_as_written(path):
    text = "i,f,b,d,t,e,m\n1,1.5,true,2020-01-02,NA,,7\n-2,2,false,2020-01-03,null,,\n"
    rows = everything(write(path, text))
    assert rows[0] == {"i": 1, "f": 1.5, "b": "true"} | {
        "d": "2020-01-02",
        "t": "NA",
        "e": "",
        "m": 7,
    }
    assert rows[1] == {"i": -2, "f": 2.0, "b": "false"} | {
        "d": "2020-01-03",
        "t": "null",
        "e": "",
        "m": None,
    }


def test_quoted_cells(path):
    text = 'a,b\n"x, y","line\nbreak"\n"say ""hi""",z\n'
    rows = everything(write(path, text))
    assert rows == [{"a": "x, y", "b": "line\nbreak"}, {"a": 'say "hi"', "b": "z"}]


def test_tabs(tmp_path):
    reader = write(tmp_path / "x.tsv", "a\tb\n1\tx, y\n", delimiter="\t")
    assert everything(reader) == [{"a": 1, "b": "x, y"}]


def test_a_type_holds_for_the_whole_file(path, monkeypatch):
    monkeypatch.setattr(arrow_readers, "_BLOCK_BYTES", 1 << 10)
    lines = [f"{i},{i},{i}" for i in range(2000)] + ["x7,0.5,3"]
    reader = write(path, "id,f,i\n" + "\n".join(lines) + "\n")
    rows = everything(reader)
    assert rows[0] == {"id": "0", "f": 0.0, "i": 0}
    assert rows[-1] == {"id": "x7", "f": 0.5, "i": 3}
    assert list(reader.rows(1999, None)) == rows[1999:]
    assert reader.count() == len(rows) == 2001


def test_a_column_that_is_empty_at_first(path, monkeypatch):
    monkeypatch.setattr(arrow_readers, "_BLOCK_BYTES", 1 << 10)
    head = [f"{i},,," for i in range(1000)]
    rows = everything(write(path, "i,n,t,e\n" + "\n".join([*head, "0,5,x,"]) + "\n"))
    assert rows[0] == {"i": 0, "n": None, "t": "", "e": ""}
    assert rows[-1] == {"i": 0, "n": 5, "t": "x", "e": ""}


@pytest.mark.parametrize("before", [0, 3000])
def test_a_row_longer_than_a_block(path, monkeypatch, before):
    monkeypatch.setattr(arrow_readers, "_BLOCK_BYTES", 1 << 12)
    rows = [{"a": i, "b": "x"} for i in range(before)] + [{"a": 0, "b": "y" * 100_000}]
    reader = write(path, "a,b\n" + "".join(f"{row['a']},{row['b']}\n" for row in rows))
    assert everything(reader) == rows
    assert reader.count() == len(rows)


def test_recorded_types_of_a_known_dataset(path):
    known = features("social_i_qa")
    text = "context,question,answerA,answerB,answerC,label\n1,2,3,4,5,1\n"
    row = everything(write(path, text, known=known))[0]
    assert set(map(type, row.values())) == {str}
    known = {"n": {"dtype": "int32", "_type": "Value"}}
    with pytest.raises(UserError, match="column 'n'.*invalid value 'x'"):
        everything(write(path, "n\n1\nx\n", known=known))
    # How pandas writes integers of which one is missing; `t0.sources.schema` makes them whole.
    rows = everything(write(path, "n\n1.0\n\n2.0\n", known=known))
    assert [row["n"] for row in rows] in ([1.0, 2.0], [1.0, None, 2.0])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\x00\r", codec="utf-8")), st.integers(0, 9)
        ),
        max_size=9,
    ),
    start=st.integers(0, 10),
    stop=st.integers(0, 10) | st.none(),
)
def test_text_comes_back_as_written(path, cells, start, stop):
    rows = [{"text": f"t{text}", "n": n} for text, n in cells]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, ["text", "n"], lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    reader = write(path, buffer.getvalue())
    assert everything(reader) == rows
    assert list(reader.rows(start, stop)) == rows[start:stop]
    assert reader.count() == len(rows)
    assert reader.columns() == ("text", "n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty: wanted a first line"),
        ("a,b\n1\n", "Expected 2 columns, got 1"),
        ("a,b\n1,2\n1,2,3\n", "Row #3: Expected 2 columns, got 3"),
        ("a,a\n1,2\n", "twice"),
        (b"a,b\n1,\xff\n", "UTF8"),
    ],
)
def test_a_bad_file_is_told_by_name(path, text, told):
    with pytest.raises(UserError, match=told) as error:
        everything(write(path, text))
    assert str(path) in str(error.value)


def test_a_cut_csv_file_is_told_by_name(tmp_path):
    path = tmp_path / "x.csv.gz"
    whole = gzip.compress(b"a\n" + b"".join(b"%d\n" % (i**9) for i in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"x\.csv\.gz"):
        everything(Csv(path))


ROWS = [{"i": i, "c": {"text": [str(i), ""], "n": [i, None]}} for i in range(1200)]


def parquet(path, rows):
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    return Parquet(path)


def arrow_file(path, rows, new=pa.ipc.new_file):
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return Arrow((path,))


def arrow_stream(path, rows):
    return arrow_file(path, rows, pa.ipc.new_stream)


def saved(path, rows):
    datasets.Dataset.from_list(rows).save_to_disk(path, num_shards=3)
    return Arrow(saved_shards(path))


@pytest.fixture(params=[parquet, arrow_file, arrow_stream, saved], scope="module")
def reader(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("data") / "x", ROWS)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 1300), stop=st.integers(0, 1300) | st.none())
def test_rows_come_back_as_written(reader, start, stop):
    assert list(reader.rows(start, stop)) == ROWS[start:stop]


def test_count_and_columns(reader):
    assert reader.count() == 1200
    assert reader.columns() == ("i", "c")


@pytest.mark.parametrize("write", [parquet, arrow_file, arrow_stream])
def test_a_cut_file_is_told_by_name(tmp_path, write):
    whole = write(tmp_path / "whole", ROWS)
    path = tmp_path / "cut"
    data = (tmp_path / "whole").read_bytes()
    path.write_bytes(data[: len(data) // 2])
    cut = Parquet(path) if isinstance(whole, Parquet) else Arrow((path,))
    with pytest.raises(UserError, match="cut: cannot be read"):
        list(cut.rows(0, None))


@pytest.mark.parametrize("kind", [Parquet, lambda path: Arrow((path,))])
@pytest.mark.parametrize("data", [b"", b"no such format"])
def test_a_file_of_another_kind_is_told_by_name(tmp_path, kind, data):
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UserError, match="x: cannot be read"):
        kind(path).columns()


def test_a_saved_folder_with_a_shard_lost_is_told(tmp_path):
    saved(tmp_path, ROWS)
    (tmp_path / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UserError, match="data-00001-of-00003.arrow"):
        saved_shards(tmp_path)


@pytest.mark.parametrize("state", ["{", "[]", json.dumps({"_data_files": None})])
def test_a_saved_folder_with_a_bad_list_is_told(tmp_path, state):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(UserError, match=r"state\.json"):
        saved_shards(tmp_path)


def test_a_saved_folder_lists_no_file_of_another(tmp_path):
    datasets.Dataset.from_list([{"secret": 1}]).save_to_disk(tmp_path / "other")
    (name,) = [path.name for path in (tmp_path / "other").glob("*.arrow")]
    folder = tmp_path / "mine"
    for outside in (f"../other/{name}", str(tmp_path / "other" / name)):
        folder.mkdir(exist_ok=True)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": outside}]}))
        with pytest.raises(UserError, match=r"state\.json: .* cannot be the name of a file"):
            saved_shards(folder)


def test_bytes_are_read_as_text_where_they_are_text(tmp_path):
    rows = [
        {"b": b"yes", "l": [b"a", None], "s": {"x": "\u00fc".encode()}, "n": 1},
        {"b": b"\xff", "l": [], "s": {"x": None}, "n": 2},
    ]
    wanted = [
        {"b": "yes", "l": ["a", None], "s": {"x": "\u00fc"}, "n": 1},
        {"b": b"\xff", "l": [], "s": {"x": None}, "n": 2},
    ]
    for number, make in enumerate((parquet, arrow_file, arrow_stream)):
        assert list(make(tmp_path / f"{number}", rows).rows(0, None)) == wanted


def _strings(offsets, data):
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.table({"text": pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)})


@pytest.mark.parametrize(
    ("offsets", "data"),
    [([0, 3], b"\xf2ab"), ([0, 3, 1], b"abc")],
)
def test_damaged_texts_are_told_and_not_read(tmp_path, offsets, data):
    table, path = _strings(offsets, data), tmp_path / "x.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match=f"{path}: cannot be read"):
        list(Arrow((path,)).rows(0, None))


def test_a_name_that_is_not_text_is_told(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xf4\xff,b\n1,2\n")
    with pytest.raises(UserError, match=f"{path}: cannot be read"):
        Csv(path).columns()
