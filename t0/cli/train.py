"""`t0 train`: trains a checkpoint of any format on a mixture, without gin files.

t0 train --checkpoint=google/flan-t5-small --mixture=reviews_train --steps=500 --output=reviews/new
t0 train --checkpoint=bigscience/T0_3B --mixture=reviews_train --adapter=lora --epochs=3 --output=run
t0 train --config=run.yaml --seed=1 --set=run.keep_checkpoint_max=2

It prints the same run as a command of `t5_mesh_transformer`, and runs this command. The sizes of
the model come from the checkpoint, and the vocabulary too if the checkpoint has one. If the output
folder is in a folder of `t0 init`, data, vocabulary, lengths and cache come from this folder. The
same command resumes a run. Steps are counted from the checkpoint.
"""

import argparse
import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from t0.cli.arguments import JoinedList, Number, add_shared, apply_starter_folder, split_list
from t0.config.plain_data import BelowOne, Count, NotNegative, Positive
from t0.config.specification import BASES
from t0.errors import UserError, install_command, printable
from t0.progress import ProgressLine


class _Recipe(NamedTuple):
    """What --adapter chooses.

    Attributes:
      gin_file: the run file.
      learning_rate: the gin parameter of its learning rate.
      bindings: gin parameter -> value, if it differs from the run file's.
    """

    gin_file: str
    learning_rate: str
    bindings: Mapping[str, Any] = {}


_PLAIN_LOSS = {
    f"choice_losses.{name}": 0.0 for name in ("likelihood", "unlikelihood", "length_normalized")
}
_PEAK = "t0.linear_with_warmup.peak"
# --adapter -> its recipe; None for training all weights.
_RECIPES = {
    None: _Recipe("runs/finetune.gin", "constant_learning_rate.learning_rate"),
    "lora": _Recipe("runs/lora.gin", _PEAK),
    "ia3": _Recipe("runs/tfew.gin", _PEAK, _PLAIN_LOSS),
    "tfew": _Recipe("runs/tfew.gin", _PEAK),
}
# Our flag -> the gin parameter or macro that it sets.
_BINDINGS = {
    "mixture": "MIXTURE_OR_TASK_NAME",
    "batch_size": "BATCH_SIZE",
    "dropout": "DROPOUT_RATE",
    "eval_every": "EVAL_PERIOD",
    "save_every": "run.save_checkpoints_steps",
}
# Our flag -> the flag of `t5_mesh_transformer` with the same value.
_FLAGS = {
    "output": "model_dir",
    "steps": "finetune_steps",
    "epochs": "epochs",
    "seed": "seed",
    "activation_dtype": "activation_dtype",
    "base": "base",
    "data_dir": "data_dir",
}
_SETTING = re.compile(r"[A-Za-z_][\w./]*\s*=\s*\S.*", re.S)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    checkpoint = "the weights to start from: any format, or a name on the Hugging Face hub"
    add("--checkpoint", required=True, help=checkpoint)
    add("--mixture", required=True, help="a mixture or a task, as `t0 tasks` lists them")
    add("--output", required=True, metavar="DIR", help="the model directory of the run")
    length = parser.add_mutually_exclusive_group(required=True)
    steps = "number of steps after the checkpoint"
    length.add_argument("--steps", action=Number, kind=Positive, metavar="N", help=steps)
    epochs = "passes over the mixture's examples, instead of --steps"
    length.add_argument("--epochs", action=Number, kind=NotNegative, metavar="N", help=epochs)
    adapter = (
        "train an adapter with PyTorch instead of all weights; tfew: (IA)3 with T-Few's losses"
    )
    add("--adapter", choices=[name for name in _RECIPES if name], help=adapter)
    base = "type of an adapter's frozen weights; nf4: 4 bits, int8: 8 bits (default: full)"
    add("--base", choices=BASES, help=base)
    rate = "learning rate, with an adapter the highest one (default: the run file's)"
    add("--lr", action=Number, kind=NotNegative, metavar="RATE", help=rate)
    batch = "sequences per step (default: 128, for lora 32, for ia3 and tfew 8)"
    add("--batch_size", action=Number, kind=Positive, metavar="N", help=batch)
    add("--dropout", action=Number, kind=BelowOne, metavar="RATE", help="dropout rate")
    add("--seed", action=Number, kind=Count, help="seed of data order and dropout (default: 0)")
    validation = "steps between validations (default: no validation)"
    add("--eval_every", action=Number, kind=Positive, metavar="N", help=validation)
    saving = "steps between checkpoints (default: the run file's)"
    add("--save_every", action=Number, kind=Positive, metavar="N", help=saving)
    lengths = "maximum tokens per text (default: the starter folder's, or inputs=1024,targets=256)"
    add("--lengths", default="", action=JoinedList, help=lengths)
    setting = "set any gin parameter or macro, such as run.keep_checkpoint_max=2; repeatable"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=setting)
    add("--vocab", help="SentencePiece model (default: the checkpoint's own)")
    precision = "type of activations (default: auto, bfloat16 if the machine computes it fast)"
    add("--activation_dtype", choices=["auto", "float32", "bfloat16"], help=precision)
    add_shared(parser, "engine", "device")
    add_shared(parser, "data_dir", "skip_bad_rows", "cache_dirs", "module_import", "quiet")


def main(args: argparse.Namespace) -> int:
    """Prints the equivalent command of `t5_mesh_transformer`, and runs it.

    Raises:
      UserError: a setting is wrong, or the run fails for another known reason.
    """
    _check(args)
    if args.adapter and not importlib.util.find_spec("torch"):
        raise UserError(
            f"--adapter={args.adapter} needs PyTorch, which is not installed: "
            f"{install_command('torch')}"
        )
    _apply_starter_folder(args)
    engine = _choose_engine(args)  # before a model is downloaded
    words = command_words(args, engine, *_describe_checkpoint(args))
    from t0.cli import mesh_transformer

    with ProgressLine.hidden(hides=args.quiet):
        print("the same run as a command of t5_mesh_transformer:")
        print(" \\\n    ".join(map(_quoted, words)), flush=True)
        mesh_transformer.main(words)
    return 0


def _quoted(word: str) -> str:
    """Quotes a word for a shell, in double quotes if it is a gin binding of a text."""
    plain = "'" in word and not re.search(r'["$`\\!]', word)
    return printable(f'"{word}"' if plain else shlex.quote(word))


def planned_words(config: str, folder: str) -> list[str]:
    """Returns the flags of `t5_mesh_transformer` for the run of a config file, for `t0 plan`.

    Args:
      config: the YAML file.
      folder: an empty folder, for the gin file of the model.

    Raises:
      UserError: a setting is wrong, or the checkpoint cannot be read.
    """
    from t0.cli.verb_parser import VerbParser

    args = VerbParser("train", "trains", sys.modules[__name__]).parse([f"--config={config}"])
    _check(args)
    _apply_starter_folder(args)
    args.output = folder
    if args.epochs is not None:
        note = "note: the steps of --epochs depend on the data, so 1,000 steps are planned"
        print(note, file=sys.stderr)
        args.epochs, args.steps = None, 1000
    # The plans are of GPUs and TPUs, and this command trains on no TPU.
    engine = "tensorflow" if args.engine == "tensorflow" else "torch"
    words = command_words(args, engine, *_describe_checkpoint(args))[1:]
    # A plan runs on no device. T0's own tasks set nothing in gin, and take seconds to register.
    unread = ("--device=", "--module_import=t0.seqio_tasks")
    return [word for word in words if not word.startswith(unread)]


def command_words(
    args: argparse.Namespace, engine: str, gin_file: str, vocabulary: str | None
) -> list[str]:
    """Returns the command line of `t5_mesh_transformer` for a run.

    Args:
      args: the arguments of `t0 train`.
      engine: "tensorflow" or "torch".
      gin_file: the gin file of the model.
      vocabulary: the path of a SentencePiece model; None for T5's public one.
    """
    from t0.catalogue.row_preview import T0_LENGTHS, parse_lengths
    from t0.cli.mesh_transformer import COMMAND
    from t0.config import flags

    recipe, caches = _RECIPES[args.adapter], split_list(args.cache_dirs)
    bindings = {
        **recipe.bindings,
        **{name: getattr(args, ours) for ours, name in _BINDINGS.items()},
        recipe.learning_rate: args.lr,
        "TASK_FEATURE_LENGTHS": {**T0_LENGTHS, **parse_lengths(args.lengths)},
        "USE_CACHED_TASKS": bool(caches) or None,
    }
    bindings = {name: value for name, value in bindings.items() if value is not None}
    values = {
        "engine": "torch" if engine == "torch" else None,
        "module_import": args.module_import or ["t0.seqio_tasks"],
        "additional_task_cache_dirs": caches or None,
        "skip_bad_rows": args.skip_bad_rows or None,
        "gin_file": [gin_file, recipe.gin_file],
        "gin_param": [*flags.bindings_of(bindings), *args.set],
        "checkpoint": args.checkpoint,
        "vocab": vocabulary,
        **{theirs: getattr(args, ours) for ours, theirs in _FLAGS.items()},
    }
    values = {name: value for name, value in values.items() if value is not None}
    words = [COMMAND, *flags.words_of(flags.from_values(values))]
    return words + ([f"--device={args.device}"] if args.device != "auto" else [])


def _check(args: argparse.Namespace) -> None:
    """Checks the flags before anything is read."""
    from t0.catalogue.row_preview import parse_lengths

    parse_lengths(args.lengths)
    for setting in args.set:
        if not _SETTING.fullmatch(setting):
            raise UserError(
                f"--set={setting}: expected NAME=VALUE with a gin parameter or macro, such as "
                "--set=run.keep_checkpoint_max=2"
            )
    if "://" in args.output:
        raise UserError(
            f"--output={args.output}: expected a local folder. For a bucket, use "
            "t5_mesh_transformer --model_dir"
        )
    if args.base and not args.adapter:
        raise UserError(
            f"--base={args.base} is for the frozen weights of an adapter: add --adapter=lora, or "
            "leave out --base"
        )
    if args.adapter and args.engine == "tensorflow":
        raise UserError(
            f"--adapter={args.adapter} --engine=tensorflow: only PyTorch trains adapters; leave "
            "out --engine"
        )


def _apply_starter_folder(args: argparse.Namespace) -> None:
    """Sets the flags that the user left out to the values of the output's starter folder."""
    from t0.catalogue.row_preview import lengths_text
    from t0.config.starter_settings import find_starter_folder

    settings = find_starter_folder(args.output)
    if settings is None:
        return
    apply_starter_folder(args, settings)
    args.lengths = f"{lengths_text(settings.lengths)},{args.lengths}"  # the later ones count
    if not args.cache_dirs and Path(settings.path("cache")).is_dir():
        args.cache_dirs = settings.path("cache")


def _describe_checkpoint(args: argparse.Namespace) -> tuple[str, str | None]:
    """Writes the model's gin file into the output folder; sets args.checkpoint to a local path.

    Returns:
      the paths of the gin file and of the vocabulary, which is None if there is none.

    Raises:
      UserError: there is no checkpoint, or the folder has a run that began from another one.
    """
    from t0.checkpoints import prepared_checkpoint
    from t0.files import paths, publishing

    path, source = prepared_checkpoint.locate(args.checkpoint)
    args.checkpoint = path
    output = Path(args.output)
    with tempfile.TemporaryDirectory() as staging:  # until the gin files are compared
        checkpoint = prepared_checkpoint.find(path, source, Path(staging), vocabulary=args.vocab)
        staged, vocabulary = checkpoint.describe()
        gin_file = output / Path(staged).name
        if gin_file.exists() and paths.read_bytes(str(gin_file)) != paths.read_bytes(staged):
            raise UserError(
                f"{gin_file} describes another model than {path}: choose another --output, or "
                "remove the folder"
            )
        vocabulary = args.vocab or vocabulary
        with publishing.writing(args.output):
            output.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(staged, gin_file)
            if vocabulary and Path(vocabulary).parent == Path(staging):
                vocabulary = shutil.copy(vocabulary, output)
    return str(gin_file), vocabulary


def _choose_engine(args: argparse.Namespace) -> str:
    from t0.run.models import choose_engine

    return choose_engine("torch" if args.adapter else args.engine, args.device)
