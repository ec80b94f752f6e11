"""Where a cache's files stand, and how a task's directory appears only when it is whole.

While a task is being written its files stand in a sibling, `<task>.incomplete-HOST-PID-START`
(`-` cannot occur in a task's name). `publish` puts `COMPLETED` into it and renames it to the
task's directory in one step; on object stores (`gs://`), where renaming a directory is not one
step, it moves the files and puts `COMPLETED` last. So a killed run leaves nothing that looks
finished, two runs into the same output never share a file, and the first to finish wins.

    layout.publish(staging, final, manifest, replace=False)  # False: another run was first

`COMPLETED`, of which SeqIO asks only that it exists, holds what a later check needs:

    {"schema": 1, "task": "toy", "absent_splits": {}, "splits": {"train": {"examples": 3,
     "files": {"train.tfrecord-00000-of-00001": {"bytes": 310, "examples": 3, "sha256": "..."}}}}}

Assumes that a process id with its start time names one process of a host. TensorFlow, whose file
system reaches `gs://`, is imported by the functions that need it: a worker that writes to the
machine's own disk does without.
"""

import contextlib
import json
import os
import pathlib
import posixpath
import re
import shutil
import socket
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil

from t0.errors import UserError
from t0.files import path_inside

COMPLETED = "COMPLETED"
_INFO = re.compile(r"info\.(.+)\.json")
_LEFTOVER = re.compile(r".+\.incomplete-(?P<host>.+)-(?P<pid>\d+)-(?P<start>\d+)(\.replaced)?/?")


class OutputError(UserError):
    """The output cannot be written: disk full, permission lost. Stops the whole run."""


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turns what Python or TensorFlow raise about writing `path` into an `OutputError`."""
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


def is_remote(path: str) -> bool:
    """Whether `path` is on a file system of TensorFlow's rather than the machine's."""
    return "://" in path


def own_tag() -> str:
    """Returns what marks the unfinished directories of this process."""
    return f"incomplete-{_host()}-{os.getpid()}-{_started(os.getpid())}"


def _started(pid: int) -> int:
    """Returns when a process began, in the clock ticks of the machine since its own start.

    Seconds, where there is no Linux to ask. Linux's seconds are made of the ticks and the clock: a
    process that is looked at after the clock was set is not the same by them, and a live run would
    lose its files to another.
    """
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return int(psutil.Process(pid).create_time())
    # After the name, which may hold anything: the third field and so on, the start is the 22nd.
    return int(status.rpartition(")")[2].split()[19])


def _host() -> str:
    return re.sub(r"[^\w.-]+", "_", socket.gethostname())


def check_writable(output_dir: str) -> None:
    """Makes the directory and a file in it, and removes the file again.

    Raises:
      OutputError: if that fails.
    """
    from t0.compat import tf

    probe = posixpath.join(output_dir, f"probe.{own_tag()}")
    with writing(output_dir):
        tf.io.gfile.makedirs(output_dir)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("x")
        tf.io.gfile.remove(probe)


def remove_leftovers(directories: Iterable[str]) -> list[str]:
    """Removes unfinished directories of dead processes of this host from `directories`.

    Returns:
      those of other hosts, which may be alive or not, and stay.
    """
    dead, foreign = leftovers(directories)
    for path in dead:
        remove(path)
    return foreign


def leftovers(directories: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the unfinished directories of dead processes of this host, and of other hosts."""
    from t0.compat import tf

    dead, foreign = [], []
    for directory in sorted(set(directories)):
        for path in tf.io.gfile.glob(posixpath.join(directory, "*.incomplete-*")):
            match = _LEFTOVER.fullmatch(path)
            if match and match["host"] != _host():
                foreign.append(path)
            elif match and not _alive(int(match["pid"]), int(match["start"])):
                dead.append(path)
    return dead, foreign


def _alive(pid: int, start: int) -> bool:
    try:
        return _started(pid) == start
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def remove(path: str) -> None:
    """Removes a file or directory that may be there or not, or be removed meanwhile."""
    if not is_remote(path):
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path):  # noqa: PTH112
                shutil.rmtree(path)
            else:
                os.remove(path)  # noqa: PTH107
        return
    from t0.compat import tf

    with contextlib.suppress(tf.errors.NotFoundError):
        if tf.io.gfile.isdir(path):
            tf.io.gfile.rmtree(path)
        else:
            tf.io.gfile.remove(path)


def is_finished(directory: str) -> bool:
    """Whether `directory` holds a finished cache, ours or SeqIO's."""
    from t0.compat import tf

    try:
        return tf.io.gfile.exists(posixpath.join(directory, COMPLETED))
    except (tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError):
        return False


def cached_splits(directory: str) -> set[str]:
    """Returns the splits that a cache holds: those with an `info.<split>.json`.

    Those, too, that were found to be empty when it was written, rightly so.
    """
    from t0.compat import tf

    matches = [_INFO.fullmatch(name) for name in tf.io.gfile.listdir(directory)]
    return {match[1] for match in matches if match} | set(
        read_manifest(directory).get("empty_splits", {})
    )


def read_manifest(directory: str) -> dict[str, Any]:
    """Returns what `COMPLETED` holds, nothing of a cache that is not ours or not finished."""
    from t0.compat import tf

    try:
        with tf.io.gfile.GFile(posixpath.join(directory, COMPLETED)) as file:
            manifest = json.loads(file.read())
    except (tf.errors.OpError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def write_text(path: str, text: str) -> bytes:
    """Writes `path` whole or not at all, and returns what was written."""
    content = text.encode()
    temporary = f"{path}.{uuid.uuid4().hex}"
    with writing(path):
        if not is_remote(path):
            pathlib.Path(temporary).write_bytes(content)
            os.replace(temporary, path)  # noqa: PTH105
            return content
        from t0.compat import tf

        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(content)
        tf.io.gfile.rename(temporary, path, overwrite=True)
    return content


def make_directory(path: str) -> None:
    """Makes the directory `path`, and those above it, where they are not there."""
    with writing(path):
        if not is_remote(path):
            os.makedirs(path, exist_ok=True)  # noqa: PTH103
            return
        from t0.compat import tf

        tf.io.gfile.makedirs(path)


def publish(staging: str, final: str, manifest: Mapping[str, Any], *, replace: bool) -> bool:
    """Makes the files in `staging` the finished cache in `final`.

    Args:
      manifest: what `COMPLETED` will hold; `manifest["splits"][split]["files"]` names the files.
      replace: take the place of a finished cache in `final`.

    Returns:
      False if another process finished the task first; `staging` is gone then, too.

    Raises:
      OutputError: if that fails; `final` is then as it was, or (object stores) unfinished.
    """
    completed = json.dumps(manifest, sort_keys=True, indent=1) + "\n"
    with writing(final):
        if is_remote(final):
            return _publish_remote(staging, final, manifest, completed, replace)
        write_text(posixpath.join(staging, COMPLETED), completed)
        return _publish_local(staging, final, replace)


def _publish_local(staging: str, final: str, replace: bool) -> bool:
    replaced = f"{staging}.replaced"
    try:
        while True:
            try:
                os.rename(staging, final)  # noqa: PTH104
                return True
            except OSError:
                # A directory is there, and not empty: finished, or left by a killed SeqIO.
                if not os.path.isdir(final):  # noqa: PTH112
                    raise
            if is_finished(final) and not replace:
                remove(staging)
                return False
            with contextlib.suppress(FileNotFoundError):
                os.rename(final, replaced)  # noqa: PTH104
            shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(replaced, ignore_errors=True)


def _publish_remote(
    staging: str, final: str, manifest: Mapping[str, Any], completed: str, replace: bool
) -> bool:
    from t0.compat import tf

    if is_finished(final) and not replace:
        remove(staging)
        return False
    names = {name for split in manifest["splits"].values() for name in split["files"]}
    tf.io.gfile.makedirs(final)
    # COMPLETED goes first and comes last, so that no state in between looks whole.
    remove(posixpath.join(final, COMPLETED))
    for name in tf.io.gfile.listdir(final):
        if name not in names:
            remove(posixpath.join(final, name))
    for name in sorted(names):
        tf.io.gfile.rename(path_inside(staging, name), path_inside(final, name), overwrite=True)
    write_text(posixpath.join(final, COMPLETED), completed)
    remove(staging)
    return True
