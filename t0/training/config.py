"""Reads gin files and `--gin_param`s strictly: what is not understood is an error or is reported.

Files are looked for in the working directory, then in the folders that the user names, then in
this project's `gin/`, T5's and Mesh TensorFlow's; the first hit wins. Mesh TensorFlow's
`defaults.gin` is always parsed first, the user's files next in their order (but see `in_order`),
the parameters last.

    config = parse(["dataset.gin", "models/t5.1.1.tiny.gin"], ["MIXTURE_NAME = 't0_train'"])
    config.unread_macros        # e.g. ('tokens_per_batch',): bound, and read by nothing

Names that older releases had and this one lacks stand in `DEPRECATED`; the bindings of public
operative configs to them are left out and listed.
"""

import contextlib
import copy
import dataclasses
import importlib.resources
import logging
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from t0.compat import gin, gin_config, mesh_utils, t5_mesh
from t0.errors import UserError
from t0.training.gin_errors import explain_unset, explained

DEFAULTS = str(pathlib.Path(mesh_utils.__file__).parent / "gin" / "defaults.gin")

# Name in an old config -> why its bindings can be left out.
DEPRECATED: dict[str, str] = {
    **dict.fromkeys(t5_mesh.DEPRECATED_GIN_REFERENCES, "t5 lists it as gone"),
    "sentencepiece_vocabulary.SentencePieceVocabulary": "the vocabulary comes from the tasks",
    "t5.data.sentencepiece_vocabulary.SentencePieceVocabulary": "the vocabulary comes from tasks",
    "get_default_vocabulary": "the vocabulary comes from the tasks; see --vocab",
    "t5.data.get_default_vocabulary": "the vocabulary comes from the tasks; see --vocab",
}

# Macros that T5's code, or ours, asks gin for by name.
READ_BY_CODE = {"MIXTURE_NAME", "MODEL_DIR"}

# What a run does; each of these files is read after the one that says what the model is.
RUN_FILES = ("pretrain.gin", "finetune.gin", "eval.gin", "infer.gin")


@dataclasses.dataclass(frozen=True)
class Config:
    """What was parsed.

    Attributes:
      deprecated: names met in the files whose bindings were left out.
      unread_macros: macros that were given and that no binding reads.
      files: the names of the gin files in the order read, Mesh TensorFlow's defaults first.
      params: the bindings after them.
    """

    deprecated: tuple[str, ...]
    unread_macros: tuple[str, ...]
    files: tuple[str, ...] = ()
    params: tuple[str, ...] = ()


def gin_folder() -> pathlib.Path:
    """Returns this project's folder of gin files, in a checkout or in an installed wheel."""
    installed = pathlib.Path(str(importlib.resources.files("t0"))) / "gin"
    return installed if installed.is_dir() else installed.parents[1] / "gin"


def search_path(location_prefixes: Sequence[str] = ()) -> list[str]:
    """Returns the folders in which gin files are looked for, after the working directory."""
    packages = [pathlib.Path(module.__file__).parent / "gin" for module in (t5_mesh, mesh_utils)]
    return [*location_prefixes, *map(str, (gin_folder(), *packages))]


def parse(
    gin_files: Sequence[str],
    gin_params: Sequence[str],
    *,
    location_prefixes: Sequence[str] = (),
    also_deprecated: Iterable[str] = (),
    skip_all_unknown: bool = False,
) -> Config:
    """Parses `defaults.gin`, the files and the parameters into gin's global configuration.

    The configuration is left open for `gin.bind_parameter`; finalise it when it is complete.

    Args:
      gin_files: paths or names to search for.
      gin_params: bindings such as "run.train_steps = 100".
      location_prefixes: folders to search before this project's.
      also_deprecated: further names whose bindings are left out.
      skip_all_unknown: leave out every binding to an unknown name (T5's flag for it).

    Raises:
      UserError: for a missing file, a syntax error, an unknown name (with the nearest known).
    """
    # gin only ever appends to its list: a second configuration would find the first one's folders.
    gin_config._LOCATION_PREFIXES[:] = ["", *search_path(location_prefixes)]
    files = in_order(gin_files)
    skip: Any = True if skip_all_unknown else _Deprecated({*DEPRECATED, *also_deprecated})
    with explained(search_path(location_prefixes), gin_params), quiet_search():
        gin.parse_config_file(DEFAULTS)
        before = set(_macro_names())
        gin.parse_config_files_and_bindings(
            files, list(gin_params), skip_unknown=skip, finalize_config=False
        )
    given = set(_macro_names()) - before
    met = () if skip_all_unknown else tuple(sorted(skip.met))
    unread = {name for name in given - macros_read() - READ_BY_CODE if not _is_wiring(name)}
    return Config(met, tuple(sorted(unread)), (DEFAULTS, *files), tuple(gin_params))


def in_order(gin_files: Sequence[str]) -> list[str]:
    """Returns the files in the order to read them: the model's before that of the run.

    Who pretrains or fine-tunes may name `models/t5.1.1.small.gin` after `runs/finetune.gin`, and
    the dropout is the run's all the same, not the model's. Files of other kinds keep their places.

    >>> in_order(["runs/finetune.gin", "models/t5.1.1.small.gin", "mine.gin"])
    ['models/t5.1.1.small.gin', 'runs/finetune.gin', 'mine.gin']
    """
    runs = [place for place, name in enumerate(gin_files) if _is_run(name)]
    if not runs:
        return list(gin_files)
    before, after = list(gin_files[: runs[0]]), list(gin_files[runs[0] :])
    return before + sorted(after, key=lambda name: not _is_model(name))


def _is_run(name: str) -> bool:
    return name.split("/")[-2:-1] == ["runs"] and name.split("/")[-1] in RUN_FILES


def _is_model(name: str) -> bool:
    return name.split("/")[-2:-1] == ["models"] or name.endswith("operative_config.gin")


def bound(name: str, default: Any = None) -> Any:
    """Returns the value bound to a parameter such as "run.mode", macros and calls evaluated.

    Raises:
      UserError: if the value is a macro that nothing sets.
    """
    try:
        value = gin.query_parameter(name)
    except ValueError:
        return default
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError) as error:
        unset = explain_unset(error)
        if unset:
            raise UserError(unset) from error
        raise


def macro(name: str) -> Any:
    """Returns the value of a macro such as "MIXTURE_NAME", or None."""
    return bound(f"%{name}")


class _Deprecated(set):
    """The deprecated names, noting which were asked for. Empty to gin: imports stay strict."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.met: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            self.met.add(str(name))
            return True
        return False

    def __bool__(self) -> bool:
        return False


def _macro_names() -> Iterator[str]:
    return (scope for scope, selector in gin_config._CONFIG if selector == "gin.macro")


def _is_wiring(name: str) -> bool:
    """Whether a macro has no value of its own: it is marked as required, or is another's alias.

    The operative config of a fine-tuning has INITIAL_CHECKPOINT_PATH = %INIT_CHECKPOINT, which an
    evaluation does not read.
    """
    return repr(gin_config._CONFIG[name, "gin.macro"]["value"]).startswith("%")


def macros_read() -> set[str]:
    """Returns the macros that some binding refers to."""
    references = gin_config.iterate_references(gin_config._CONFIG)
    return {"/".join(r.scopes) for r in references if r.configurable.selector == "gin.macro"}


@contextlib.contextmanager
def quiet_search() -> Iterator[None]:
    """Silences gin's complaint about each folder that it tried and that lacks the file."""
    logger = logging.getLogger()
    quiet = _NotAboutSearching()
    logger.addFilter(quiet)
    try:
        yield
    finally:
        logger.removeFilter(quiet)


class _NotAboutSearching(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Path not found")


def print_findings(config: Config) -> None:
    """Prints what was left out or is read by nothing to standard error, a line each."""
    for name in config.deprecated:
        reason = DEPRECATED.get(name, "as you said")
        print(f"gin: left out the deprecated name '{name}' ({reason})", file=sys.stderr)
    for name in config.unread_macros:
        print(f"gin: nothing reads the macro '{name}': it has no effect", file=sys.stderr)
