"""Configures the process for a command: modules, data folders, vocabulary, gin.

    prepare(flags)                  # what `config.flags.parse` returned
    parsed = parse_gin(flags)       # gin holds the configuration now
    reset()                         # and as little as before

Gin knows a name when the module that registers it is imported, so `register` imports the rooms that
have such names, before anything is parsed.
"""

import importlib
import logging as python_logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags as absl_flags
from absl import logging

from t0 import compat
from t0.config import flags as command_flags
from t0.errors import unknown_name
from t0.sources import DATA_DIR_VARIABLE, set_data_dirs

# Modules with names for gin.
_WITH_GIN_NAMES = (
    "t0.feeding.opening",
    "t0.inference",
    "t0.scoring.evaluate",
    "t0.tasks.vocabulary",
    "t0.training.loop",
    "t0.training.optimizers",
    "t0.training.schedules",
    "t0.run.run_files",
)
# Module that gin files and operative configs of before import -> what has its names for gin now.
MOVED = {"t0.training.run_files": "t0.run.run_files"}
_KNOWN_MODULES = ("t0.seqio_tasks", "t0.recipes", "t5.data.mixtures")
# What Mesh TensorFlow's own modes find goes into event files, and into these notes.
_RESULTS = ("Saving dict for global step", "%s at step %d: %.3f")


def register() -> None:
    """Registers this project's names with gin, and modules under the names that they had before."""
    for name in _WITH_GIN_NAMES:
        importlib.import_module(name)
    for before, now in MOVED.items():
        sys.modules.setdefault(before, importlib.import_module(now))


def prepare(flags: Any, modules: Sequence[str] | None = None) -> None:
    """Sets what the flags say of this process: data folders, vocabulary, modules, Mesh's flags.

    Args:
      flags: parsed, see `t0.config.flags`.
      modules: to import in place of those that `--module_import` names.

    Raises:
      UserError: for a folder, file or module that is not there.
    """
    if flags.data_dir:
        set_data_dirs(flags.data_dir)
    compat.apply()
    from t0.compat import seqio
    from t0.tasks import set_vocabulary

    set_vocabulary(flags.vocab)
    import_modules(flags.module_import if modules is None else modules)
    command_flags.hand_to_mesh(flags)
    if flags.t5_tfds_data_dir:
        seqio.set_tfds_data_dir_override(flags.t5_tfds_data_dir)


def parse_gin(flags: Any, more_files: Sequence[str] = ()) -> Any:
    """Registers what gin can name, and parses the files and bindings of the flags.

    Args:
      flags: parsed, see `t0.config.flags`.
      more_files: gin files that are read after those of the flags.

    Returns:
      a `config.parse.Config`; gin holds the bindings, open for more.

    Raises:
      UserError: for gin that cannot be understood; what is left out is printed.
    """
    from t0.config import parse

    register()
    parsed = parse.parse(
        [*(flags.gin_file or []), *more_files],
        flags.gin_param or [],
        location_prefixes=command_flags.gin_folders(flags),
        also_deprecated=flags.additional_deprecated_gin_references,
        skip_all_unknown=flags.skip_all_gin_unknowns,
    )
    parse.print_findings(parsed)
    return parsed


def import_modules(modules: Sequence[str]) -> None:
    """Imports the modules that `--module_import` names.

    Raises:
      UserError: if there is none of that name; a module that it imports in turn is its own matter.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module + ".").startswith(error.name + "."):
                where = "--module_import looks on Python's path and in the working directory."
                raise unknown_name("module", module, _KNOWN_MODULES, where) from error
            raise


def quieten(*, verbose: bool) -> None:
    """Leaves out TensorFlow's, Mesh's and T5's notes, unless `verbose` (--verbosity=0)."""
    from t0.compat import tf1 as tf

    logger = python_logging.getLogger("tensorflow")
    logger.propagate = False  # where the root logger has a handler, each note would come twice
    if not verbose:
        logger.addFilter(_is_worth_showing)
    tf.logging.set_verbosity(tf.logging.INFO)
    logging.set_verbosity(logging.INFO if verbose else logging.ERROR)
    tf.disable_v2_behavior()


def _is_worth_showing(record: python_logging.LogRecord) -> bool:
    """Whether a note is an error or a result, among hundreds of lines on a good run."""
    message = str(record.msg)
    if message.startswith(_RESULTS):
        return True
    return record.levelno >= python_logging.ERROR and "Object was never used" not in message


def reset() -> None:
    """Takes back what `configure` and a run leave in the process, so that another run can follow.

    Registered tasks stay: importing their module again would not register them. The environment
    variables that the caller set before are not known here: `T0_DATA_DIR` and `T0_VOCAB` are
    removed.
    """
    from t0.compat import gin, gin_config, seqio
    from t0.tasks import set_vocabulary

    gin.clear_config()
    gin_config._LOCATION_PREFIXES[:] = [""]
    seqio.set_global_cache_dirs([])
    seqio.set_tfds_data_dir_override(None)
    set_vocabulary(None)
    for name in (DATA_DIR_VARIABLE, "T0_VOCAB"):
        os.environ.pop(name, None)
    for name in command_flags.OF_MESH:
        if name in absl_flags.FLAGS:
            absl_flags.FLAGS[name].unparse()
    python_logging.getLogger("tensorflow").removeFilter(_is_worth_showing)
