import csv
import json
import pickle
import socket
import time
from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest

from t0.errors import AbsentData, UserError
from t0.sources import hub, open_split
from t0.sources.hub import HubTexts

SPLITS = Path(__file__).parents[2] / "t0" / "sources" / "facts" / "splits.json"
ROWS = [{"sentence1": f"a{i}", "sentence2": "b", "label": i % 2, "idx": i} for i in range(3000)]
SCRIPT = RuntimeError("Dataset scripts are no longer supported, but found x.py")


class Hub:
    """Stands in for `datasets.load_dataset`: answers by repository, or by it and a revision."""

    def __init__(self, answers):
        self.answers = answers
        self.calls = []

    def __call__(self, path, name=None, *, split, revision=None, data_files=None):
        self.calls.append((path, name, split, revision, data_files))
        repo = path.removeprefix("hf://datasets/")
        answer = self.answers.get((repo, revision) if revision else repo, FileNotFoundError(path))
        if isinstance(answer, Exception):
            raise answer
        return datasets.Dataset.from_list(answer)


@pytest.fixture
def stand_in(monkeypatch):
    for name in ("T0_DATA_DIR", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "unreachable", lambda: None)

    def use(answers):
        made = Hub(answers)
        monkeypatch.setattr(datasets, "load_dataset", made)
        return made

    return use


def test_hub_table_has_every_dataset_once():
    assert set(json.loads(SPLITS.read_text())) <= set(hub.HUB)
    assert all("/" in repo for row in hub.HUB.values() for repo in row.repos)
    shared = Path(__file__).parents[3] / "shared" / "facts" / "datasets.csv"
    if not shared.exists():
        pytest.skip("the published list of datasets is not there")
    with shared.open() as file:
        assert {row["HF_name"] for row in csv.DictReader(file)} == set(hub.HUB)


def test_hub_dataset_with_a_moved_name_is_read(stand_in):
    made = stand_in({"nyu-mll/glue": ROWS})
    rows = open_split("glue", "mrpc", "validation")
    assert made.calls == [("hf://datasets/nyu-mll/glue", "mrpc", "validation", None, None)]
    assert rows.num_rows == 3000
    assert rows.columns == ("sentence1", "sentence2", "label", "idx")
    assert list(rows.rows()) == ROWS
    assert list(rows.rows(1020, 1030)) == ROWS[1020:1030]
    assert list(rows.rows(2999, 5000)) == ROWS[2999:]
    assert list(rows.rows(4000)) == []
    assert "nyu-mll/glue" in rows.where
    assert list(pickle.loads(pickle.dumps(rows)).rows(0, 1)) == ROWS[:1]


def test_hub_dataset_script_is_not_run_parquet_is_read(stand_in):
    row = {"label-coarse": 0, "label-fine": 0, "text": "How ?"}
    new = {"text": "How ?", "coarse_label": 2, "fine_label": 26}
    made = stand_in({"CogComp/trec": SCRIPT, ("CogComp/trec", "refs/convert/parquet"): [new]})
    assert list(open_split("trec", None, "test").rows()) == [row]
    assert made.calls[1:] == [
        (
            "hf://datasets/CogComp/trec",
            None,
            "test",
            "refs/convert/parquet",
            {"test": "*/test/*.parquet"},
        )
    ]
    glue = {"premise": "a", "hypothesis": "b", "idx": 0, "label": 0}
    made = stand_in({"aps/super_glue": SCRIPT, ("aps/super_glue", hub.PARQUET_REVISION): [glue]})
    open_split("super_glue", "cb", "train")
    assert made.calls[-1][-1] == {"train": "cb/train/*.parquet"}


def test_hub_dataset_copy_is_tried_after_the_first_name(stand_in):
    row = {"id": "1", "dialogue": "x", "summary": "y"}
    made = stand_in({"knkarthick/samsum": [row]})
    assert list(open_split("samsum", None, "train").rows()) == [row]
    assert [call[0].split("/", 3)[3] for call in made.calls] == [
        "Samsung/samsum",
        "knkarthick/samsum",
    ]


def test_hub_dataset_copy_with_other_columns_is_refused(stand_in):
    stand_in({"Samsung/samsum": [{"id": "1", "dialog": "x", "summary": "y"}]})
    with pytest.raises(UserError, match="has no columns dialogue"):
        open_split("samsum", None, "train")


def test_hub_glue_rte_stands_in_for_super_glue_rte(stand_in):
    stand_in({"nyu-mll/glue": ROWS})
    row = next(open_split("super_glue", "rte", "validation").rows())
    assert row == {"premise": "a0", "hypothesis": "b", "idx": 0, "label": 0}


def test_hub_dataset_with_owner_is_requested_by_name(stand_in):
    made = stand_in({"Zaid/quac_expanded": [{"a": 1}]})
    assert open_split("Zaid/quac_expanded", None, "train").num_rows == 1
    assert made.calls[0][:2] == ("hf://datasets/Zaid/quac_expanded", None)


def test_hub_dataset_name_without_owner_is_not_requested(stand_in):
    made = stand_in({})
    with pytest.raises(UserError, match="not a hub name"):
        open_split("my_own", None, "train")
    assert made.calls == []


@pytest.mark.parametrize("fault", [ValueError("BuilderConfig 'x' not found."), OSError("gone")])
def test_hub_error_message_has_cause_and_remedy(stand_in, fault):
    stand_in({"nyu-mll/glue": fault})
    with pytest.raises(UserError, match=str(fault)) as error:
        open_split("glue", "mrpc", "train")
    for part in ("glue", "mrpc", "train", "nyu-mll/glue", "T0_DATA_DIR", "--data_dir"):
        assert part in str(error.value)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_hub_offline_makes_no_request(stand_in, monkeypatch, variable):
    made = stand_in({"nyu-mll/glue": ROWS})
    monkeypatch.setattr(hub, "unreachable", lambda: pytest.fail("asked the hub"))
    monkeypatch.setenv(variable, "1")
    with pytest.raises(UserError, match=variable):
        open_split("glue", "mrpc", "train")
    assert made.calls == []


def test_hub_refused_connection_fails_without_retries(monkeypatch):
    for name in ("T0_DATA_DIR", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as held:  # bound, but not listening: refuses, and nobody else gets it
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("tried"))
        monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits to try again"))
        with pytest.raises(UserError, match=f"out of reach: {address}"):
            open_split("glue", "mrpc", "train")


def test_hub_licensed_dataset_error_message_names_a_remedy(stand_in):
    stand_in({"LSDSem/story_cloze": SCRIPT})
    with pytest.raises(UserError, match="on request"):
        open_split("story_cloze", "2016", "test")


@pytest.fixture
def streamed(tmp_path, monkeypatch):
    """Three files of a made-up repository; returns what was asked for."""
    import datasets

    files = []
    for number in range(3):
        files.append(str(tmp_path / f"part{number}.jsonl"))
        rows = [{"text": f"{number} {row}", "url": "u"} for row in range(4)]
        rows[2]["text"] = "  "
        (tmp_path / files[-1]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = []
    load = datasets.load_dataset

    def fake(path, config=None, *, split, streaming=False, **more):
        asked.append((path, config, split, streaming))
        return load("json", data_files={split: files}, split=split, streaming=streaming)

    monkeypatch.setattr(datasets, "load_dataset", fake)
    monkeypatch.setattr(hub, "why_not_tried", lambda dataset: None)
    return asked


def test_hub_texts_each_file_is_a_shard(streamed):
    texts = HubTexts("allenai/c4", "en", splits=("train", "validation"))
    assert texts.splits == ("train", "validation")
    assert streamed == []
    shards = texts.shards("train")
    assert [str(shard) for shard in shards] == [f"train-0000{n}-of-00003" for n in range(3)]
    assert [list(texts.documents(shard)) for shard in shards] == [
        [f"{n} 0", f"{n} 1", f"{n} 3"] for n in range(3)
    ]
    assert list(texts.documents(shards[1])) == ["1 0", "1 1", "1 3"]
    # Opened once for each split.
    assert streamed == [("hf://datasets/allenai/c4", "en", "train", True)]


def test_hub_texts_missing_column_is_refused(streamed):
    texts = HubTexts("allenai/c4", "en", splits=("train",), column="body")
    with pytest.raises(UserError, match="no text in the column 'body'; the columns are: text, url"):
        list(texts.documents(texts.shards("train")[0]))


def test_hub_texts_broken_stream_error_message(monkeypatch):
    def rows():
        yield {"text": "a"}
        raise OSError("connection reset")

    with pytest.raises(UserError, match="^here: the stream broke off: connection reset"):
        list(hub.streamed("here", rows()))


def test_hub_texts_offline_error_message(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AbsentData, match=r"allenai/c4 \(en, train\) cannot be streamed: not tried"):
        HubTexts("allenai/c4", "en", splits=("train",)).shards("train")
