"""The table of missing splits, and the tasks that miss them."""

import types

import pytest

from t0.errors import AbsentData, UserError
from t0.sources import AbsentSplit, absent_table, without_absent


def test_table_of_absent_splits_has_each_split_once_with_its_file(monkeypatch, tmp_path):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    fault = ("the hub: out of reach",)
    rte = AbsentSplit("super_glue", "rte", "validation", fault)
    story = AbsentSplit("story_cloze", "2016", "test", fault)
    lines = absent_table([rte, story, rte, AbsentSplit("anli", None, "dev_r1")]).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["super_glue/rte", "validation", f"{tmp_path}/super_glue/rte/validation.jsonl"],
        ["story_cloze/2016", "test", f"{tmp_path}/story_cloze/2016/test.jsonl"],
        ["anli", "dev_r1", f"{tmp_path}/anli/default/dev_r1.jsonl"],
    ]
    assert lines.count(fault[0]) == 1
    assert "--data_dir" in lines[4] and "parquet" in lines[4]
    assert any("Story Cloze is handed out by its authors" in line for line in lines)


def make_source(subset, *, absent):
    def open_split(split):
        if absent:
            raise AbsentData(f"no rows of {subset}", [AbsentSplit("mine", subset, split)])

    names = {"validation": "validation"}
    return types.SimpleNamespace(
        dataset="mine", subset=subset, split_mapping=names, open=open_split
    )


def test_tasks_without_data_are_refused_with_all_missing_splits(monkeypatch):
    monkeypatch.delenv("T0_DATA_DIR", raising=False)
    sources = {name: make_source(name, absent=name != "c") for name in "abc"}
    with pytest.raises(UserError) as caught:
        without_absent(sources, "validation", skip=False)
    message = str(caught.value)
    assert "DIR/mine/a/validation.jsonl" in message and "DIR/mine/b/validation.jsonl" in message
    assert "mine/c" not in message and "leave these 2 tasks out: --skip_absent" in message
    assert without_absent(sources, "validation", skip=True) == ["c"]
    del sources["b"]  # a single one has its own message
    with pytest.raises(UserError, match=r"mine/a, validation\. no rows of a"):
        without_absent(sources, "validation", skip=False)
