"""Buckets on this machine, which TensorFlow's `gs://` and google-cloud-storage take for Google's.

    with served_buckets({"b": Bucket()}) as server:
        os.environ.update(server.environment())
        tf.io.gfile.listdir("gs://b/cache")
        server.calls()                   # [Call(kind="list", name="b", status=200, ...)]
        server.set_faults(Once(503, kind="read"))

TensorFlow keeps what it found for some seconds (`GCS_STAT_CACHE_MAX_AGE`), waits between its
attempts, and clears 64 MiB for each file that it reads, for a tenth of a second: `FAST` forbids
that, and must be in the environment before the process uses `gs://`.
"""

import contextlib
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.buckets.faults import Call, Faults
from tests.helpers.buckets.object_store import Bucket, Change

ROOT = Path(__file__).resolve().parents[3]
FAST = {
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "0",
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "1",
    "GCS_STAT_CACHE_MAX_AGE": "0",
    "GCS_MATCHING_PATHS_CACHE_MAX_AGE": "0",
}


class ServedBuckets:
    """A running server of buckets; made by `served_buckets`."""

    def __init__(self, process: subprocess.Popen[bytes], folder: str) -> None:
        self._process = process
        self._authority = str(Path(folder, "authority.pem"))
        self.address = f"http://127.0.0.1:{self._ask('port')}"

    def _ask(self, name: str, *arguments: object) -> Any:
        pickle.dump((name, arguments), self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def environment(self, token: str | None = "token") -> dict[str, str]:
        """Returns the variables that lead both clients here."""
        found = {
            "https_proxy": self.address,
            "HTTPS_PROXY": self.address,
            "CURL_CA_BUNDLE": self._authority,
            "REQUESTS_CA_BUNDLE": self._authority,
            "NO_GCE_CHECK": "true",
        }
        return found | ({"GOOGLE_AUTH_TOKEN_FOR_TESTING": token} if token else {})

    def reset(self, buckets: dict[str, Bucket], tokens: set[str] | None = None) -> None:
        """Serves other buckets, without faults.

        Args:
          buckets: name -> bucket.
          tokens: the valid ones; None for all. Others are answered by 401.
        """
        self._ask("reset", buckets, tokens)

    def set_faults(self, faults: Faults, delay: float = 0.0) -> None:
        """Sets what goes wrong from now on, and the seconds before each answer."""
        self._ask("set_faults", faults, delay)

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Writes an object."""
        self._ask("put", bucket, name, content)

    def files(self, bucket: str) -> dict[str, bytes]:
        """Returns the objects' contents by name, without those that stand for folders."""
        return self._ask("files", bucket)

    def calls(self) -> list[Call]:
        """Returns the requests so far, in the order of their answers."""
        return self._ask("calls")

    def changes(self) -> list[Change]:
        """Returns what happened to objects so far, in order."""
        return self._ask("changes")

    def counts(self, first: int = 0) -> Counter[str]:
        """Returns how many requests of each kind came, from call `first` on."""
        return Counter(call.kind for call in self.calls()[first:])


@contextlib.contextmanager
def served_buckets(
    buckets: dict[str, Bucket], tokens: set[str] | None = None
) -> Iterator[ServedBuckets]:
    """Serves buckets for the block, from a process of its own; see `ServedBuckets.reset`."""
    with tempfile.TemporaryDirectory(prefix="t0_bucket_") as folder:
        words = [sys.executable, "-m", "tests.helpers.buckets.server", folder]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        ) as process:
            try:
                server = ServedBuckets(process, folder)
                server.reset(buckets, tokens)
                yield server
            finally:
                process.kill()
