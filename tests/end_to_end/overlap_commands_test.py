"""`t0 overlap` over real caches, then `t0 report` with what it found; interrupts."""

import json

import pytest

TASKS = ("--eval=weather_eval", "--min_words=2")


@pytest.fixture
def overlap(server, world, tmp_path):
    def run(*words, **options):
        output = f"--output={tmp_path / 'overlap'}"
        return server.run("overlap", *words, *TASKS, output, program="t0", **options)

    return run


def test_data_overlap_of_cache_equals_that_of_rendered_tasks(cached, overlap, world, tmp_path):
    counts = {}
    for name, train in {"cached": world.cache, "rendered": "weather_train"}.items():
        done = overlap(f"--train={train}")
        assert done.status == 0, done.err
        facts = json.loads((tmp_path / "overlap" / "overlap.json").read_text())
        counts[name] = {d: found["overlapping"] for d, found in facts["datasets"].items()}
        assert facts["run"]["train_texts"] > 0
    assert counts["cached"] == counts["rendered"]


def test_data_overlap_of_unfinished_cache_is_refused(cached, overlap, world, tmp_path):
    task = next(path for path in sorted(world.cache.iterdir()) if path.is_dir())
    copy = tmp_path / "cache" / task.name
    copy.mkdir(parents=True)
    for path in task.iterdir():
        if path.name != "COMPLETED":
            (copy / path.name).write_bytes(path.read_bytes())
    done = overlap(f"--train={tmp_path / 'cache'}")
    assert (done.status, done.out) == (2, "")
    assert "is not a finished cache" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "overlap").exists()
