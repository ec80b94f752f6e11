"""T5's forward pass in NumPy, one example at a time, written from the papers and not from Mesh.

Sequences have no padding here, so nothing is masked but the decoder's future. Scaling of the
attention logits is absent: T5 folds it into the initial weights.
"""

import numpy as np


class NumpyT5:
    """An encoder-decoder over `variables`, Mesh TensorFlow's names -> arrays."""

    def __init__(self, variables):
        self._v = {name: np.asarray(value, np.float64) for name, value in variables.items()}
        self._heads = self._v["encoder/block_000/layer_000/SelfAttention/relative_attention_bias"]

    @property
    def num_heads(self):
        return self._heads.shape[0]

    def log_likelihood(self, inputs, targets):
        """Returns the nats of log p(targets | inputs); `targets` end in EOS."""
        memory = self._stack("encoder", self._embed(inputs))
        shifted = np.concatenate([[0], targets[:-1]])
        hidden = self._stack("decoder", self._embed(shifted), memory)
        logits = self._logits(hidden)
        logits -= logits.max(-1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return float(log_probabilities[np.arange(len(targets)), targets].sum())

    def _embed(self, ids):
        return self._v["shared/embedding"][np.asarray(ids)]

    def _logits(self, hidden):
        if "decoder/logits/kernel" in self._v:
            return hidden @ self._v["decoder/logits/kernel"]
        return hidden / np.sqrt(hidden.shape[-1]) @ self._v["shared/embedding"].T

    def _stack(self, stack, x, memory=None):
        bias = self._position_bias(stack, len(x))
        block = 0
        while f"{stack}/block_{block:03d}/layer_000/rms_norm/scale" in self._v:
            layers = [("SelfAttention", None)]
            layers += [("EncDecAttention", memory)] if memory is not None else []
            for number, (kind, attended) in enumerate([*layers, ("DenseReluDense", None)]):
                layer = f"{stack}/block_{block:03d}/layer_{number:03d}"
                normed = self._rms_norm(layer, x)
                if kind == "DenseReluDense":
                    x = x + self._feed_forward(f"{layer}/{kind}", normed)
                elif kind == "SelfAttention":
                    x = x + self._attention(f"{layer}/{kind}", normed, normed, bias)
                else:
                    x = x + self._attention(f"{layer}/{kind}", normed, attended, 0.0)
            block += 1
        return self._rms_norm(stack, x)

    def _rms_norm(self, layer, x):
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + 1e-6) * self._v[f"{layer}/rms_norm/scale"]

    def _attention(self, name, queries, memory, bias):
        if not len(memory):  # there is nothing to attend to
            return np.zeros((len(queries), self._v[f"{name}/o"].shape[-1]))
        q, k, v = (
            self._split(x @ self._v[f"{name}/{part}"])
            for part, x in (("q", queries), ("k", memory), ("v", memory))
        )
        logits = np.einsum("qhd,mhd->hqm", q, k) + bias
        logits -= logits.max(-1, keepdims=True)
        weights = np.exp(logits)
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqm,mhd->qhd", weights, v)
        return mixed.reshape(len(queries), -1) @ self._v[f"{name}/o"]

    def _split(self, x):
        return x.reshape(len(x), self.num_heads, -1)

    def _feed_forward(self, name, x):
        def kernel(part):
            return self._v[f"{name}/{part}/kernel"]

        if f"{name}/wi_0/kernel" in self._v:
            hidden = _gelu(x @ kernel("wi_0")) * (x @ kernel("wi_1"))
        else:
            hidden = np.maximum(x @ kernel("wi"), 0.0)
        return hidden @ kernel("wo")

    def _position_bias(self, stack, length):
        table = self._v[f"{stack}/block_000/layer_000/SelfAttention/relative_attention_bias"]
        distance = np.arange(length)[None, :] - np.arange(length)[:, None]
        bias = table[:, _buckets(distance, bidirectional=stack == "encoder")]
        if stack == "decoder":
            bias = bias + np.where(distance > 0, -1e9, 0.0)
        return bias


def _gelu(x):
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _buckets(distance, *, bidirectional, buckets=32, farthest=128):
    """T5's relative positions: each near distance its own bucket, far ones in log steps."""
    first = np.zeros_like(distance)
    back = -distance
    if bidirectional:
        buckets //= 2
        first = np.where(back < 0, buckets, 0)
        back = np.abs(back)
    else:
        back = np.maximum(back, 0)
    exact = buckets // 2
    ratio = np.log(np.maximum(back, 1) / exact) / np.log(farthest / exact)
    far = np.minimum(exact + (ratio * (buckets - exact)).astype(int), buckets - 1)
    return first + np.where(back < exact, back, far)
