"""Paths that are pathlib's here and `RemotePath` in a bucket: the same calls, the same answers."""

import gzip
import pickle
from pathlib import Path

import pytest

from t0.files.any_path import RemotePath, any_path, unpacked


@pytest.fixture(params=["here", "bucket"])
def folder(request, tmp_path, bucket):
    return any_path(tmp_path if request.param == "here" else "gs://b/work")


def test_any_path_bucket_paths_keep_their_scheme():
    path = any_path("gs://b/eval/results_10.json")
    assert isinstance(path, RemotePath)
    assert isinstance(any_path("b/eval"), Path)
    assert str(path) == "gs://b/eval/results_10.json"
    assert str(path.parent / "scores" / "x.jsonl") == "gs://b/eval/scores/x.jsonl"
    assert (path.name, path.stem, path.suffix) == ("results_10.json", "results_10", ".json")
    assert str(path.with_suffix(".gz")) == "gs://b/eval/results_10.gz"
    assert path.is_relative_to(any_path("gs://b/eval"))
    assert path.resolve() == any_path(str(path)) == pickle.loads(pickle.dumps(path))
    assert any_path("gs://b/a") < any_path("gs://b/b")


def test_any_path_finds_reads_and_writes_files(folder):
    assert not (folder / "none").exists()
    (folder / "in" / "deep").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "in/c.txt", "in/deep/d.txt", "in/e.json"):
        (folder / name).write_text(f"text of {name} ü\n", encoding="utf-8")
    assert (folder / "a.txt").read_text(encoding="utf-8") == "text of a.txt ü\n"
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.txt", "in"]
    assert [path.name for path in sorted(folder.iterdir()) if path.is_dir()] == ["in"]
    assert sorted(path.name for path in folder.glob("*.txt")) == ["a.txt", "b.txt"]
    below = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.txt"))
    assert below == ["a.txt", "b.txt", "in/c.txt", "in/deep/d.txt"]
    assert (folder / "in").is_dir() and not (folder / "in").is_file()
    assert (folder / "a.txt").is_file() and not (folder / "a.txt").is_dir()
    assert (folder / "a.txt").stat().st_size == 17
    (folder / "a.txt").rename(folder / "z.txt")
    (folder / "b.txt").unlink()
    assert sorted(path.name for path in folder.iterdir()) == ["in", "z.txt"]
    (folder / "b.txt").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (folder / "b.txt").unlink()
    with pytest.raises(FileNotFoundError):
        list((folder / "nowhere").iterdir())


def test_any_path_reads_from_any_position(folder):
    folder.mkdir(exist_ok=True)
    content = bytes(range(256)) * 9000
    with (folder / "data").open("wb") as file:
        file.write(content[:1000])
        file.write(content[1000:])
    with (folder / "data").open("rb") as file:
        file.seek(-300, 2)
        assert file.read(10) == content[-300:-290]
        file.seek(5)
        assert file.read() == content[5:]
        assert file.read(1) == b""
    (folder / "text").write_text("one\ntwo\n")
    with (folder / "text").open(encoding="utf-8") as file:
        assert list(file) == ["one\n", "two\n"]


def test_any_path_gzip_is_unpacked(folder):
    folder.mkdir(exist_ok=True)
    (folder / "x.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (folder / "x").write_bytes(b"one\ntwo\n")
    for name in ("x.gz", "x"):
        with unpacked(folder / name) as file:
            assert file.read() == b"one\ntwo\n"


def test_any_path_bucket_folder_costs_one_listing(bucket):
    for number in range(5):
        bucket.put("b", f"data/f{number}", b"x")
    before = len(bucket.calls())
    found = [path for path in any_path("gs://b/data").iterdir() if path.is_file()]
    assert len(found) == 5
    # TensorFlow asks by one more whether it is a folder.
    assert bucket.counts(before) == {"list": 2}
