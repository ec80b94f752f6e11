import csv
import gzip
import json
import pickle

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from t0.errors import UserError
from t0.sources import available_splits, hidden_label, open_split

RTE = [
    {"premise": f'a "{i}",\n{i}', "hypothesis": "b\tc", "idx": i, "label": i % 2}
    for i in range(700)
]
ARC = [
    {
        "id": f"q{i}",
        "question": "2 + 2?",
        "choices": {"text": ["3", "4"], "label": ["A", "B"]},
        "answerKey": "B",
    }
    for i in range(3)
]
NAMES = ["entailment", "not_entailment"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def text_file(path, rows, kind):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        if kind == "json":
            file.writelines(json.dumps(row) + "\n" for row in rows)
            return
        cells = [
            {k: json.dumps(v) if isinstance(v, dict) else v for k, v in r.items()} for r in rows
        ]
        delimiter = "\t" if kind == "tsv" else ","
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells)


def write(folder, form, rows):
    """Writes the split `validation` in one of the forms."""
    folder.mkdir(parents=True)
    path = folder / f"validation.{form}"
    if form.startswith(("json", "csv", "tsv")):
        text_file(path, rows, form.partition(".")[0].removesuffix("l"))
    elif form == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif form == "arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    elif form == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(folder / "validation", num_shards=2)
    else:
        datasets.DatasetDict(validation=datasets.Dataset.from_list(rows)).save_to_disk(folder)


FORMS = [
    "jsonl",
    "jsonl.gz",
    "json",
    "json.gz",
    "csv",
    "csv.gz",
    "tsv",
    "tsv.gz",
    "parquet",
    "arrow",
    "saved",
    "saved_dict",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dataset", "subset", "rows"),
    [("super_glue", "rte", RTE), ("ai2_arc", "ARC-Easy", ARC), ("Zaid/own", None, RTE)],
)
def test_open_split_every_file_format_gives_the_same_rows(data, form, dataset, subset, rows):
    write(data / dataset / (subset or "default"), form, rows)
    split = open_split(dataset, subset, "validation")
    assert list(split.rows()) == rows
    assert split.num_rows == len(rows)
    assert split.columns == tuple(rows[0])
    assert [list(row) for row in split.rows(0, 1)] == [list(rows[0])]
    for start, stop in [(0, 0), (1, 3), (2, None), (600, 900), (900, None), (3, 1)]:
        assert list(split.rows(start, stop)) == rows[start:stop]
    for start, stop in [(-2, None), (0, -1), (-5, -2)]:
        assert list(split.rows(start, stop)) == rows[start:stop]
    assert list(pickle.loads(pickle.dumps(split)).rows(1, 3)) == rows[1:3]
    assert available_splits(dataset, subset) == {"validation": split.where}
    assert split.where.startswith(str(data))


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "arrow", "saved"])
def test_open_split_label_names_become_integers(data, form):
    write(data / "super_glue" / "rte", form, [row | {"label": NAMES[row["label"]]} for row in RTE])
    assert list(open_split("super_glue", "rte", "validation").rows()) == RTE


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow"])
def test_open_split_unknown_label_names_file_row_and_column(data, form):
    write(data / "super_glue" / "rte", form, [RTE[0] | {"label": "entailment"}] * 3)
    write(data / "super_glue" / "cb", form, [RTE[0] | {"label": n} for n in ("neutral", "maybe")])
    with pytest.raises(UserError, match=r"row 1 .*column 'label': 'maybe'.*2=neutral") as error:
        list(open_split("super_glue", "cb", "validation").rows())
    assert str(data / "super_glue/cb/validation") in str(error.value)


def test_open_split_own_data_labels_stay_unchanged(data):
    write(data / "mine" / "default", "jsonl", [{"label": "maybe"}])
    assert list(open_split("mine", None, "validation").rows()) == [{"label": "maybe"}]


def test_open_split_list_of_records_becomes_dict_of_lists(data):
    records = [{"text": "3", "label": "A"}, {"text": "4", "label": "B"}]
    write(data / "ai2_arc" / "ARC-Easy", "parquet", [row | {"choices": records} for row in ARC])
    assert list(open_split("ai2_arc", "ARC-Easy", "validation").rows()) == ARC


@pytest.mark.parametrize("form", ["jsonl", "csv", "saved"])
def test_open_split_glue_rte_stands_in_for_super_glue_rte(data, form):
    other = {"premise": "sentence1", "hypothesis": "sentence2"}
    rows = [{other.get(k, k): v for k, v in row.items()} for row in RTE]
    write(data / "glue" / "rte", form, rows)
    split = open_split("super_glue", "rte", "validation")
    assert list(split.rows()) == RTE
    assert split.columns == tuple(RTE[0])
    assert available_splits("super_glue", "rte") == {"validation": split.where}


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_open_split_new_trec_labels_become_old_ones(data, form):
    write(data / "trec" / "default", form, [{"text": "q", "coarse_label": 2, "fine_label": 26}])
    assert list(open_split("trec", None, "validation").rows()) == [
        {"label-coarse": 0, "label-fine": 0, "text": "q"}
    ]


def test_open_split_default_subset_is_no_subset(data):
    write(data / "mine" / "default", "jsonl", RTE)
    assert open_split("mine", "default", "validation").num_rows == 700
    assert list(available_splits("mine", "default")) == ["validation"]


def test_open_split_without_subset_needs_no_default_folder(data):
    write(data / "mine", "csv", [{"a": 1}])
    assert list(open_split("mine", None, "validation").rows()) == [{"a": 1}]


def test_open_split_first_data_folder_wins(data, monkeypatch):
    for name, value in (("one", 1), ("two", 2)):
        write(data / name / "mine", "jsonl", [{"a": value}])
    monkeypatch.setenv("T0_DATA_DIR", f"{data / 'two'}:{data / 'one'}")
    assert list(open_split("mine", None, "validation").rows()) == [{"a": 2}]


def test_open_split_absent_rows_error_names_places_and_remedy(data):
    write(data / "super_glue" / "cb", "jsonl", RTE)
    with pytest.raises(UserError) as error:
        open_split("super_glue", "cb", "test")
    told = str(error.value)
    for part in (
        "'super_glue'",
        "'cb'",
        "'test'",
        str(data / "super_glue/cb"),
        "HF_HUB_OFFLINE",
        "other splits here: validation",
        str(data / "super_glue/cb/test.jsonl"),
        "--data_dir",
        "T0_DATA_DIR",
    ):
        assert part in told


def test_open_split_absent_rows_without_a_data_folder(data, monkeypatch):
    monkeypatch.delenv("T0_DATA_DIR")
    with pytest.raises(UserError, match="neither --data_dir nor T0_DATA_DIR"):
        open_split("trec", None, "test")
    assert available_splits("trec") == {}


def test_open_split_saved_dataset_missing_shard_is_refused(data):
    write(data / "mine", "saved", RTE)
    next((data / "mine/validation").glob("*00001-of-00002.arrow")).unlink()
    with pytest.raises(UserError, match="00001-of-00002"):
        open_split("mine", None, "validation")


@pytest.mark.parametrize(
    ("values", "hidden"),
    [([-1, 0, 1], []), ([-1, -1, -1], [0, 1, 2]), ([-1, None, -1], [0, 1, 2]), ([0, None], [1])],
)
def test_hidden_label_minus_one_in_own_data_if_no_other_label(
    tmp_path, monkeypatch, capsys, values, hidden
):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(f"{json.dumps({'label': v})}\n" for v in values))
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    rows = [*open_split("mine", None, "train").rows()]
    assert [i for i, row in enumerate(rows) if hidden_label("mine", row)] == hidden
    told = capsys.readouterr().err
    assert ("-1 in the column 'label' is a class" in told) == (values == [-1, 0, 1])
    assert ("-1 in the column 'label' hides the label" in told) == (values.count(-1) > 1)


def test_hidden_label_minus_one_in_t0_datasets(tmp_path, monkeypatch):
    folder = tmp_path / "glue" / "mrpc"
    folder.mkdir(parents=True)
    rows = [{"sentence1": "a", "sentence2": "b", "label": v, "idx": 0} for v in (-1, 0)]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
    found = [hidden_label("glue", row) for row in open_split("glue", "mrpc", "train").rows()]
    assert found == [True, False]
