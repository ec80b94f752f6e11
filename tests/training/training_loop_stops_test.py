"""Why a run stops, what it has then saved, and how it continues: with an engine without a model."""

import json
import math
import os
import shlex
import signal

import pytest

from t0.cli import eval as eval_verb
from t0.cli.verb_parser import VerbParser
from t0.config import flags
from t0.config.specification import DataSpec
from t0.errors import UserError
from t0.feeding.mixing import TaskShare
from t0.training import loop
from t0.training.loop import LoopOptions, Stepping, TimeLimit
from t0.training.losses import PARTS
from t0.training.model_directory import Keep
from t0.training.recorder import RunSize, validation_fields
from tests.training import tiny_training as tiny

STEP = {
    **dict.fromkeys(PARTS, 1.0),
    "loss": 2.0,
    "learning_rate": 0.1,
    "gradient_square": 4.0,
    "weight_square": 9.0,
}


def held_out(loss):
    return validation_fields({**dict.fromkeys(PARTS, 1.0), "loss": loss}, 1, 48)


class MadeUpEngine:
    """Counts steps, and keeps checkpoints in memory.

    Args:
      values: step -> numbers of this step that differ from those of other steps.
      evaluations: step -> what is measured then.
      after: called with the step after each step.
    """

    size = RunSize(8, tiny.LENGTHS, parameters=60)

    def __init__(self, values=None, evaluations=None, after=lambda step: None, keep=None):
        self._values, self._evaluations, self._after = values or {}, evaluations or {}, after
        self.keep = keep or Keep()
        self.infinite, self.records, self.best, self.evaluated = [], {}, {}, []

    def take(self, batch):
        self.step += 1
        self._after(self.step)
        return {**STEP, **self._values.get(self.step, {})}

    def evaluate(self, step, *, last):
        self.evaluated.append((step, last))
        return self._evaluations.get(step, {})

    def save(self, step, record, best):
        self.records[step], self.best[step] = json.loads(json.dumps(record)), best

    def checkpoint(self, step):
        return f"ckpt-{step}"

    def start_lines(self, first, last):
        return [f"from {first} to {last}"]

    def ideal_seconds(self):
        return None

    def max_over_processes(self, number):
        return int(number)

    def infinite_weights(self):
        return self.infinite


@pytest.fixture
def run(tmp_path):
    """Runs an engine from its last checkpoint, or from the start."""

    def start(engine, steps=12, save_every=4, data=None, **options):
        limit = TimeLimit(options.pop("max_hours", None))
        settings = LoopOptions(steps, log_every_steps=1, max_hours=limit.hours, **options)
        stepping = Stepping(
            engine,
            data or tiny.made_up_data(),
            settings,
            model_dir=str(tmp_path),
            save_every=save_every,
        )
        engine.step = max(engine.records, default=0)
        if engine.records:
            stepping.resume(engine.step, engine.records[engine.step], limit)
        else:
            stepping.begin(0)
        stepping.run(limit)

    return start


def test_loop_saves_at_its_start_regularly_and_at_its_end(run, capsys):
    engine = MadeUpEngine()
    run(engine, 6)
    assert list(engine.records) == [0, 4, 6]
    assert engine.evaluated == [(step, step == 6) for step in range(1, 7)]
    first, *_, trained, following = capsys.readouterr().out.splitlines()
    assert first == "from 0 to 6"
    assert trained == "trained to step 6: ckpt-6"
    assert following == "next: t0 eval ckpt-6"
    run(engine, 6)
    assert "is at step 6 of 6. To continue, raise run.train_steps" in capsys.readouterr().out
    run(engine, 7)
    assert list(engine.records) == [0, 4, 6, 7]
    with pytest.raises(UserError, match="^ckpt-7 was trained with seed 0, .*seed 5,.*--seed=0$"):
        run(engine, 8, seed=5)


def test_loop_prints_the_next_command_with_mixture_data_and_vocabulary(tmp_path, capsys):
    data = tiny.made_up_data()
    words = [
        "t5_mesh_transformer", "--seed=3", "--data_dir=my data,b", "--vocab=v.model",
        "--module_import=mine", "--module_import=t0.seqio_tasks", "--cache_dirs=/c",
    ]  # fmt: skip
    eval_words = flags.evaluation_words(flags.parse(words))
    settings = LoopOptions(2, log_every_steps=1)
    engine = MadeUpEngine()
    engine.step = 0
    stepping = Stepping(
        engine, data, settings, model_dir=str(tmp_path), save_every=4, eval_words=eval_words
    )
    stepping.begin(0)
    data.spec = DataSpec("my mixture", "train", (), {"inputs": 8, "targets": 8})
    stepping.run(TimeLimit(None))
    command = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("next: "))
    assert command[:2] == ["t0", "eval"]
    args = VerbParser("eval", "evaluates", eval_verb).parse(command[2:])
    assert (args.checkpoint, args.tasks, args.vocab) == ("ckpt-2", "my mixture", "v.model")
    assert (args.data_dir, args.cache_dirs) == (["my data,b"], "/c")
    assert args.module_import == ["mine", "t0.seqio_tasks"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, loop.PREEMPTED), (signal.SIGINT, 130)]
)
def test_loop_saves_after_a_signal_and_the_next_start_evaluates(run, capsys, number, status):
    engine = MadeUpEngine(after=lambda step: step == 3 and os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stopped:
        run(engine)
    assert stopped.value.code == status
    assert signal.getsignal(number) == before
    assert list(engine.records) == [0, 3]
    assert engine.evaluated == [(1, False), (2, False)]
    out = capsys.readouterr().out
    assert f"stopped by {number.name} at step 3 of 12: everything so far is kept in ckpt-3" in out
    engine.evaluated.clear()
    run(engine, 5)
    assert engine.evaluated == [(3, False), (4, False), (5, True)]
    assert engine.records[3]["position"]["examples"] < engine.records[5]["position"]["examples"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": math.nan}, "the loss is nan"),
        ({"gradient_square": math.inf}, "the gradient's norm inf"),
        ({"weight_square": math.inf}, "the weights' norm inf"),
        ({"weight_square": -1.0, "loss": math.inf}, "the loss is inf, the weights' norm nan"),
    ],
)
def test_loop_ends_if_numbers_of_a_step_are_not_finite(run, values, message):
    engine = MadeUpEngine({6: values})
    expected = f"{message}.* at step 6: training has diverged. The last checkpoint, step 4, is kept"
    with pytest.raises(UserError, match=expected):
        run(engine)
    assert list(engine.records) == [0, 4]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loop_ends_if_the_held_out_loss_is_not_finite(run, loss):
    engine = MadeUpEngine(evaluations={1: held_out(loss)})
    with pytest.raises(UserError, match=f"the held-out loss is {loss} at step 1.*last .*step 0"):
        run(engine, 1, validate_every_steps=1)
    assert list(engine.records) == [0]


def test_loop_does_not_save_infinite_weights(run):
    engine = MadeUpEngine(after=lambda step: engine.infinite.append("shared/embedding"))
    expected = "weights are not finite numbers, such as shared/embedding, at step 1: training has"
    with pytest.raises(UserError, match=expected):
        run(engine, 1)
    assert list(engine.records) == [0]
    engine.records.clear()
    with pytest.raises(UserError, match="at step 0: .* diverged. No checkpoint is saved yet"):
        run(engine, 1)


def test_loop_stops_at_the_time_limit_of_all_starts(run, capsys, monkeypatch):
    # A clock of steps: each takes a minute, and nothing else takes time.
    minutes = [0.0]

    def after(step):
        minutes[0] += 1

    monkeypatch.setattr(loop.time, "monotonic", lambda: 60 * minutes[0])
    engine = MadeUpEngine(after=after)
    run(engine, 100, save_every=50, max_hours=0.1)  # 6 minutes
    # With a step and a half in reserve. What is evaluated now and then is so at the end, too.
    assert engine.evaluated[-2:] == [(4, False), (5, True)]
    out = capsys.readouterr().out
    assert "the budget of 0.1 hours is used (--max_hours); saved at step 5 of 100" in out
    assert engine.records[5]["seconds"] == 300
    run(engine, 100, save_every=50, max_hours=5 / 60)
    assert "nothing to train: the budget of 0.0833333 hours is used" in capsys.readouterr().out
    run(engine, 100, save_every=50, max_hours=0.15)  # 3 minutes more
    assert "saved at step 8 of 100" in capsys.readouterr().out
    assert list(engine.records) == [0, 5, 8]


def test_loop_stops_early_and_names_the_best_checkpoint(run, capsys, tmp_path):
    losses = dict(zip(range(2, 13, 2), (3.0, 2.0, 2.5, 2.4, 2.3, 1.0), strict=True))
    engine = MadeUpEngine(evaluations={step: held_out(loss) for step, loss in losses.items()})
    options = {"save_every": 3, "validate_every_steps": 2}
    run(engine, stop_after_evaluations=2, **options)
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if "best so far" in line] == [
        line for line in out.splitlines() if line.startswith(("step 2  held", "step 4  held"))
    ]
    assert "early stop: validation_loss has been no better than 2 at step 4 for 2 eval" in out
    assert "saved at step 8 of 12" in out
    assert out.endswith("best by validation_loss: ckpt-4\nnext: t0 eval ckpt-4\n")
    # Steps 2 and 4 are none of every third: they were written because each was the best.
    assert engine.best == {0: None, 2: 2, 3: 2, 4: 4, 6: 4, 8: 4}
    last = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()][-1]
    assert last == {"step": 8, "best_by": "validation_loss", "best_step": 4, "stopped_early": True}
    # The same command again is done; a larger patience goes on, and remembers the best.
    run(engine, stop_after_evaluations=2, **options)
    assert "nothing to train: early stop" in capsys.readouterr().out
    run(engine, stop_after_evaluations=4, **options)
    out = capsys.readouterr().out
    assert "step 10  held-out" in out
    assert "step 10  held-out 1.000  perplexity 2.718  accuracy 100.0%\n" in out
    assert engine.best[12] == 12


def test_loop_keeps_the_checkpoint_if_its_metric_is_unknown(run):
    engine = MadeUpEngine(
        evaluations={2: {"eval/accuracy": 1.0}}, keep=Keep(best_by="eval/acuracy")
    )
    with pytest.raises(UserError, match="unknown metric 'eval/acuracy'.*'eval/accuracy'"):
        run(engine, evaluate_every_steps=2)
    assert list(engine.records) == [0, 2]
    with pytest.raises(UserError, match="by eval/acuracy, but nothing evaluates it"):
        run(MadeUpEngine(keep=Keep(best_by="eval/acuracy")), validate_every_steps=2)


@pytest.mark.parametrize("examples", [None, 40])
def test_passes_are_recorded_if_the_size_of_a_task_is_known(run, tmp_path, monkeypatch, examples):
    data = tiny.made_up_data()
    monkeypatch.setattr(data, "shares", lambda: [TaskShare("task", 1.0, examples, 0)])
    run(MadeUpEngine(), 2, data=data)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    records = [line for line in lines if "loss" in line]
    assert len(records) == 2
    assert [line.get("passes") is not None for line in records] == 2 * [examples is not None]
    assert examples is None or 0 < records[0]["passes"] < records[1]["passes"]
