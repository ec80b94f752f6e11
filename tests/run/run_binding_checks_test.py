"""The checks of values that gin binds to our settings."""

import inspect

import pytest

from t0.compat import gin
from t0.config.bindings import annotations_of, registered
from t0.config.plain_data import is_plain
from t0.errors import UserError
from t0.run import configure
from t0.run.binding_checks import check_values
from t0.run.findings import Findings

configure.register()


def parameters():
    """Each plain parameter that gin may set, as (name, default)."""
    for name, configurable in registered("t0").items():
        kinds = annotations_of(configurable.wrapped)
        for parameter in inspect.signature(configurable.wrapped).parameters.values():
            passed = parameter.name in (configurable.denylist or ())
            if is_plain(kinds[parameter.name]) and not passed:
                yield f"{name}.{parameter.name}", parameter.default


PARAMETERS = dict(parameters())
MAPPINGS = ("mixtures.define", "ul2.denoisers")


@pytest.fixture(autouse=True)
def no_bindings():
    gin.clear_config()
    yield
    gin.clear_config()


def faults_of(*bindings):
    gin.parse_config(bindings)
    return list(map(str, check_values(None)))


def test_every_setting_is_possible_at_its_default_and_refused_with_another_type():
    assert len(PARAMETERS) > 60
    for name, default in PARAMETERS.items():
        if default is not inspect.Parameter.empty:
            assert faults_of(f"t0.{name} = {default!r}") == [], name
        gin.clear_config()
        value = "{'x': 1}" if name not in MAPPINGS else "3"
        (fault,) = faults_of(f"t0.{name} = {value}")
        assert fault.startswith(f"{name} is {value}; expected "), name
        gin.clear_config()


@pytest.mark.parametrize(
    ("binding", "fault"),
    [
        ("train_loop.loss_average = 'sequence'", "'positions' or 'tokens' or 'sequences'"),
        ("train_loop.log_every_steps = 2.5", "expected a whole number"),
        ("train_loop.max_hours = True", "expected a number"),
        ("train_loop.unfilled_variables = 'encoder'", "expected a list"),
        ("cosine_with_warmup.warmup_steps = 0.1", "expected a whole number"),
        ("rsqrt.ramp_down_fraction = 2.0", "expected a number from 0 to 1"),
        ("AdamWOptimizer.beta_2 = 1.0", "expected a number from 0 to 1"),
        ("AdamWOptimizer.exclude_from_weight_decay = 'norm'", "expected a list"),
        ("evaluation.examples = 0", "expected a whole number from 1"),
        ("evaluation.engine = 'jax'", "'tensorflow' or 'torch'"),
        ("packing.rows = 1048577", "expected a whole number from 1 to 1,048,576"),
        ("score_eval.max_excluded_share = 5", "expected a number from 0 to 1"),
        ("vocabulary.path = 3", "expected text"),
    ],
)
def test_wrong_value_is_a_fault_of_one_line(binding, fault):
    (found,) = faults_of(f"t0.{binding}")
    name, _, value = binding.partition(" = ")
    assert found.startswith(f"{name} is {value}; ")
    assert fault in found
    assert "\n" not in found


def test_all_wrong_values_are_reported_together():
    gin.parse_config("SEED = -1\nt0.train_loop.seed = %SEED\nt0.packing.rows = 0")
    findings = Findings()
    findings.check(check_values, None)
    with pytest.raises(UserError) as caught:
        findings.notes()
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 faults:"
    assert any("train_loop.seed is -1" in line for line in lines)
    assert any("packing.rows is 0" in line for line in lines)


def test_values_that_gin_computes_later_and_required_ones_are_not_checked():
    assert faults_of("t0.vocabulary.path = @t0.folder_of_checkpoint()") == []
    assert faults_of("t0.train_loop.seed = %gin.REQUIRED") == []


def test_checked_values_are_not_in_the_operative_config():
    faults_of("SEED = 3", "t0.train_loop.seed = %SEED")
    assert "train_loop" not in gin.operative_config_str()
