"""Translates the names of T5X's gin bindings into ours.

    ours_for("train/utils.DatasetConfig.seed")
    # "utils.DatasetConfig.seed is T5X's: here it is RANDOM_SEED, or --seed"

T5X's macros (MIXTURE_OR_TASK_NAME, TASK_FEATURE_LENGTHS, TRAIN_STEPS, MODEL_DIR ...) have the same
names in our run files. Only the bindings to T5X's classes and functions need other names.
"""

import re

_SPLIT = "MIXTURE_OR_TASK_SPLIT in runs/eval.gin; training reads the split train"
_LENGTH = "MAX_DECODE_LENGTH"
# T5X's name -> our equivalent.
T5X_NAMES = {
    "DatasetConfig.mixture_or_task_name": "MIXTURE_OR_TASK_NAME",
    "DatasetConfig.task_feature_lengths": "TASK_FEATURE_LENGTHS",
    "DatasetConfig.batch_size": "BATCH_SIZE",
    "DatasetConfig.use_cached": "USE_CACHED_TASKS",
    "DatasetConfig.shuffle": "SHUFFLE_TRAIN_EXAMPLES",
    "DatasetConfig.seed": "RANDOM_SEED, or the flag --seed",
    "DatasetConfig.split": _SPLIT,
    "DatasetConfig.pack": "nothing to set: training packs examples",
    "DatasetConfig.module": "the flag --module_import",
    "DatasetConfig": "the macros MIXTURE_OR_TASK_NAME, TASK_FEATURE_LENGTHS and BATCH_SIZE",
    "SaveCheckpointConfig.period": "run.save_checkpoints_steps",
    "SaveCheckpointConfig.keep": "run.keep_checkpoint_max",
    "SaveCheckpointConfig.dtype": "get_variable_dtype.master_dtype",
    "SaveCheckpointConfig.save_dataset": "nothing to set: the step of a checkpoint gives the "
    "position in the data (on a TPU, write the stream of batches first: --write_stream)",
    "SaveCheckpointConfig": "run.save_checkpoints_steps and run.keep_checkpoint_max",
    "RestoreCheckpointConfig.path": "INIT_CHECKPOINT, or the flag --checkpoint",
    "RestoreCheckpointConfig.restore_dataset": "nothing to set: the step of a checkpoint gives "
    "the position in the data",
    "RestoreCheckpointConfig": "INIT_CHECKPOINT, or the flag --checkpoint",
    "CheckpointConfig": "run.save_checkpoints_steps, and the flag --checkpoint",
    "PjitPartitioner.num_partitions": "tpu_mesh_shape.model_parallelism (without --tpu: "
    "run.mesh_shape)",
    "PjitPartitioner": "tpu_mesh_shape.model_parallelism (without --tpu: run.mesh_shape)",
    "num_partitions": "tpu_mesh_shape.model_parallelism (without --tpu: run.mesh_shape)",
    "Trainer.num_microbatches": "serialize_num_microbatches.tokens_per_microbatch_per_replica",
    "Trainer.learning_rate_fn": "run.learning_rate_schedule",
    "create_learning_rate_scheduler": "run.learning_rate_schedule, and its parameters",
    "train.total_steps": "TRAIN_STEPS",
    "train.eval_steps": "EVAL_STEPS",
    "train.eval_period": "EVAL_PERIOD",
    "train.random_seed": "RANDOM_SEED, or the flag --seed",
    "train.model_dir": "MODEL_DIR, or the flag --model_dir",
    "dynamic_registration": "nothing: names are registered here, so delete this line and the "
    "imports of t5x; modules of tasks are named by --module_import",
}
# Names that only T5X uses. The user's own functions may have the other names in the table.
UNMISTAKABLE = (
    "DatasetConfig",
    "SaveCheckpointConfig",
    "RestoreCheckpointConfig",
    "PjitPartitioner",
    "dynamic_registration",
)
_BINDING = re.compile(
    r"(?<![\w.])(?:[\w./]*[./])?("
    + "|".join(re.escape(name) for name in sorted(T5X_NAMES, key=len, reverse=True))
    + r")(?![\w])"
)


def ours_for(text: str) -> str | None:
    """Returns a sentence about the first T5X name in a text, or None if the text has none."""
    match = _BINDING.search(text)
    return match and f"{match[0]} is T5X's: here it is {T5X_NAMES[match[1]]}"
