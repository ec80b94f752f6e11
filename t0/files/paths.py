"""Reads, lists, moves and removes files on this machine or in an object store.

    read_text("gs://bucket/cache/toy/info.train.json")    # '{"features": ...'
    with opened("/data/train.tfrecord-00000-of-00001") as file:
        start = file.read(12)
    list_names("/data/cache")                             # ["toy_lines", "toy_many"]

A path with `://` in it (`gs://`) goes through TensorFlow's file system, which is imported on first
use. Other paths go through Python's file functions. TensorFlow's errors are converted, so every
failure raises `OSError` or one of its subclasses, such as `FileNotFoundError`.

This module uses TensorFlow's client instead of google-cloud-storage, because TensorFlow's saver and
input pipeline read and write the same objects with TensorFlow's client. On a TPU pod, they do so
even on servers without Python. With a single client, all files are read and written with the same
credentials, retries and errors, and schemes other than `gs://` work. TensorFlow cannot return an
object's checksum or a bucket's region, so `object_facts` requests them.
"""

import contextlib
import errno
import fnmatch
import functools
import hashlib
import os
import posixpath
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

from t0.errors import UNREACHABLE, classify_remote, describe_remote, short_reason

Path = str | os.PathLike[str]
_BUCKETS = "gs://"
LARGEST_WHOLE = 2**28  # bytes of a file that is read as a whole, such as a manifest or a vocabulary
_HASHED_BYTES = 2**20
_REMOVALS = 8  # attempts to remove a remote path


def is_remote(path: Path) -> bool:
    """Returns whether `path` belongs to one of TensorFlow's file systems."""
    return "://" in os.fspath(path)


@contextlib.contextmanager
def converted(path: Path) -> Iterator[Any]:
    """Yields TensorFlow's file system, and turns its errors in a `with` block into `OSError`s."""
    from t0.compat import tf

    kinds = {
        tf.errors.NotFoundError: errno.ENOENT,
        tf.errors.PermissionDeniedError: errno.EACCES,
        tf.errors.UnauthenticatedError: errno.EACCES,
        tf.errors.AlreadyExistsError: errno.EEXIST,
        tf.errors.FailedPreconditionError: errno.ENOTDIR,
        tf.errors.ResourceExhaustedError: errno.ENOSPC,
    }
    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        number = next((n for kind, n in kinds.items() if isinstance(error, kind)), errno.EIO)
        category = classify_remote(error)
        if (
            category and category[0] == UNREACHABLE
        ):  # for a host name that is not found, TensorFlow raises FailedPrecondition
            number = errno.EIO
        why = (
            describe_remote(error) if os.fspath(path).startswith(_BUCKETS) else short_reason(error)
        )
        # OSError chooses its subclass by the error number.
        raise OSError(number, why, os.fspath(path)) from error


@functools.cache
def _unending_systems() -> frozenset[int]:
    """Returns the devices of /proc and /sys, whose regular files may block or never end."""
    mounts = filter(os.path.isdir, ("/proc", "/sys"))
    return frozenset(os.stat(name).st_dev for name in mounts)  # noqa: PTH116


def _check_kind(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_dev in _unending_systems():
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", os.fspath(path))


def check_regular(path: Path) -> None:
    """Checks that a local path is a regular file or a folder, or a link to one.

    Call it before a library opens a file of others by its name. A folder from an untrusted source
    can contain pipes, sockets and devices, or links to them and to /proc, which block or produce
    bytes without end.

    Raises:
      OSError: if the path is of another kind, or does not exist.
    """
    if not is_remote(path):
        status = os.stat(path)  # noqa: PTH116
        if not stat.S_ISDIR(status.st_mode):
            _check_kind(status, path)


def check_folder(folder: Path) -> None:
    """Calls `check_regular` for each name in a local folder that a library will read as a whole.

    Raises:
      OSError: if a name is a pipe or a device.
    """
    for name in () if is_remote(folder) else list_names(folder):
        with contextlib.suppress(FileNotFoundError):  # a link to a file that does not exist
            check_regular(os.path.join(folder, name))  # noqa: PTH118


def _open_descriptor(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_kind(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_local(path: Path) -> BinaryIO:
    """Opens a local file for reading. All files of others are opened here.

    Raises:
      OSError: if the file cannot be opened, or is not a regular file.
    """
    try:
        return open(path, "rb", opener=_open_descriptor)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            check_regular(path)
        raise


@contextlib.contextmanager
def opened(path: Path, mode: str = "rb") -> Iterator[IO[Any]]:
    """Opens a binary file, or a text file in UTF-8 for writing, for a `with` block.

    Raises:
      OSError: if the file cannot be opened or, inside the block, reading or writing fails. A file
        to be read must be a regular file.
    """
    if mode == "rb" and not is_remote(path):
        with open_local(path) as file:
            yield file
        return
    if not is_remote(path):
        with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        return
    with converted(path) as gfile, gfile.GFile(os.fspath(path), mode) as file:
        yield file


def read_bytes(path: Path, most: int = LARGEST_WHOLE) -> bytes:
    """Returns the bytes of a file.

    Args:
      path: the file.
      most: the largest size in bytes. A sparse file of a few kilobytes can have any size.

    Raises:
      OSError: if the file cannot be read, or is larger.
    """
    with opened(path) as file:
        size = file.size() if is_remote(path) else os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(
                errno.EFBIG,
                f"it has {size:,} bytes; the limit for this kind of file is {most:,}",
                os.fspath(path),
            )
        return file.read(size)


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits.

    Raises:
      OSError: if the file cannot be read.
    """
    digest = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(_HASHED_BYTES):
            digest.update(block)
    return digest.hexdigest()


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if the file is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")


def exists(path: Path) -> bool:
    """Returns whether a file or folder exists.

    Returns False if the path is in a local folder that this process may not read.

    Raises:
      OSError: if a remote path is forbidden or unreachable.
    """
    if not is_remote(path):
        return os.path.exists(path)  # noqa: PTH110
    try:
        with converted(path) as gfile:
            return gfile.exists(os.fspath(path))
    except NotADirectoryError:
        return False


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder.

    Raises:
      OSError: if a remote path is forbidden or unreachable.
    """
    if not is_remote(path):
        return os.path.isdir(path)  # noqa: PTH112
    return is_remote_folder(path) is True


def size_bytes(path: Path) -> int:
    """Returns the size of a file.

    Raises:
      OSError: if there is no such file.
    """
    return size_and_time(path)[0] if is_remote(path) else os.stat(path).st_size  # noqa: PTH116


def is_remote_folder(path: Path) -> bool | None:
    """Returns whether a remote path is a folder; None if nothing exists there.

    Raises:
      OSError: if the path is forbidden or unreachable. TensorFlow's own `isdir` and `exists` would
        return False.
    """
    try:
        with converted(path) as gfile:
            return gfile.stat(os.fspath(path)).is_directory
    except (FileNotFoundError, NotADirectoryError):
        return None


def size_and_time(path: Path) -> tuple[int, int]:
    """Returns the size of a remote file in bytes and its modification time in nanoseconds.

    Raises:
      OSError: if there is no such file.
    """
    with converted(path) as gfile:
        status = gfile.stat(os.fspath(path))
    return status.length, status.mtime_nsec


def list_marked(folder: Path) -> list[str]:
    """Returns the sorted names in a remote folder; names of folders end in "/".

    For `gs://`, the listing takes one request. For other schemes, TensorFlow does not mark which
    names are folders, so the listing takes one more request for each name.

    Raises:
      OSError: if the folder may not be read.
    """
    try:
        with converted(folder) as gfile:
            names = sorted(set(gfile.listdir(os.fspath(folder))))
            if os.fspath(folder).startswith(_BUCKETS):
                return names
            marks = ("/" if gfile.isdir(posixpath.join(folder, name)) else "" for name in names)
            return [name.rstrip("/") + mark for name, mark in zip(names, marks, strict=True)]
    except (FileNotFoundError, NotADirectoryError):
        is_remote_folder(folder)  # raises an error if the folder exists but is forbidden
        return []


def list_names(folder: Path) -> list[str]:
    """Returns the sorted names in a folder; an empty list if the folder does not exist.

    Raises:
      OSError: if the folder may not be read.
    """
    if is_remote(folder):
        return [name.rstrip("/") for name in list_marked(folder)]
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))  # noqa: PTH208
    return []


def names_like(folder: Path, pattern: str) -> list[str]:
    """Returns the sorted names in a folder that match a pattern.

    Returns an empty list if the folder does not exist.

    Args:
      pattern: a pattern as in `glob`; `glob.escape` escapes its special characters.

    Raises:
      OSError: if the folder may not be read.
    """
    return fnmatch.filter(list_names(folder), pattern)


def walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields a folder and all folders below it, each with the sorted names of its files.

    Each remote folder takes one listing request. For an empty remote folder, nothing is yielded.
    """
    if not is_remote(folder):
        for path, folders, names in os.walk(folder):
            folders.sort()
            yield path.rstrip("/") or "/", sorted(names)
        return
    # TensorFlow's own walk would send a request for each name to find out which names are folders.
    names = list_marked(folder)
    if not names:
        return
    yield os.fspath(folder).rstrip("/"), [name for name in names if not name.endswith("/")]
    for name in names:
        if name.endswith("/"):
            yield from walk(posixpath.join(folder, name.rstrip("/")))


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents.

    In a bucket, this function does nothing, because objects need no folders. Making a folder there
    would take a dozen requests.

    Raises:
      OSError: if the folder cannot be made.
    """
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
        return
    if os.fspath(path).startswith(_BUCKETS):
        return
    with converted(path) as gfile:
        gfile.makedirs(os.fspath(path))


def remove(path: Path) -> None:
    """Removes a file, or a folder with all its content, if the path exists.

    Raises:
      OSError: if the path cannot be removed.
    """
    if not is_remote(path):
        with contextlib.suppress(FileNotFoundError):
            is_folder = os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114
            (shutil.rmtree if is_folder else os.remove)(path)  # noqa: PTH107
        return
    # TensorFlow may report "not found" only because one of its requests failed. So if the path
    # still exists, try again.
    for _ in range(_REMOVALS):
        with contextlib.suppress(FileNotFoundError), converted(path) as gfile:
            (gfile.rmtree if is_remote_folder(path) else gfile.remove)(os.fspath(path))
            return
        if not exists(path):
            return
    raise OSError(errno.EIO, "the object store does not answer", os.fspath(path))


def rename(source: Path, target: Path) -> None:
    """Renames a file. If `target` exists, replaces it.

    Within one local disk, the renaming is atomic.

    Raises:
      OSError: if the file cannot be renamed.
    """
    if not is_remote(target):
        os.replace(source, target)  # noqa: PTH105
        return
    with converted(target) as gfile:
        gfile.rename(os.fspath(source), os.fspath(target), overwrite=True)


def copy(source: Path, target: Path) -> None:
    """Copies a file. If `target` exists, replaces it.

    Raises:
      OSError: if the file cannot be copied.
    """
    check_regular(source)
    if not is_remote(source) and not is_remote(target):
        shutil.copyfile(source, target)
        return
    with converted(target if is_remote(target) else source) as gfile:
        gfile.copy(os.fspath(source), os.fspath(target), overwrite=True)


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yields a local path to a file for a `with` block.

    If the file is remote, the path is a temporary copy, which is removed when the block ends.

    Raises:
      OSError: if the file cannot be copied.
    """
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, posixpath.basename(path))  # noqa: PTH118
        copy(path, local)
        yield local
