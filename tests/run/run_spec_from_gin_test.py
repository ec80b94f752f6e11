"""A learning rate schedule that the user registered with gin, in a specification."""

import json

import gin
import pytest
import tensorflow.compat.v1 as tf

from t0.config import parse
from t0.config.bindings import bound
from t0.config.plain_data import read_plain, to_json
from t0.config.specification import ConfiguredSpec
from t0.errors import UserError
from t0.run import configure, run_arguments, spec_from_gin
from t0.torch import schedules

STEPS = 2000


@gin.configurable(module="own", denylist=["step", "total_train_steps"])
def saw(step, total_train_steps, peak=0.1):
    """A schedule with TensorFlow's operations, as users of Mesh TensorFlow write it."""
    step = tf.cast(step, tf.float32)
    return peak * tf.math.rsqrt(tf.maximum(step, 100.0)) * (1.0 - step / total_train_steps)


@pytest.fixture
def described():
    """Returns a function from bindings to the specification of the schedule, through JSON."""

    def described(*bindings):
        configure.register()
        parse.parse([], bindings)
        arguments = {
            "train_steps": STEPS,
            "learning_rate_schedule": run_arguments.schedule(
                bound("run.learning_rate_schedule"), STEPS
            ),
        }
        spec = spec_from_gin._schedule_spec(arguments)
        return read_plain(json.loads(to_json(spec)), ConfiguredSpec, "schedule")

    yield described
    gin.clear_config()


def rates_of_training(steps, peak):
    """The rates in a graph that counts its steps in a variable, as training does."""
    with tf.Graph().as_default(), tf.Session() as session:
        counter = tf.train.get_or_create_global_step()
        rate = saw(step=tf.identity(counter), total_train_steps=STEPS, peak=peak)
        set_counter = counter.assign(value := tf.placeholder(tf.int64, []))
        found = []
        for step in steps:
            session.run(set_counter, {value: step})
            found.append(float(session.run(rate)))
        return found


@pytest.mark.parametrize("factor", [None, 0.5])
def test_own_schedule_has_the_same_rates_on_pytorch(described, factor):
    value = "@own.saw" if factor is None else f"[{factor}, @own.saw]"
    spec = described(f"run.learning_rate_schedule = {value}", "own.saw.peak = 0.3")
    rate = schedules.schedule(spec, STEPS)
    ours = [rate(step) for step in range(STEPS)]
    assert ours == [
        (factor or 1.0) * x for x in rates_of_training(range(STEPS), 0.3)
    ]  # bit for bit
    with pytest.raises(UserError, match="own.saw, has no rate for step 2,000; .* steps 0 to 1,999"):
        rate(STEPS)


def test_own_schedule_of_a_long_run_has_its_last_steps(described, monkeypatch):
    monkeypatch.setattr(spec_from_gin, "_MOST_RATES", 10)
    spec = described("run.learning_rate_schedule = @own.saw")
    assert len(spec.parameters["rates"]) == 10
    rate = schedules.schedule(spec, STEPS)
    assert [rate(STEPS - 10)] == rates_of_training([STEPS - 10], 0.1)
    with pytest.raises(UserError, match="no rate for step 5; .* steps 1,990 to 1,999"):
        rate(5)


def test_published_schedules_and_ours_keep_their_parameters(described):
    spec = described("run.learning_rate_schedule = @t0.rsqrt", "t0.rsqrt.warmup_steps = 7")
    assert (spec.selector, spec.parameters["warmup_steps"]) == ("t0.rsqrt", 7)
