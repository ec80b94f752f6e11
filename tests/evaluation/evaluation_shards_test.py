"""Shards of a rank evaluation, merged, are the files of one, byte for byte."""

import json
import shutil

import pytest

from t0.errors import UserError
from t0.evaluation.batching import BatchShard
from t0.evaluation.merging import merge
from t0.evaluation.ranking import RankEvaluationSettings
from tests.evaluation.made_up_ranking import STEPS, TASKS, contents, evaluate, interrupted_at_write

SHARDS = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return contents(folder), evaluate(folder), contents(folder)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """All shards' folders below one folder, and how many batches each scored."""
    folder = tmp_path_factory.mktemp("scored")
    return folder, [evaluate(folder, shard, SHARDS) for shard in range(SHARDS)]


@pytest.fixture
def shards(scored, tmp_path):
    return shutil.copytree(scored[0], tmp_path / "shards")


def test_merge_of_shards_equals_one_run(whole, scored, shards, tmp_path, capsys):
    (path, *_) = merge([str(shards)], str(tmp_path / "merged"))
    assert path == str(tmp_path / "merged" / "results_7.json")
    found, wanted = contents(tmp_path / "merged"), whole[2]
    assert found[0].keys() == wanted[0].keys()
    assert found == wanted
    assert len(wanted[0]) == len(STEPS) * (1 + len(TASKS))
    # Every batch is scored once, and no shard is idle.
    assert sum(scored[1]) == whole[1]
    assert max(scored[1]) - min(scored[1]) <= len(STEPS)
    # Folders of several machines, merged into one of them.
    for shard in range(SHARDS):
        (tmp_path / "machines" / str(shard)).mkdir(parents=True)
        name = BatchShard(shard, SHARDS).folder
        shutil.move(shards / name, tmp_path / "machines" / str(shard) / name)
    folders = [str(tmp_path / "machines" / str(shard)) for shard in reversed(range(SHARDS))]
    merge(folders, folders[0])
    assert contents(tmp_path / "machines" / "2") == wanted


@pytest.mark.parametrize("write", [1, 2, 4, 6, 9])
def test_resume_of_interrupted_shard(whole, shards, tmp_path, capsys, write):
    folder = shards / BatchShard(1, SHARDS).folder
    shutil.rmtree(folder)
    interrupted_at_write(write, shards, 1, SHARDS)
    with pytest.raises(UserError, match="missing or not finished: 1|-00001-of-00003 is not fin"):
        merge([str(shards)], str(tmp_path / "merged"))
    capsys.readouterr()
    evaluate(shards, 1, SHARDS)
    assert ("were finished before" in capsys.readouterr().out) == (write > 2)
    merge([str(shards)], str(tmp_path / "merged"))
    assert contents(tmp_path / "merged") == whole[2]


def missing(shards):
    shutil.rmtree(shards / BatchShard(1, SHARDS).folder)
    return [
        shards
    ], "step 7: 1 of 3 shards are missing or not finished: 1. Evaluate with --shard_id=1"


def twice(shards):
    shutil.copytree(
        shards / BatchShard(1, SHARDS).folder, shards / "again" / "shard-00001-of-00003"
    )
    return [shards], "shard 1 was found twice: .*again"


def of_another_checkpoint(shards):
    shutil.rmtree(shards / BatchShard(2, SHARDS).folder)
    evaluate(shards, 2, SHARDS, checkpoint_fingerprint="other")
    return [shards], "different runs: they differ in checkpoint_fingerprint"


def of_other_shards(shards):
    evaluate(shards, 0, 2)
    return [shards], "different runs: they differ in number of shards"


def cut(shards):
    path = next((shards / BatchShard(0, SHARDS).folder).rglob("second_7.jsonl"))
    path.write_text(path.read_text()[:-1].rpartition("\n")[0] + "\n")
    return [shards], "task second: .* damaged .*examples were found"


def damaged(shards):
    (shards / BatchShard(0, SHARDS).folder / "shard_7.json").write_text("{}")
    return [shards], "shard_7.json cannot be read or is damaged"


def of_a_task_outside_the_folder(shards):
    for path in shards.rglob("shard_7.json"):
        path.write_text(path.read_text().replace('"second"', '"../../../second"'))
    return [shards], "'../../../second_7.jsonl' cannot be the name of a file"


def nested_deeply(shards):
    path = next((shards / BatchShard(0, SHARDS).folder).rglob("second_7.jsonl"))
    path.write_text("[" * 100_000 + "\n")
    return [shards], "task second: .* damaged .*nested more than"


def none(shards):
    (shards / "empty").mkdir()
    return [shards / "empty"], "no finished shard below .*empty"


def begun_again(shards):
    interrupted_at_write(3, shards, 1, SHARDS, checkpoint_fingerprint="other")
    return [shards], "shard-00001-of-00003 is not finished. Start the shard's command again"


def absent(shards):
    return [shards / "absent"], "absent is not a folder"


@pytest.mark.parametrize(
    "fault",
    [
        missing,
        twice,
        of_another_checkpoint,
        of_other_shards,
        cut,
        damaged,
        of_a_task_outside_the_folder,
        nested_deeply,
        none,
        begun_again,
        absent,
    ],
)
def test_merge_of_shards_that_do_not_match_is_refused(shards, tmp_path, fault):
    folders, message = fault(shards)
    with pytest.raises(UserError, match=message):
        merge(map(str, folders), str(tmp_path / "merged"))
    assert not list((tmp_path / "merged").glob("results_*"))


def test_sharding_invalid_shard_or_unmergeable_metric_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"shard_id is 3; with 3 shard\(s\), expected 0 to 2"):
        RankEvaluationSettings(shard_id=3, num_shards=3)
    with pytest.raises(UserError, match="num_shards is True; expected a whole number"):
        RankEvaluationSettings(num_shards=True)

    def own(targets, scores):
        return {"own": 1.0}

    with pytest.raises(UserError, match="first has a metric .*without --num_shards"):
        evaluate(tmp_path, 0, 2, metric=own)


def test_shard_files_have_only_scores_of_the_shard(shards):
    """So that it cannot be taken for the scores of a whole evaluation."""
    folder = shards / BatchShard(0, SHARDS).folder
    assert not list(folder.rglob("results_*"))
    lines = map(json.loads, (folder / "scores" / "third_7.jsonl").read_text().split("\n")[:-1])
    scores = [[c["log_likelihood"] for c in line["choices"]] for line in lines]
    assert any(None in row for row in scores)
    assert all(any(value is not None for value in row) for row in scores)
