"""What configurations ask for: `t0.infer`'s settings, and T5's own inference."""

import inspect

import gin
import pytest

from t0.compat import gin_config
from t0.config import parse
from t0.errors import UserError
from t0.evaluation import mesh_model
from t0.inference.jobs import (
    DECODING_FUNCTIONS,
    FILE_PARAMETERS,
    InferenceSettings,
    make_jobs,
    make_t5_jobs,
    read_decoding_settings,
    uses_own_inference,
)
from tests.inference.word_predictions import Words

RUN = {"vocabulary": Words(), "sequence_length": {"inputs": 20, "targets": 24}, "batch_size": 8}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "infer.beam_size is 0; expected a whole number from 1"),
        ({"beam_size": 2.5}, "infer.beam_size is 2.5"),
        ({"batch_size": 0}, "infer.batch_size is 0"),
        ({"alpha": -1.0}, "infer.alpha is -1.0; expected a number from 0"),
        ({"alpha": float("nan")}, "infer.alpha is nan"),
        ({"temperature": "hot"}, "infer.temperature is 'hot'"),
        ({"top_k": 0}, "infer.top_k is 0; expected a number from 1, or -1 for all"),
        ({"seed": -1}, "infer.seed is -1"),
        ({"shard_id": 2, "num_shards": 2}, "infer.shard_id is 2; with 2 .* expected 0 to 1"),
        ({"beam_size": 4, "temperature": 1.0}, "beams are searched, not drawn"),
    ],
)
def test_inference_settings_that_are_invalid_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        InferenceSettings(**settings)


def test_inference_settings_come_from_gin():
    parse.parse([], ["t0.infer.beam_size = 4", "infer.top_k = -1"])
    assert InferenceSettings() == InferenceSettings(beam_size=4, top_k=-1)
    with pytest.raises(UserError, match="no parameter 'beams' .*Did you mean beam_size"):
        parse.parse([], ["t0.infer.beams = 4"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_file": "a.txt"}, "infer.output_dir is not set"),
        ({"output_dir": "out"}, "set infer.mixture_or_task_name or infer.input_file"),
        ({"output_dir": "out", "mixture_or_task_name": "nope"}, "unknown mixture or task 'nope'"),
    ],
)
def test_inference_settings_that_are_incomplete_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make_jobs(InferenceSettings(**settings), RUN)


def test_inference_job_records_only_settings_with_an_effect(tmp_path):
    (tmp_path / "a.txt").write_text("w5\n")
    settings = InferenceSettings(input_file=str(tmp_path / "a.txt"), output_dir="/out", seed=3)
    (job,) = make_jobs(settings, RUN)
    assert job.path == "/out/a_{step}.jsonl"
    assert job.settings.batch_size == 8
    facts = job.facts()
    assert facts["beam_size"] == 1
    assert facts["inputs"] == 20
    assert not {"seed", "alpha", "output_dir", "input_file"} & set(facts)


def of_t5(tmp_path, *params):
    (tmp_path / "in").write_text("w5 w6 \n\nw7\n\n")
    files = [f"input_filename = '{tmp_path}/in'", f"output_filename = '{tmp_path}/out'"]
    parse.parse(["infer.gin"], [*files, *params])
    return make_t5_jobs(RUN)[0]


def test_t5_decode_from_file_keeps_its_gin_parameters(tmp_path):
    job = of_t5(
        tmp_path,
        "Bitransformer.decode.sampling_keep_top_k = 5",
        "Bitransformer.decode.temperature = 0.5",
        "decode_from_file.repeats = 2",
    )
    assert (job.settings.top_k, job.settings.temperature) == (5, 0.5)
    # Without a limit of its own a prediction may be as long as an input.
    assert (job.limits.targets, job.limits.targets_per_input) == (20, None)
    assert job.path == f"{tmp_path}/out-{{step}}"
    examples = list(job.examples.read(0, 1))
    assert [e.tokens for e in examples] == 2 * [[5, 6, 1]] + 2 * [[1]] + 2 * [[7, 1]]
    assert job.line(examples[0], "two\nlines", -1.0) == "two lines"


def test_t5_beam_search_length_is_limited_by_the_input(tmp_path):
    job = of_t5(
        tmp_path,
        "Bitransformer.decode.beam_size = 4",
        "Bitransformer.decode.alpha = 0.2",
        "Bitransformer.decode.max_decode_length = 9",
    )
    assert (job.settings.beam_size, job.settings.alpha) == (4, 0.2)
    assert job.limits.targets == 9
    assert job.limits.targets_per_input == (1.5, 10)


def test_t5_decode_from_file_without_files_is_refused():
    parse.parse([], [])
    with pytest.raises(UserError, match="runs/infer.gin predicts a task or a file"):
        make_t5_jobs(RUN)


def test_own_inference_is_used_for_supported_configurations():
    parse.parse([], [])
    assert uses_own_inference("bitransformer")
    assert not uses_own_inference("lm")
    gin.bind_parameter("decode_from_file.eos_id", 2)
    assert not uses_own_inference("bitransformer")
    gin.bind_parameter("t0.infer.output_dir", "/out")
    assert uses_own_inference("bitransformer")
    with pytest.raises(UserError, match="run.model_type is 'lm'"):
        uses_own_inference("lm")


# Function of Mesh TensorFlow that our modes replace -> parameter -> what happens to it.
# "mesh": if gin changes it, Mesh TensorFlow decodes on this machine; our other decoders refuse it.
# "other": it is applied, or the caller passes it, so gin's value has no effect in Mesh TensorFlow.
MESH = {
    "Bitransformer.decode": [],
    "Unitransformer.sample_autoregressive": [
        "partial_sequences",
        "stop_at_token",
        "max_steps",
        "never_end",
        "remove_partial_sequences",
        "bos_id",
    ],
    "mesh_tensorflow.beam_search.beam_search": [
        "logits_fn",
        "initial_ids",
        "eos_id",
        "stop_early",
        "num_prefilter",
    ],
    "mesh_tensorflow.transformer.utils.decode": ["estimator", "input_fn", "vocabulary"],
    "mesh_tensorflow.transformer.utils.clean_decodes": ["ids", "eos_id", "pad_id", "length_axis"],
    "decode_from_file": ["eos_id"],
    "infer_model": ["checkpoint_paths"],
    "get_checkpoint_iterator": [],
}
CALLER = ["self", "inputs", "variable_dtype"]  # of Bitransformer.decode
MORE_OF_CALLER = ["estimator", "vocabulary", "model_type", "batch_size", "sequence_length"]
OTHERS = {
    "Bitransformer.decode": [*DECODING_FUNCTIONS["Bitransformer.decode"], *CALLER],
    "decode_from_file": [*FILE_PARAMETERS, *MORE_OF_CALLER, "checkpoint_path"],
    "infer_model": ["decode_fn", *MORE_OF_CALLER, "model_dir", "eval_checkpoint_step"],
    # `find_closest` and `skip_until` are applied, and a line names `stop_after`; see below.
    "get_checkpoint_iterator": [
        "checkpoint_step",
        "model_dir",
        "find_closest",
        "skip_until",
        "stop_after",
    ],
}
OF_UNITRANSFORMER = "Unitransformer.sample_autoregressive"
STATUS = {
    selector: {
        **dict.fromkeys(OTHERS.get(selector, DECODING_FUNCTIONS.get(selector, ())), "other"),
        **dict.fromkeys([*names, *(["self"] if selector == OF_UNITRANSFORMER else [])], "mesh"),
    }
    for selector, names in MESH.items()
}
STATUS[OF_UNITRANSFORMER]["self"] = "other"


@pytest.mark.parametrize("selector", STATUS)
def test_every_parameter_of_replaced_mesh_functions_is_applied_refused_or_named(
    selector, empty_gin
):
    function = gin_config._REGISTRY.get_match(selector).wrapped
    assert STATUS[selector].keys() == inspect.signature(function).parameters.keys()
    for name, status in STATUS[selector].items():
        if status != "mesh":
            continue
        gin.clear_config()
        parse.parse(["infer.gin"], [f"{selector}.{name} = 'other'"])
        assert not uses_own_inference("bitransformer"), name
        if selector in DECODING_FUNCTIONS:
            with pytest.raises(UserError, match=f"{name} = 'other' is read only by Mesh Tens"):
                read_decoding_settings(RUN)
    gin.clear_config()
    parse.parse(["infer.gin"], [])
    assert uses_own_inference("bitransformer")


def test_t0_infer_refuses_settings_of_mesh_decoding(empty_gin):
    never_end = "Unitransformer.sample_autoregressive.never_end"
    parse.parse([], [f"{never_end} = False", "infer.input_file = 'a.txt'"])
    assert uses_own_inference("bitransformer")  # this is the default
    parse.parse([], [f"{never_end} = True", "infer.input_file = 'a.txt'"])
    with pytest.raises(UserError, match="never_end = True is read only by .* not by t0.infer"):
        uses_own_inference("bitransformer")


def test_sampling_keep_top_k_of_old_mesh_scripts_is_applied(empty_gin):
    old = "Unitransformer.sample_autoregressive.sampling_keep_top_k = 10"
    parse.parse(["sample_decode.gin"], [old])
    assert read_decoding_settings(RUN)[0].top_k == 10
    parse.parse(["sample_decode.gin"], [old, "Bitransformer.decode.sampling_keep_top_k = 5"])
    assert read_decoding_settings(RUN)[0].top_k == 5


def test_checkpoint_iterator_parameters_are_applied(tmp_path, empty_gin):
    for step in (5, 20, 30):
        (tmp_path / f"model.ckpt-{step}.index").touch()

    def chosen(wanted, *params):
        parse.parse([], [f"get_checkpoint_iterator.{param}" for param in params])
        arguments = {"model_dir": str(tmp_path), "eval_checkpoint_step": wanted}
        return list(mesh_model.chosen_checkpoints(arguments, None))

    assert chosen([5, 19]) == [5, 20]
    assert chosen([5, 19], "find_closest = False") == [5]
    assert chosen("all", "skip_until = 5") == [20, 30]
    with pytest.raises(UserError, match="find_closest is False, and .* of step 19; it has 5, 20"):
        chosen(19, "find_closest = False")
    with pytest.raises(UserError, match="skip_until is 30, and the last checkpoint .* of step 30"):
        chosen("all", "skip_until = 30")
