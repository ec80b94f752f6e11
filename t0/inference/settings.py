"""What gin can say of inference, and what of it decides the predictions.

    Settings(mixture_or_task_name="qa", split="test", output_dir="/out", beam_size=4).method
    # Method(beam_size=4, alpha=0.6, temperature=0.0, top_k=0)

gin's name is `t0.infer`; `gin/runs/infer.gin` binds it.
"""

import dataclasses
from typing import Any

from t0.compat import gin
from t0.errors import UserError
from t0.inference.choice import Method


@gin.configurable("infer", module="t0")
@dataclasses.dataclass(frozen=True)
class Settings:
    """How predictions are made, and of what.

    Attributes:
      mixture_or_task_name: whose examples are predicted; with `input_file`, what says how a line
        becomes tokens.
      split: of the task.
      use_cached: whether the task's cache is read.
      input_file: text, an input a line, or JSON Lines (by its ending .jsonl or .json) with `inputs`
        and, if known, `targets`; either may be packed, .gz.
      output_dir: where predictions go, as `<name>_<step>.jsonl`.
      batch_size: inputs decoded at once; None for the run's.
      beam_size: beams kept; 1 decodes greedily, or samples.
      alpha: the exponent of the beams' length penalty.
      temperature: above 0 draws tokens, 1 as the model has it.
      top_k: draw among so many of the likeliest; -1 for all.
      seed: of the draws. Each example has its own, whatever batch or shard it is in.
      shard_id: this process takes the examples whose number leaves it when divided by `num_shards`.
      num_shards: how many processes share the examples.
      add_eos: whether EOS ends the inputs of a file; None: as the task says, without one not.
      activation_dtype: "float32", "bfloat16", or "auto": bfloat16 where the machine computes it.
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
    def asked_for(self) -> bool:
        """Whether a configuration says anything of what is predicted here."""
        return any((self.mixture_or_task_name, self.input_file, self.output_dir))

    @property
    def method(self) -> Method:
        """How tokens are chosen."""
        return Method(self.beam_size, self.alpha, self.temperature, max(0, self.top_k))

    def facts(self) -> dict[str, Any]:
        """Returns those settings on which predictions depend, as they are recorded."""
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
# Settings -> what they may be, in words and as a test.
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
