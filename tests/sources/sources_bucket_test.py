"""Data folders, own prompts and mixtures in a bucket: the rows that the disk gives."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from t0 import testing
from t0.sources import data_dirs, find_own_datasets, folders, open_split
from t0.sources.mixture_files import find_own_mixtures

ROWS = [{"text": f"row {number}", "label": number % 2} for number in range(1500)]


def packed(kind):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    table, sink = pa.Table.from_pylist(ROWS), pa.BufferOutputStream()
    if kind == "parquet":
        pyarrow.parquet.write_table(table, sink, row_group_size=400)
    elif kind == "arrow":
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    texts = {
        "jsonl": lines,
        "jsonl.gz": gzip.compress(lines),
        "csv": b"text,label\n"
        + b"".join(b"%s,%d\n" % (r["text"].encode(), r["label"]) for r in ROWS),
    }
    return texts.get(kind) or sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet", "arrow"])
def test_bucket_rows_of_every_file_format(bucket, kind):
    bucket.put("b", f"data/weather/train.{kind}", packed(kind))
    folders.set_data_dirs("gs://b/data")
    split = open_split("weather", None, "train")
    assert split.where == f"gs://b/data/weather/train.{kind}"
    assert split.columns == ("text", "label")
    assert split.num_rows == len(ROWS)
    assert list(split.rows(700, 705)) == ROWS[700:705]


def test_bucket_and_local_data_folders_are_one_list(bucket, tmp_path):
    bucket.put("b", "data/weather/train.jsonl", packed("jsonl"))
    folders.set_data_dirs([f"{tmp_path}:gs://b/data/,gs://b/data"])
    assert [str(folder) for folder in data_dirs()] == [str(tmp_path), "gs://b/data"]
    with pytest.raises(folders.UserError, match="data folder 'gs://b/none' .* does not exist"):
        folders.set_data_dirs("gs://b/none")


def test_bucket_own_prompts_and_mixtures(bucket, tmp_path):
    prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "rain ||| snow")}
    testing.write_dataset(tmp_path / "data" / "weather", prompts, {"train": ROWS[:9]})
    (tmp_path / "data" / "mixtures.yaml").write_text("all:\n  tasks: ['weather_.*']\n")
    for path in (tmp_path / "data").rglob("*.*"):
        bucket.put("b", str(path.relative_to(tmp_path)), path.read_bytes())
    folders.set_data_dirs("gs://b/data")
    (found,) = find_own_datasets(data_dirs())
    assert [template.name for template in found.template_file.templates] == ["which"]
    assert str(found.folder) == "gs://b/data/weather"
    assert [mixture.name for mixture in find_own_mixtures(data_dirs())] == ["all"]
