"""What goes wrong with requests to the bucket of the tests, and what is known of each request.

    Seeded(7, ("reset", 503, "lost"), every=5)       # about one request in five, the same each time
    Once("truncated", kind="bytes")                  # the first bytes of an upload
    KilledAfter(12)                                  # nothing after the twelfth request

A fault is a status (503, 429, 403, 401, ...), by which nothing is done, or

    "reset"      the connection breaks before anything is done
    "lost"       what was asked is done, and the connection breaks before the answer
    "cut"        half of the answer comes
    "truncated"  half of the bytes of an upload come, then the connection breaks
    "slow"       the answer comes late
    "stale"      a listing has the names of before the last change

The classes here are plain data with a call, because they go to the server's process.
"""

import dataclasses
import random
from collections.abc import Callable

Fault = int | str | None
# (kind of request, bucket and object) -> fault
Faults = Callable[[str, str], Fault]


@dataclasses.dataclass(frozen=True)
class Call:
    """A request that was answered.

    Attributes:
      kind: bucket, iam, list, stat, read, begin (an upload), bytes (of an upload), upload (in one
        request), copy or delete.
      name: bucket and object.
      status: the answer's, 0 for none.
      seconds: when (`time.monotonic`).
      fault: what went wrong.
    """

    kind: str
    name: str
    status: int
    seconds: float
    fault: Fault = None


def no_faults(kind: str, name: str) -> Fault:
    """Returns None: nothing goes wrong."""
    del kind, name


@dataclasses.dataclass
class Seeded:
    """Random faults, the same for a seed: one in `every` requests."""

    seed: int
    faults: tuple[Fault, ...]
    every: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __call__(self, kind: str, name: str) -> Fault:
        """Returns the fault of a request."""
        chosen = self._random.choice(self.faults)
        return chosen if self._random.randrange(self.every) == 0 else None


@dataclasses.dataclass
class Once:
    """One fault: of the first `times` requests of a kind (every kind, if empty)."""

    fault: Fault
    kind: str = ""
    times: int = 1
    ending: str = ""

    def __call__(self, kind: str, name: str) -> Fault:
        """Returns the fault of a request."""
        if self.times <= 0 or self.kind not in ("", kind) or not name.endswith(self.ending):
            return None
        self.times -= 1
        return self.fault


@dataclasses.dataclass
class KilledAfter:
    """Leaves a bucket as a process does which is killed after some requests.

    Every later request is refused by a status that no client retries, and does nothing.
    """

    requests: int

    def __call__(self, kind: str, name: str) -> Fault:
        """Returns the fault of a request."""
        self.requests -= 1
        return 403 if self.requests < 0 else None
