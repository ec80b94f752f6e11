"""Parses gin files and `--gin_param`s strictly: an unknown name is an error or is reported.

gin searches files in the working directory, then in the folders that the user names, then in the
`gin/` folders of this project, T5 and Mesh TensorFlow. The first match is used. Mesh TensorFlow's
`defaults.gin` is always parsed first, then the user's files, and then the parameters. The user's
files keep their order, except that `in_order` puts the model's file before the run's.

    parsed = parse(["dataset.gin", "models/t5.1.1.tiny.gin"], ["MIXTURE_NAME = 't0_train'"])
    parsed.unread_macros        # such as ('tokens_per_batch',): bound, but never read
    check_required(parsed)      # UserError: needs TRAIN_STEPS (runs/pretrain.gin:25) ...
    origins(parsed)[("MIXTURE_NAME", "gin.macro", "value")]        # "the command line"

Public operative configs bind values to some names that only exist in older releases. `DEPRECATED`
lists these names. Their bindings are skipped and reported. If the user must set a macro, the gin
file says `NAME = %gin.REQUIRED`.

gin stores values, but not where they were set. Therefore the parser keeps the statements with their
locations. If several statements bind the same parameter, the last statement takes effect.
"""

import contextlib
import dataclasses
import functools
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0 import compat
from t0.compat import gin, gin_config, gin_parser, t5_mesh
from t0.config.bindings import bound, macro_defined, macro_names, macros_read, macros_within
from t0.config.gin_errors import explain_errors
from t0.config.gin_files import defaults_file, in_order, quiet_search, resolved_names, search_path
from t0.config.t5x_names import T5X, StatementParser
from t0.errors import UserError, nearest

# Name in an old config -> the reason why its bindings can be skipped.
DEPRECATED: dict[str, str] = {
    **dict.fromkeys(t5_mesh.DEPRECATED_GIN_REFERENCES, "t5 lists it as removed"),
    "sentencepiece_vocabulary.SentencePieceVocabulary": "the vocabulary comes from the tasks",
    "t5.data.sentencepiece_vocabulary.SentencePieceVocabulary": "the vocabulary comes from tasks",
    "get_default_vocabulary": "the vocabulary comes from the tasks; see --vocab",
    "t5.data.get_default_vocabulary": "the vocabulary comes from the tasks; see --vocab",
}

# Macros that our code or T5's code reads from gin by name.
_READ_BY_CODE = {"MIXTURE_NAME", "MODEL_DIR"}
COMMAND_LINE = "the command line"
# The key of a binding is (scope, full name of the function, parameter). The key of a macro is
# (NAME, "gin.macro", "value").
Key = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Config:
    """The result of parsing a configuration. The bindings themselves are in gin's global state.

    Attributes:
      deprecated: the deprecated names that the files bind. These bindings were skipped.
      unread_macros: macros that the user set, but that no binding reads.
      statements: the statements of all files and then of the command line, in reading order.
      skipped: name of a skipped setting of T5X -> the reason.
    """

    deprecated: tuple[str, ...]
    unread_macros: tuple[str, ...]
    statements: Sequence[Any] = ()
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)


def parse(
    gin_files: Sequence[str],
    gin_params: Sequence[str],
    *,
    location_prefixes: Sequence[str] = (),
    also_deprecated: Iterable[str] = (),
    skip_all_unknown: bool = False,
    working_directory: bool = True,
) -> Config:
    """Parses `defaults.gin`, the files and the parameters into gin's global configuration.

    The configuration is not finalised, so that `gin.bind_parameter` can still add bindings.

    Args:
      gin_files: paths, or names to search for.
      gin_params: bindings such as "run.train_steps = 100".
      location_prefixes: folders to search before this project's folder.
      also_deprecated: names whose bindings are skipped, in addition to `DEPRECATED`.
      skip_all_unknown: whether to skip all bindings to unknown names.
      working_directory: whether to search the working directory first. If not, relative names are
        only searched in the other folders.

    Raises:
      UserError: a file is missing, there is a syntax error, a name is unknown (the message suggests
        similar names), or nothing reads a macro of `gin_params` and the name of another macro is
        similar.
    """
    folders = search_path(location_prefixes)
    statements: list[Any] = []
    skipped: dict[str, str] = {}
    # gin itself only appends to its list of folders. Without this assignment, gin would also search
    # the folders of the first configuration for a second configuration.
    gin_config._LOCATION_PREFIXES[:] = [*([""] if working_directory else []), *folders]
    parser = functools.partial(
        StatementParser, folders=folders, statements=statements, skipped=skipped
    )
    files = in_order(resolved_names(gin_files, location_prefixes))
    skip: Any = True if skip_all_unknown else _Deprecated({*DEPRECATED, *also_deprecated})
    with (
        explain_errors(folders, gin_params),
        quiet_search(),
        compat.replaced("gin_parser.ConfigParser", parser),
    ):
        gin.parse_config_file(defaults_file())
        macros_before = set(macro_names())
        gin.parse_config_files_and_bindings(
            files, list(gin_params), skip_unknown=skip, finalize_config=False
        )
    new_macros = set(macro_names()) - macros_before
    deprecated = () if skip_all_unknown else tuple(sorted(skip.looked_up))
    unread = {name for name in new_macros - macros_read() - _READ_BY_CODE if not _is_alias(name)}
    parsed = Config(deprecated, tuple(sorted(unread)), statements, skipped)
    for name, _, _ in command_line_bindings(parsed):
        if name in unread and not skip_all_unknown and (close := _similar_macro(name)):
            raise UserError(f"no gin file reads the macro '{name}'. Did you mean {close}?")
    return parsed


def _similar_macro(name: str) -> str | None:
    """Returns the macro whose name was probably misspelled as `name`.

    Returns None if T5X or another of our gin files has `name`, for example in another mode.
    """
    close = nearest(name, {*T5X, *macros_read(), *_READ_BY_CODE}, 1, 0.8)
    if not close or name in T5X:
        return None
    reference = re.compile(rf"%{re.escape(name)}\b")
    files = (path for folder in search_path() for path in Path(folder).rglob("*.gin"))
    return None if any(reference.search(path.read_text("utf-8")) for path in files) else close[0]


class _Deprecated(set):
    """A set of deprecated names, which gin receives as `skip_unknown`.

    The attribute `looked_up` has the deprecated names that gin has looked up. The set is false in a
    condition, because gin hides failed imports if `skip_unknown` is true.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.looked_up: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            self.looked_up.add(str(name))
            return True
        return False

    def __bool__(self) -> bool:
        return False


def _is_alias(name: str) -> bool:
    """Returns whether the value of a macro is another macro or `%gin.REQUIRED`.

    It is not a mistake if no binding reads such a macro. For example, the operative config of a
    fine-tuning run has INITIAL_CHECKPOINT_PATH = %INIT_CHECKPOINT, which an evaluation does not
    read.
    """
    return repr(gin_config._CONFIG[name, "gin.macro"]["value"]).startswith("%")


def print_findings(config: Config) -> None:
    """Prints deprecated names and unread macros to standard error, one per line."""
    for name in config.deprecated:
        reason = DEPRECATED.get(name, "named on the command line")
        print(f"gin: skipped the deprecated name '{name}' ({reason})", file=sys.stderr)
    for name, reason in config.skipped.items():
        print(f"gin: skipped T5X's '{name}' ({reason})", file=sys.stderr)
    for name in config.unread_macros:
        close = _similar_macro(name)
        hint = f". Did you mean {close}?" if close else ""
        print(f"gin: nothing reads the macro '{name}': it has no effect{hint}", file=sys.stderr)


def origins(parsed: Config) -> dict[Key, str]:
    """Returns where each binding was set: "runs/eval.gin:57", or `COMMAND_LINE`."""
    return _locations_by_key(parsed.statements)


def command_line_bindings(parsed: Config) -> dict[Key, str]:
    """Returns the bindings on the command line, which override bindings in files."""
    return _locations_by_key(x for x in parsed.statements if not x.location.filename)


def _locations_by_key(statements: Iterable[Any]) -> dict[Key, str]:
    locations: dict[Key, str] = {}
    for statement in statements:
        if not isinstance(statement, gin_parser.BindingStatement):
            continue
        scope, selector, parameter, *_ = statement
        if not parameter:
            scope, selector, parameter = f"{scope}/{selector}".lstrip("/"), "gin.macro", "value"
        # Bindings to deprecated names were skipped.
        with contextlib.suppress(ValueError):
            key = gin_config.ParsedBindingKey.parse((scope, selector, parameter))
            locations[key.scope_selector_arg] = _describe_location(statement.location)
    return locations


def _describe_location(location: Any) -> str:
    """Returns the file and line of a statement, without the folder in which gin finds the file."""
    path = location.filename
    if not path:
        return COMMAND_LINE
    folders = [f"{folder}/" for folder in gin_config._LOCATION_PREFIXES if folder]
    inside = [path.removeprefix(f).lstrip("/") for f in folders if path.startswith(f)]
    return f"{min(inside, key=len, default=path)}:{location.line_num}"


def check_required(
    parsed: Config, *, except_for: Collection[str] = (), undefined: bool = True
) -> None:
    """Checks that every macro has a value if a binding or this program reads the macro.

    If nothing reads a required macro, its value becomes None.

    Args:
      parsed: the result of `parse`.
      except_for: macros that need no value, because a flag replaces them or nothing reads them.
      undefined: whether to also report macros that a binding reads but no file defines.

    Raises:
      UserError: some macros have no value. The message names each of these macros, and the file and
        line that reads it.
    """
    read = macros_read()
    required_macros = {
        name for name in macro_names() if bound(f"%{name}", evaluate=False) is gin.REQUIRED
    }
    # In a chain of macros, only the last macro needs a value.
    unset_macros = {
        name for name in required_macros if not required_macros & {*_referenced_macros(name)}
    }
    missing = unset_macros & (read | _READ_BY_CODE)
    if undefined:
        missing |= {name for name in read if not macro_defined(name)}
    if missing - set(except_for):
        raise UserError(_describe_missing(sorted(missing - set(except_for)), parsed))
    for name in unset_macros:
        gin.bind_parameter(f"%{name}", None)


def _referenced_macros(name: str) -> list[str]:
    return list(macros_within(gin_config._CONFIG[name, "gin.macro"]["value"]))


def _describe_missing(missing: list[str], parsed: Config) -> str:
    locations = origins(parsed)
    described = [f"{name} ({_describe_reader(name, locations)})" for name in missing]
    joined = " and ".join(filter(None, [", ".join(described[:-1]), described[-1]]))
    pronoun = "it" if len(missing) == 1 else "them"
    flags = " ".join(f"--gin.{name}=..." for name in missing)
    return f"the gin configuration needs {joined}, and nothing sets {pronoun}: {flags}"


def _describe_reader(name: str, locations: dict[Key, str]) -> str:
    marked = locations.get((name, "gin.macro", "value"))
    readers = (
        locations.get((scope, selector, parameter))
        for (scope, selector), parameters in gin_config._CONFIG.items()
        for parameter, value in parameters.items()
        if name in macros_within(value)
    )
    return marked or next(filter(None, readers), "no file")


_TRAINING = ("train",)
_RANKING = ("score_eval", "eval")
# Function of this project that gin configures -> the modes that call the function. If a function is
# not in this table, the tasks or the macros of run files call it in every mode.
READ_IN = {
    "t0.adapter": _TRAINING,
    "t0.apply_updates": _TRAINING,
    "t0.choice_losses": _TRAINING,
    "t0.evaluation": _RANKING,
    "t0.infer": ("infer",),
    "t0.keep_checkpoints": _TRAINING,
    "t0.packing": _TRAINING,
    "t0.row_predictions": ("infer",),
    "t0.stream": _TRAINING,
    "t0.score_eval": _RANKING,
    "t0.task_metrics": _TRAINING,
    "t0.train_dataset_fn": _TRAINING,
    "t0.train_loop": _TRAINING,
}


def find_unread_params(parsed: Config, mode: str) -> list[str]:
    """Describes the command-line bindings that a mode does not read, one line per binding.

    Bindings in files are ignored, because a saved configuration also has the bindings of other
    modes. Bindings to functions of Mesh TensorFlow and T5 are also ignored.
    """
    referenced = {
        reference.configurable.selector
        for reference in gin_config.iterate_references(gin_config._CONFIG)
    }
    lines = []
    for _, selector, parameter in command_line_bindings(parsed):
        name = f"{selector.removeprefix('t0.')}.{parameter}"
        modes = READ_IN.get(selector, (mode,))
        if mode not in modes:
            mode_names = " and ".join(f"'{reference}'" for reference in modes)
            lines.append(f"{name} is read in mode {mode_names} only: it has no effect here")
        elif _is_chosen(selector) and (mode not in _TRAINING or selector not in referenced):
            lines.append(
                f"{name} has no effect here: @{selector} is for training, and no parameter such "
                "as run.optimizer or run.learning_rate_schedule names it"
            )
    return lines


def _is_chosen(selector: str) -> bool:
    """Returns whether a function is our optimizer or schedule, which training calls if bound."""
    passed = gin_config._REGISTRY[selector].denylist or ()
    return selector.startswith("t0.") and (
        selector.endswith("Optimizer") or "total_train_steps" in passed
    )
