"""`t0 show TASK`: rendered rows: inputs, target and choices, token counts, and where each is cut.

t0 show super_glue_rte_GPT_3_style --data_dir=data --vocab=spiece.model
t0 show reviews_positive --data_dir=mine --split=validation --row=17 --ids
t0 show reviews_positive --data_dir=mine --all_prompts --lengths=inputs=512,targets=64

Tasks of other modules than T0's catalogue (--module_import) are shown after their preprocessors.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from t0.cli.arguments import JoinedList, add_shared
from t0.errors import AbsentData, UserError

DEFAULT_ROWS = 3
_MOST_NAMES = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("task", help="a task's name, or a regular expression for one")
    add("--rows", type=int, help=f"rows (default {DEFAULT_ROWS})")
    add("--row", type=int, help="this row only; the first is 0")
    add("--split", help="the split (default: train, or the first there is)")
    lengths = "in tokens, such as inputs=512,targets=64 (default: T0's inputs=1024,targets=256)"
    add("--lengths", default="", action=JoinedList, help=lengths)
    add("--all_prompts", action="store_true", help="all prompts of the dataset, or that match")
    add("--ids", action="store_true", help="also print the token ids")
    add_shared(parser, "data_dir", "skip_bad_rows", "vocab", "module_import")


def main(args: argparse.Namespace) -> int:
    """Prints the rows; an unknown name is a UserError with the nearest."""
    from t0.catalogue.row_preview import T0_LENGTHS, lengths_text, lines, parse_lengths
    from t0.catalogue.sentence_pieces import REMEDY, load_tokens

    if args.rows is not None and args.row is not None:
        raise UserError("--rows and --row both say which rows to show: give one")
    for name, least in (("rows", 1), ("row", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: wanted a number from {least}")
    lengths = T0_LENGTHS | parse_lengths(args.lengths)
    tokens = load_tokens(args.vocab)
    if args.ids and tokens is None:
        raise UserError(f"--ids needs a vocabulary. {REMEDY}")
    count = cut = 0
    for row in _rows(args, lengths, tokens):
        print("\n" if count else "", end="")
        print("\n".join(lines(row, with_ids=args.ids)))
        count, cut = count + 1, cut + row.is_cut
    if tokens is None:
        print(f"tokens were not counted, and nothing is cut here. {REMEDY}", file=sys.stderr)
    elif cut:
        print(f"{cut} of {count} rows are cut at {lengths_text(lengths)}", file=sys.stderr)
    return 0


def _rows(args: argparse.Namespace, lengths: Mapping[str, int], tokens: Any) -> Iterator[Any]:
    from t0.cli.registered import read_listing, shown_examples

    if args.module_import:
        from t0.tasks import set_vocabulary

        set_vocabulary(args.vocab)
    listing = read_listing(args.module_import)
    for name in _names(listing, args):
        task = listing.tasks[name]
        if hasattr(task, "task"):
            yield from _show_prompted(task.task, args, lengths, tokens)
        else:
            first, number = _range(args)
            split = _split(name, task.splits, args.split)
            yield from shown_examples(task, split, first, number, lengths)


def _names(listing: Any, args: argparse.Namespace) -> list[str]:
    """Returns the tasks to show: one, or with --all_prompts those of its dataset or expression."""
    from t0.catalogue import SCORE_EVAL

    name = args.task.removesuffix(SCORE_EVAL) if not args.module_import else args.task
    if name not in listing.tasks:
        plain = {n.removesuffix(SCORE_EVAL): None for n in listing.select(args.task)}
        names = [n for n in plain if n in listing.tasks] or list(plain)
        if len(names) == 1 or args.all_prompts:
            return names
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        raise UserError(
            f"'{args.task}' is {len(names):,} tasks: {shown}. Name one of them, or add "
            "--all_prompts to see them all"
        )
    if not args.all_prompts:
        return [name]
    if args.module_import:
        raise UserError(
            f"--all_prompts shows the prompts of a dataset of T0's catalogue; with --module_import "
            f"name tasks by a regular expression, such as '{name}.*'"
        )
    wanted = listing.tasks[name].task
    return [
        other.name
        for other in listing.tasks.values()
        if not other.ranked
        and (other.task.dataset, other.task.subset) == (wanted.dataset, wanted.subset)
        and other.task.suffix == wanted.suffix
    ]


def _range(args: argparse.Namespace) -> tuple[int, int]:
    return (0, args.rows or DEFAULT_ROWS) if args.row is None else (args.row, 1)


def _split(name: str, splits: Any, wanted: str | None) -> str:
    if wanted is None:
        return "train" if "train" in splits else next(iter(splits))
    if wanted not in splits:
        raise UserError(f"{name} has no split '{wanted}', it has: {', '.join(splits)}")
    return wanted


def _show_prompted(
    task: Any, args: argparse.Namespace, lengths: Mapping[str, int], tokens: Any
) -> Iterator[Any]:
    from t0.catalogue.row_preview import preview_row

    split, opened = _open(task, args.split)
    first, number = _range(args)
    rows = enumerate(opened.rows(first, first + number), start=first)
    row = None
    for index, row in itertools.islice(rows, number):
        yield preview_row(task, split, index, row, lengths=lengths, tokens=tokens)
    if row is None:
        raise UserError(
            f"{opened.where} has no row {first}: it has {opened.num_rows:,}, counted from 0"
        )


def _open(task: Any, wanted: str | None) -> tuple[str, Any]:
    """Opens the named split; if none is named, the first whose data is here."""
    if wanted is not None:
        split = _split(task.name, task.split_mapping, wanted)
        return split, task.open(split)
    first = _split(task.name, task.split_mapping, None)
    absent = None
    for split in dict.fromkeys((first, *task.split_mapping)):
        try:
            return split, task.open(split)
        except AbsentData as error:
            absent = absent or error
    raise absent
