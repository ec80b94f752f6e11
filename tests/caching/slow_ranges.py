"""The prompted tasks, and workers that take their time: --module_import=slow_ranges.

A worker of `ranges` does not import tasks' modules, so what slows it down travels through the
environment: `sitecustomize` would be heavier, and a sleep in a template is not to be had.
"""

import toy_prompted_tasks  # noqa: F401

from t0.caching import local


class SlowWorker(local.RangeWorker):
    """Sleeps a little before each job."""

    def __call__(self):
        import os
        import time

        execute = super().__call__()
        seconds = float(os.environ.get("TOY_SECONDS_A_JOB", "0.1"))

        def slowly(job, report):
            time.sleep(seconds)
            return execute(job, report)

        return slowly


local.RangeWorker = SlowWorker
