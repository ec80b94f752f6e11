"""Compares the tensors and settings of two checkpoints in any formats.

    comparison = compare("/models/t0_3b", "/models/t0_3b_mtf")
    comparison.same, comparison.rows

`compare` holds two tensors in memory at a time.
"""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
from tqdm import tqdm

from t0.checkpoints import names, tokenizer
from t0.checkpoints.conversion import open_source
from t0.checkpoints.formats import CheckpointFacts, CheckpointSource, flat_bytes


@dataclasses.dataclass(frozen=True)
class Difference:
    """The result of comparing one tensor in two checkpoints.

    Attributes:
      name: the tensor's canonical name.
      verdict: "same", "only in A", "only in B", "shape" or "values" if these differ, or "dtype" if
        only the dtypes differ.
      largest: the largest absolute difference between elements at the same position. It is infinite
        if a value is NaN, and NaN if the values were not compared.
      detail: the two dtypes or shapes, if they differ.
    """

    name: str
    verdict: str
    largest: float = 0.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of comparing all tensors and settings of two checkpoints.

    Attributes:
      rows: one row for each parameter or slot that at least one of the checkpoints has.
      kinds: the formats of the two checkpoints.
      slots_ignored: whether the optimizer's slots are left out because only one checkpoint has
        them.
      settings: one line for each setting (activation, tokenizer) that differs.
    """

    rows: list[Difference]
    kinds: tuple[str, str]
    slots_ignored: bool
    settings: list[str] = dataclasses.field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether the settings and all tensors are identical, bit for bit."""
        return not self.settings and all(row.verdict == "same" for row in self.rows)


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compares two checkpoints tensor by tensor.

    Args:
      a: the path of the first checkpoint, see `open_source`.
      b: the path of the second checkpoint.

    Raises:
      UserError: if a checkpoint cannot be read.
    """
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(contextlib.closing(open_source(path))) for path in (a, b)
        )
        without_slots = [
            len(source.entries) == len(source.parameters) for source in (first, second)
        ]
        slots_ignored = without_slots[0] != without_slots[1]
        tensor_names = list(dict.fromkeys([*first.entries, *second.entries]))
        if slots_ignored:
            tensor_names = [name for name in tensor_names if names.split_slot(name)[1] is None]
        rows = [
            _compare_tensor(first, second, name)
            for name in tqdm(tensor_names, disable=None, leave=False, unit=" tensors")
        ]
        settings = _compare_settings(first.facts, second.facts)
        return Comparison(rows, (first.kind, second.kind), slots_ignored, settings)


def _compare_settings(a: CheckpointFacts, b: CheckpointFacts) -> list[str]:
    """Returns a line for each setting that both checkpoints have, but with different values.

    The ids of special tokens and the epsilons of norms need no comparison: a folder in which they
    differ from T5's cannot be opened.
    """
    lines = []
    if a.activation and b.activation and a.activation != b.activation:
        lines.append(f"activation\t{a.activation} and {b.activation}")
    if a.tokenizer and b.tokenizer:
        if not tokenizer.same(a.tokenizer, b.tokenizer):
            lines.append(f"tokenizer\t{a.tokenizer} and {b.tokenizer}")
    elif (a.tokenizer or a.tokenizer_fault) and (b.tokenizer or b.tokenizer_fault):
        lines += [f"tokenizer\t{fact.tokenizer_fault}" for fact in (a, b) if fact.tokenizer_fault]
    return lines


def _compare_tensor(one: CheckpointSource, other: CheckpointSource, name: str) -> Difference:
    if name not in other.entries or name not in one.entries:
        return Difference(name, "only in A" if name in one.entries else "only in B", float("nan"))
    first, second = one.entries[name], other.entries[name]
    if first.shape != second.shape:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        return Difference(name, "shape", float("nan"), shapes)
    a, b = one.load(name), other.load(name)
    detail = "" if a.dtype == b.dtype else f"{a.dtype} and {b.dtype}"
    if not detail and np.array_equal(flat_bytes(a), flat_bytes(b)):
        return Difference(name, "same")
    largest = _largest_difference(a, b)
    return Difference(name, "dtype" if detail and largest == 0 else "values", largest, detail)


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    largest = 0.0
    # Compare in pieces: a float64 copy of a bfloat16 tensor would be four times as large.
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, flat_a.size, 1 << 20):
        piece = slice(start, start + (1 << 20))
        gap = np.abs(flat_a[piece].astype(np.float64) - flat_b[piece].astype(np.float64))
        largest = max(largest, float(gap.max()) if not np.isnan(gap).any() else float("inf"))
    return largest
