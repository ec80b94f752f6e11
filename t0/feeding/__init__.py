"""Feeding: from cached or live tasks to the batches that a model takes.

    from t0.feeding import open_training_data
    from t0.feeding.opening import data_spec, open_data

    spec = data_spec("t0_train", {"inputs": 1024, "targets": 256}, use_cached=True)   # SeqIO, once
    data = open_training_data(spec)                 # numpy alone, in this process or in another one
    batch, position = next(data.batches(16))     # {"inputs": int32 [16, 1024], ...}
    next(data.batches(16, position))             # the batch after it

opening         SeqIO's registries and gin -> a `DataSpec`; checks of a mixture before a run
objectives      which of T5's pretraining objectives a task has
live            sources of tasks without a cache, through SeqIO
token_files     TFRecord files -> token ids
reading         a task's cache -> blocks of examples, shuffled
denoising       T5's objectives as arithmetic on arrays
pretraining     documents -> blocks of examples
mixing          tasks drawn by their rates
packing         examples -> rows
training_data   all of these -> batches, with a position that a checkpoint can hold

The first three need SeqIO and TensorFlow; nothing else here does.
"""

from t0.feeding.training_data import Batch, Position, TrainingData, open_training_data

__all__ = ["Batch", "Position", "TrainingData", "open_training_data"]
