"""Training by TensorFlow's estimator: it ends in good order, saves, and goes on."""

import dataclasses
import itertools
import json
import os
import signal

import pytest
import tensorflow.compat.v1 as tf

from t0.errors import UserError
from t0.feeding import batch_stream, manifest
from t0.feeding.manifest import Start
from t0.feeding.training_data import open_training_data
from t0.run.train_steps import plan_steps
from t0.training import estimator
from t0.training.estimator import TrainingHook
from t0.training.model_directory import ESTIMATOR_FILE
from tests.feeding import tiny_caches

VARIABLES = {"w": 4.0}


def model_fn(features, labels, mode, params):
    """One weight, which each step brings nearer to the mean of the features."""
    del labels, params
    with tf.variable_scope("", use_resource=True):
        weight = tf.get_variable("w", initializer=4.0)
    loss = tf.losses.mean_squared_error(tf.cast(features["targets"], tf.float32), [[weight]] * 2)
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def dataset(**reading):
    del reading
    return tf.data.Dataset.from_tensor_slices({"targets": tf.ones([6, 1], tf.int32)})


@pytest.fixture
def train(tmp_path, empty_gin):
    """Trains up to a step; `at_step` is called at the end of each call of the device."""

    def run(steps, at_step=lambda step: None):
        class Watch(tf.estimator.SessionRunHook):
            def after_run(self, run_context, run_values):
                at_step(int(run_context.session.run(tf.train.get_global_step())))

        published = tf.estimator.Estimator.train

        def watched(self, *args, hooks, **more):
            return published(self, *args, hooks=[Watch(), *hooks], **more)

        config = tf.estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=50)
        made = tf.estimator.Estimator(model_fn, config=config, params={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tf.estimator.Estimator, "train", watched)
            estimator.train_model(made, None, {"targets": 1}, 2, dataset, steps, None)

    return run


def sent(number, when):
    """Sends this process a signal after a step."""
    return lambda step: os.kill(os.getpid(), number) if step == when else None


def last_checkpoint(folder):
    return tf.train.latest_checkpoint(str(folder)).rpartition("-")[2]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_estimator_saves_on_signal_and_resumes(train, tmp_path, capsys, number, status):
    with pytest.raises(SystemExit) as ended:
        train(8, sent(number, 3))
    assert ended.value.code == status
    name = signal.Signals(number).name
    assert f"stopped by {name} at step 3 of 8: everything so far is kept" in capsys.readouterr().out
    assert last_checkpoint(tmp_path) == "3"
    train(8)
    assert "training from step 3 to 8" in capsys.readouterr().out
    assert last_checkpoint(tmp_path) == "8"
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()]
    assert steps[-1] == 8


def test_estimator_resumes_without_the_checkpoint_state_file(train, tmp_path, capsys):
    train(3)
    (tmp_path / "checkpoint").unlink()
    train(5)
    out = capsys.readouterr().out
    assert f"{tmp_path}/checkpoint is missing: resuming from {tmp_path}/model.ckpt-3, the" in out
    assert "training from step 3 to 5" in out
    assert last_checkpoint(tmp_path) == "5"


def test_estimator_time_limit_counts_all_starts(train, tmp_path, capsys, monkeypatch):
    hours = iter(range(10**6))
    monkeypatch.setattr(estimator.time, "monotonic", lambda: next(hours) / 1000)
    bound(max_hours=1 / 3600)
    train(10**4)
    out = capsys.readouterr().out
    assert "the budget of 0.000277778 hours is used (--max_hours); saved at step " in out
    step = int(last_checkpoint(tmp_path))
    assert 0 < step < 10**4
    spent = json.loads((tmp_path / ESTIMATOR_FILE).read_text())
    assert spent["step"] == step
    assert 0.5 < spent["seconds"] < 2
    train(10**4)
    assert "the budget of 0.000277778 hours is used" in capsys.readouterr().out
    step = int(last_checkpoint(tmp_path))
    bound(max_hours=2)
    train(step + 2)
    assert last_checkpoint(tmp_path) == str(step + 2)
    assert json.loads((tmp_path / ESTIMATOR_FILE).read_text())["seconds"] > spent["seconds"]


def bound(**options):
    from t0.compat import gin

    with gin.unlock_config():
        for name, value in options.items():
            gin.bind_parameter(f"t0.train_loop.{name}", value)


def test_estimator_refuses_gradient_clipping(train, tmp_path):
    from t0.compat import gin
    from t0.training import optimizers

    assert optimizers.apply_updates
    with gin.unlock_config():
        gin.bind_parameter("t0.apply_updates.clip_gradient_norm", 1.0)
    with pytest.raises(UserError, match="clip_gradient_norm = 1.0 works only without a TPU"):
        train(1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["{}", "[", '{"seconds": "x"}', '{"seconds": NaN}', "[1]"])
def test_estimator_damaged_time_record_is_one_message(train, tmp_path, text):
    train(1)
    (tmp_path / ESTIMATOR_FILE).write_text(text)
    with pytest.raises(UserError, match="is damaged: .*restart the count of --max_hours"):
        train(2)


def test_estimator_writes_two_operative_gin_files(train, tmp_path, monkeypatch):
    """Stock T5 reads the first; Mesh TensorFlow's hook writes all bindings into it."""
    from t0.compat import gin

    hook = gin.tf.GinConfigSaverHook(str(tmp_path), summarize_config=False)
    written = []

    def saved(*args, **kwargs):
        hook.after_create_session(*args, **kwargs)
        written.extend(path.read_text() for path in tmp_path.glob("operative_config*.gin"))

    monkeypatch.setattr(TrainingHook, "end", lambda self, session: None)
    begun = TrainingHook.after_create_session
    both = lambda self, *args: (begun(self, *args), saved(*args))  # noqa: E731
    monkeypatch.setattr(TrainingHook, "after_create_session", both)
    bound(max_hours=2)
    train(1)
    assert len(written) == 1
    assert "train_loop.max_hours = 2" in written[0]
    stock, ours = (tmp_path / name for name in ("operative_config.gin", "operative_config.t0.gin"))
    assert "train_loop" not in stock.read_text()
    assert "operative_config.t0.gin, next to this file" in stock.read_text()
    assert "train_loop.max_hours = 2" in ours.read_text()
    # A later start writes no other.
    before = stock.read_text(), ours.read_text()
    train(2)
    assert (stock.read_text(), ours.read_text()) == before


def test_estimator_training_data_that_ends_is_one_message(train, monkeypatch):
    monkeypatch.setattr(tf.data.Dataset, "repeat", lambda self, count=None: self)
    with pytest.raises(UserError, match=r"the training data ended at step 3 of 8"):
        train(8)


STEPS = 12


def reading_model_fn(features, labels, mode, params):
    """The model of `model_fn`, whose batches have a name in the graph."""
    tf.identity(features["inputs"], name="seen")
    return model_fn({"targets": features["inputs"][:2, :1]}, labels, mode, params)


@pytest.fixture
def stream_run(tmp_path, empty_gin):
    """Trains from the stream of a run; returns step -> the inputs of its batches."""
    spec = tiny_caches.data_spec(tmp_path / "cache")
    folder = tmp_path / "model"

    def run(steps=STEPS, rows=4, at_step=lambda step: None):
        seen = {}

        class Watch(tf.estimator.SessionRunHook):
            def before_run(self, run_context):
                return tf.estimator.SessionRunArgs(
                    tf.get_default_graph().get_tensor_by_name("seen:0")
                )

            def after_run(self, run_context, run_values):
                step = int(run_context.session.run(tf.train.get_global_step()))
                seen.setdefault(step, []).append(run_values.results.tolist())
                at_step(step)

        published = tf.estimator.Estimator.train

        def watched(self, *args, hooks, **more):
            return published(self, *args, hooks=[*hooks, Watch()], **more)

        config = tf.estimator.RunConfig(model_dir=str(folder), save_checkpoints_steps=4)
        made = tf.estimator.Estimator(reading_model_fn, config=config, params={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tf.estimator.Estimator, "train", watched)
            arguments = (None, dict(spec.lengths), rows, lambda **_: open_training_data(spec))
            estimator.train_model(made, *arguments, steps, None)
        return seen

    data = open_training_data(spec)
    recorded = manifest.build(data, 4, Start())
    list(batch_stream.write(str(folder / "stream"), recorded, data, first=1, last=12, workers=1))
    batches = itertools.islice(open_training_data(spec).batches(4), STEPS)
    expected = {n: batch["inputs"].tolist() for n, (batch, _) in enumerate(batches, start=1)}
    return run, folder, expected


class Killed(Exception):  # noqa: N818 (stands for SIGKILL)
    """Nothing is saved after it."""


def test_estimator_restart_continues_in_the_stream(stream_run, capsys):
    run, folder, expected = stream_run

    def kill(step):
        if step == 7:
            raise Killed

    with pytest.raises(Killed):
        run(at_step=kill)
    assert f"data: the stream {folder}/stream, steps 1 to 12" in capsys.readouterr().out
    step = int(last_checkpoint(folder))
    assert step < 7
    assert run() == {n: [expected[n]] for n in range(step + 1, STEPS + 1)}
    assert manifest.read(str(folder)) == manifest.read(str(folder / "stream"))


def test_estimator_session_that_is_lost_continues_in_the_stream(stream_run):
    """TensorFlow makes a new session if a host fails, without starting the program again."""
    run, _, expected = stream_run
    lost = []

    def lose(step):
        if step == 7 and not lost:
            lost.append(step)
            raise tf.errors.AbortedError(None, None, "a host was lost")

    seen = run(at_step=lose)
    assert sum(map(len, seen.values())) > STEPS
    for step, batches in seen.items():
        for batch in batches:
            assert batch == expected[step], step
    assert seen.keys() == expected.keys()


def test_estimator_refuses_a_stream_that_does_not_fit(stream_run):
    run, folder, _ = stream_run
    with pytest.raises(UserError, match="has steps 1 to 12, and the run needs 1 to 13"):
        run(steps=13)
    with pytest.raises(UserError, match="is of another run: the batch was 4, now 2"):
        run(rows=2)
    run(steps=4)
    recorded = manifest.read(str(folder))
    other = dataclasses.replace(recorded, start=Start(2))
    manifest.publish(str(folder), other)
    with pytest.raises(UserError, match="does not fit .*: the start was .*'step': 2.*, now .*: 0"):
        run()
    changes = {"lengths": {"inputs": 8, "targets": 8}, "seed": 9, "mixture": "other"}
    for name, value in changes.items():
        data = dataclasses.replace(recorded.data, **{name: value})
        manifest.publish(str(folder), dataclasses.replace(recorded, data=data))
        with pytest.raises(UserError, match=f"does not fit .*manifest.json: {name} was .*, now"):
            run()
    manifest.publish(str(folder), dataclasses.replace(recorded, batch=8))
    with pytest.raises(UserError, match="does not fit .*manifest.json: the batch was 8, now 4"):
        run()
    manifest.publish(str(folder), recorded)
    shard = next((folder / "stream").glob("batches-*"))
    shard.unlink()
    with pytest.raises(UserError, match=f"{shard.name}, with steps 1 to 12 of the stream, is mis"):
        run()


def test_estimator_without_a_stream_warns_and_forgets_the_manifest(train, tmp_path, capsys):
    (tmp_path / manifest.MANIFEST).write_text("{}")
    train(2)
    out = capsys.readouterr().out
    assert f"warning: there is no stream in {tmp_path}/stream: a restart shuffles" in out
    assert not (tmp_path / manifest.MANIFEST).exists()


def test_estimator_without_a_stream_keeps_the_end_of_finetune_steps(train, tmp_path):
    """A restart knows where the run began, though a TPU's checkpoint has no resume file."""
    train(3)
    for _ in range(2):
        end = plan_steps(str(tmp_path), finetune_steps=8, epochs=None)[0]
        assert end == 8
        train(end - 1)
    (tmp_path / ESTIMATOR_FILE).write_text('{"step": 7, "seconds": 1.0, "began": 5}')
    train(9)
    assert plan_steps(str(tmp_path), finetune_steps=8, epochs=None)[0] == 13


def test_estimator_refuses_loss_average(train, tmp_path):
    bound(loss_average="sequences")
    with pytest.raises(UserError, match="loss_average = 'sequences' works only without a TPU"):
        train(1)
    assert not list(tmp_path.iterdir())


def test_estimator_writes_model_info(train, tmp_path):
    train(1)
    lines = (tmp_path / "model-info.txt").read_text().splitlines()
    assert [line.split() for line in lines] == [
        ["Variable", "w", "size", "1", "shape", "()"],
        ["Total", "number", "of", "parameters:", "1"],
        [],
    ]
