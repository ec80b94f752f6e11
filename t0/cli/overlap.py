"""`t0 overlap`: finds evaluation rows whose text occurs in the training data.

t0 overlap --train /data/cache --eval t0_eval_score_eval --output overlap
t0 overlap --train t0_train --eval 'super_glue_rte_.*' --data_dir data --output overlap
t0 overlap --train 'reviews_.*' --eval 'reviews_.*' --data_dir mine --output overlap   # own splits

Training data is a folder of caches, or a list of tasks. If --additional_task_cache_dirs has a cache
of a task, the task is read from it. Otherwise the task is rendered. The command writes overlap.txt,
overlap.json and rows.jsonl. `t0 report --overlap` reads overlap.json and rows.jsonl.
"""

import argparse
import json

from t0.cli.arguments import JoinedList, Number, add_shared, split_list
from t0.config.plain_data import Count, Positive
from t0.errors import UserError, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    several = {"nargs": "+", "action": "extend", "required": True}
    train = "the training data: folders of caches, mixtures, or regular expressions of tasks"
    add("--train", **several, metavar="CACHE_OR_MIXTURE", help=train)
    evaluated = "the evaluation data: mixtures, or regular expressions of tasks"
    add("--eval", **several, metavar="MIXTURE", help=evaluated)
    add("--output", required=True, metavar="DIR", help="the folder to write into")
    add("--train_split", default="train", help="(default train)")
    add("--eval_split", default="validation", help="(default validation)")
    ngrams = "n-gram lengths in words; the headline uses the first (default 13,8)"
    add("--ngrams", default="13,8", action=JoinedList, help=ngrams)
    add(
        "--min_words",
        action=Number,
        kind=Positive,
        default=5,
        help="minimum words of a field to match as a whole (default 5)",
    )
    add("--vocab", help="SentencePiece model of caches without text (T0_VOCAB)")
    absent = "skip splits whose data is missing"
    add("--skip_absent_splits", action="store_true", help=absent)
    add(
        "--num_workers",
        action=Number,
        kind=Count,
        help="processes; default: all cores; 0: in this process",
    )
    add_shared(parser, "data_dir", "skip_bad_rows", "cache_dirs", "json")


def main(args: argparse.Namespace) -> int:
    """Searches for overlap, writes the files, and prints the tables and the files' paths."""
    from t0.catalogue.sentence_pieces import load_tokens
    from t0.files import path_inside
    from t0.overlap import OverlapCriteria, OverlapSearch, find
    from t0.overlap.finding import RESULT, ROWS, TABLES
    from t0.overlap.overlap_tables import tables

    tokens = load_tokens(args.vocab)
    facts = find(
        OverlapSearch(
            train=tuple(args.train),
            evaluation=tuple(args.eval),
            train_split=args.train_split,
            eval_split=args.eval_split,
            settings=OverlapCriteria(_ngrams(args.ngrams), args.min_words),
            cache_dirs=tuple(split_list(args.cache_dirs)),
            skip_absent=args.skip_absent_splits,
        ),
        args.output.rstrip("/") or "/",
        workers=args.num_workers,
        vocabulary=tokens and tokens.model,
    )
    if args.json:
        print(json.dumps(facts))
        return 0
    for line in tables(facts):
        print(line)
    print()
    for name in (TABLES, ROWS, RESULT):
        print(printable(path_inside(args.output, name)))
    return 0


def _ngrams(text: str) -> tuple[int, ...]:
    words = split_list(text)
    if not words or not all(word.isdigit() and 2 <= int(word) <= 100 for word in words):
        raise UserError(
            f"--ngrams {text}: expected lengths from 2 to 100 words, separated by commas, such as "
            "13,8"
        )
    return tuple(dict.fromkeys(map(int, words)))
