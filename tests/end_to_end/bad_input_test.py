"""A user's mistake: exit status 2, one message that says what to do, no traceback."""

import re
import shlex
import shutil
import socket

import pytest

from tests.end_to_end.command_lines import EVALUATE, LENGTHS, TRAIN, TWO_LAYERS, message


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train"], ["unexpected argument 'train'"]),
        (["--mode=train"], ["--mode is for --use_model_api", "run.mode"]),
        (["--use_model_api"], ["--use_model_api needs --mode"]),
        (["--module_import=t0.seqio_task"], ["unknown module 't0.seqio_task'", "t0.seqio_tasks"]),
        (["--tpu=local"], ["--tpu=local cannot start: this machine has no TPU"]),
        (["--tpu=my-tpu"], ["Set --gcp_project and --tpu_zone", "worker 0"]),
        (["--tpu=grpc://127.0.0.1:9"], ["TensorFlow servers do not answer: 127.0.0.1:9"]),
        (["--gin_file=eval.gin"], ["needs MIXTURE_NAME (eval.gin:"]),
        (
            ["--gin_file=runs/finetune.gin", "--gin.TRAIN_STEPS=5"],
            ["INIT_CHECKPOINT (runs/finetune.gin:", "TASK_FEATURE_LENGTHS (runs/finetune.gin:"],
        ),
        ([*TRAIN, "--gin.MODEL_DIR='/other'"], ["MODEL_DIR = '/other' differ"]),
        ([*TRAIN, "--gin.run.optimizer", "'adamw'"], ["@NAME without quotes"]),
        ([*TRAIN, "--gin_param=run.mode = 'trian'"], ["unknown mode 'trian'"]),
        (TRAIN[1:], ["run.train_dataset_fn is not set", "--gin_file=dataset.gin"]),
        (
            [*TRAIN, "--gin_param=run.init_checkpoint = '/no/model.ckpt-1'"],
            ["/no/model.ckpt-1 does not exist, and is not the prefix of a checkpoint"],
        ),
        ([*TRAIN, "--gin_param=MIXTURE_NAME = 'broken_train'"], ["broken/train.jsonl", "line 8"]),
        pytest.param(
            [
                *TRAIN,
                "--gin_param=learning_rate_schedules.constant_learning_rate.learning_rate=1e38",
            ],
            ["the loss is", "training has diverged"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_user_error_is_one_message(command, tmp_path, arguments, parts):
    text = message(command(f"--model_dir={tmp_path / 'model'}", *arguments))
    for part in parts:
        assert part in text


def test_unwritable_model_dir_is_refused(command, tmp_path):
    (tmp_path / "file").write_text("")
    text = message(command(f"--model_dir={tmp_path}/file/model", *TRAIN))
    assert f"the model directory {tmp_path}/file/model cannot be written" in text


@pytest.mark.slow
def test_missing_cache_error_has_the_caching_command(command, server, world, tmp_path):
    cache = tmp_path / "cache"
    cached = ["--module_import=t0.seqio_tasks", f"--additional_task_cache_dirs={cache}"]
    arguments = [f"--model_dir={tmp_path / 'model'}", *cached, *TRAIN]
    arguments += ["--gin_param=MIXTURE_NAME = 'weather_retell'"]
    arguments += ["--gin_param=mesh_train_dataset_fn.use_cached = True"]
    done = command(*arguments, tasks=False)
    assert "1 of the 1 tasks of weather_retell are not cached" in message(done)
    (line,) = (line for line in done.err.splitlines() if "seqio_cache_tasks" in line)
    program, *words = shlex.split(line)
    caching = server.run(*words, program=program)
    assert caching.status == 0, caching.err
    assert (cache / "weather_retell" / "COMPLETED").exists()
    only_checked = f"--save_spec={tmp_path / 'spec.json'}"  # with the same checks as a training
    done = command(*arguments, only_checked, tasks=False)
    assert done.status == 0, done.err
    live = [*arguments, "--gin_param=mesh_train_dataset_fn.use_cached = False"]
    live += [only_checked, f"--model_dir={tmp_path / 'live'}"]
    hint = f"weather_retell is cached in {cache}, and the cache is not read."
    assert hint in command(*live, tasks=False).err
    # The data changes: training stops, with the command that refreshes the cache.
    changed = shutil.copytree(world.folder / "data", tmp_path / "changed")
    (rows,) = (changed / "weather").rglob("train.*")
    rows.write_text(rows.read_text().replace("rain", "hail"))
    stale = [*arguments, f"--data_dir={changed}", f"--model_dir={tmp_path / 'stale'}"]
    stale += [only_checked]
    text = message(command(*stale, tasks=False))
    assert f"the data of split 'train': {rows}. Refresh with: " in text
    refresh = text.partition("Refresh with: ")[2].partition(" (or use them")[0]
    allowed = command(*stale, "--allow_stale_cache", tasks=False)
    assert allowed.status == 0, allowed.err
    program, *words = shlex.split(refresh)
    caching = server.run(*words, program=program)
    assert f"rebuilding (1): weather_retell: changed since: the data of split 'train': {rows}" in (
        caching.out
    )
    done = command(*stale, tasks=False)
    assert done.status == 0, done.err
    (tmp_path / "no data").mkdir()
    absent = message(command(*live, f"--data_dir={tmp_path / 'no data'}", tasks=False))
    assert "no rows for the dataset 'weather'" in absent and hint in absent


def test_vocabulary_of_another_size_is_refused_at_the_start(command, world, model_dir, tmp_path):
    other = f"--vocab={world.folder / 'other.model'}"
    sizes = [" ids (512 padded", "trained with 256"]
    live = "--gin_param=mesh_train_dataset_fn.use_cached = False"
    runs = [
        [f"--model_dir={model_dir}", *EVALUATE],
        [f"--model_dir={model_dir}", *TRAIN, live],
        [f"--model_dir={tmp_path / 'new'}", *TRAIN, live],
    ]
    runs[-1] += [f"--gin_param=run.init_checkpoint = '{model_dir}/model.ckpt-20'"]
    for arguments in runs:
        text = message(command(other, *arguments))
        assert all(part in text for part in sizes), text
    assert not list((tmp_path / "new").glob("model.ckpt*"))


def test_training_with_all_steps_done_is_one_line(command, model_dir, tmp_path):
    initial = f"--gin_param=run.init_checkpoint = '{model_dir}/model.ckpt-20'"
    steps = "--gin_param=run.train_steps = 20"
    text = message(command(f"--model_dir={tmp_path}", *TRAIN, initial, steps))
    assert "run.train_steps = 20 counts from the start of pretraining" in text
    assert "run.train_steps = 40" in text
    done = command(f"--model_dir={model_dir}", *TRAIN, steps)
    assert done.status == 0
    assert done.out.startswith(f"nothing to train: {model_dir} is at step 20 of 20. To continue")
    assert "for 1,000 steps more, 1020" in done.out


def test_resume_with_another_model_is_refused(command, model_dir):
    longer = ["--gin_param=d_ff = 128", "--gin_param=run.train_steps = 40"]
    text = message(command(f"--model_dir={model_dir}", *TRAIN, *longer))
    assert "d_ff: 64 in the checkpoint, 128 in the gin files" in text
    assert f"Use its own gin file, --gin_file={model_dir}/operative_config.gin" in text


def test_checkpoint_of_another_depth_is_not_scored(command, model_dir, tmp_path):
    summaries = f"--gin_param=run.eval_summary_dir = '{tmp_path}'"
    more = [f"--gin_param=run.sequence_length = {LENGTHS}", "--gin_param=run.batch_size = 8"]
    more += ["--gin_param=get_variable_dtype.master_dtype = 'float32'", summaries]
    text = message(command(f"--model_dir={model_dir}", *EVALUATE, *more, TWO_LAYERS))
    assert "num_layers: 1 in the checkpoint, 2 in the gin files" in text
    assert not list(tmp_path.glob("results_*"))


@pytest.fixture
def score(command, model_dir, tmp_path):
    def score(task):
        names = [f"--gin_param=MIXTURE_NAME = '{task}'"]
        names.append(f"--gin_param=run.eval_summary_dir = '{tmp_path}'")
        names += [f"--gin_param=run.sequence_length = {LENGTHS}", "--gin_param=run.batch_size = 8"]
        dtype = "--gin_param=get_variable_dtype.master_dtype = 'float32'"
        return command(f"--model_dir={model_dir}", *EVALUATE, *names, dtype)

    return score


def test_rank_evaluation_of_hidden_labels_is_refused(score, tmp_path):
    text = message(score("hidden_which_word_score_eval"))
    assert (
        "none of its 12 examples has a correct choice. The labels of this split are hidden" in text
    )
    assert not list(tmp_path.glob("results_*"))
    text = message(score("weather_which_word"))
    assert "not a rank-evaluation task" in text
    assert "weather_which_word_score_eval" in text


@pytest.mark.slow
def test_hidden_label_examples_are_left_out_of_the_score(score):
    done = score("halfhidden_which_word_score_eval")
    assert done.status == 0, done.err
    assert "6 inputs of 1 tasks" in done.out  # the rows without a target are not cached


@pytest.mark.usefixtures("cached")
def test_ctrl_c_saves_and_prints_how_to_resume(command, tmp_path):
    words = ["--gin_param=run.train_steps = 1000000"]
    words += ["--gin_param=mesh_train_dataset_fn.use_cached = True"]  # rendering takes longer
    done = command(f"--model_dir={tmp_path}", *TRAIN, *words, interrupt_at="step 1/")
    assert done.status == 130
    assert "Traceback" not in done.err
    assert re.search(r"stopped by SIGINT at step (\d+) of 1,000,000: everything so far", done.out)
    assert "the same command resumes from there" in done.out
    assert len(list(tmp_path.glob("model.ckpt-*.index"))) == 2


EIGHT = "--gin_param=run.batch_size = 8"


def test_faults_of_a_command_are_reported_together_and_leave_no_file(command, tmp_path):
    wrong = [
        "--gin_param=MIXTURE_NAME = 'weather_trian'",
        "--gin_param=run.keep_checkpoint_max = -1",
    ]
    folder = tmp_path / "model"
    done = command(f"--model_dir={folder}", *TRAIN, *wrong, f"--checkpoint={tmp_path}/none")
    assert done.status == 2
    first, *faults = done.err[done.err.index("3 faults") :].splitlines()
    assert first == "3 faults:"
    assert faults[0].startswith("  - run.keep_checkpoint_max is -1")
    assert faults[1].startswith("  - unknown mixture or task 'weather_trian'. Did you mean")
    assert f"{tmp_path}/none does not exist" in faults[2]
    assert not folder.exists()


def test_faults_of_the_model_api_are_reported_together_and_leave_no_file(command, tmp_path):
    folder = tmp_path / "model"
    words = ["--use_model_api", "--mode=train", "--mixture_or_task=weather_trian"]
    done = command(*words, "--checkpoint_steps=3", f"--model_dir={folder}")
    assert done.status == 2
    first, *faults = done.err[done.err.index("2 faults") :].splitlines()
    assert "--checkpoint_steps and --checkpoint_mode=specific need each other" in faults[0]
    assert "unknown mixture or task 'weather_trian'" in faults[1]
    assert not folder.exists()


def test_tpu_run_without_cache_or_model_dir_is_refused(command, tmp_path):
    mesh = "--gin_file=mesh/v3-8.gin"
    with socket.create_server(("127.0.0.1", 0)) as server:
        tpu = f"--tpu=grpc://127.0.0.1:{server.getsockname()[1]}"
        faults = command(tpu, *TRAIN, mesh).err
        text = message(command(tpu, f"--model_dir={tmp_path}/model", *TRAIN, mesh, EIGHT))
    # All faults are reported together.
    assert "no model directory is set" in faults
    assert "4 is not a multiple of 8 (the 8 replicas of the mesh)" in faults
    assert "mesh_train_dataset_fn.use_cached is not set" in faults
    assert "mesh_train_dataset_fn.use_cached is not set" in text
    assert "seqio_cache_tasks --tasks=weather_train --output_cache_dir=" in text
    assert not list(tmp_path.glob("model/model.ckpt*"))
