"""Feeding: reads cached or live tasks, and makes batches for training.

    from t0.feeding import open_training_data
    from t0.feeding.data_spec import data_spec, open_data

    spec = data_spec("t0_train", {"inputs": 1024, "targets": 256}, use_cached=True)  # needs SeqIO
    data = open_training_data(spec)              # needs only numpy, in this or another process
    batch, position = next(data.batches(16))     # {"inputs": int32 [16, 1024], ...}
    next(data.batches(16, position))             # the next batch

data_spec       SeqIO's registries and gin -> a `DataSpec`; checks of a mixture before a run
cut_shares      the shares of examples that the lengths of a run truncate
host_graphs     the input graph that a TPU's hosts run, and the operations that they do not support
objectives      recognizes T5's objectives and instruction tasks
uncached        reads tasks without a cache, users' own datasets and TSV files, through TensorFlow
token_files     TFRecord files -> token ids
random_access   reads any record of a cache by its number
reading         a task's cache -> shuffled blocks of examples; counts of its records, and checksums
pretraining     documents -> blocks of examples, by T5's objectives as arithmetic on arrays
cached_examples cached instructions, or answer choices -> blocks of examples
mixing          draws examples from tasks in proportion to the tasks' rates
packing         examples -> rows
training_data   the whole pipeline: makes batches, each with a position that a checkpoint can hold
manifest        the data manifest, from which the batch of any step can be computed
batch_examples  finds the examples of a step's batch, and the steps that saw a text
batch_stream    writes and reads a run's batches in training order, for a TPU's hosts

`data_spec`, `host_graphs`, `cut_shares`, `objectives` and `uncached` need SeqIO and TensorFlow. All other
modules import neither of them; only `batch_stream.stream_dataset` needs TensorFlow.
"""

from t0.feeding.random_access import CachedRecords
from t0.feeding.training_data import Batch, Position, TrainingData, open_training_data

__all__ = ["Batch", "CachedRecords", "Position", "TrainingData", "open_training_data"]
