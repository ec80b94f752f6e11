"""A whole run: what is published, what is refused, what a killed run leaves."""

import errno
import hashlib
import json
import os
import random
import re
import signal
import time

import psutil
import pytest
import seqio

from t0.caching import RecordOptions, cache_files
from t0.errors import UserError
from t0.files import publishing


def records_of(root):
    """Returns `content` without the modules of the process that cached."""
    return {name: data for name, data in content(root).items() if "provenance" not in name}


def content(root):
    """Path under root -> bytes, for everything in it."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_cache_completed_marker_lists_file_checksums(cache_here, tmp_path):
    cache_here(tmp_path, "toy_lines")
    files = content(tmp_path / "toy_lines")
    completed = json.loads(files.pop("COMPLETED"))
    files.pop("provenance.json")
    listed = {k: v for split in completed["splits"].values() for k, v in split["files"].items()}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} == {
        name: entry["sha256"] for name, entry in listed.items()
    }
    assert {name: len(data) for name, data in files.items()} == {
        name: entry["bytes"] for name, entry in listed.items()
    }
    assert completed["splits"]["train"]["examples"] == 112
    assert completed["task"] == "toy_lines"


def test_caching_mixture_and_second_run_does_nothing(cache_here, tmp_path):
    assert {o.split.task for o in cache_here(tmp_path, "toy++_mix")} == {
        "toy_lines",
        "toy_function",
    }
    before = content(tmp_path)
    assert cache_here(tmp_path, "toy++_mix") == []
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("toy_unmade", "toy_unmade: .*missing expected output feature.*: inputs. Its prepro"),
        ("toy_unmade_and_read", "a step after the cache reads the feature 'inputs', but n"),
        ("toy_not_tokenized", "incorrect type for feature 'inputs'.*: Got string, expected int32"),
        ("toy_blank", "the targets of all 112 examples are empty.*--allow_hidden_labels"),
    ],
)
def test_caching_missing_or_invalid_features_are_refused(cache_here, tmp_path, task, message):
    with pytest.raises(UserError, match=message):
        cache_here(tmp_path, task)
    assert not (tmp_path / task).exists()


def test_caching_allows_features_made_after_the_cache(cache_here, tmp_path):
    tasks = ("toy_made_later", "toy_made_later_by_length", "toy_blank_made_later")
    cache_here(tmp_path, *tasks, splits=["validation"])
    allowed = RecordOptions(allow_hidden_labels=True)
    cache_here(tmp_path, "toy_blank", options=allowed, splits=["validation"])
    stats = json.loads((tmp_path / "toy_blank" / "stats.validation.json").read_text())
    assert (stats["examples"], stats["targets_tokens"]) == (9, 0)


def test_caching_overwrite_replaces_old_shards(cache_here, tmp_path):
    cache_here(tmp_path, "toy_function", options=RecordOptions(min_shards=5))
    cache_here(tmp_path, "toy_function", overwrite=True)
    shards_there = [name for name in content(tmp_path) if "tfrecord" in name]
    assert shards_there == ["toy_function/train.tfrecord-00000-of-00001"]


def test_caching_failed_task_is_named_and_others_finish(cache_here, tmp_path, capfd):
    tasks = ("toy_nothing", "toy_fault", "toy_mistake", "toy_no_rows", "toy_function")
    with pytest.raises(UserError) as error:
        cache_here(tmp_path, *tasks)
    message = str(error.value)
    assert "4 of 5 tasks could not be cached" in message
    for split in ("train", "validation"):
        assert (
            f"toy_nothing split '{split}': the data has rows, but none of them gave an example"
            in message
        )
    assert "toy_mistake split 'train': rows.jsonl, line 6: not JSON" in message
    assert "toy_no_rows split 'train': the data of split 'train' has no rows" in message
    assert "toy_fault split 'train': InvalidArgumentError" in message
    assert "Traceback" in capfd.readouterr().err  # toy_fault's: a mistake in code, not in data
    assert [p.name for p in tmp_path.iterdir()] == ["toy_function"]
    assert (tmp_path / "toy_function" / "COMPLETED").exists()


def test_caching_task_with_a_failed_split_is_not_published(cache_here, tmp_path):
    with pytest.raises(UserError, match="toy_half split 'train'"):
        cache_here(tmp_path, "toy_half")
    assert [p.name for p in tmp_path.iterdir()] == []
    cache_here(tmp_path, "toy_half", splits=["validation"])
    assert (tmp_path / "toy_half" / "info.validation.json").exists()


def test_caching_skip_absent_splits_flag(cache_here, tmp_path):
    with pytest.raises(UserError, match="toy_absent: split 'train': .*nowhere"):
        cache_here(tmp_path, "toy_absent", "toy_function")
    assert [p.name for p in tmp_path.iterdir()] == []
    cache_here(tmp_path, "toy_absent", skip_absent_splits=True)
    files = content(tmp_path / "toy_absent")
    assert sorted(files) == [
        "COMPLETED",
        "info.validation.json",
        "provenance.json",
        "stats.validation.json",
        "validation.tfrecord-00000-of-00001",
    ]
    assert "nowhere" in json.loads(files["COMPLETED"])["absent_splits"]["train"]
    assert cache_here(tmp_path, "toy_absent", skip_absent_splits=True) == []


def test_caching_split_without_rows_counts_as_absent(cache_here, tmp_path):
    cache_here(tmp_path, "toy_no_rows", "toy_function", skip_absent_splits=True)
    assert [p.name for p in tmp_path.iterdir()] == ["toy_function"]


def test_caching_negative_num_workers_are_refused(cache_here, tmp_path):
    with pytest.raises(UserError, match="--num_workers=-1: expected a number from 0"):
        cache_here(tmp_path, "toy_lines", workers=-1)


def test_caching_vocabulary_unlike_t5_is_refused(cache_here, clean_registries, toy, tmp_path):
    other = {name: seqio.Feature(seqio.PassThroughVocabulary(9, eos_id=2)) for name in toy.FEATURES}
    steps = [toy.split_line, *toy.TOKENISED]
    seqio.TaskRegistry.add(
        "toy_other", source=toy.LINE_SOURCE, preprocessors=steps, output_features=other
    )
    with pytest.raises(UserError, match="T5 needs 0 and 1"):
        cache_here(tmp_path, "toy_other")
    assert not (tmp_path / "toy_other").exists()


def test_caching_full_disk_error_names_cause_and_split(cache_here, tmp_path, monkeypatch):
    def full(path, stretches):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_files, "copy_frames", full)
    with pytest.raises(UserError, match=r"No space left on device.*toy_many split 'train'"):
        cache_here(tmp_path, "toy_function", "toy_many")
    assert [p.name.partition(".")[0] for p in tmp_path.iterdir()] == ["unfinished-parts"]


def test_caching_ctrl_c_message_names_what_is_kept(cache_here, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as ended:
        patch.setattr(cache_files, "copy_frames", interrupted)
        cache_here(tmp_path, "toy_lines")
    assert "finished tasks and parts are kept, and the same command continues" in str(ended.value)
    assert not (tmp_path / "toy_lines").exists()
    (outcome,) = {o.split.task for o in cache_here(tmp_path, "toy_lines")}
    assert outcome == "toy_lines"


def test_caching_concurrent_run_that_finishes_first_wins(cache_here, tmp_path, monkeypatch):
    out = tmp_path / "both"
    publish = cache_files.publish

    def publish_second(*args, **options):
        monkeypatch.setattr(cache_files, "publish", publish)
        monkeypatch.setattr(publishing, "unfinished_tag", lambda: "incomplete-elsewhere-1-1")
        cache_here(out, "toy_function")
        return publish(*args, **options)

    monkeypatch.setattr(cache_files, "publish", publish_second)
    cache_here(out, "toy_function", options=RecordOptions(min_shards=2))
    assert len([name for name in content(out) if "tfrecord" in name]) == 1
    assert [p.name for p in out.iterdir()] == ["toy_function"]


@pytest.mark.exhaustive
def test_caching_two_processes_with_the_same_output(start_command, cache_here, tmp_path):
    out = tmp_path / "both"
    both = [start_command(out, "--tasks=toy_slow,toy_lines", "--num_workers=0") for _ in range(2)]
    ends = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    cache_here(tmp_path / "alone", "toy_slow", "toy_lines")
    assert records_of(out) == records_of(tmp_path / "alone")
    assert sorted(p.name for p in out.iterdir()) == ["toy_lines", "toy_slow"]


def _ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went between the two questions
        return True


def _kill_and_check(process, out, seconds, *, after_a_part):
    """Kills a run `seconds` after it began to write; what it finished must be whole.

    Args:
      after_a_part: when it has finished one of several shards, rather than when it has begun.
    """
    deadline = time.monotonic() + 120
    # A part from the first shard on may be all of its task, and gone as soon as it is there.
    pattern = "unfinished-parts.*/*-000000000[1-5]-*.part" if after_a_part else "*.incomplete-*"
    known = set(out.glob(pattern)) if after_a_part else set()
    while not set(out.glob(pattern)) - known and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(seconds)
    workers = []
    if process.poll() is None:
        workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for worker in workers:  # they notice, and end; nobody may have collected them yet
        while not _ended(worker):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    for directory in (*out.glob("toy_*"), *out.glob("toy/*")):
        assert ".incomplete-" in directory.name or (directory / "COMPLETED").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kills", [1, 20], ids=["once", "twenty_times"])
def test_caching_resume_after_a_killed_run(
    start_command, run_command, command_environment, cache_here, tmp_path, kills
):
    out, rng = tmp_path / "killed", random.Random(kills)
    tasks = ("toy_slow", "toy_function", "toy:shapes", "toy_files")
    command_environment["TOY_SECONDS_A_LINE"] = "0.1"
    kept = []
    for turn in range(kills):
        workers = 2 - turn % 3
        process = start_command(out, f"--tasks={','.join(tasks)}", f"--num_workers={workers}")
        # Now soon, when a shard is done; now later, or before there is any.
        soon = turn % 2 == 0
        _kill_and_check(process, out, rng.uniform(0, 0.2 if soon else 4), after_a_part=soon)
        kept.append(len(list(out.glob("unfinished-parts.*/*.part"))))
    assert any(kept)
    command_environment["TOY_SECONDS_A_LINE"] = "0"
    status, shown, errors = run_command(out, f"--tasks={','.join(tasks)}", "--num_workers=2")
    assert (status, errors) == (0, "")
    assert re.search(r"^caching: .* rows.*, \d/\d tasks", shown, re.MULTILINE)
    cache_here(tmp_path / "alone", *tasks)
    assert content(out) == content(tmp_path / "alone")
    assert sorted(p.name for p in out.iterdir()) == ["toy", "toy_files", "toy_function", "toy_slow"]


def test_caching_ignore_other_caches_flag(cache_here, tmp_path):
    other, out = tmp_path / "other", tmp_path / "out"
    known = {"tasks_additional_cache_dirs": [str(other)]}
    assert cache_here(other, "toy_function")
    assert not cache_here(out, "toy_function", **known)
    assert not cache_here(out, "toy_function", overwrite=True, **known)
    assert cache_here(out, "toy_function", ignore_other_caches=True, **known)
    # A run that was killed and started again with the same words goes on, it does not start over.
    assert not cache_here(out, "toy_function", ignore_other_caches=True, **known)
    assert content(out) == content(other)


@pytest.mark.parametrize("split", ["../toy_function/train", "../../elsewhere"])
def test_caching_split_path_outside_the_task_is_refused(cache_here, toy, tmp_path, split):
    import seqio

    out = tmp_path / "out"
    cache_here(out, "toy_function")
    before = content(tmp_path)
    task = seqio.TaskRegistry.get("toy_function")
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: task.source.get_dataset("train", shuffle=False),
        splits=[split],
    )
    seqio.TaskRegistry.add(
        "toy_outside",
        source=source,
        preprocessors=task.preprocessors,
        output_features=task.output_features,
    )
    try:
        with pytest.raises(UserError, match=r"toy_outside split .* cannot be the name of a file"):
            cache_here(out, "toy_outside")
    finally:
        seqio.TaskRegistry.remove("toy_outside")
    assert content(tmp_path) == before
