"""A third engine: a T5 in NumPy, one example at a time, with the methods of `evaluation.Model`.

It shows what a new engine needs, and is the oracle of the others. Nothing is batched or padded.
"""

import numpy as np

from t0.checkpoints.bundle import BundleReader
from t0.evaluation.batching import SortedPlan
from t0.evaluation.model import GREEDY
from tests.inference.slow_search import SlowSearch


class NumpyModel:
    """Scores, generates and measures with the variables of a Mesh TensorFlow checkpoint."""

    replicas = 1
    device_kind = "cpu"

    def __init__(self, ability, *, dtype, method=GREEDY, features=()):
        self._method = method

    def restore(self, checkpoint):
        reader = BundleReader(checkpoint)
        names = [name for name in reader.entries if name != "global_step"]
        self._t5 = SlowSearch({name: reader.load(name) for name in names})
        return len(names)

    def close(self):
        del self._t5

    def plan(self, tasks, limits, *, checkpoint, most_shapes):
        return SortedPlan(limits)

    def score(self, batch):
        inputs, targets = batch.lay_out()
        scores = np.zeros(targets.shape[:2], np.float32)
        for row, column in np.argwhere(targets.any(-1)):
            choice = np.trim_zeros(targets[row, column], "b")
            scores[row, column] = self._t5.log_likelihood(np.trim_zeros(inputs[row], "b"), choice)
        return scores

    def generate(self, inputs, limits, draws):
        ids, scores = np.zeros(draws.shape, np.int32), np.zeros(len(inputs), np.float32)
        for row in np.flatnonzero(limits):
            tokens, scores[row] = self._generate(inputs[row], limits[row], draws[row])
            ids[row, : len(tokens)] = tokens
        return ids, scores

    def _generate(self, inputs, limit, draws):
        method, given = self._method, (np.trim_zeros(inputs, "b"), limit)
        if method.beam_size > 1:
            return self._t5.beams(*given, method.beam_size, method.alpha)
        if method.temperature:
            return self._t5.sample(*given, draws, method.temperature, method.top_k)
        return self._t5.greedy(*given)

    def measure(self, batch):
        sums = np.zeros(4)  # nats, z-loss (which it leaves out), correct tokens, tokens
        for inputs, targets in zip(batch["inputs"], batch["targets"], strict=True):
            given, wanted = np.trim_zeros(inputs, "b"), np.trim_zeros(targets, "b")
            if len(wanted):
                nats = self._t5.log_likelihood(given, wanted)
                sums += [-nats, 0, np.sum(self._t5.likeliest(given, wanted) == wanted), len(wanted)]
        return sums
