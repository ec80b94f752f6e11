"""The record of command lines in a model directory: `commands/command`, `commands/command.1` ...

    save_command("/models/tiny", sys.argv)

Passwords and keys are masked. The files are for their owner only: not every secret can be
recognised.
"""

import functools
import os
import posixpath
from collections.abc import Sequence

from t0.config.flags import masked
from t0.errors import UserError
from t0.files import paths


def save_command(model_dir: str, argv: Sequence[str]) -> None:
    """Writes a command line, masked, into the next free file of a model directory.

    Args:
      model_dir: the folder, local or gs://.
      argv: the words of the command line.

    Raises:
      UserError: if it cannot be written.
    """
    folder = posixpath.join(model_dir, "commands")
    opener = functools.partial(os.open, mode=0o600)
    try:
        paths.make_folder(folder)
        taken = set(paths.list_names(folder))
        names = ("command", *(f"command.{number}" for number in range(1, len(taken) + 1)))
        path = posixpath.join(folder, next(name for name in names if name not in taken))
        if paths.is_remote(path):
            with paths.opened(path, "wb") as file:
                file.write(f"{masked(argv)}\n".encode())
        else:
            with open(path, "x", encoding="utf-8", opener=opener) as file:
                file.write(masked(argv) + "\n")
    except OSError as error:
        raise UserError(f"the model directory {model_dir} cannot be written: {error}") from error
