"""Defines the arguments that several commands share.

add_shared(parser, "data_dir", "vocab", "json")
parser.add_argument("--ngrams", default="13,8", action=JoinedList)
parser.add_argument("--rows", action=Number, kind=Positive)               # --rows=0 is refused
parser.parse_args(["--ngrams=5", "--ngrams=13,8"]).ngrams                 # "5,13,8"
"""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from t0.config.flag_table import CACHE_FLAGS
from t0.config.plain_data import Positive, read_plain
from t0.config.specification import BASES
from t0.errors import UserError


class JoinedList(argparse.Action):
    """Joins the values of a repeated flag with commas, because argparse keeps only the last."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Adds the value of one occurrence of the flag. The first value replaces the default."""
        before = getattr(namespace, self.dest)
        first = not before or before is self.default
        setattr(namespace, self.dest, values if first else f"{before},{values}")


class Number(argparse.Action):
    """Reads a number, and refuses one that is out of range.

    Args:
      kind: its type, such as `t0.config.plain_data.Positive`.
    """

    def __init__(self, *args: Any, kind: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._kind = kind

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Reads the value of one occurrence of the flag.

        Raises:
          UserError: the value is not a number of this kind.
        """
        number = values
        for read in (float, int):  # an integer stays one, however large
            with contextlib.suppress(ValueError):
                number = read(values)
        try:
            setattr(namespace, self.dest, read_plain(number, self._kind, option_string))
        except ValueError as error:
            raise UserError(str(error)) from None


# Name of an argument -> keywords for `add_argument`.
_SHARED: dict[str, dict[str, Any]] = {
    "data_dir": {"action": "append", "help": "a folder with your own datasets (T0_DATA_DIR)"},
    "skip_bad_rows": {
        "action": "store_true",
        "help": "skip and count rows with half of a surrogate pair (T0_SKIP_BAD_ROWS=1)",
    },
    "vocab": {"help": "SentencePiece model (default: T0_VOCAB)"},
    "module_import": {"action": "append", "help": "module to import (default t0.seqio_tasks)"},
    "cache_dirs": {
        "default": "",
        "action": JoinedList,
        "dest": "cache_dirs",
        "metavar": "DIR,DIR",
        "help": "folders with cached tasks, comma-separated",
    },
    "split": {"default": "validation", "help": "the split (default: validation)"},
    "quiet": {"action": "store_true", "help": "print results, notes and warnings, but no progress"},
    "json": {"action": "store_true", "help": "print JSON instead of a table"},
    "adapter": {
        "action": "append",
        "metavar": "DIR",
        "help": "an adapter to merge into the weights: a folder of PEFT, or a run that trained one",
    },
    "base": {
        "choices": BASES,
        "help": "with --adapter: type of the base's projections (default: as it was trained)",
    },
    "num_fewshot": {
        "action": Number,
        "kind": Positive,
        "metavar": "K",
        "help": "put K training rows with their targets before each input of a prompted task",
    },
    "fewshot_options": {
        "metavar": "JSON",
        "help": 'other settings of --num_fewshot, such as \'{"seed": 1, "balance": "labels"}\'',
    },
    "batch_tokens": {
        "action": Number,
        "kind": Positive,
        "metavar": "N",
        "help": "maximum number of tokens per batch",
    },
    "activation_dtype": {"default": "float32", "choices": ["auto", "float32", "bfloat16"]},
    "engine": {
        "default": "auto",
        "choices": ["auto", "tensorflow", "torch"],
        "help": "what computes: auto is PyTorch if it is installed and sees a GPU, else TensorFlow",
    },
    "device": {
        "default": "auto",
        "choices": ["auto", "cuda", "cpu"],
        "help": "PyTorch's device (default: auto, CUDA if there is a GPU)",
    },
}


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds the shared arguments `names`. An argument has the same meaning in every command."""
    for name in names:
        spellings = CACHE_FLAGS if name in CACHE_FLAGS else (name,)
        parser.add_argument(*(f"--{each}" for each in spellings), **_SHARED[name])


def apply_shared(args: argparse.Namespace) -> None:
    """Applies the shared flags --data_dir and --skip_bad_rows to this process."""
    if getattr(args, "data_dir", None):
        from t0.sources import set_data_dirs

        set_data_dirs(args.data_dir)
    if getattr(args, "skip_bad_rows", False):
        from t0.sources import skip_bad_rows

        skip_bad_rows()


def few_shot_of(args: argparse.Namespace) -> Any:
    """Returns the `FewShot` of --num_fewshot and --fewshot_options; None for zero-shot prompts.

    Raises:
      UserError: an option is unknown or has a wrong value.
    """
    from t0.files.untrusted import parsed_json
    from t0.prompts.few_shot import MIXTURE_OPTIONS, read_few_shot

    options = {}
    if args.fewshot_options is not None:
        try:
            options = parsed_json(args.fewshot_options)
        except ValueError as error:
            raise UserError(f"--fewshot_options is not JSON: {error}") from error
        if not isinstance(options, dict) or args.num_fewshot is None:
            expected = 'an object, such as {"seed": 1}, and --num_fewshot=K'
            raise UserError(f"--fewshot_options={args.fewshot_options:.80}: expected {expected}")
    if args.num_fewshot is None:
        return None
    where, exclude = "--fewshot_options", MIXTURE_OPTIONS
    return read_few_shot(args.num_fewshot, options, where, exclude=exclude)


def apply_starter_folder(args: argparse.Namespace, settings: Any) -> None:
    """Takes the data folder and the vocabulary from a starter folder, if no flags set them."""
    args.data_dir = args.data_dir or [settings.path("data")]
    args.vocab = args.vocab or settings.vocabulary
    apply_shared(args)


def find_starter_tasks(args: argparse.Namespace, name: str) -> Any:
    """Applies a starter folder if an argument names it or its tasks.

    Args:
      args: the arguments of a command.
      name: the argument with a regular expression of tasks. If it names a starter folder, it
        becomes a regular expression of the folder's tasks.

    Returns:
      the settings of the starter folder; None if the argument names neither a starter folder nor
      its tasks.
    """
    from t0.config.starter_settings import find_starter_folder

    word = getattr(args, name)
    settings = find_starter_folder(word) if word else None
    if settings is None:
        return None
    if Path(word) in map(Path, (settings.name, settings.folder)):
        setattr(args, name, f"{settings.name}_.*")
    elif not word.startswith(settings.name):
        return None  # the working directory is in the folder, but `word` names other tasks
    apply_starter_folder(args, settings)
    return settings


def split_list(text: str | None) -> list[str]:
    """Returns the values of a comma-separated list, without empty values."""
    return [value.strip() for value in (text or "").split(",") if value.strip()]


def make_working_directory_importable() -> None:
    """Makes modules in the working directory importable, for --module_import and gin's `import`.

    Python searches the working directory for `python -m`, but not for installed commands. Here, the
    working directory is searched after all installed packages, because a folder in it may have the
    same name as a package, such as gin or datasets.
    """
    working_directory = os.getcwd()  # noqa: PTH109 (in the form of Python's own entries)
    if not {working_directory, ""} & set(sys.path):
        sys.path.append(working_directory)
