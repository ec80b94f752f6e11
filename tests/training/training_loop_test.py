"""The loop over steps begins at the position that the run's manifest gives."""

import math
import os
import signal
import time
import types

import pytest

from t0.config.plain_data import read_plain
from t0.errors import UserError
from t0.feeding import manifest
from t0.feeding.manifest import Start
from t0.feeding.training_data import open_training_data
from t0.training.loop import (
    NO_POSITION,
    Best,
    BestEvaluation,
    LoopOptions,
    Stepping,
    TimeLimit,
    watched_signals,
)
from t0.training.model_directory import Keep
from t0.training.recorder import RunSize
from t0.training.resume_file import JudgeState
from tests.feeding import tiny_caches
from tests.training import tiny_training as tiny

ROWS = 4


@pytest.fixture
def stepping(tmp_path):
    """Makes the loop of one process; `wait` is called while it waits for the others."""

    def make(data=None, wait=lambda: None, prints=True, **options):
        engine = types.SimpleNamespace(
            checkpoint=lambda step: f"step {step}",
            max_over_processes=lambda number: wait(),
            size=RunSize(ROWS, tiny_caches.LENGTHS),
            keep=Keep(),
        )
        return Stepping(
            engine,
            data or open_training_data(tiny_caches.data_spec(tmp_path / "cache")),
            LoopOptions(100, seed=3, **options),
            model_dir=str(tmp_path),
            save_every=None,
            prints=prints,
        )

    return make


def resume(stepping, step, record=None):
    stepping.resume(step, record, TimeLimit(None))


def test_stepping_says_that_a_checkpoint_has_no_position(stepping, tmp_path, capsys):
    resume(stepping(tiny.made_up_data()), 7)
    assert capsys.readouterr().out == f"{NO_POSITION}\n"
    resume(stepping(), 7)
    assert capsys.readouterr().out == f"{NO_POSITION}\n"
    assert manifest.read(str(tmp_path)).start == Start(step=7)
    resume(stepping(), 9)  # now the manifest says where it begins
    assert capsys.readouterr().out == ""


def test_stepping_only_one_process_reads_the_caches_for_a_new_manifest(
    stepping, tmp_path, monkeypatch
):
    build, calls = manifest.build, []
    monkeypatch.setattr(manifest, "build", lambda *given: calls.append(given) or build(*given))
    stepping(prints=False).begin(0)
    assert calls == [] and manifest.read(str(tmp_path)) is None
    stepping().begin(0)
    assert len(calls) == 1 and manifest.read(str(tmp_path)).start == Start()


def test_stepping_all_processes_read_the_manifest_before_it_changes(stepping, tmp_path):
    stepping().begin(0)
    before = (tmp_path / manifest.MANIFEST).read_text()
    waits = []

    def wait():
        waits.append((tmp_path / manifest.MANIFEST).read_text())
        return 0

    changed = open_training_data(tiny_caches.data_spec(tmp_path / "cache", window_rows=50))
    record = {"began": 0, "seed": 3, "position": changed.locate(10, ROWS)}
    resume(stepping(changed, wait, allow_config_change=True), 10, record)
    assert waits == [before]
    assert (tmp_path / manifest.MANIFEST).read_text() != before


def seen(best, *values, name="validation_loss"):
    return [best.update(10 * n, {name: value}) for n, value in enumerate(values, start=1)]


def test_early_stopping_prefers_low_loss_and_high_accuracy():
    best = BestEvaluation("validation_loss")
    assert seen(best, 3.0, 2.0, 2.5, 2.0, 1.9) == [True, True, False, False, True]
    assert best.best == Best(1.9, 50)
    best = BestEvaluation("eval/accuracy")
    assert seen(best, 3.0, 2.0, 4.0, name="eval/accuracy") == [True, False, True]
    best = BestEvaluation("eval/accuracy", smaller_is_better=True)
    assert seen(best, 3.0, 2.0, 4.0, name="eval/accuracy") == [True, True, False]
    best = BestEvaluation("validation_loss", smaller_is_better=False)
    assert seen(best, 3.0, 2.0) == [True, False]


@pytest.mark.parametrize(
    ("metric", "smaller"),
    [
        ("validation_loss_per_token", True),
        ("validation_perplexity", True),
        ("eval/some_task/edit_distance", True),
        ("validation_token_accuracy", False),
        ("eval/rouge1", False),
        ("eval/bleu", False),
    ],
)
def test_early_stopping_direction_follows_metric_name(metric, smaller):
    best = BestEvaluation(metric)
    assert [best.update(n, {metric: value}) for n, value in enumerate((2.0, 1.0))] == [
        True,
        smaller,
    ]


def test_early_stopping_patience_counts_evaluations_in_a_row():
    best = BestEvaluation("validation_loss", patience=2)
    found = [seen(best, value) and best.exhausted for value in (3.0, 3.1, 2.9, 3.0, math.nan)]
    assert found == [False, False, False, False, True]
    assert "no better than 2.9 at step 10 for 2 evaluations" in best.verdict
    assert best.note["stopped_early"] is True
    assert not BestEvaluation("validation_loss").exhausted


def test_early_stopping_ignores_evaluations_of_other_metrics():
    best = BestEvaluation("eval/accuracy", patience=1)
    assert seen(best, 1.0, 2.0) == [False, False]
    assert not best.exhausted
    assert best.state is None


def test_early_stopping_patience_continues_after_resume():
    def resumed(state, metric="validation_loss", patience=2, mixture=None):
        best = BestEvaluation(metric, patience=patience, mixture=mixture)
        best.restore(state)
        return best

    best = BestEvaluation("validation_loss", patience=2)
    seen(best, 3.0, 3.5)
    again = resumed(best.state)
    assert again.best == Best(3.0, 10)
    assert seen(again, 3.2) == [False]
    assert again.exhausted
    # A larger patience goes on; another metric begins anew.
    assert not resumed(again.state, patience=3).exhausted
    assert resumed(again.state, "eval/accuracy", patience=1).best is None
    other = resumed(again.state, mixture="another")
    assert other.best is None and other.update(600, {"validation_loss": 9.0})
    assert resumed(other.state, mixture="another").best == other.best
    assert read_plain(other.state, JudgeState, "judge").mixture == "another"


def test_early_stopping_recognises_an_unknown_metric():
    best = BestEvaluation("validation_los")
    assert best.is_unknown_to({"validation_loss": 1.0})
    assert not best.is_unknown_to({"eval/accuracy": 1.0})
    assert not best.is_unknown_to({"validation_los": 1.0})
    assert not BestEvaluation().is_unknown_to({"validation_loss": 1.0})


def test_time_limit_counts_all_starts(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limit = TimeLimit(0.5)
    now[0] += 1700
    assert limit.seconds == 1700
    assert not limit.over()
    assert not limit.over(next_seconds=66)
    assert limit.over(next_seconds=68)
    later = TimeLimit(0.5)
    later.before_seconds = limit.seconds
    now[0] += 100
    assert later.over()
    assert later.seconds == 1800
    assert not TimeLimit(None).over(1e9)
    with pytest.raises(UserError, match="--max_hours is 0; expected a number above 0"):
        TimeLimit(0)
    with pytest.raises(UserError, match="--max_hours is nan"):
        TimeLimit(float("nan"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_noted_and_its_handler_restored(number):
    before = signal.getsignal(number)
    with watched_signals() as came:
        assert not came()
        os.kill(os.getpid(), number)
        assert came() == number
    assert signal.getsignal(number) == before


def test_ctrl_c_twice_ends_immediately():
    with watched_signals(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_repeated_within_seconds_counts_once(capsys):
    with watched_signals(prints=False, repeated_seconds=60.0) as came:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert came() == signal.SIGINT
    assert not capsys.readouterr().out
