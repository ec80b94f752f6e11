"""Reads from gin what to predict: `t0.infer`'s settings, or those of T5's `infer.gin`.

    settings = InferenceSettings(mixture_or_task_name="qa", output_dir="/out", beam_size=4)
    settings.method                     # DecodingMethod(beam_size=4, alpha=0.6, ...)
    run = RunArguments((vocabulary, vocabulary), {"inputs": 512, "targets": 64}, batch_size=32)
    jobs(settings, run)                 # one for each task
    jobs_of_t5(run)                     # the job of T5's decode_from_file

gin's name of the settings is `t0.infer`; `gin/runs/infer.gin` binds them. T5's mode reads a text
file, ends each input with EOS, is configured by `Bitransformer.decode`, and writes one prediction
on each line of `<output_filename>-<step>`.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from t0.compat import gin, mesh_utils, seqio
from t0.config.bindings import bound
from t0.errors import UserError
from t0.feeding import opening
from t0.inference import inputs
from t0.inference.inputs import InferenceExample, InputSource, LengthLimits
from t0.inference.search import EOS, DecodingMethod
from t0.mesh import devices


@gin.configurable("infer", module="t0")
@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """Inference's settings: the inputs, the search and the outputs.

    Attributes:
      mixture_or_task_name: the task or mixture of the examples; with `input_file`, the task whose
        vocabulary encodes the lines.
      split: the task's split.
      use_cached: whether to read the task's cache.
      input_file: a file with an input on each line, or JSON Lines (if its name ends in .jsonl or
        .json) with `inputs` and, if known, `targets`; either may be compressed (.gz).
      output_dir: the folder for the predictions, `<name>_<step>.jsonl`.
      batch_size: the number of inputs that are decoded at once; None for the run's batch size.
      beam_size: the number of beams; 1 for greedy decoding or sampling.
      alpha: the exponent of the beams' length penalty.
      temperature: the temperature of sampling, 1 for the model's distribution; 0 to decode
        greedily.
      top_k: sample from this many of the likeliest tokens; -1 for all.
      seed: the seed of sampling. An example's random numbers do not depend on its batch or shard.
      shard_id: this process predicts the examples whose number modulo `num_shards` is `shard_id`.
      num_shards: the number of processes that share the examples.
      add_eos: whether EOS ends the inputs of a file; None for the task's setting, or no EOS without
        a task.
      activation_dtype: "float32", "bfloat16", or "auto": bfloat16 if the machine has instructions
        for it.
    """

    mixture_or_task_name: str | None = None
    split: str = "test"
    use_cached: bool = False
    input_file: str | None = None
    output_dir: str | None = None
    batch_size: int | None = None
    beam_size: int = 1
    alpha: float = 0.6
    temperature: float = 0.0
    top_k: int = -1
    seed: int = 0
    shard_id: int = 0
    num_shards: int = 1
    add_eos: bool | None = None
    activation_dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, (wanted, holds) in _WANTED.items():
            if not holds(getattr(self, name)):
                raise UserError(f"infer.{name} is {getattr(self, name)!r}; wanted {wanted}")
        if self.shard_id >= self.num_shards:
            raise UserError(
                f"infer.shard_id is {self.shard_id}; with {self.num_shards} shard(s) wanted 0 to "
                f"{self.num_shards - 1} (--shard_id, --num_shards)"
            )
        if self.beam_size > 1 and self.temperature:
            raise UserError(
                f"infer.beam_size is {self.beam_size} and infer.temperature {self.temperature}: "
                "beams are searched, not drawn. Set one of them (beam_size = 1, temperature = 0.0)"
            )

    @property
    def configured(self) -> bool:
        """Whether gin configures `t0.infer`, and not only T5's own inference."""
        return any((self.mixture_or_task_name, self.input_file, self.output_dir))

    @property
    def method(self) -> DecodingMethod:
        """How tokens are chosen."""
        return DecodingMethod(self.beam_size, self.alpha, self.temperature, max(0, self.top_k))

    def facts(self) -> dict[str, Any]:
        """Returns the settings on which predictions depend, for the summary file."""
        names = ["shard_id", "num_shards", "batch_size", "beam_size", "activation_dtype"]
        if self.beam_size > 1:
            names.append("alpha")
        if self.temperature:
            names += ["temperature", "top_k", "seed"]
        return {name: getattr(self, name) for name in names}


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _at_least_0(value: Any) -> bool:
    return _whole(value, 0) or (isinstance(value, float) and value >= 0)


_FROM_0 = ("a whole number from 0 on", lambda value: _whole(value, 0))
_FROM_1 = ("a whole number from 1 on", lambda value: _whole(value, 1))
_NUMBER = ("a number from 0 on", _at_least_0)
# Setting -> its allowed values, as a description and as a test.
_WANTED = {
    "batch_size": (_FROM_1[0], lambda value: value is None or _whole(value, 1)),
    "beam_size": _FROM_1,
    "alpha": _NUMBER,
    "temperature": _NUMBER,
    "top_k": ("a whole number from 1 on, or -1 for all", lambda v: v == -1 or _whole(v, 1)),
    "seed": _FROM_0,
    "shard_id": _FROM_0,
    "num_shards": _FROM_1,
}


@dataclasses.dataclass(frozen=True)
class RunArguments:
    """The arguments of a run that inference uses.

    Attributes:
      vocabularies: the vocabularies of inputs and targets.
      sequence_length: the limits {"inputs": tokens, "targets": tokens}.
      batch_size: the number of sequences in a batch.
    """

    vocabularies: tuple[Any, Any]
    sequence_length: Mapping[str, int]
    batch_size: int


@dataclasses.dataclass(frozen=True)
class PredictionJob:
    """One source of examples, with the settings and the file of its predictions.

    Attributes:
      examples: the examples.
      limits: the length limits in tokens.
      settings: the settings of the search, the batches and the shards.
      path: the file of the predictions, with {step} for the checkpoint's step.
      as_json: whether the file is JSON Lines; else it has a text on each line.
    """

    examples: InputSource
    limits: LengthLimits
    settings: InferenceSettings
    path: str
    as_json: bool = True

    def facts(self) -> dict[str, Any]:
        """Returns the facts on which the predictions depend, except for the checkpoint."""
        return {**self.examples.facts, **dataclasses.asdict(self.limits), **self.settings.facts()}

    def line(self, example: InferenceExample, prediction: str, score: float) -> str:
        """Returns the line that is written for an example."""
        if not self.as_json:
            return prediction.replace("\n", " ")
        line = {"idx": example.number, "inputs": example.inputs, "prediction": prediction}
        if example.targets is not None:
            line["targets"] = example.targets
        return json.dumps({**line, "score": round(float(score), 5)}, ensure_ascii=False)


def jobs(settings: InferenceSettings, run: RunArguments) -> list[PredictionJob]:
    """Returns a job for the input file, or one for each task of the mixture.

    Raises:
      UserError: if settings are missing, or name a task, split or file that does not exist.
    """
    if not settings.output_dir:
        raise UserError("infer.output_dir is not set: it names the folder of the predictions")
    settings = dataclasses.replace(
        settings,
        batch_size=settings.batch_size or run.batch_size,
        activation_dtype=devices.activation_dtype(settings.activation_dtype).name,
    )
    limits = LengthLimits(run.sequence_length["inputs"], run.sequence_length["targets"])
    ending = f"_{{step}}{_shard(settings)}.jsonl"
    return [
        PredictionJob(
            examples, limits, settings, _join(settings.output_dir, examples.name + ending)
        )
        for examples in _sources(settings, run)
    ]


def _shard(settings: InferenceSettings) -> str:
    if settings.num_shards == 1:
        return ""
    return f"-{settings.shard_id:05d}-of-{settings.num_shards:05d}"


def _sources(settings: InferenceSettings, run: RunArguments) -> list[InputSource]:
    name = settings.mixture_or_task_name
    task = opening.known_mixture(name) if name else None
    if settings.input_file:
        feature = task.output_features.get("inputs") if task else None
        add_eos = (
            bool(feature and feature.add_eos) if settings.add_eos is None else settings.add_eos
        )
        vocabulary = feature.vocabulary if feature else run.vocabularies[0]
        return [inputs.of_file(settings.input_file, vocabulary, add_eos=add_eos)]
    if task is None:
        raise UserError("nothing to predict: set infer.mixture_or_task_name or infer.input_file")
    opening.require_split(name, settings.split, setting="infer.split")
    return [
        inputs.of_task(each, settings.split, use_cached=settings.use_cached)
        for each in seqio.get_subtasks(task)
        if settings.split in each.splits
    ]


def takes_over(model_type: str) -> bool:
    """Returns whether our inference runs the configured one, and not Mesh TensorFlow's.

    Raises:
      UserError: if `t0.infer` is configured with a model or function that ours does not support.
    """
    configured = InferenceSettings().configured
    supported = model_type == "bitransformer" and bound("run.predict_fn") is None
    if configured and not supported:
        raise UserError(
            f"t0.infer predicts with encoder-decoders and no run.predict_fn; run.model_type is "
            f"'{model_type}'. T5's --gin_file=infer.gin decodes a file with others"
        )
    of_t5 = (
        bound("infer_model.decode_fn") in (None, mesh_utils.decode_from_file)
        and bound("decode_from_file.eos_id", EOS) == EOS
    )
    return supported and (configured or of_t5)


def jobs_of_t5(run: RunArguments) -> list[PredictionJob]:
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
    decode = {name: bound(f"Bitransformer.decode.{name}", value) for name, value in _T5.items()}
    longest = decode["max_decode_length"] or run.sequence_length["inputs"]
    per_input = (decode["decode_length_multiplier"], decode["decode_length_constant"])
    settings = InferenceSettings(
        batch_size=run.batch_size,
        beam_size=decode["beam_size"],
        alpha=decode["alpha"],
        temperature=decode["temperature"],
        top_k=decode["sampling_keep_top_k"],
    )
    limits = LengthLimits(
        run.sequence_length["inputs"], longest, per_input if settings.beam_size > 1 else None
    )
    examples = inputs.of_file(
        files[0], run.vocabularies[0], add_eos=True, repeats=bound("decode_from_file.repeats", 1)
    )
    return [
        PredictionJob(
            examples, limits, settings, f"{files[1]}-{{step}}{_shard(settings)}", as_json=False
        )
    ]


# Parameters of Mesh TensorFlow's Bitransformer.decode, and their defaults.
_T5 = {
    "beam_size": 1,
    "alpha": 0.6,
    "temperature": 0.0,
    "sampling_keep_top_k": -1,
    "decode_length_multiplier": 1.5,
    "decode_length_constant": 10,
    "max_decode_length": None,
}


def predicted_tokens(ids: np.ndarray, limit: int) -> list[int]:
    """Returns a row's predicted tokens, up to and including EOS, or up to the limit."""
    ends = np.flatnonzero(ids == EOS)
    return ids[: ends[0] + 1 if len(ends) else limit].tolist()


def _join(*parts: str) -> str:
    return os.path.join(*parts)  # noqa: PTH118 (gs:// paths)
