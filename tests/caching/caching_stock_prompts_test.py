"""Prompted tasks equal what stock SeqIO writes over promptsource's own rendering (real data)."""

import collections
import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import seqio
import tensorflow as tf

from t0.files import tfrecord as records

ROOT = Path(__file__).resolve().parents[2]
TASKS = "super_glue_rte_(should_assume|GPT_3_style)(_score_eval)?"
# The training split is more than one range of rows (`work_plan.MIN_ROWS`).
ROWS = {"train": 600, "validation": 100}


@pytest.fixture
def first_rows(shared_data, tmp_path):
    """A data folder with the first rows of RTE's splits."""
    source, target = (path / "super_glue" / "rte" for path in (shared_data / "data", tmp_path))
    target.mkdir(parents=True)
    for split, count in ROWS.items():
        name = f"{split}.jsonl.gz"
        with gzip.open(source / name, "rb") as lines, gzip.open(target / name, "wb") as kept:
            kept.writelines(itertools.islice(lines, count))
    return tmp_path


def read(folder, split):
    """The records of a split, order aside, and its statistics and features."""
    found = collections.Counter()
    for path in folder.glob(f"{split}.tfrecord-*"):
        with path.open("rb") as file:
            for record in records.unframed(file):
                message = tf.train.Example.FromString(record)
                # Ours names the text that rows share, for confidence intervals.
                message.features.feature.pop("document", None)
                found[message.SerializeToString(deterministic=True)] += 1
    info = json.loads((folder / f"info.{split}.json").read_text())
    info["features"].pop("document", None)
    return found, info["features"], json.loads((folder / f"stats.{split}.json").read_text())


@pytest.mark.slow
def test_prompted_caching_equals_stock_seqio_and_promptsource(
    shared_data, first_rows, cache_here, tmp_path, monkeypatch, clean_registries
):
    from t0.catalogue.entries import catalogue_entries
    from t0.tasks import task_definitions

    for entry in catalogue_entries():
        if entry.task.name in ("super_glue_rte_should_assume", "super_glue_rte_GPT_3_style"):
            for name, arguments in task_definitions(entry.task).items():
                if name not in seqio.TaskRegistry.names():
                    seqio.TaskRegistry.add(name, **arguments)
    data, vocabulary = first_rows, shared_data / "vocab" / "t5.spiece.model"
    stock = ROOT / "benchmarks" / "caching_stock.py"
    words = [f"--data_dir={data}", f"--vocab={vocabulary}", f"--out={tmp_path / 'stock'}"]
    subprocess.run(
        [sys.executable, str(stock), *words, f"--tasks={TASKS}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("T0_DATA_DIR", str(data))
    monkeypatch.setenv("T0_VOCAB", str(vocabulary))
    cache_here(tmp_path / "ours", TASKS, splits=["train", "validation"])
    folders = sorted(path.name for path in (tmp_path / "stock").iterdir())
    assert len(folders) == 4
    for name in folders:
        for split, rows in ROWS.items():
            ours = read(tmp_path / "ours" / name, split)
            assert ours == read(tmp_path / "stock" / name, split)
            choices = 2 if name.endswith("_score_eval") else 1
            assert ours[0].total() == rows * choices
