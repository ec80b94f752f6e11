"""What worker processes start with in the tests of `fork_server`: light, and picklable.

Run as a program it is a parent of two workers that are at work, or still making ready.
"""

import collections
import dataclasses
import os
import sys
import tempfile
import threading
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Counting:
    """Notes its process in a file; a job sleeps its seconds and tells its process and parent."""

    log: str
    threads: int = 0

    def __call__(self):
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()}\n")
        for _ in range(self.threads):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

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
    """A job is how to die: by a signal, with a status, or with the fork server."""

    def __call__(self):
        def execute(job, report):
            if job == "server":
                os.kill(os.getppid(), 9)
                time.sleep(60)
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
