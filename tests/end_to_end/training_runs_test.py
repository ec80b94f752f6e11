"""What a training run does through the command: it evaluates, stops early, stops by SIGTERM."""

import json
import signal

import pytest

from tests.end_to_end.command_lines import TRAIN


def steps(count, *params):
    cached = "mesh_train_dataset_fn.use_cached = True"
    return [*TRAIN, *(f"--gin_param={p}" for p in (f"run.train_steps = {count}", cached, *params))]


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_task_metrics_are_decoded_and_ranked_in_training(command, cached, tmp_path):
    done = command(
        f"--model_dir={tmp_path}",
        *steps(
            8,
            "train_loop.validate_every_steps = 4",
            "train_loop.validation_batches = 2",
            "train_loop.evaluate_every_steps = 4",
            "task_metrics.examples = 10",
            "keep_checkpoints.best_by = 'eval/accuracy'",
        ),
    )
    assert done.status == 0, done.err
    found = [record for record in records(tmp_path) if "eval/accuracy" in record]
    assert [record["step"] for record in found] == [4, 8]
    names = {"eval/weather_which_word/accuracy", "eval/weather_own_choices/accuracy"}
    assert names | {"validation_loss"} <= found[0].keys()
    # The same folder again, judged by ranking another mixture: another evaluation of the same run.
    done = command(
        f"--model_dir={tmp_path}",
        *steps(
            12,
            "train_loop.evaluate_every_steps = 12",
            "task_metrics.mixture_or_task_name = 'weather_eval'",
            "task_metrics.examples = 9",
        ),
    )
    assert done.status == 0, done.err
    last = next(x for x in records(tmp_path) if x["step"] == 12 and "eval/accuracy" in x)
    ranked = last["eval/weather_which_word_score_eval/accuracy"]
    assert 3 * ranked / 100 == pytest.approx(round(3 * ranked / 100))


@pytest.mark.slow
def test_early_stopping_and_time_limit_exit_with_status_0(command, cached, tmp_path):
    patience = ["train_loop.validate_every_steps = 2", "train_loop.stop_after_evaluations = 1"]
    worse = "learning_rate_schedules.constant_learning_rate.learning_rate = 0.5"
    done = command(f"--model_dir={tmp_path}/a", *steps(40, *patience, worse))
    assert done.status == 0, done.err
    assert "early stop: validation_loss has been no better than" in done.out
    # Long enough to begin on a slow machine.
    done = command(f"--model_dir={tmp_path}/b", "--max_hours=0.006", *steps(1_000_000))
    assert done.status == 0, done.err
    assert "the budget of 0.006 hours is used (--max_hours); saved at step" in done.out
    assert list((tmp_path / "b").glob("model.ckpt-*.index"))
    done = command(f"--model_dir={tmp_path}/c", "--max_hours=-1", *steps(5))
    assert done.status == 2
    assert "--max_hours is -1; expected a number above 0" in done.err


@pytest.mark.slow
def test_sigterm_exits_with_status_75_and_next_start_resumes(command, cached, tmp_path):
    arguments = [f"--model_dir={tmp_path}", "--gin_param=train_loop.log_every_steps = 1"]
    done = command(
        *arguments, *steps(1_000_000), interrupt_at="step 3/", interrupt_by=signal.SIGTERM
    )
    assert done.status == 75, done.err
    saved = int(done.out.split("stopped by SIGTERM at step ")[1].split(" ")[0].replace(",", ""))
    # As if it had been killed before it named its first checkpoint.
    (tmp_path / "checkpoint").unlink()
    done = command(*arguments, *steps(saved + 1))
    assert done.status == 0, done.err
    assert "checkpoint is missing: resuming from" in done.out
    assert f"model.ckpt-{saved}, step {saved:,}" in done.out
    assert f"training from step {saved:,} to {saved + 1:,}" in done.out


@pytest.mark.slow
def test_stream_command_writes_the_batches_of_the_run_and_nothing_else(
    command, cached, server, tmp_path
):
    model, stream = tmp_path / "model", tmp_path / "stream"
    run = [f"--model_dir={model}", *steps(6)]
    done = command(*run, f"--write_stream={stream}")
    assert done.status == 0, done.err
    assert "stream of steps 1 to 6: about" in done.out
    assert not model.exists()
    done = command(*run)
    assert done.status == 0, done.err
    for folder in (model, stream):
        manifest = json.loads((folder / "data_manifest.json").read_text())
        assert manifest["start"] == {"step": 0, "window": 0, "row": 0}
        assert all(manifest["shards"].values())
    seen = [server.run("seen", str(folder), "--step=6", program="t0") for folder in (model, stream)]
    assert seen[0].status == 0, seen[0].err
    assert seen[0].out == seen[1].out
    assert "dataset: weather  split: train  dataset_row: " in seen[0].out
    mistakes = {
        "--stream_steps=6": "--stream_steps=6: expected two steps, such as 1-6",
        "--stream_steps=0-3": "would have steps 0 to 3, and the run begins with step 1",
        "--gin_param=mesh_train_dataset_fn.use_cached = False": "a stream needs a mixture whose",
        "--use_model_api": "--write_stream only writes the batches of a run that gin configures",
    }
    for flag, said in mistakes.items():
        done = command(*run, f"--write_stream={tmp_path}/other", flag)
        assert done.status == 2
        assert said in done.err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_rehearsal_command_with_a_kill_writes_the_hashes_of_an_unbroken_run(
    cached, world, server, tmp_path
):
    run = [
        "--steps=7",
        f"--data={world.cache}",
        "--module_import=t0.seqio_tasks",
        *steps(7),
        "--gin_file=mesh/v3-8.gin",
        "--gin_param=utils.tpu_mesh_shape.tpu_topology = '1x1'",
        "--gin_param=tpu_mesh_shape.model_parallelism = 2",
    ]
    for name, kill in (("whole", []), ("killed", ["--kill_at=6"])):
        hashes = f"--batch_hashes={tmp_path}/{name}"
        done = server.run("rehearse", *run, hashes, *kill, program="t0")
        assert done.status == 0, done.err
        assert "7 steps on 2 virtual cores, fed by the stream's operations" in done.out
    assert "stopped after step 6, restarted from the checkpoint of step 5" in done.out
    text = (tmp_path / "whole").read_text()
    assert len(text.splitlines()) == 14
    assert (tmp_path / "killed").read_text() == text
    for flags, said in (
        (["--kill_at=7"], "--kill_at 7: expected a step from 1 to 6"),
        (["--kill_at=3", "--gin_param=mesh_train_dataset_fn.use_cached = False"], "cached"),
    ):
        done = server.run("rehearse", *run, *flags, program="t0")
        assert done.status == 2
        assert said in done.err
