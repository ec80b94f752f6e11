"""No gin parameter of this project is ignored: each reaches the run, or a line or an error says no.

The parameters are those of docs/reference.md, read from the code.
"""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from t0.compat import gin, gin_config
from t0.config import parse
from t0.config.flags import GIN_MODES
from t0.errors import UserError
from t0.run import configure, specify
from t0.torch import schedules

ROOT = Path(__file__).resolve().parents[2]
# Functions without a row in `parse.READ_IN`: the tasks call them, or the macros of run files.
IN_EVERY_MODE = (
    "bleu",
    "qa",
    "sni",
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
    "t0.constant_with_warmup",
    "t0.cosine_with_warmup",
    "t0.linear_with_warmup",
    "t0.rsqrt",
    "t0.rsqrt_then_linear",
)
# Parameters that the caller passes: gin refuses to bind them.
PASSED = ("step", "total_train_steps", "learning_rate", "train_steps", "last", "sequence_length")
PASSED += ("optimizer", "gradients", "variables", "mesh_impl")


def documented():
    """Function -> parameter -> whether it has a default."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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
    if parameter in PASSED:
        with pytest.raises((UserError, ValueError), match=parameter):
            parse.parse([], [binding])
        return
    parsed = parse.parse([], [binding])
    expected = ast.literal_eval(value_for(name, parameter))
    found = specify._parameters(f"t0.{name}")[parameter]
    assert found == (list(expected) if isinstance(expected, tuple) else expected)
    for mode in GIN_MODES:
        lines = parse.find_unread_params(parsed, mode)
        read = name in IN_EVERY_MODE or mode in parse.READ_IN.get(f"t0.{name}", ())
        assert len(lines) == (not read), mode
        assert all(line.startswith(f"{name}.{parameter} ") for line in lines)


@pytest.mark.parametrize("selector", CHOSEN)
def test_gin_optimizer_or_schedule_is_read_only_in_training(selector):
    parameter = next(p for p in DOCUMENTED[selector.removeprefix("t0.")] if p not in PASSED)
    kind = "optimizer" if "Optimizer" in selector else "learning_rate_schedule"
    parsed = parse.parse([], [f"{selector}.{parameter} = 2", f"run.{kind} = @{selector}"])
    assert parse.find_unread_params(parsed, "train") == []
    assert len(parse.find_unread_params(parsed, "infer")) == 1
    # The PyTorch engine reads the parameters of the specification.
    configured = specify.configured(f"run.{kind}")
    assert configured.parameters[parameter] == 2
    if kind != "optimizer":
        assert callable(schedules.schedule(configured, 10))


def test_activation_dtype_is_set_on_the_command_line_without_tpu():
    from t0.config import flags
    from t0.run import command

    binding = "get_variable_dtype.activation_dtype = 'bfloat16'"
    given = flags.parse(["run", f"--gin_param={binding}"])
    parsed = parse.parse([], given.gin_param)
    assert command._check_bindings(given, parsed, "train") == []
    found = flags.gin_parameters(given, "train")
    assert found["t0.train_loop.activation_dtype"][0] == "bfloat16"
    # Of a file, such as T5's for TPUs, it is not a wish of the user's.
    gin.clear_config()
    given = flags.parse(["run"])
    command._check_bindings(given, parse.parse(["models/t5.1.1.small.gin"], []), "train")
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
    from t0.run import command

    given = flags.parse(["run", f"--gin_param={binding}"])
    with pytest.raises(UserError, match=message):
        command._check_bindings(given, parse.parse([], given.gin_param), mode)
