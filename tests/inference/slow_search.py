"""Greedy decoding, sampling and beam search as plainly as can be: whole sequences, no states.

`NumpyT5` computes every prefix anew; nothing here is batched, padded or cached.
"""

import numpy as np

from tests.evaluation.numpy_t5 import NumpyT5

EOS = 1


class SlowSearch(NumpyT5):
    """Predictions of a model's variables, with the sum of their log-probabilities."""

    def greedy(self, inputs, limit):
        return self._one_by_one(inputs, limit, lambda step, nats: int(nats.argmax()))

    def sample(self, inputs, limit, draws, temperature, top_k):
        def draw(step, nats):
            order = np.argsort(-nats, kind="stable")[:top_k] if top_k else np.arange(len(nats))
            weights = np.exp(nats[order] / temperature)
            below = np.cumsum(weights / weights.sum())
            return int(order[np.searchsorted(below, draws[step], side="right")])

        return self._one_by_one(inputs, limit, draw)

    def beams(self, inputs, limit, count, alpha):
        memory = self._memory(inputs)
        alive, best, best_judged = [([], 0.0)], None, -np.inf
        for length in range(1, limit + 1):
            grown = []
            for tokens, score in alive:
                nats = self._next(memory, tokens)
                grown += [(score + nats[token], [*tokens, token]) for token in range(len(nats))]
            grown = sorted(grown, key=lambda pair: -pair[0])[: 2 * count]
            for score, tokens in grown[:count]:
                judged = score / ((5 + length) / 6) ** alpha
                if (tokens[-1] == EOS or length == limit) and judged > best_judged:
                    best, best_judged = (tokens, score), judged
            alive = [(tokens, score) for score, tokens in grown if tokens[-1] != EOS][:count]
        return best

    def likeliest(self, inputs, targets):
        """The likeliest token at each position of a target."""
        memory = self._memory(inputs)
        return [int(self._next(memory, targets[:n]).argmax()) for n in range(len(targets))]

    def _one_by_one(self, inputs, limit, choose):
        memory, tokens, score = self._memory(inputs), [], 0.0
        while len(tokens) < limit and EOS not in tokens:
            nats = self._next(memory, tokens)
            tokens.append(choose(len(tokens), nats))
            score += nats[tokens[-1]]
        return tokens, score

    def _memory(self, inputs):
        return self._stack("encoder", self._embed(inputs))

    def _next(self, memory, tokens):
        hidden = self._stack("decoder", self._embed([0, *tokens]), memory)
        logits = self._logits(hidden)[-1]
        logits = logits - logits.max()
        return logits - np.log(np.exp(logits).sum())
