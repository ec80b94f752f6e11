import json
import os
from pathlib import Path

import datasets
import pytest

from t0.errors import UserError
from t0.sources import readers
from t0.sources.folders import (
    FILE_PATTERN,
    SplitFile,
    data_dirs,
    folder_splits,
    folders_for,
    local_splits,
    set_data_dirs,
)


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", "")
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    return folders


def test_data_dirs_unset_gives_no_folder(monkeypatch):
    monkeypatch.delenv("T0_DATA_DIR", raising=False)
    assert data_dirs() == []


@pytest.mark.parametrize("separator", [os.pathsep, ",", f" {os.pathsep} ", ", "])
def test_data_dirs_several_folders_keep_their_order(two, monkeypatch, separator):
    monkeypatch.setenv("T0_DATA_DIR", separator.join(map(str, two)) + separator)
    assert data_dirs() == two


def test_data_dirs_duplicate_folder_is_searched_once(two, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", f"{two[0]}:{two[1]}:{two[0]}/")
    assert data_dirs() == two


def test_data_dirs_folder_name_with_a_comma(tmp_path, monkeypatch):
    odd = tmp_path / "x,y"
    odd.mkdir()
    monkeypatch.setenv("T0_DATA_DIR", str(odd))
    assert data_dirs() == [odd]


@pytest.mark.parametrize("as_given", [str, Path, lambda p: [p], lambda p: [str(p)]])
def test_set_data_dirs_takes_one_or_several(two, as_given):
    set_data_dirs(as_given(two[1]))
    assert data_dirs() == [two[1]]


def test_set_data_dirs_makes_relative_folders_absolute(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    set_data_dirs("a,b")
    monkeypatch.chdir("/")
    assert data_dirs() == two


@pytest.mark.parametrize("name", ["absent", "file"])
def test_data_dirs_missing_folder_error_message_names_it(two, tmp_path, monkeypatch, name):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("T0_DATA_DIR", f"{two[0]}:{tmp_path / name}")
    with pytest.raises(UserError, match=name):
        data_dirs()
    before = os.environ["T0_DATA_DIR"]
    with pytest.raises(UserError, match="T0_DATA_DIR"):
        set_data_dirs([tmp_path / name])
    assert os.environ["T0_DATA_DIR"] == before


NAMES = {
    "a.jsonl": "jsonl",
    "b.jsonl.gz": "jsonl",
    "c.json": "jsonl",
    "d.json.gz": "jsonl",
    "e.csv": "csv",
    "f.csv.gz": "csv",
    "g.tsv": "tsv",
    "h.tsv.gz": "tsv",
    "i.parquet": "parquet",
    "j.arrow": "arrow",
}
OTHERS = ["templates.yaml", "k.parquet.gz", "l.txt", ".m.jsonl", "README.md", "n.gz"]


def touch(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")


def test_folder_splits_of_every_file_format(tmp_path):
    touch(tmp_path, *NAMES, *OTHERS)
    (tmp_path / "folder.jsonl").mkdir()
    wanted = {name[0]: SplitFile(kind, tmp_path / name) for name, kind in NAMES.items()}
    assert folder_splits(tmp_path) == wanted


def test_folder_splits_of_absent_folder_are_empty(tmp_path):
    assert folder_splits(tmp_path / "absent") == {}
    assert local_splits([], "x", None) == {}


def test_folder_splits_two_files_of_one_split_are_refused(tmp_path):
    touch(tmp_path, "train.csv", "train.jsonl.gz")
    with pytest.raises(UserError, match=r"train\.csv and train\.jsonl\.gz"):
        folder_splits(tmp_path)


def test_data_folders_for_dataset_and_subset(tmp_path):
    assert folders_for([tmp_path], "a", "b") == [tmp_path / "a/b"]
    assert folders_for([tmp_path], "o/a", None) == [tmp_path / "o/a/default", tmp_path / "o/a"]


def test_local_splits_first_folder_wins(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    touch(one / "d", "train.csv", "test.csv")
    touch(one / "d" / "default", "train.jsonl")
    touch(two / "d" / "default", "train.tsv", "validation.tsv")
    paths = {split: found.path for split, found in local_splits([one, two], "d", None).items()}
    assert paths == {
        "train": one / "d/default/train.jsonl",
        "test": one / "d/test.csv",
        "validation": two / "d/default/validation.tsv",
    }


def test_folder_splits_of_saved_datasets(tmp_path):
    rows = datasets.Dataset.from_list([{"a": 1}])
    rows.save_to_disk(tmp_path / "single/validation")
    assert folder_splits(tmp_path / "single") == {
        "validation": SplitFile("saved", tmp_path / "single/validation")
    }
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "both")
    assert folder_splits(tmp_path / "both") == {
        "train": SplitFile("saved", tmp_path / "both/train"),
        "test": SplitFile("saved", tmp_path / "both/test"),
    }
    rows.save_to_disk(tmp_path / "alone")
    assert folder_splits(tmp_path / "alone") == {"train": SplitFile("saved", tmp_path / "alone")}
    state = json.loads((tmp_path / "alone/state.json").read_text())
    (tmp_path / "alone/state.json").write_text(json.dumps(state | {"_split": "test"}))
    assert folder_splits(tmp_path / "alone") == {"test": SplitFile("saved", tmp_path / "alone")}


def test_saved_dataset_malformed_dataset_dict_is_refused(tmp_path):
    (tmp_path / "dataset_dict.json").write_text("{")
    with pytest.raises(UserError, match=r"dataset_dict\.json"):
        folder_splits(tmp_path)


@pytest.mark.parametrize("name", ["../../x/train", "/x/train", "..", "a b", 3, ["train"]])
def test_saved_dataset_split_name_outside_folder_is_refused(tmp_path, name):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text(json.dumps({"_split": name}))
    with pytest.raises(UserError, match=r"state\.json: .* cannot be the name of a split"):
        folder_splits(tmp_path / "saved")
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", name]}))
    with pytest.raises(UserError, match=r"dataset_dict\.json: .* cannot be the name of a split"):
        folder_splits(tmp_path)


def test_saved_dataset_splits_must_be_a_list(tmp_path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": 3}')
    with pytest.raises(UserError, match=r"'splits' must be a list"):
        folder_splits(tmp_path)


def test_folder_splits_invalid_split_name_is_refused(tmp_path):
    touch(tmp_path, "train.jsonl", "train (copy).jsonl")
    with pytest.raises(UserError, match=r"'train \(copy\)' cannot be the name of a split"):
        folder_splits(tmp_path)


@pytest.mark.parametrize("name", [*readers.SUFFIXES, ".JSONL", ".csv.GZ", ".tsv.gz", ".json.gz"])
def test_data_folder_reads_each_suffix_of_the_table(tmp_path, name):
    path = tmp_path / f"train{name}"
    path.touch()
    kind = readers.SUFFIXES[name.lower().removesuffix(".gz")]
    assert folder_splits(tmp_path) == {"train": SplitFile(kind, path)}


@pytest.mark.parametrize("name", ["train.xlsx", "train.parquet.gz", "train.gz", "train", "saved"])
def test_data_folder_ignores_other_suffixes(tmp_path, name):
    (tmp_path / name).touch()
    assert folder_splits(tmp_path) == {}


def test_messages_list_the_formats_of_the_table():
    assert FILE_PATTERN == "<split>.{jsonl,json,csv,tsv}[.gz] or .parquet or .arrow"
    suffixes = ".jsonl, .json, .csv, .tsv, .parquet, .arrow"
    assert f"{suffixes} (text also as .gz)" == readers.LISTED_SUFFIXES
