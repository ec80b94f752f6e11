"""Preparations of worker processes, for the tests of `workers`: light and picklable.

As a program this is a parent of two workers that do jobs, or still prepare themselves.
"""

import collections
import dataclasses
import os
import sys
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Counting:
    """Writes its process to a file; a job sleeps its seconds and returns its process and parent."""

    log: str

    def __call__(self):
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")

        def execute(job, count):
            time.sleep(job)
            return os.getpid(), os.getppid()

        return execute


class Telling:
    """A job counts as many rows as its number."""

    def __call__(self):
        return lambda job, count: count(job)


class Dying:
    """A job is how to die: by a signal, or with a status."""

    def __call__(self):
        def execute(job, count):
            if job < 0:
                os.kill(os.getpid(), -job)
            os._exit(job)

        return execute


@dataclasses.dataclass(frozen=True)
class Failing:
    """Does not start."""

    error: Exception

    def __call__(self):
        raise self.error


class Slow:
    """Makes ready for a minute."""

    def __call__(self):
        os.write(1, b"begun\n")  # in one piece, because two processes write
        time.sleep(60)


class Begun:
    """Counts a row when a worker is at work."""

    def __call__(self):
        return lambda job, count: (count(1), time.sleep(60))


def main():
    """Waits for workers until it is killed."""
    from t0.caching import workers

    begun = []

    def tell(number):
        begun.append(number)
        if number and sum(begun) == 2:
            print("begun", flush=True)

    start = Begun() if sys.argv[1] == "ready" else Slow()
    for _ in workers.run_jobs(collections.deque([1, 2]), start, tell, workers=2):
        pass


if __name__ == "__main__":
    # Pickled by the module's name, which `__main__` is not.
    from tests.caching import worker_starts

    worker_starts.main()
