"""T5 as a PyTorch module, with packed sequences and the names of Hugging Face's state dicts.

    model = T5(spec)                               # spec: a `t0.config.model_spec.T5Spec`
    losses = model(batch)                          # batch: name -> int [B, L]; float32 [7]

The model computes the same numbers as Mesh TensorFlow. In shapes, B is the number of sequences, L
the number of tokens of a sequence, M the number of tokens to which they attend (the memory), H the
number of heads, D `d_model`, and V the number of vocabulary rows. In a packed batch, tokens attend
only to tokens of the same example. The features "inputs_segmentation" and "targets_segmentation"
number the examples of a row from 1, and padding has 0. If a batch does not have these features,
each row is one example.

Dropout is applied as in Mesh TensorFlow, where all positions of a sequence share the same random
factors. So the dropout factors of the attention weights have the shape [B, H, 1, M], and can
multiply the values instead of the weights.

The attention kernel "efficient" (memory-efficient attention) does not store the attention
probabilities for the backward pass; the kernel "plain" does. Flash attention and cuDNN's attention
accept no bias with a gradient. FlexAttention would not have to store a bias for every sequence. But
on an H100 with PyTorch 2.11, it made the model slower, and its gradients of cross-attention were
wrong.

The module also computes the loss of a batch and other sums that a step records, in float32:

    sums(logits, targets, z_loss=1e-4, label_smoothing=0.0)       # cross entropy
    choice_sums(logits, choices, predicted, ChoiceLosses(1.0, 1.0, 1.0))      # T-Few's losses

The formulas of the cross entropy and the z-loss are those of `t0.training.losses`, which computes
them with Mesh TensorFlow.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from t0.config.model_spec import T5Spec
from t0.config.specification import ChoiceLosses
from t0.errors import short_reason
from t0.training.loop import LOSS_WEIGHTS

HIDDEN = -1e9  # this is added to the logits of masked keys, as in Mesh TensorFlow
_BACKENDS = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "plain": SDPBackend.MATH}
KERNELS = tuple(_BACKENDS)
_COST = "each layer keeps its attention probabilities, which takes about 1.4 times the memory"
_MAX_DISTANCE = 128
_ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    kernel: str = "auto",
) -> torch.Tensor:
    """Returns the attended values, [B, H, L, d_kv].

    Args:
      queries: the queries [B, H, L, d_kv] of B sequences, H heads and L tokens.
      keys: the keys [B, H, M, d_kv] of M tokens.
      values: the values [B, H, M, d_kv] of these M tokens.
      bias: the bias that is added to the logits, [B or 1, H or 1, L, M].
      kernel: the kernel to use if the bias has a gradient: one of `KERNELS`, or "auto" if PyTorch
        chooses.
    """
    options = {"attn_mask": bias, "scale": 1.0}
    if kernel == "auto" or not bias.requires_grad:
        return functional.scaled_dot_product_attention(queries, keys, values, **options)
    with sdpa_kernel(_BACKENDS[kernel]):
        return functional.scaled_dot_product_attention(queries, keys, values, **options)


def choose_kernel(
    device: torch.device, dtype: torch.dtype, candidates: tuple[str, ...] = KERNELS
) -> tuple[str, list[str]]:
    """Returns the first kernel that works on a device, and a line about each that fails.

    Args:
      device: the device that computes.
      dtype: the type of activations.
      candidates: the kernels to try, in this order.

    Returns:
      (kernel, lines). The kernel is "auto" on a CPU, or if no candidate works. A line names a
      candidate that was tried and failed, and the reason.
    """
    lines: list[str] = []
    for kernel in candidates if device.type == "cuda" else ():
        try:
            _try_kernel(kernel, device, dtype)
        except RuntimeError as error:  # from PyTorch, CUDA or the allocator
            reason = short_reason(error)
            lines.append(f"the attention kernel '{kernel}' is not used ({reason:.200}): {_COST}")
        else:
            return kernel, lines
    return "auto", lines


def _try_kernel(kernel: str, device: torch.device, dtype: torch.dtype) -> None:
    """Computes a small attention and the gradients of its queries and its bias."""
    queries = torch.zeros(2, 2, 128, 64, device=device, dtype=dtype, requires_grad=True)
    bias = torch.zeros(2, 2, 128, 128, device=device, dtype=dtype, requires_grad=True)
    attend(queries, queries, queries, bias, kernel).sum().backward()


class Norm(nn.Module):
    """T5's norm: divides by the root mean square, and multiplies by a learned scale, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Divides x [B, L, D] by its root mean square over D, and multiplies it by the scale."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.weight


class Attention(nn.Module):
    """Attention of x to itself or to an encoder's output.

    Args:
      spec: the model.
      bidirectional: whether the position bias distinguishes keys before a query from keys after it;
        None for a layer without position bias.

    Attributes:
      kernel: the kernel to use if the bias has a gradient; see `attend`.
    """

    kernel = "auto"

    def __init__(self, spec: T5Spec, bidirectional: bool | None = None) -> None:
        super().__init__()
        sizes = spec.sizes
        self._heads, self._rate = sizes.heads, spec.dropout.attention
        for name in "qkv":
            setattr(self, name, nn.Linear(sizes.d_model, sizes.inner, bias=False))
        self.o = nn.Linear(sizes.inner, sizes.d_model, bias=False)
        self._bidirectional = bidirectional
        if bidirectional is not None:
            self.relative_attention_bias = _embedding(sizes.buckets, sizes.heads)

    def bias(self, length: int, first: int = 0) -> torch.Tensor:
        """Returns the relative position bias [1, H, L - first, L] of queries `first` to L - 1."""
        table = self.relative_attention_bias.weight
        # The bias is looked up only once per distance. The biases of a query are then a window of L
        # distances.
        distance = torch.arange(1 - length, length - first, device=table.device)
        of_distance = table[bucket(distance, table.shape[0], self._bidirectional)]
        # The dimension of keys must be contiguous in memory, because the kernels do not accept any
        # other order.
        return of_distance.T.contiguous().unfold(1, length, 1).flip(1)[None]

    def forward(self, x: torch.Tensor, memory: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Attends from x [B, L, D] to memory [B, M, D], with bias [B or 1, H or 1, L, M].

        If C sequences share each memory (x is [B * C, L, D]), they attend together, so that the
        keys and values of the memory are computed only once.

        Returns:
          the attended values, in the shape of x.
        """
        queries = x.reshape(memory.shape[0], -1, x.shape[-1])
        keys, values = self.keys_and_values(memory)
        if self.training and self._rate:
            values = apply_dropout(values, self._rate, (*values.shape[:3], 1))
        return self.attend(queries, keys, values, bias).view_as(x)

    def keys_and_values(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys and the values of a memory [B, M, D], each [B, H, M, d_kv]."""
        return self._split(memory, self.k), self._split(memory, self.v)

    def attend(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """Attends from x [B, L, D] to keys and values [B, H, M, d_kv]; returns [B, L, D]."""
        q = self._split(x, self.q)
        mixed = attend(q, keys, values, bias, self.kernel)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: torch.Tensor, project: nn.Linear) -> torch.Tensor:
        """Projects x [B, L, D] and splits the result by heads; returns [B, H, L, d_kv]."""
        return project(x).unflatten(-1, (self._heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """The feed-forward layer, which is gated in T5 1.1."""

    def __init__(self, spec: T5Spec) -> None:
        super().__init__()
        sizes = spec.sizes
        self._activation, self._rate = _ACTIVATIONS[spec.activation], spec.dropout.hidden
        self._inner = ("wi_0", "wi_1") if sizes.gated else ("wi",)
        for name in self._inner:
            setattr(self, name, nn.Linear(sizes.d_model, sizes.d_ff, bias=False))
        self.wo = nn.Linear(sizes.d_ff, sizes.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the layer's output [B, L, D] for x [B, L, D]."""
        first, *gates = (getattr(self, name)(x) for name in self._inner)
        hidden = self._activation(first)
        for gate in gates:
            hidden = hidden * gate
        if self.training and self._rate:
            hidden = apply_dropout(hidden, self._rate, (x.shape[0], 1, hidden.shape[-1]))
        return self.wo(hidden)


class Layer(nn.Module):
    """A layer with its norm and residual. `name` is the layer's name in Hugging Face's models."""

    def __init__(self, name: str, inner: nn.Module, spec: T5Spec) -> None:
        super().__init__()
        self.layer_norm = Norm(spec.sizes.d_model)
        self._name, self._rate = name, spec.dropout.residual
        self.add_module(name, inner)

    @property
    def inner(self) -> nn.Module:
        """The layer without its norm and residual."""
        return getattr(self, self._name)

    def forward(self, x: torch.Tensor, *context: torch.Tensor) -> torch.Tensor:
        """Returns the sum of x [B, L, D] and the inner layer's output."""
        normed = self.layer_norm(x)
        if self._name == "SelfAttention":
            context = (normed, *context)
        return x + apply_row_dropout(self.inner(normed, *context), self._rate, self.training)


class Block(nn.Module):
    """A block of the encoder or decoder. The first block computes the bias for all blocks."""

    def __init__(self, spec: T5Spec, *, decoder: bool, first: bool) -> None:
        super().__init__()
        self_attention = Attention(spec, (not decoder) if first else None)
        inner = [("SelfAttention", self_attention)]
        if decoder:
            inner.append(("EncDecAttention", Attention(spec)))
        inner.append(("DenseReluDense", FeedForward(spec)))
        self.layer = nn.ModuleList(Layer(name, module, spec) for name, module in inner)
        self._first = first

    def forward(
        self,
        x: torch.Tensor,
        bias: torch.Tensor,
        memory: torch.Tensor | None = None,
        cross: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the output of the block, and for the first block also the bias for all blocks.

        Args:
          x: the input of the block, [B, L, D].
          bias: the sum of the mask and the position bias, [B, H, L, L]. The first block gets only
            the mask, [B, 1, L, L], and adds the position bias itself.
          memory: the encoder's output, [B, M, D], which only a block of the decoder gets.
          cross: the mask of the memory, [B, 1, L, M], which only a block of the decoder gets.
        """
        self_attention, *cross_layers, dense = self.layer
        if self._first:
            bias = self_attention.inner.bias(x.shape[1]).to(x.dtype) + bias
        x = self_attention(x, bias)
        for layer in cross_layers:
            x = layer(x, memory, cross)
        # The other blocks return None instead of the bias. If they returned the bias, FSDP would
        # return a view of it and print a warning.
        return dense(x), bias if self._first else None


class Stack(nn.Module):
    """The blocks of the encoder or the decoder.

    Attributes:
      recompute: whether the backward pass computes a block's activations again instead of storing
        them.
    """

    def __init__(self, spec: T5Spec, *, decoder: bool) -> None:
        super().__init__()
        count = spec.sizes.decoder_layers if decoder else spec.sizes.encoder_layers
        self.block = nn.ModuleList(
            Block(spec, decoder=decoder, first=not number) for number in range(count)
        )
        self.final_layer_norm = Norm(spec.sizes.d_model)
        self._rate = spec.dropout.residual
        self.recompute = False

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *memory: torch.Tensor) -> torch.Tensor:
        """Returns the output [B, L, D] for embedded tokens x [B, L, D] and a mask [B, 1, L, L].

        In the decoder, `memory` is the encoder's output and its attention mask.
        """
        x, bias = apply_row_dropout(x, self._rate, self.training), mask
        for block in self.block:
            if self.recompute and self.training:
                x, shared_bias = checkpoint(block, x, bias, *memory, use_reentrant=False)
            else:
                x, shared_bias = block(x, bias, *memory)
            bias = bias if shared_bias is None else shared_bias
        return apply_row_dropout(self.final_layer_norm(x), self._rate, self.training)


class T5(nn.Module):
    """A T5 whose parameters are named as in Hugging Face's state dicts.

    Args:
      spec: the model.

    Attributes:
      loss_sums: the function `sums`, or its compiled form.
      choice_losses: the factors of the losses over answer choices.
    """

    choice_losses = ChoiceLosses()

    def __init__(self, spec: T5Spec) -> None:
        super().__init__()
        self.spec, sizes = spec, spec.sizes
        self.loss_sums = sums
        self.shared = _embedding(sizes.vocabulary, sizes.d_model)
        self.encoder = Stack(spec, decoder=False)
        self.decoder = Stack(spec, decoder=True)
        if not sizes.tied:
            self.lm_head = nn.Linear(sizes.d_model, sizes.vocabulary, bias=False)

    def set_attention_kernel(self, kernel: str) -> None:
        """Sets the attention kernel for training: one of `KERNELS`, or "auto"."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.kernel = kernel

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the sums of `sums` over a batch, float32 [7].

        If the targets are answer choices, [B, C, L], it returns the sums of `choice_sums`.
        But if all factors of `choice_losses` are 0, it returns the log-likelihoods of the choices
        in nats, [B, C]. If the batch has "predicted" (see `move_to_device`), logits are computed
        only at these positions, otherwise at all positions. If the batch has the feature
        `LOSS_WEIGHTS`, its values are the weights of the tokens in the sum "loss".
        """
        targets = batch["targets"]
        if targets.dim() == 3:
            predicted = batch["predicted"]
            logits = self._choice_logits(batch["inputs"], targets, predicted)
            if self.choice_losses:
                return choice_sums(logits, targets, predicted, self.choice_losses)
            return log_likelihoods(logits, targets, predicted)
        hidden = self.decode(batch, *self.encode(batch)).flatten(0, 1)
        weights = [batch[LOSS_WEIGHTS].flatten()] if LOSS_WEIGHTS in batch else []
        values = [hidden, targets.flatten(), *weights]
        if "predicted" in batch:
            values = [x.index_select(0, batch["predicted"]) for x in values]
        hidden, expected, *weights = values
        z_loss = self.spec.z_loss if self.training else 0.0
        return self.loss_sums(
            self.logits(hidden), expected, z_loss, self.spec.label_smoothing, *weights
        )

    def _choice_logits(
        self, inputs: torch.Tensor, targets: torch.Tensor, predicted: torch.Tensor
    ) -> torch.Tensor:
        """Returns the float32 logits [P, V] at P positions of choices [B, C, L] of inputs [B, M].

        Each input is encoded only once, and all choices of an input attend to the same keys.
        """
        memory, segments = self.encode({"inputs": inputs})
        rows = targets.flatten(0, 1)
        x = self.shared(functional.pad(rows, (1, 0))[:, :-1])
        later = _future_positions(rows.shape[1], x.device)[None, None]
        hidden = self.decoder(
            x,
            torch.zeros(later.shape, dtype=x.dtype, device=x.device).masked_fill(later, HIDDEN),
            memory,
            mask(torch.ones_like(segments[:, :1]), segments, x.dtype),
        )
        return self.logits(hidden.flatten(0, 1)[predicted].float())

    def encode(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the encoder's output [B, M, D], and the segment numbers of the inputs [B, M]."""
        inputs = batch["inputs"]
        segments = batch.get("inputs_segmentation", inputs.clamp(max=1))
        x = self.shared(inputs)
        return self.encoder(x, mask(segments, segments, x.dtype)), segments

    def decode(
        self, batch: Mapping[str, torch.Tensor], memory: torch.Tensor, segments: torch.Tensor
    ) -> torch.Tensor:
        """Returns the decoder's output [B, L, D] at all positions of the targets [B, L]."""
        targets = batch["targets"]
        target_segments = batch.get("targets_segmentation", targets.clamp(max=1))
        x = self.shared(shift_right(targets, target_segments))
        self_mask = mask(target_segments, target_segments, x.dtype).masked_fill(
            _future_positions(targets.shape[1], x.device), HIDDEN
        )
        return self.decoder(x, self_mask, memory, mask(target_segments, segments, x.dtype))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits [..., V] for the decoder's output [..., D], in the same type."""
        if not self.spec.sizes.tied:
            return functional.linear(hidden, self.lm_head.weight.to(hidden.dtype))
        table = self.shared.weight.to(hidden.dtype)
        return functional.linear(hidden * self.spec.sizes.d_model**-0.5, table)


def move_to_device(
    batch: Mapping[str, np.ndarray], device: torch.device
) -> dict[str, torch.Tensor]:
    """Copies a batch to a device as `as_tensor` does, without waiting for a GPU.

    The result also has "predicted", the positions in the flattened targets that are not padding.
    These positions are computed on the CPU. If a GPU computed them, the CPU would have to wait for
    the result.
    """
    tensors = {}
    for name, values in {**batch, "predicted": np.flatnonzero(batch["targets"])}.items():
        tensors[name] = as_tensor(values, device).to(device, non_blocking=True)
    return tensors


def as_tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Converts a feature of a batch: integers to int64, loss weights to float32.

    The result is on the CPU. If the device is a GPU, it is in pinned memory.
    """
    whole = values.dtype.kind in "iub"
    tensor = torch.from_numpy(values.astype(np.int64 if whole else np.float32))
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _future_positions(length: int, device: torch.device) -> torch.Tensor:
    """Returns bool [L, L]: whether position j (column) is after position i (row)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def _embedding(rows: int, width: int) -> nn.Embedding:
    # The embeddings do not get random values here, because random values on the meta device would
    # import PyTorch's compiler, which is slow.
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


def shift_right(targets: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Returns the decoder's inputs [B, L]: the previous target, or 0 at the start of an example."""
    before = functional.pad(targets, (1, 0))[:, :-1]
    same = functional.pad(segments, (1, 0))[:, :-1] == segments
    return before * same


def mask(
    query_segments: torch.Tensor, key_segments: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Returns the attention mask [B, 1, L, M], which is added to the logits.

    It is 0 if the query and the key are in the same segment, otherwise -1e9.

    Args:
      query_segments: the segment numbers of the queries, [B, L].
      key_segments: the segment numbers of the keys, [B, M].
      dtype: the type of the mask.
    """
    different = query_segments[:, None, :, None] != key_segments[:, None, None, :]
    return torch.zeros(different.shape, dtype=dtype, device=query_segments.device).masked_fill(
        different, HIDDEN
    )


def bucket(distance: torch.Tensor, buckets: int, bidirectional: bool) -> torch.Tensor:
    """Returns the bucket of the position bias for each distance from query to key.

    Half of the buckets have a single distance each. The other half have ranges of distances, which
    grow logarithmically up to 128. With `bidirectional`, keys after the query have their own
    buckets. Mesh TensorFlow computes the same numbers (`_relative_position_bucket` in
    mesh_tensorflow/transformer/transformer_layers.py).
    """
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = (distance > 0) * buckets
        back = distance.abs()
    else:
        back = (-distance).clamp(min=0)
    exact = buckets // 2
    scale = (buckets - exact) / math.log(_MAX_DISTANCE / exact)
    far = exact + (torch.log(back.clamp(min=1).float() / exact) * scale).long()
    return first + torch.where(back < exact, back, far.clamp(max=buckets - 1))


def apply_row_dropout(x: torch.Tensor, rate: float, training: bool) -> torch.Tensor:
    """Applies dropout to x [B, L, D], with the same random factors at all positions of a row."""
    return apply_dropout(x, rate, (x.shape[0], 1, x.shape[2])) if training and rate else x


def apply_dropout(x: torch.Tensor, rate: float, shape: tuple[int, ...]) -> torch.Tensor:
    """Multiplies x by random factors of `shape`: 0 with probability `rate`, else 1 / (1 - rate)."""
    keep = torch.rand(shape, device=x.device) >= rate
    return x * (keep / (1.0 - rate)).to(x.dtype)


SUM_NAMES = (
    "nll",
    "z_loss",
    "correct",
    "tokens",
    "correct_before_eos",
    "tokens_before_eos",
    "loss",
)
LOSS = SUM_NAMES.index("loss")
_EOS = 1


def sums(
    logits: torch.Tensor,
    targets: torch.Tensor,
    z_loss: float,
    label_smoothing: float,
    loss_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the sums that `SUM_NAMES` names, float32 [7].

    The sums are: cross entropy in nats, z-loss, number of correctly predicted tokens, number of
    tokens, number of correctly predicted tokens without EOS, number of tokens without EOS, and the
    sum of cross entropy and z-loss with a weight for each token.

    Args:
      logits: the logits [N, V] of N positions and V tokens, in any floating type. They are
        converted to float32.
      targets: the correct tokens, [N]. Positions with 0 are padding and do not count.
      z_loss: the factor of the z-loss. The z-loss is the square of the logarithm of the softmax's
        denominator.
      label_smoothing: the part of the target's probability that is taken from the target and spread
        evenly over all V tokens.
      loss_weights: the weights of the last sum, [N]; None for a weight of 1 for each token.
    """
    wide = logits.float()
    log_z = wide.logsumexp(-1)
    target_logits = wide.gather(-1, targets[:, None]).squeeze(-1)
    nll = log_z - target_logits
    if label_smoothing:
        # The label distribution is label_smoothing / V for every token, plus 1 - label_smoothing
        # for the target.
        nll = (1.0 - label_smoothing) * nll + label_smoothing * (log_z - wide.mean(-1))
    predicted = targets > 0
    nll, log_z = (torch.where(predicted, x, 0.0) for x in (nll, log_z))
    squares = z_loss * log_z.square()
    weighted = nll + squares if loss_weights is None else (nll + squares) * loss_weights
    correct = ((target_logits >= wide.amax(-1)) & predicted).float()
    before_eos = (predicted & (targets != _EOS)).float()
    return torch.stack(
        [
            nll.sum(),
            squares.sum(),
            correct.sum(),
            predicted.float().sum(),
            (correct * before_eos).sum(),
            before_eos.sum(),
            weighted.sum(),
        ]
    )


def choice_sums(
    logits: torch.Tensor, choices: torch.Tensor, predicted: torch.Tensor, factors: ChoiceLosses
) -> torch.Tensor:
    """Returns the sums that `SUM_NAMES` names for examples with answer choices, float32 [7].

    The loss is the sum of T-Few's losses over the examples. The other sums count the tokens of the
    right choices. The z-loss is 0.

    Args:
      logits: the logits [P, V] of P positions and V tokens, in any floating type.
      choices: the choices [B, C, L] of B examples. Choice 0 is the right one. A choice that
        contains only zeros is padding and does not count.
      predicted: the P positions in the flattened choices that are not padding, in ascending order.
      factors: the factors of the losses.
    """
    expected = choices.flatten()[predicted]
    wide = logits.float()
    tokens = (choices > 0).sum(-1)
    scores = log_likelihoods(wide, choices, predicted) / tokens.clamp(min=1)
    # If the probability p is near 1, 1 - p loses its digits in float32. So log(1 - p) is computed
    # from the logits of all other tokens.
    others = wide.scatter(-1, expected[:, None], -torch.inf)
    log_not_p = others.logsumexp(-1) - wide.logsumexp(-1)
    wrong = _sum_of_choices(log_not_p, choices, predicted)[:, 1:].sum(1)
    rivals = scores.masked_fill(tokens == 0, -torch.inf)
    loss = (
        -factors.likelihood * scores[:, 0]
        - factors.unlikelihood * wrong / tokens[:, 1:].sum(1).clamp(min=1)
        + factors.length_normalized * (rivals.logsumexp(1) - rivals[:, 0])
    ).sum()
    is_right = predicted // choices.shape[2] % choices.shape[1] == 0
    right = sums(wide, torch.where(is_right, expected, 0), z_loss=0.0, label_smoothing=0.0)
    return torch.cat([right[:-1], loss[None]])


def log_likelihoods(
    logits: torch.Tensor, choices: torch.Tensor, predicted: torch.Tensor
) -> torch.Tensor:
    """Returns the log-likelihoods of choices in nats, [B, C]; see `choice_sums`."""
    expected = choices.flatten()[predicted]
    nats = -functional.cross_entropy(logits, expected, reduction="none")
    return _sum_of_choices(nats, choices, predicted)


def _sum_of_choices(
    values: torch.Tensor, choices: torch.Tensor, predicted: torch.Tensor
) -> torch.Tensor:
    """Returns the sums [B, C] of the values [P] of each choice's tokens."""
    at_tokens = torch.zeros(choices.numel(), device=values.device)
    return at_tokens.index_copy(0, predicted, values).view(choices.shape).sum(-1)
