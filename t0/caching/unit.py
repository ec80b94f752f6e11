"""What a run is made of: units, what every unit needs to be worked on, and how each one ended.

    unit = Unit("super_glue_rte_GPT_3_style", "train", "/data/cache/...", rows=2490)
    worker.cache_split(unit, Options(min_shards=8), advance=print)   # an Outcome

All of it is plain data that any process or machine can be sent.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

WRITTEN, EMPTY, ABSENT, FAILED, STOP = "written", "empty", "absent", "failed", "stop"

# T0's sequence lengths, in tokens with EOS: what is longer is cut in training.
LONGEST = {"inputs": 1024, "targets": 256}
SHARD_BYTES = 100 * 10**6
# SeqIO reads a cache by interleaving 16 files and shuffles within a buffer of 1,000 examples.
INTERLEAVED_SHARDS = 16
SHUFFLE_BUFFER_EXAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Options:
    """How records are made and written; the same for every unit, and sent to every worker.

    The fields are named as the command's flags, as are those of `Setup`.

    Attributes:
      min_shards: SeqIO's meaning, or None: sized by the data, see `shard_count`.
      max_shards: SeqIO's meaning: no more than this many shards; 0 is no limit.
      base_seed: SeqIO's meaning: varies the seeds of the preprocessors.
      enable_char_counts: also count characters (slow: every example is detokenized).
      output_format: "tfrecord" or "arrayrecord".
      preserve_random_access: for arrayrecord: groups of one record.
      max_dropped_share: a split fails that loses a larger share of its rows, 0 to 1, unless it is
        known to (`t0.caching.known`).
      allow_hidden_labels: keep rows with withheld labels in the tasks of rank evaluation, and
        splits of which no row has a label.
    """

    min_shards: int | None = None
    max_shards: int = 0
    base_seed: int | None = None
    enable_char_counts: bool = False
    output_format: str = "tfrecord"
    preserve_random_access: bool = False
    max_dropped_share: float = 0.1
    allow_hidden_labels: bool = False


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a process does before it knows the tasks: see `worker.prepare`."""

    module_import: Sequence[str] = ()
    data_dir: Sequence[str] = ()
    vocab: str | None = None
    tfds_data_dir: str | None = None


@dataclasses.dataclass(frozen=True)
class Unit:
    """One piece of work for a runner: a split of a task, written into `directory`.

    Attributes:
      rows: input rows where the source knows them, else None.
    """

    task: str
    split: str
    directory: str
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.task} split '{self.split}'"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a unit ended.

    Attributes:
      status: WRITTEN; EMPTY (no row gives an example, and that is right); ABSENT (no data);
        FAILED (this task cannot be cached); STOP (the output cannot be written: nothing can).
      stats: SeqIO's statistics.
      files: file name -> {"bytes", "sha256"}, and "examples" for the shards.
      counts: what the source counted: "rows", and rows that it dropped, or marked, by reason.
      over: feature -> examples longer than T0's sequence lengths (`LONGEST`).
      notes: what the user should know of a split that is written all the same.
      message: for the user, unless written.
      trace: the Python traceback of what is no mistake of the user's.
    """

    unit: Unit
    status: str
    stats: Mapping[str, int] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    over: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    message: str = ""
    trace: str = ""


def shard_count(options: Options, source_shards: int, records: int, size_bytes: int) -> int:
    """Returns the number of files for a split of `records` examples and `size_bytes` in all.

    With `min_shards` given, SeqIO's rule: the larger of it and the source's own number of shards.
    Without, one file for each 100 MB; and, so that training sees a mixed stream of a dataset that
    is sorted (imdb: all negative reviews first), one for each 1,000 examples up to 16. SeqIO reads
    16 files at once and shuffles within 1,000 examples, and a file here is a contiguous stretch
    of the dataset, so reading takes from 16 places at a time.
    """
    if options.min_shards is not None:
        count = max(source_shards, options.min_shards)
    else:
        by_size = math.ceil(size_bytes / SHARD_BYTES)
        by_records = math.ceil(records / SHUFFLE_BUFFER_EXAMPLES)
        count = max(1, by_size, min(by_records, INTERLEAVED_SHARDS))
    return min(count, options.max_shards) if options.max_shards > 0 else count
