"""Training on PyTorch: Mesh TensorFlow's numbers, on several processes, and between engines."""

import contextlib
import functools
import json
import re
import shutil

import numpy as np
import pytest

from t0.errors import UserError
from tests.torch.engine_world import MODEL, losses, message

pytest.importorskip("torch")

ADAMW = [
    "--gin_param=run.optimizer = @t0.AdamWOptimizer",
    "--gin_param=AdamWOptimizer.weight_decay_rate = 0.01",
    "--gin_param=AdamWOptimizer.rms_clipping_threshold = 1.0",
    "--gin_param=AdamWOptimizer.multiply_by_parameter_scale = True",
    "--gin_param=t0.apply_updates.clip_gradient_norm = 1.0",
]
MICROBATCHES = ["--gin_param=serialize_num_microbatches.tokens_per_microbatch_per_replica = 80"]
RUNS = {"Adafactor": [], "AdamW, microbatches": [*ADAMW, *MICROBATCHES]}
RATE = "learning_rate_schedules.constant_learning_rate.learning_rate"
# Mesh TensorFlow's default, which T5's published gin files leave as it is.
PUBLISHED = ["--gin_param=get_variable_dtype.master_dtype = 'bfloat16'"]
MOVES = {**RUNS, "published types": PUBLISHED}


def weights(path):
    """Canonical name -> weight of a checkpoint in any format."""
    from t0.checkpoints import open_source

    with contextlib.closing(open_source(path, keep_slots=False)) as source:
        return {name: source.load(name) for name in source.entries}


def exact_weights(folder, step):
    """The weights of a Mesh TensorFlow checkpoint as they were in memory, in float32."""
    rounded = weights(folder)
    with np.load(folder / f"model.ckpt-{step}.resume.npz") as content:
        for name, array in rounded.items():
            if f"low/{name}/0" not in content:
                continue
            # Bit patterns that are nearer to the rounded one than half a step of bfloat16.
            low = content[f"low/{name}/0"].astype(np.int64)
            low.reshape(-1)[content[f"ties/{name}/0"]] = 0x8000
            bits = array.astype(np.float32).view(np.int32) + low
            rounded[name] = bits.astype(np.int32).view(np.float32)
    return rounded


def difference(one, other):
    """The largest root mean square of a weight's difference, in units of the weight's own."""
    assert one.keys() == other.keys()
    return max(rms(one[name] - other[name]) / rms(one[name]) for name in one)


def rms(array):
    return float(np.sqrt(np.square(array, dtype=np.float64).mean()))


def whole(world, name, *flags):
    """A run of 30 steps by Mesh TensorFlow."""
    folder = world.folder / name
    if not folder.exists():
        done = world.mesh(folder, 30, *flags)
        assert done.returncode == 0, done.stderr
    return folder


def begun(world, reference, name):
    """A new model directory that begins with another's first checkpoint."""
    folder = world.folder / name
    folder.mkdir()
    for path in reference.glob("model.ckpt-0.*"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("run", RUNS)
def test_training_losses_and_weights_equal_mesh_tensorflow(world, run, processes):
    reference = whole(world, f"mesh {run[:5]}", *RUNS[run])
    folder = begun(world, reference, f"torch {run[:5]} {processes}")
    spec = world.specified(folder, 30, *RUNS[run])
    assert json.loads(spec.read_text())["microbatches"] == (4 if "micro" in run else 1)
    done = world.torch(spec, processes=processes)
    assert done.returncode == 0, done.stderr
    assert "restored 52 of 52 variables" in done.stdout
    assert "optimizer state: restored" in done.stdout
    assert ("gathered weights kept" in done.stdout) == (processes > 1)
    ours, theirs = losses(folder), losses(reference)
    assert ours.keys() == theirs.keys() == set(range(1, 31))
    assert theirs[30] < 0.5 * theirs[1]
    for step, loss in theirs.items():
        assert ours[step] == pytest.approx(loss, rel=1e-4), step
    assert difference(weights(reference), weights(folder / "torch.ckpt-30")) < 1e-4


@pytest.fixture(scope="module")
def halves(world):
    """A run on two processes that was begun and gone on with at step 20, each way of going on."""
    reference = whole(world, "mesh Adafa")
    begun_ = begun(world, reference, "half")
    done = world.torch(world.specified(begun_, 20), processes=2)
    assert done.returncode == 0, done.stderr
    return begun_


def gone_on(world, halves, name, processes):
    folder = world.folder / name
    shutil.copytree(halves, folder)
    done = world.torch(world.specified(folder, 30), processes=processes)
    assert done.returncode == 0, done.stderr
    assert "step 20" in done.stdout
    return folder


def test_resume_is_bit_for_bit_and_on_other_process_counts(world, halves):
    at_once = begun(world, whole(world, "mesh Adafa"), "at once")
    done = world.torch(world.specified(at_once, 30), "--keep_gathered=off", processes=2)
    assert done.returncode == 0, done.stderr
    expected = weights(at_once / "torch.ckpt-30")
    on_two = gone_on(world, halves, "on two", 2)
    assert difference(expected, weights(on_two / "torch.ckpt-30")) == 0
    assert losses(on_two) == losses(at_once)
    on_one = gone_on(world, halves, "on one", 1)
    assert difference(expected, weights(on_one / "torch.ckpt-30")) < 1e-4
    # Only the last steps' checkpoints of one run are there, and nothing unfinished.
    assert not [path for path in on_two.iterdir() if path.name.startswith(".saving")]


@pytest.mark.parametrize(
    ("run", "slots"),
    [
        ("published types", 90),
        pytest.param("Adafactor", 90, marks=pytest.mark.slow),
        pytest.param("AdamW, microbatches", 104, marks=pytest.mark.exhaustive),
    ],
)
def test_resume_moves_a_run_between_engines_and_back(world, tmp_path, run, slots):
    flags = MOVES[run]
    reference = whole(world, f"mesh {run[:5]}", *flags)
    first, there, back = (tmp_path / name for name in ("first", "there", "back"))
    assert world.mesh(first, 10, *flags).returncode == 0
    shutil.copytree(first, there)
    done = world.torch(world.specified(there, 20, *flags), f"--export_mtf={back}")
    assert done.returncode == 0, done.stderr
    assert "step 10" in done.stdout
    done = world.mesh(back, 30, *flags)
    assert done.returncode == 0, done.stderr
    assert f"optimizer state: restored, {slots} of {slots} slots" in done.stdout
    configurations = {(folder / "configuration.json").read_text() for folder in (first, back)}
    assert len(configurations) == 1
    found = losses(first) | losses(there) | losses(back)
    expected = losses(reference)
    assert found.keys() >= set(range(1, 31)) - {1}
    for step, loss in found.items():
        if step > 10:
            assert loss == pytest.approx(expected[step], rel=1e-6), step
    apart = difference(exact_weights(reference, 30), exact_weights(back, 30))
    assert apart < 1e-4
    if run == "published types":
        assert difference(weights(back), exact_weights(back, 30)) > 1e-4  # rounding is larger


@pytest.mark.parametrize("flag", ["export_mtf", "export_hf"])
def test_training_checks_export_folder_before_the_first_step(world, tmp_path, flag):
    from t0.config.specification import RunSpec, from_json
    from t0.torch.processes import World, find_device
    from t0.torch.torch_session import ComputeOptions, train

    spec = from_json(world.specified(tmp_path / "model", 1).read_text(), RunSpec)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused = {tmp_path / "full": "full exists and is not empty"}
    if flag == "export_mtf":
        refused["gs://bucket/model"] = r"not on this machine.*--export_mtf"
    for folder, reason in refused.items():
        with pytest.raises(UserError, match=reason):
            train(spec, World(0, 1, find_device("cpu")), ComputeOptions(**{flag: str(folder)}))
    assert not (tmp_path / "model").exists()


def test_same_batches_on_a_tpu_then_both_engines(world, tmp_path):
    """A TPU's checkpoint has no resume file: only the manifest and the step tell the batches."""
    reference = whole(world, "mesh Adafa")
    folder = tmp_path / "model"
    assert world.mesh(folder, 10).returncode == 0
    for path in folder.glob("*.resume.npz"):
        path.unlink()
    for name in ("data_manifest.json", "data_windows.json"):
        assert (folder / name).read_bytes()
    done = world.mesh(folder, 20)
    assert done.returncode == 0, done.stderr
    assert "records no position" not in done.stdout
    done = world.torch(world.specified(folder, 30), processes=2)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "data_manifest.json").read_text())["start"]["step"] == 0
    expected, found = losses(reference), losses(folder)
    for step in range(1, 31):
        assert found[step] == pytest.approx(expected[step], rel=1e-4), step
    seen = world.command("seen", folder, "--step", "30", program="t0")
    assert seen.returncode == 0, seen.stderr
    assert "dataset: weather  split: train  dataset_row: " in seen.stdout
    other = world.command("seen", reference, "--step", "30", program="t0")
    assert seen.stdout == other.stdout


def test_same_batches_on_virtual_cores_then_both_engines(world, tmp_path):
    """A run that starts on a rehearsed TPU, goes on in TensorFlow, ends in PyTorch: a hash a step.

    The rehearsed pod reads the batches from a stream with TensorFlow's operations.
    """
    program, folder, whole = "tests.torch.hashed_steps", tmp_path / "model", tmp_path / "one"
    folder.mkdir()

    def hashed(run, name, **given):
        done = run(T0_HASHES=str(tmp_path / name), **given)
        assert done.returncode == 0, done.stderr
        files = sorted(tmp_path.glob(f"{name}.*"))
        return [file.read_text().split() for file in files]

    def train_mesh(model_dir, steps):
        words = world.flags(model_dir, steps)
        return functools.partial(world.command, *words, program=f"{program}:train_mesh")

    unbroken = hashed(train_mesh(whole, 15), "whole")[0]
    assert len(set(unbroken)) == 15
    cores = ("utils.tpu_mesh_shape.tpu_topology = '1x1'", "tpu_mesh_shape.model_parallelism = 2")
    rehearsed = [flag for flag in MODEL if "activation_dtype" not in flag]
    done = world.command(
        *("rehearse", "--steps=5", "--shrink=none", f"--data={world.folder}/data"),
        *(f"--batch_hashes={tmp_path}/cores", *world.flags(folder, 15, model=rehearsed)),
        *(f"--gin_param={line}" for line in cores),
        program=f"{program}:rehearse",
        T0_MODEL_DIR=folder,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (tmp_path / "cores").read_text().splitlines()]
    assert lines == [[f"{n}", f"{core}", unbroken[n - 1]] for n in range(1, 6) for core in (0, 1)]
    assert hashed(train_mesh(folder, 10), "mesh") == [unbroken[5:10]]
    spec = world.specified(folder, 15)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    train_torch = functools.partial(world.python, *launch, "-m", program, spec, "--device=cpu")
    assert hashed(train_torch, "torch") == [unbroken[10:], unbroken[10:]]
    assert losses(folder).keys() == set(range(6, 16))


def test_hugging_face_export_has_the_checkpoint_weights(world, halves):
    folder = world.folder / "exported"
    shutil.copytree(halves, folder)
    done = world.torch(world.specified(folder, 20), f"--export_hf={world.folder}/hf")
    assert done.returncode == 0, done.stderr
    assert "nothing to train" in done.stdout
    assert difference(weights(folder / "torch.ckpt-20"), weights(world.folder / "hf")) == 0


@pytest.fixture
def copied(world, halves, tmp_path):
    """A specification that goes on from step 20, and its folder."""
    folder = tmp_path / "model"
    shutil.copytree(halves, folder)
    return world.specified(folder, 30), folder


def test_resume_with_changed_configuration_lists_differences(world, halves, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(halves, folder)
    flags = [f"--gin_param={RATE} = 0.002", "--gin_param=run.batch_size = 8"]
    done = world.torch(world.specified(folder, 21, *flags))
    assert "holds a run with another configuration" in message(done)
    assert "  run.batch_size: was 4, is 8\n" in done.stderr
    assert re.search(r"learning_rate: was 0\.001, is 0\.002\n", done.stderr)
    allowed = world.specified(folder, 21, flags[0], training__allow_config_change=True)
    done = world.torch(allowed)
    assert done.returncode == 0, done.stderr
    assert re.search(r"changed: .*learning_rate: was 0\.001, is 0\.002", done.stdout)


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_checkpoint_missing_shard_gives_one_message(world, copied, processes):
    spec, folder = copied
    part = next((folder / "torch.ckpt-20").glob("shard-00002*"))
    part.unlink()
    done = world.torch(spec, processes=processes)
    assert f"{part} is missing: the checkpoint is damaged" in message(done)


@pytest.mark.parametrize(
    ("processes", "name"),
    [
        (1, "shard-00002"),
        (2, "resume.json"),
        pytest.param(1, "resume.json", marks=pytest.mark.exhaustive),
        pytest.param(2, "shard-00002", marks=pytest.mark.exhaustive),
    ],
)
def test_checkpoint_checksum_mismatch_gives_one_message(world, copied, processes, name):
    spec, folder = copied
    path = next((folder / "torch.ckpt-20").glob(f"{name}*"))
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)
    said = message(world.torch(spec, processes=processes))
    assert f"{path} is damaged" in said
    assert "To resume from an older checkpoint, remove" in said


def without_checksums(folder):
    """The record of a checkpoint as earlier versions wrote it."""
    path = folder / "resume.json"
    record = json.loads(path.read_text())
    del record["sha256"], record["checksum"]
    path.write_text(json.dumps({**record, "schema": 1}))
    return path, record


def test_resume_from_checkpoint_without_checksums(world, copied):
    spec, folder = copied
    without_checksums(folder / "torch.ckpt-20")
    done = world.torch(spec)
    assert done.returncode == 0, done.stderr
    assert "torch.ckpt-20, step 20" in done.stdout


# Fields of a record -> the error.
WRONG_RECORDS = {
    "row": ({"position": {"row": 10**9}}, "row 1,000,000,000 of window"),
    "window": ({"position": {"window": "0"}}, "the position in the data.window is '0'"),
    "tasks": ({"position": {"tasks": {"a": [1]}}}, "tasks.a is [1]"),
    "own": ({"own": ["20"]}, "its own[0] is '20'"),
    "judge": ({"judge": {"metric": "validation_loss", "value": "1"}}, "its judge"),
    "seconds": ({"seconds": -1}, "its seconds is -1"),
    "evaluated": ({"evaluated": 1}, "its evaluated is 1"),
    "began": ({"began": None}, "its began is None"),
}


@pytest.mark.parametrize("name", WRONG_RECORDS)
def test_resume_record_with_wrong_values_gives_one_message(world, copied, name):
    spec, folder = copied
    changes, said = WRONG_RECORDS[name]
    path, record = without_checksums(folder / "torch.ckpt-20")
    changes = {k: {**record[k], **v} if k == "position" else v for k, v in changes.items()}
    path.write_text(json.dumps({**record, **changes, "schema": 1}))
    assert said in message(world.torch(spec))


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is damaged"), ("{}", "is damaged"), ('{"schema": 1, "step": "x"}', "is damaged")],
)
def test_resume_record_that_is_damaged_gives_one_message(world, copied, text, said):
    spec, folder = copied
    (folder / "torch.ckpt-20" / "resume.json").write_text(text)
    assert said in message(world.torch(spec))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_sequences": 5}, "a batch of 5 sequences cannot be divided over 2 processes"),
        ({"batch_sequences": 1}, "a batch of 1 sequences cannot be divided over 2 processes"),
        ({"init_variable_filter": "encoder"}, "init_variable_filter is 'encoder'"),
        ({"training__evaluate_every_steps": 2}, "evaluates the held-out loss only"),
    ],
)
def test_training_unsupported_settings_are_refused_before_start(world, tmp_path, changes, said):
    import torch

    from t0.config.specification import RunSpec, from_json
    from t0.torch import torch_session
    from t0.torch.processes import World

    spec = from_json(world.specified(tmp_path / "model", 30, **changes).read_text(), RunSpec)
    second = World(1, 2, torch.device("cpu"))  # of two processes; it waits for no other before
    with pytest.raises(UserError, match=re.escape(said)):
        torch_session.train(spec, second, torch_session.ComputeOptions())


def test_training_on_uncached_tasks_names_caching_command(world, tmp_path):
    live = json.loads(world.specified(tmp_path / "model", 30).read_text())["data"]["tasks"]
    live = [{**task, "cache_files": []} for task in live]
    spec = world.specified(tmp_path / "model", 30, data__tasks=live)
    assert "seqio_cache_tasks" in message(world.torch(spec))


def test_divergence_stops_training(world, tmp_path):
    folder = tmp_path / "model"
    # The third step's batch meets weights that are not finite.
    spec = world.specified(folder, 30, schedule__parameters__learning_rate=1e38)
    done = world.torch(spec, processes=2)
    assert "training has diverged" in message(done)


@pytest.mark.parametrize(
    ("rate", "flags", "said"),
    [
        (3e38, (), "weights are not finite numbers"),
        (1e30, ("--gin_param=train_loop.validate_every_steps = 1",), "the held-out loss is"),
    ],
)
def test_divergence_after_last_step_saves_no_checkpoint(world, tmp_path, rate, flags, said):
    folder = tmp_path / "model"
    spec = world.specified(folder, 1, *flags, schedule__parameters__learning_rate=rate)
    line = message(world.torch(spec))
    assert said in line and "at step 1: training has diverged" in line
    assert [path.name for path in folder.glob("torch.ckpt-*")] == ["torch.ckpt-0"]


POWER = "mesh_tensorflow.optimize.adafactor_decay_rate_pow"
# A field of a specification -> (its value, the error).
WRONG_FIELDS = {
    "training__log_every_steps": ("5", "training.log_every_steps is '5'; expected a whole number"),
    "training__activation_dtype": ("float64", "expected 'auto' or 'float32' or 'bfloat16'"),
    "training__validation_batches": (2**50, "training.validation_batches is"),
    "training__unfilled_variables": ("x", "expected a list"),
    "training__rows": (1, "unknown field 'rows'"),
    "keep_checkpoints__every_steps": ([], "keep_checkpoints.every_steps is []"),
    "keep_checkpoints__best": (1, "unknown field 'best'"),
    "optimizer__parameters__beta1": (None, "optimizer.parameters.beta1 is None"),
    "optimizer__parameters__momentum": (0.9, "unknown field 'momentum'"),
    "optimizer__parameters__clipping_threshold": (0, "clipping_threshold is 0"),
    "optimizer__parameters__decay_rate": (
        {"selector": "mesh_tensorflow.optimize.adafactor_decay_rate_adam", "parameters": {}},
        f"optimizer.parameters.decay_rate.selector is .*; expected '{POWER}'",
    ),
    "optimizer__parameters__decay_rate__parameters": ({"offset": 9}, "has no field 'exponent'"),
    "optimizer__parameters__decay_rate__parameters__offset": (9, "offset is 9 at step 0"),
    "schedule__parameters__learning_rate": ("0.1", "'learning_rate': '0.1'"),
    "schedule__parameters__peak": (0.1, "unexpected keyword argument 'peak'"),
    "schedule__parameters": ({}, "missing .* argument: 'learning_rate'"),
    "data__window_rows": (2**40, "window_rows is"),
    "batch_sequences": (2**20, "a batch or window has more than"),
}


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_specification_wrong_fields_give_one_message(world, tmp_path, field):
    value, said = WRONG_FIELDS[field]
    line = message(world.torch(world.specified(tmp_path / "model", 2, **{field: value})))
    assert re.search(said if ".*" in said else re.escape(said), line), line
    assert not list(tmp_path.glob("model/*-2*"))


def test_training_takes_gin_flags_instead_of_specification(world, tmp_path):
    from tests.torch.engine_world import MODEL

    flags = [
        "--module_import=t0.seqio_tasks",
        f"--additional_task_cache_dirs={world.folder}/cache",
        f"--model_dir={tmp_path}/model",
        "--gin_param=run.train_steps = 2",
    ]
    done = world.torch(*flags, *MODEL)
    assert done.returncode == 0, done.stderr
    assert len(losses(tmp_path / "model")) == 2
    assert "no such mixture" not in done.stderr
    wrong = world.torch(*flags, *MODEL, "--gin_param=MIXTURE_NAME = 'nowhere'", processes=2)
    assert wrong.returncode
    assert wrong.stderr.count("nowhere") >= 1
    assert "t5_mesh_transformer: " in wrong.stderr


def test_model_directory_records_equal_mesh_tensorflow(world, tmp_path):
    theirs, ours = (tmp_path / name for name in ("mesh", "torch"))
    assert world.mesh(theirs, 1, *PUBLISHED).returncode == 0
    done = world.torch(world.specified(ours, 1, *PUBLISHED))
    assert done.returncode == 0, done.stderr
    read = {folder: (folder / "configuration.json").read_text() for folder in (theirs, ours)}
    assert json.loads(read[ours]) == json.loads(read[theirs])
    for name in ("prompts.json", "spiece.model"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert (ours / "commands" / "command").is_file()
    for name in ("operative_config.gin", "operative_config.t0.gin"):
        lines = [
            [x for x in (folder / name).read_text().splitlines() if "train_steps" not in x]
            for folder in (ours, theirs)
        ]
        assert lines[0] == lines[1]


def test_resume_compares_configuration_recorded_by_mesh_tensorflow(world, tmp_path):
    folder = tmp_path / "model"
    assert world.mesh(folder, 1).returncode == 0
    spec = world.specified(folder, 2, "--gin_param=dropout_rate = 0.25")
    done = world.torch(spec)
    assert "holds a run with another configuration" in message(done)
    assert "dropout_rate: was 0.0, is 0.25" in done.stderr
    assert not list(folder.glob("torch.ckpt-*"))
