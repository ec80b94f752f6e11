"""Parses the flags of a run, and fills in those that its starter folder sets.

    flags = parse_run(["t5_mesh_transformer", "--model_dir=tickets/model"])

The commands of both engines, and the process that makes the batches of tasks without a cache, read
a command line in this way.
"""

import os
from collections.abc import Sequence
from typing import Any

from t0.cli.arguments import make_working_directory_importable
from t0.config import flags
from t0.config.starter_settings import fill_flags, find_starter_folder


def parse_run(argv: Sequence[str]) -> Any:
    """Returns the flags of a run. The working directory is now searched for modules.

    Args:
      argv: the command line, whose first word is the command's name.

    Raises:
      UserError: a flag is wrong.
    """
    flag_values = flags.parse(argv)
    apply_starter_folder(flag_values)
    make_working_directory_importable()
    if flag_values.vocab:
        os.environ["T0_VOCAB"] = flag_values.vocab  # t5's own tasks read it during import
    return flag_values


def apply_starter_folder(flag_values: Any) -> None:
    """If the run's files are in a starter folder of `t0 init`, sets flags from this folder."""
    own = [flag_values.model_dir] if flag_values["model_dir"].present else []
    for path in (*own, *(flag_values.gin_file or ())):
        if settings := find_starter_folder(path):
            flags_of_run = {
                "model_dir": settings.path("model"),
                "additional_task_cache_dirs": settings.path("cache"),
            }
            fill_flags(flag_values, settings.flags() | flags_of_run)
            return
