"""Predicts tokens with a T5: greedy search, sampling and beam search with cached keys and values.

    generator = Generator(spec, torch.device("cuda"), torch.bfloat16, DecodingMethod(beam_size=4))
    generator.restore("/models/tiny/torch.ckpt-1000")
    ids, scores = generator.predict(inputs, limits, draws)  # [B, L], [B], [B, T] -> [B, T], [B]

Letters of the shapes: B examples, K beams (1 without beam search), L input tokens, T target tokens,
H heads, D size of a head, V vocabulary.

Every process has the whole model, in the type of activations, so that processes decode different
batches without waiting for each other. The encoder runs once; a step computes one position of every
beam. The choice of tokens is that of `t0.inference.search`, score for score.
"""

import dataclasses

import numpy as np
import torch
from torch.nn import functional

from t0.inference.methods import EOS, NEVER, DecodingMethod
from t0.torch import weights
from t0.torch.model import T5, Block, mask
from t0.torch.products import Product, pack_products, product
from t0.torch.shape import T5Spec
from t0.torch.sharding import names_and_parameters
from t0.torch.world import World


class Generator:
    """Predicts with one set of weights.

    Args:
      spec: the model.
      device: where it is computed.
      activations: the type of weights and activations; logits are float32.
      method: how tokens are chosen.
    """

    def __init__(
        self,
        spec: T5Spec,
        device: torch.device,
        activations: torch.dtype,
        method: DecodingMethod,
    ) -> None:
        self._alone = World(0, 1, device)
        self._spec, self._activations, self._method = spec, activations, method
        self._model: T5 | None = None
        self._to_logits: Product | None = None

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint in any format; returns the number of variables.

        Raises:
          UserError: if there is no such checkpoint, or it is of another model.
        """
        self._model = self._to_logits = None  # frees the weights of the checkpoint before
        with torch.device("meta"):
            model = T5(self._spec).to(self._activations)
        model = model.to_empty(device=self._alone.device).eval()
        with torch.no_grad():
            weights.load(model, None, checkpoint, self._alone)
        count = len(names_and_parameters(model))
        table = model.shared if self._spec.sizes.tied else model.lm_head
        self._to_logits = product(table.weight.detach().float())
        pack_products(model.decoder)
        self._model = model
        return count

    @torch.inference_mode()
    def predict(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns predicted tokens and their scores.

        Args:
          inputs: int [B, L], 0 is padding.
          limits: int [B], the most tokens to predict for each row; 0 for a padding row.
          draws: float [B, T], uniform from 0 to below 1, used only for sampling. T is the most
            tokens of any row.

        Returns:
          the tokens, int32 [B, T]: each row's tokens up to EOS or its limit, then zeros; and the
          scores, float32 [B]: the sums of the tokens' log-probabilities in nats.
        """
        device, beams = self._alone.device, self._method.beam_size
        given = torch.from_numpy(inputs).to(device, torch.int64)
        most = torch.from_numpy(limits).to(device, torch.int64)
        drawn = torch.from_numpy(draws).to(device)
        decoder = _Decoder(self._model, self._to_logits, given, beams=beams, length=draws.shape[1])
        search = (_Beams if beams > 1 else _One)(self._method, most, draws.shape[1])
        for step in range(int(limits.max(initial=0))):
            logits = decoder.logits(search.tokens, step)
            parents = search.choose(step, logits, drawn)
            if not search.running.any():
                break
            decoder.follow(parents, step)
        return search.ids.to(torch.int32).cpu().numpy(), search.score.cpu().numpy()


@dataclasses.dataclass
class _Cache:
    """What a block's attention has computed: keys and values of tokens, and of the input.

    Attributes:
      keys: of the tokens so far, [B * K, H, T, D]; `values` likewise.
      memory_keys: of the input, [B, H, L, D]; `memory_values` likewise.
    """

    keys: torch.Tensor
    values: torch.Tensor
    memory_keys: torch.Tensor
    memory_values: torch.Tensor


class _Decoder:
    """The decoder's steps for one batch of inputs."""

    def __init__(
        self, model: T5, to_logits: Product, inputs: torch.Tensor, *, beams: int, length: int
    ) -> None:
        self._model, self._to_logits, self._beams = model, to_logits, beams
        memory, segments = model.encode({"inputs": inputs})
        self._mask = mask(torch.ones_like(segments[:, :1]), segments, memory.dtype)
        self._caches = [self._cache(block, memory, beams, length) for block in model.decoder.block]

    def _cache(self, block: Block, memory: torch.Tensor, beams: int, length: int) -> _Cache:
        cross = block.layer[1].inner
        keys, values = (cross.split(memory, project) for project in (cross.k, cross.v))
        # In the order of the steps' products, which would otherwise copy them.
        keys, values = keys.to(_key_type(keys)).contiguous(), values.contiguous()
        batch, heads, _, width = keys.shape
        own = (x.new_empty(batch * beams, heads, length, width) for x in (keys, values))
        return _Cache(*own, keys, values)

    def logits(self, tokens: torch.Tensor, step: int) -> torch.Tensor:
        """Returns the logits, float32 [B, K, V], after the tokens [B, K] of the step before."""
        decoder = self._model.decoder
        x = self._model.shared(tokens.reshape(-1, 1))
        bias = decoder.block[0].layer[0].inner.bias(step + 1, first=step).to(x.dtype)
        for block, cache in zip(decoder.block, self._caches, strict=True):
            own, cross, dense = block.layer
            x = x + self._attend_to_tokens(own.inner, own.layer_norm(x), cache, step, bias)
            x = x + self._attend_to_inputs(cross.inner, cross.layer_norm(x), cache)
            x = dense(x)
        hidden = decoder.final_layer_norm(x).float()
        if self._model.spec.sizes.tied:
            hidden = hidden * self._model.spec.sizes.d_model**-0.5
        logits = self._to_logits(hidden)
        return logits.view(-1, self._beams, logits.shape[-1])

    def _attend_to_tokens(
        self,
        attention: torch.nn.Module,
        x: torch.Tensor,
        cache: _Cache,
        step: int,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the attention of x [B * K, 1, d_model] to the tokens so far, itself included."""
        q, k, v = (attention.split(x, w) for w in (attention.q, attention.k, attention.v))
        cache.keys[:, :, step], cache.values[:, :, step] = k[:, :, 0], v[:, :, 0]
        there = slice(0, step + 1)
        mixed = _attended(q, cache.keys[:, :, there], cache.values[:, :, there], bias)
        return attention.o(mixed.transpose(1, 2).flatten(2))

    def _attend_to_inputs(
        self, attention: torch.nn.Module, x: torch.Tensor, cache: _Cache
    ) -> torch.Tensor:
        """Returns the attention of x [B * K, 1, d_model] to the inputs, which beams share."""
        q = attention.split(x.view(-1, self._beams, x.shape[-1]), attention.q)
        mixed = _attended(q, cache.memory_keys, cache.memory_values, self._mask)
        return attention.o(mixed.transpose(1, 2).flatten(2)).view_as(x)

    def follow(self, parents: torch.Tensor | None, step: int) -> None:
        """Gives each beam its parent's keys and values up to a step; parents [B, K] or None."""
        if parents is None:
            return
        first = torch.arange(len(parents), device=parents.device)[:, None] * self._beams
        rows = (first + parents).flatten()
        for cache in self._caches:
            for kept in (cache.keys, cache.values):
                kept[:, :, : step + 1] = kept[rows, :, : step + 1]


def _key_type(keys: torch.Tensor) -> torch.dtype:
    """Returns the type of cached keys: on a processor float32, in which attention's logits are."""
    return torch.float32 if keys.device.type == "cpu" else keys.dtype


def _attended(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Attends from q [B, H, K, D], few queries, to keys and values [B, H, L, D]."""
    if q.device.type != "cpu":
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=1.0)
    # PyTorch's fused attention is made for many queries; with one it takes five times as long.
    logits = q.to(keys.dtype) @ keys.transpose(-1, -2) + bias
    return logits.softmax(-1).to(values.dtype) @ values


class _One:
    """Greedy search or sampling.

    Attributes:
      tokens: the decoder's next tokens, [B, 1].
      running: whether an example has not ended, [B].
      ids: the result so far, [B, T].
      score: the sum of its tokens' log-probabilities, [B].
    """

    def __init__(self, method: DecodingMethod, limits: torch.Tensor, length: int) -> None:
        self._method, self._limits = method, limits
        self.running = limits > 0
        self.tokens = torch.zeros_like(limits)[:, None]
        self.ids = limits.new_zeros(len(limits), length)
        self.score = torch.zeros(len(limits), device=limits.device)

    def choose(self, step: int, logits: torch.Tensor, draws: torch.Tensor) -> None:
        """Takes a token of each example; logits [B, 1, V], draws [B, T]."""
        logits = logits[:, 0]
        if self._method.temperature:
            chosen = _drawn(logits, draws[:, step], self._method)
        else:
            chosen = logits.argmax(-1)
        nats = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        chosen = chosen * self.running
        self.score = self.score + nats * self.running
        self.ids[:, step] = chosen
        self.tokens = chosen[:, None]
        self.running = self.running & (chosen != EOS) & (step + 1 < self._limits)


def _drawn(logits: torch.Tensor, draws: torch.Tensor, method: DecodingMethod) -> torch.Tensor:
    """Returns tokens [B] drawn with the uniform random numbers `draws` [B], from 0 to below 1."""
    likeliest = None
    if method.top_k:
        logits, likeliest = logits.topk(min(method.top_k, logits.shape[-1]))
    below = (logits / method.temperature).softmax(-1).cumsum(-1)
    # The first token where the cumulative probability exceeds the draw, which is scaled by the sum
    # of all probabilities: that may round to less than 1.
    place = (below <= draws[:, None] * below[:, -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)
    return place if likeliest is None else likeliest.gather(1, place[:, None])[:, 0]


class _Beams:
    """Beam search; the attributes are those of `_One`, with tokens [B, K].

    Of the 2K best continuations, the best K without EOS become the next beams, and the first K may
    finish, with EOS or at the example's limit. Only the best finished one is kept. An example ends
    when no unfinished beam can become better than it.
    """

    def __init__(self, method: DecodingMethod, limits: torch.Tensor, length: int) -> None:
        self._method, self._limits = method, limits
        batch, beams = len(limits), method.beam_size
        self.running = limits > 0
        self.tokens = limits.new_zeros(batch, beams)
        self.ids = limits.new_zeros(batch, length)
        self.score = torch.zeros(batch, device=limits.device)
        self._judged = torch.full_like(self.score, NEVER)
        self._alive_ids = limits.new_zeros(batch, beams, length)
        self._alive_scores = torch.full((batch, beams), NEVER, device=limits.device)
        self._alive_scores[:, 0] = 0.0

    def _penalty(self, tokens: torch.Tensor | int) -> torch.Tensor:
        count = torch.as_tensor(tokens, dtype=torch.float32, device=self.score.device)
        return ((5.0 + count) / 6.0) ** self._method.alpha

    def choose(self, step: int, logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Takes tokens of each beam; logits [B, K, V]. Returns the beams' parents, [B, K]."""
        del draws
        beams = self._method.beam_size
        scores, parents, tokens = _continuations(logits, self._alive_scores, 2 * beams)
        candidates = _gathered(self._alive_ids, parents)
        candidates[:, :, step] = tokens
        self._finish(step, scores, tokens, candidates)
        self._alive_scores, kept = _best(scores.masked_fill(tokens == EOS, NEVER), beams)
        self.tokens, parents = tokens.gather(1, kept), parents.gather(1, kept)
        self._alive_ids = _gathered(candidates, kept)
        reachable = self._alive_scores[:, 0] / self._penalty(self._limits)
        self.running = self.running & (step + 1 < self._limits) & (reachable > self._judged)
        return parents

    def _finish(
        self, step: int, scores: torch.Tensor, tokens: torch.Tensor, candidates: torch.Tensor
    ) -> None:
        """Keeps the best finished continuation, where it is better than the one before."""
        ended = (tokens == EOS) | (step + 1 >= self._limits)[:, None]
        finished = scores.masked_fill(~ended, NEVER)[:, : self._method.beam_size]
        best = finished.argmax(-1, keepdim=True)
        found = finished.gather(1, best)[:, 0]
        judged = found / self._penalty(step + 1)
        better = self.running & (found > NEVER / 2) & (judged > self._judged)
        self.score = torch.where(better, found, self.score)
        self._judged = torch.where(better, judged, self._judged)
        self.ids = torch.where(better[:, None], _gathered(candidates, best)[:, 0], self.ids)


def _continuations(
    logits: torch.Tensor, alive_scores: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns scores, beams and tokens [B, count] of the best continuations, the best first."""
    base = alive_scores - logits.logsumexp(-1)
    few, tokens = logits.topk(min(count, logits.shape[-1]))
    scores, places = _best((few + base[..., None]).flatten(1), count)
    return scores, places // few.shape[-1], tokens.flatten(1).gather(1, places)


def _best(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest values [B, count] and their places; of equal ones the first."""
    values, places = values.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], places[:, :count]


def _gathered(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Returns rows [B, N, T] at places [B, M]: [B, M, T]."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))
