"""A SeqIO data source over records that Python makes: what the recipes' tasks read.

    source = RecordSource(
        read=lambda split: [{"inputs": "2 + 2", "targets": "4"}],
        count=lambda split: 1,
        splits=("train",),
        signature={"inputs": TEXT, "targets": TEXT},
    )
    list(source.records("train"))       # the same without TensorFlow

A record holds texts and lists of texts; what they are the signature says.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from t0.compat import seqio, tf
from t0.errors import UserError, remembered
from t0.tasks.vocabulary import default_vocabulary

TEXT = tf.TensorSpec((), tf.string)
TEXTS = tf.TensorSpec((None,), tf.string)

Record = Mapping[str, Any]


def _nothing(split: str) -> Sequence[str]:
    del split
    return ()


class RecordSource(seqio.DataSource):
    """Records in an order of their own; a split is one shard.

    Args:
      read: split -> its records, anew at each call.
      count: split -> how many there are.
      splits: their names.
      signature: the fields of a record, `TEXT` or `TEXTS`.
      notes: split -> what a user should be told of it before a run.
    """

    def __init__(
        self,
        *,
        read: Callable[[str], Iterable[Record]],
        count: Callable[[str], int],
        splits: Sequence[str],
        signature: Mapping[str, tf.TensorSpec],
        notes: Callable[[str], Sequence[str]] = _nothing,
    ) -> None:
        self._read = read
        self._count = count
        self._signature = dict(signature)
        self.notes = notes
        super().__init__(splits=tuple(splits))

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """False: the records of a split come from one generator."""
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the split's name: one shard."""
        return [split]

    def num_input_examples(self, split: str) -> int:
        """Returns the number of records of a split; this may read its files."""
        return self._count(split)

    def records(self, split: str) -> Iterator[Record]:
        """Yields the records of a split.

        Raises:
          UserError: if there is no such split, or its data is not sound.
        """
        if split not in self.splits:
            raise UserError(f"there is no split '{split}', there are: {', '.join(self.splits)}")
        yield from self._read(split)

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Returns the records of a split as a dataset, in their order.

        `shuffle` and `seed` are for sources that shuffle files; SeqIO shuffles what it reads.
        """
        del shuffle, seed, unused
        if shard_info and shard_info.num_shards > 1:
            raise UserError(f"a split is one shard here, {shard_info.num_shards} were asked for")

        def generate() -> Iterator[Record]:
            with remembered():
                yield from self.records(split)

        return tf.data.Dataset.from_generator(generate, output_signature=self._signature)


def t5_features() -> dict[str, seqio.Feature]:
    """Returns inputs and targets in T5's vocabulary, both with EOS, as T5's own tasks have them."""
    feature = seqio.Feature(default_vocabulary(), add_eos=True, dtype=tf.int32)
    return {"inputs": feature, "targets": feature}


def tokenised() -> list[Any]:
    """Returns the preprocessors of records that have inputs and targets; they may be cached."""
    return [
        seqio.preprocessors.tokenize,
        seqio.preprocessors.append_eos,
        seqio.CacheDatasetPlaceholder(required=False),
    ]
