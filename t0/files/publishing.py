r"""Writes files and folders atomically: they appear complete or not at all.

    write_whole("/out/results.json", '{"accuracy": 0.5}\n')

    with whole_file("gs://bucket/out/train.tfrecord", durable=True) as temporary:
        Path(temporary).write_bytes(b"...")   # a local file; published when the block ends

    staging = f"/out/toy.{unfinished_tag()}"  # "/out/toy.incomplete-HOST-PID-START"
    write_whole(f"{staging}/COMPLETED", "...")
    publish_folder(staging, "/out/toy", last="COMPLETED", replace=False)

A file or folder is first written next to its final path, under a temporary name that contains this
process's tag (`unfinished_tag`). When it is complete, it is renamed. A file for an object store is
written locally and then uploaded. So a killed process leaves nothing that looks finished, and two
processes never write to the same file. The next process can find and remove the unfinished files of
a dead process (`leftovers`).

The tags are unique if no two processes of a host have the same process id and the same start time.
"""

import concurrent.futures
import contextlib
import errno
import functools
import os
import pathlib
import posixpath
import re
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import psutil

from t0.errors import UserError, ended_by_sigterm
from t0.files import object_facts, paths
from t0.files.object_facts import Facts
from t0.files.untrusted import path_inside

_LEFTOVER = re.compile(r".+\.incomplete-(?P<host>.+)-(?P<pid>\d+)-(?P<start>\d+)(\.replaced)?")


class OutputError(UserError):
    """An error in writing output, such as a full disk, which stops the whole run."""


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turns errors of Python or TensorFlow while writing `path` into an `OutputError`."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    except Exception as error:
        tf = sys.modules.get("tensorflow")
        if tf is None or not isinstance(error, tf.errors.OpError):
            raise
        why = (error.message.splitlines() or [type(error).__name__])[0]
        raise OutputError(f"cannot write {path}: {why}") from error


# The minimum time between two writes of the same object, because a bucket accepts about one write
# per second for each object. The clients retry refused writes.
OBJECT_SECONDS = 1.0
_AT_ONCE = 16  # parallel uploads, which wait for the object store and not for this machine's cores


class UnfinishedFile:
    """A local file that has a temporary name until `publish` gives it its final name.

    Attributes:
      path: the temporary path, which is in the folder of the final path if that path is local.
    """

    def __init__(self, final: str) -> None:
        self._final = final
        remote = paths.is_remote(final)
        folder = tempfile.gettempdir() if remote else posixpath.dirname(final)
        name = f"{posixpath.basename(final)}.{uuid.uuid4().hex}.{unfinished_tag()}"
        self.path = posixpath.join(folder, name)

    def publish(self, *, durable: bool = False) -> None:
        """Gives the file its final name.

        Args:
          durable: whether to flush the file's bytes to disk first.

        Raises:
          OSError: if the file cannot be published.
        """
        if durable:
            to_disk(self.path)
        if paths.is_remote(self._final):
            paths.copy(self.path, self._final)
        else:
            paths.rename(self.path, self._final)

    def discard(self) -> None:
        """Removes the temporary file, if it exists."""
        with contextlib.suppress(OSError):
            os.remove(self.path)  # noqa: PTH107


def to_disk(path: str) -> None:
    """Waits until the bytes of a local file or folder are on disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(path: str, *, durable: bool = False) -> Iterator[str]:
    """Yields a temporary local path for a `with` block to write to.

    When the block ends without an error, the written file becomes the file `path`.

    Args:
      path: the final path, local or remote.
      durable: whether to flush the bytes to disk before the file gets its final name.

    Raises:
      OutputError: if the file cannot be written in the block, or cannot be published after it.
    """
    unfinished = UnfinishedFile(path)
    try:
        with writing(path):
            yield unfinished.path
            unfinished.publish(durable=durable)
    finally:
        unfinished.discard()


def write_whole(path: str, content: str | bytes | Iterable[str], *, durable: bool = False) -> None:
    """Writes a file atomically.

    Args:
      path: the file's path, local or remote.
      content: bytes, text, or pieces of text; text is written in UTF-8.
      durable: whether to flush the bytes to disk before the file gets its final name.

    Raises:
      OutputError: if the file cannot be written.
    """
    pieces = (content,) if isinstance(content, str | bytes) else content
    with whole_file(path, durable=durable) as temporary, open(temporary, "wb") as file:
        for piece in pieces:
            file.write(piece if isinstance(piece, bytes) else piece.encode())


def publish_folder(
    staging: str,
    final: str,
    *,
    last: str,
    replace: bool,
    files: Mapping[str, Facts] = MappingProxyType({}),
) -> bool:
    """Makes the folder `staging` the finished folder `final`.

    A local folder is renamed in one step. An object store cannot rename atomically, so the files
    are uploaded, or moved within the store, several at a time. Then the sizes and checksums of the
    files are checked. The file `last` is removed first and written last, so that no intermediate
    state looks finished.

    Args:
      staging: the folder with the files. If it is remote, `final` must also be remote.
      final: the folder's final path.
      last: the name of the file whose presence marks the folder as finished.
      replace: whether to replace a finished folder.
      files: name of a file in `staging` -> its expected size and checksum.

    Returns:
      True if this call finished the folder; False if another process finished it first. `staging`
      is removed in both cases.

    Raises:
      OutputError: if the folder cannot be published. `final` is then unchanged or, in an object
        store, unfinished.
    """
    with writing(final):
        if not paths.is_remote(final):
            return _rename_folder(staging, final, last, replace)
        marker = posixpath.join(final, last)
        done = paths.exists(marker) and not replace
        if not done:
            paths.remove(marker)
            names = {*paths.list_names(staging)} - {last}
            for name in {*paths.list_marked(final)} - names:
                if not name.endswith("/"):  # a folder below `final`, such as another task's cache
                    paths.remove(path_inside(final, name))
            move_files(staging, final, sorted(names))
            check_whole(final, files)
            write_whole(marker, paths.read_bytes(posixpath.join(staging, last)))
        paths.remove(staging)
        return not done


def _rename_folder(staging: str, final: str, last: str, replace: bool) -> bool:
    replaced = f"{staging}.replaced"
    try:
        while True:
            try:
                os.rename(staging, final)  # noqa: PTH104
                return True
            except OSError:
                # `final` is a non-empty folder: finished, or left by a killed process.
                if not os.path.isdir(final):  # noqa: PTH112
                    raise
            if paths.exists(posixpath.join(final, last)) and not replace:
                paths.remove(staging)
                return False
            with contextlib.suppress(FileNotFoundError):
                os.rename(final, replaced)  # noqa: PTH104
            shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(replaced, ignore_errors=True)


def check_whole(folder: str, expected: Mapping[str, Facts]) -> None:
    """Checks that remote files have the sizes and checksums with which they were written.

    Args:
      expected: name -> size and checksum. The checksum is compared only if it is not empty and the
        store has one.

    Raises:
      OSError: if a file is missing or differs.
    """
    in_bucket = object_facts.below(folder) if expected and object_facts.applies(folder) else {}
    for name, written in expected.items():
        path = path_inside(folder, name)
        size, checksum = in_bucket.get(name) or (paths.size_bytes(path), "")
        if size != written.size_bytes:
            fault = f"{size:,} bytes of {written.size_bytes:,} arrived"
            raise OSError(errno.EIO, fault, path)
        if checksum and written.crc32c and checksum != written.crc32c:
            fault = f"damaged bytes arrived: CRC32C {checksum}, written {written.crc32c}"
            raise OSError(errno.EIO, fault, path)


def move_files(source: str, target: str, names: Sequence[str]) -> None:
    """Uploads files of a local folder, or moves them within a store, several at a time.

    Raises:
      OutputError: if a file cannot be moved.
    """
    pairs = [(path_inside(source, name), path_inside(target, name)) for name in names]
    with writing(target):
        paths.make_folder(target)
        if object_facts.applies(target) and not paths.is_remote(source):
            object_facts.upload(pairs)
            return
        move = paths.rename if paths.is_remote(source) else paths.copy
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(lambda pair: move(*pair), pairs))


def make_folder(path: str) -> None:
    """Makes a folder and its missing parents.

    Raises:
      OutputError: if it cannot be made.
    """
    with writing(path):
        paths.make_folder(path)


def check_writable(folder: str) -> None:
    """Checks that a folder is writable.

    The check creates the folder and writes a probe file into it. The probe file is then removed.

    Raises:
      OutputError: if the folder is not writable.
    """
    probe = posixpath.join(folder, f"probe.{unfinished_tag()}")
    with writing(folder):
        paths.make_folder(folder)
        with paths.opened(probe, "w") as file:
            file.write("x")
        paths.remove(probe)


def unfinished_tag() -> str:
    """Returns the tag that marks the names of this process's unfinished files and folders."""
    return _tag_of(os.getpid())


@functools.cache
def _tag_of(pid: int) -> str:
    return f"incomplete-{_host()}-{pid}-{_started(pid)}"


def _started(pid: int) -> int:
    """Returns the start time of a process.

    On Linux, the start time is in clock ticks since boot, which do not depend on the system clock.
    If the start time were in seconds since the epoch, a change of the clock would change the start
    times of live processes, and other processes would remove their files. Other systems offer only
    seconds since the epoch.
    """
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return int(psutil.Process(pid).create_time())
    # The start time is field 22. Field 2 is the process's name, which may contain spaces and
    # parentheses, so the text is split only after the name.
    return int(status.rpartition(")")[2].split()[19])


def _host() -> str:
    return re.sub(r"[^\w.-]+", "_", socket.gethostname())


@contextlib.contextmanager
def folder_of_run() -> Iterator[str]:
    """Makes a private folder for temporary files during a `with` block.

    Processes that the block starts also use this folder, and TensorFlow puts the code that it
    generates into this folder. Other users can neither read the folder nor guess its name. The
    folder is removed when the block ends, also on SIGTERM. If the process is killed, the next
    process of the same user removes the folder.

    Raises:
      UserError: if there is no writable folder for temporary files.
    """
    before, variable, maker = tempfile.tempdir, os.environ.get("TMPDIR"), os.getpid()
    with ended_by_sigterm():
        folder = _folder_of_this_process()
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield folder
        finally:
            if os.getpid() == maker:  # a process that was forked in the block must not clean up
                tempfile.tempdir = before
                os.environ.pop("TMPDIR")
                if variable is not None:
                    os.environ["TMPDIR"] = variable
                shutil.rmtree(folder, ignore_errors=True)


def _folder_of_this_process() -> str:
    try:
        outside = tempfile.gettempdir()
        for path in leftovers([outside]):
            with contextlib.suppress(OSError):
                if os.lstat(path).st_uid == os.geteuid():
                    paths.remove(path)
        return tempfile.mkdtemp(prefix="t0_run_", suffix=f".{unfinished_tag()}")
    except OSError as error:
        raise UserError(
            f"there is no folder for temporary files: {error.strerror or error}. Free some "
            "space, or set a writable folder with TMPDIR=DIR before the command"
        ) from error


def is_unfinished(name: str) -> bool:
    """Returns whether a name marks an unfinished file or folder of any process, alive or dead.

    >>> is_unfinished("probe.incomplete-host-12-345"), is_unfinished("model.safetensors")
    (True, False)
    """
    return bool(_LEFTOVER.fullmatch(name))


def leftovers(folders: Iterable[str]) -> list[str]:
    """Returns the unfinished files and folders that dead processes of this host left in `folders`.

    The processes of other hosts may be alive, so their files are left out.
    """
    return [
        posixpath.join(folder, name)
        for folder in sorted(set(folders))
        for name in paths.list_names(folder)
        if (match := _LEFTOVER.fullmatch(name))
        and match["host"] == _host()
        and not _alive(int(match["pid"]), int(match["start"]))
    ]


def remove_leftovers(folders: Iterable[str]) -> None:
    """Removes the unfinished files and folders that dead processes of this host left."""
    for path in leftovers(folders):
        paths.remove(path)


def _alive(pid: int, start: int) -> bool:
    try:
        return _started(pid) == start
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
