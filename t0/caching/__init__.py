"""Writes the tokenized records of registered SeqIO tasks in SeqIO's cache layout.

    from t0.caching import RecordOptions, CacheSelection, Setup, cache

    cache(
        CacheSelection(output_cache_dir="/data/cache", tasks=["super_glue_rte_.*"]),
        RecordOptions(),
        Setup(module_import=["t0.seqio_tasks"]),
        num_workers=8,
    )

cache_plan      decides which tasks and splits a run writes, and into which directories
work_plan       chooses the engine of each split, and divides its work into jobs
prompted_rows   engine: renders ranges of rows of prompted tasks, without TensorFlow
source_shards   engine: reads shards of the source of any SeqIO task
tokenizing      tokenizes texts with a cache of words
split_state     decides whether a finished split may be published
parts           writes and reads files with the records of one piece of a split
cache_files     writes, describes, publishes and reads the final files of a cache
record_rows     stores the dataset row from which each record was made
row_numbers     finds the dataset row of each example, for scores, predictions and samples
provenance      records the inputs of a task's cache, and finds inputs that changed later
workers         runs jobs in this process or in worker processes on this machine
beam_runner     runs the same jobs on Apache Beam
running         plans a run, runs its jobs, and publishes each task when it is complete
cost_estimate   estimates rows, tokens, size and time of a run from a sample
split_table     prints the table of outcomes
verify          checks finished caches

Importing this package does not import TensorFlow, and a worker that only renders rows does not need
TensorFlow. Every process must be able to import the modules that register the tasks.
"""

import importlib
from typing import Any

# Imported on first use, because `cache` imports TensorFlow.
_API = {
    "RecordOptions": "cache_plan",
    "SplitOutcome": "split_state",
    "CacheSelection": "cache_plan",
    "Setup": "cache_plan",
    "cache": "running",
    "estimate": "cost_estimate",
    "find_caches": "verify",
    "verify_cache": "verify",
}
__all__ = sorted(_API)


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{_API[name]}"), name)
