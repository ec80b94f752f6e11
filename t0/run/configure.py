"""Configures the process for a command: modules, data folders, vocabulary, gin.

    prepare(flags)                  # the result of `config.flags.parse`
    parsed = parse_gin(flags)       # now gin has the configuration
    reset()                         # restores the state of gin and the process

gin only knows a name if the module that registers the name has been imported. So `register` imports
these modules before gin parses files. It also registers the learning rate schedules, because their
own module does not use gin.
"""

import importlib
import logging as python_logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from absl import logging

from t0 import compat
from t0.config import flags as command_flags
from t0.config.flag_table import LIBRARY_FLAGS
from t0.config.starter_settings import FILE, find_starter_folder
from t0.errors import UserError, unknown_name
from t0.sources import DATA_DIR_VARIABLE, SKIP_VARIABLE, set_data_dirs, skip_bad_rows
from t0.training import schedules

# Modules that register names with gin.
_WITH_GIN_NAMES = (
    "t0.feeding.data_spec",
    "t0.inference.jobs",
    "t0.evaluation.settings",
    "t0.tasks.vocabulary",
    "t0.training.estimator",
    "t0.training.mesh_session",
    "t0.training.optimizers",
    "t0.run.row_prediction",
    "t0.run.run_files",
)
# Module of older versions, which gin files and operative configs may import -> the module that has
# its names now.
MOVED = {"t0.training.run_files": "t0.run.run_files", "t0.feeding.opening": "t0.feeding.data_spec"}
_LENGTHS = "TASK_FEATURE_LENGTHS"
_KNOWN_MODULES = ("t0.seqio_tasks", "t0.recipes", "t5.data.mixtures")
# Mesh TensorFlow's own modes report their results only in event files and in these log messages.
_RESULTS = ("Saving dict for global step", "%s at step %d: %.3f")


def register() -> None:
    """Registers this project's names with gin, and keeps the old names of modules importable."""
    from t0.compat import gin

    for name, schedule in schedules.SCHEDULES.items():
        # gin must not set the current step and the number of steps, because the caller passes them.
        gin.external_configurable(
            schedule, name, module="t0", denylist=["step", "total_train_steps"]
        )
    for name in _WITH_GIN_NAMES:
        importlib.import_module(name)
    for before, now in MOVED.items():
        sys.modules.setdefault(before, importlib.import_module(now))


def prepare(flags: Any, modules: Sequence[str] | None = None) -> None:
    """Sets data folders and vocabulary, imports modules, and sets the libraries' flags.

    Args:
      flags: the parsed flags, see `t0.config.flags`.
      modules: the modules to import instead of those in `--module_import`.

    Raises:
      UserError: a folder, file or module does not exist.
    """
    if flags.data_dir:
        set_data_dirs(flags.data_dir)
    if flags.skip_bad_rows:
        skip_bad_rows()
    compat.apply()
    from t0.compat import seqio
    from t0.tasks import set_vocabulary

    set_vocabulary(flags.vocab)
    import_modules(flags.module_import if modules is None else modules)
    command_flags.set_library_flags(flags)
    tfds_folder = flags.t5_tfds_data_dir or flags.tfds_data_dir
    if tfds_folder:
        seqio.set_tfds_data_dir_override(tfds_folder)


def parse_gin(flags: Any, more_files: Sequence[str] = (), *, working_directory: bool = True) -> Any:
    """Registers this project's names with gin, and parses the gin files and bindings in the flags.

    If bindings are skipped, a line lists them.

    Args:
      flags: the parsed flags, see `t0.config.flags`.
      more_files: gin files to read after the gin files in the flags.
      working_directory: whether to search the working directory for gin files.

    Returns:
      a `config.parse.Config`. The bindings are in gin, and more bindings can be added.

    Raises:
      UserError: a gin file or binding is invalid.
    """
    from t0.config import parse, saved_config

    register()
    # gin files of the user may import modules that are next to them, such as T5X's `import tasks`.
    folders = dict.fromkeys(command_flags.gin_folders(flags))  # in the order of the flags
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    parsed = parse.parse(
        [*(flags.gin_file or []), *more_files],
        flags.gin_param or [],
        location_prefixes=command_flags.gin_folders(flags),
        also_deprecated=flags.additional_deprecated_gin_references,
        skip_all_unknown=flags.skip_all_gin_unknowns,
        working_directory=working_directory,
    )
    parse.print_findings(parsed)
    saved_config.refuse_masked()
    _bind_starter_lengths(parsed.statements)
    return parsed


def _bind_starter_lengths(statements: Sequence[Any]) -> None:
    """Binds the lengths of `starter.json` if a gin file next to it is read, and sets no lengths.

    Raises:
      UserError: `train.gin`, which held the lengths in earlier versions, has other lengths.
    """
    from t0.compat import gin
    from t0.config.bindings import bound

    files = dict.fromkeys(s.location.filename for s in statements if s.location.filename)
    settings = next(filter(None, map(_settings_next_to, files)), None)
    setters = [s.location.filename for s in statements if s[1:3] == (_LENGTHS, "")]
    if settings is None or not setters or not setters[-1]:  # the command line sets them
        return
    lengths, own = dict(settings.lengths), _settings_next_to(setters[-1]) is not None
    if not own:
        gin.bind_parameter(f"%{_LENGTHS}", lengths)
    elif Path(setters[-1]).name == "train.gin" and (other := bound(f"%{_LENGTHS}")) != lengths:
        raise UserError(
            f"{setters[-1]} has {_LENGTHS} = {other}, but {settings.path(FILE)} has {lengths}: "
            f"remove the line from train.gin, so that all commands read {FILE}"
        )


def _settings_next_to(file: str) -> Any:
    folder = os.path.dirname(file)  # noqa: PTH120 (may be in a bucket)
    settings = find_starter_folder(folder)
    return settings if settings and Path(settings.folder) == Path(folder) else None


def import_modules(modules: Sequence[str]) -> None:
    """Imports the modules in `--module_import`.

    Raises:
      UserError: a module does not exist.
      ModuleNotFoundError: a module exists, but it imports a missing module.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and (module + ".").startswith(error.name + "."):
                where = "--module_import searches Python's path and the working directory."
                raise unknown_name("module", module, _KNOWN_MODULES, where) from error
            raise


def quieten(*, verbose: bool) -> None:
    """Hides log messages of TensorFlow, Mesh TensorFlow and T5, unless `verbose` is True."""
    from t0.compat import tf1 as tf

    logger = python_logging.getLogger("tensorflow")
    logger.propagate = False  # a handler of the root logger would print each message again
    if not verbose:
        logger.addFilter(_is_worth_showing)
    tf.logging.set_verbosity(tf.logging.INFO)
    logging.set_verbosity(logging.INFO if verbose else logging.ERROR)
    tf.disable_v2_behavior()


def _is_worth_showing(record: python_logging.LogRecord) -> bool:
    """Returns whether a log message is an error or a result. All other messages are hidden."""
    message = str(record.msg)
    if message.startswith(_RESULTS):
        return True
    return record.levelno >= python_logging.ERROR and "Object was never used" not in message


def reset() -> None:
    """Undoes the changes that this module and a run made to the process, before another run.

    Tasks remain registered, because a second import of their modules would not register them.
    `T0_DATA_DIR`, `T0_SKIP_BAD_ROWS` and `T0_VOCAB` are removed, even if the caller has set them.
    """
    from t0.compat import gin, gin_config, seqio, tf
    from t0.tasks import set_vocabulary

    tf.random.set_seed(None)  # Mesh TensorFlow's perplexity evaluation sets the seed
    gin.clear_config()
    gin_config._LOCATION_PREFIXES[:] = [""]
    seqio.set_global_cache_dirs([])
    seqio.set_tfds_data_dir_override(None)
    set_vocabulary(None)
    for name in (DATA_DIR_VARIABLE, SKIP_VARIABLE, "T0_VOCAB"):
        os.environ.pop(name, None)
    for name in LIBRARY_FLAGS:
        if name in absl_flags.FLAGS:
            absl_flags.FLAGS[name].unparse()
    python_logging.getLogger("tensorflow").removeFilter(_is_worth_showing)
