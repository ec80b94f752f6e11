"""Reads gin files and `--gin_param`s strictly: what is not understood is an error or is reported.

Files are looked for in the working directory, then in the folders that the user names, then in
this project's `gin/`, T5's and Mesh TensorFlow's; the first hit wins. Mesh TensorFlow's
`defaults.gin` is always parsed first, the user's files next in their order (but see `in_order`),
the parameters last.

    parsed = parse(["dataset.gin", "models/t5.1.1.tiny.gin"], ["MIXTURE_NAME = 't0_train'"])
    parsed.unread_macros        # such as ('tokens_per_batch',): bound, and read by nothing
    check_required(parsed)      # UserError: needs TRAIN_STEPS (runs/pretrain.gin:25) ...
    origins(parsed).of_macro("MIXTURE_NAME")        # the command line

`DEPRECATED` lists the names that older releases had and this one lacks; the bindings of public
operative configs to them are left out and reported. A gin file marks what its user must set by
`NAME = %gin.REQUIRED`.

gin keeps values alone, not where they were written. So `origins` reads the files a second time,
with gin's own parser, for the places of their statements; the last one that binds a parameter is in
force.
"""

import contextlib
import dataclasses
import importlib.resources
import logging
import os
import pathlib
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from t0.compat import gin, gin_config, gin_parser, mesh_utils, t5_mesh
from t0.config.bindings import (
    bound,
    macro_defined,
    macro_names,
    macros_read,
    macros_within,
)
from t0.config.explain import explained
from t0.errors import UserError

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

# Scope, function in full and parameter of a binding; a macro's are NAME, "gin.macro", "value".
Key = tuple[str, str, str]
COMMAND_LINE = "the command line"

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
        before = set(macro_names())
        gin.parse_config_files_and_bindings(
            files, list(gin_params), skip_unknown=skip, finalize_config=False
        )
    given = set(macro_names()) - before
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


def _is_wiring(name: str) -> bool:
    """Whether a macro has no value of its own: it is marked as required, or is another's alias.

    The operative config of a fine-tuning has INITIAL_CHECKPOINT_PATH = %INIT_CHECKPOINT, which an
    evaluation does not read.
    """
    return repr(gin_config._CONFIG[name, "gin.macro"]["value"]).startswith("%")


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


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a gin file, by the name that one asks for the file; no line for what is none."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclasses.dataclass(frozen=True)
class Origins:
    """Where a configuration comes from.

    Attributes:
      places: of each binding, the statement in force.
      files: name and path of each file, in the order read, included ones before what follows them.
    """

    places: dict[Key, Place]
    files: tuple[tuple[str, str], ...]

    def of_macro(self, name: str) -> Place:
        """Returns where a macro was set; what this program sets comes from the command line."""
        return self.places.get((name, "gin.macro", "value"), Place(COMMAND_LINE, 0))


def origins(parsed: Config) -> Origins:
    """Returns the places of all bindings of what `parse` has parsed."""
    places: dict[Key, Place] = {}
    files: dict[str, str] = {}
    with quiet_search():
        for name in parsed.files:
            for place, statement in _statements_of_file(name, files):
                _note(places, place, statement)
        command_line = Place(COMMAND_LINE, 0)
        for statement in _parser("\n".join(parsed.params)):
            _note(places, command_line, statement)
    return Origins(places, tuple(files.items()))


def _note(places: dict[Key, Place], place: Place, statement: Any) -> None:
    if not isinstance(statement, gin_parser.BindingStatement):
        return
    scope, selector, parameter, *_ = statement
    if not parameter:
        places["/".join(filter(None, (scope, selector))), "gin.macro", "value"] = place
        return
    # A binding to a name that is gone was left out.
    with contextlib.suppress(ValueError):
        key = gin_config.ParsedBindingKey.parse((scope, selector, parameter))
        places[key.scope_selector_arg] = place


def _statements_of_file(name: str, files: dict[str, str]) -> Iterator[tuple[Place, Any]]:
    path, reader = _found(name)
    files.setdefault(name, path)
    with reader(path) as file:
        for statement in _parser(file):
            if isinstance(statement, gin_parser.IncludeStatement):
                yield from _statements_of_file(statement.filename, files)
            else:
                yield Place(_short(name), statement.location.line_num), statement


def _short(name: str) -> str:
    """Returns a file's name as one would ask for it: without the folder that gin finds it in."""
    folders = [folder for folder in gin_config._LOCATION_PREFIXES if folder]
    inside = [name[len(f) :].lstrip("/") for f in folders if name.startswith(f.rstrip("/") + "/")]
    return min(inside, key=len, default=name)


def _parser(text: Any) -> gin_parser.ConfigParser:
    return gin_parser.ConfigParser(text, gin_config.ParserDelegate(skip_unknown=True))


def _found(name: str) -> tuple[str, Any]:
    """Returns the path that gin takes for a file's name, and what opens it."""
    folders = [""] if os.path.isabs(name) else gin_config._LOCATION_PREFIXES  # noqa: PTH117
    paths = (os.path.join(folder, name) for folder in folders)  # noqa: PTH118
    return next(
        (path, reader)
        for path in paths
        for reader, readable in gin_config._FILE_READERS
        if readable(path)
    )


def check_required(parsed: Config, *, but: Collection[str] = (), undefined: bool = True) -> None:
    """Checks that every macro that is read, or that this program asks for, has a value.

    What is marked as required and not needed is then None.

    Args:
      parsed: what `parse` returned.
      but: macros that may stay unset, as a flag says the same or nothing will ask for them.
      undefined: whether a macro that no file mentions, but reads, is missing as well.

    Raises:
      UserError: naming all that lack a value, each with the file and line that wants it.
    """
    read = macros_read()
    marked = {name for name in macro_names() if bound(f"%{name}", evaluate=False) is gin.REQUIRED}
    # Of a chain of macros only the end has to be set.
    ends = {name for name in marked if not marked & {*_referred(name)}}
    missing = ends & (read | READ_BY_CODE)
    if undefined:
        missing |= {name for name in read if not macro_defined(name)}
    if missing - set(but):
        raise UserError(_needs(sorted(missing - set(but)), parsed))
    for name in ends:
        gin.bind_parameter(f"%{name}", None)


def _referred(name: str) -> list[str]:
    return list(macros_within(gin_config._CONFIG[name, "gin.macro"]["value"]))


def _needs(missing: list[str], parsed: Config) -> str:
    places = origins(parsed).places
    each = [f"{name} ({_wanted_at(name, places)})" for name in missing]
    listed = " and ".join(filter(None, [", ".join(each[:-1]), each[-1]]))
    them = "it" if len(missing) == 1 else "them"
    how = " ".join(f"--gin.{name}=..." for name in missing)
    return f"the gin configuration needs {listed}, and nothing sets {them}: {how}"


def _wanted_at(name: str, places: dict[Key, Place]) -> str:
    marked = places.get((name, "gin.macro", "value"))
    if marked:
        return str(marked)
    readers = (
        places.get((scope, selector, parameter))
        for (scope, selector), parameters in gin_config._CONFIG.items()
        for parameter, value in parameters.items()
        if name in macros_within(value)
    )
    return str(next(filter(None, readers), "no file"))
