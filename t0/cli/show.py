"""`t0 show TASK`: shows rendered rows: inputs, target, choices, token counts and truncation.

t0 show super_glue_rte_GPT_3_style --data_dir=data --vocab=spiece.model
t0 show reviews_positive --data_dir=mine --split=validation --row=17 --ids
t0 show reviews                                            # a folder that `t0 init` wrote
t0 show reviews_positive --data_dir=mine --all_prompts --lengths=inputs=512,targets=64
t0 show reviews_positive --data_dir=mine --split=validation --num_fewshot=4

Tasks in modules of `--module_import` are not in T0's catalogue. For them, the examples after
preprocessing are shown.
"""

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from t0.cli.arguments import JoinedList, Number, add_shared, few_shot_of, find_starter_tasks
from t0.config.plain_data import Count, Positive
from t0.errors import AbsentData, UserError

DEFAULT_ROWS = 3
_MOST_NAMES = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("task", help="a task's name, a regular expression, or a folder of `t0 init`")
    add("--rows", action=Number, kind=Positive, help=f"rows (default {DEFAULT_ROWS})")
    add("--row", action=Number, kind=Count, help="only this row; the first is 0")
    add("--split", help="the split (default: train if it exists, else the first)")
    lengths = (
        "lengths in tokens, such as inputs=512,targets=64 (default: T0's, inputs=1024,targets=256)"
    )
    add("--lengths", default="", action=JoinedList, help=lengths)
    add(
        "--all_prompts",
        action="store_true",
        help="show all prompts of the dataset, or all that match",
    )
    add("--ids", action="store_true", help="also print the token ids")
    add_shared(parser, "num_fewshot", "fewshot_options")
    add_shared(parser, "data_dir", "skip_bad_rows", "vocab", "module_import", "json")


def main(args: argparse.Namespace) -> int:
    """Prints the rows.

    Raises:
      UserError: a name is unknown. The message suggests similar names.
    """
    from t0.catalogue.row_preview import T0_LENGTHS, lengths_text, lines, parse_lengths
    from t0.catalogue.sentence_pieces import REMEDY, load_tokens

    if args.rows is not None and args.row is not None:
        raise UserError("--rows and --row both select rows: use one of them")
    task = args.task
    settings = find_starter_tasks(args, "task")
    args.all_prompts = args.all_prompts or args.task != task
    lengths = T0_LENGTHS | (settings.lengths if settings else {}) | parse_lengths(args.lengths)
    tokens = load_tokens(args.vocab)
    if args.ids and tokens is None:
        raise UserError(f"--ids needs a vocabulary. {REMEDY}")
    count = cut = 0
    for row in _rows(args, lengths, tokens):
        if args.json:  # a line for each row
            print(json.dumps(dataclasses.asdict(row)))
        else:
            print("\n" if count else "", end="")
            print("\n".join(lines(row, with_ids=args.ids)))
        count, cut = count + 1, cut + row.is_cut
    if tokens is None:
        print(f"tokens were not counted, and nothing was cut. {REMEDY}", file=sys.stderr)
    elif cut:
        print(f"{cut} of {count} rows are cut at {lengths_text(lengths)}", file=sys.stderr)
    return 0


def _rows(args: argparse.Namespace, lengths: Mapping[str, int], tokens: Any) -> Iterator[Any]:
    from t0.cli.tasks import read_listing, shown_examples

    if args.module_import:
        from t0.tasks import set_vocabulary

        set_vocabulary(args.vocab)
    listing = read_listing(args.module_import)
    for name in _select_names(listing, args):
        task = listing.tasks[name]
        if hasattr(task, "task"):
            yield from _show_prompted(task.task, args, lengths, tokens)
        elif few_shot_of(args):
            raise UserError(
                f"--num_fewshot shows tasks of T0's catalogue and of data folders, and {name} is "
                "not one of them: leave out --num_fewshot or --module_import"
            )
        else:
            first, number = _select_range(args)
            split = _choose_split(name, task.splits, args.split)
            yield from shown_examples(task, split, first, number, lengths)


def _select_names(listing: Any, args: argparse.Namespace) -> list[str]:
    """Returns the names of the tasks to show: one task or, with --all_prompts, all that match.

    With --all_prompts, the name of a task stands for all tasks of its dataset.
    """
    from t0.catalogue import SCORE_EVAL

    name = args.task.removesuffix(SCORE_EVAL) if not args.module_import else args.task
    if name not in listing.tasks:
        plain = {n.removesuffix(SCORE_EVAL): None for n in listing.select(args.task)}
        names = [n for n in plain if n in listing.tasks] or list(plain)
        if len(names) == 1 or args.all_prompts:
            return names
        examples = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        raise UserError(
            f"'{args.task}' matches {len(names):,} tasks: {examples}. Choose one of them, or add "
            "--all_prompts to see all"
        )
    if not args.all_prompts:
        return [name]
    if args.module_import:
        raise UserError(
            f"--all_prompts shows the prompts of a dataset in T0's catalogue; with --module_import "
            f"select tasks by a regular expression, such as '{name}.*'"
        )
    first_task = listing.tasks[name].task
    return [
        listed.name
        for listed in listing.tasks.values()
        if not listed.ranked
        and (listed.task.dataset, listed.task.subset) == (first_task.dataset, first_task.subset)
        and listed.task.suffix == first_task.suffix
    ]


def _select_range(args: argparse.Namespace) -> tuple[int, int]:
    return (0, args.rows or DEFAULT_ROWS) if args.row is None else (args.row, 1)


def _choose_split(name: str, splits: Any, requested: str | None) -> str:
    if requested is None:
        return "train" if "train" in splits else next(iter(splits))
    if requested not in splits:
        raise UserError(f"{name} has no split '{requested}', it has: {', '.join(splits)}")
    return requested


def _show_prompted(
    task: Any, args: argparse.Namespace, lengths: Mapping[str, int], tokens: Any
) -> Iterator[Any]:
    from t0.catalogue.row_preview import preview_row

    split, opened = _open_split(task, args.split)
    few_shot = _few_shot_prompts(task, few_shot_of(args), lengths["inputs"], tokens)
    first, number = _select_range(args)
    rows = enumerate(opened.rows(first, first + number), start=first)
    options = {"lengths": lengths, "tokens": tokens, "few_shot": few_shot}
    row = None
    for index, row in itertools.islice(rows, number):
        yield preview_row(task, split, index, row, **options)
    if row is None:
        raise UserError(
            f"{opened.where} has no row {first}: it has {opened.num_rows:,}, counted from 0"
        )


def _few_shot_prompts(task: Any, few_shot: Any, length: int, tokens: Any) -> Any:
    """Returns a task's `FewShotPrompts`; None for zero-shot prompts."""
    from t0.catalogue.exemplars import FewShotPrompts, check_few_shot
    from t0.prompts.few_shot import UNLIMITED, TextMeasure

    templates = ()
    if task.few_shot is not None:
        if few_shot is not None:
            raise UserError(f"--num_fewshot: {task.name} is few-shot already. Leave the flag out")
        few_shot, templates = task.few_shot.settings, task.few_shot.templates
        length = few_shot.length
    if few_shot is None:
        return None
    check_few_shot(task, few_shot)
    measure = UNLIMITED
    if tokens is not None:
        measure = TextMeasure(
            lambda text: len(tokens.ids(text)),
            lambda text, answers: len(tokens.ids(text)) <= length,
        )
    rows, order = list(task.open(few_shot.split).rows()), None
    if few_shot.order:  # SeqIO's order needs TensorFlow
        from t0.tasks.seqio_order import exemplar_order

        order = exemplar_order(task, few_shot)
    return FewShotPrompts(task, few_shot, rows, measure, templates, order)


def _open_split(task: Any, requested: str | None) -> tuple[str, Any]:
    """Opens the requested split. If it is None, opens the first split whose data exists."""
    first = _choose_split(task.name, task.split_mapping, requested)
    absent = None
    for split in [first] if requested else dict.fromkeys((first, *task.split_mapping)):
        try:
            return split, task.open(split)
        except AbsentData as error:
            absent = absent or error
    raise absent
