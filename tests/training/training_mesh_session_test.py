import functools
import itertools
import json
import os
import re
import resource
import signal

import gin
import pytest
import tensorflow.compat.v1 as tf
from gin import config as gin_config

from t0.checkpoints import checkpoint_files
from t0.config import parse
from t0.errors import UserError
from t0.training import loop, mesh_session, recorder, resume_file, validation
from t0.training.checkpointing import patterns_of_new_layers
from t0.training.mesh_session import LoopOptions, train
from t0.training.recorder import Recorder
from tests.helpers.processes import Killed
from tests.training import tiny_tasks
from tests.training import tiny_training as tiny

# Fields of the run that its graph does not depend on.
NOT_IN_GRAPH = (
    "model_dir",
    "init_checkpoint",
    "init_variable_filter",
    "keep_checkpoint_max",
    "save_checkpoints_steps",
)
# Bindings that building does not read; titles and empty lines.
NOT_BUILT = re.compile(r"^((keep_checkpoints|task_metrics)\..*|#.*|)\n", re.MULTILINE)
BFLOAT16 = ["get_variable_dtype.master_dtype = 'bfloat16'"]


def run(folder, steps, *, data=None, options=(), **settings):
    """Trains for some steps; by default with weights that a checkpoint rounds."""
    folder.mkdir(exist_ok=True)
    data = data or tiny.made_up_data()
    given = LoopOptions(**{"train_steps": steps, "log_every_steps": 1, **dict(options)})
    spec = tiny.training_spec(folder, **{"params": BFLOAT16, **settings})
    train(spec, given, lambda **_: data)


@pytest.fixture(scope="module", autouse=True)
def graphs():
    """Builds the graph of each configuration once, which takes longer than these tests' steps."""
    built, build, used = {}, mesh_session.build, {}

    def once(spec, **settings):
        fields = {name: repr(value) for name, value in vars(spec).items()}
        kept = sorted((name, fields[name]) for name in fields.keys() - set(NOT_IN_GRAPH))
        key = (NOT_BUILT.sub("", gin.config_str()), repr(kept), repr(sorted(settings.items())))
        if key not in built:
            built[key] = build(spec, **settings)
            used[key] = {name: dict(x) for name, x in gin_config._OPERATIVE_CONFIG.items()}
        # What building has read of gin, a run records as its configuration.
        gin_config._OPERATIVE_CONFIG.update({name: dict(x) for name, x in used[key].items()})
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh_session, "build", once)
        yield


def recorded(folder):
    """Every step's numbers that do not depend on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds_per_step", "tokens_per_second")
    found = {}
    for line in lines:
        values = {name: value for name, value in line.items() if name not in clock}
        found.setdefault(line["step"], {}).update(values)
    return found


def killed_after(monkeypatch, step):
    progress = Recorder.progress

    def record(self, now, fields):
        progress(self, now, fields)
        if now == step:
            raise Killed

    monkeypatch.setattr(Recorder, "progress", record)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 12 steps without a break, its weights rounded in the checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, 12)
    return folder


def weights(folder, step):
    reader = tf.train.load_checkpoint(str(folder / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow
@pytest.mark.parametrize("killed", [[9], [1, 6, 9]], ids=len)
def test_resume_after_a_kill_is_bit_for_bit(
    as_in_commands, whole, tmp_path, monkeypatch, capsys, killed
):
    for step in killed:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed_after(patch, step)
            run(tmp_path, 12)
    run(tmp_path, 12)
    assert recorded(tmp_path) == recorded(whole)
    theirs = weights(whole, 12)
    for name, value in weights(tmp_path, 12).items():
        assert value.tobytes() == theirs[name].tobytes(), name
    out = capsys.readouterr().out
    count = len([name for name in theirs if "slot" not in name and name != "global_step"])
    assert f"restored {count} of {count} variables from {tmp_path}/model.ckpt-8, step 8" in out
    assert "optimizer state: restored" in out


@pytest.mark.slow
def test_resume_on_another_seed_is_refused(whole, tmp_path):
    run(tmp_path, 4, options={"seed": 5}, data=tiny.made_up_data(5))
    assert recorded(tmp_path)[1]["loss"] != recorded(whole)[1]["loss"]
    with pytest.raises(UserError, match="--seed=5"):
        run(tmp_path, 8)


def test_resume_record_is_small_and_metrics_are_complete(whole):
    record = resume_file.record(str(whole / "model.ckpt-8"))
    assert len(json.dumps(record)) < 2000
    fields = recorded(whole)[12]
    assert {"loss", "z_loss", "token_accuracy", "learning_rate", "gradient_norm"} < fields.keys()
    assert {"weight_norm", "passes", "target_tokens"} < fields.keys()
    events = list(whole.glob("events.out.tfevents.*"))
    tags = {v.tag for e in tf.train.summary_iterator(str(events[0])) for v in e.summary.value}
    assert {"loss", "learning_rate", "tokens_per_second"} <= tags


@pytest.mark.slow
def test_model_info_file_is_written_only_on_request(whole, tmp_path):
    names = {re.sub(r"[-.\d].*", "", path.name) for path in whole.glob("[!.]*")}  # no lock
    assert names == {
        "model",
        "checkpoint",
        "configuration",
        "operative_config",
        "metrics",
        "events",
    }
    run(tmp_path, 1, model_info_file=str(tmp_path / "info.txt"))
    assert "encoder/block_000" in (tmp_path / "info.txt").read_text()


@pytest.mark.slow
def test_sigterm_saves_and_exits_with_status_75(tmp_path, monkeypatch):
    progress = Recorder.progress

    def told(self, step, fields):
        progress(self, step, fields)
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "progress", told)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path, 12)
    assert stopped.value.code == loop.PREEMPTED == 75
    assert checkpoint_files.steps(str(tmp_path)) == [0, 3]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_nan_loss_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
    with pytest.raises(
        UserError, match="training has diverged. The last checkpoint, step 0, is kept"
    ):
        run(tmp_path, 12, rate=1e38)
    assert checkpoint_files.steps(str(tmp_path)) == [0]


@pytest.mark.slow
def test_nan_validation_loss_stops_the_run(tmp_path, held_out):
    """The first step's loss is finite, and makes weights whose loss is not."""
    options = {"validate_every_steps": 1, "validation_batches": 1}
    expected = "held-out loss is (nan|inf) at step 1: training has diverged. The last .*step 0"
    with pytest.raises(UserError, match=expected):
        run(tmp_path, 1, rate=1e30, options=options)
    assert checkpoint_files.steps(str(tmp_path)) == [0]


@pytest.mark.slow
def test_checkpoint_with_infinite_weights_is_not_saved(tmp_path):
    expected = "weights are not finite numbers, such as .*, at step 1: training has diverged"
    with pytest.raises(UserError, match=expected):
        run(tmp_path, 1, rate=float("inf"))
    assert checkpoint_files.steps(str(tmp_path)) == [0]


@pytest.mark.slow
def test_infinite_weight_norm_stops_the_run(tmp_path, monkeypatch):
    """Such as those of words that no later batch has, which do not change the loss."""
    one_step = mesh_session.one_step
    infinite = {"weight_square": float("inf")}
    monkeypatch.setattr(
        mesh_session, "one_step", lambda *arguments: one_step(*arguments) | infinite
    )
    with pytest.raises(UserError, match="the weights' norm inf .*at step 1: training has diverged"):
        run(tmp_path, 12)


def test_warm_start_checkpoint_must_fill_every_variable(whole, tmp_path, capsys):
    initial = str(whole / "model.ckpt-8")
    with pytest.raises(UserError, match="no/model.ckpt-1 cannot be read"):
        run(tmp_path / "a", 12, init_checkpoint="/no/model.ckpt-1")
    run(tmp_path / "b", 9, init_checkpoint=initial)
    out = capsys.readouterr().out
    assert f"variables from {initial}, step 8" in out
    assert "training from step 8 to 9" in out
    assert resume_file.record(str(tmp_path / "b" / "model.ckpt-9"))["began"] == 8
    some = {"init_checkpoint": initial, "init_variable_filter": "encoder|global_step|shared"}
    with pytest.raises(UserError, match="leaves .* unfilled, such as decoder"):
        run(tmp_path / "c", 9, **some)
    # A filter of the trained variables does not explain why the checkpoint has no values for them.
    with pytest.raises(UserError, match="leaves .* unfilled, such as decoder"):
        run(tmp_path / "c", 9, variable_filter="decoder", **some)
    assert not list((tmp_path / "c").glob("model.ckpt*"))
    run(tmp_path / "c", 9, options={"unfilled_variables": ["decoder/"]}, **some)
    out = capsys.readouterr().out
    assert "left random: decoder/" in out
    assert "optimizer state: 12 of 29 slots restored, the others start at zero" in out


def test_warm_start_new_layers_are_those_that_gin_names():
    tiny.training_spec(params=["num_layers = 1"])
    assert patterns_of_new_layers(["encoder/block_000/layer_000/x"]) == []
    parse.parse(["models/t5.1.1.tiny.gin", "task_adapter.gin"], [])
    old = ["encoder/block_000/layer_000/x", "encoder/block_000/task_adapter_2/x"]
    assert patterns_of_new_layers(old) == ["/task_adapter/"]
    # A checkpoint with some adapters must have all of them.
    assert patterns_of_new_layers([*old, "encoder/block_000/task_adapter/x"]) == []


@pytest.mark.slow
def test_resume_with_another_configuration_is_refused(tmp_path, capsys):
    run(tmp_path, 2)
    with pytest.raises(UserError) as error:
        run(tmp_path, 4, dropout=0.2)
    assert "dropout_rate: was 0.1, is 0.2" in str(error.value)
    run(tmp_path, 4, dropout=0.2, options={"allow_config_change": True})
    assert "changed:" in capsys.readouterr().out


@pytest.fixture
def held_out(monkeypatch):
    """Made-up data has a split for validation."""
    monkeypatch.setattr(validation, "open_split", lambda data, split, mixture: tiny.made_up_data(9))


def test_validation_loss_is_recorded_next_to_training_loss(tmp_path, capsys, held_out):
    options = {"validate_every_steps": 2, "validation_batches": 2}
    run(tmp_path, 4, options=options)
    found = recorded(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum("validation_loss" in line for line in lines) == 2
    assert "validation_token_accuracy" in found[4]
    assert "held-out " in capsys.readouterr().out


@pytest.mark.slow
def test_early_stopping_keeps_the_best_checkpoint(tmp_path, capsys, monkeypatch, held_out):
    given = [3.0, 2.0, 2.5, 2.4, 2.3, 1.0]
    monkeypatch.setattr(
        validation.Evaluation,
        "measure",
        lambda self, step, last: {"validation_loss": given[step // 2 - 1]} if step % 2 == 0 else {},
    )
    monkeypatch.setattr(recorder, "evaluation_line", lambda step, fields: f"evaluated {step}")
    options = {"validate_every_steps": 2, "stop_after_evaluations": 2}
    keep = {"keep_checkpoint_max": 1, "save_checkpoints_steps": 3}
    run(tmp_path, 12, options=options, **keep)
    out = capsys.readouterr().out
    assert "evaluated 4  best so far" in out
    best = f"best by validation_loss: {tmp_path}/model.ckpt-4\n"
    assert re.search(rf"{best}next: t0 eval {tmp_path}/model.ckpt-4\n$", out)
    assert "early stop: validation_loss has been no better than 2 at step 4 for 2 eval" in out
    assert "saved at step 8 of 12" in out
    # Step 4 is none of every third: it was written because it is the best.
    assert checkpoint_files.steps(str(tmp_path)) == [4, 8]
    last = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()][-1]
    assert last == {"step": 8, "best_by": "validation_loss", "best_step": 4, "stopped_early": True}
    # The same command again is done; a larger patience goes on, and remembers the best.
    run(tmp_path, 12, options=options, **keep)
    assert "nothing to train: early stop" in capsys.readouterr().out
    assert checkpoint_files.steps(str(tmp_path)) == [4, 8]
    run(tmp_path, 12, options={**options, "stop_after_evaluations": 4}, **keep)
    assert "evaluated 10\n" in capsys.readouterr().out
    assert checkpoint_files.steps(str(tmp_path)) == [12]


@pytest.mark.slow
def test_best_checkpoint_by_unknown_metric_is_refused(tmp_path):
    tiny_tasks.register()
    best = [*BFLOAT16, "keep_checkpoints.best_by = 'eval/acuracy'"]
    with pytest.raises(UserError, match="by eval/acuracy, but nothing evaluates it"):
        run(tmp_path / "a", 4, params=best)
    with pytest.raises(UserError, match="no split 'validation'; unset it"):
        run(tmp_path / "b", 4, options={"validate_every_steps": 2})
    with pytest.raises(UserError, match="is not a SeqIO mixture: set task_metrics"):
        run(tmp_path / "c", 4, options={"evaluate_every_steps": 2})
    with pytest.raises(UserError, match="unknown metric 'eval/acuracy'.*'eval/accuracy'"):
        run(tmp_path / "d", 4, params=[*best, *TASKS], options={"evaluate_every_steps": 2})
    assert checkpoint_files.steps(str(tmp_path / "d")) == [0, 2]  # the steps are not lost


TASKS = ["task_metrics.mixture_or_task_name = 'tiny_decoded'", "task_metrics.examples = 3"]


def test_task_metrics_in_training_do_not_change_the_weights(
    as_in_commands, whole, tmp_path, capsys, held_out
):
    tiny_tasks.register()
    options = {"evaluate_every_steps": 5, "validate_every_steps": 4, "validation_batches": 2}
    best = ["keep_checkpoints.best_by = 'eval/accuracy'", "keep_checkpoints.every_steps = 6"]
    params = [*BFLOAT16, *TASKS, *best]
    run(tmp_path, 12, options=options, params=params, keep_checkpoint_max=1)
    out = capsys.readouterr().out
    assert "step 10  eval/accuracy 0\n" in out
    found = recorded(tmp_path)
    assert found[5]["eval/tiny_decoded/accuracy"] == 0.0
    assert "validation_perplexity" in found[8]
    # The last step gets all kinds, whatever it is a multiple of.
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [x["step"] for x in lines if "eval/accuracy" in x] == [5, 10, 12]
    assert [x["step"] for x in lines if "validation_loss" in x] == [4, 8, 12]
    assert checkpoint_files.steps(str(tmp_path)) == [0, 5, 12]
    theirs = weights(whole, 12)
    for name, value in weights(tmp_path, 12).items():
        assert value.tobytes() == theirs[name].tobytes(), name
    tags = {
        v.tag
        for path in tmp_path.glob("events.out.tfevents.*")
        for e in tf.train.summary_iterator(str(path))
        for v in e.summary.value
    }
    assert {"validation_loss", "eval/accuracy", "eval/tiny_decoded/accuracy"} <= tags


@pytest.mark.slow
def test_time_limit_ends_training_and_counts_all_starts(tmp_path, capsys, monkeypatch, held_out):
    # A clock of steps: each takes a minute, and nothing else takes time.
    minutes = [0.0]
    one_step = mesh_session.one_step

    def step(*arguments):
        values = one_step(*arguments)
        minutes[0] += 1
        return values

    monkeypatch.setattr(mesh_session, "one_step", step)
    monkeypatch.setattr(loop.time, "monotonic", lambda: 60 * minutes[0])
    options = {"validate_every_steps": 1000, "validation_batches": 1}
    run(tmp_path, 100, options={"max_hours": 0.1, **options})  # 6 minutes
    out = capsys.readouterr().out
    # With a step and a half in reserve. What is evaluated now and then is so at the end, too.
    assert "step 5  held-out" in out
    assert "the budget of 0.1 hours is used (--max_hours); saved at step 5 of 100" in out
    assert checkpoint_files.latest(str(tmp_path)).endswith("ckpt-5")
    record = resume_file.record(str(tmp_path / "model.ckpt-5"))
    assert record["seconds"] == 300
    run(tmp_path, 100, options={"max_hours": 5 / 60})
    assert "nothing to train: the budget of 0.0833333 hours is used" in capsys.readouterr().out
    run(tmp_path, 100, options={"max_hours": 0.15})  # 3 minutes more
    assert "saved at step 8 of 100" in capsys.readouterr().out


@pytest.mark.slow
def test_sigterm_saves_and_the_next_start_evaluates(
    as_in_commands, whole, tmp_path, monkeypatch, capsys, held_out
):
    progress = Recorder.progress

    def told(self, step, fields):
        progress(self, step, fields)
        if step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    options = {"validate_every_steps": 4, "validation_batches": 1}
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Recorder, "progress", told)
        run(tmp_path, 12, options=options)
    options["log_every_steps"] = 1
    assert "step 8  validation" not in capsys.readouterr().out
    run(tmp_path, 12, options=options)
    out = capsys.readouterr().out
    assert out.index("step 8  held-out") < out.index("step 9/12")
    found = recorded(tmp_path)
    assert [step for step in found if "validation_loss" in found[step]] == [4, 8, 12]
    for step, fields in recorded(whole).items():
        assert fields.items() <= found[step].items()


def test_full_disk_during_training_keeps_the_last_checkpoint(tmp_path, capsys):
    run(tmp_path, 2)
    before = {p.name: p.read_bytes() for p in tmp_path.glob("model.ckpt-2.*")}
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # Files may no longer grow beyond this: a write fails as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
        with pytest.raises(
            UserError, match=r"^the disk is full.* The last checkpoint, .*ckpt-2, is int"
        ):
            run(tmp_path, 6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert {p.name: p.read_bytes() for p in tmp_path.glob("model.ckpt-2.*")} == before
    assert checkpoint_files.steps(str(tmp_path)) == [0, 2]
    run(tmp_path, 6)
    assert checkpoint_files.steps(str(tmp_path))[-1] == 6


@pytest.mark.slow
def test_infinite_gradient_norm_stops_the_run(tmp_path, monkeypatch):
    one_step, done = mesh_session.one_step, itertools.count(1)

    def bad(*arguments):
        values = one_step(*arguments)
        return values | ({"gradient_square": float("inf")} if next(done) == 3 else {})

    monkeypatch.setattr(mesh_session, "one_step", bad)
    with pytest.raises(UserError, match="gradient's norm inf at step 3.*The last checkpoint, step"):
        run(tmp_path, 12)


@pytest.mark.slow
def test_last_lines_name_the_checkpoint_and_the_next_command(tmp_path, capsys):
    run(tmp_path, 3)
    *_, trained, following = capsys.readouterr().out.splitlines()
    assert trained == f"trained to step 3: {tmp_path}/model.ckpt-3"
    assert following == f"next: t0 eval {tmp_path}/model.ckpt-3"


def test_missing_gpu_is_an_error(tmp_path):
    given = tiny.training_spec(tmp_path)
    with pytest.raises(UserError, match="gpu:0.*sees no GPU"):
        train(
            functools.partial(type(given), **{**vars(given), "mesh_devices": ["gpu:0"]})(),
            LoopOptions(train_steps=1),
            lambda **_: tiny.made_up_data(),
        )
