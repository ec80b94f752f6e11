"""Real rows of T0's datasets: the copies beside the checkout, or else the samples of the tests."""

import gzip
import json

import pytest

from t0.sources import available_splits, features, hidden_label, open_split, split_sizes
from tests.helpers.real_rows import COPIES, ROWS, SAMPLES

FILES = sorted(ROWS.glob("*/*/*.jsonl.gz"))
HIDDEN = {("piqa", "test"), ("winogrande", "test"), ("common_gen", "test"), ("super_glue", "test")}


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setenv("T0_DATA_DIR", str(ROWS))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_real_rows_every_split_opens_with_its_columns(data):
    assert len(FILES) >= (60 if ROWS == COPIES else 40)
    for path in FILES:
        dataset, subset, split = *path.parts[-3:-1], path.name.partition(".")[0]
        with gzip.open(path) as file:
            raw = [json.loads(line) for line in file]
        rows = open_split(dataset, subset, split)
        assert rows.num_rows == len(raw) <= split_sizes(dataset, subset)[split], path
        assert rows.columns == tuple(features(dataset, subset)), path
        assert available_splits(dataset, subset)[split] == str(path) == rows.where
        assert list(rows.rows(0, 300)) == raw[:300], path
        assert list(rows.rows(len(raw) - 2)) == raw[-2:], path


def test_hidden_label_only_in_competition_test_splits(data):
    for path in FILES:
        dataset, subset, split = *path.parts[-3:-1], path.name.partition(".")[0]
        hidden = {
            hidden_label(dataset, row) for row in open_split(dataset, subset, split).rows(0, 300)
        }
        withheld = (dataset, split) in HIDDEN and subset != "axg"
        assert hidden == {withheld}, path


def test_sample_rows_have_a_source_and_a_license():
    lines = (SAMPLES / "SOURCES.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "/" in line]
    told = {cells[0]: cells for cells in table if len(cells) == 4}
    files = sorted(SAMPLES.glob("*/*/*.jsonl.gz"))
    assert {f"{path.parts[-3]}/{path.parts[-2]}" for path in files} == told.keys()
    assert all(source and licence for _, _, source, licence in told.values())
    assert sum(path.stat().st_size for path in files) < 1_500_000
    for path in files:
        with gzip.open(path) as file:
            assert 0 < len(file.readlines()) <= 20, path
