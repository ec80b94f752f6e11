"""Uploads the files of a run to an object store while this machine's workers make more files.

    with open_output(parts_dir, on_this_machine=True) as output:   # `Uploads`, if that is remote
        output.find_part(path)          # the part of an earlier run, or None
        job = output.place_job(job)     # the same job, which writes into a folder of this machine
        output.add_part(path)           # uploads the part in the background
        output.publish(staging, finish, paths)  # calls `finish` with the folder of the files
        output.wait()

Workers write into a temporary folder of this machine and need neither TensorFlow nor the network.
Threads of the main process upload the files. They also upload parts. So if this run is killed, the
next run can use the parts, even on another machine. If the disk has less than `FREE_BYTES` left,
parts are removed from it after their upload, and workers write the final files of a task directly
into the object store.

`InPlace` has the same methods, for outputs that need no upload because workers write into them
directly. These are outputs on a disk and, if Apache Beam runs the jobs, all outputs.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from t0.caching.split_state import JoinParts
from t0.files import object_facts, path_inside, paths, publishing, writing

FREE_BYTES = 4 * 2**30
# The maximum number of simultaneous transfers of files, and of simultaneous publications of tasks.
TRANSFERS, PUBLICATIONS = 16, 4


class InPlace:
    """An output into which the workers write directly."""

    def find_part(self, path: str) -> str | None:
        """Returns the path where an earlier run may have left a part: here, `path` itself."""
        return path

    def place_job(self, job: Any) -> Any:
        """Returns the job to give to a worker: here, `job` itself."""
        return job

    def add_part(self, path: str) -> None:
        """Tells the output that a job has made the part at `path`. Here, this has no effect."""

    def publish(self, staging: str, finish: Callable[[str], None], parts: Sequence[str]) -> None:
        """Publishes a task, and then removes its parts.

        Args:
          staging: the directory of the task's files.
          finish: a function that takes the directory of the files, and publishes them.
          parts: the paths of the parts of all its splits. Some of them may not exist.

        Raises:
          OutputError: if publishing fails. `Uploads` may raise it in a later call.
        """
        finish(staging)
        for path in parts:
            paths.remove(path)

    def check(self) -> None:
        """Raises the first error of the background threads, if there is one."""

    def wait(self) -> None:
        """Waits for the background threads; raises their first error."""


class Uploads(InPlace):
    """An output in an object store: workers write on this machine, and this process uploads.

    Args:
      parts_dir: the remote directory of the parts.
      folder: an empty folder of this machine.
    """

    def __init__(self, parts_dir: str, folder: str) -> None:
        self._folder = folder
        self._transfers = concurrent.futures.ThreadPoolExecutor(TRANSFERS)
        self._publications = concurrent.futures.ThreadPoolExecutor(PUBLICATIONS)
        self._underway: list[concurrent.futures.Future] = []
        # Path of a part of this run -> its upload.
        self._uploads: dict[str, concurrent.futures.Future] = {}
        # Directory of a task's files -> the directory into which the workers write these files.
        self._directories: dict[str, str] = {}
        self._earlier = {path_inside(parts_dir, name) for name in paths.list_names(parts_dir)}
        list(self._transfers.map(self._download, self._earlier))
        # This call runs in the background while the workers start, because its imports take a
        # second.
        self._transfers.submit(object_facts.prepare)

    def end(self) -> None:
        """Waits for the transfers that have begun, and cancels all other transfers."""
        self._publications.shutdown(wait=False, cancel_futures=True)
        self._transfers.shutdown(cancel_futures=True)
        self._publications.shutdown()

    def _has_room(self) -> bool:
        return shutil.disk_usage(self._folder).free >= FREE_BYTES

    def _local(self, path: str) -> str:
        return path_inside(self._folder, posixpath.basename(path))

    def _nearest(self, path: str) -> str:
        return self._local(path) if os.path.exists(self._local(path)) else path  # noqa: PTH110

    def _download(self, path: str) -> None:
        # A part that cannot be read is made again.
        with contextlib.suppress(OSError):
            if self._has_room():
                paths.copy(path, self._local(path))

    def find_part(self, path: str) -> str | None:
        """Returns the path of a part that an earlier run made; None if no run made this part."""
        return self._nearest(path) if path in self._earlier else None

    def place_job(self, job: Any) -> Any:
        """Returns the job to give to a worker, which writes into a folder of this machine.

        If the disk is almost full, final files are written directly into the object store.
        """
        if not isinstance(job, JoinParts):
            return dataclasses.replace(job, directory=self._folder)
        staging = job.spec.split.directory
        if staging not in self._directories:
            has_room = self._has_room()
            self._directories[staging] = tempfile.mkdtemp(dir=self._folder) if has_room else staging
        part_paths = tuple(map(self._nearest, job.parts))
        return dataclasses.replace(job, parts=part_paths, directory=self._directories[staging])

    def add_part(self, path: str) -> None:
        """Uploads the part that a job has made for `path`.

        If the disk is almost full, it waits for the upload and removes the part from the disk.
        """
        local = self._local(path)
        upload = self._uploads[path] = self._transfers.submit(_upload, local, path)
        self._underway.append(upload)
        if not self._has_room():
            upload.result()
            paths.remove(local)

    def publish(self, staging: str, finish: Callable[[str], None], parts: Sequence[str]) -> None:
        """Publishes a task in the background, and then removes its parts."""
        directory = self._directories.pop(staging, staging)

        def publish_task() -> None:
            with writing(staging):
                finish(directory)
            list(self._transfers.map(self._remove_part, parts))

        self._underway.append(self._publications.submit(publish_task))

    def _remove_part(self, path: str) -> None:
        """Removes a part from disk and object store; cancels its upload if it is still waiting."""
        upload = self._uploads.pop(path, None)
        if upload and not upload.cancel():
            concurrent.futures.wait([upload])
        paths.remove(self._local(path))
        if path in self._earlier or (upload and not upload.cancelled()):
            with writing(path):
                paths.remove(path)

    def check(self) -> None:
        """Raises the first error of the background threads, if there is one."""
        ended = [future for future in self._underway if future.done()]
        self._underway = [future for future in self._underway if not future.done()]
        for future in ended:
            if not future.cancelled():
                future.result()

    def wait(self) -> None:
        """Waits for the background threads; raises their first error."""
        while self._underway:
            concurrent.futures.wait(self._underway, return_when=concurrent.futures.FIRST_EXCEPTION)
            self.check()


def _upload(local: str, path: str) -> None:
    with writing(path):
        publishing.put(local, path)


@contextlib.contextmanager
def open_output(parts_dir: str, *, on_this_machine: bool) -> Iterator[InPlace]:
    """Yields the output of a caching run for a `with` block.

    The output is an `Uploads` if it is in an object store and all workers run on this machine.
    Otherwise, it is an `InPlace`.

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
