"""Where a cache's files stand, and how a task's directory appears only when it is whole.

While a task is being written its files are in a sibling, `<task>.incomplete-HOST-PID-START`
(`-` cannot occur in a task's name). `publish` puts `COMPLETED` into it and makes it the task's
directory (`t0.files.publishing`). So a killed run leaves nothing that looks finished, two runs into
the same output never share a file, and the first to finish wins.

    layout.publish(staging, final, manifest, replace=False)  # False: another run was first

`COMPLETED`, of which SeqIO asks only that it exists, holds what a later check needs:

    {"schema": 1, "task": "toy", "absent_splits": {}, "splits": {"train": {"examples": 3,
     "files": {"train.tfrecord-00000-of-00001": {"bytes": 310, "examples": 3, "sha256": "..."}}}}}
"""

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from t0.files import paths, publish_folder, write_whole, writing

COMPLETED = "COMPLETED"
_INFO = re.compile(r"info\.(.+)\.json")


def is_finished(directory: str) -> bool:
    """Whether `directory` holds a finished cache, ours or SeqIO's."""
    return paths.exists(posixpath.join(directory, COMPLETED))


def cached_splits(directory: str) -> set[str]:
    """Returns the splits that a cache holds: those with an `info.<split>.json`.

    Those, too, that were found to be empty when it was written, rightly so.
    """
    matches = [_INFO.fullmatch(name) for name in paths.list_names(directory)]
    return {match[1] for match in matches if match} | set(
        read_manifest(directory).get("empty_splits", {})
    )


def read_manifest(directory: str) -> dict[str, Any]:
    """Returns what `COMPLETED` holds, nothing of a cache that is not ours or not finished."""
    try:
        manifest = json.loads(paths.read_bytes(posixpath.join(directory, COMPLETED)))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def make_directory(path: str) -> None:
    """Makes the directory `path`, and those above it, where they are not there.

    Raises:
      OutputError: if it cannot be made.
    """
    with writing(path):
        paths.make_folder(path)


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
    text = json.dumps(manifest, sort_keys=True, indent=1) + "\n"
    write_whole(posixpath.join(staging, COMPLETED), text)
    return publish_folder(staging, final, last=COMPLETED, replace=replace)
