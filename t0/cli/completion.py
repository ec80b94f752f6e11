"""`t0 completion SHELL`: prints the lines that complete verbs and flags of `t0` with the Tab key.

t0 completion bash >> ~/.bashrc
t0 completion zsh >> ~/.zshrc
t0 completion fish > ~/.config/fish/completions/t0.fish

These lines call `t0` again at each Tab. The package argcomplete reads the parsers of the verbs.
"""

import argparse
import importlib
import os
from collections.abc import Mapping

import argcomplete

from t0.cli.verb_parser import add_config

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that you use")


def main(args: argparse.Namespace) -> int:
    """Prints the lines."""
    print(argcomplete.shellcode(["t0"], shell=args.shell))
    return 0


def complete(verbs: Mapping[str, tuple[str, str]]) -> None:
    """Answers a shell that asks for the possible next words, and ends the process.

    Args:
      verbs: verb -> (its module, what it does). Only the module of the typed verb is imported.
    """
    parser = argparse.ArgumentParser(prog="t0")
    subparsers = parser.add_subparsers()
    words = os.environ["COMP_LINE"].split()
    for verb, (module_name, about) in verbs.items():
        subparser = subparsers.add_parser(verb, help=about)
        if verb in words[1:2]:
            importlib.import_module(module_name).add_arguments(subparser)
            add_config(subparser)
    argcomplete.autocomplete(parser)
