"""Estimates the memory of a training step before anything is built; does not import PyTorch.

    share = MicrobatchShare(rows=2, inputs=1024, targets=256, bytes_each=2)
    switches = MemorySwitches(keep=True, recompute=False)
    needed(shape, optimizer, share, switches, processes=8, microbatches=4).total          # bytes
    model_flops(shape, rows=64, inputs=1024, targets=256)                                  # 6 N D

The formulas are those of `t0.mesh.formulas`; this module adds what sharding gathers, and chooses
the switches that trade memory for time. `docs/gpu.md` has the terms as a table. Tests compare the
activations with the tensors that PyTorch keeps for the backward pass.
"""

import dataclasses
import math
from collections.abc import Sequence

from t0.checkpoints.shape import ModelShape, expected_shapes
from t0.config.specification import ConfiguredSpec
from t0.mesh import formulas
from t0.mesh.formulas import FLOAT32_BYTES, TORCH_FUSED, TORCH_PLAIN, Share
from t0.training import start_report

KERNEL = "efficient"  # the kernel of attention that a plan assumes; see `t0.torch.attention`
_ADAFACTOR = "mesh_tensorflow.optimize.AdafactorOptimizer"
# The share of a GPU's memory that a run can fill: the rest is CUDA's context, NCCL's buffers and
# fragmentation. An assumption, not measured.
USABLE = 0.9
HOW = "by formula: docs/gpu.md; a run uses more if its memory is fragmented"
CHOICES = ("auto", "on", "off")
_ON = {"auto": (False, True), "on": (True,), "off": (False,)}


@dataclasses.dataclass(frozen=True)
class MicrobatchShare(Share):
    """A process's share of a microbatch.

    Attributes:
      kernel: the attention kernel, one of `t0.torch.attention.KERNELS`; "auto" is PyTorch's
        choice on a CPU, which keeps probabilities, because the bias of positions has a gradient.
    """

    kernel: str = KERNEL


@dataclasses.dataclass(frozen=True)
class MemorySwitches:
    """Options that trade memory for time; results do not depend on them.

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
    """The bytes of a process at the peak of a step.

    Attributes:
      weights: float32 weights, this process's rows.
      slots: the optimizer's state, this process's rows.
      gradients: float32 gradients of this process's rows; of all rows with several microbatches.
      gathered: the weights gathered from other processes, and their gradients; of replayed steps
        the copy of the weights that computes.
      activations: the tensors kept for the backward pass.
      logits: the logits and their gradients.
      update: the optimizer's temporary tensors, when gathered, activations and logits are freed.
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
        """All bytes except those of weights and slots."""
        return self.gradients + max(self.gathered + self.activations + self.logits, self.update)

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.weights + self.slots + self.step

    def line(self, processes: int) -> str:
        """Returns the line of memory that a run prints at its start."""
        run_memory = start_report.Memory(
            processes * (self.weights + self.slots), processes * self.step
        )
        return start_report.memory_line(run_memory, devices=processes, how=HOW)


def count_microbatches(rows: int, microbatches: int, processes: int) -> int:
    """Returns the number of microbatches that each process computes.

    Args:
      rows: the sequences of the global batch.
      microbatches: the parts into which a single process would divide the batch.
      processes: the number of processes, which divides `rows`.

    Returns:
      the smallest number that divides a process's rows into parts of at most that size.
    """
    own = rows // processes
    least = -(-microbatches // processes)
    return next(count for count in range(least, own + 1) if own % count == 0)


def needed(
    shape: ModelShape,
    optimizer: ConfiguredSpec,
    share: MicrobatchShare,
    switches: MemorySwitches,
    *,
    processes: int,
    microbatches: int,
    replays: bool = False,
) -> Needed:
    """Returns the memory of each process.

    Args:
      shape: the model.
      optimizer: the optimizer of the specification.
      share: a process's share of a microbatch.
      switches: the options that trade memory for time.
      processes: the number of processes, over which weights and slots are divided.
      microbatches: the microbatches of each process.
      replays: whether steps are replayed as CUDA graphs (`t0.torch.replayed`).
    """
    shapes = expected_shapes(shape)
    count = formulas.parameters(shape)
    a, stored = share.bytes_each, TORCH_FUSED if share.kernel == KERNEL else TORCH_PLAIN
    root = count - sum(math.prod(s) for name, s in shapes.items() if "/block_" in name)
    # A decoder's block is the larger one.
    block = sum(math.prod(s) for name, s in shapes.items() if name.startswith("decoder/block_000/"))
    largest = max(map(math.prod, shapes.values()))
    adafactor = optimizer.selector == _ADAFACTOR
    # Adafactor updates one weight at a time; AdamW computes all updates before the first.
    update = FLOAT32_BYTES * (4 * largest if adafactor else count + 2 * largest) // processes
    gradients = FLOAT32_BYTES * count // (processes if microbatches == 1 else 1)
    gathered = a * (count if switches.keep else root + block)
    gathered += a * (root + block) + FLOAT32_BYTES * max(root, block)
    if replays:
        gathered = a * count
        update += gathered
        if microbatches == 1:  # gradients appear, in the activations' type, while those are freed
            gradients, update = 0, update + a * count
    return Needed(
        weights=FLOAT32_BYTES * count // processes,
        slots=FLOAT32_BYTES * _slots(shape, optimizer) // processes,
        gradients=gradients,
        gathered=gathered,
        activations=_activations(shape, share, stored, recompute=switches.recompute),
        logits=formulas.logit_bytes(shape, share, stored),
        update=update,
    )


def _slots(shape: ModelShape, optimizer: ConfiguredSpec) -> int:
    """Returns the elements of the optimizer's state."""
    if optimizer.selector != _ADAFACTOR:
        return formulas.slots_on_device(shape, {}, factored_from=None, moments=1)
    parameters = optimizer.parameters
    factored_from = parameters["min_dim_size_to_factor"] if parameters["factored"] else None
    return formulas.slots_on_device(
        shape, {}, factored_from=factored_from, moments=1 if parameters["beta1"] else 0
    )


def _activations(
    shape: ModelShape, share: MicrobatchShare, stored: formulas.StoredValues, *, recompute: bool
) -> int:
    """Returns the bytes that are kept for the backward pass, without logits.

    With `recompute`, each block keeps its input, and one block at a time also keeps the rest.
    """
    encoder, decoder = formulas.layer_bytes(shape, share, stored)
    layers = shape.encoder_layers * encoder + shape.decoder_layers * decoder
    if recompute:
        layers = max(encoder, decoder) + share.rows * share.bytes_each * shape.d_model * (
            shape.encoder_layers * share.inputs + shape.decoder_layers * share.targets
        )
    return layers + formulas.end_bytes(shape, share, stored)


def model_flops(
    shape: ModelShape, *, rows: int, inputs: int, targets: int, predicted: float = 1.0
) -> int:
    """Returns the FLOPs of a step's matrix products, without recomputation.

    Args:
      shape: the model.
      rows: the sequences of the batch.
      inputs: the tokens of a sequence's inputs, padding included.
      targets: the tokens of its targets, padding included.
      predicted: the share of the target positions for which logits are computed.
    """
    return 3 * formulas.product_flops(shape, Share(rows, inputs, targets), predicted=predicted)


def memory_switches(recompute: str = "auto", keep: str = "auto") -> list[MemorySwitches]:
    """Returns the switches to choose from, the fastest first and the most frugal last.

    Args:
      recompute: whether activations are computed again, one of `CHOICES`.
      keep: whether gathered weights are kept for a step, one of `CHOICES`.
    """
    return [
        MemorySwitches(keeps, recomputes)
        for recomputes in _ON[recompute]  # computing twice takes more time than gathering twice
        for keeps in reversed(_ON[keep])
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
