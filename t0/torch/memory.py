"""Estimates the memory of a training step before the model is built, without importing PyTorch.

    share = MicrobatchShare(rows=2, inputs=1024, targets=256, bytes_each=2)
    switches = MemorySwitches(keep=True, recompute=False)
    needed(shape, optimizer, share, switches, processes=8, microbatches=4).total          # bytes
    model_flops(shape, rows=64, inputs=1024, targets=256)                                  # 6 N D

The formulas are those in `t0.mesh.formulas`. This module adds the weights and gradients that
sharding gathers. It also chooses the switches that save memory but need more time. `docs/gpu.md`
has a table of all terms. Tests compare the estimated bytes of activations with the tensors that
PyTorch stores for the backward pass.
"""

import dataclasses
import math
from collections.abc import Sequence

from t0.checkpoints import adapter_folders
from t0.checkpoints.shape import ModelShape, expected_shapes
from t0.config.specification import AdapterSpec, ConfiguredSpec
from t0.mesh import formulas
from t0.mesh.formulas import FLOAT32_BYTES, TORCH_FUSED, TORCH_PLAIN, Share
from t0.training import start_report

KERNEL = "efficient"  # the attention kernel that `t0 plan` assumes; see `t0.torch.attention`
_ADAFACTOR = "mesh_tensorflow.optimize.AdafactorOptimizer"
# The fraction of a GPU's memory that a run can use. The rest is for CUDA's context, NCCL's buffers
# and fragmentation. This fraction is an assumption; we did not measure it.
USABLE = 0.9
HOW = "by formula: docs/gpu.md; a run uses more if its memory is fragmented"
CHOICES = ("auto", "on", "off")
_ON = {"auto": (False, True), "on": (True,), "off": (False,)}


@dataclasses.dataclass(frozen=True)
class MicrobatchShare(Share):
    """The part of a microbatch that one process computes.

    Attributes:
      kernel: the attention kernel: one of `t0.torch.attention.KERNELS`, or "auto" if PyTorch
        chooses the kernel on a CPU. In this case, the kernel stores the attention probabilities,
        because the position bias has a gradient.
    """

    kernel: str = KERNEL


@dataclasses.dataclass(frozen=True)
class MemorySwitches:
    """Options that save memory but need more time. Results do not depend on them.

    Attributes:
      keep: whether gathered weights are kept until the end of the step. Otherwise the weights of
        each block are gathered twice: for its forward pass and for its backward pass.
      recompute: whether the backward pass computes a block's activations again instead of storing
        them.
    """

    keep: bool
    recompute: bool


NEITHER = MemorySwitches(keep=False, recompute=False)


@dataclasses.dataclass(frozen=True)
class Needed:
    """The bytes that a process needs at the peak of a step.

    Attributes:
      weights: this process's rows of the float32 weights.
      slots: this process's rows of the optimizer's state.
      gradients: the float32 gradients. With one microbatch, a process has only its own rows; with
        several microbatches, it has all rows.
      gathered: the weights that are gathered from other processes, and their gradients. If steps
        are replayed, it is the copy of the weights with which the model computes.
      activations: the tensors that are stored for the backward pass.
      logits: the logits and their gradients.
      update: the temporary tensors of the optimizer's update. When they are allocated, `gathered`,
        `activations` and `logits` have already been freed.
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
        """The bytes that a step needs at its peak, in addition to weights and slots."""
        return self.gradients + max(self.gathered + self.activations + self.logits, self.update)

    @property
    def total(self) -> int:
        """All bytes that the process needs at the peak of a step."""
        return self.weights + self.slots + self.step

    def line(self, processes: int) -> str:
        """Returns the line about memory that a run prints when it starts."""
        run_memory = start_report.Memory(
            processes * (self.weights + self.slots), processes * self.step
        )
        return start_report.memory_line(run_memory, devices=processes, how=HOW)


def count_microbatches(rows: int, microbatches: int, processes: int) -> int:
    """Returns the number of microbatches that each process computes.

    Args:
      rows: the number of sequences in the global batch.
      microbatches: the number of microbatches if a single process computed the whole batch.
      processes: the number of processes; `rows` is a multiple of it.

    Returns:
      the smallest number that divides a process's sequences into equal microbatches, none of which
      is larger than a microbatch of the single process.
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
    adapter: AdapterSpec | None = None,
) -> Needed:
    """Returns the memory that each process needs for a training step.

    Args:
      shape: the model.
      optimizer: the optimizer of the specification.
      share: the part of a microbatch that one process computes.
      switches: the options that trade memory for time.
      processes: the number of processes, over which weights and slots are divided.
      microbatches: the number of microbatches of each process.
      replays: whether steps are replayed as CUDA graphs (`t0.torch.replayed`).
      adapter: the adapter that is trained; None to train the model itself.
    """
    shapes = expected_shapes(shape)
    count = formulas.parameters(shape)
    a, stored = share.bytes_each, TORCH_FUSED if share.kernel == KERNEL else TORCH_PLAIN
    root = count - sum(math.prod(s) for name, s in shapes.items() if "/block_" in name)
    # The formula uses a block of the decoder, because a block of the encoder is smaller.
    block = sum(math.prod(s) for name, s in shapes.items() if name.startswith("decoder/block_000/"))
    largest = max(map(math.prod, shapes.values()))
    adafactor = optimizer.selector == _ADAFACTOR
    # Adafactor computes and applies the update of one weight at a time. AdamW computes the updates
    # of all weights before it applies the first.
    update = FLOAT32_BYTES * (4 * largest if adafactor else count + 2 * largest) // processes
    gradients = FLOAT32_BYTES * count // (processes if microbatches == 1 else 1)
    gathered = a * (count if switches.keep else root + block)
    gathered += a * (root + block) + FLOAT32_BYTES * max(root, block)
    if replays:
        gathered = a * count
        update += gathered
        # With one microbatch, gradients have the type of activations, and the memory of activations
        # is freed while gradients are allocated.
        if microbatches == 1:
            gradients, update = 0, update + a * count
    whole = Needed(
        weights=FLOAT32_BYTES * count // processes,
        slots=FLOAT32_BYTES * _slots(shape, optimizer) // processes,
        gradients=gradients,
        gathered=gathered,
        activations=_activations(shape, share, stored, recompute=switches.recompute),
        logits=formulas.logit_bytes(shape, share, stored),
        update=update,
    )
    if adapter is None:
        return whole
    # Frozen weights have the type of activations, and no gradients, slots and updates. If steps are
    # replayed, the model computes with the stored weights. Otherwise `gathered` is an upper bound.
    own = FLOAT32_BYTES * adapter_folders.count_weights(adapter, shape) // processes
    return dataclasses.replace(
        whole,
        weights=a * count // processes + own,
        slots=2 * own,
        gradients=own * processes,
        gathered=own if replays else gathered,
        update=4 * own,
    )


def _slots(shape: ModelShape, optimizer: ConfiguredSpec) -> int:
    """Returns the number of elements of the optimizer's state."""
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
    """Returns the bytes that are stored for the backward pass, without logits.

    With `recompute`, each block stores only its input, except that one block at a time also stores
    its other activations.
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
      rows: the number of sequences in the batch.
      inputs: the number of input tokens of a sequence, including padding.
      targets: the number of target tokens of a sequence, including padding.
      predicted: the fraction of target positions for which logits are computed.
    """
    return 3 * formulas.product_flops(shape, Share(rows, inputs, targets), predicted=predicted)


def memory_switches(recompute: str = "auto", keep: str = "auto") -> list[MemorySwitches]:
    """Returns the combinations of switches to choose from, fastest first and smallest last.

    Args:
      recompute: one of `CHOICES`, which says whether activations are recomputed.
      keep: one of `CHOICES`, which says whether gathered weights are kept until the end of the
        step.
    """
    return [
        MemorySwitches(keeps, recomputes)
        for recomputes in _ON[recompute]  # computing twice takes more time than gathering twice
        for keeps in reversed(_ON[keep])
    ]


def first_that_fits(choices: Sequence[MemorySwitches], needs: Sequence[Needed], free: int) -> int:
    """Returns the index of the first choice that fits into memory, or of the last if none fits.

    Args:
      choices: the combinations of switches, from `memory_switches`.
      needs: the memory that each combination needs.
      free: the number of bytes that the process can allocate.
    """
    fits = (number for number, each in enumerate(needs) if each.total <= free)
    return next(fits, len(needs) - 1)
