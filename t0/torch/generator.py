"""Predicts tokens with a T5: greedy search, sampling and beam search with cached keys and values.

    generator = TorchGenerator(spec, torch.device("cuda"), torch.bfloat16, DecodingMethod())
    generator.restore("/models/tiny/torch.ckpt-1000")
    ids, scores = generator.generate(inputs, limits, draws)  # [B, L], [B], [B, T] -> [B, T], [B]

Legend: B examples, K beams (1 without beam search), L input tokens, T target tokens, D `d_model`, H
heads, W width of a head, V vocabulary.

Every process has the whole model, in the type of activations. So processes decode different batches
without waiting for each other. The encoder runs once per batch. Each step of the decoder computes
one position of every beam. Tokens and scores are the same as with `t0.inference.search`.
"""

import numpy as np
import torch

from t0.config.model_spec import T5Spec
from t0.evaluation.model import DecodingMethod
from t0.inference.inputs import EOS, NEVER
from t0.torch import checkpointing
from t0.torch.model import T5, mask
from t0.torch.processes import World
from t0.torch.sharding import names_and_parameters, unsharded


class TorchGenerator:
    """Predicts tokens with the weights of one checkpoint at a time.

    Args:
      spec: the model.
      device: the device that computes.
      activations: the type of weights and activations. Logits are always float32.
      method: the method that chooses tokens: greedy search, sampling or beam search.
    """

    replicas = 1

    def __init__(
        self, spec: T5Spec, device: torch.device, activations: torch.dtype, method: DecodingMethod
    ) -> None:
        self._world = World(0, 1, device)
        self._spec, self._activations, self._method = spec, activations, method
        self.device_kind = self._world.device_kind
        self._model: T5 | None = None

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint in any format; returns the number of variables.

        Raises:
          UserError: if there is no such checkpoint, or it belongs to another model.
        """
        self._model = None  # frees the weights of the previous checkpoint
        model = unsharded(self._spec).to(self._activations)
        model = model.to_empty(device=self._world.device).eval()
        with torch.no_grad():
            checkpointing.load(model, None, checkpoint, self._world)
        self._model = model
        return len(names_and_parameters(model))

    def close(self) -> None:
        """Frees the weights."""
        self._model = None

    @torch.inference_mode()
    def generate(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Generates tokens; see `t0.evaluation.model.Model`."""
        device, beams = self._world.device, self._method.beam_size
        tokens = torch.from_numpy(inputs).to(device, torch.int64)
        limits_on_device = torch.from_numpy(limits).to(device, torch.int64)
        draws_on_device = torch.from_numpy(draws).to(device)
        length = draws.shape[1]
        memory, segments = self._model.encode({"inputs": tokens})
        decoder = CachedDecoder(self._model, memory, segments, beams=beams, length=length)
        search = (_BeamSearch if beams > 1 else _SingleSearch)(
            self._method, limits_on_device, length
        )
        for step in range(int(limits.max(initial=0))):
            logits = self._model.logits(decoder.step(search.tokens, step).float())
            parents = search.choose(step, logits, draws_on_device)
            if not search.running.any():
                break
            if parents is not None:
                decoder.reorder(parents, step)
        return search.ids.to(torch.int32).cpu().numpy(), search.score.cpu().numpy()


class CachedDecoder:
    """A decoder for one batch, which stores the keys and values of all earlier positions.

    The beams of an example share the keys and values of its inputs. Each beam has its own keys and
    values of earlier tokens. When a beam continues another beam, these keys and values are copied.

    Args:
      model: the model, in evaluation mode.
      memory: the encoder's output, [B, L, D].
      segments: 1 for tokens of the inputs and 0 for padding, [B, L].
      beams: the number of beams, K.
      length: the maximum number of steps, T.
    """

    def __init__(
        self, model: T5, memory: torch.Tensor, segments: torch.Tensor, *, beams: int, length: int
    ) -> None:
        self._model, self._beams = model, beams
        self._mask = mask(torch.ones_like(segments[:, :1]), segments, memory.dtype)
        layers = [[layer.inner for layer in block.layer] for block in model.decoder.block]
        # For each block: keys and values of the inputs, [B, H, L, W], and keys and values of the
        # tokens so far, [B * K, H, T, W].
        self._inputs = [cross.keys_and_values(memory) for _, cross, _ in layers]
        self._tokens = [
            tuple(
                x.new_empty(len(memory) * beams, x.shape[1], length, x.shape[3]) for x in of_inputs
            )
            for of_inputs in self._inputs
        ]

    def step(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """Computes one position; returns the hidden states of the last layer, [B * K, D].

        Args:
          tokens: the tokens of the previous position, [B, K]; zeros at position 0.
          position: the position, from 0. All positions must be computed in order, each of them
            once.
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

    def reorder(self, parents: torch.Tensor, position: int) -> None:
        """Copies the keys and values of each beam's parent to the beam, up to a position.

        Args:
          parents: for each beam, the number of its parent, which is the earlier beam that it
            continues, [B, K].
          position: the last position that was computed.
        """
        first = torch.arange(len(parents), device=parents.device)[:, None] * self._beams
        rows = (first + parents).flatten()
        for cache in self._tokens:
            for cached in cache:
                past = cached[:, :, : position + 1]
                past.copy_(past[rows])


class _SingleSearch:
    """The state of a greedy search or of sampling.

    Attributes:
      tokens: the tokens that the decoder reads next, [B, 1].
      running: for each example, whether the search still chooses tokens, [B].
      ids: the tokens chosen so far, [B, T].
      score: the sum of the log-probabilities of these tokens, in nats, [B].
    """

    def __init__(self, method: DecodingMethod, limits: torch.Tensor, length: int) -> None:
        self._method, self._limits = method, limits
        self.running = limits > 0
        self.tokens = torch.zeros_like(limits)[:, None]
        self.ids = limits.new_zeros(len(limits), length)
        self.score = torch.zeros(len(limits), device=limits.device)

    def choose(self, step: int, logits: torch.Tensor, draws: torch.Tensor) -> None:
        """Chooses the next token of each example, from logits [B, V] and random numbers [B, T]."""
        if self._method.temperature:
            chosen = _draw_tokens(logits, draws[:, step], self._method)
        else:
            chosen = logits.argmax(-1)
        nats = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        chosen = chosen * self.running
        self.score = self.score + nats * self.running
        self.ids[:, step] = chosen
        self.tokens = chosen[:, None]
        self.running = self.running & (chosen != EOS) & (step + 1 < self._limits)


def _draw_tokens(logits: torch.Tensor, draws: torch.Tensor, method: DecodingMethod) -> torch.Tensor:
    """Samples tokens [B] with `draws` [B], which are uniform random numbers in [0, 1)."""
    likeliest = None
    if method.top_k:
        logits, likeliest = logits.topk(min(method.top_k, logits.shape[-1]))
    below = (logits / method.temperature).softmax(-1).cumsum(-1)
    # The result is the first token at which the cumulative probability exceeds the draw. The draw
    # is multiplied by the sum of all probabilities, because rounding may make that sum less than 1.
    index = (below <= draws[:, None] * below[:, -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)
    return index if likeliest is None else likeliest.gather(1, index[:, None])[:, 0]


class _BeamSearch:
    """The state of a beam search. It has the attributes of `_SingleSearch`, with tokens [B, K].

    Each step finds the best 2K continuations. The best K of those without EOS become the next
    beams. If one of the best K continuations has EOS or is at the example's limit, it is finished.
    Only the best finished continuation is kept. An example ends when no unfinished beam can become
    better than this continuation.
    """

    def __init__(self, method: DecodingMethod, limits: torch.Tensor, length: int) -> None:
        self._method, self._limits = method, limits
        batch, beams = len(limits), method.beam_size
        self.running = limits > 0
        self.tokens = limits.new_zeros(batch, beams)
        self.ids = limits.new_zeros(batch, length)
        self.score = torch.zeros(batch, device=limits.device)
        self._best_normalized = torch.full_like(self.score, NEVER)
        self._alive_ids = limits.new_zeros(batch, beams, length)
        self._alive_scores = torch.full((batch, beams), NEVER, device=limits.device)
        self._alive_scores[:, 0] = 0.0

    def _length_penalty(self, tokens: torch.Tensor | int) -> torch.Tensor:
        count = torch.as_tensor(tokens, dtype=torch.float32, device=self.score.device)
        return ((5.0 + count) / 6.0) ** self._method.alpha

    def choose(self, step: int, logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Chooses the next tokens from logits [B * K, V]; returns each beam's parent, [B, K]."""
        del draws
        beams = self._method.beam_size
        scores, parents, tokens = self._best_continuations(logits)
        candidates = _gather_rows(self._alive_ids, parents)
        candidates[:, :, step] = tokens
        self._finish(step, scores, tokens, candidates)
        self._alive_scores, selected = _largest(scores.masked_fill(tokens == EOS, NEVER), beams)
        self.tokens, parents = tokens.gather(1, selected), parents.gather(1, selected)
        self._alive_ids = _gather_rows(candidates, selected)
        reachable = self._alive_scores[:, 0] / self._length_penalty(self._limits)
        self.running = (
            self.running & (step + 1 < self._limits) & (reachable > self._best_normalized)
        )
        return parents

    def _best_continuations(
        self, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the scores, beams and tokens of the best 2K continuations, each [B, 2K]."""
        count = 2 * self._method.beam_size
        nats, tokens = logits.log_softmax(-1).topk(min(count, logits.shape[-1]))
        per_beam = nats.shape[-1]
        scores = nats.view(*self._alive_scores.shape, per_beam) + self._alive_scores[..., None]
        scores, indices = _largest(scores.flatten(1), count)
        tokens = tokens.view(len(scores), -1).gather(1, indices)
        return scores, indices // per_beam, tokens

    def _finish(
        self, step: int, scores: torch.Tensor, tokens: torch.Tensor, candidates: torch.Tensor
    ) -> None:
        """Keeps the best continuation that finishes in this step, if it is the best one so far."""
        ended = (tokens == EOS) | (step + 1 >= self._limits)[:, None]
        finished = scores.masked_fill(~ended, NEVER)[:, : self._method.beam_size]
        best = finished.argmax(-1, keepdim=True)
        best_scores = finished.gather(1, best)[:, 0]
        normalized = best_scores / self._length_penalty(step + 1)
        better = self.running & (best_scores > NEVER / 2) & (normalized > self._best_normalized)
        self.score = torch.where(better, best_scores, self.score)
        self._best_normalized = torch.where(better, normalized, self._best_normalized)
        self.ids = torch.where(better[:, None], _gather_rows(candidates, best)[:, 0], self.ids)


def _largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest values [B, count] and their indices. Equal values stay in order."""
    values, indices = values.sort(dim=-1, descending=True, stable=True)
    return values[:, :count], indices[:, :count]


def _gather_rows(rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Gathers the rows at `indices` [B, M] from `rows` [B, N, T]; returns [B, M, T]."""
    return rows.gather(1, indices[..., None].expand(-1, -1, rows.shape[-1]))
