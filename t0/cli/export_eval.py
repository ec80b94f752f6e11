"""`t0 export-eval TASKS`: exports rendered prompts as tasks of lm-evaluation-harness.

t0 export-eval t0_eval --to lm-eval --data_dir=data --output=harness
t0 export-eval 'super_glue_rte_.*' --to lm-eval --data_dir=data --output=rte --group=rte
lm_eval run --model hf --include_path harness --tasks t0_eval_score_eval --log_samples ...
"""

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from t0.cli.arguments import Number, add_shared
from t0.config.plain_data import Positive
from t0.errors import UserError, printable
from t0.sources import without_absent

# The supported programs to which prompts can be exported.
FORMATS = ("lm-eval",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("tasks", help="a mixture, a task, or tasks by regular expression")
    add("--to", required=True, choices=FORMATS, help="lm-eval: lm-evaluation-harness")
    add("--output", required=True, metavar="DIR", help="a new folder")
    add(
        "--limit",
        action=Number,
        kind=Positive,
        metavar="N",
        help="the first N rows of each dataset",
    )
    add("--skip_absent", action="store_true", help="leave out absent datasets")
    eos = "text that ends a choice and is scored with it (default: </s>, T5's); --eos= for none"
    add("--eos", default="</s>", metavar="TEXT", help=eos)
    add("--group", metavar="NAME", help="the group of the datasets (default: the mixture's name)")
    add_shared(parser, "data_dir", "skip_bad_rows", "split")


def main(args: argparse.Namespace) -> int:
    """Writes the folder, prints a summary and the next command; returns the exit status."""
    from t0 import lm_eval
    from t0.catalogue.listing import read_listing

    listing = read_listing()
    tasks, group = _choose_tasks(listing, args.tasks, args.split)
    sources = {task.name: task for task in tasks}
    available = without_absent(sources, args.split, skip=args.skip_absent)
    tasks = [sources[name] for name in available]
    group = args.group or group
    exported = lm_eval.export(
        tasks, args.output, split=args.split, group=group, eos=args.eos, limit=args.limit
    )
    _print(exported, group, args)
    return 0


def _choose_tasks(listing: Any, expression: str, split: str) -> tuple[list[Any], str]:
    """Returns the prompts of all tasks that can be ranked, and a name for the group of tasks."""
    from t0.catalogue import SCORE_EVAL

    mixture = next(
        (n for n in (expression, expression + SCORE_EVAL) if n in listing.mixtures), None
    )
    names = listing.select(mixture or expression)
    ranked = {name.removesuffix(SCORE_EVAL) + SCORE_EVAL: None for name in names}
    tasks = [listing.tasks[name] for name in ranked if name in listing.tasks]
    if len(tasks) < len(ranked):
        left_out = len(ranked) - len(tasks)
        print(f"left out: {left_out} prompts without answer choices", file=sys.stderr)
    with_split = [task.task for task in tasks if split in task.splits]
    if not with_split:
        splits = sorted({name for task in tasks for name in task.splits})
        raise UserError(
            f"none of the {len(names)} tasks of '{expression}' has answer choices and a split "
            f"'{split}'; splits: {', '.join(splits) or 'none'}. List the prompts for rank "
            "evaluation with: t0 tasks '.*_score_eval'"
        )
    return with_split, mixture or "t0_prompts"


def _print(prompts: Sequence[Any], group: str, args: argparse.Namespace) -> None:
    left_out = sum((Counter(prompt.left_out) for prompt in prompts), Counter())
    scored = [prompt for prompt in prompts if prompt.examples]
    datasets = {prompt.dataset_task for prompt in scored}
    print(
        printable(
            f"{args.output}: {sum(prompt.examples for prompt in scored):,} rows of {len(scored)} "
            f"prompts of {len(datasets)} datasets, split {args.split}"
        )
    )
    for reason, count in left_out.items():
        print(f"left out: {count:,} rows: {reason}", file=sys.stderr)
    for prompt in prompts:
        if not prompt.examples:
            print(f"left out: {prompt.name}: nothing to score", file=sys.stderr)
    # T5's inputs have no EOS.
    t5 = "add_bos_token=False,max_length=1024," if args.eos == "</s>" else ""
    words = ["lm_eval", "run", "--model", "hf"]
    words += ["--model_args", f"pretrained=MODEL,{t5}dtype=float32"]
    words += ["--include_path", args.output, "--tasks", group, "--log_samples"]
    print(printable(f"  {shlex.join([*words, '--output_path', 'RESULTS'])}"))
    print("  t0 report RESULTS --output report")
