"""Validates the names of splits, files, datasets and tasks, which come from untrusted data.

    checked_name("validation", "split", "/data/reviews/state.json")     # "validation"
    checked_name("../../x/train", "split", "/data/reviews/state.json")  # UserError
    path_inside("gs://bucket/cache", "my_task", "info.train.json")
    # "gs://bucket/cache/my_task/info.train.json"

Each name is checked twice: when the name is read (`checked_name`), and when a file is written under
that name (`path_inside`). The second check accepts every name that other packages give their tasks.
It refuses every name that would lead out of the folder.
"""

import posixpath
import re

from t0.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RULE = "letters A to Z, digits and . _ - only, and neither '.' nor '..'"


def checked_name(name: object, kind: str, where: object) -> str:
    """Checks that a name is safe as a part of a path, and returns the name.

    Args:
      name: the name in the data.
      kind: the kind of object that has this name, for messages: split, file, dataset or subset.
      where: the file or folder that contains the name.

    Raises:
      UserError: if the name is not text, or if it contains a character that is not a letter, a
        digit, `.`, `_` or `-`.
    """
    if isinstance(name, str) and _NAME.fullmatch(name) and name not in (".", ".."):
        return name
    raise UserError(
        f"{where}: {name!r:.80} cannot be the name of a {kind}. Names have {_RULE}: choose "
        "another name."
    )


def path_inside(folder: str, *names: str) -> str:
    """Joins names to a folder and returns a path that is inside the folder.

    Raises:
      UserError: if a name is empty or would lead out of the folder.
    """
    for name in names:
        if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
            raise UserError(
                f"{name!r:.80} cannot be the name of a file in {folder}: it would be written "
                "elsewhere. Rename the task or split."
            )
    return posixpath.join(folder, *names)
