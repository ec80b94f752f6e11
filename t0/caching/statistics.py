"""The numbers of a `stats.<split>.json`, counted while examples pass.

    tally = Tally(task.output_features, char_counts=False)
    tally.add({"inputs": np.array([5, 6, 1]), "targets": np.array([7, 1])})
    tally.counts()
    # {"tokens": {"inputs": 2, "targets": 1}, "max_tokens": {"inputs": 2, "targets": 1}, ...}

Rules of `seqio.beam_utils.GetStats`: tokens are ids other than EOS and padding; only features among
the task's output features that hold int32 or int64 are counted. Its character counts come out
empty in SeqIO's own command (they ask for numpy arrays and get tensors); here they are counted.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from t0.caching.unit import LONGEST
from t0.compat import seqio

_TOKEN_TYPES = (np.dtype(np.int32), np.dtype(np.int64))


class Tally:
    """Running counts over the examples of one part of a split.

    `over` counts, for each feature of `LONGEST`, the examples that are longer.
    """

    def __init__(self, output_features: Mapping[str, seqio.Feature], *, char_counts: bool) -> None:
        self.examples = 0
        self._features = output_features
        self._char_counts = char_counts
        self._tokens: dict[str, int] = {}
        self._max_tokens: dict[str, int] = {}
        self._chars: dict[str, int] = {}
        self._special: dict[str, tuple[int, ...]] = {}
        self.over = dict.fromkeys(LONGEST, 0)

    def add(self, example: Mapping[str, Any]) -> None:
        """Counts one example of numpy values and bytes."""
        self.examples += 1
        for name in self._features:
            value = example.get(name)
            if value is None:
                continue
            if getattr(value, "dtype", None) in _TOKEN_TYPES:
                self._add_tokens(name, np.asarray(value))
            if self._char_counts:
                self._add_characters(name, value)

    def _add_tokens(self, name: str, ids: np.ndarray) -> None:
        valid = np.ones(ids.shape, dtype=bool)
        for special in self._special_ids(name):
            valid &= ids != special
        count = int(np.count_nonzero(valid))
        self._tokens[name] = self._tokens.get(name, 0) + count
        self._max_tokens[name] = max(self._max_tokens.get(name, 0), count)
        if name in LONGEST:
            self.over[name] += count + self._features[name].add_eos > LONGEST[name]

    def _special_ids(self, name: str) -> tuple[int, ...]:
        if name not in self._special:
            vocabulary = self._features[name].vocabulary
            ids = (vocabulary.eos_id, vocabulary.pad_id)
            self._special[name] = tuple(special for special in ids if special is not None)
        return self._special[name]

    def _add_characters(self, name: str, value: Any) -> None:
        feature = self._features[name]
        if isinstance(value, bytes):
            text = value.decode("utf-8")
        elif (
            getattr(value, "dtype", None) in _TOKEN_TYPES
            and feature.rank == 1
            and isinstance(feature.vocabulary, seqio.SentencePieceVocabulary)
        ):
            ids = np.abs(value.astype(np.int32))
            text = feature.vocabulary.decode_tf(ids).numpy().decode("utf-8")
        else:
            return
        self._chars[name] = self._chars.get(name, 0) + len(text)

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the counts by kind and feature, as a part tells them: `merge.totals` adds up."""
        return {
            "tokens": self._tokens,
            "max_tokens": self._max_tokens,
            "chars": self._chars,
            "over": self.over,
        }
