"""Scores have the numbers of the dataset's rows, also after a row that the prompt drops."""

import json
from pathlib import Path

import numpy as np
import pytest

from t0.errors import UserError
from t0.evaluation import ranking
from t0.evaluation.batching import BatchLimits, BatchShard
from t0.evaluation.merging import merge
from t0.evaluation.rank_metrics import RankClassification
from t0.evaluation.ranked_examples import RankTaskFacts
from t0.evaluation.records import ChoiceRecord, TaskRecords
from tests.evaluation.made_up_ranking import Scorer, evaluate, interrupted_at_write

KEPT = [0, 1, 2, 4, 5, 7]  # rows 3 and 6 of 8 are dropped
IDS = [f"T-{500 + row}" for row in range(8)]


def records(numbers):
    for number in numbers:
        for choice in range(2):
            tokens = np.array([5 + choice, 1], np.int32)
            yield ChoiceRecord(
                number, choice, np.array([number + 3]), tokens, not choice, "ab"[choice]
            )


@pytest.fixture
def rank(tmp_path, monkeypatch):
    def ids_in_rows(dataset, subset, split, count, numbers=None):
        assert (dataset, subset, split) == ("mine", None, "dev")
        ids = IDS if count == len(IDS) else None
        return ids and ([ids[n] for n in numbers] if numbers is not None else ids)

    monkeypatch.setattr("t0.evaluation.ranked_examples.ids_in_rows", ids_in_rows)
    monkeypatch.setattr("t0.evaluation.ranked_examples.documents_in_rows", lambda *_: None)

    def run(*, has_map):
        def open_records(by_row):
            if has_map and by_row:
                return TaskRecords(records(KEPT), len(IDS))
            return TaskRecords(records(range(len(KEPT))))

        rows = ("mine", None, "dev")
        facts = RankTaskFacts("task", "mine", "", [RankClassification(2)], rows)
        ranking.rank(
            [{"step": 7, "checkpoint": "7"}],
            str(tmp_path),
            {"task": (facts, open_records)},
            lengths=None,
            open_model=lambda *_, **__: Scorer(),
            limits=lambda _: BatchLimits(tokens=80, target_tokens=80),
            settings=ranking.RankEvaluationSettings(),
        )
        lines = (tmp_path / "scores" / "task_7.jsonl").read_text().splitlines()
        scores = [(line["idx"], line.get("id")) for line in map(json.loads, lines)]
        return scores, json.loads((tmp_path / "results_7.json").read_text())

    return run


def test_row_numbers_and_ids_skip_dropped_rows(rank, capsys):
    scores, results = rank(has_map=True)
    assert scores == [(row, f"T-{500 + row}") for row in KEPT]
    assert results["run"]["numbered_by"] == results["tasks"]["task"]["numbered_by"] == "row"
    assert "does not record the rows" not in capsys.readouterr().err


def test_row_numbers_of_a_cache_without_map_are_those_of_examples(rank, capsys):
    scores, results = rank(has_map=False)
    assert scores == [(number, None) for number in range(len(KEPT))]
    assert results["tasks"]["task"]["numbered_by"] == "example"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "record the rows" in line]
    assert line.startswith("1 task(s), such as task: the cache does not record the rows")


def make_earlier(folder):
    """Turns what an evaluation wrote into what an earlier version wrote."""
    for path in [*folder.rglob("unfinished_*/*.json"), *folder.rglob("shard_*.json")]:
        content = json.loads(path.read_text())
        for facts in (content.get("made_from"), content.get("run"), content.get("entry")):
            (facts or {}).pop("numbered_by", None)
        for entry in content.get("tasks", {}).values():
            entry.pop("numbered_by", None)
        path.write_text(json.dumps(content))


def test_row_numbers_of_an_evaluation_that_an_earlier_version_began(tmp_path, capsys):
    interrupted_at_write(5, tmp_path)
    assert [*tmp_path.rglob("unfinished_7/first.json")]
    make_earlier(tmp_path)
    evaluate(tmp_path)
    output = capsys.readouterr()
    assert "was begun by an earlier version" in output.out + output.err
    results = json.loads((tmp_path / "results_7.json").read_text())
    assert "numbered_by" not in results["run"]
    assert not any("numbered_by" in entry for entry in results["tasks"].values())
    evaluate(tmp_path)  # the next evaluation is numbered by row
    assert json.loads((tmp_path / "results_7.json").read_text())["run"]["numbered_by"] == "row"


def test_row_numbers_of_shards_are_those_of_the_first_shard(tmp_path):
    evaluate(tmp_path, 0, 2)
    make_earlier(tmp_path)
    evaluate(tmp_path, 1, 2)
    (path, *_) = merge([str(tmp_path)], str(tmp_path / "merged"))
    assert "numbered_by" not in json.loads(Path(path).read_text())["run"]


def test_merge_of_shards_that_number_differently_is_refused(tmp_path):
    for shard in range(2):
        evaluate(tmp_path / str(shard), shard, 2)
    make_earlier(tmp_path / "0")
    assert (tmp_path / "0" / BatchShard(0, 2).folder).is_dir()
    with pytest.raises(UserError, match="from different runs: they differ in numbered_by"):
        merge([str(tmp_path)], str(tmp_path / "merged"))
