"""What is predicted, as plain data: the settings, and a job for each source of inputs.

    settings = InferenceSettings(output_dir="/out", beam_size=4)
    settings.method                     # DecodingMethod(beam_size=4, alpha=0.6, ...)
    job = PredictionJob(source, LengthLimits(512, 64), settings, "/out/qa_{step}.jsonl")
    job.line(example, "Paris", -1.25)   # the line of the file

Gin binds the settings as `t0.infer` (`t0.inference.jobs`); the PyTorch engine reads them from a run
specification.
"""

import dataclasses
import json
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.inference.inputs import InferenceExample, InputSource, LengthLimits
from t0.inference.methods import EOS, DecodingMethod


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


def shard_ending(settings: InferenceSettings) -> str:
    """Returns what the name of a shard's file has before its ending."""
    if settings.num_shards == 1:
        return ""
    return f"-{settings.shard_id:05d}-of-{settings.num_shards:05d}"


def predicted_tokens(ids: np.ndarray, limit: int) -> list[int]:
    """Returns a row's predicted tokens, up to and including EOS, or up to the limit."""
    ends = np.flatnonzero(ids == EOS)
    return ids[: ends[0] + 1 if len(ends) else limit].tolist()
