import csv
import gzip
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t0.errors import UserError
from t0.sources import csv_reader
from t0.sources.csv_reader import Csv
from t0.sources.known import features


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
    monkeypatch.setattr(csv_reader, "_BLOCK_BYTES", 1 << 10)
    lines = [f"{i},{i},{i}" for i in range(2000)] + ["x7,0.5,3"]
    reader = write(path, "id,f,i\n" + "\n".join(lines) + "\n")
    rows = everything(reader)
    assert rows[0] == {"id": "0", "f": 0.0, "i": 0}
    assert rows[-1] == {"id": "x7", "f": 0.5, "i": 3}
    assert list(reader.rows(1999, None)) == rows[1999:]
    assert reader.count() == len(rows) == 2001


def test_a_column_that_is_empty_at_first(path, monkeypatch):
    monkeypatch.setattr(csv_reader, "_BLOCK_BYTES", 1 << 10)
    head = [f"{i},,," for i in range(1000)]
    rows = everything(write(path, "i,n,t,e\n" + "\n".join([*head, "0,5,x,"]) + "\n"))
    assert rows[0] == {"i": 0, "n": None, "t": "", "e": ""}
    assert rows[-1] == {"i": 0, "n": 5, "t": "x", "e": ""}


@pytest.mark.parametrize("before", [0, 3000])
def test_a_row_longer_than_a_block(path, monkeypatch, before):
    monkeypatch.setattr(csv_reader, "_BLOCK_BYTES", 1 << 12)
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
    # How pandas writes integers of which one is missing; `t0.sources.values` makes them whole.
    rows = everything(write(path, "n\n1.0\n\n2.0\n", known=known))
    assert [row["n"] for row in rows] in ([1.0, 2.0], [1.0, None, 2.0])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
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
        ("", "Empty"),
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


def test_a_cut_file_is_told_by_name(tmp_path):
    path = tmp_path / "x.csv.gz"
    whole = gzip.compress(b"a\n" + b"".join(b"%d\n" % (i**9) for i in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"x\.csv\.gz"):
        everything(Csv(path))
