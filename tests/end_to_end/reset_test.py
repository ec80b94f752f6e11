"""Several runs in one process: each is what it is in a process of its own."""

import json

import pytest

from tests.end_to_end.command_lines import EVALUATE, TRAIN


def _losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"]) for line in map(json.loads, lines) if "loss" in line]


def _scores(folder):
    scores = folder / "validation_eval" / "scores"
    return {path.name: path.read_text() for path in scores.iterdir()}


@pytest.mark.slow
def test_reset_between_runs_in_one_process(world, cached, command, server, tmp_path):
    tasks = ["--module_import=t0.seqio_tasks", f"--additional_task_cache_dirs={world.cache}"]

    def runs(folder):
        short = "--gin_param=run.train_steps = 4"
        yield [f"--model_dir={folder}/a", *TRAIN, short, "--seed=3", "--fold_xy"]
        master = "--gin_param=get_variable_dtype.master_dtype = 'float32'"
        last = ["--gin_param=run.batch_size = 8", "--gin_param=run.eval_checkpoint_step = 4"]
        yield [f"--model_dir={folder}/a", *EVALUATE, master, *last]
        # Were something left of the first run, this one would have its seed, or its optimizer.
        yield [f"--model_dir={folder}/b", *TRAIN, short]

    together, alone = tmp_path / "together", tmp_path / "alone"
    words = [json.dumps([*tasks, *argv]) for argv in runs(together)]
    done = server.run(*words, program="tests.end_to_end.several_runs:main")
    assert done.status == 0, done.err
    for argv in runs(alone):
        one = command(*argv)
        assert one.status == 0, one.err
    for name in ("a", "b"):
        assert _losses(together / name) == _losses(alone / name)
        for file in ("operative_config.gin", "configuration.json"):
            assert (together / name / file).read_text() == (alone / name / file).read_text()
    assert _losses(together / "a") != _losses(together / "b")
    assert _scores(together / "a") == _scores(alone / "a")
