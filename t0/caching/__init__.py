"""Caching: registered SeqIO tasks become tokenised records in SeqIO's cache layout.

    from t0.caching import Options, Request, Setup, cache

    cache(
        Request(output_cache_dir="/data/cache", tasks=["super_glue_rte_.*"]),
        Options(),
        Setup(module_import=["t0.seqio_tasks"]),
        num_workers=8,
    )

cache_plan      which tasks and splits are written, and where
work_plan       which engine makes each split, and the jobs that it takes
prompted_rows   engine: ranges of rows of prompted tasks, without TensorFlow
source_shards   engine: shards of the source of any SeqIO task
split_state     what is known of a split while it is cached, and whether it may be published
parts           the records of a piece of a split, kept until the split is whole
cache_files     the final files: joined, described, published, read back
fingerprint     what a task's examples depend on, so that parts of a killed run can be taken over
workers         jobs in processes of this machine, which `fork_server` starts
beam_runner     the same jobs on Apache Beam
running         one run: plans, works, publishes each task when its splits are whole
cache_progress  the live line and the summary
verify          checks finished caches again

Importing this package, or a worker of `prompted_rows`, does without TensorFlow. Assumes that the
tasks' modules can be imported by name in every process.
"""

import importlib
from typing import Any

# Imported when they are first used: `cache` brings TensorFlow.
_API = {
    "Options": "cache_plan",
    "Outcome": "split_state",
    "Request": "cache_plan",
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
