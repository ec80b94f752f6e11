"""`t0 init NAME DATA`: writes a starter folder for your own data, and prints five commands.

t0 init reviews reviews.csv
t0 init reviews reviews.csv --text=review --label=stars --choices=bad,fair,good
t0 init reviews folder_with_splits --vocab=spiece.model --output=/data/reviews
t0 init reviews --update                     # after you changed a prompt: measure the lengths again
t0 init reviews more_reviews.csv --update    # also replace the rows

DATA is a file, or a folder with one file per split. The formats are csv, tsv, jsonl, json, parquet
and arrow. Text files may be gzipped (.gz). The prompts, mixtures and run files in the starter
folder are plain text files. You can change them.
"""

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.absent_classes import warn_of_absent_classes, warn_of_untrained_classes
from t0.cli.arguments import JoinedList, add_shared
from t0.errors import UserError, say

_FEW_ROWS = 10
_MOST_SHOWN = 100  # the number of classes that are printed
_VALIDATION = ("validation", "dev", "valid", "val", "test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    name = "the dataset's name, which begins the names of its tasks; with --update the folder"
    add("name", help=name)
    data = "a file with rows, or a folder with a file for each split"
    add("data", nargs="?", help=data)
    text = "the columns that prompts show, comma-separated"
    add("--text", action=JoinedList, help=text)
    add("--label", help="the column with the answers")
    choices = "answers in words, in the order of the labels' numbers or names"
    add("--choices", action=JoinedList, help=choices)
    add("--vocab", help="SentencePiece model (default: T0_VOCAB, or T5's)")
    add("--output", help="the folder to write (default: NAME)")
    update = "measure the lengths of a folder again, and replace its rows if DATA is set"
    add("--update", action="store_true", help=update)
    edited = "with --update, also replace files that you edited, if the data changes them"
    add("--yes", action="store_true", help=edited)
    add_shared(parser, "skip_bad_rows")


def main(args: argparse.Namespace) -> int:
    """Writes the folder and prints the commands.

    Raises:
      UserError: the arguments or the data are invalid.
    """
    from t0.catalogue import starter_folder

    if args.update:
        return _update(args)
    if args.yes:
        raise UserError("--yes is for --update, which may replace files: leave it out")
    if args.data is None:
        raise UserError(
            f"t0 init {args.name} needs the data: a file or folder of rows, or --update"
        )
    starter_folder.check_name(args.name)
    plan, splits, header_note = _read_plan(args)
    folder = args.output or args.name
    written = starter_folder.write(plan, folder, splits, _flags_of(args, plan))
    written["notes"] = [*header_note, *written["notes"]]
    _print_summary(plan, folder, written)
    for step, words in starter_folder.commands(folder, plan).items():
        say(f"# {step}\n{shlex.join(words)}")
    return 0


def _flags_of(args: argparse.Namespace, plan: Any) -> dict[str, str]:
    """Returns the flags with which `--update` reads the same columns."""
    flags = {"text": ",".join(plan.texts), "label": plan.labels.column}
    return flags | ({"choices": args.choices} if args.choices else {})


def _update(args: argparse.Namespace) -> int:
    """Updates a starter folder, and prints what changes before it does."""
    from t0.catalogue import starter_update
    from t0.config.starter_settings import find_starter_folder

    settings = find_starter_folder(args.name)
    if args.output or settings is None or Path(settings.folder) != Path(args.name).expanduser():
        raise UserError(
            f"t0 init {args.name} --update: expected a folder of `t0 init` instead of a name, and "
            "no --output"
        )
    args.vocab = args.vocab or settings.vocabulary
    for file in starter_update.find_edited(settings):
        say(f"# edited since `t0 init`: {file}")
    staging, replaced, flags, notes = None, [], settings.flags_of_init, []
    with contextlib.ExitStack() as stack:
        if args.data:
            for flag in ("text", "label", "choices"):  # no other flag that the file may name
                setattr(args, flag, getattr(args, flag) or flags.get(flag))
            args.name = settings.name
            plan, splits, notes = _read_plan(args)
            flags = _flags_of(args, plan)
            staging = stack.enter_context(starter_update.new_data(settings, plan, splits))
            replaced = starter_update.choose_files(settings, staging, replace_edited=args.yes)
            say(f"# replaced: {', '.join(replaced) or 'no file, since the data is the same'}")
        lengths, more = starter_update.update(
            settings, staging, replaced, vocabulary=args.vocab, flags=flags
        )
    for feature, length in lengths.items():
        say(f"# length of {feature}: {settings.lengths.get(feature)} before, {length} tokens now")
    for note in (*notes, *more):
        say(f"#   WARNING: {note}")
    return 0


def _read_plan(args: argparse.Namespace) -> tuple[Any, dict[str, Callable[[], Any]], list[str]]:
    """Reads the data; returns the contents of the folder, the splits, and a note on the header."""
    from t0.catalogue import columns, starter_folder
    from t0.catalogue.sentence_pieces import VOCABULARY_VARIABLE, load_tokens

    load_tokens(args.vocab)  # reports a wrong vocabulary before the data is read
    files = _find_splits(args.data)
    splits = {split: _make_row_reader(file) for split, file in files.items()}
    table = _summarize(args, splits)
    label = args.label or _choose_column(
        table, table.labels(), "--label", "the column with the answers"
    )
    table.check(label, "--label")
    for split in _find_hidden_splits(files, table, label):
        say(f"# {files.pop(split).path.name} has no labels in the column {label}: skipped")
        del splits[split]
        table = _summarize(args, splits)
    header_note = _check_header(files, table, label, is_set=bool(args.label))
    choices = args.choices.split(",") if args.choices else None
    names = _read_stored_names(files, label)
    labels = columns.read_labels(table, label, choices, names=names)
    texts = _choose_text_columns(args, table, label)
    vocabulary = args.vocab or os.environ.get(VOCABULARY_VARIABLE)
    plan = starter_folder.StarterFolder(args.name, table, texts, labels, vocabulary)
    return plan, splits, header_note


def _find_splits(data: str) -> dict[str, Any]:
    """Returns split -> `SplitFile`, for "train" and, if the data has it, "validation"."""
    from t0.sources import folders, readers

    path = Path(data).expanduser()
    splits = {"train": folders.split_file(path)} if path.is_file() else folders.folder_splits(path)
    if not splits.get("train"):
        raise UserError(
            f"{data}: expected a file of rows, whose extension is one of "
            f"{readers.LISTED_SUFFIXES}, or a folder with a file for each split "
            f"({folders.FILE_PATTERN}), one of them train; it has: "
            f"{', '.join(name for name, file in splits.items() if file) or 'no split'}"
        )
    validation = next((split for split in _VALIDATION if split in splits), None)
    return {"train": splits["train"]} | ({"validation": splits[validation]} if validation else {})


def _read_stored_names(files: Mapping[str, Any], label: str) -> tuple[str, ...]:
    """Returns the names of labels 0, 1, ... that are stored with the data; () if there are none."""
    from t0.sources.splits import read_label_names

    names = {split: read_label_names(file).get(label, ()) for split, file in files.items()}
    if len(set(names.values())) > 1:
        raise UserError(f"the stored names of '{label}' differ between the splits: {names}")
    return next(iter(names.values()))


def _make_row_reader(file: Any) -> Callable[[], Any]:
    from t0.progress import count_units
    from t0.sources import readers

    reader = readers.reader_for(file.kind, (file.path,))
    return lambda: count_units(reader.rows(0, None), unit="row", doing=f"reading {file.path.name}")


def _summarize(args: argparse.Namespace, splits: Mapping[str, Callable[[], Any]]) -> Any:
    from t0.catalogue import columns

    rows = (read() for read in splits.values())
    return columns.summarize_columns(*rows, where=args.data, label=args.label)


def _find_hidden_splits(files: Mapping[str, Any], table: Any, label: str) -> list[str]:
    """Returns the splits that have no labels.

    If a split has no column of the split train, its columns are probably a mistake, which is
    reported later.

    Raises:
      UserError: the split train has no labels.
    """
    from t0.sources import readers

    hidden = [[*files][number] for number in table.columns[label].hidden_splits]
    if "train" in hidden:
        raise UserError(
            f"{table.where}: nothing to train on, because the split train hides its labels: "
            f"'{label}' is missing, empty or -1 in all rows"
        )
    names = {s: set(readers.reader_for(f.kind, (f.path,)).columns()) for s, f in files.items()}
    return [split for split in hidden if names[split] & names["train"]]


def _check_header(files: Mapping[str, Any], table: Any, label: str, *, is_set: bool) -> list[str]:
    """Asks whether the first line of a CSV file is a row, if a label is also a column's name.

    Args:
      files: split -> the file.
      table: the summary of the columns.
      label: the label column.
      is_set: whether the user named this column.

    Returns:
      a warning if `is_set`, otherwise no text.

    Raises:
      UserError: the name of the label column is one of its labels.
    """
    from t0.catalogue.columns import label_text
    from t0.sources import readers

    has_header = any(readers.FORMATS[file.kind].columns == "header" for file in files.values())
    if not has_header or label_text(label) not in table.columns[label].values:
        return []
    question = (
        f"is the first line of {table.where} a row? The column '{label}' also has the value "
        f"'{label_text(label)}'. If the file has no line with the names of its columns, write one, "
        "such as text,label"
    )
    if not is_set:
        raise UserError(f"{question}. If it has one, set --label={shlex.quote(label)}")
    return [question]


def _choose_text_columns(args: argparse.Namespace, table: Any, label: str) -> tuple[str, ...]:
    if args.text:
        names = [name.strip() for name in args.text.split(",")]
        for name in names:
            table.check(name, "--text")
        if label in names:
            raise UserError(
                f"'{label}' is the label: a prompt that shows it would reveal the answer"
            )
        return tuple(names)
    candidates = [name for name in table.texts() if name != label]
    if 1 <= len(candidates) <= 3:
        return tuple(candidates)
    candidates = candidates or [n for n, c in table.columns.items() if n != label and not c.nested]
    return (_choose_column(table, candidates, "--text", "the column with the text"),)


def _choose_column(table: Any, candidates: list[str], flag: str, meaning: str) -> str:
    """Returns the only candidate.

    Raises:
      UserError: there is not exactly one candidate. The message lists the columns.
    """
    if len(candidates) != 1:
        columns = "\n".join(table.describe())
        raise UserError(
            f"which is {meaning}? Set it with {flag}=COLUMN. "
            f"The columns of {table.where}:\n{columns}"
        )
    return candidates[0]


def _count_splits(rows: Mapping[str, Mapping[str, int]], choices: Sequence[str]) -> str:
    counts = {split: sum(n[c] for c in choices) for split, n in rows.items()}
    listed = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    return f"{sum(counts.values()):,} rows ({listed})"


def _print_summary(plan: Any, folder: str, written: Mapping[str, Any]) -> None:
    rows = ", ".join(f"{split} {sum(n.values()):,}" for split, n in written["rows"].items())
    count = written["left_out"]
    left_out = f"; {count:,} without text or label left out" if count else ""
    say(f"# {folder}: {rows} rows{left_out}. Text: {', '.join(plan.texts)}")
    for position, choice in enumerate(plan.labels.choices[:_MOST_SHOWN]):
        names = [label for label, index in plan.labels.indices.items() if index == position]
        counts = _count_splits(written["rows"], [choice])
        say(f"#   {plan.labels.column} {' or '.join(names) or '-'} is '{choice}': {counts}")
    if more := plan.labels.choices[_MOST_SHOWN:]:
        say(f"#   and {len(more):,} more classes: {_count_splits(written['rows'], more)}")
    for note in plan.labels.notes:
        say(f"#   note: {note}")
    if plan.vocabulary is None:
        say("#   vocabulary: T5's, read from Google Cloud Storage; for another one, --vocab=FILE")
    untrained = warn_of_untrained_classes(written["rows"])
    validation = written["rows"]["validation"]
    absent = warn_of_absent_classes(validation, "validation")
    few = [choice for choice, count in validation.items() if 0 < count < _FEW_ROWS]
    rare = few and (
        f"validation has fewer than {_FEW_ROWS} rows of {len(few)} of {len(validation)} classes, "
        f"such as '{few[0]}': their recall is a rough estimate"
    )
    for note in (*written["notes"], *filter(None, (untrained, absent, rare))):
        say(f"#   WARNING: {note}")
    say(f"# Prompts to change: {folder}/data/{plan.name}/templates.yaml. The commands:")
