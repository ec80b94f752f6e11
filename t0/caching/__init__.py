"""Writes the tokenised records of registered SeqIO tasks in SeqIO's cache layout.

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
tokenizing      tokenises texts with a cache of words
split_state     tracks the finished pieces of a split, and decides whether it may be published
parts           writes and reads files with the records of one piece of a split
cache_files     writes, describes, publishes and reads the final files of a cache
record_rows     stores the dataset row from which each record was made
provenance      records the inputs of a task's cache, and finds inputs that changed later
referenced_code finds the code and the files that a task's steps refer to
workers         runs jobs in worker processes on this machine
beam_runner     runs the same jobs on Apache Beam
uploads         uploads the files of a run to an object store
running         plans a run, runs its jobs, and publishes each task when it is complete
cache_progress  shows the live line and the summary
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
    "find_caches": "verify",
    "verify_cache": "verify",
}
__all__ = sorted(_API)


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{_API[name]}"), name)
