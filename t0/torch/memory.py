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
from collections.abc import Callable, Iterator, Sequence

from t0.checkpoints import adapter_folders
from t0.checkpoints.quantized_weights import is_quantized
from t0.checkpoints.shape import expected_shapes
from t0.config.model_spec import ModelShape
from t0.config.specification import NF4_BLOCK, AdapterSpec, ConfiguredSpec
from t0.errors import UserError
from t0.mesh import formulas
from t0.mesh.formulas import FLOAT32_BYTES, TORCH_FUSED, TORCH_PLAIN, Share
from t0.training import recorder

KERNEL = "efficient"  # the attention kernel that `t0 plan` assumes; see `t0.torch.model`
_ADAFACTOR = "mesh_tensorflow.optimize.AdafactorOptimizer"
# The fraction of a GPU's memory that a run can use. The rest is for CUDA's context, NCCL's buffers
# and fragmentation. This fraction is an assumption; we did not measure it.
USABLE = 0.9
CHOICES = ("auto", "on", "off")
GRADIENTS = ("auto", "keep", "fused", "offload")
_ON = {"auto": (False, True), "on": (True,), "off": (False,)}


@dataclasses.dataclass(frozen=True)
class MicrobatchShare(Share):
    """The part of a microbatch that one process computes.

    Attributes:
      kernel: the attention kernel: one of `t0.torch.model.KERNELS`, or "auto" if PyTorch
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
      gradients: "keep" to keep all gradients until the optimizer's step, "fused" to update each
        block within the backward pass, or "offload" to sum the gradients of microbatches in host
        memory (`t0.torch.gradients`).
    """

    keep: bool
    recompute: bool
    gradients: str = "keep"


NEITHER = MemorySwitches(keep=False, recompute=False)


@dataclasses.dataclass(frozen=True)
class Needed:
    """The bytes that a process needs at one moment of a step. `needed` returns the peak.

    Attributes:
      weights: this process's rows of the float32 weights.
      slots: this process's rows of the optimizer's state.
      gradients: the float32 gradients that exist at this moment. With one microbatch, a process has
        only its own rows; with several microbatches, it has all rows.
      gathered: the weights that are gathered from other processes, and their gradients. If steps
        are replayed, it is the copy of the weights with which the model computes.
      activations: the tensors that are stored for the backward pass.
      logits: the logits, and the tensors that the loss computes from them.
      update: the temporary tensors of the optimizer's update.
      host: the gradients in host memory, which are not in the total.
    """

    weights: int
    slots: int
    gradients: int = 0
    gathered: int = 0
    activations: int = 0
    logits: int = 0
    update: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """All bytes that the process needs at this moment on its device."""
        return sum(dataclasses.astuple(self)) - self.host

    @property
    def step(self) -> int:
        """The bytes that a step needs in addition to weights and slots."""
        return self.total - self.weights - self.slots

    def line(self, processes: int) -> str:
        """Returns the line about memory that a run prints when it starts."""
        return recorder.memory_line(self.weights + self.slots, self.step, devices=processes)


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


def can_replay(
    switches: MemorySwitches, adapter: AdapterSpec | None, processes: int, *, choices: bool
) -> bool:
    """Returns whether the steps of a run can be replayed as CUDA graphs.

    Recomputation restores the state of the random number generator, which is impossible in CUDA
    graphs. The logits of answer choices are computed only at tokens, whose number differs between
    batches, but the shapes of a CUDA graph are fixed. Steps on a quantized base run eagerly.

    Args:
      choices: whether the loss includes losses of answer choices.
    """
    plain = not switches.recompute and switches.gradients == "keep" and not choices
    return plain and processes == 1 and (adapter is None or adapter.base == "full")


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
    """Returns the memory that each process needs at the peak of a training step.

    Args:
      shape: the model.
      optimizer: the optimizer of the specification.
      share: the part of a microbatch that one process computes.
      switches: the options that trade memory for time.
      processes: the number of processes, over which weights and slots are divided.
      microbatches: the number of microbatches of each process.
      replays: whether steps are replayed as CUDA graphs (`t0.torch.cuda_graphs`).
      adapter: the adapter that is trained; None to train the model itself.
    """
    weights = FLOAT32_BYTES * formulas.parameters(shape) // processes
    slots = FLOAT32_BYTES * _slots(shape, optimizer) // processes
    copies = 4 if replays else 2  # of the largest weight
    # Adafactor computes and applies the update of one weight at a time. AdamW computes the updates
    # of all weights, or of all weights of a block, before it applies the first.
    largest = max(map(math.prod, expected_shapes(shape).values()))
    together = formulas.parameters(shape)
    if switches.gradients != "keep":
        root, *_, block = _count_weights(shape)
        together = max(root, block)
    at_once = 0 if optimizer.selector == _ADAFACTOR else together
    update = FLOAT32_BYTES * (at_once + (2 if at_once else copies) * largest) // processes
    sums = microbatches > 1
    if replays:
        moments = _replayed_moments(shape, share, update, sums=sums)
    elif switches.gradients == "keep":
        moments = _eager_moments(shape, share, switches, processes, update, sums=sums)
    else:
        moments = _block_update_moments(shape, share, switches, processes, update)
    host = host_bytes(shape, adapter) if switches.gradients == "offload" else 0
    needs = [Needed(weights, slots, **each, host=host) for each in moments]
    if adapter:
        # Frozen weights have no gradients, slots and updates. If steps are replayed, the model
        # computes with the stored weights. Otherwise `gathered` is an upper bound. Moments with
        # neither activations nor an update are left out, because they are about the gradients of
        # frozen weights.
        own = host_bytes(shape, adapter) // processes
        frozen, converted = _frozen_bytes(shape, adapter.base, share.bytes_each, processes)
        needs = [
            dataclasses.replace(
                each,
                weights=frozen + own,
                slots=2 * own,
                gradients=own * processes,
                gathered=converted or (own if replays else each.gathered),
                update=4 * own if each.update else 0,
            )
            for each in needs
            if each.activations or each.update
        ]
    return max(needs, key=lambda each: each.total)


def host_bytes(shape: ModelShape, adapter: AdapterSpec | None) -> int:
    """Returns the bytes of the gradients of all trained weights, which may be in host memory."""
    count = adapter_folders.count_weights(adapter, shape) if adapter else None
    return FLOAT32_BYTES * (formulas.parameters(shape) if count is None else count)


def _frozen_bytes(shape: ModelShape, base: str, bytes_each: int, processes: int) -> tuple[int, int]:
    """Returns the bytes of an adapter's frozen weights, and of the weights converted for a product.

    The projections of blocks are quantized. Each process has all of them, and converts one at a
    time to the type of activations; it gathers the weights outside blocks. Without quantization,
    the second number is 0.
    """
    count = formulas.parameters(shape)
    if base == "full":
        return bytes_each * count // processes, 0
    sizes = [size for name, size in expected_shapes(shape).items() if is_quantized(name)]
    counts = [math.prod(size) for size in sizes]
    if base == "nf4":
        quantized = sum(-(-n // NF4_BLOCK) * (NF4_BLOCK // 2 + FLOAT32_BYTES) for n in counts)
    else:
        quantized = sum(counts) + FLOAT32_BYTES * sum(columns for _, columns in sizes)
    root = _count_weights(shape)[0] if processes > 1 else 0
    other = bytes_each * (count - sum(counts)) // processes
    return quantized + other, bytes_each * (max(counts) + root)


def _eager_moments(
    shape: ModelShape,
    share: MicrobatchShare,
    switches: MemorySwitches,
    processes: int,
    update: int,
    *,
    sums: bool,
) -> Iterator[dict[str, int]]:
    """Yields the fields of `Needed` at the moments of a step that may need the most memory.

    These are: the loss, three moments of the backward pass (its start, the point between decoder
    and encoder, and its end), and the update. With `sums`, gradients are summed over microbatches.
    """
    a, stored = share.bytes_each, _stored(share)
    root, encoder, decoder, block = _count_weights(shape)
    count = root + encoder + decoder
    layers, recomputed = formulas.layer_bytes(shape, share, stored), 0
    if switches.recompute:
        recomputed = max(layers)
        layers = [share.rows * a * shape.d_model * n for n in (share.inputs, share.targets)]
    encoded, decoded = layers[0] * shape.encoder_layers, layers[1] * shape.decoder_layers
    # The gradients of the position biases are allocated during the backward pass. So the early
    # moments have only one copy of the biases.
    early, late = (
        formulas.end_bytes(shape, share, dataclasses.replace(stored, bias=(0, copies)))
        for copies in (1, stored.bias[1])
    )
    yield {
        "gradients": FLOAT32_BYTES * count if sums else 0,
        "gathered": a * (count if switches.keep else root + block),
        "activations": encoded + decoded + early,
        # Five copies in float32: the logits, the gradient of the target's logit, and three in the
        # gradient of the softmax.
        "logits": 5 * FLOAT32_BYTES * share.rows * share.targets * shape.vocabulary,
    }
    for left, activations in (
        (encoder + decoder, encoded + decoded + early),
        (encoder, encoded + late),
    ):
        # The next block is gathered while a block computes. The gradients of the last block are
        # summed over the processes in float32.
        gathered = a * (root + (left if switches.keep else 2 * block))
        yield {
            "gradients": FLOAT32_BYTES * (count if sums else (count - root - left) // processes),
            "gathered": gathered + a * (root + block) + FLOAT32_BYTES * block,
            "activations": activations + recomputed,
        }
    gradients = FLOAT32_BYTES * (count if sums else count // processes)
    # The gradients of the weights outside blocks come last. They are copied to sum them over the
    # processes in float32; with one process, FSDP makes another copy instead.
    copies = FLOAT32_BYTES + (a if processes > 1 else FLOAT32_BYTES)
    yield {"gradients": gradients, "gathered": copies * root}
    yield {"gradients": FLOAT32_BYTES * count // processes, "update": update}


def _block_update_moments(
    shape: ModelShape, share: MicrobatchShare, switches: MemorySwitches, processes: int, update: int
) -> Iterator[dict[str, int]]:
    """Yields the fields of `Needed` at the moments of a step whose blocks are updated in turn.

    These are the moments of `_eager_moments`, except that only the gradients of one block, or those
    outside blocks, are left at a time. They are updated, or added to those in host memory, while
    the next block computes.
    """
    root, _, _, block = _count_weights(shape)
    *moments, end, _ = _eager_moments(shape, share, switches, processes, update, sums=False)
    loss, *passes = moments
    yield loss
    for each in passes:
        yield each | {"gradients": FLOAT32_BYTES * block // processes}
    yield end | {"gradients": FLOAT32_BYTES * root // processes}
    yield {
        "gradients": FLOAT32_BYTES * root // processes,
        "gathered": FLOAT32_BYTES * root,
        "update": update,
    }


def _replayed_moments(
    shape: ModelShape, share: MicrobatchShare, update: int, *, sums: bool
) -> Iterator[dict[str, int]]:
    """Yields the fields of `Needed` at the loss and at the update of a step of one process."""
    # With one microbatch, gradients have the type of activations, and the memory of activations is
    # freed while gradients are allocated.
    count, stored = formulas.parameters(shape), _stored(share)
    copy, logits = share.bytes_each * count, formulas.logit_bytes(shape, share, stored)
    always = {"gradients": FLOAT32_BYTES * count if sums else 0, "gathered": copy}
    activations = formulas.stored_bytes(shape, share, stored) - logits
    yield {**always, "activations": activations, "logits": logits}
    yield {**always, "update": update + (0 if sums else copy)}


def _stored(share: MicrobatchShare) -> formulas.StoredValues:
    return TORCH_FUSED if share.kernel == KERNEL else TORCH_PLAIN


def _count_weights(shape: ModelShape) -> tuple[int, int, int, int]:
    """Counts the weights outside blocks, in encoder blocks, in decoder blocks and in one block."""
    shapes = {name: math.prod(each) for name, each in expected_shapes(shape).items()}
    stacks = [
        sum(size for name, size in shapes.items() if name.startswith(prefix))
        # A block of the encoder is smaller than a block of the decoder.
        for prefix in ("encoder/block_", "decoder/block_", "decoder/block_000/")
    ]
    return sum(shapes.values()) - stacks[0] - stacks[1], *stacks


def _slots(shape: ModelShape, optimizer: ConfiguredSpec) -> int:
    """Returns the number of elements of the optimizer's state."""
    factored_from, moments = None, 1
    if optimizer.selector == _ADAFACTOR:
        parameters = optimizer.parameters
        factored_from = parameters["min_dim_size_to_factor"] if parameters["factored"] else None
        moments = 1 if parameters["beta1"] else 0
    return formulas.slots_on_device(shape, {}, factored_from=factored_from, moments=moments)


def model_flops(
    shape: ModelShape,
    *,
    rows: int,
    inputs: int,
    targets: int,
    predicted: float = 1.0,
    adapter: bool = False,
) -> int:
    """Returns the FLOPs of a step's matrix products, without recomputation.

    Args:
      shape: the model.
      rows: the number of sequences in the batch.
      inputs: the number of input tokens of a sequence, including padding.
      targets: the number of target tokens of a sequence, including padding.
      predicted: the fraction of target positions for which logits are computed.
      adapter: whether only an adapter is trained. The gradients of frozen weights, a third of the
        products, are then not computed.
    """
    forward = formulas.product_flops(shape, Share(rows, inputs, targets), predicted=predicted)
    return (2 if adapter else 3) * forward


def memory_switches(
    recompute: str = "auto",
    keep: str = "auto",
    gradients: Sequence[str] = ("keep",),
    time: Callable[[MemorySwitches], float] | None = None,
) -> list[MemorySwitches]:
    """Returns the combinations of switches to choose from, fastest first.

    Args:
      recompute: one of `CHOICES`, which says whether activations are recomputed.
      keep: one of `CHOICES`, which says whether gathered weights are kept until the end of the
        step.
      gradients: the values of `MemorySwitches.gradients` to choose from, fastest first; see
        `gradient_choices`.
      time: a function that estimates the time of a step; None if the GPU's speed is unknown, and
        copies to host memory are assumed to take longer than recomputation.
    """
    choices = [
        MemorySwitches(keeps, recomputes, each)
        for recomputes in _ON[recompute]  # computing twice takes more time than gathering twice
        for each in gradients
        for keeps in reversed(_ON[keep])
    ]
    if time is None:
        return sorted(choices, key=lambda each: each.gradients == "offload")
    # Equal times are sums in another order, which differ in their last digits.
    return sorted(choices, key=lambda each: float(f"{time(each):.6g}"))


def gradient_choices(
    gradients: str, *, sequences: int, microbatches: int, processes: int, clips: bool
) -> tuple[str, ...]:
    """Returns the values of `MemorySwitches.gradients` that a run can have, fastest first.

    Args:
      gradients: one of `GRADIENTS`.
      sequences: the number of sequences in the global batch.
      microbatches: the number of microbatches of each process.
      processes: the number of processes.
      clips: whether the gradients are clipped by their common norm.

    Raises:
      UserError: if the run cannot have this value.
    """
    reasons = {"keep": "", "fused": "", "offload": ""}
    other = "offload" if processes == 1 else "keep"
    if microbatches > 1:
        reasons["fused"] = (
            f"needs steps of one microbatch, and this run has {microbatches:,}: set "
            f"--gradients={other}, or run.batch_size = {sequences // microbatches}"
        )
    elif clips:
        reasons["fused"] = (
            "updates each weight before the norm of all gradients is known, and this run clips by "
            f"it (t0.apply_updates.clip_gradient_norm): set --gradients={other}"
        )
    if processes > 1:
        reasons["offload"] = (
            f"is for one process, and this run has {processes}: set --gradients=keep, or, if steps "
            "have one microbatch, --gradients=fused"
        )
    if gradients != "auto":
        if reasons[gradients]:
            raise UserError(f"--gradients={gradients} {reasons[gradients]}")
        return (gradients,)
    # Without clipping, one microbatch gains nothing from host memory.
    if not reasons["fused"]:
        return ("keep", "fused")
    return ("keep",) if reasons["offload"] else ("keep", "offload")


def first_that_fits(needs: Sequence[Needed], free: int) -> int:
    """Returns the index of the first choice that fits, or of the smallest if none fits.

    Args:
      needs: the memory that each combination of switches needs, in the order of `memory_switches`.
      free: the number of bytes that the process can allocate.
    """
    fits = (number for number, each in enumerate(needs) if each.total <= free)
    return next(fits, min(range(len(needs)), key=lambda number: needs[number].total))
