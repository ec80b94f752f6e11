"""Defines the base class of SeqIO data sources whose records come from one generator, in order.

    source = QuestionSource(splits)      # a subclass, which creates the records
    source.list_shards("train")          # ["train"]
    source.get_dataset("train")          # a tf.data.Dataset of its records, in order

Each split is one shard, so a record's number is unique. Rank evaluation uses it as `idx`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t0.compat import seqio, tf
from t0.errors import UserError, remembered

TEXT = tf.TensorSpec((), tf.string)
TEXTS = tf.TensorSpec((None,), tf.string)

Record = Mapping[str, Any]


class OrderedSource(seqio.DataSource):
    """A SeqIO data source of records in a fixed order.

    Attributes:
      signature: field of a record -> `TEXT`, `TEXTS` or another specification.
    """

    signature: Mapping[str, tf.TensorSpec]

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """Returns False, because one generator yields all records of a split."""
        return False

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the split's name: each split is one shard."""
        return [split]

    def records(self, split: str) -> Iterator[Record]:
        """Yields the records of a split."""
        raise NotImplementedError

    def check(self, split: str) -> None:
        """Raises an error if, for example, the split's data is missing. It reads no records."""

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Returns the records of a split as a dataset, in order.

        `shuffle` and `seed` are ignored, because they concern only sources that shuffle files.
        SeqIO shuffles the records itself. If the records are not cached, SeqIO shuffles only within
        a buffer.
        """
        del shuffle, seed, unused
        if shard_info and shard_info.num_shards > 1:
            raise UserError(f"a split is one shard, but {shard_info.num_shards} were requested")

        def generate() -> Iterator[Record]:
            with remembered():
                yield from self.records(split)

        with remembered():
            self.check(split)  # now, because an error in a TensorFlow thread is hard to read
        return tf.data.Dataset.from_generator(generate, output_signature=dict(self.signature))
