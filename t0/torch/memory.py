"""The memory and the FLOPs of a step by formula, before anything is built; imports no PyTorch.

    part = Part(rows=2, inputs=1024, targets=256, bytes_each=2)
    switches = MemorySwitches(keep=True, recompute=False)
    needed(shape, optimizer, part, switches, processes=8, microbatches=4).total           # bytes
    model_flops(shape, rows=64, inputs=1024, targets=256)                                  # 6 N D

Letters: B rows of a microbatch on a process, L tokens of a row, M tokens that are attended to, H
heads, I heads times the size of a key, D model, F feed-forward, V vocabulary rows, P parameters, W
processes, a bytes of an activation. `docs/gpu.md` has the same terms as a table. Tests compare the
activations with the tensors that PyTorch keeps for the backward pass.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from t0.checkpoints.shape import ModelShape, expected_shapes, slot_shape
from t0.config.specification import ConfiguredSpec
from t0.training import start_report

_WIDE = 4  # bytes of a float32
_ADAFACTOR = "mesh_tensorflow.optimize.AdafactorOptimizer"
# The share of a GPU's memory that a run can fill: the rest is CUDA's context, NCCL's buffers and
# fragmentation. An assumption, not measured.
USABLE = 0.9
HOW = "by formula: docs/gpu.md; a run uses more where its memory is fragmented"
CHOICES = ("auto", "on", "off")
_ON = {"auto": (False, True), "on": (True,), "off": (False,)}


@dataclasses.dataclass(frozen=True)
class Part:
    """A process's share of a microbatch.

    Attributes:
      rows: its sequences.
      inputs: the tokens of a sequence in the encoder.
      targets: the tokens of a sequence in the decoder.
      bytes_each: the bytes of an activation, 2 for bfloat16 or 4 for float32.
      fused: whether a kernel computes attention without keeping probabilities, as PyTorch's
        memory-efficient attention does on GPUs; on the CPU they are kept, because the bias of
        positions has a gradient.
    """

    rows: int
    inputs: int
    targets: int
    bytes_each: int
    fused: bool = True


@dataclasses.dataclass(frozen=True)
class MemorySwitches:
    """What trades memory for time; nothing of it changes what is computed.

    Attributes:
      keep: whether gathered weights are kept for a step; else each block's are gathered for its
        forward pass, and again for its backward pass.
      recompute: whether a block's activations are computed again in the backward pass.
    """

    keep: bool
    recompute: bool


NEITHER = MemorySwitches(keep=False, recompute=False)


@dataclasses.dataclass(frozen=True)
class Needed:
    """The bytes of a process at the fullest moment of a step.

    Attributes:
      weights: float32 weights, this process's rows.
      slots: the optimizer's state, this process's rows.
      gradients: float32 gradients: this process's rows, but of several microbatches all rows.
      gathered: what is gathered of other processes' weights, and the gradients of that.
      activations: what is kept for the backward pass.
      logits: the logits and their gradients.
      update: what the optimizer adds, when gathered, activations and logits are gone.
    """

    weights: int
    slots: int
    gradients: int
    gathered: int
    activations: int
    logits: int
    update: int

    @property
    def step(self) -> int:
        """What is there beside weights and slots."""
        return self.gradients + max(self.gathered + self.activations + self.logits, self.update)

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.weights + self.slots + self.step

    def line(self, processes: int) -> str:
        """Returns the line of memory that a run prints at its start."""
        kept = start_report.Memory(processes * (self.weights + self.slots), processes * self.step)
        return start_report.memory_line(kept, devices=processes, how=HOW)


def parts_of_rows(rows: int, microbatches: int, processes: int) -> int:
    """Returns the number of microbatches that each process computes.

    Args:
      rows: the sequences of the global batch.
      microbatches: the parts into which one process alone would divide the batch.
      processes: the number of processes, which divides `rows`.

    Returns:
      the least number that divides a process's rows into parts no larger than that.
    """
    own = rows // processes
    least = -(-microbatches // processes)
    return next(count for count in range(least, own + 1) if own % count == 0)


def parameters(shape: ModelShape) -> int:
    """Returns the number of a model's parameters, the vocabulary's padding included."""
    return sum(map(math.prod, expected_shapes(shape).values()))


def needed(
    shape: ModelShape,
    optimizer: ConfiguredSpec,
    part: Part,
    switches: MemorySwitches,
    *,
    processes: int,
    microbatches: int,
) -> Needed:
    """Returns the memory of each process.

    Args:
      shape: the model.
      optimizer: the optimizer of the specification.
      part: a process's share of a microbatch.
      switches: what trades memory for time.
      processes: the number of processes, over which weights and slots are divided.
      microbatches: the microbatches of each process.
    """
    shapes = expected_shapes(shape)
    count = sum(map(math.prod, shapes.values()))
    a = part.bytes_each
    in_blocks = [math.prod(s) for name, s in shapes.items() if "/block_" in name]
    root = count - sum(in_blocks)
    # A decoder's block is the larger one.
    block = sum(math.prod(s) for name, s in shapes.items() if name.startswith("decoder/block_000/"))
    largest = max(map(math.prod, shapes.values()))
    adafactor = optimizer.selector == _ADAFACTOR
    return Needed(
        weights=_WIDE * count // processes,
        slots=_WIDE * _slots(shapes, optimizer) // processes,
        gradients=_WIDE * count // (processes if microbatches == 1 else 1),
        gathered=a * (count if switches.keep else root + block)
        + a * (root + block)
        + _WIDE * max(root, block),
        activations=_activations(shape, part, recompute=switches.recompute),
        logits=part.rows * part.targets * shape.vocabulary * (2 * a + 3 * _WIDE),
        # Adafactor updates one weight after the other, AdamW has all updates before the first.
        update=_WIDE * (4 * largest if adafactor else count + 2 * largest) // processes,
    )


def _slots(shapes: Mapping[str, tuple[int, ...]], optimizer: ConfiguredSpec) -> int:
    """Returns the elements of the optimizer's state."""
    if optimizer.selector != _ADAFACTOR:
        return 2 * sum(map(math.prod, shapes.values()))
    of, total = optimizer.parameters, 0
    for shape in shapes.values():
        small = len(shape) < 2 or min(shape) < of["min_dim_size_to_factor"]
        whole = small or not of["factored"]
        parts = [shape] if whole else [slot_shape(shape, kind) for kind in ("vr", "vc")]
        total += sum(map(math.prod, parts)) + (math.prod(shape) if of["beta1"] else 0)
    return total


def _activations(shape: ModelShape, part: Part, *, recompute: bool) -> int:
    """Returns the bytes that are kept for the backward pass, without logits.

    With `recompute` each block keeps its input, and one block at a time all the rest.
    """
    a, rows, inputs, targets = part.bytes_each, part.rows, part.inputs, part.targets
    encoder = _sublayers(shape, part, inputs, 2) + _attention(shape, part, inputs, inputs)
    decoder = _sublayers(shape, part, targets, 3) + _attention(shape, part, targets, targets)
    decoder += _attention(shape, part, targets, inputs, biased=False)
    kept = shape.encoder_layers * encoder + shape.decoder_layers * decoder
    if recompute:
        kept = max(encoder, decoder) + rows * a * shape.d_model * (
            shape.encoder_layers * inputs + shape.decoder_layers * targets
        )
    # The bias of each stack, its gradient so far, and that of a block; masks of all heads.
    biases = 3 * a * rows * shape.heads * (inputs**2 + targets**2)
    ends = (4 * a + 2 * _WIDE) * rows * shape.d_model * (inputs + targets)
    return kept + biases + ends + 2 * a * rows * (inputs**2 + targets**2 + targets * inputs)


def _sublayers(shape: ModelShape, part: Part, tokens: int, count: int) -> int:
    """Returns the bytes of a block's norms and feed-forward layer.

    A norm keeps its input in float32, the normed values before and after the scale. A gated layer
    keeps both projections, the activation function and their product.
    """
    wide = (4 if shape.gated else 2) * shape.d_ff * part.bytes_each
    return part.rows * tokens * (count * (_WIDE + 2 * part.bytes_each) * shape.d_model + wide)


def _attention(
    shape: ModelShape, part: Part, queries: int, keys: int, *, biased: bool = True
) -> int:
    """Returns the bytes of an attention layer: queries, keys, values, and what was attended.

    Without a fused kernel, where the bias has a gradient, queries, keys, values and probabilities
    are kept in float32.
    """
    a, heads, inner = part.bytes_each, shape.heads, shape.inner
    if part.fused or not biased:
        kept = inner * a * (3 * queries + 2 * keys) + _WIDE * heads * queries
    else:
        kept = _WIDE * (inner * (queries + 2 * keys) + heads * queries * keys) + a * inner * queries
    return part.rows * kept


def model_flops(
    shape: ModelShape, *, rows: int, inputs: int, targets: int, predicted: float = 1.0
) -> int:
    """Returns the FLOPs of a step's matrix products, nothing computed twice.

    Each element of a matrix takes 2 FLOPs for each token that it meets, and 4 in the backward
    pass: 6 N D for N parameters and D tokens. The encoder's matrices, and the keys and values of
    attention to its output, meet the inputs; the decoder's meet the targets, as the logits do.
    Lookups count nothing. Attention adds 4 L M I to each layer's forward pass.

    Args:
      shape: the model.
      rows: the sequences of the batch.
      inputs: the tokens of a sequence's inputs, padding included.
      targets: the tokens of its targets, padding included.
      predicted: the share of the target positions for which logits are computed.
    """
    products = 0.0
    for name, of in expected_shapes(shape).items():
        # Rows with one dimension are scales, and a table of biases is looked up.
        if len(of) < 2 or name.endswith("relative_attention_bias"):
            continue
        if name == "shared/embedding" or name == "decoder/logits/kernel":
            tokens = targets * predicted if shape.tied or name != "shared/embedding" else 0.0
        else:
            of_inputs = re.match(r"encoder/|.*/EncDecAttention/[kv]$", name)
            tokens = inputs if of_inputs else targets
        products += 2 * math.prod(of) * tokens
    attended = shape.encoder_layers * inputs**2
    attended += shape.decoder_layers * targets * (targets + inputs)
    return round(3 * rows * (products + 4 * attended * shape.inner))


def memory_switches(recompute: str = "auto", keep: str = "auto") -> list[MemorySwitches]:
    """Returns the switches to choose from, the fastest first and the most frugal last.

    Args:
      recompute: whether activations are computed again, one of `CHOICES`.
      keep: whether gathered weights are kept for a step, one of `CHOICES`.
    """
    return [
        MemorySwitches(kept, again)
        for again in _ON[recompute]  # computing twice takes more time than gathering twice
        for kept in reversed(_ON[keep])
    ]


def first_that_fits(choices: Sequence[MemorySwitches], needs: Sequence[Needed], free: int) -> int:
    """Returns the number of the first choice that fits a process's memory, the last if none does.

    Args:
      choices: what `memory_switches` returned.
      needs: the memory that each of them needs.
      free: the bytes that the process can allocate.
    """
    fits = (number for number, each in enumerate(needs) if each.total <= free)
    return next(fits, len(needs) - 1)
