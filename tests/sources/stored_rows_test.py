"""`StoredRows` gives the rows of a split in any order, as the split itself gives them."""

import json

from t0.sources import StoredRows, hidden_label, open_split


def test_stored_rows_equal_the_rows_of_the_split(tmp_path, monkeypatch):
    rows = [{"text": f"row {n}", "label": n % 2, "more": [n, {"a": None}]} for n in range(20)]
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    stored = StoredRows(open_split("mine", None, "train"))
    assert len(stored) == 20
    assert [stored[n] for n in (19, 0, 7, 7)] == [rows[n] for n in (19, 0, 7, 7)]


def test_stored_rows_keep_withheld_labels(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "a", "label": -1}\n' * 2)
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    split = open_split("mine", None, "train")
    (first, _), stored = split.rows(), StoredRows(split)
    assert hidden_label("mine", first)
    assert hidden_label("mine", stored[1])
