"""The examples of a step are found again from the manifest."""

import itertools
import json
import sys

import numpy as np
import pytest

from t0.cli.main import main
from t0.errors import UserError
from t0.feeding import batch_examples, manifest
from t0.feeding.manifest import Start
from t0.feeding.training_data import open_training_data
from t0.files import paths
from tests.feeding import tiny_caches

ROWS, STEPS, FIRST = 4, 90, 5


@pytest.fixture
def run(tmp_path):
    """A model directory after `STEPS` steps from step `FIRST` on, and its batches."""
    spec = tiny_caches.data_spec(tmp_path / "cache", ends_in_eos=("targets",))
    data = open_training_data(spec)
    batches = [batch for batch, _ in itertools.islice(data.batches(ROWS), STEPS)]
    recorded = manifest.build(data, ROWS, Start(step=FIRST))
    manifest.publish(str(tmp_path), recorded)
    manifest.save_windows(str(tmp_path), recorded, data)
    return tmp_path, batches


def test_seen_examples_are_those_of_the_batch(run):
    folder, batches = run
    opened = batch_examples.open_run(str(folder))
    for step in (1, 2, 50, STEPS):
        rows = [[] for _ in range(ROWS)]
        for example in opened.examples(FIRST + step):
            rows[example.row].append(example)
            assert example.ids["inputs"][0] == example.record + 2
        for row, members in enumerate(rows):
            for name in tiny_caches.LENGTHS:
                ids = np.concatenate([example.ids[name] for example in members])
                there = batches[step - 1][name][row]
                cut = [x for x in members if x.ids[name].size == there.size]
                whole = ids.size < there.size or name == "inputs" or cut
                assert (ids == there[: ids.size])[: None if whole else -1].all()
                assert not there[ids.size :].any()
    for step in (0, FIRST):
        with pytest.raises(UserError, match=f"began after step {FIRST}, so it has no step {step}."):
            list(opened.examples(step))


def test_seen_counts_are_the_sums_over_steps(run):
    folder, _ = run
    opened = batch_examples.open_run(str(folder))
    uses = {name: np.zeros(count, int) for name, count in tiny_caches.COUNTS.items()}
    for step in range(FIRST + 1, FIRST + 41):
        for example in opened.examples(step):
            uses[example.task.name][example.record] += 1
    counted = opened.count_uses(FIRST + 40)
    assert {name: counts.tolist() for name, counts in counted.items()} == {
        name: counts.tolist() for name, counts in uses.items()
    }


def test_seen_find_prints_all_steps_of_a_text(run):
    folder, _ = run
    opened = batch_examples.open_run(str(folder))
    last = FIRST + 80
    wanted = [
        (step, example.row)
        for step in range(FIRST + 1, last + 1)
        for example in opened.examples(step)
        if (example.task.name, example.record) == ("toy_b", 7)
    ]
    # The "vocabulary" decodes the first id of an example to its text in the cache.
    decode = lambda ids: f"toy_b {ids[0] - 2}."  # noqa: E731
    found = [(x.step, x.row) for x in opened.find("toy_b  7.", last, decode)]
    assert found == wanted
    assert len(found) > 2
    assert list(opened.find("no such text", last, decode)) == []
    # The vocabulary has no full stop, and the text has a wide one.
    decode = lambda ids: f"toy_b {ids[0] - 2} \u2047 "  # noqa: E731
    found = [(x.step, x.row) for x in opened.find("toy_b 7\uff0e", last, decode)]
    assert found == wanted


def test_seen_command_prints_examples_without_source(run, capsys):
    folder, _ = run
    assert main(["seen", str(folder), "--step", "7", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert '"task": "toy_' in lines[0] and '"dataset"' not in lines[0]
    assert main(["seen", str(folder), "--step", "7", "--count"]) == 0
    assert capsys.readouterr().out.startswith("task: toy_a  uses: ")
    assert main(["seen", str(folder), "--step", "7", "--count", "--task", "toy_b"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == tiny_caches.COUNTS["toy_b"]


def test_seen_command_notes_a_step_after_the_last_checkpoint(run, capsys):
    folder, _ = run
    for ending in ("index", "data-00000-of-00001"):
        (folder / f"model.ckpt-9.{ending}").touch()
    assert main(["seen", str(folder), "--step", "9"]) == 0
    within = capsys.readouterr()
    assert within.out.startswith("step: 9 ") and within.err == ""
    assert main(["seen", str(folder), "--step", "12", "--json"]) == 0
    after = capsys.readouterr()
    assert json.loads(after.out.splitlines()[0])["step"] == 12
    assert after.err == (
        "note: the last checkpoint is of step 9; steps 10 to 12 are those that the run would take "
        "next\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "5"], "began after step 5, so it has no step 5. Choose a later step"),
        ([], "has no checkpoint to tell the last step: add --step N"),
        (["--step", "7", "--task", "toy_a"], "--task chooses the task of --count"),
        (["--step", "7", "--count", "--task", "toy_c"], "toy_c"),
        (["--step", "7", "--find", " "], "--find is empty"),
    ],
)
def test_seen_command_mistakes(run, capsys, words, message):
    folder, _ = run
    with pytest.raises(SystemExit):
        main(["seen", str(folder), *words])
    assert message in capsys.readouterr().err


def test_seen_refuses_changed_caches_and_unknown_runs(run, tmp_path):
    folder, _ = run
    with pytest.raises(UserError, match="has no data_manifest.json"):
        batch_examples.open_run(str(folder / "cache"))
    shard = folder / "cache" / "toy_a" / "train.tfrecord-00002-of-00003"
    shard.write_bytes((folder / "cache" / "toy_a" / "train.tfrecord-00001-of-00003").read_bytes())
    with pytest.raises(UserError, match="shard train.tfrecord-00002-of-00003 of task toy_a has ch"):
        batch_examples.open_run(str(folder))


def test_seen_contacts_no_bucket_that_only_the_manifest_names(run, monkeypatch, capsys):
    folder, _ = run
    path = folder / manifest.MANIFEST
    path.write_text(path.read_text().replace(str(folder / "cache"), "gs://other/cache"))
    contacted = []
    monkeypatch.setattr(paths, "converted", contacted.append)
    monkeypatch.setattr(sys, "argv", ["t0", "seen", str(folder)])
    with pytest.raises(SystemExit):
        main(["seen", str(folder), "--step", "7"])
    error = capsys.readouterr().err
    assert f"{path} names 'gs://other/cache/" in error and "add --bucket=gs://other" in error
    assert contacted == []
    monkeypatch.setattr(sys, "argv", ["t0", "seen", str(folder), "--bucket=gs://other"])
    with pytest.raises(TypeError):  # `contacted.append` returns no context manager
        main(["seen", str(folder), "--step", "7", "--bucket=gs://other"])
    assert contacted
