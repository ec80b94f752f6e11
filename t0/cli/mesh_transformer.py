r"""`t5_mesh_transformer`: trains, evaluates and decodes; takes every flag of T5's command.

    t5_mesh_transformer --model_dir=/tmp/tiny --module_import=t0.seqio_tasks \
      --additional_task_cache_dirs=/tmp/cache --gin_file=dataset.gin \
      --gin_file=models/t5.1.1.tiny.gin --gin_param="MIXTURE_NAME = 't0_train'"

Without `--tpu` it runs on this machine. Nothing heavy is imported before the flags are parsed.
With `--engine=torch` this process trains with PyTorch, and also takes the flags of
`python -m t0.torch`.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from t0.cli.arguments import make_working_directory_importable
from t0.config import flags
from t0.errors import interruptible, reported
from t0.files.publishing import folder_of_run

COMMAND = "t5_mesh_transformer"


def main(argv: Sequence[str]) -> None:
    """Runs the command line `argv`, whose first word is the command."""
    if {"--help", "-h", "-help", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(f"{__doc__}\nflags:\n{flags.command_flags().get_help(prefix='')}")
        return
    by_torch = _words_for_torch(argv[1:])
    if by_torch is not None:
        from t0.torch import __main__ as torch_engine

        torch_engine.main(by_torch)
        return
    given = flags.parse(argv)
    make_working_directory_importable()
    if given.vocab:
        os.environ["T0_VOCAB"] = given.vocab  # t5's own tasks read it while they are imported
    if not given.skip_all_gin_unknowns:
        from t0.config import early_checks

        early_checks.check(given.gin_file or [], given.gin_param or [], flags.gin_folders(given))
    with interruptible("nothing was computed yet, and the same command starts again"):
        from t0.run import command

        command.run(given, argv)


def _words_for_torch(words: Sequence[str]) -> list[str] | None:
    """Returns the words for `python -m t0.torch`; None if another engine runs.

    A specification is written, and a configuration listed, by Mesh TensorFlow's side for both.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--engine", nargs="?")
    found, rest = parser.parse_known_args(list(words))
    here = any(word.lstrip("-").partition("=")[0] in ("save_spec", "dry_run") for word in rest)
    return None if found.engine != "torch" or here else rest


def console_entry_point() -> None:
    """Runs the installed command."""
    with reported(COMMAND), folder_of_run():
        main(sys.argv)


if __name__ == "__main__":
    console_entry_point()
