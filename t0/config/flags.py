"""Parses and checks the flags of `t5_mesh_transformer`, which `t0.config.flag_table` declares.

    values = parse(["t5_mesh_transformer", "--model_dir=/models/tiny", "--seed=3"])
    values.model_dir                      # "/models/tiny"
    gin_parameters(values, "train")       # {"t0.train_loop.seed": (3, "--seed")}
    check_mode(values, "export")          # UserError: --seed belongs to ...

A gin binding in T5X's notation, --gin.NAME=VALUE, is read like --gin_param. Importing this module
is fast.
"""

import importlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from absl import logging as _  # noqa: F401 (defines --alsologtostderr and --verbosity)

from t0.config.flag_table import CACHE_FLAGS, LIBRARY_FLAGS, MESH_TYPE, MODEL_API_MODES, TABLE, Flag
from t0.errors import UserError, unknown_name

_IN_WORDS = {"train": "training", "infer": "inference (--gin_file=runs/infer.gin)"}
# The flags that a training run and `t0 eval` share and that select data or vocabulary.
_FOR_EVALUATION = ("module_import", CACHE_FLAGS[0], "allow_stale_cache", "data_dir")
_FOR_EVALUATION += ("skip_bad_rows", "vocab")
_STEPS = ("epochs", "finetune_steps")
_MODEL_API_STEPS = "; the Model API counts --train_steps, with --mode=finetune from a checkpoint"
_TPU_TYPE = f"; on a TPU the type is gin's {MESH_TYPE}"

# The names under which other training programs have a setting -> our flag.
_GUESSES = {
    "learning_rate lr": "--gin.constant_learning_rate.learning_rate=0.001",
    "lr_scheduler_type lr_scheduler": "--gin.run.learning_rate_schedule=@t0.cosine_with_warmup",
    "warmup_steps": "--gin.t0.cosine_with_warmup.warmup_steps=1000, for that schedule",
    "batch_size train_batch_size per_device_train_batch_size": "--gin.BATCH_SIZE=16 (sequences)",
    "train_steps max_steps num_train_steps": "--gin.TRAIN_STEPS=1000, or --finetune_steps=1000",
    "num_train_epochs num_epochs": "--epochs=3",
    "output_dir": "--model_dir=DIR",
    "model_name_or_path model": "--checkpoint=PATH",
    "max_length max_seq_length max_source_length max_target_length": "--gin.TASK_FEATURE_LENGTHS="
    "\"{'inputs': 512, 'targets': 64}\"",
    "mixture task dataset dataset_name": "--gin.MIXTURE_OR_TASK_NAME=\"'t0_train'\"",
    "train_file data": "--data_dir=DIR, a folder that `t0 init` writes",
    "tokenizer tokenizer_name": "--vocab=FILE",
    "bf16 fp16 dtype precision": "--activation_dtype=bfloat16",
    "gradient_accumulation_steps": "--gin.serialize_num_microbatches."
    "tokens_per_microbatch_per_replica=2048",
    "dropout": "--gin.DROPOUT_RATE=0.1",
    "optimizer optim": "--gin.run.optimizer=@t0.AdamWOptimizer",
    "save_steps": "--gin.run.save_checkpoints_steps=1000",
    "gpu device": "--engine=torch --device=cuda",
}

_CACHE_WORD = re.compile(rf"--?(?:{'|'.join(CACHE_FLAGS)})(?P<value>=.*)?", re.S)
_GIN_WORD = re.compile(r"--?gin\.(?P<name>[^=\s]*)\s*(?P<value>=.*)?", re.S)


class _RepeatableList(flags.Flag):
    """A flag with comma-separated values. If the flag is repeated, its lists are joined."""

    def parse(self, argument: Any) -> None:
        """Adds the values of one occurrence of the flag."""
        before = self.value if self.present else []
        super().parse(argument)
        self.value = [*before, *self.value]


def define_flags(table: Iterable[Flag]) -> flags.FlagValues:
    """Returns the flags of a table, separate from absl's global flags.

    The flags are separate because several commands define flags with the same names.
    """
    values = flags.FlagValues()
    for kind, name, default, text, choices, *_facts in table:
        if kind == "list":
            parsed = (flags.ListParser(), flags.CsvListSerializer(","), name, default, text)
            flags.DEFINE_flag(_RepeatableList(*parsed), flag_values=values)
        else:
            words = [list(choices), text] if choices else [text]
            getattr(flags, f"DEFINE_{kind}")(name, default, *words, flag_values=values)
    return values


def command_flags() -> flags.FlagValues:
    """Returns the flags of `t5_mesh_transformer`."""
    return define_flags(TABLE)


def advise(name: str) -> str | None:
    """Returns advice on how to set here what other training programs set with the flag `name`.

    >>> advise("num-epochs")
    'Use --epochs=3'
    """
    name = name.replace("-", "_").lower()
    ours = (flag for names, flag in _GUESSES.items() if name in names.split())
    return next((f"Use {flag}" for flag in ours), None)


def gin_words_as_params(words: Sequence[str]) -> Iterator[str]:
    """Yields the words of a command line, with `--gin.` words rewritten as --gin_param.

    The two rewritten forms are --gin.NAME=VALUE and --gin.NAME VALUE.

    >>> list(gin_words_as_params(["--gin.TRAIN_STEPS=5", "--gin.run.mode", "'eval'", "--tpu=t"]))
    ['--gin_param=TRAIN_STEPS=5', "--gin_param=run.mode='eval'", '--tpu=t']

    Raises:
      UserError: the name or the value of a `--gin.` word is missing.
    """
    rest = iter(words)
    for word in rest:
        binding = _GIN_WORD.fullmatch(word)
        if not binding:
            yield word
            continue
        value = binding["value"]
        if value is None:
            value = "=" + next(rest, "--")
        if not binding["name"] or value.startswith("=--"):
            raise UserError(f"{word} needs a name and a value, such as --gin.TRAIN_STEPS=1000")
        yield f"--gin_param={binding['name']}{value}"


def gin_folders(flag_values: flags.FlagValues) -> list[str]:
    """Returns the folders for gin files that the flags name, in search order."""
    return [*flag_values.gin_location_prefix, *flag_values.gin_search_paths]


def macros_set_by_flags(flag_values: flags.FlagValues) -> set[str]:
    """Returns the macros of run files that need no value, because a given flag replaces them."""
    return {macro for flag in TABLE if flag_values[flag.name].present for macro in flag.macros}


def parse(argv: Sequence[str]) -> flags.FlagValues:
    """Parses the command line, including absl's own flags.

    Raises:
      UserError: a flag is unknown (the message suggests similar flags), a value is invalid, or a
        word belongs to no flag.
    """
    flag_values = command_flags()
    words = parse_words(flag_values, list(gin_words_as_params(argv)), advise=advise)
    if words:
        raise UserError(f"unexpected argument '{words[0]}'; every setting is a --flag=value")
    return flag_values


def from_values(values: Mapping[str, Any]) -> flags.FlagValues:
    """Returns the flags of a run that another command describes, such as `t0 eval`.

    Args:
      values: flag -> its value, with the type that a parsed command line has. All other flags have
        their defaults.
    """
    flag_values = parse(["t0"])
    for name, value in values.items():
        flag = flag_values[name]
        flag.value, flag.present, flag.using_default_value = value, 1, False
    return flag_values


def words_of(flag_values: flags.FlagValues) -> list[str]:
    """Returns the words of a command line with the flags that were set."""
    words: list[str] = []
    for name in flag_values:
        flag = flag_values[name]
        if not flag.present:
            continue
        if isinstance(flag, flags.MultiFlag):  # a value may have several lines
            words += [f"--{name}={value}" for value in flag.value]
        else:
            words.append(flag.serialize())
    return [word for word in words if word]


def evaluation_words(flag_values: flags.FlagValues) -> tuple[str, ...]:
    """Returns the words with which `t0 eval` reads the data and the vocabulary of a training run.

    >>> evaluation_words(parse(["t5_mesh_transformer", "--seed=1", "--data_dir=a,b"]))
    ('--data_dir=a,b',)
    """
    words = words_of(flag_values)
    return tuple(word for word in words if word.partition("=")[0][2:] in _FOR_EVALUATION)


def bindings_of(values: Mapping[str, Any]) -> list[str]:
    """Returns the values of --gin_param that bind gin parameters and macros to values."""
    return [f"{name} = {value!r}" for name, value in values.items()]


def parse_words(
    flag_values: flags.FlagValues,
    argv: Sequence[str],
    advise: Callable[[str], str | None] = lambda name: None,
) -> list[str]:
    """Parses the flags in a command line, and returns the remaining words.

    The flags may be the command's own or absl's.

    Args:
      flag_values: the command's flags.
      argv: the command line.
      advise: a function that takes the name of an unknown flag and returns advice, or None.

    Raises:
      UserError: a flag is unknown (the message suggests similar flags), or a value is invalid.
    """
    for name in flags.FLAGS:
        flag = flags.FLAGS[name]
        if name not in flag_values and name == flag.name:  # a flag also registers its short name
            flag_values[name] = flag
    try:
        words = flag_values([_rename_cache_flag(word, flag_values) for word in argv])[1:]
    except flags.UnrecognizedFlagError as error:
        if advice := advise(error.flagname):
            raise UserError(f"there is no --{error.flagname}. {advice}") from None
        raise unknown_name(
            "flag", f"--{error.flagname}", [f"--{name}" for name in flag_values]
        ) from None
    except flags.Error as error:
        raise UserError(str(error)) from None
    flags.FLAGS.mark_as_parsed()
    return words


def _rename_cache_flag(word: str, flag_values: flags.FlagValues) -> str:
    """Replaces another name of the flag for folders with cached tasks by the command's own name."""
    match = _CACHE_WORD.fullmatch(word)
    own = next((name for name in CACHE_FLAGS if name in flag_values), None)
    return f"--{own}{match['value'] or ''}" if match and own else word


def activation_dtype(value: Any) -> str:
    """Converts an activation type that is bound in gin to a value of --activation_dtype.

    Raises:
      UserError: the type is not supported.
    """
    if value not in ("float32", "bfloat16"):
        raise UserError(
            f"get_variable_dtype.activation_dtype is {value!r}; expected 'float32' or 'bfloat16' "
            "(float16 overflows in T5 models)"
        )
    return value


def check_mode(flag_values: flags.FlagValues, mode: str) -> list[str]:
    """Checks that the run's mode reads all of this project's flags on the command line.

    Args:
      flag_values: the command's flags.
      mode: the value of `run.mode` or, in a run with --use_model_api, a value of `MODEL_API_MODES`.

    Returns:
      a line for each of T5's flags on the command line that the run does not read.

    Raises:
      UserError: the mode does not read one of our flags. The message names the modes that read it.
    """
    model_api = mode in MODEL_API_MODES.values()
    unread = {}
    for flag in TABLE:
        name, modes = flag.name, flag.modes
        if not flag_values[name].present:
            continue
        if modes and mode not in modes:
            raise UserError(
                f"--{name} belongs to {_describe_readers(modes, model_api)}; the mode is "
                f"'{mode.removeprefix('--mode=')}'"
                + (_MODEL_API_STEPS if model_api and name in _STEPS else "")
            )
        if flag.tpu == "never" and flag_values.tpu:
            advice = _TPU_TYPE if name == "activation_dtype" else ""
            raise UserError(f"--{name} is for runs without --tpu{advice}")
        if flag.tpu == "only" and not flag_values.tpu:
            unread[name] = "--tpu"
        if flag.api and not model_api:
            unread[name] = "--use_model_api"
        elif flag.api and mode.removeprefix("--mode=") not in flag.api:
            unread[name] = f"--mode={' or '.join(flag.api)}"
    return [
        f"--{name} is read with {reader} only: it has no effect here"
        + (f". {advice}" if not model_api and (advice := advise(name)) else "")
        for name, reader in unread.items()
        if flag_values[name].value != ""
    ]


def _describe_readers(modes: Collection[str], model_api: bool) -> str:
    """Describes the modes that read a flag.

    If `model_api` is True, only modes of the Model API are named. Otherwise, only values of
    `run.mode` are named.
    """
    same_kind = [mode for mode in modes if (mode in MODEL_API_MODES.values()) == model_api]
    words = [_IN_WORDS.get(mode, mode if model_api else f"mode '{mode}'") for mode in same_kind]
    return " and ".join(words) or "runs without --use_model_api"


def check_planned(flag_values: flags.FlagValues, command: str, more: Collection[str] = ()) -> None:
    """Checks that a command that plans or rehearses a run reads every flag that changes the run.

    Args:
      flag_values: the flags of `t5_mesh_transformer`.
      command: the command, such as "t0 plan".
      more: flags that this command reads, in addition to the flags that configure gin.

    Raises:
      UserError: a flag would change the run, but the command does not read it.
    """
    for flag in TABLE:
        name = flag.name
        is_set = flag_values[name].present and flag_values[name].value != ""
        if is_set and flag.plan == "refuses" and name not in more:
            raise UserError(
                f"{command} does not read --{name}, which changes a run. Leave it out, or set "
                "its gin parameter with --gin_param"
            )


def gin_parameters(flag_values: flags.FlagValues, mode: str) -> dict[str, tuple[Any, str]]:
    """Returns the gin parameters that the flags set in a mode: name -> (value, flag)."""
    return {
        flag.modes[mode]: (flag_values[flag.name].value, f"--{flag.name}")
        for flag in TABLE
        if flag_values[flag.name].present and flag.modes.get(mode)
    }


def set_library_flags(flag_values: flags.FlagValues) -> None:
    """Imports the libraries that read absl's global flags, and sets the flags that they read."""
    for name, module in LIBRARY_FLAGS.items():
        if flag_values[name].present:
            importlib.import_module(module)
            flags.FLAGS[name].value = flag_values[name].value
