"""The source of prompted rows: what it yields, counts and refuses."""

import itertools

import pytest
import seqio
from moods import ROWS

from t0.errors import UserError
from t0.tasks import PromptedSource


@pytest.fixture
def source(moods):
    def build(name, **changes):
        return PromptedSource(
            **{
                "dataset": "moods",
                "subset": None,
                "template": moods[name],
                "split_mapping": {"train": "train"},
                "num_rows": {"train": len(ROWS)},
                "seed_name": "task",
                **changes,
            }
        )

    return build


def test_records_and_the_rows_left_out(source):
    one = source("open")
    records = list(one.records("train"))
    kept = [row["text"] for row in ROWS if row["label"] == 1]
    # An expression is cut at 2048 letters; a part without text is kept, and has no label.
    cut = kept[0][: 2048 - 3].rpartition(" ")[0] + "..."
    assert [record["targets"] for record in records] == [cut, "<NO LABEL>", *kept[2:]]
    assert records[0]["inputs"] == "What does B\nC say?"
    assert one.report["train"] == {
        "rows": len(ROWS),
        "rendered nothing": len(ROWS) - len(kept),
        "hidden label": 0,
    }
    assert one.labels["train"] == {"no label": 1}


def test_report_counts_anew_in_each_pass(source):
    one = source("closed", hide_labels=True)
    for _ in range(2):
        assert len(list(one.records("train"))) == len(ROWS)
        assert one.report["train"] == {"rows": len(ROWS), "hidden label": 1}
    list(itertools.islice(one.records("train"), 2))
    assert one.report["train"]["rows"] == 2


def test_no_label(source):
    targets = [record["targets"] for record in source("may lack a label").records("train")]
    # The fourth row renders no inputs, and is left out.
    assert targets[:5] == ["sad", "glad", "<NO LABEL>", "sad", "glad"]


def test_hidden_label_hides_the_target_only_where_asked(source):
    assert [r["targets"] for r in source("closed").records("train")][2] == "<b>both</b>"
    hiding = source("closed", hide_labels=True)
    assert [r["targets"] for r in hiding.records("train")][2] == "<NO LABEL>"


def test_split_mapping_and_sizes(moods, source, tmp_path):
    folder = tmp_path / "data" / "moods"
    (folder / "train.jsonl").rename(folder / "dev_r2.jsonl")
    one = source("open", split_mapping={"validation": "dev_r2"}, num_rows={"validation": 7})
    assert one.splits == ("validation",)
    assert one.num_input_examples("validation") == 7
    assert len(list(one.records("validation"))) == 12
    counted = source("open", num_rows=lambda split: {"train": 5}[split])
    assert counted.num_input_examples("train") == 5


def test_unknown_split(source):
    with pytest.raises(UserError, match="no split 'test' here, it has: train"):
        source("open").open("test")


def test_one_shard(source):
    one = source("open")
    assert one.list_shards("train") == ["train"]
    assert not one.supports_arbitrary_sharding
    one.get_dataset("train", shard_info=seqio.ShardInfo(0, 1))
    with pytest.raises(UserError, match="one shard, 2 were asked for"):
        one.get_dataset("train", shard_info=seqio.ShardInfo(0, 2))


def test_absent_data_is_an_error_when_the_dataset_is_asked_for(source):
    one = source("open", dataset="no_such_moods")
    with pytest.raises(UserError, match="no rows for the dataset 'no_such_moods'"):
        one.get_dataset("train")


def test_missing_column(source, tmp_path):
    (tmp_path / "data" / "moods" / "train.jsonl").write_text('{"txt": "x", "label": 0}\n')
    with pytest.raises(UserError) as raised:
        source("closed").get_dataset("train")
    text = str(raised.value)
    for part in ("'closed'", "'text'", "train.jsonl", "its columns: txt, label"):
        assert part in text


def test_making_a_source_opens_and_compiles_nothing(source, moods):
    import dataclasses

    broken = dataclasses.replace(moods["closed"], jinja="{% if %}")
    one = source("closed", template=broken, dataset="no_such_moods")
    with pytest.raises(UserError, match="not valid Jinja"):
        _ = one.compiled.compile()
