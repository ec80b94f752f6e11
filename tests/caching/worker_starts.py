"""Preparations of worker processes, for the tests of `workers`: light and picklable.

As a program this is a parent of two workers that do jobs, or still prepare themselves.
"""

import collections
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Counting:
    """Writes its process to a file; a job sleeps its seconds and returns its process and parent."""

    log: str

    def __call__(self):
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")

        def execute(job, report):
            time.sleep(job)
            return os.getpid(), os.getppid()

        return execute


class Telling:
    """A job tells that it has begun."""

    def __call__(self):
        return lambda job, report: report(f"{job} begun")


class Littering:
    """A job leaves a temporary file, and gives its name."""

    def __call__(self):
        return lambda job, report: tempfile.mkstemp()[1]


class Dying:
    """A job is how to die: by a signal, or with a status."""

    def __call__(self):
        def execute(job, report):
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
        print("begun", flush=True)
        time.sleep(60)


class Begun:
    """Tells on the standard output that both workers are at work."""

    def __call__(self):
        return lambda job, report: (report("begun"), time.sleep(60))


def main():
    """Waits for workers until it is killed."""
    from t0.caching import workers

    begun = []

    def tell(job, told):
        begun.extend([told] if told else [])
        if len(begun) == 2:
            print("begun", flush=True)
            begun.append(None)

    start = Begun() if sys.argv[1] == "ready" else Slow()
    for _ in workers.in_processes(collections.deque([1, 2]), start, tell, workers=2):
        pass


if __name__ == "__main__":
    # Pickled by the module's name, which `__main__` is not.
    import worker_starts

    worker_starts.main()
