"""The decoder of a T5 step by step, with packed weights and with keys and values that are kept.

    decoder = PackedDecoder(model)              # takes the decoder's weights out of the model
    caches = decoder.caches(memory, segments, beams=4, length=64)
    hidden = decoder.hidden(tokens, step, caches)   # [B, K] -> [B * K, D]
    caches.follow(parents, step)                    # of beams, [B, K]

Letters of the shapes: B examples, K beams (1 without beam search), L input tokens, T target tokens,
D `d_model`, H heads, W width of a head.

The numbers are those of `t0.torch.model`. Products of the same rows are one product here, and on a
processor attention is products that read keys and values in the order in which they are kept:
PyTorch's fused attention is made for many queries; with one it takes five times as long.

The beams of an example attend to the keys of all of them, and a mask hides those that are not of
their own past: nothing is moved when beams change their order, and the rows are read as often.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from t0.torch.model import HIDDEN, T5, Block, mask
from t0.torch.products import Product, product


@dataclasses.dataclass
class Caches:
    """What the decoder has computed for a batch.

    Attributes:
      blocks: of each block, the keys and values of tokens and of inputs.
      mask: added to the attention logits of inputs, [B, 1, 1, L].
      columns: the beam that computed each token of a beam's past, [B, K, T].
    """

    blocks: list["_Cache"]
    mask: torch.Tensor
    columns: torch.Tensor

    @property
    def beams(self) -> int:
        """K."""
        return self.columns.shape[1]

    def follow(self, parents: torch.Tensor, step: int) -> None:
        """Gives each beam its parent's tokens up to a step; parents: [B, K]."""
        past = self.columns[:, :, : step + 1]
        past.copy_(past.gather(1, parents[..., None].expand_as(past)))

    def others(self, step: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns what hides the tokens of other beams' pasts, [B, 1, K, (step + 1) * K]."""
        beams = torch.arange(self.beams, device=self.columns.device)
        apart = self.columns[:, :, : step + 1, None] != beams
        return torch.zeros_like(apart, dtype=dtype).masked_fill_(apart, HIDDEN).flatten(2)[:, None]


@dataclasses.dataclass
class _Cache:
    """A block's keys and values.

    Attributes:
      keys: of the tokens so far, those of a step side by side, [B, H, T * K, W]; `values` likewise.
      memory_keys: of the inputs, [B, H, L, W]; `memory_values` likewise.
    """

    keys: torch.Tensor
    values: torch.Tensor
    memory_keys: torch.Tensor
    memory_values: torch.Tensor


class _Block:
    """A block's products; those of the same rows are one, whose results lie side by side."""

    def __init__(self, block: Block) -> None:
        own, cross, dense = block.layer
        self.norms = [layer.layer_norm for layer in block.layer]
        self.qkv = _side_by_side(own.inner.q, own.inner.k, own.inner.v)
        self.own_out = _side_by_side(own.inner.o)
        self.query = _side_by_side(cross.inner.q)
        self.memory = _side_by_side(cross.inner.k, cross.inner.v)
        self.cross_out = _side_by_side(cross.inner.o)
        self.gated = dense.inner.gated
        self.projections = len(dense.inner.projections)
        self.inner = _side_by_side(*dense.inner.projections)
        self.outer = _side_by_side(dense.inner.wo)
        # What is left of the block has norms, the bias and functions, but no weights of products.
        for layer in block.layer:
            for name, part in list(layer.inner.named_children()):
                if isinstance(part, nn.Linear):
                    delattr(layer.inner, name)


class PackedDecoder:
    """A decoder's weights in the order of its steps' products.

    Args:
      model: whose decoder has no products afterwards, so that weights are in memory once.
    """

    def __init__(self, model: T5) -> None:
        blocks = model.decoder.block
        self._heads = model.spec.sizes.heads
        self._shared = model.shared
        self._bias = blocks[0].layer[0].inner.bias
        self._final_norm = model.decoder.final_layer_norm
        self._blocks = [_Block(block) for block in blocks]

    def caches(
        self, memory: torch.Tensor, segments: torch.Tensor, *, beams: int, length: int
    ) -> Caches:
        """Returns the caches of a batch before its first step.

        Args:
          memory: the encoder's output, [B, L, D].
          segments: 1 for tokens and 0 for padding, [B, L].
          beams: K.
          length: T, the most steps.
        """
        made = []
        for block in self._blocks:
            keys, values = self._split(block.memory(memory), 2)
            # On a processor attention's logits are float32, which keys of that type need not copy.
            keys, values = keys.to(_key_type(keys)).contiguous(), _kept(values)
            batch, heads, _, width = keys.shape
            own = (x.new_empty(batch, heads, length * beams, width) for x in (keys, values))
            made.append(_Cache(*own, keys, values))
        seen = mask(torch.ones_like(segments[:, :1]), segments, memory.dtype)
        columns = torch.arange(beams, device=memory.device)[None, :, None]
        return Caches(made, seen, columns.repeat(len(memory), 1, length))

    def hidden(self, tokens: torch.Tensor, step: int, caches: Caches) -> torch.Tensor:
        """Returns the last hidden states [B * K, D] after the tokens [B, K] of the step before."""
        x = self._shared(tokens.flatten())
        bias, beams = self._bias(step + 1, first=step).to(x.dtype), caches.beams
        if beams > 1:
            bias = bias.repeat_interleave(beams, -1) + caches.others(step, x.dtype)
        for block, cache in zip(self._blocks, caches.blocks, strict=True):
            own, cross, dense = block.norms
            x = x + block.own_out(self._attend_to_tokens(block.qkv(own(x)), cache, beams, bias))
            x = x + block.cross_out(self._attend_to_inputs(block.query(cross(x)), cache, caches))
            projected = block.inner(dense(x)).chunk(block.projections, -1)
            x = x + block.outer(block.gated(*projected))
        return self._final_norm(x)

    def _split(self, x: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
        """Returns `count` tensors [B, H, L, W] that lie side by side in x [B, L, count * H * W]."""
        return x.unflatten(-1, (count, self._heads, -1)).transpose(1, 3).unbind(2)

    def _attend_to_tokens(
        self, qkv: torch.Tensor, cache: _Cache, beams: int, bias: torch.Tensor
    ) -> torch.Tensor:
        """Returns the attention [B * K, H * W] of queries to the tokens so far, own included."""
        q, k, v = self._by_head(qkv, beams, 3)
        so_far = bias.shape[-1]
        now = slice(so_far - beams, so_far)
        cache.keys[:, :, now], cache.values[:, :, now] = k, v
        keys, values = (x[:, :, :so_far] for x in (cache.keys, cache.values))
        if q.device.type != "cpu":
            return _by_row(_fused(q, keys, values, bias))
        logits = q.to(keys.dtype) @ keys.transpose(-1, -2) + bias
        return _by_row(logits.softmax(-1).to(values.dtype) @ values)

    def _attend_to_inputs(self, q: torch.Tensor, cache: _Cache, caches: Caches) -> torch.Tensor:
        """Returns the attention [B * K, H * W] of queries to the inputs, which beams share."""
        (q,) = self._by_head(q, caches.beams, 1)
        keys, values = cache.memory_keys, cache.memory_values
        if q.device.type != "cpu":
            return _by_row(_fused(q, keys, values, caches.mask))
        logits = (keys @ q.to(keys.dtype).transpose(-1, -2)).transpose(-1, -2) + caches.mask
        return _by_row(_mixed(logits.softmax(-1).to(values.dtype), values))

    def _by_head(self, x: torch.Tensor, beams: int, count: int) -> Sequence[torch.Tensor]:
        """Returns `count` tensors [B, H, K, W], side by side in x [B * K, count * H * W]."""
        return self._split(x.view(-1, beams, x.shape[-1]), count)


def _by_row(x: torch.Tensor) -> torch.Tensor:
    """Returns x [B, H, K, W] as [B * K, H * W]."""
    return x.transpose(1, 2).flatten(2).flatten(0, 1)


def _side_by_side(*layers: nn.Linear) -> Product:
    return product(torch.cat([layer.weight.detach() for layer in layers]))


def _key_type(keys: torch.Tensor) -> torch.dtype:
    return torch.float32 if keys.device.type == "cpu" else keys.dtype


def _fused(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Attends from q [B, H, K, W] to keys and values [B, H, L, W], in one kernel of a GPU."""
    return functional.scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=1.0)


# A processor's product with many batches reads float32 numbers faster along L than along W, and
# bfloat16 numbers the other way round.
def _kept(values: torch.Tensor) -> torch.Tensor:
    """Returns values [B, H, L, W] in the order in which `_mixed` reads them."""
    if values.dtype == torch.float32 and values.device.type == "cpu":
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    return values.contiguous()


def _mixed(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns the product of weights [B, H, K, L] and values [B, H, L, W]."""
    if values.dtype == torch.float32:
        return (values.transpose(-1, -2) @ weights.transpose(-1, -2)).transpose(-1, -2)
    return weights @ values
