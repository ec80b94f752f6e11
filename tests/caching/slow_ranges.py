"""The prompted tasks, and workers that take their time: --module_import=tests.caching.slow_ranges.

A worker of `prompted_rows` imports no modules of tasks, so what slows it down comes through the
environment: `sitecustomize` would be heavier, and no template can sleep.
"""

from t0.caching import workers
from tests.caching import toy_prompted_tasks  # noqa: F401


class SlowWorker(workers.RowRangeWorker):
    """Sleeps a little before each job."""

    def __call__(self):
        import os
        import time

        execute = super().__call__()
        seconds = float(os.environ.get("TOY_SECONDS_A_JOB", "0.1"))

        def slowly(job, count):
            time.sleep(seconds)
            return execute(job, count)

        return slowly


workers.RowRangeWorker = SlowWorker
