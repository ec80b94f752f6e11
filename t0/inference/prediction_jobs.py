"""Describes prediction jobs: each has a source of inputs, settings and an output file.

    settings = InferenceSettings(output_dir="/out", beam_size=4)
    settings.method                     # DecodingMethod(beam_size=4, alpha=0.6, ...)
    job = PredictionJob(source, LengthLimits(512, 64), settings, "/out/qa_{step}.jsonl")
    job.line(example, "Paris", -1.25)   # the line of the file

On TensorFlow, gin binds the settings as `t0.infer` (`t0.inference.jobs`). The PyTorch engine reads
the settings from a run specification.
"""

import dataclasses
import json
from typing import Annotated, Any

import numpy as np

from t0.config.specification import Count, NotNegative, Positive, Range, read_plain
from t0.errors import UserError
from t0.inference.inputs import InferenceExample, InputSource, LengthLimits
from t0.inference.methods import EOS, DecodingMethod


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """The settings of inference: inputs, decoding method and outputs.

    Attributes:
      mixture_or_task_name: the task or mixture that provides the examples. If `input_file` is set,
        this is the task whose vocabulary encodes the lines of that file.
      split: the task's split.
      use_cached: whether to read the task's cache.
      input_file: a text file with an input on each line. If the name ends in .jsonl or .json, the
        file is JSON Lines, or a single JSON document with rows (`t0.sources.readers`). Each row is
        an object with `inputs` and, if known, `targets`. Files of all these formats may be
        compressed (.gz).
      output_dir: the folder to which predictions are written, as `<name>_<step>.jsonl`.
      batch_size: the number of inputs in a batch; None for the run's batch size.
      beam_size: the number of beams; 1 for greedy decoding or sampling.
      alpha: the exponent of the beams' length penalty.
      temperature: the temperature of sampling. 1 samples from the model's distribution, 0 decodes
        greedily.
      top_k: the number of most likely tokens among which a token is sampled; -1 for all tokens.
      seed: the seed of sampling. An example's random numbers do not depend on its batch or shard.
      shard_id: the number of this shard, from 0. The shard has the examples whose number modulo
        `num_shards` is `shard_id`.
      num_shards: the number of shards into which the examples are divided.
      add_eos: whether to append EOS to the inputs of a file. With None, EOS is appended if the task
        appends it, and not appended if there is no task.
      activation_dtype: "float32", "bfloat16" or "auto". "auto" is bfloat16 if the machine has
        instructions for it, otherwise float32.
    """

    mixture_or_task_name: str | None = None
    split: str = "test"
    use_cached: bool = False
    input_file: str | None = None
    output_dir: str | None = None
    batch_size: Positive | None = None
    beam_size: Positive = 1
    alpha: NotNegative = 0.6
    temperature: NotNegative = 0.0
    top_k: Annotated[int, Range(-1)] = -1
    seed: Count = 0
    shard_id: Count = 0
    num_shards: Positive = 1
    add_eos: bool | None = None
    activation_dtype: str = "float32"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            try:
                value = read_plain(getattr(self, field.name), field.type, f"infer.{field.name}")
            except ValueError as error:
                raise UserError(str(error)) from error
            object.__setattr__(self, field.name, value)
        if not self.top_k:
            raise UserError("infer.top_k is 0; wanted a number from 1, or -1 for all tokens")
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
        """Whether `t0.infer` has an input or output. If not, a run may use T5's `infer.gin`."""
        return any((self.mixture_or_task_name, self.input_file, self.output_dir))

    @property
    def method(self) -> DecodingMethod:
        """The method by which tokens are chosen."""
        return DecodingMethod(self.beam_size, self.alpha, self.temperature, max(0, self.top_k))

    def facts(self) -> dict[str, Any]:
        """Returns the settings that determine the predictions, for the summary file."""
        names = ["shard_id", "num_shards", "batch_size", "beam_size", "activation_dtype"]
        if self.beam_size > 1:
            names.append("alpha")
        if self.temperature:
            names += ["temperature", "top_k", "seed"]
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class PredictionJob:
    """A source of examples, the settings to predict with, and the file for the predictions.

    Attributes:
      examples: the source of the examples.
      limits: the length limits in tokens.
      settings: the settings of the decoding method, the batches and the shards.
      path: the path of the output file, in which {step} stands for the checkpoint's step.
      as_json: whether the output file is JSON Lines. Otherwise each line is a predicted text.
    """

    examples: InputSource
    limits: LengthLimits
    settings: InferenceSettings
    path: str
    as_json: bool = True

    def facts(self) -> dict[str, Any]:
        """Returns the facts that determine the predictions, without those about the checkpoint."""
        return {**self.examples.facts, **dataclasses.asdict(self.limits), **self.settings.facts()}

    def line(self, example: InferenceExample, prediction: str, score: float) -> str:
        """Formats the prediction for an example as a line of the file."""
        if not self.as_json:
            return prediction.replace("\n", " ")
        line = {"idx": example.number, "inputs": example.inputs, "prediction": prediction}
        if example.targets is not None:
            line["targets"] = example.targets
        return json.dumps({**line, "score": round(float(score), 5)}, ensure_ascii=False)


def shard_suffix(settings: InferenceSettings) -> str:
    """Returns the suffix that a shard's file name has before its extension."""
    if settings.num_shards == 1:
        return ""
    return f"-{settings.shard_id:05d}-of-{settings.num_shards:05d}"


def predicted_tokens(ids: np.ndarray, limit: int) -> list[int]:
    """Returns a row's predicted tokens up to EOS, which is included, or up to the limit."""
    ends = np.flatnonzero(ids == EOS)
    return ids[: ends[0] + 1 if len(ends) else limit].tolist()
