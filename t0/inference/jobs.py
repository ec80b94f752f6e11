"""What a configuration asks to be predicted: `t0.infer`'s settings, or those of T5's `infer.gin`.

    jobs(Settings(mixture_or_task_name="qa", output_dir="/out"), run)   # one for each task
    jobs_of_t5(run)                                                     # decode_from_file's

T5's mode reads a text file, ends each input with EOS, takes its search from
`Bitransformer.decode` and writes one prediction a line to `<output_filename>-<step>`.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from t0.compat import mesh_utils, seqio
from t0.errors import UserError
from t0.feeding import checks
from t0.inference import inputs
from t0.inference.batches import Limits
from t0.inference.choice import EOS
from t0.inference.inputs import Example, Examples
from t0.inference.settings import Settings
from t0.mesh import devices
from t0.training.config import bound


@dataclasses.dataclass(frozen=True)
class Run:
    """What Mesh TensorFlow's `run` says.

    Attributes:
      vocabularies: of inputs and targets.
      sequence_length: {"inputs": tokens, "targets": tokens}.
      batch_size: sequences.
    """

    vocabularies: tuple[Any, Any]
    sequence_length: Mapping[str, int]
    batch_size: int


@dataclasses.dataclass(frozen=True)
class Job:
    """One source of examples, and all that is to be done with it.

    Attributes:
      examples: what is predicted.
      limits: in tokens.
      settings: of the search, the batches and shards.
      path: of the predictions: {step} stands for the checkpoint's.
      as_json: whether they are JSON Lines; else a text a line.
    """

    examples: Examples
    limits: Limits
    settings: Settings
    path: str
    as_json: bool = True

    def facts(self) -> dict[str, Any]:
        """Returns what decides the predictions, the checkpoint left out."""
        return {**self.examples.facts, **dataclasses.asdict(self.limits), **self.settings.facts()}

    def line(self, example: Example, prediction: str, score: float) -> str:
        """Returns what is written of an example."""
        if not self.as_json:
            return prediction.replace("\n", " ")
        line = {"idx": example.number, "inputs": example.inputs, "prediction": prediction}
        if example.targets is not None:
            line["targets"] = example.targets
        return json.dumps({**line, "score": round(float(score), 5)}, ensure_ascii=False)


def jobs(settings: Settings, run: Run) -> list[Job]:
    """Returns a job for the input file, or one for each task of the mixture.

    Raises:
      UserError: if settings are missing or name what is not there.
    """
    if not settings.output_dir:
        raise UserError("infer.output_dir is not set: it names the folder of the predictions")
    settings = dataclasses.replace(
        settings,
        batch_size=settings.batch_size or run.batch_size,
        activation_dtype=devices.activation_dtype(settings.activation_dtype).name,
    )
    limits = Limits(run.sequence_length["inputs"], run.sequence_length["targets"])
    ending = f"_{{step}}{_shard(settings)}.jsonl"
    return [
        Job(examples, limits, settings, _join(settings.output_dir, examples.name + ending))
        for examples in _sources(settings, run)
    ]


def _shard(settings: Settings) -> str:
    if settings.num_shards == 1:
        return ""
    return f"-{settings.shard_id:05d}-of-{settings.num_shards:05d}"


def _sources(settings: Settings, run: Run) -> list[Examples]:
    name = settings.mixture_or_task_name
    task = checks.known_mixture(name) if name else None
    if settings.input_file:
        feature = task.output_features.get("inputs") if task else None
        add_eos = (
            bool(feature and feature.add_eos) if settings.add_eos is None else settings.add_eos
        )
        vocabulary = feature.vocabulary if feature else run.vocabularies[0]
        return [inputs.of_file(settings.input_file, vocabulary, add_eos=add_eos)]
    if task is None:
        raise UserError("nothing to predict: set infer.mixture_or_task_name or infer.input_file")
    checks.require_split(name, settings.split, setting="infer.split")
    return [
        inputs.of_task(each, settings.split, use_cached=settings.use_cached)
        for each in seqio.get_subtasks(task)
        if settings.split in each.splits
    ]


def takes_over(model_type: str) -> bool:
    """Returns whether the configured inference is ours, and not left to Mesh TensorFlow.

    Raises:
      UserError: if it asks for ours with a model or function that is not.
    """
    asked = Settings().asked_for
    known = model_type == "bitransformer" and bound("run.predict_fn") is None
    if asked and not known:
        raise UserError(
            f"t0.infer predicts with encoder-decoders and no run.predict_fn; run.model_type is "
            f"'{model_type}'. T5's --gin_file=infer.gin decodes a file with others"
        )
    of_t5 = (
        bound("infer_model.decode_fn") in (None, mesh_utils.decode_from_file)
        and bound("decode_from_file.eos_id", EOS) == EOS
    )
    return known and (asked or of_t5)


def jobs_of_t5(run: Run) -> list[Job]:
    """Returns the job of T5's `infer.gin`.

    Raises:
      UserError: if it names no files, or its input file is not there.
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
    settings = Settings(
        batch_size=run.batch_size,
        beam_size=decode["beam_size"],
        alpha=decode["alpha"],
        temperature=decode["temperature"],
        top_k=decode["sampling_keep_top_k"],
    )
    limits = Limits(
        run.sequence_length["inputs"], longest, per_input if settings.beam_size > 1 else None
    )
    examples = inputs.of_file(
        files[0], run.vocabularies[0], add_eos=True, repeats=bound("decode_from_file.repeats", 1)
    )
    return [
        Job(examples, limits, settings, f"{files[1]}-{{step}}{_shard(settings)}", as_json=False)
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
    """Returns a row's predicted tokens: up to EOS, which is one of them, or up to the limit."""
    ends = np.flatnonzero(ids == EOS)
    return ids[: ends[0] + 1 if len(ends) else limit].tolist()


def _join(*parts: str) -> str:
    return os.path.join(*parts)  # noqa: PTH118 (gs:// paths)
