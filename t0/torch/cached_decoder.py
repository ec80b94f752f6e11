"""The decoder of a T5 one position at a time, with cached keys and values.

    decoder = CachedDecoder(model, *model.encode({"inputs": inputs}), beams=4, length=64)
    hidden = decoder.step(tokens, 0)        # [B, K] -> [B * K, D]
    decoder.follow(parents, 0)              # beams in a new order, [B, K]

Letters of the shapes: B examples, K beams (1 without beam search), L input tokens, T target tokens,
D `d_model`, H heads, W width of a head.

The beams of an example share the keys and values of its inputs. When beams change their order,
their own keys and values are copied.
"""

import torch

from t0.torch.model import T5, mask


class CachedDecoder:
    """The decoder's state for a batch.

    Args:
      model: the model, in evaluation mode.
      memory: the encoder's output, [B, L, D].
      segments: 1 for tokens of the inputs and 0 for padding, [B, L].
      beams: K.
      length: T, the most steps.
    """

    def __init__(
        self, model: T5, memory: torch.Tensor, segments: torch.Tensor, *, beams: int, length: int
    ) -> None:
        self._model, self._beams = model, beams
        self._mask = mask(torch.ones_like(segments[:, :1]), segments, memory.dtype)
        layers = [[layer.inner for layer in block.layer] for block in model.decoder.block]
        # Keys and values of each block: of the inputs [B, H, L, W], and of the tokens
        # [B * K, H, T, W].
        self._inputs = [cross.keys_and_values(memory) for _, cross, _ in layers]
        self._tokens = [
            tuple(
                x.new_empty(len(memory) * beams, x.shape[1], length, x.shape[3]) for x in of_inputs
            )
            for of_inputs in self._inputs
        ]

    def step(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """Returns the last hidden states [B * K, D] at a position.

        Args:
          tokens: the tokens of the position before, [B, K]; zeros at position 0.
          position: from 0; each position is computed once, in order.
        """
        decoder = self._model.decoder
        x = self._model.shared(tokens.flatten())[:, None]
        bias = decoder.block[0].layer[0].inner.bias(position + 1, first=position).to(x.dtype)
        for block, cache, inputs in zip(decoder.block, self._tokens, self._inputs, strict=True):
            own, cross, dense = block.layer
            normed = own.layer_norm(x)
            for cached, new in zip(cache, own.inner.keys_and_values(normed), strict=True):
                cached[:, :, position] = new[:, :, 0]
            past = (cached[:, :, : position + 1] for cached in cache)
            x = x + own.inner.attend(normed, *past, bias)
            queries = cross.layer_norm(x).view(-1, self._beams, x.shape[-1])
            x = x + cross.inner.attend(queries, *inputs, self._mask).view_as(x)
            x = dense(x)
        return decoder.final_layer_norm(x)[:, 0]

    def follow(self, parents: torch.Tensor, position: int) -> None:
        """Gives each beam the past of its parent, up to a position.

        Args:
          parents: the number of each beam's parent, [B, K].
          position: the last position that was computed.
        """
        first = torch.arange(len(parents), device=parents.device)[:, None] * self._beams
        rows = (first + parents).flatten()
        for cache in self._tokens:
            for cached in cache:
                past = cached[:, :, : position + 1]
                past.copy_(past[rows])
