"""T5X's spelling of gin bindings on the command line; nothing here needs TensorFlow."""

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t0.cli import cache_tasks, main, plan
from t0.cli.verb_parser import VerbParser
from t0.config import flags
from t0.config.flag_table import GIN_MODES, MODEL_API_MODES, TABLE
from t0.config.saved_config import mask_command, mask_secrets
from t0.errors import UserError
from tests.helpers.cases import as_subtests

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "t5_mesh_transformer"


def params(*words):
    return flags.parse([COMMAND, *words]).gin_param


def test_gin_bindings_keep_the_order_of_the_command_line():
    words = ["--gin.A=1", "--gin_param=A = 2", "--gin.run.train_steps=5", "-gin.enc/d.x = 'a b'"]
    assert params(*words) == ["A=1", "A = 2", "run.train_steps=5", "enc/d.x= 'a b'"]


def test_gin_binding_value_may_be_the_next_word():
    given = flags.parse([COMMAND, "--gin.B", "-3", "--model_dir=/m", "--gin.C", "{'a': 1}"])
    assert given.gin_param == ["B=-3", "C={'a': 1}"]
    assert given.model_dir == "/m"


@pytest.mark.parametrize("words", [["--gin.A"], ["--gin.A", "--tpu=x"], ["--gin.=3"]])
def test_gin_binding_without_name_or_value_is_refused(words):
    with pytest.raises(UserError, match="--gin.* needs a name and a value.*TRAIN_STEPS=1000"):
        params(*words)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12)))
def test_gin_bindings_leave_other_words_unchanged(words):
    others = [word for word in words if not word.lstrip("-").startswith("gin.")]
    assert list(flags.gin_words_as_params(others)) == others


def test_gin_file_search_paths_from_flags():
    given = flags.parse(
        [COMMAND, "--gin_search_paths=/c,/d", "--gin_location_prefix=/a,/b", "--dry_run"]
    )
    assert flags.gin_folders(given) == ["/a", "/b", "/c", "/d"]
    assert given.dry_run


def test_flags_set_gin_macros():
    given = flags.parse([COMMAND, "--model_dir=/m", "--epochs=2"])
    assert {"MODEL_DIR", "TRAIN_STEPS"} <= flags.macros_set_by_flags(given)
    assert not flags.macros_set_by_flags(flags.parse([COMMAND]))


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (["--gin.wandb.api_key='abc'"], ["--gin.wandb.api_key=***"]),
        (["--gin.my/hub.token", "abc"], ["--gin.my/hub.token", "***"]),
        (["--gin.PASSWORD = 'abc'"], ["--gin.PASSWORD = ***"]),
        (["--gin.URL='s3://me:abc@host'"], ["--gin.URL='s3://***@host'"]),
        (["--gin_param=hub.key = 'abc'"], ["--gin_param=hub.key = ***"]),
        (
            ["--gin_param=f.options = {'api_key': 'abc'}"],
            ["--gin_param=f.options = {'api_key': ***"],
        ),
        (["AWS_SECRET_ACCESS_KEY=abc"], ["AWS_SECRET_ACCESS_KEY=***"]),
        (["AWS_ACCESS_KEY_ID=abc", "HF_TOKEN=abc"], ["AWS_ACCESS_KEY_ID=***", "HF_TOKEN=***"]),
        (["DB_PASSWD=abc def"], ["DB_PASSWD=***"]),
        (
            ["--gin_file=https://h/x?X-Amz-Signature=abc"],
            ["--gin_file=https://h/x?X-Amz-Signature=***"],
        ),
        (["--gin_file=https://h/x.gin?sig=abc"], ["--gin_file=https://h/x.gin?sig=***"]),
        (["--vocab=ftp://me:abc@h/v"], ["--vocab=ftp://***@h/v"]),
        (["--note=hf_abcdefghijklmnopqrst"], ["--note=***"]),
        (["--hf_auth_token", "abc"], ["--hf_auth_token", "***"]),
        (["--gin_param=feature_key = 'label'"], ["--gin_param=feature_key = 'label'"]),
        (["--gin_param=token_dropout_rate = 0.1"], ["--gin_param=token_dropout_rate = 0.1"]),
        (["--gin_param=keys = 2"], ["--gin_param=keys = 2"]),
        (["--gin.TOKENS_PER_BATCH=4"], ["--gin.TOKENS_PER_BATCH=4"]),
        (["--gin.TRAIN_STEPS", "4"], ["--gin.TRAIN_STEPS", "4"]),
    ],
)
def test_secrets_are_masked_in_the_command_record(words, recorded):
    assert shlex.split(mask_command([COMMAND, *words])) == [COMMAND, *recorded]


def test_secrets_are_masked_in_a_dry_run():
    line = "hub.token = 'abc'  # the command line"
    assert mask_secrets(line) == "hub.token = ***"


@pytest.mark.parametrize(
    "name", ["additional_task_cache_dirs", "tasks_additional_cache_dirs", "cache_dirs"]
)
def test_cache_folders_have_three_names(name):
    values = flags.parse(
        [COMMAND, f"--{name}=/a,/b", "--cache_dirs", "/c", "--gin.A='--cache_dirs'"]
    )
    assert values.additional_task_cache_dirs == ["/a", "/b", "/c"]
    assert values.gin_param == ["A='--cache_dirs'"]
    words = ["seqio_cache_tasks", "--output_cache_dir=/o", f"--{name}=/a", "--cache_dirs=/b"]
    assert cache_tasks.parse(words).tasks_additional_cache_dirs == ["/a", "/b"]
    parser = VerbParser("plan", "plans a run", plan)
    run_words = parser.parse([f"--{name.replace('_', '-')}=/a"]).run_words
    assert flags.parse([COMMAND, *run_words]).additional_task_cache_dirs == ["/a"]


def test_plan_accepts_the_flags_of_a_run(monkeypatch):
    kept = []
    monkeypatch.setattr(plan, "main", lambda args: kept.append(args) or 0)
    words = ["--gin.A=1", "--gin.B", "2", "--gin_param=C = 3", "--gin_search_paths=/x", "--dry_run"]
    assert main.main(["plan", *words, "--exact"]) == 0
    (args,) = kept
    params = ["--gin_param=A=1", "--gin_param=B=2", "--gin_param=C = 3"]
    assert args.run_words == [*params, "--gin_search_paths=/x", "--dry_run"]
    assert args.exact


@pytest.mark.parametrize(
    ("words", "mode", "message"),
    [
        (
            ["--seed=3"],
            "score_eval",
            "--seed belongs to training and inference .*; the mode is 'score_eval'",
        ),
        (["--max_hours=1"], "infer", "--max_hours belongs to training; the mode is 'infer'"),
        (["--epochs=2"], "eval", "--epochs belongs to training"),
        (["--finetune_steps=2"], "export", "--finetune_steps belongs to training"),
        (["--allow_config_change"], "eval", "--allow_config_change belongs to training"),
        (["--num_shards=2"], "train", r"--num_shards belongs to inference .*runs/infer.gin"),
        (["--activation_dtype=auto"], "export_infer", "--activation_dtype .*score_eval"),
    ],
)
def test_flag_that_the_mode_does_not_read_is_an_error(words, mode, message):
    given = flags.parse([COMMAND, *words])
    with pytest.raises(UserError, match=message):
        flags.check_mode(given, mode)


def test_flag_of_stock_t5_that_is_not_read_gets_a_note():
    given = flags.parse([COMMAND, "--train_steps=5", "--model_dir=/m", "--checkpoint_mode=all"])
    notes = flags.check_mode(given, "train")
    assert len(notes) == 2
    assert all("--use_model_api only" in note for note in notes)


@pytest.mark.parametrize("mode", GIN_MODES)
def test_flags_that_are_read_set_gin_parameters(mode):
    given = flags.parse([COMMAND, "--seed=3", "--activation_dtype=bfloat16", "--shard_id=0"])
    read = [flag.name for flag in TABLE if mode in flag.modes and given[flag.name].present]
    found = flags.gin_parameters(given, mode)
    assert sorted(flag for _, flag in found.values()) == sorted(f"--{name}" for name in read)


def test_flags_table_names_existing_flags_and_modes():
    known = flags.command_flags()
    for flag in TABLE:
        assert flag.name in known
        assert set(flag.modes) <= {*GIN_MODES, *MODEL_API_MODES.values()}


@pytest.mark.parametrize(
    ("words", "mode", "message"),
    [
        (["--seed=3"], "eval", "--seed belongs to --mode=train and --mode=finetune; .* 'eval'"),
        (["--activation_dtype=auto"], "export_score", "--mode=eval and --mode=predict and"),
        (["--epochs=1"], "train", "--epochs belongs to runs without --use_model_api; .*steps"),
        (["--shard_id=0"], "predict", "--shard_id belongs to runs without --use_model_api"),
        (["--allow_config_change", "--tpu=t"], "train", "change is for runs without --tpu"),
        (["--activation_dtype=auto", "--tpu=t"], "eval", "gin's get_variable_dtype"),
    ],
)
def test_flag_that_the_model_api_does_not_read_is_an_error(words, mode, message):
    given = flags.parse([COMMAND, "--use_model_api", *words])
    with pytest.raises(UserError, match=message):
        flags.check_mode(given, MODEL_API_MODES[mode])


@pytest.mark.parametrize("word", ["--seed=3", "--allow_config_change", "--activation_dtype=auto"])
def test_flag_of_the_training_loop_is_an_error_on_tpu(word):
    with pytest.raises(UserError, match="is for runs without --tpu"):
        flags.check_mode(flags.parse([COMMAND, word, "--tpu=t"]), "train")
    for word in ("--epochs=2", "--max_hours=1"):
        assert flags.check_mode(flags.parse([COMMAND, word, "--tpu=t"]), "train") == []


def test_flags_of_the_model_api_set_the_gin_parameters_of_gin_runs():
    given = flags.parse([COMMAND, "--use_model_api", "--activation_dtype=bfloat16"])
    for mode, alike in {"finetune": "train", "eval": "eval", "score": "score_from_strings"}.items():
        found = flags.gin_parameters(given, MODEL_API_MODES[mode])
        assert found == flags.gin_parameters(given, alike) != {}


@as_subtests("name", sorted(name for names in flags._GUESSES for name in names.split()))
def test_common_guesses_name_flags_and_gin_parameters_that_exist(name):
    advice = flags.advise(name)
    known = flags.command_flags()
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    gin = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "gin").rglob("*.gin"))
    for flag in re.findall(r"--([\w.]+)=", advice):
        if flag.startswith("gin."):
            function, _, parameter = flag.removeprefix("gin.").rpartition(".")
            assert f"{function}.{parameter}".strip(".") in gin or (
                f"### {function}\n" in reference.replace("### t0.train_loop", "### train_loop")
            )
        else:
            assert flag in known or flag in ("metrics", "device")


def test_flag_of_the_model_api_without_it_names_the_gin_parameter():
    (note,) = flags.check_mode(flags.parse([COMMAND, "--batch_size=16"]), "train")
    assert note.endswith("it has no effect here. Use --gin.BATCH_SIZE=16 (sequences)")


def test_words_of_flags_are_read_back_as_the_same_flags():
    lengths = "--gin_param=run.sequence_length = {\n  'inputs': 8}"
    words = ["--model_dir=/m", lengths, "--gin_param=b = 2", "--data_dir=a,b", "--noskip_bad_rows"]
    found = flags.words_of(flags.parse([COMMAND, *words]))
    assert sorted(found) == sorted(words)
    assert found.index(lengths) < found.index("--gin_param=b = 2")
