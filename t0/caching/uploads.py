"""Uploads what the workers of this machine make for an object store, while they make more.

    with output_of(parts_dir, on_this_machine=True) as output:   # `Uploads`, if that is remote
        output.found(path)              # the part of an earlier run on this machine, or None
        job = output.job(job)           # the same job, which writes into a folder of this machine
        output.part_made(path)          # uploads the part, and returns at once
        output.publish(staging, finish, paths)  # calls `finish` with where the files are
        output.wait()

A request takes some tens of milliseconds, and a small file takes several. So workers write into a
temporary folder of this machine, need neither TensorFlow nor the network, and join the parts that
are still there; threads of the run's process make the requests. Parts are uploaded for the case
that the run is killed: the next one, on whichever machine, takes them over.

The folder holds at most `LOCAL_BYTES`, a quarter of the free disk if that is less, and what the
workers are making. Beyond that, a part is uploaded before the run goes on and not kept, and a
worker writes the files of a split into the object store itself.

`InPlace` has the same methods for an output that workers write to themselves: a disk, or any output
on Apache Beam.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t0.caching.split_state import JoinParts
from t0.files import object_facts, path_inside, paths, publishing, writing

LOCAL_BYTES = 4 * 2**30
# Threads that wait for the object store: for one file each, and for one task each.
TRANSFERS, PUBLICATIONS = 16, 4

_Future = concurrent.futures.Future[int]


class InPlace:
    """An output that the workers write to themselves."""

    def found(self, path: str) -> str | None:
        """Returns where a part of an earlier run can be read, None if there is none."""
        return path

    def job(self, job: Any) -> Any:
        """Returns the job as a worker gets it."""
        return job

    def part_made(self, path: str) -> None:
        """Takes note of a part that a job has made for `path`."""

    def publish(self, staging: str, finish: Callable[[str], None], parts: Sequence[str]) -> None:
        """Publishes a task, and then removes its parts.

        Args:
          staging: the directory of the task's files.
          finish: the function that publishes; it gets the directory in which the files are.
          parts: where the parts of all its splits are, if they were made.

        Raises:
          OutputError: if that fails; for `Uploads`, this call or a later one raises it.
        """
        finish(staging)
        for path in parts:
            paths.remove(path)

    def check(self) -> None:
        """Raises the error of what goes on in the background, if there is one."""

    def wait(self) -> None:
        """Waits for what goes on in the background; raises its error."""


class Uploads(InPlace):
    """A remote output, to which this process uploads.

    Args:
      parts_dir: the remote directory of the parts.
      folder: an empty folder of this machine.
    """

    def __init__(self, parts_dir: str, folder: str) -> None:
        self._folder = folder
        self._bytes_left = min(LOCAL_BYTES, shutil.disk_usage(folder).free // 4)
        self._transfers = concurrent.futures.ThreadPoolExecutor(TRANSFERS)
        self._publications = concurrent.futures.ThreadPoolExecutor(PUBLICATIONS)
        # What goes on in the background; each returns the bytes of the folder that it freed.
        self._underway: list[_Future] = []
        # Path of a part -> its bytes in the folder.
        self._kept: dict[str, int] = {}
        # Path of a part -> its upload; None if an earlier run made it.
        self._parts: dict[str, _Future | None] = {}
        # Directory of a task's files -> that of this machine, and the bytes that are in it.
        self._near: dict[str, str] = {}
        self._files: collections.Counter[str] = collections.Counter()
        # Directories of tasks of which a worker has written files itself.
        self._far: set[str] = set()
        self._fetch([path_inside(parts_dir, name) for name in paths.list_names(parts_dir)])
        # The first call takes a second of imports, in which the workers start.
        self._transfers.submit(object_facts.prepare)

    def end(self) -> None:
        """Ends what goes on in the background: transfers under way end, others do not begin."""
        self._publications.shutdown(wait=False, cancel_futures=True)
        self._transfers.shutdown(cancel_futures=True)
        self._publications.shutdown()

    def _fetch(self, earlier: Sequence[str]) -> None:
        """Copies the parts of an earlier run that there is room for."""
        self._parts = dict.fromkeys(earlier)
        for start in range(0, len(earlier), TRANSFERS):
            if self._bytes_left > 0:
                some = earlier[start : start + TRANSFERS]
                for path, size in zip(some, self._transfers.map(self._copied, some), strict=True):
                    self._bytes_left -= size
                    self._kept[path] = size

    def _copied(self, path: str) -> int:
        # A part that cannot be read is made again.
        with contextlib.suppress(OSError):
            paths.copy(path, self._local(path))
            return paths.size_bytes(self._local(path))
        return 0

    def _local(self, path: str) -> str:
        return path_inside(self._folder, posixpath.basename(path))

    def _nearest(self, path: str) -> str:
        return self._local(path) if path in self._kept else path

    def found(self, path: str) -> str | None:
        """Returns where a part of an earlier run can be read, None if there is none."""
        return self._nearest(path) if path in self._parts else None

    def job(self, job: Any) -> Any:
        """Returns the job as a worker gets it: writing into the folder, if there is room."""
        if not isinstance(job, JoinParts):
            return dataclasses.replace(job, directory=self._folder)
        job = dataclasses.replace(job, parts=tuple(map(self._nearest, job.parts)))
        staging, size = job.spec.split.directory, sum(info["bytes"] for info in job.infos)
        if size > self._bytes_left:
            self._far.add(staging)
            return job
        if staging not in self._near:
            self._near[staging] = tempfile.mkdtemp(dir=self._folder)
        self._bytes_left -= size
        self._files[staging] += size
        return dataclasses.replace(job, directory=self._near[staging])

    def part_made(self, path: str) -> None:
        """Uploads the part that a job has made for `path`; waits if there is no room to keep it."""
        local = self._local(path)
        size = paths.size_bytes(local)
        sent = self._parts[path] = self._begin(_sent, local, path)
        if size <= self._bytes_left:
            self._bytes_left -= size
            self._kept[path] = size
        else:
            sent.result()
            paths.remove(local)
            self._kept.pop(path, None)  # a copy of an earlier run's that could not be read

    def publish(self, staging: str, finish: Callable[[str], None], parts: Sequence[str]) -> None:
        """Publishes a task in the background, and then removes its parts."""
        made = {path: self._parts.pop(path) for path in parts if path in self._parts}
        kept = {path: self._kept.pop(path) for path in made if path in self._kept}
        freed = self._files.pop(staging, 0) + sum(kept.values())
        near, far = self._near.pop(staging, staging), staging in self._far

        def published() -> int:
            with writing(staging):
                finish(publishing.into_store(near, staging) if far else near)
            for path in kept:
                paths.remove(self._local(path))
            list(self._transfers.map(_removed, made, made.values()))
            return freed

        self._underway.append(self._publications.submit(published))

    def _begin(self, transfer: Callable[..., int], *arguments: Any) -> _Future:
        began = self._transfers.submit(transfer, *arguments)
        self._underway.append(began)
        return began

    def check(self) -> None:
        """Raises the error of what goes on in the background, if there is one."""
        ended = [future for future in self._underway if future.done()]
        self._underway = [future for future in self._underway if not future.done()]
        self._bytes_left += sum(future.result() for future in ended if not future.cancelled())

    def wait(self) -> None:
        """Waits for what goes on in the background; raises its error."""
        while self._underway:
            concurrent.futures.wait(self._underway, return_when=concurrent.futures.FIRST_EXCEPTION)
            self.check()


def _sent(local: str, path: str) -> int:
    with writing(path):
        publishing.put(local, path)
    return 0


def _removed(path: str, sent: _Future | None) -> None:
    """Removes a remote part; one whose upload has not begun is not uploaded."""
    if sent and sent.cancel():
        return
    if sent:
        concurrent.futures.wait([sent])
    with writing(path):
        paths.remove_file(path)


@contextlib.contextmanager
def output_of(parts_dir: str, *, on_this_machine: bool) -> Iterator[InPlace]:
    """Yields what takes the parts and files of a run, for the block.

    Args:
      parts_dir: the directory of the parts.
      on_this_machine: whether all workers are processes of this machine.
    """
    if not (on_this_machine and paths.is_remote(parts_dir)):
        yield InPlace()
        return
    with tempfile.TemporaryDirectory(prefix="t0_uploads_", ignore_cleanup_errors=True) as folder:
        uploads = Uploads(parts_dir, folder)
        try:
            yield uploads
        finally:
            uploads.end()
