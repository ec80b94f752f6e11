"""The padding of values to the tiles of a TPU's memory, where it weighs most.

    >>> padded_bytes((8, 1024, 1024, 16), 4) // 2**20       # 512 MiB, kept in eight times that
    4096

HBM holds an array in tiles: its last dimension is padded to 128, the one before it to 8 values of
four bytes or 16 of two. Most of T5's values are multiples of that on every core. Those of which
the last dimension is attention heads are not, because a core has few: the position bias, and in
evaluation its sum with the mask, in the order batch, queries, keys, heads. (In training, where the
mask is of packed segments, the sum ends in keys.) Every layer of a stack asks for the same two
values, so they are made once and kept for all: of all activations they live longest.

So a plan adds these two, in tiles, to the values that `t0.mesh.memory` counts; that model takes the
sum for part of the operation that reads it. The rule agrees with what is known: scoring 262,144
tokens in a batch with the 11B failed for T0's authors on a v3-128, 65,536 worked, and they trained
on a v3-512. That XLA keeps the order of the program's dimensions has been seen on no TPU here.
"""

import math
from collections.abc import Sequence

from t0.mesh.lowering import Program
from t0.mesh.pod_run import PodRun

LANES = 128
SUBLANE_BYTES = 32
LOGITS_BYTES = 4  # softmax is computed in float32
BIAS_BYTES = 2
_SUMS = ("Cast", "Add", "AddV2")


def padded_bytes(shape: Sequence[int], bytes_each: int) -> int:
    """Returns the bytes of an array in tiles, its dimensions in the given order."""
    *outer, rows, columns = (1, 1, *shape)
    sublanes = SUBLANE_BYTES // bytes_each
    in_tiles = -(-rows // sublanes) * sublanes * (-(-columns // LANES) * LANES)
    return math.prod(outer) * in_tiles * bytes_each


def bias_and_mask_bytes(sequences: int, lengths: Sequence[int], heads: int, *, train: bool) -> int:
    """Returns the tiles of the position bias and, in evaluation, of its sum with the mask.

    Args:
      sequences: sequences of a microbatch on a core.
      lengths: tokens of a sequence in each stack; the stack with the most is counted.
      heads: attention heads of a core.
      train: whether the run trains.
    """
    longest = max(lengths)
    bias = padded_bytes((longest, longest, heads), BIAS_BYTES)
    summed = padded_bytes((sequences, longest, longest, heads), LOGITS_BYTES)
    return bias if train else bias + summed


def lowered_bias_and_mask_bytes(program: Program, run: PodRun) -> int:
    """Returns the same of a lowered program, from the values that it has; 0 where it has none."""
    sequences = run.batch_sequences // run.replicas // run.microbatches
    lengths = set(run.sequence_length.values())
    biases, sums = [0], [0]
    for step in program.steps:
        for shape in (program.values[value].shape for value in step.outputs):
            if len(shape) != 4 or shape[1] != shape[2] or shape[1] not in lengths:
                continue
            if shape[0] == sequences and step.kind in _SUMS:
                sums.append(padded_bytes(shape, LOGITS_BYTES))
            elif shape[0] == 1 and step.kind == "ExpandDims":
                biases.append(padded_bytes(shape, BIAS_BYTES))
    return max(biases) + max(sums)
