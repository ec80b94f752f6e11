"""A run specification goes through JSON unchanged; what is not one is refused with its place."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.config.plain_data import to_json
from t0.config.specification import DataSpec, FeatureSpec, RunSpec, TaskSpec, from_json
from t0.errors import UserError

tasks = st.builds(
    TaskSpec,
    name=st.text(max_size=20),
    rate=st.floats(0, 1e18),
    features=st.dictionaries(st.text(max_size=5), st.builds(FeatureSpec, st.booleans())),
    examples=st.none() | st.integers(0, 2**60),
    cache_files=st.lists(st.text(max_size=9)).map(tuple),
)
data_specs = st.builds(
    DataSpec,
    mixture=st.text(),
    split=st.text(),
    tasks=st.lists(tasks, max_size=3).map(tuple),
    lengths=st.dictionaries(st.text(max_size=5), st.integers(1, 2**20)),
)

OTHER = "run.model_type is 'lm'; expected 'bitransformer', an encoder-decoder"
MODEL = {"t5": None, "other": OTHER, "activations": "float32", "weights": "float32"}
VOCABULARY = {"file": "/v", "size": 32100, "extra_ids": 100}
RUN = {
    "mode": "train",
    "model_dir": "/m",
    "model": MODEL,
    "inputs_vocabulary": VOCABULARY,
    "targets_vocabulary": VOCABULARY,
    "lengths": {"targets": 8},
    "batch_sequences": 4,
}


@settings(max_examples=100)
@given(data_specs)
def test_specification_of_data_round_trip_through_json(spec):
    assert from_json(to_json(spec), DataSpec) == spec


@pytest.mark.parametrize("schedule", [None, 0.001, {"selector": "s", "parameters": {"a": [1]}}])
def test_specification_of_run_round_trip_through_json(schedule):
    spec = from_json(json.dumps({**RUN, "schedule": schedule}), RunSpec)
    assert from_json(to_json(spec), RunSpec) == spec
    assert json.loads(to_json(spec))["schedule"] == schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_sequences": True}, "RunSpec.batch_sequences is True; expected a whole number"),
        ({"batch_sequences": 1.5}, "RunSpec.batch_sequences is 1.5; expected a whole number"),
        ({"lengths": [8]}, "RunSpec.lengths is .*; expected an object"),
        ({"model": None}, "RunSpec.model is None; expected an object"),
        ({"model": {**MODEL, "depth": 3}}, "RunSpec.model has the unknown field 'depth'"),
        (
            {"model": {"t5": None, "other": "", "weights": "float32"}},
            "RunSpec.model has no field 'activations'",
        ),
        ({"schedule": float("nan")}, "RunSpec.schedule is nan; expected a finite number"),
        ({"seed": "0"}, "RunSpec.seed is '0'; expected a whole number"),
        ({"mode": "\ud800"}, "half of a surrogate pair"),
        ({"seed": -1}, "RunSpec.seed is -1; expected a whole number from 0"),
        ({"seed": 2**70}, "RunSpec.seed is .*; expected a whole number from 0 to"),
        (
            {"batch_sequences": 2**40},
            "RunSpec.batch_sequences is .*; expected a whole number from 0 to",
        ),
        (
            {"lengths": {"targets": 0}},
            "RunSpec.lengths.targets is 0; expected a whole number from 1",
        ),
        ({"clip_gradient_norm": 10**400}, "clip_gradient_norm is .*; expected a number from"),
    ],
)
def test_specification_field_of_wrong_type_is_named(change, message):
    with pytest.raises(UserError, match=message):
        from_json(json.dumps({**RUN, **change}), RunSpec)


def test_specification_reads_large_and_whole_numbers():
    """JSON does not tell 4.0 from 4, and a norm of 1e30 clips nothing."""
    text = json.dumps({**RUN, "batch_sequences": 4.0, "clip_gradient_norm": 10**30})
    spec = from_json(text, RunSpec)
    assert (spec.batch_sequences, spec.clip_gradient_norm) == (4, 1e30)
    assert type(spec.batch_sequences) is int


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_specification_that_is_not_json_is_refused(text):
    with pytest.raises(UserError, match="not JSON"):
        from_json(text, RunSpec)


@pytest.mark.parametrize("schema", [0, 3, True, "2", None, [1]])
def test_specification_of_unknown_schema_is_refused_with_the_remedy(schema):
    with pytest.raises(
        UserError, match="schema .*reads 1 and 2. Write it again with .*--save_spec"
    ):
        from_json(json.dumps({**RUN, "schema": schema}), RunSpec)


def test_specification_of_schema_1_is_read():
    old = {"model_type": "lm", "encoder": {}, "decoder": {}, "activations": "float32"}
    text = json.dumps({**RUN, "model": {**old, "weights": "float32"}, "schema": 1})
    assert from_json(text, RunSpec) == from_json(json.dumps(RUN), RunSpec)
    with pytest.raises(UserError, match="model cannot be read .*--save_spec"):
        from_json(json.dumps({**RUN, "model": old, "schema": 1}), RunSpec)
