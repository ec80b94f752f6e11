import csv
import gzip
import io
import pickle

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from t0.errors import UserError
from t0.sources import csv_reader, json_lines, readers
from t0.sources.csv_reader import Csv
from t0.sources.schema import features
from t0.sources.splits import open_split

FIXTURE = {"suppress_health_check": [HealthCheck.function_scoped_fixture]}


def write(path, text, **options):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    if ".tsv" in path.name:
        options["delimiter"] = "\t"
    return Csv(path, **options)


def everything(reader):
    return list(reader.rows(0, None))


def table(reader):
    """The rows as lists."""
    return [list(row.values()) for row in everything(reader)]


def refusal(reader):
    with pytest.raises(UserError) as error:
        everything(reader)
    message = str(error.value)
    assert str(reader.path) in message
    assert "\n" not in message
    return message


@pytest.fixture(params=["x.csv", "x.csv.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_csv_reader_only_numbers_are_converted(path):
    text = "i,f,b,d,t,e,m\n1,1.5,true,2020-01-02,NA,,7\n-2,2,false,2020-01-03,null,,\n"
    rows = everything(write(path, text))
    assert rows[0] == {"i": 1, "f": 1.5, "b": "true"} | {
        "d": "2020-01-02",
        "t": "NA",
        "e": "",
        "m": 7,
    }
    assert rows[1] == {"i": -2, "f": 2, "b": "false"} | {
        "d": "2020-01-03",
        "t": "null",
        "e": "",
        "m": None,
    }


# The first column has a type of its own in each case, so that a number cannot hide in text.
@pytest.mark.parametrize(
    "cells",
    [
        ("01000", "1"),
        ("1.10", "1.2"),
        ("0.50", "2"),
        ("1e1", "2"),
        ("12345678901234567890123", "1"),
        ("9223372036854775808", "1"),
        ("0000", "0"),
        ("+1", "1"),
        (" 1", "1"),
        ("1 ", "1"),
        ("-0", "0"),
        ("1_000", "1"),
        ("\u0661", "1"),  # ARABIC-INDIC DIGIT ONE
        (".5", "0.5"),
        ("5.", "5.0"),
        ("nan", "1"),
        ("inf", "1"),
        ("NA", "1"),
        ("1E5", "1"),
        ("0x10", "1"),
        ("1e999", "1"),
        ("0.1000000000000000055511151231257827", "0.1"),
        ("1", "1.5"),
        ("9223372036854775807", "-9223372036854775808"),
        ("0.1", "1e-07"),
        ("", "3"),
    ],
)
@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_csv_reader_cells_print_as_in_the_file(tmp_path, name, cells):
    reader = write(tmp_path / name, "".join(f"{cell}\n" for cell in ["n", *cells, "4"] if cell))
    assert [str(row["n"]) for row in everything(reader)] == [cell for cell in cells if cell] + ["4"]


@settings(max_examples=150, **FIXTURE)
@given(
    st.lists(
        st.integers().map(str)
        | st.floats(allow_nan=False).map(repr)
        | st.floats(allow_nan=False).map("{:.3f}".format)
        | st.from_regex(r"\A[-+]?[0-9]{1,4}(\.[0-9]{0,3})?(e[-+]?[0-9]{1,2})?\Z"),
        min_size=1,
    )
)
def test_csv_reader_number_columns_print_as_in_the_file(tmp_path, cells):
    reader = write(tmp_path / "x.csv", "n,t\n" + "".join(f"{cell},x\n" for cell in cells))
    values = [row["n"] for row in everything(reader)]
    assert [str(value) for value in values] == cells
    # Text only if a cell has no number that prints the same.
    exact = all(cell in (_plain(cell, int), _plain(cell, float)) for cell in cells)
    small = all(abs(float(cell)) < 2**63 for cell in cells)
    assert all(isinstance(value, str) for value in values) or exact
    assert not (exact and small) or not any(isinstance(value, str) for value in values)


def _plain(cell, kind):
    try:
        return repr(kind(cell)) if "inf" not in repr(kind(cell)) else None
    except (ValueError, OverflowError):
        return None


def test_csv_reader_quoted_cells(path):
    text = 'a,b\n"x, y","line\nbreak"\n"say ""hi""",z\n'
    rows = everything(write(path, text))
    assert rows == [{"a": "x, y", "b": "line\nbreak"}, {"a": 'say "hi"', "b": "z"}]


def test_tsv_reader_tab_separated_cells(tmp_path):
    reader = write(tmp_path / "x.tsv", "a\tb\n1\tx, y\n")
    assert everything(reader) == [{"a": 1, "b": "x, y"}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("name", "mark"), [("x.csv", ","), ("x.tsv", "\t")])
def test_csv_reader_line_ends_and_empty_lines(tmp_path, end, name, mark):
    text = end.join([f"a{mark}b", "", f"1{mark}x", "", f"2{mark}", ""])
    for whole in (text, text.rstrip("\r\n")):
        assert table(write(tmp_path / name, whole)) == [[1, "x"], [2, ""]]


def test_csv_reader_column_type_holds_for_the_whole_file(path):
    lines = [f"{i},{i},{i}" for i in range(2000)] + ["x7,0.5,3"]
    reader = write(path, "id,f,i\n" + "\n".join(lines) + "\n")
    rows = everything(reader)
    assert rows[0] == {"id": "0", "f": 0, "i": 0}
    assert rows[-1] == {"id": "x7", "f": 0.5, "i": 3}
    assert list(reader.rows(1999, None)) == rows[1999:]
    assert reader.count() == len(rows) == 2001
    again = pickle.loads(pickle.dumps(reader))
    assert [list(again.rows(i, i + 500)) for i in (500, 1000, 0)] == [
        rows[i : i + 500] for i in (500, 1000, 0)
    ]


def test_csv_reader_column_type_after_empty_cells(path):
    head = [f"{i},,," for i in range(1000)]
    rows = everything(write(path, "i,n,t,e\n" + "\n".join([*head, "0,5,x,"]) + "\n"))
    assert rows[0] == {"i": 0, "n": None, "t": "", "e": ""}
    assert rows[-1] == {"i": 0, "n": 5, "t": "x", "e": ""}


@pytest.mark.parametrize("before", [0, 3000])
def test_csv_reader_long_row(path, before):
    rows = [{"a": i, "b": "x"} for i in range(before)] + [{"a": 0, "b": "y" * 300_000}]
    reader = write(path, "a,b\n" + "".join(f"{row['a']},{row['b']}\n" for row in rows))
    assert everything(reader) == rows
    assert reader.count() == len(rows)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl"])
def test_csv_reader_too_long_line_is_refused_as_in_json(tmp_path, monkeypatch, name):
    for module in (csv_reader, json_lines):
        monkeypatch.setattr(module, "LARGEST_LINE", 1000)
    path = tmp_path / name
    path.write_text('{"a": 1}\n' + "x" * 2000 + "\n")
    with pytest.raises(UserError, match=r"x\.\w+, line 2: has more than 1,000 bytes"):
        list(readers.reader_for(path.suffix[1:], (path,)).rows(0, None))


def test_csv_reader_too_long_quoted_row_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_reader, "LARGEST_LINE", 1000)
    reader = write(tmp_path / "x.csv", 'a,b\n1,2\n3,"' + "long line\n" * 200 + '"\n')
    assert "line 3: the row that begins here has more than 1,000" in refusal(reader)


def test_csv_reader_known_dataset_keeps_recorded_types(path):
    known = features("social_i_qa")
    text = "context,question,answerA,answerB,answerC,label\n1,2,3,4,5,1\n"
    row = everything(write(path, text, features=known))[0]
    assert set(map(type, row.values())) == {str}


def test_csv_reader_copy_of_a_known_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    columns = features("duorc", "SelfRC")
    nested = dict.fromkeys(columns, "[]")
    row = nested | {"plot_id": "0001", "question": "1.50", "no_answer": "False"}
    (tmp_path / "duorc" / "SelfRC").mkdir(parents=True)
    with (tmp_path / "duorc" / "SelfRC" / "test.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerow(row)
    found = next(open_split("duorc", "SelfRC", "test").rows())
    assert (found["plot_id"], found["question"], found["no_answer"]) == ("0001", "1.50", False)
    assert found["answers"] == []


@settings(max_examples=40, **FIXTURE)
@given(
    cells=st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\x00", codec="utf-8")), st.integers(0, 9)
        ),
        max_size=9,
    ),
    start=st.integers(0, 10),
    stop=st.integers(0, 10) | st.none(),
)
@example(cells=[(",\n", 0)], start=0, stop=None)  # the first line has more separators than a row
def test_csv_reader_text_equals_what_was_written(path, cells, start, stop):
    # One comma in a cell's line would look like a row; see below.
    rows = [{"text": "t" + text.replace(",", ",,"), "n": n} for text, n in cells]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, ["text", "n"], lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    reader = write(path, buffer.getvalue())
    assert everything(reader) == rows
    assert list(reader.rows(start, stop)) == rows[start:stop]
    assert reader.count() == len(rows)
    assert reader.columns() == ("text", "n")


@settings(max_examples=600, **FIXTURE)
@given(
    st.lists(st.sampled_from(['"', ",", "\n", "a", "\\", '""', '",', '\n"', "b,c\n"]), max_size=25)
)
def test_csv_reader_agrees_with_python_strict_reader(tmp_path, pieces):
    text = "x,y\n" + "".join(pieces)
    try:
        wanted = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row][1:]
        right = {len(row) for row in wanted} <= {2}
    except csv.Error:
        right = False
    try:
        rows = table(write(tmp_path / "x.csv", text))
    except UserError as error:
        # A row that Python reads is refused only because it may be several.
        assert not right or "look like rows" in str(error)
        return
    assert right
    assert rows == wanted


def with_stray_quotes(mark, places, ends=(), count=60, columns=("text", "label")):
    """A file of `count` rows, in which the texts of `places` begin with a quote."""
    lines = [mark.join(columns)]
    for i in range(count):
        text = f"{chr(34) * (i in places)}the lamp of day {i}{chr(34) * (i in ends)}"
        cells = {"text": text, "label": ("good", "bad")[i % 2], "id": str(i)}
        lines.append(mark.join(cells[name] for name in columns))
    return "\n".join(lines) + "\n"


COLUMNS = [("text", "label"), ("label", "text"), ("id", "text", "label"), ("id", "label", "text")]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(
    ("places", "ends"),
    [
        ({10}, ()),
        (range(0, 60, 5), ()),
        ({59}, ()),
        ({10, 40}, ()),
        ({10}, {40}),
        ({10}, {11}),
        ({10}, {12}),
        ({10}, {13}),
        ({0}, {1}),
        ({58}, {59}),
        ({10, 11}, {11, 12}),
        ((), {10, 11}),
    ],
)
def test_csv_reader_stray_quotes_never_swallow_rows(tmp_path, columns, places, ends):
    wanted = len(range(60))
    rows = everything(write(tmp_path / "x.tsv", with_stray_quotes("\t", places, ends, 60, columns)))
    assert len(rows) == wanted
    text = {
        i: f"{chr(34) * (i in places)}the lamp of day {i}{chr(34) * (i in ends)}" for i in range(60)
    }
    assert [row["text"] for row in rows] == [
        t[1:-1] if t[0] == t[-1] == '"' else t for t in text.values()
    ]
    reader = write(tmp_path / "x.csv", with_stray_quotes(",", places, ends, 60, columns))
    if set(places) <= set(ends):  # a quote within a cell is text
        assert len(everything(reader)) == wanted
    else:
        told = refusal(reader)
        line = int(told.split("line ")[1].split(":")[0])
        assert "quote" in told
        assert line - 2 in (*places, *ends)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('a,b\n"x,1\ny,2\n', "line 2: the quote before 'x,1"),
        ('a,b\n"1\n2","x\n', "line 3: the quote before 'x"),
        ('a,b\nq,1\n"x" y,2\n', "line 3: text follows a closing quote: ' y,2'"),
        ('a,b\n"one\ntwo" y,2\n', "line 3: text follows a closing quote"),
        (
            'a,b\n"x \\"y\\" z",2\n',
            "line 2: text follows a closing quote: 'y\\\\\" z\",2' (a quote",
        ),
        ('a,b\n"x \\"",2\n"z",1\n', "line 3: text follows a closing quote: 'z"),
        (
            'a,b\nq,1\n"x,1\ny,2\nu",2\n',
            "line 3: a quoted cell that begins here contains lines that",
        ),
        ('a,b\n1,"x\n2,y\n3,z"\n4,v\n', "line 2: a quoted cell that begins here"),
        # No column has known values.
        ('a,b\n"x,p\ny,z\nu",q\n', "line 2: a quoted cell that begins here"),
        ("a,b\n1\n", "line 2: has 1 cells instead of the 2"),
        ("a,b\n1,2\n\n1,2,3\n", "line 4: has 3 cells instead of the 2"),
        ('a,b\n"1\n2",2\n1,2,3\n', "line 4: has 3 cells instead of the 2"),
    ],
)
def test_csv_reader_bad_row_error_message_names_the_line(path, text, told):
    assert told in refusal(write(path, text))


TEXTS_LIKE_ROWS = [
    "Dear Mike,\nI hope, all is well\nthe lamp, the kettle\nRegards, Kim",
    "Dear team,\n\nthe phone came late, but it works.\nKind regards, Kim",
    "red, green\none, two\nthree, four",
    "bread,white\nmilk,cold\neggs,fresh",
    "Order:\nbread,3\nmilk,2\nThanks",
    "item,price\nbread,3\nmilk,2",
    "Hello,\nRegards,",
]


@pytest.mark.parametrize("columns", [*COLUMNS, ("text", "note", "label"), ("note", "text")])
@pytest.mark.parametrize("labels", [("good", "bad"), (1, 2), [f"class {n}" for n in range(150)]])
@pytest.mark.parametrize("only_mails", [False, True])
def test_csv_reader_texts_with_as_many_commas_as_a_row_are_read(
    tmp_path, columns, labels, only_mails
):
    count = 40 if len(labels) == 2 else 600
    rows = [
        {
            "id": n,
            "text": TEXTS_LIKE_ROWS[n % 7] if only_mails or n % 5 == 0 else f"plain {n}",
            "note": "x" * (n % 9 == 0),
            "label": labels[n % len(labels)],
        }
        for n in range(count)
    ]
    rows = [{name: row[name] for name in columns} for row in rows]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    assert everything(write(tmp_path / "x.csv", buffer.getvalue())) == rows


def test_csv_reader_line_breaks_in_quoted_cells_are_read(path):
    texts = [
        "Dear all,\nwe close at noon\n\nthe shop",
        "one line, with a comma\nanother",
        "a\r\nb, c\r\nd",
        "one, two, three\nfour, five, six",
        "\n\n",
        '"said" the cat, "twice"\nand left',
    ]
    for columns in ([0, 1], [1, 0]):
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        written = [[text, "bad"] for text in texts] + [["plain", "good"]] * 5
        writer.writerows([[row[i] for i in columns] for row in [["text", "label"], *written]])
        rows = everything(write(path, buffer.getvalue()))
        assert [row["text"] for row in rows] == [text for text, _ in written]


def test_tsv_reader_quoted_cells(tmp_path):
    rows = [
        ["a\ttab", "1"],
        ["two\nlines", "2"],
        ['say "hi"\nagain', "3"],
        ["plain", "4"],
        ['"', "5"],
        ['whole "quotes" inside', "6"],
        ["x\r\ny\tz\tand\tmore", "7"],
    ]
    for order in ([0, 1], [1, 0], [1, 0, 1]):
        buffer = io.StringIO()
        writer = csv.writer(buffer, "excel-tab", lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows(
            [["a", "b", "c"][: len(order)], *([row[i] for i in order] for row in rows)]
        )
        wanted = [[row[i] if i == 0 else int(row[i]) for i in order] for row in rows]
        assert table(write(tmp_path / "x.tsv", buffer.getvalue())) == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('"quoted" first\t1', ['"quoted" first', 1]),
        ('"whole"\t1', ["whole", 1]),
        ('"a ""b"" c"\t1', ['a "b" c', 1]),
        ('"a" and "b"\t1', ['"a" and "b"', 1]),
        ('"\t1', ['"', 1]),
        ('""\t1', ["", 1]),
        ('say "x\t1', ['say "x', 1]),
        (' "x"\t1', [' "x"', 1]),
    ],
)
def test_tsv_reader_stray_quotes_are_text(tmp_path, line, wanted):
    assert table(write(tmp_path / "x.tsv", f"a\tb\n{line}\nnext\t2\n")) == [wanted, ["next", 2]]


def test_tsv_reader_bad_line_is_named_and_not_skipped(tmp_path):
    text = 'a\tb\n"x\t1\nno tab\ny"\t2\n'
    assert "line 3: has 1 cells instead of the 2" in refusal(write(tmp_path / "x.tsv", text))
    assert "line 2: has 3 cells" in refusal(write(tmp_path / "x.tsv", "a\tb\n1\t2\t\n"))


@pytest.mark.parametrize("mark", [";", "\t"])
def test_csv_reader_semicolon_and_tab_separators(path, mark):
    text = f'"text, long"{mark}label\nNo, never{mark}1,5\n"two\nlines{mark}{mark}"{mark}2,5\n'
    assert everything(write(path, text)) == [
        {"text, long": "No, never", "label": "1,5"},
        {"text, long": f"two\nlines{mark}{mark}", "label": "2,5"},
    ]


def test_csv_reader_excel_separator_line(path):
    assert everything(write(path, "sep=;\r\na;b\r\n1;x,y\r\n")) == [{"a": 1, "b": "x,y"}]
    assert "line 3: has 1 cells" in refusal(write(path, "sep=;\na;b\n1,x\n"))


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le with mark", "utf-16-be with mark"]
)
def test_csv_reader_byte_order_mark(path, encoding):
    text = "text,label\ncaf\u00e9 \U0001f375,1\n"
    name, _, mark = encoding.partition(" ")
    data = (("\ufeff" if mark else "") + text).encode(name)
    assert everything(write(path, data)) == [{"text": "caf\u00e9 \U0001f375", "label": 1}]


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_csv_reader_other_encoding_error_names_line_and_remedy(tmp_path, name):
    mark = "\t" if "tsv" in name else ","
    lines = [
        f"text{mark}label",
        *[f"plain text{mark}{i}" for i in range(5000)],
        f"caf\u00e9{mark}1",
    ]
    reader = write(tmp_path / name, "\n".join(lines).encode("latin-1"))
    told = refusal(reader)
    assert "line 5002: not UTF-8: byte 0xe9 ('\u00e9' in Latin-1) after 'caf'" in told
    assert "iconv -f WINDOWS-1252" in told
    told = refusal(write(tmp_path / name, f"a{mark}b\n1{mark}2\n".encode("utf-16-le")))
    assert "line 1: has NUL characters. Is it UTF-16" in told
    assert "utf-16" in refusal(write(tmp_path / name, "\ufeffa,b\n1,2".encode("utf-16-le")[:-1]))


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_csv_reader_empty_file_is_refused(path, text):
    assert "is empty: expected a first line" in refusal(write(path, text))


def test_csv_reader_duplicate_column_name_is_refused(path):
    assert "line 1: the column names ['a'] occur twice" in refusal(write(path, "a,a\n1,2\n"))


def test_csv_reader_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / "x.csv.gz"
    whole = gzip.compress(b"a\n" + b"".join(b"%d\n" % (i**9) for i in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    assert "x.csv.gz: cannot be read" in refusal(Csv(path))
