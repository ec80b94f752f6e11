"""Makes the lines about size, memory and data that our training loops print at their start.

    size = RunSize(16, {"inputs": 512, "targets": 192}, parameters=76_961_152)
    memory = memory_line(Memory(variables=308_809_728, step=1_503_238_553), devices=1, how=how)
    lines(0, 12_200, size, microbatches=1, memory=memory, data=data)

    training from step 0 to 12,200: 16 sequences a step, inputs 512, targets 192
      model: 76,961,152 parameters
      memory: about 1.7 GiB on each of 1 device(s):
        weights and optimizer 294.5 MiB, gradients and activations 1.4 GiB
      12,200 steps of 11,264 tokens in 1 microbatch(es), 137,420,800 tokens in total
      packing: 9.8 examples a sequence; filled: inputs 99.1%, targets 28.7%
      data: 2 task(s); passes over each in these steps:
        super_glue_rte_guaranteed_true: 31.20 passes (2,490 examples, 50.0% of the mixture)

Lines with more than 80 characters are wrapped. With -v, the report also says how the memory was
computed. This module does not depend on an engine, because the caller provides all numbers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import logging

from t0.text_tables import wrap_text

_WIDTH = 80
_MOST_TASKS = 12
NO_POSITION = "the checkpoint records no position in the data: the data is read from its beginning"
OTHER_ORDER = (
    "an earlier version, which drew the examples in another order, wrote the checkpoint: the data "
    "is read from its beginning, so examples may be seen again"
)


@dataclasses.dataclass(frozen=True)
class RunSize:
    """The sizes of a run.

    Attributes:
      rows: the number of sequences of a global batch.
      lengths: feature -> the length of its sequences in tokens.
      parameters: the number of the model's weights; 0 if it is unknown.
    """

    rows: int
    lengths: Mapping[str, int]
    parameters: int = 0

    @property
    def tokens(self) -> int:
        """The number of positions of a batch, including padding."""
        return self.rows * sum(self.lengths.values())

    @property
    def target_positions(self) -> int:
        """The number of target positions of a batch, including padding."""
        return self.rows * self.lengths["targets"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of a run in bytes, summed over all its devices.

    Attributes:
      variables: the bytes of the weights, in all types in which they are stored, and of the
        optimizer's slots.
      step: the peak bytes of a step's gradients and activations.
    """

    variables: int
    step: int


def lines(
    first: int, last: int, size: RunSize, *, microbatches: int, memory: str, data: Any
) -> list[str]:
    """Returns the lines to print at the start of a run.

    Args:
      first: the step from which the run continues; 0 for a new run.
      last: the step at which the run ends.
      size: the sizes of the run.
      microbatches: the number of microbatches of a step.
      memory: the text about memory, such as the result of `memory_line`.
      data: a `TrainingData`, or another object that has `filling` and `shares`.
    """
    report = [
        first_line(first, last, size),
        f"  model: {size.parameters:,} parameters",
        memory,
        f"  {last - first:,} steps of {size.tokens:,} tokens in {microbatches} microbatch(es), "
        f"{(last - first) * size.tokens:,} tokens in total",
        *data_lines(data, (last - first) * size.rows),
    ]
    return wrap_text("\n".join(report), _WIDTH).split("\n")


def first_line(first: int, last: int, size: RunSize) -> str:
    """Returns the line that reports the steps and the size of a batch."""
    each = ", ".join(f"{name} {length:,}" for name, length in size.lengths.items())
    return f"training from step {first:,} to {last:,}: {size.rows:,} sequences a step, {each}"


def memory_line(needed: Memory, *, devices: int, how: str) -> str:
    """Returns the lines about the memory of each device.

    Args:
      needed: the total memory of all devices.
      devices: the number of devices, which share the memory equally.
      how: a text that says how the numbers were computed, and how accurate they are; for -v.
    """
    both = needed.variables + needed.step
    total, variables, step = (_size(n / devices) for n in (both, needed.variables, needed.step))
    line = (
        f"  memory: about {total} on each of {devices} device(s):\n"
        f"    weights and optimizer {variables}, gradients and activations {step}"
    )
    return f"{line}\n    ({how})" if logging.get_verbosity() >= logging.INFO else line


def _size(count: float) -> str:
    """Formats a number of bytes: in GiB from 1 GiB on, otherwise in MiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def data_lines(data: Any, sequences: int) -> list[str]:
    """Returns the lines about the data: the packing, and the passes over each task.

    Args:
      data: a `TrainingData`, or another object that has `filling` and `shares`. If `filling` is
        None, there are no lines.
      sequences: the number of sequences in all steps together.
    """
    filling = data.filling
    if filling is None:
        return []
    each = filling.examples / filling.rows
    full = ", ".join(f"{name} {share:.1%}" for name, share in filling.filled.items())
    report = [f"  packing: {each:.1f} examples a sequence; filled: {full}"]
    if filling.unknown:
        report.append(
            f"  unknown tokens: {filling.unknown:.1%} of the first targets have some, because the "
            "vocabulary does not have all of their characters"
        )
    examples_drawn = sequences * each
    shares = sorted(data.shares(), key=lambda share: -share.rate)
    report.append(f"  data: {len(shares)} task(s); passes over each in these steps:")
    for share in shares[:_MOST_TASKS]:
        passes = f"{examples_drawn * share.rate / share.examples:.2f}" if share.examples else "?"
        count = f"{share.examples:,} examples" if share.examples else "unknown size"
        report.append(
            f"    {share.name}: {passes} passes ({count}, {share.rate:.1%} of the mixture)"
        )
    if len(shares) > _MOST_TASKS:
        report.append(f"    ... and {len(shares) - _MOST_TASKS} more")
    return report


def restored_line(filled: int, total: int, path: str, step: int) -> str:
    """Returns the line that reports how many variables were restored from a checkpoint."""
    return f"restored {filled:,} of {total:,} variables from {path}, step {step:,}"


def slots_line(filled: int, total: int) -> str:
    """Returns the line that reports how many of the optimizer's variables were restored."""
    if not total:
        return "the optimizer keeps no state"
    if filled == total:
        return f"optimizer state: restored, {total:,} of {total:,} slots"
    return f"optimizer state: {filled:,} of {total:,} slots restored, the others start at zero"


def random_line(seed: int) -> str:
    """Returns the line that reports that a run starts from random weights."""
    return f"no checkpoint: starting from random weights, seed {seed}"
