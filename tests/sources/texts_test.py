"""Folders of documents: which files are which split, shards that cover them, and what is wrong."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t0.errors import UserError
from t0.sources.texts import FolderTexts, split_files, text_folders


def write(path, lines, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def as_json(*texts):
    return [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)]


def read(texts, split="train"):
    return [text for shard in texts.shards(split) for text in texts.documents(shard)]


def test_text_folder_splits_from_file_names(tmp_path):
    wanted = {
        "train": ["c4-train.00000-of-00002.json.gz", "train-00001.txt", "train/a/b.txt.gz",
                  "train/c.jsonl", "train.jsonl", "train_more.txt"],
        "validation": ["c4-validation.00000-of-00001.json.gz", "dev.txt", "val/x.txt",
                       "valid.jsonl"],
        "test": ["test.txt"],
    }  # fmt: skip
    for names in wanted.values():
        for name in names:
            write(tmp_path / name, as_json("x"))
    # Not of a split where others are; not text; hidden; a split's name only as part of a word.
    for name in ("training_notes.txt", "train.csv", ".train.txt", "train.md", "latest.txt"):
        write(tmp_path / name, ["x"])
    found = {
        split: sorted(str(path.relative_to(tmp_path)) for path in files)
        for split, files in split_files(tmp_path).items()
    }
    assert found == {split: sorted(names) for split, names in wanted.items()}


def test_text_folder_unnamed_files_are_the_train_split(tmp_path):
    write(tmp_path / "book.txt", ["one", "two"])
    write(tmp_path / "validation.txt", ["three"])
    texts = FolderTexts(tmp_path)
    assert texts.splits == ("train", "validation")
    assert read(texts) == ["one", "two"]
    assert read(texts, "validation") == ["three"]


def test_text_folder_and_its_subfolders(tmp_path):
    write(tmp_path / "train" / "a.txt", ["a"])
    write(tmp_path / "books" / "train.txt", ["b"])
    (tmp_path / ".cache").mkdir()
    assert text_folders(tmp_path) == {"": tmp_path, "books": tmp_path / "books"}
    assert text_folders(tmp_path / "books") == {"": tmp_path / "books"}
    (tmp_path / "train" / "a.txt").unlink()
    assert text_folders(tmp_path) == {"books": tmp_path / "books"}


@given(
    files=st.lists(
        st.tuples(st.lists(st.text("ab é\t\r", max_size=9), max_size=9), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
    shard_bytes=st.integers(1, 60),
)
def test_text_folder_shards_cover_every_document_once(tmp_path_factory, files, shard_bytes):
    folder = tmp_path_factory.mktemp("texts")
    wanted = []
    for number, (lines, kind) in enumerate(files):
        ending = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")[kind]
        in_json = "json" in ending
        write(folder / f"train-{number}{ending}", as_json(*lines) if in_json else lines)
        wanted += [x if in_json else x.rstrip("\r") for x in lines if x.strip()]
    texts = FolderTexts(folder, shard_bytes=shard_bytes)
    assert read(texts) == wanted
    shards = texts.shards("train")
    assert len({str(shard) for shard in shards}) == len(shards)


def test_text_folder_sharding_joins_small_and_cuts_large_files(tmp_path):
    for number in range(6):
        write(tmp_path / f"small{number}.txt", ["x" * 9])
    write(tmp_path / "z_large.txt", ["y" * 9] * 10)
    shards = FolderTexts(tmp_path, shard_bytes=30).shards("train")
    assert [len(shard.pieces) for shard in shards] == [3, 3, 1, 1, 1, 1]
    assert str(shards[0]).endswith("small0.txt:0 and 2 more")


def test_text_folder_byte_order_mark_and_missing_last_newline(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbfone\n\n  \ntwo\r\nthree")
    assert read(FolderTexts(tmp_path, shard_bytes=4)) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "half', r"line 3: not JSON .*it starts with '\{\"text\": \"half'"),
        ('["text"]', r"line 3: got \['text'\], expected"),
        ('{"body": "x", "id": 1}', "line 3: has no field 'text'; it has: body, id. Each line"),
        ('{"text": 7}', "line 3: the field 'text' is 7, expected a string"),
    ],
)
@pytest.mark.parametrize("ending", [".jsonl", ".json.gz"])
def test_text_folder_faulty_json_line_is_named(tmp_path, line, message, ending):
    write(tmp_path / f"train{ending}", [*as_json("one"), "", line, *as_json("two")])
    # The fault stands in a shard that does not begin at the file's start.
    with pytest.raises(UserError, match=rf"train{ending}, {message}"):
        read(FolderTexts(tmp_path, shard_bytes=12))


def test_text_folder_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"train.txt, line 2: not UTF-8 .*byte 3 of the line"):
        read(FolderTexts(tmp_path, shard_bytes=2))


def test_text_folder_broken_gzip_file_is_named(tmp_path):
    write(tmp_path / "train.txt.gz", ["one"] * 50)
    whole = (tmp_path / "train.txt.gz").read_bytes()
    (tmp_path / "train.txt.gz").write_bytes(whole[:-12])
    with pytest.raises(UserError, match=r"train.txt.gz: cannot be read: .*Copy or write it again"):
        read(FolderTexts(tmp_path))


def test_text_folder_without_text_files_is_refused(tmp_path):
    write(tmp_path / "train.csv", ["a,b"])
    with pytest.raises(UserError, match=r"has no text files. Expected one document per line, as"):
        FolderTexts(tmp_path)


def test_text_folder_whitespace_only_gives_no_document(tmp_path):
    write(tmp_path / "train.txt", ["", "  ", "\t"])
    write(tmp_path / "train.jsonl", as_json(" \n", ""))
    assert read(FolderTexts(tmp_path)) == []


def test_text_folder_json_document_is_in_one_shard(tmp_path):
    long = "word " * 30
    write(tmp_path / "train.json", [json.dumps([{"text": f"{long}{n}"} for n in range(9)])])
    write(tmp_path / "train-2.json.gz", [json.dumps({"data": [{"text": "b"}, {"text": " "}]})])
    write(tmp_path / "train-3.jsonl", as_json("c", "d"))
    texts = FolderTexts(tmp_path, shard_bytes=200)
    wanted = [f"{long}{n}" for n in range(9)] + ["b", "c", "d"]
    assert sorted(read(texts)) == sorted(wanted)
    write(tmp_path / "train.json", [json.dumps({"text": ["a", 5]})])
    with pytest.raises(UserError, match=r"train.json, row 1 .*the field 'text' is 5"):
        read(FolderTexts(tmp_path))


def test_text_folder_surrogate_is_refused_or_skipped(tmp_path, monkeypatch, capsys):
    write(tmp_path / "train.jsonl", as_json("whole", "cut \ud83d"))
    write(tmp_path / "train.txt", [r'"\ud83d"'])  # the text of an escape is text
    with pytest.raises(UserError, match=r"train.jsonl, line 2, column 'text'.*--skip_bad_rows"):
        read(FolderTexts(tmp_path))
    monkeypatch.setenv("T0_SKIP_BAD_ROWS", "1")
    assert read(FolderTexts(tmp_path)) == ["whole", r'"\ud83d"']
    assert "train.jsonl: skipped 1 rows" in capsys.readouterr().err
