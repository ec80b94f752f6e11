"""Creates prediction jobs from gin's settings for `t0.infer` or for T5's `infer.gin`.

    settings = InferenceSettings(mixture_or_task_name="qa", output_dir="/out", beam_size=4)
    settings.method                     # DecodingMethod(beam_size=4, alpha=0.6, ...)
    make_jobs(settings, arguments)      # one for each task
    make_t5_jobs(arguments)             # the job of T5's decode_from_file

`arguments` are the arguments of a run, as `t0.run.run_arguments.read` returns them. In gin,
`InferenceSettings` is called `t0.infer`, and `gin/runs/infer.gin` binds its fields. The job of T5's
`infer.gin` reads a text file, appends EOS to each input, decodes with the parameters of
`Bitransformer.decode`, and writes one prediction per line to `<output_filename>-<step>`.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from t0.compat import gin, mesh_utils, seqio
from t0.config.bindings import bound, changed_parameters
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError
from t0.evaluation.mesh_model import both_vocabularies
from t0.feeding import data_spec
from t0.inference import inputs, predictions, task_inputs
from t0.inference.inputs import InputSource, LengthLimits
from t0.inference.predictions import PredictionJob, shard_suffix
from t0.mesh import devices
from t0.sources.readers import FORMATS, SUFFIXES

# The settings class that gin configures. The PyTorch engine uses the original class, which does not
# need gin.
InferenceSettings = gin.external_configurable(predictions.InferenceSettings, "infer", module="t0")


FILE_PARAMETERS = ("input_filename", "output_filename", "repeats")  # of T5's decode_from_file
# Functions with which Mesh TensorFlow decodes -> their parameters that our decoders read, or to
# which Mesh TensorFlow itself passes a value, so that gin's has no effect there. If gin changes
# another parameter, Mesh TensorFlow decodes.
DECODING_FUNCTIONS = {
    "Bitransformer.decode": (
        "beam_size",
        "alpha",
        "temperature",
        "sampling_keep_top_k",
        "decode_length_multiplier",
        "decode_length_constant",
        "max_decode_length",
    ),
    # Mesh TensorFlow before 0.1.14 reads this parameter; later, `Bitransformer.decode` hides it.
    "Unitransformer.sample_autoregressive": (
        "sampling_keep_top_k",
        "temperature",
        "variable_dtype",
        "encoder_output",
        "encoder_sequence_id",
        "encoder_inputs",
        "shared_params",
        "has_partial_sequences",
        "encoder_layer_outputs",
    ),
    "mesh_tensorflow.beam_search.beam_search": (
        "alpha",
        "states",
        "decode_length",
        "use_tpu",
        "dtype",
        "layout",
        "mesh_shape",
    ),
    "mesh_tensorflow.transformer.utils.decode": ("checkpoint_path",),
    "mesh_tensorflow.transformer.utils.clean_decodes": (),
}


def unread_settings() -> list[str]:
    """Returns the settings of Mesh TensorFlow's decoding that our decoders do not read."""
    return [
        line
        for selector, read in DECODING_FUNCTIONS.items()
        for line in changed_parameters(selector, read=read)
    ]


_TABLES = tuple(x for x, kind in SUFFIXES.items() if FORMATS[kind].columns != "values")


def make_jobs(settings: InferenceSettings, arguments: Mapping[str, Any]) -> list[PredictionJob]:
    """Returns one job for the input file, or a job for each task of the mixture.

    Raises:
      UserError: if settings are missing, or name a task, split or file that does not exist.
    """
    if not settings.output_dir:
        raise UserError("infer.output_dir is not set: it names the folder of the predictions")
    settings = dataclasses.replace(
        settings,
        batch_size=settings.batch_size or arguments["batch_size"],
        activation_dtype=devices.activation_dtype(settings.activation_dtype).name,
    )
    lengths = arguments["sequence_length"]
    limits = LengthLimits(lengths["inputs"], lengths["targets"])
    ending = f"_{{step}}{shard_suffix(settings)}.jsonl"
    return [
        PredictionJob(
            examples, limits, settings, _join(settings.output_dir, examples.name + ending)
        )
        for examples in _open_sources(settings, arguments)
    ]


def _open_sources(settings: InferenceSettings, arguments: Mapping[str, Any]) -> list[InputSource]:
    name = settings.mixture_or_task_name
    task = data_spec.known_mixture(name) if name else None
    if settings.input_file:
        _check_no_table(settings.input_file)
        feature = task.output_features.get("inputs") if task else None
        add_eos = (
            bool(feature and feature.add_eos) if settings.add_eos is None else settings.add_eos
        )
        vocabulary = (
            feature.vocabulary if feature else both_vocabularies(arguments["vocabulary"])[0]
        )
        return [inputs.open_file(settings.input_file, vocabulary, add_eos=add_eos)]
    if task is None:
        raise UserError("nothing to predict: set infer.mixture_or_task_name or infer.input_file")
    data_spec.require_split(name, settings.split, setting="infer.split")
    return [
        task_inputs.open_task(
            each,
            settings.split,
            use_cached=settings.use_cached,
            lengths=arguments["sequence_length"],
        )
        for each in seqio.get_subtasks(task)
        if settings.split in each.splits
    ]


def _check_no_table(path: str) -> None:
    """Raises a UserError if the input file is a table (by its extension) instead of a text file."""
    if path.removesuffix(".gz").endswith(_TABLES):
        raise UserError(
            f"infer.input_file reads one input per line, and {path} is a table of rows. To predict "
            f"with a prompt of the model: t0 predict MODEL {path} --output FILE"
        )


def has_generator(model_type: str) -> bool:
    """Returns whether `MeshGenerator` can decode the configured model with gin's settings."""
    own_function = bound("run.predict_fn") is not None
    return model_type == ENCODER_DECODER and not own_function and not unread_settings()


def uses_own_inference(model_type: str) -> bool:
    """Returns whether mode `infer` runs this package instead of Mesh TensorFlow's inference.

    Raises:
      UserError: if `t0.infer` is configured with a model or function that this package does not
        support.
    """
    configured = InferenceSettings().configured
    if configured:
        _refuse_unread("t0.infer")
    supported = has_generator(model_type)
    if configured and not supported:
        raise UserError(
            f"t0.infer supports only encoder-decoders without run.predict_fn; run.model_type is "
            f"'{model_type}'. For other models, use T5's --gin_file=infer.gin to decode a file"
        )
    of_t5 = (
        bound("infer_model.decode_fn") in (None, mesh_utils.decode_from_file)
        and not changed_parameters("decode_from_file", read=FILE_PARAMETERS)
        and not changed_parameters("infer_model", read=("decode_fn",))
    )
    return supported and (configured or of_t5)


def _refuse_unread(reader: str) -> None:
    if unread := unread_settings():
        raise UserError(
            f"{unread[0]} is read only by Mesh TensorFlow's own decoding, and not by {reader}; "
            "unset it, or decode with t5_mesh_transformer without --engine=torch, with T5's "
            "--gin_file=infer.gin or eval.gin"
        )


def make_t5_jobs(arguments: Mapping[str, Any]) -> list[PredictionJob]:
    """Returns the job of T5's `infer.gin`.

    Raises:
      UserError: if the files are not set, or the input file does not exist.
    """
    files = [bound(f"decode_from_file.{name}") for name in ("input_filename", "output_filename")]
    if not all(files):
        raise UserError(
            "nothing to predict: --gin_file=runs/infer.gin predicts a task or a file, and T5's "
            "--gin_file=infer.gin reads input_filename and writes output_filename"
        )
    settings, limits = read_decoding_settings(arguments)
    examples = inputs.open_file(
        files[0],
        both_vocabularies(arguments["vocabulary"])[0],
        add_eos=True,
        repeats=bound("decode_from_file.repeats", 1),
    )
    return [
        PredictionJob(
            examples,
            limits,
            settings,
            f"{files[1]}-{{step}}{shard_suffix(settings)}",
            as_json=False,
        )
    ]


def make_evaluation_jobs(
    arguments: Mapping[str, Any], tasks: Sequence[seqio.Task], folder: str
) -> list[PredictionJob]:
    """Returns the jobs that decode tasks for mode `eval` on the PyTorch engine.

    Args:
      arguments: the arguments of the run.
      folder: the folder to which the decoded texts are written, as `<task>_<step>.jsonl`.
    """
    settings, limits = read_decoding_settings(arguments)
    cached = bool(bound("mesh_eval_dataset_fn.use_cached", False))
    return [
        PredictionJob(
            task_inputs.open_task(
                task,
                arguments["dataset_split"],
                use_cached=cached,
                lengths=arguments["sequence_length"],
            ),
            limits,
            settings,
            _join(folder, f"{task.name}_{{step}}.jsonl"),
        )
        for task in tasks
    ]


def read_decoding_settings(
    arguments: Mapping[str, Any],
) -> tuple[predictions.InferenceSettings, LengthLimits]:
    """Reads the settings and limits that gin binds for Mesh TensorFlow's `Bitransformer.decode`.

    If the run has no lengths, the limits may be None.

    Raises:
      UserError: if gin binds a setting that only Mesh TensorFlow's own decoding reads.
    """
    _refuse_unread("our decoders")
    top_k = bound("Unitransformer.sample_autoregressive.sampling_keep_top_k", -1)
    defaults = {
        "beam_size": 1,
        "alpha": 0.6,
        "temperature": 0.0,
        "sampling_keep_top_k": top_k,
        "decode_length_multiplier": 1.5,
        "decode_length_constant": 10,
        "max_decode_length": None,
    }
    decode = {
        name: bound(f"Bitransformer.decode.{name}", value) for name, value in defaults.items()
    }
    most_inputs = (arguments["sequence_length"] or {}).get("inputs")
    per_input = (decode["decode_length_multiplier"], decode["decode_length_constant"])
    settings = InferenceSettings(
        batch_size=arguments["batch_size"],
        beam_size=decode["beam_size"],
        alpha=decode["alpha"],
        temperature=decode["temperature"],
        top_k=decode["sampling_keep_top_k"],
    )
    limits = LengthLimits(
        most_inputs,
        decode["max_decode_length"] or most_inputs,
        per_input if settings.beam_size > 1 else None,
    )
    return settings, limits


def _join(*parts: str) -> str:
    return os.path.join(*parts)  # noqa: PTH118 (gs:// paths)
