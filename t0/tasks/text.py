"""Pretraining tasks over documents: T5's own preprocessors over a source of text.

    texts = FolderTexts(Path("D/text"))
    for name, arguments in pretraining_definitions("text", texts).items():
        seqio.TaskRegistry.add(name, **arguments)
    # text_span_corruption, text_prefix_lm, text_lm

The steps are those of t5's `c4_v220_span_corruption`, `c4_v220_prefix_lm` and `c4_v220_full_lm`:
documents are tokenised before the caching point, and what is random about an objective comes after
it, anew in each epoch. Training feeds them by a path of its own (`t0.feeding.pretraining`), which
gives the same tokens.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t0.compat import seqio, t5_preprocessors, tf
from t0.errors import UserError, remembered
from t0.sources.texts import Texts
from t0.tasks.vocabulary import default_vocabulary


class TextSource(seqio.DataSource):
    """Documents as a SeqIO data source: records `{"text": str}`, in order.

    Args:
      texts: where they are.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        super().__init__(splits=texts.splits)

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: `list_shards` has the shards."""
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns a name for each shard."""
        return [str(shard) for shard in self.texts.shards(split)]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Returns the documents of a split, or of every n-th of its shards.

        Args:
          split: which.
          shuffle: whether the shards come in an order of their own.
          seed: of that order.
          shard_info: reads the shards `index`, `index + num_shards`, ...
        """
        del unused
        with remembered():
            shards = list(self.texts.shards(split))
        if shard_info:
            if len(shards) < shard_info.num_shards:
                raise UserError(
                    f"the split {split} has {len(shards)} shards, {shard_info.num_shards} were "
                    "asked for"
                )
            shards = shards[shard_info.index :: shard_info.num_shards]
        if shuffle:
            order = np.random.default_rng(None if seed is None else int(seed) % 2**63)
            shards = [shards[number] for number in order.permutation(len(shards))]

        def generate() -> Iterator[dict[str, str]]:
            with remembered():
                for shard in shards:
                    for text in self.texts.documents(shard):
                        yield {"text": text}

        return tf.data.Dataset.from_generator(
            generate, output_signature={"text": tf.TensorSpec((), tf.string)}
        )


# What follows a task's prefix -> T5's steps after the caching point, and whether inputs are made.
OBJECTIVES: dict[str, tuple[tuple[Callable[..., Any], ...], bool]] = {
    "span_corruption": (
        (t5_preprocessors.span_corruption, seqio.preprocessors.append_eos_after_trim),
        True,
    ),
    "prefix_lm": (
        (t5_preprocessors.prefix_lm, seqio.preprocessors.append_eos_after_trim),
        True,
    ),
    "lm": ((t5_preprocessors.full_lm,), False),
}


def pretraining_definitions(prefix: str, texts: Texts) -> dict[str, dict[str, Any]]:
    """Returns name -> keyword arguments of `seqio.TaskRegistry.add` for the tasks over `texts`.

    Args:
      prefix: what the names begin with.
      texts: the documents.
    """
    source = TextSource(texts)
    feature = seqio.Feature(default_vocabulary(), add_eos=True, dtype=tf.int32)
    definitions = {}
    for objective, (steps, with_inputs) in OBJECTIVES.items():
        names = ("inputs", "targets") if with_inputs else ("targets",)
        definitions[f"{prefix}_{objective}"] = {
            "source": source,
            "preprocessors": [
                functools.partial(
                    t5_preprocessors.rekey, key_map={"inputs": None, "targets": "text"}
                ),
                seqio.preprocessors.tokenize,
                seqio.CacheDatasetPlaceholder(),
                *steps,
            ],
            "output_features": dict.fromkeys(names, feature),
            "metric_fns": [],
        }
    return definitions
