r"""`t5_mesh_transformer`: trains, evaluates and decodes. It accepts all flags of T5's command.

    t5_mesh_transformer --model_dir=/tmp/tiny --module_import=t0.seqio_tasks \
      --additional_task_cache_dirs=/tmp/cache --gin_file=dataset.gin \
      --gin_file=models/t5.1.1.tiny.gin --gin_param="MIXTURE_NAME = 't0_train'"

Without `--tpu`, it runs on this machine. With `--engine=torch`, it trains with PyTorch, and also
accepts the flags of `python -m t0.torch`. Large libraries are imported after the flags are parsed.
"""

import argparse
import sys
from collections.abc import Sequence

from t0.cli.run_flags import parse_run
from t0.config import flags
from t0.errors import interruptible, reported
from t0.files.publishing import folder_of_run

COMMAND = "t5_mesh_transformer"


def main(argv: Sequence[str]) -> None:
    """Runs the command line `argv`, whose first word is the command's name."""
    if {"--help", "-h", "-help", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(f"{__doc__}\nflags:\n{flags.command_flags().get_help(prefix='')}")
        return
    torch_words = _words_for_torch(argv[1:])
    if torch_words is not None:
        from t0.cli import torch_run

        torch_run.main(torch_words)
        return
    flag_values = parse_run(argv)
    with interruptible("nothing was computed yet; run the same command to start again"):
        from t0.run import command

        command.run(flag_values, argv)


def _words_for_torch(words: Sequence[str]) -> list[str] | None:
    """Returns the command line for `python -m t0.torch`; None for the engine Mesh TensorFlow.

    The result is also None for --save_spec and --dry_run, because the code of the Mesh TensorFlow
    engine handles these flags for both engines.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--engine", nargs="?")
    engine_flag, rest = parser.parse_known_args(list(words))
    uses_mesh = any(word.lstrip("-").partition("=")[0] in ("save_spec", "dry_run") for word in rest)
    return None if engine_flag.engine != "torch" or uses_mesh else rest


def console_entry_point() -> None:
    """Runs this command as the installed script does."""
    with reported(COMMAND), folder_of_run():
        main(sys.argv)


if __name__ == "__main__":
    console_entry_point()
