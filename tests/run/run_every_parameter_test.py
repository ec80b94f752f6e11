"""No gin parameter is ignored: each reaches the run, or a line or an error says no.

The parameters of this project are those of docs/reference.md, read from the code. The parameters of
Mesh TensorFlow and T5 are those of the functions that our modes replace; those of decoding and of
checkpoints are in `inference_jobs_test`.
"""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from t0.compat import gin, gin_config, mesh_utils
from t0.config import parse
from t0.config.bindings import registered
from t0.config.flag_table import GIN_MODES
from t0.config.plain_values import parameters_of
from t0.errors import UserError
from t0.evaluation import settings as evaluation_settings
from t0.feeding import data_spec
from t0.run import configure, mesh_settings, modes, spec_from_gin, task_evaluation
from t0.run.configured_run import ConfiguredRun
from t0.run.parsed_run import ParsedRun
from t0.torch import schedules
from t0.training import graph
from t0.training.schedules import SCHEDULES
from tests.helpers.programs import loaded

ROOT = Path(__file__).resolve().parents[2]
# Functions without a row in `parse.READ_IN`: the tasks call them, or the macros of run files.
IN_EVERY_MODE = (
    "bleu",
    "qa",
    "sni",
    "mixtures",
    "ul2",
    "vocabulary",
    "folder_of_checkpoint",
    "step_of_checkpoint",
    "type_of_checkpoint",
)
# The optimizers and schedules.
CHOSEN = (
    "t0.AdamWOptimizer",
    "t0.AdamWScaleOptimizer",
    "t0.MomentumSGDOptimizer",
    *(f"t0.{name}" for name in SCHEDULES),
)


def documented():
    """Function -> parameter -> whether it has a default."""
    module = loaded(ROOT / "docs" / "make_reference.py")
    found, name = {}, None
    for line in module._format_parameters():
        if line.startswith("### t0."):
            name = line.split(".")[1].strip()
            found[name] = {}
        elif line.startswith("| `"):
            parameter, default, _ = re.findall(r"\|([^|]*)", line)[:3]
            found[name][parameter.strip(" `")] = default.strip(" `")
    return found


DOCUMENTED = documented()
ROWS = [(name, parameter) for name, those in DOCUMENTED.items() for parameter in those]


@pytest.fixture(scope="module", autouse=True)
def names():
    configure.register()
    from t0.tasks import instruction_tasks, metrics, recipe_tasks  # noqa: F401 (names of tasks)


@pytest.fixture(autouse=True)
def no_bindings():
    gin.clear_config()
    yield
    gin.clear_config()


def value_for(name, parameter):
    """A value other than the default, as gin writes it."""
    default = DOCUMENTED[name][parameter]
    try:
        known = ast.literal_eval(default)
    except (SyntaxError, ValueError):
        known = None
    if isinstance(known, bool):
        return str(not known)
    if isinstance(known, int | float):
        return repr(known + 1 if isinstance(known, int) else known / 2 or 0.5)
    return "('x',)" if isinstance(known, tuple) else "3" if parameter != "path" else "'x'"


def test_gin_parameters_have_a_row_for_every_function():
    known = [name.removeprefix("t0.") for name in (*parse.READ_IN, *CHOSEN)]
    assert sorted([*known, *IN_EVERY_MODE]) == sorted(DOCUMENTED)


@pytest.mark.parametrize(("name", "parameter"), ROWS)
def test_gin_parameter_is_bound_or_reported_as_unread_by_mode(name, parameter):
    binding = f"t0.{name}.{parameter} = {value_for(name, parameter)}"
    parsed = parse.parse([], [binding])
    expected = ast.literal_eval(value_for(name, parameter))
    found = parameters_of(f"t0.{name}")[parameter]
    assert found == (list(expected) if isinstance(expected, tuple) else expected)
    for mode in GIN_MODES:
        lines = parse.find_unread_params(parsed, mode)
        read = name in IN_EVERY_MODE or mode in parse.READ_IN.get(f"t0.{name}", ())
        assert len(lines) == (not read), mode
        assert all(line.startswith(f"{name}.{parameter} ") for line in lines)


def test_gin_refuses_parameters_that_the_caller_passes(subtests):
    passed = [(n, p) for n, found in registered("t0").items() for p in found.denylist or ()]
    assert len(passed) > 10
    for name, parameter in passed:
        with (
            subtests.test(f"{name}.{parameter}"),
            pytest.raises((UserError, ValueError), match=parameter),
        ):
            parse.parse([], [f"t0.{name}.{parameter} = 1"])


@pytest.mark.parametrize("selector", CHOSEN)
def test_gin_optimizer_or_schedule_is_read_only_in_training(selector):
    parameter = next(iter(DOCUMENTED[selector.removeprefix("t0.")]))
    kind = "optimizer" if "Optimizer" in selector else "learning_rate_schedule"
    parsed = parse.parse([], [f"{selector}.{parameter} = 2", f"run.{kind} = @{selector}"])
    assert parse.find_unread_params(parsed, "train") == []
    assert len(parse.find_unread_params(parsed, "infer")) == 1
    # The PyTorch engine reads the parameters of the specification.
    configured = spec_from_gin.configured(f"run.{kind}")
    assert configured.parameters[parameter] == 2
    if kind != "optimizer":
        assert callable(schedules.schedule(configured, 10))


def test_activation_dtype_is_set_on_the_command_line_without_tpu():
    from t0.config import flags
    from t0.run.binding_checks import check_bindings

    binding = "get_variable_dtype.activation_dtype = 'bfloat16'"
    given = flags.parse(["run", f"--gin_param={binding}"])
    parsed = parse.parse([], given.gin_param)
    assert check_bindings(ParsedRun(given, "train"), parsed) == []
    found = flags.gin_parameters(given, "train")
    assert found["t0.train_loop.activation_dtype"][0] == "bfloat16"
    # Of a file, such as T5's for TPUs, it is not a wish of the user's.
    gin.clear_config()
    given = flags.parse(["run"])
    parsed = parse.parse(["models/t5.1.1.small.gin"], [])
    check_bindings(ParsedRun(given, "train"), parsed)
    assert gin_config.query_parameter("get_variable_dtype.activation_dtype") == "bfloat16"
    assert not given["activation_dtype"].present


@pytest.mark.parametrize(
    ("binding", "mode", "message"),
    [
        ("get_variable_dtype.activation_dtype = 'float16'", "train", "'float16'; expected"),
        ("get_variable_dtype.slice_dtype = 'bfloat16'", "train", "slice_dtype is set"),
    ],
)
def test_activation_dtype_of_other_types_is_refused(binding, mode, message):
    from t0.config import flags
    from t0.run.binding_checks import check_bindings

    given = flags.parse(["run", f"--gin_param={binding}"])
    with pytest.raises(UserError, match=message):
        check_bindings(ParsedRun(given, mode), parse.parse([], given.gin_param))


# Function of Mesh TensorFlow or T5 that one of our modes replaces -> the parameters that our code
# reads.
FIELDS = {field.name for field in dataclasses.fields(graph.TrainingSpec)}
DATA = set(inspect.signature(data_spec.data_spec).parameters)
APPLIED = {
    "run": FIELDS - {"outer_batch_size", "init_variable_filter", "model_info_file"},
    "tpu_estimator_model_fn": {*graph._OF_MODEL_FN},
    "mesh_train_dataset_fn": DATA - {"default_seed", "choices"},
    "mesh_eval_dataset_fn": {*evaluation_settings._READING, "mixture_or_task_name"},
}
# The same for single parameters -> a text of the module that reads the parameter.
READERS = {
    "run": {
        "train_dataset_fn": ("run/modes.py", 'arguments["train_dataset_fn"]'),
        "eval_dataset_fn": ("run/task_evaluation.py", 'arguments["eval_dataset_fn"]'),
        "dataset_split": ("run/task_evaluation.py", 'arguments["dataset_split"]'),
        "output_eval_examples": ("run/task_evaluation.py", 'arguments["output_eval_examples"]'),
        "eval_checkpoint_step": ("evaluation/mesh_model.py", 'arguments["eval_checkpoint_step"]'),
        "eval_summary_dir": ("evaluation/ranking.py", 'arguments["eval_summary_dir"]'),
        "eval_dir_suffix": ("evaluation/ranking.py", 'arguments["eval_dir_suffix"]'),
        "mode": ("run/parsed_run.py", 'bound("run.mode"'),
        "train_steps": ("run/run_arguments.py", 'arguments["train_steps"]'),
        "total_run_steps": ("run/run_arguments.py", 'arguments["total_run_steps"]'),
        "train_model_fn": ("run/mesh_modes.py", 'bound("run.train_model_fn")'),
        "predict_fn": ("run/evaluation_checks.py", 'bound("run.predict_fn")'),
    },
    "serialize_num_microbatches": {
        "tokens_per_microbatch_per_replica": (
            "run/spec_from_gin.py",
            "mesh_utils.serialize_num_microbatches(",
        )
    },
    "init_checkpoint_variable_mapping": {
        "mapping_fn": (
            "training/checkpointing.py",
            "mesh_utils.init_checkpoint_variable_mapping(name)",
        )
    },
    "should_load_variable": {
        "filter_fn": ("training/checkpointing.py", "mesh_utils.should_load_variable(name)")
    },
    "auto_train_steps": {"train_tokens": ("run/run_arguments.py", "steps(batch, lengths)")},
}
# Parameters of `run` that only Mesh TensorFlow's own modes read.
OF_MESH_MODES = {"perplexity_eval_steps", "export_checkpoint_step", "export_path"}
# Parameters that Mesh TensorFlow or T5 passes, so that gin's value has no effect there either.
CALLERS = {
    "run": OF_MESH_MODES,
    "tpu_estimator_model_fn": {
        *("model_type", "transformer_model", "vocabulary", "model_dir", "use_tpu", "mesh_shape"),
        *("layout_rules", "batch_size", "sequence_length", "autostack", "keep_checkpoint_max"),
        *("save_checkpoints_steps", "learning_rate_schedule", "optimizer", "predict_fn"),
        *("score_in_predict_mode", "ensemble_inputs", "mesh_devices"),
    },
    "mesh_train_dataset_fn": {"vocabulary"},
    "mesh_eval_dataset_fn": {"sequence_length", "dataset_split", "vocabulary"},
    "score_with_estimator": {
        *("estimator", "input_fn", "eval_checkpoint_step", "model_dir", "vocabulary"),
        "num_examples",
    },
    "compute_log_likelihoods": {"estimator", "input_fn", "checkpoint_path"},
    "save_scores": {"results", "vocabulary"},
    "pack_dataset": {"dataset", "length", "keys"},
    "pack_or_pad": {"dataset", "length", "pack", "feature_keys", "ensure_eos"},
    "serialize_num_microbatches": {"batch_dim", "sequence_length", "mesh_shape", "layout_rules"},
    "init_checkpoint_variable_mapping": {"name"},
    "should_load_variable": {"name"},
    "auto_train_steps": {"batch_size", "sequence_length"},
}


# Parameters that are read in one mode and have no effect in another.
IN_BOTH = {"tpu_estimator_model_fn": {"outer_batch_size"}, "run": {"output_eval_examples"}}


def signature_of(function):
    return set(inspect.signature(gin_config._REGISTRY.get_match(function).wrapped).parameters)


@pytest.mark.parametrize("function", CALLERS)
def test_every_parameter_of_replaced_mesh_functions_is_applied_or_named(function):
    named, readers = mesh_settings.UNREAD.get(function, {}), READERS.get(function, {})
    covered = {*APPLIED.get(function, ()), *readers, *CALLERS[function], *named}
    found = signature_of(function)
    assert found <= covered
    assert {*readers, *named} <= found
    # gin cannot bind what the caller passes, and a parameter is not both read and unread.
    in_both = IN_BOTH.get(function, set())
    assert ({*APPLIED.get(function, ()), *readers} & {*named}) - {"vocabulary", "model_dir"} == (
        in_both
    )
    for path, text in readers.values():
        assert text in (ROOT / "t0" / path).read_text(), path


def test_named_functions_of_mesh_are_all_in_the_table():
    assert mesh_settings.UNREAD.keys() <= CALLERS.keys()
    assert all(
        modes.MODES[mode] is ConfiguredRun.call_mesh for mode in GIN_MODES if "export" in mode
    )


@pytest.mark.parametrize("function", ["train_model", "eval_model"])
def test_unconfigurable_mesh_functions_read_only_parameters_of_run(function):
    parameters = set(inspect.signature(getattr(mesh_utils, function)).parameters)
    more = {"estimator", "eval_with_score", "score_with_estimator_fn"}
    assert parameters - more <= signature_of("run")


@pytest.mark.parametrize(
    ("function", "parameter"),
    [(function, name) for function, names in mesh_settings.UNREAD.items() for name in names],
)
def test_unread_mesh_parameter_is_named_by_mode(function, parameter):
    where, reason = mesh_settings.UNREAD[function][parameter]
    parsed = parse.parse([], [f"{function}.{parameter} = 'other'"])
    for mode in GIN_MODES:
        line = f"{function}.{parameter} = 'other' has no effect here: {reason}"
        assert mesh_settings.find_unread(parsed, mode) == [line] * (mode in where), mode


def test_unread_mesh_parameters_of_files_defaults_and_other_code_are_not_named():
    parsed = parse.parse(["dataset.gin"], ["run.skip_seen_data = False"])
    assert mesh_settings.find_unread(parsed, "train") == []  # the default
    bindings = ["run.output_eval_examples = False", "run.model_type = 'lm'"]
    parsed = parse.parse([], bindings)
    assert mesh_settings.find_unread(parsed, "score_eval") == []  # Mesh TensorFlow scores


@pytest.mark.parametrize(
    ("binding", "ensemble", "said"),
    [
        ("init_checkpoint_variable_mapping.mapping_fn = 'f'", None, "mapping_fn = 'f' is not read"),
        ("should_load_variable.filter_fn = 'f'", None, "filter_fn = 'f' is not read"),
        ("run.train_steps = 5", 2, "run.ensemble_inputs = 2 is not read"),
    ],
)
def test_training_settings_that_torch_cannot_read_are_refused(binding, ensemble, said):
    parse.parse([], ["run.train_steps = 5"])
    spec_from_gin._refuse_unread({"ensemble_inputs": None})
    gin.clear_config()
    parse.parse([], [binding])
    with pytest.raises(UserError, match=said):
        spec_from_gin._refuse_unread({"ensemble_inputs": ensemble})


def test_function_that_scores_is_refused_by_torch_and_in_mode_eval(monkeypatch):
    parse.parse([], ["run.predict_fn = 'f'"])
    with pytest.raises(UserError, match="run.predict_fn is a function of TensorFlow"):
        spec_from_gin._evaluation_fields("score_eval", {}, None, (None, None))
    called = []
    monkeypatch.setattr(mesh_utils, "run", lambda **given: called.append(given))
    task_evaluation.score_eval(ConfiguredRun("score_eval", {"model_dir": "/m"}))
    assert called == [{"model_dir": "/m"}]
