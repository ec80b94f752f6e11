"""Tables as plain text: aligned, or a block for each row where they are wider than the terminal."""

from t0.text_tables import table_lines, wrap_text

COLUMNS = ("task", "splits", "rate")
ROWS = [("a_very_long_name_of_a_task", "train 9,999, validation 7", "12"), ("short", "", "3,456")]


def test_terminal_table_columns_are_aligned():
    wide, *lines = table_lines(COLUMNS, ROWS, right=("rate",))
    assert wide == "task                        splits                      rate"
    assert lines == [
        "a_very_long_name_of_a_task  train 9,999, validation 7     12",
        "short                                                  3,456",
    ]


def test_terminal_table_never_breaks_a_name():
    for width in (20, 40, 59):
        lines = list(table_lines(COLUMNS, ROWS, width=width))
        assert "a_very_long_name_of_a_task" in lines
        others = [line for line in lines if line not in (ROWS[0][0], ROWS[1][0])]
        assert max(map(len, others)) <= width
        told = " ".join(line.strip() for line in others)
        assert told == "splits: train 9,999, validation 7; rate: 12 rate: 3,456"


def test_terminal_table_escapes_control_characters():
    (_, line) = table_lines(("name",), [("red\x1b[31m\nhere",)])
    assert line == "red\\x1b[31m here"


def test_terminal_text_is_wrapped_without_splitting_names():
    path = "/models/" + "long_name" * 5 + "/model.ckpt-100"
    text = f"step: a few words of prose, then {path} and the rest-of-it\n\n  short"
    assert wrap_text(text, None) == text
    assert wrap_text(text, 30).split("\n") == [
        "step: a few words of prose,",
        "    then",
        f"    {path}",
        "    and the rest-of-it",
        "",
        "  short",
    ]
    assert wrap_text("  indented words", 12) == "  indented\n      words"
