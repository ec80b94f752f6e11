"""Caching: writes the tokenised records of registered SeqIO tasks in SeqIO's cache layout.

    from t0.caching import RecordOptions, CacheSelection, Setup, cache

    cache(
        CacheSelection(output_cache_dir="/data/cache", tasks=["super_glue_rte_.*"]),
        RecordOptions(),
        Setup(module_import=["t0.seqio_tasks"]),
        num_workers=8,
    )

cache_plan      the tasks and splits that a run writes, and their directories
work_plan       the engine of each split, and its jobs
prompted_rows   engine: renders ranges of rows of prompted tasks, without TensorFlow
source_shards   engine: reads shards of the source of any SeqIO task
split_state     the finished pieces of a split, and whether the split may be published
parts           files with the records of a piece of a split
cache_files     the final files of a cache: joins, describes, publishes and reads them
provenance      the inputs of a task's cache, and their changes since then
referenced_code the code and the files that a task's steps refer to
workers         does jobs in worker processes of this machine
beam_runner     does the same jobs on Apache Beam
running         one run: plans, works, publishes each task when its splits are whole
cache_progress  the live line and the summary
verify          checks finished caches

Importing this package does not import TensorFlow, and a worker of `prompted_rows` does not need it.
Every process must be able to import the tasks' modules by name.
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
