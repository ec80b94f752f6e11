"""The command `t0 <verb>`: finds the verb's module, parses its flags, runs it.

    t0 doctor --json
    t0 tasks 'super_glue_rte.*'

Each verb is a row of `VERBS`. The verb's module has `add_arguments(parser)`, and `main(args) ->
int`, which returns the exit status. It may also have `reworded(words)`, which rewrites words that
argparse cannot parse. The command lines in its docstring are the examples of `t0 help <verb>`. The
module is only imported if the user types its verb.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import t0
from t0.cli.arguments import apply_shared, make_working_directory_importable
from t0.cli.verb_parser import VerbParser
from t0.errors import UserError, reported, unknown_name
from t0.files.publishing import folder_of_run

VERBS = {
    "doctor": ("t0.cli.doctor", "checks the installation, and lists packages, devices and data"),
    "tasks": ("t0.cli.tasks", "lists tasks and mixtures, with counts, rates, splits and caches"),
    "convert": ("t0.cli.convert", "converts checkpoints: Mesh TensorFlow, Hugging Face, T5X"),
    "plan": ("t0.cli.plan", "estimates memory, communication and time of a run on TPUs or GPUs"),
    "rehearse": ("t0.cli.rehearse", "runs a TPU run's program on virtual cores of this machine"),
    "init": ("t0.cli.init", "writes a starter folder for your own data, and prints five commands"),
    "show": ("t0.cli.show", "shows rendered rows with token counts and truncation"),
    "seen": ("t0.cli.seen", "shows which examples a training run saw, and when"),
    "lint": ("t0.cli.lint", "checks prompts on sample rows, such as rendering and right answers"),
    "verify": ("t0.cli.verify", "re-checks the files of cached tasks, and lists damaged ones"),
    "train": ("t0.cli.train", "trains a checkpoint on a mixture, and prints the run's command"),
    "eval": ("t0.cli.eval", "evaluates a checkpoint on T0's held-out datasets, or any tasks"),
    "predict": ("t0.cli.predict", "predicts the answers to new rows, and writes a table"),
    "merge": ("t0.cli.merge", "merges the shards of a rank evaluation"),
    "export-eval": ("t0.cli.export_eval", "exports prompts as tasks of lm-evaluation-harness"),
    "overlap": ("t0.cli.overlap", "finds evaluation rows whose text is in the training data"),
    "report": ("t0.cli.report", "reports and compares evaluated runs: tables, plots, a page"),
    "completion": ("t0.cli.completion", "prints the lines that let bash, zsh or fish complete t0"),
    "compare": ("t0.cli.report", "like report, but requires two or more runs that can be compared"),
}

# The verbs that read gin files of the user, which may import modules of the working directory.
_READ_GIN = ("plan", "rehearse")

# Removed flag of a verb -> what replaces it. These rows go with the release after 1.0.
REMOVED = {
    ("convert", "--gzip_level"): "t0 convert writes T5X's arrays without compression",
    ("convert", "--text"): "t0 convert --check compares all tensors",
    ("eval", "--format"): "to get results of lm-evaluation-harness, run our prompts in it: "
    "t0 export-eval TASKS --to lm-eval",
    ("overlap", "--pipeline_options"): "t0 overlap searches on all cores of this machine",
    ("plan", "--output"): "t0 plan --json prints the numbers",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `t0` and returns its exit status.

    Args:
      argv: the words after `t0`. None means the words of this process's command line.

    Raises:
      SystemExit: for `--help`, for `--version`, and for exceptions that `reported` prints as
        messages.
    """
    if "_ARGCOMPLETE" in os.environ:
        from t0.cli.completion import complete

        complete(VERBS)
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    with reported(" ".join(["t0", *(word for word in words[:1] if word in VERBS)])):
        args = _parser().parse_args(words[:1])
        if args.verb is None:
            _parser().print_help()
            return 2
        if args.verb not in VERBS:
            raise unknown_name("verb", args.verb, VERBS, f"The verbs are {', '.join(VERBS)}.")
        return _run_verb(args.verb, words[1:])


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, VERBS))
    rows = "\n".join(f"  {verb:<{width}}  {about}" for verb, (_, about) in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="t0",
        usage="t0 <verb> [...]",
        description="T0 on Mesh TensorFlow.",
        epilog=f"verbs:\n{rows}\n\n`t0 help <verb>` lists the flags of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"t0 {t0.__version__}")
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    return parser


def _run_verb(verb: str, words: list[str]) -> int:
    for word in words:
        if replacement := REMOVED.get((verb, word.partition("=")[0])):
            raise UserError(f"{word.partition('=')[0]} was removed: {replacement}")
    module_name, about = VERBS[verb]
    module = importlib.import_module(module_name)
    args = VerbParser(verb, about, module).parse(words)
    # The other verbs may run in a downloaded folder, whose modules must not be found.
    if verb in _READ_GIN or getattr(args, "module_import", None):
        make_working_directory_importable()
    apply_shared(args)
    if verb == "doctor":  # this verb itself reports a broken folder for temporary files
        return module.main(args)
    with folder_of_run():
        return module.compare(args) if verb == "compare" else module.main(args)


if __name__ == "__main__":
    sys.exit(main())
