"""`t0 init NAME DATA`: a folder to start from with your own data, and the five commands to run.

t0 init reviews reviews.csv
t0 init reviews reviews.csv --text=review --label=stars --choices=bad,fair,good
t0 init reviews folder_with_splits --vocab=spiece.model --output=/data/reviews

DATA is a file (csv, tsv, jsonl, json, parquet, arrow; text formats also as .gz), or a folder with a
file for each split. The prompts, mixtures and run files are plain text, for you to change.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from t0.cli.arguments import JoinedList, add_shared
from t0.errors import UserError, say

_VALIDATION = ("validation", "dev", "valid", "val", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("name", help="the dataset's name, which begins the names of its tasks")
    add("data", help="a file with rows, or a folder with a file for each split")
    text = "the columns that a prompt shows, comma-separated"
    add("--text", action=JoinedList, help=text)
    add("--label", help="the column with the answers")
    choices = "answers in words, in the order of the labels' numbers or names"
    add("--choices", action=JoinedList, help=choices)
    add("--vocab", help="SentencePiece model (default: T0_VOCAB, or T5's)")
    add("--output", help="the folder to write (default: NAME)")
    add_shared(parser, "skip_bad_rows")


def main(args: argparse.Namespace) -> int:
    """Writes the folder and prints the commands; a mistake is a UserError."""
    from t0.catalogue import columns, starter_folder
    from t0.catalogue.sentence_pieces import VOCABULARY_VARIABLE, load_tokens

    starter_folder.check_name(args.name)
    load_tokens(args.vocab)  # a mistake is found before the data is read
    files = _splits(args.data)
    splits = {split: _rows(file.kind, file.path) for split, file in files.items()}
    table = columns.summarize_columns(*(rows() for rows in splits.values()), where=args.data)
    label = args.label or _choose_column(
        table, table.labels(), "--label", "the column with the answers"
    )
    table.check(label, "--label")
    choices = args.choices.split(",") if args.choices else None
    names = _stored_names(files, label)
    labels = columns.read_labels(table, label, choices, names=names)
    for split in [[*splits][number] for number in table.columns[label].hidden_splits]:
        say(f"# {split} hides its labels ({label} is -1 in all rows): it is left out")
        del splits[split]
    if "train" not in splits:
        raise UserError(f"{args.data}: nothing to train on, since the split train hides its labels")
    texts = _texts(args, table, label)
    vocabulary = args.vocab or os.environ.get(VOCABULARY_VARIABLE)
    plan = starter_folder.StarterFolder(args.name, table, texts, labels, vocabulary)
    folder = args.output or args.name
    written = starter_folder.write(plan, folder, splits)
    _print_summary(plan, folder, written)
    for words in starter_folder.commands(folder, plan, written["lengths"]):
        print(shlex.join(words))
    return 0


def _splits(data: str) -> dict[str, Any]:
    """Returns split -> its `SplitFile`: "train" and perhaps "validation"."""
    from t0.sources import folders, readers

    path = Path(data).expanduser()
    if path.is_dir():
        found = folders.folder_splits(path)
        if not found:
            raise UserError(f"{data} has no splits: wanted files {folders.FILE_PATTERN}")
        if "train" not in found:
            raise UserError(f"{data} has no split 'train', it has: {', '.join(found)}")
        second = next((split for split in _VALIDATION if split in found), None)
        return {"train": found["train"]} | ({"validation": found[second]} if second else {})
    if path.is_file():
        file = folders.split_file(path)
        if file is None:
            raise UserError(
                f"{data}: rows are read from {', '.join(readers.FORMATS)} (text also as .gz), by "
                "the end of the name: rename the file, or write it in one of these formats"
            )
        return {"train": file}
    raise UserError(f"{data} does not exist. Name a file with rows, or a folder of splits")


def _stored_names(files: Mapping[str, Any], label: str) -> tuple[str, ...]:
    """Returns the names of the labels 0, 1, ... that are stored with the data, or none."""
    from t0.sources.label_names import read_label_names

    names = {split: read_label_names(file).get(label, ()) for split, file in files.items()}
    if len(set(names.values())) > 1:
        listed = "; ".join(f"{split}: {', '.join(some) or 'none'}" for split, some in names.items())
        raise UserError(f"the stored names of '{label}' differ between the splits ({listed})")
    return next(iter(names.values()))


def _rows(kind: str, path: Path) -> Callable[[], Any]:
    from t0.progress import count_units
    from t0.sources import readers

    reader = readers.reader_for(kind, (path,))
    return lambda: count_units(reader.rows(0, None), unit="row", doing=f"reading {path.name}")


def _texts(args: argparse.Namespace, table: Any, label: str) -> tuple[str, ...]:
    if args.text:
        names = [name.strip() for name in args.text.split(",")]
        for name in names:
            table.check(name, "--text")
        if label in names:
            raise UserError(f"'{label}' is the label: a prompt that shows it gives it away")
        return tuple(names)
    found = [name for name in table.texts() if name != label]
    if 1 <= len(found) <= 3:
        return tuple(found)
    found = found or [n for n, c in table.columns.items() if n != label and not c.nested]
    return (_choose_column(table, found, "--text", "the column with the text"),)


def _choose_column(table: Any, found: list[str], flag: str, what: str) -> str:
    """Returns the only column found; if there are several or none, asks on a terminal."""
    if len(found) == 1:
        return found[0]
    described = "\n".join(table.describe())
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(
            f"which is {what}? Name it by {flag}=COLUMN. The columns of {table.where}:\n{described}"
        )
    print(f"The columns of {table.where}:\n{described}")
    while True:
        answer = input(f"Which is {what}? ").strip()
        try:
            table.check(answer, flag)
        except UserError as error:
            print(error)
        else:
            return answer


def _print_summary(plan: Any, folder: str, written: Mapping[str, Any]) -> None:
    rows = ", ".join(f"{split} {count:,}" for split, count in written["rows"].items())
    left = f"; {written['left_out']:,} without text or label left out" * bool(written["left_out"])
    say(f"# {folder}: {rows} rows{left}. Text: {', '.join(plan.texts)}")
    for place, (choice, count) in enumerate(
        zip(plan.labels.choices, plan.labels.counts, strict=True)
    ):
        names = [label for label, index in plan.labels.indices.items() if index == place]
        print(f"#   {plan.labels.column} {' or '.join(names) or '-'} is '{choice}': {count:,} rows")
    for note in plan.labels.notes:
        say(f"#   note: {note}")
    if plan.vocabulary is None:
        print("#   vocabulary: T5's, which is read from Google Cloud Storage; --vocab=FILE else")
    for note in written["notes"]:
        print(f"#   WARNING: {note}")
    say(f"# Prompts to change: {folder}/data/{plan.name}/templates.yaml. The commands:")
