"""Gives paths in an object store the methods of `pathlib.Path`.

    any_path("model/eval")               # pathlib.Path("model/eval")
    folder = any_path("gs://b/eval")     # a RemotePath: str(folder) is "gs://b/eval"
    [path.name for path in folder.iterdir()]
    with (folder / "results_10.json").open("rb") as file: ...
    with binary(folder / "train.jsonl.gz") as file: ...     # a file object, as pyarrow expects

`pathlib.Path("gs://b")` would be the local path "gs:/b". So if a command's argument may be a local
or a remote path, the command passes it to `any_path`. Later code uses only the methods that both
path types share.

A RemotePath from `iterdir`, `glob` or `rglob` remembers whether it is a file or a folder. So
reading a folder takes one listing, instead of two requests per file.
"""

import contextlib
import errno
import fnmatch
import gzip
import io
import os
import types
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from t0.files import paths

_BUFFER_BYTES = 1 << 20
LARGEST_LINE = 2**26  # bytes of a line of a file that is read line by line


class RemotePath(PurePosixPath):
    """A path with `://` in it, whose methods work like those of `pathlib.Path`."""

    _is_folder: bool | None = None

    def __str__(self) -> str:
        """Returns the path as text that `t0.files.paths` accepts."""
        scheme, *names = self.parts or ("",)
        # A path from `relative_to` has no scheme.
        return f"{scheme}//{'/'.join(names)}" if scheme.endswith(":") else super().__str__()

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return any_path, (str(self),)

    def is_absolute(self) -> bool:
        """Returns True."""
        return True

    def absolute(self) -> "RemotePath":
        """Returns the path itself."""
        return self

    resolve = expanduser = absolute

    def exists(self) -> bool:
        """Returns whether the file or folder exists."""
        return self._query_kind() is not None

    def is_dir(self) -> bool:
        """Returns whether the path is an existing folder."""
        return self._query_kind() is True

    def is_file(self) -> bool:
        """Returns whether the path is an existing file."""
        return self._query_kind() is False

    def _query_kind(self) -> bool | None:
        return paths.is_remote_folder(self) if self._is_folder is None else self._is_folder

    def stat(self) -> Any:
        """Returns the size and modification time of a file."""
        size, time = paths.size_and_time(self)
        return types.SimpleNamespace(st_size=size, st_mtime_ns=time)

    def iterdir(self) -> "Iterator[RemotePath]":
        """Yields the files and folders in this folder."""
        names = paths.list_marked(self)
        if not names and not self.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        for name in names:
            yield self._child(name)

    def _child(self, name: str) -> "RemotePath":
        child = self / name.rstrip("/")
        child._is_folder = name.endswith("/")
        return child

    def glob(self, pattern: str) -> "Iterator[RemotePath]":
        """Yields the files and folders in this folder that match a pattern.

        If the pattern contains `**/`, subfolders are included.
        """
        if pattern.startswith("**/"):
            yield from self.rglob(pattern[3:])
            return
        for name in paths.list_marked(self):
            if fnmatch.fnmatchcase(name.rstrip("/"), pattern):
                yield self._child(name)

    def rglob(self, pattern: str) -> "Iterator[RemotePath]":
        """Yields the files and folders at any depth below this folder that match a pattern.

        Each folder comes before its content.
        """
        for name in paths.list_marked(self):
            child = self._child(name)
            if fnmatch.fnmatchcase(child.name, pattern):
                yield child
            if child._is_folder:
                yield from child.rglob(pattern)

    def open(self, mode: str = "r", encoding: str | None = None, newline: str | None = None) -> Any:
        """Opens the file. In text mode, the encoding is UTF-8.

        A file that is being written does not exist until it is closed.
        """
        del newline
        raw = RemoteFile(str(self), mode.replace("t", "").replace("b", "") + "b")
        file = io.BufferedReader(raw, _BUFFER_BYTES) if raw.readable() else io.BufferedWriter(raw)
        return file if "b" in mode else io.TextIOWrapper(file, encoding=encoding or "utf-8")

    def read_bytes(self) -> bytes:
        """Returns the content."""
        return paths.read_bytes(self)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Returns the content as text."""
        return paths.read_bytes(self).decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, content: bytes) -> int:
        """Writes the file in one upload."""
        with paths.opened(self, "wb") as file:
            file.write(content)
        return len(content)

    def write_text(self, content: str, encoding: str | None = None) -> int:
        """Writes the file in one upload."""
        return self.write_bytes(content.encode(encoding or "utf-8"))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing, because folders in an object store exist only as parts of object names."""
        del parents, exist_ok

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the file."""
        if not missing_ok and not self.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        paths.remove(self)

    def rename(self, target: "RemotePath") -> "RemotePath":
        """Renames the file. If `target` exists, replaces it."""
        paths.rename(self, target)
        return target

    replace = rename


def any_path(path: "str | os.PathLike[str]") -> Any:
    """Returns a `RemotePath` for a path with `://` in it, otherwise a `pathlib.Path`."""
    text = os.fspath(path)
    if not paths.is_remote(text):
        return Path(text)
    scheme, _, rest = text.partition("://")
    return RemotePath(f"{scheme}:", *rest.split("/"))


def binary(path: "str | os.PathLike[str]") -> BinaryIO:
    """Opens a seekable binary file for libraries that expect a file object.

    Raises:
      OSError: if the file cannot be opened, or is a pipe or a device.
    """
    return any_path(path).open("rb") if paths.is_remote(path) else paths.open_local(path)


@contextlib.contextmanager
def unpacked(path: "str | os.PathLike[str]") -> Iterator[IO[bytes]]:
    """Opens a file in binary mode for a `with` block, and decompresses `.gz` files.

    Raises:
      OSError: if the file cannot be opened or, inside the block, cannot be read.
    """
    with binary(path) as file:
        if not os.fspath(path).lower().endswith(".gz"):
            yield file
            return
        # GzipFile's own buffer has only 8 kB, so Python would have to refill it every few lines.
        with io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES) as content:
            yield content


def read_lines(path: "str | os.PathLike[str]") -> Iterator[bytes]:
    """Yields the lines of a file with their ends.

    Raises:
      OSError: if the file cannot be read, or has a line of more than `LARGEST_LINE` bytes.
    """
    with binary(path) as file:
        yield from limited_lines(file, path)


def limited_lines(file: IO[bytes], path: "str | os.PathLike[str]") -> Iterator[bytes]:
    """Yields the lines of an open file; see `read_lines`."""
    number = 1
    while line := file.readline(LARGEST_LINE + 1):
        if len(line) > LARGEST_LINE:
            raise OSError(
                errno.EFBIG,
                f"line {number:,} has more than {LARGEST_LINE:,} bytes",
                os.fspath(path),
            )
        yield line
        number += 1


def is_readable(folder: "str | os.PathLike[str]") -> bool:
    """Returns whether this process may list a folder; always True for an object store.

    An object store reports a missing permission only when a request fails.
    """
    return paths.is_remote(folder) or os.access(folder, os.R_OK | os.X_OK)


class RemoteFile(io.RawIOBase):
    """Wraps a file of TensorFlow's file system as a raw file object of Python.

    Args:
      mode: rb, wb or ab.

    Raises:
      OSError: if the file cannot be opened. The methods also raise OSError, if reading or writing
        fails.
    """

    def __init__(self, path: str, mode: str) -> None:
        self._path, self.mode = path, mode
        self._context = paths.opened(path, mode)
        self._file: IO[bytes] = self._context.__enter__()
        if self.readable():
            self._size = paths.size_bytes(path)

    def readable(self) -> bool:
        """Returns whether the file was opened for reading."""
        return self.mode.startswith("r")

    def writable(self) -> bool:
        """Returns whether the file was opened for writing."""
        return not self.readable()

    seekable = readable

    def _call(self, method: str, *arguments: Any) -> Any:
        with paths.converted(self._path):
            return getattr(self._file, method)(*arguments)

    def readinto(self, buffer: Any) -> int:
        """Reads bytes into a buffer and returns their number."""
        content = self._call("read", len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def write(self, content: Any) -> int:
        """Writes bytes and returns their number."""
        self._call("write", bytes(content))
        return len(content)

    def tell(self) -> int:
        """Returns the position of the next byte."""
        return self._call("tell")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position in a file opened for reading."""
        if whence == io.SEEK_CUR:
            offset += self.tell()
        elif whence == io.SEEK_END:
            offset += self._size
        self._call("seek", offset)
        return offset

    def close(self) -> None:
        """Closes the file. For a written file, this completes the upload."""
        if self.closed:
            return
        super().close()
        self._context.__exit__(None, None, None)
