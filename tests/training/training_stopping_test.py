"""When a run stops of itself: patience for a better evaluation, hours of wall clock, a signal."""

import math
import os
import signal

import pytest

from t0.config.specification import read_plain
from t0.errors import UserError
from t0.training import stopping
from t0.training.resume_file import JudgeState
from t0.training.stopping import Best, BestEvaluation, TimeLimit, watched_signals


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


def test_early_stopping_by_unknown_metric_suggests_a_name():
    best = BestEvaluation("validation_los")
    seen(best, 1.0)
    assert not best.knows_metric
    text = str(best.unknown_metric())
    assert text.startswith("unknown metric 'validation_los'. Did you mean 'validation_loss'?")
    assert BestEvaluation().knows_metric


def test_time_limit_counts_all_starts(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
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
    with pytest.raises(UserError, match="--max_hours is 0; wanted a number above 0"):
        TimeLimit(0)


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
