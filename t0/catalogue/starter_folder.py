"""Writes a starter folder for a user's data, with prompts, mixtures, run files and commands.

    plan = StarterFolder("reviews", table, texts=("review",), labels=labels, vocabulary=None)
    write(plan, "reviews", {"train": rows_again}, flags={"text": "review"})
    commands("reviews", plan)                  # the five commands of `reviews/commands.sh`

The rows are copied as JSON Lines. In the copy, columns have names that Jinja can read, and each
label is replaced by the index of its answer choice. A row is left out if it has no label, or if all
its texts are empty. If the data has no validation split, a tenth of the texts of each class becomes
the validation split, and at least one text if the class has several. The texts are chosen by a
hash, so that equal rows are in the same split.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import posixpath
import re
import shlex
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.catalogue.columns import MOST_LABELS, ColumnTable, Labels
from t0.catalogue.entries import datasets
from t0.catalogue.prompted_task import SCORE_EVAL, PromptedTask
from t0.catalogue.sentence_pieces import UNKNOWN, Tokens, describe_unknown, vocabulary_notes
from t0.config import starter_settings
from t0.errors import UserError
from t0.files import checked_name, publishing
from t0.files.paths import sha256
from t0.prompts import LONGEST_PRINTED, is_missing, read_template_file
from t0.sources.json_lines import JsonLines

LABEL = "label"
STEPS = 400
_VALIDATION_SHARE = 10  # one in ten rows becomes a validation row
_FEWEST_ROWS = 10
_ID = re.compile(r"(^|[\W_])id$", re.I)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# The largest sequence lengths in tokens. Longer texts are truncated, so that the first run takes
# only minutes.
_LONGEST = {"inputs": 512, "targets": 64}
_ROWS_MEASURED = 500

Rows = Callable[[], Iterable[Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True)
class StarterFolder:
    """The contents of a starter folder that is to be written.

    Attributes:
      name: the dataset's name, which is the prefix of the task names.
      table: the summary of the data's columns.
      texts: the names of the columns that the prompts show.
      labels: the label column and the answer choices of its labels.
      vocabulary: the path of the SentencePiece model; None for T5's public model.
    """

    name: str
    table: ColumnTable
    texts: tuple[str, ...]
    labels: Labels
    vocabulary: str | None = None


def check_name(name: str) -> None:
    """Checks a name for the user's dataset.

    Raises:
      UserError: the name is not valid, or it is the beginning of the names of T0's own tasks.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot be the name of a dataset, because the names of tasks begin with it. "
            "Use letters, digits and _, with a letter first"
        )
    checked_name(name, "dataset", "the command line")
    for row in datasets():
        if f"{row.name}_".startswith(f"{name}_"):
            raise UserError(
                f"'{name}' cannot be the name of a dataset, because the tasks of T0's own dataset "
                f"{row.name} begin with it: give yours another name"
            )


def write(
    plan: StarterFolder, folder: str, splits: Mapping[str, Rows], flags: Mapping[str, str]
) -> dict[str, Any]:
    """Writes the complete starter folder. If there is an error, nothing is written.

    Args:
      plan: the contents of the folder.
      folder: the path of the folder, which must not exist.
      splits: name of a split -> a function that yields the split's rows. The names are "train" and,
        if the data has a validation split, "validation".
      flags: see `StarterSettings.flags_of_init`.

    Returns:
      a mapping with `rows`, split -> answer -> number of rows; `left_out`, the number of rows that
      were left out; and `notes`, for the user, about texts that the model does not see unchanged.

    Raises:
      UserError: the folder exists, it cannot be written, or too few rows have a text and a label.
    """
    final = os.path.abspath(folder)  # noqa: PTH100
    if os.path.lexists(final):
        raise UserError(f"{folder} exists already: choose another folder with --output")
    staging = f"{final}.{publishing.unfinished_tag()}"
    try:
        with publishing.writing(folder):
            os.makedirs(posixpath.join(staging, "data", plan.name))  # noqa: PTH103
        written = write_data(plan, staging, splits)
        templates, rows = (
            posixpath.join(staging, "data", plan.name, file)
            for file in ("templates.yaml", "train.jsonl")
        )
        lengths, written["notes"] = measure(plan.name, templates, rows, vocabulary=plan.vocabulary)
        settings = starter_settings.StarterSettings(
            ".", plan.name, plan.vocabulary, lengths, flags, digests(plan.name, staging)
        )
        for name, text in {
            "data/mixtures.yaml": _mixtures(plan),
            "train.gin": _train_file(plan),
            starter_settings.FILE: settings.text(),
            "commands.sh": _script(commands(folder, plan)),
        }.items():
            publishing.write_whole(posixpath.join(staging, name), text)
        with publishing.writing(folder):
            os.rename(staging, final)  # noqa: PTH104
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return written


def write_data(plan: StarterFolder, folder: str, splits: Mapping[str, Rows]) -> dict[str, Any]:
    """Writes the rows and the prompts; returns `rows` and `left_out`, see `write`."""
    data = posixpath.join(folder, "data", plan.name)
    written = _write_rows(plan, data, splits)
    publishing.write_whole(posixpath.join(data, "templates.yaml"), _templates(plan))
    return written


def digests(name: str, folder: str) -> dict[str, str]:
    """Returns the file -> SHA-256 of its content, of the rows and prompts in a starter folder."""
    files = [
        f"data/{name}/{file}" for file in ("templates.yaml", "train.jsonl", "validation.jsonl")
    ]
    existing = [file for file in files if Path(folder, file).is_file()]
    return {file: sha256(Path(folder, file)) for file in existing}


def column_names(columns: Iterable[str]) -> dict[str, str]:
    """Returns column -> the column's name in templates, which Jinja can read.

    >>> column_names(["review text", "a-b", "1st", "answer_choices"])
    {'review text': 'review_text', 'a-b': 'a_b', '1st': '_1st', 'answer_choices': 'answer_choices_'}
    """
    names: dict[str, str] = {}
    for column in columns:
        name = re.sub(r"\W", "_", column, flags=re.ASCII) or "_"
        name = f"_{name}" if name[0].isdigit() else name
        # `_TAKEN` contains Jinja's reserved words, and the name that the choices have in templates.
        while name in names.values() or name in _TAKEN:
            name += "_"
        names[column] = name
    return names


_TAKEN = {"answer_choices", "loop", "self", "true", "false", "none", "True", "False", "None"}
_TAKEN |= {"and", "or", "not", "in", "is", "if", "else", "for", "zip", "range", "dict", "namespace"}
_TAKEN |= {"cycler", "joiner"}


def _name_columns(plan: StarterFolder) -> dict[str, str]:
    """Returns column -> its name in the copied rows, for all columns except the label column.

    In the copied rows, the label column has the name `label`. If the only column whose name ends in
    the word "id", such as "message id", has different values, its name is `id`.
    """
    others = [name for name in plan.table.columns if name != plan.labels.column]
    names = column_names([LABEL, *others])
    del names[LABEL]
    ids = [name for name in others if _ID.search(name) and name not in plan.texts]
    if len(ids) == 1 and max(plan.table.columns[ids[0]].values.values(), default=0) == 1:
        names[ids[0]] = "id"
    return names


def _convert_rows(
    plan: StarterFolder, rows: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any] | None]:
    """Yields the copy of each row, or None for a row that is left out.

    A row is left out if it has no label, or if all its texts are empty.
    """
    names = _name_columns(plan)
    for row in rows:
        for name in (*plan.texts, plan.labels.column):
            if isinstance(row.get(name), bytes):
                raise UserError(
                    f"column '{name}' of {plan.table.where} contains bytes that are not valid "
                    f"UTF-8: {row[name][:40]!r}; write the column as text"
                )
        index = plan.labels.index(row.get(plan.labels.column))
        missing = {t for t in plan.texts if is_missing(row.get(t)) or not str(row[t]).strip()}
        if index is None or len(missing) == len(plan.texts):
            yield None
            continue
        copied = {names[name]: None if name in missing else row.get(name) for name in names}
        yield copied | {LABEL: index}


def _write_rows(plan: StarterFolder, data: str, splits: Mapping[str, Rows]) -> dict[str, Any]:
    counts = {name: dict.fromkeys(plan.labels.choices, 0) for name in ("train", "validation")}
    usable = {s: sum(map(bool, _convert_rows(plan, rows()))) for s, rows in splits.items()}
    if sum(usable.values()) < _FEWEST_ROWS or 0 in usable.values():
        listed = " and ".join(f"{number} rows of {split}" for split, number in usable.items())
        raise UserError(
            f"{plan.table.where}: {listed} have a text and a label; expected at least "
            f"{_FEWEST_ROWS} rows, and some of each split. The text is {' and '.join(plan.texts)}, "
            f"the label {plan.labels.column}: set others with --text and --label"
        )
    is_held_out = None if "validation" in splits else _choose_validation(plan, splits["train"])
    left_out = 0
    with publishing.writing(data), contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(
                open(posixpath.join(data, f"{name}.jsonl"), "w", encoding="utf-8")
            )
            for name in counts
        }
        for split, rows in splits.items():
            for row in _convert_rows(plan, rows()):
                if row is None:
                    left_out += 1
                    continue
                target_split = "validation" if is_held_out and is_held_out(row) else split
                line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
                files[target_split].write(line)
                counts[target_split][plan.labels.choices[row[LABEL]]] += 1
    return {"rows": counts, "left_out": left_out}


def _choose_validation(plan: StarterFolder, rows: Rows) -> Callable[[Mapping[str, Any]], bool]:
    """Returns a function that takes a copied row and returns whether it is a validation row.

    The function selects a tenth of the texts of each class. If a class has several different texts,
    both splits contain texts of this class.
    """
    texts = [_name_columns(plan)[name] for name in plan.texts]

    def hash_text(row: Mapping[str, Any]) -> int:
        return zlib.crc32(json.dumps([row[name] for name in texts], default=str).encode())

    hashes: dict[int, set[int]] = {}
    for row in filter(None, _convert_rows(plan, rows())):
        hashes.setdefault(row[LABEL], set()).add(hash_text(row))
    held_out: set[int] = set()
    for each in hashes.values():
        count = max(round(len(each) / _VALIDATION_SHARE), len(each) > 1)
        held_out |= set(sorted(each, key=lambda n: (n % _VALIDATION_SHARE, n))[:count])
    for each in hashes.values():
        if each <= held_out:  # its texts are also texts of other classes
            held_out.remove(max(each))
    if held_out:
        return lambda row: hash_text(row) in held_out
    places = itertools.count(1)  # each class has only one text, so every tenth row is chosen
    return lambda row: next(places) % _VALIDATION_SHARE == 0


def _templates(plan: StarterFolder) -> str:
    """Returns the text of the template file, which has two prompts.

    The inputs of the first prompt show the choices, if there are at most `MOST_LABELS`. The inputs
    of the second prompt do not.
    """
    names = _name_columns(plan)
    columns = [names[name] for name in plan.texts]
    if len(columns) == 1:
        text = f"{{{{{columns[0]}}}}}\n"
    else:  # a text is only printed if the row has it; 0 and false are values
        text = "".join(
            f"{{% if {c} is not none and {c} | string | trim %}}"
            f"{c.replace('_', ' ').strip()}: {{{{{c}}}}}\n{{% endif %}}"
            for c in columns
        )
    question = re.sub(r"[\W_]+", " ", plan.labels.column).strip() or LABEL
    listed = len(plan.labels.choices) <= MOST_LABELS
    shown_choices = ": {{answer_choices | join(', ')}}" * listed
    prompts = {
        "which": (f"{text}\nWhich {question} is it{shown_choices}?", listed),
        "say": (f"{text}\nThe {question} of this is", False),
    }
    choices = json.dumps(" ||| ".join(plan.labels.choices), ensure_ascii=False)
    columns = {LABEL: plan.labels.column} | {name: column for column, name in names.items()}
    renamed = {name: column for name, column in columns.items() if name != column}
    lines = [f"dataset: {plan.name}"]
    lines += [f"columns: {json.dumps(renamed, ensure_ascii=False)}"] if renamed else []
    lines += ["templates:"]
    for name, (asked, shown) in prompts.items():
        jinja = f"{asked} ||| {{{{answer_choices[{LABEL}]}}}}"
        lines += [
            f"  {plan.name}_{name}: !Template",
            f"    name: {name}",
            f"    id: {plan.name}_{name}",
            # A JSON string is also a valid YAML string.
            f"    jinja: {json.dumps(jinja, ensure_ascii=False)}",
            f"    answer_choices: {choices}",
            "    reference: ''",
            "    metadata: !TemplateMetadata",
            f"      choices_in_prompt: {'true' if shown else 'false'}",
            "      metrics: [Accuracy]",
            "      original_task: true",
        ]
    return "\n".join(lines) + "\n"


def _mixtures(plan: StarterFolder) -> str:
    return (
        "# Every prompt of the dataset joins, also those that you add.\n"
        f"{plan.name}_train:\n"
        f'  tasks: ["{plan.name}_(?!.*{SCORE_EVAL}$).*"]\n'
        f"{plan.name}_rank:\n"
        f'  tasks: ["{plan.name}_.*{SCORE_EVAL}"]\n'
    )


def measure(
    name: str, templates: str, rows: str, *, vocabulary: str | None
) -> tuple[dict[str, int], list[str]]:
    """Counts the tokens of the first rows of a starter folder, and chooses the sequence lengths.

    The lengths are chosen so that at most 1% of the inputs and no targets are truncated. But a
    length is never larger than `_LONGEST`.

    Args:
      name: the dataset's name.
      templates: the path of `templates.yaml`.
      rows: the path of `train.jsonl`.
      vocabulary: see `StarterFolder`.

    Returns:
      (sequence lengths of inputs and targets in tokens, notes for the user).

    Raises:
      UserError: a file cannot be read, or no prompt renders one of these rows.
    """
    tokens = Tokens(vocabulary) if vocabulary else None

    def count(text: str) -> int:
        # Without a vocabulary, the number is estimated. In English, a token has about four
        # characters, so dividing by 3 overestimates the number.
        return len(tokens.ids(text)) if tokens else len(text) // 3 + 1

    tasks = [
        PromptedTask(name, None, template, {}, {})
        for template in read_template_file(templates).templates
    ]
    counts, targets, choices = [], {}, {}
    measured = cut = breaks = 0
    unknown: Counter[str] = Counter()
    for row in JsonLines(Path(rows)).rows(0, _ROWS_MEASURED):
        measured += 1
        examples = [*filter(None, (task.compiled.example(row, 0) for task in tasks))]
        counts += [count(example.inputs) for example in examples]
        for example in examples:
            choices |= dict.fromkeys(example.choices or ())
            targets |= dict.fromkeys(example.choices or [example.targets])
        cut += any(example.cut for example in examples)
        breaks += any(isinstance(value, str) and "\n" in value.strip() for value in row.values())
        if tokens and any(UNKNOWN in tokens.ids(example.inputs) for example in examples):
            tokens.characters.count("\n".join(e.inputs for e in examples), unknown)
    if not counts:
        raise UserError(
            f"{templates}: expected prompts that render the rows of {rows}; none renders one of the "
            f"first {measured:,}. Correct the prompts or the rows"
        )
    notes = vocabulary_notes(tokens, list(choices)) if tokens else []
    if unknown:
        notes.append(f"of the first {measured:,} rows, {describe_unknown(unknown)}")
    if breaks and tokens and tokens.ids("a\nb") == tokens.ids("a b"):
        notes.append(
            f"line breaks become spaces ({breaks:,} of the first {measured:,} rows have some)"
        )
    if cut:
        notes.append(
            f"{cut:,} of the first {measured:,} rows have a text that is cut at "
            f"{LONGEST_PRINTED:,} characters; `truncate: false` in templates.yaml prints it whole"
        )
    counts.sort()
    longest = {"inputs": counts[len(counts) * 99 // 100], "targets": max(map(count, targets)) + 1}
    lengths = {
        feature: min(max(-(-longest[feature] // 16) * 16, 16), most)
        for feature, most in _LONGEST.items()
    }
    return lengths, notes


def _train_file(plan: StarterFolder) -> str:
    return f"""\
# -*-Python-*-
# A small T5.1.1 on {plan.name}, from random weights: minutes on two CPU cores.
#
# For results that matter, start from T5's weights: include 'models/t5.1.1.small.gin' and
# 'runs/finetune.gin' here instead of the first two files, leave out the learning rate, and add
# --checkpoint=CHECKPOINT --finetune_steps=1000 to the command, with T5's vocabulary.
#
# The lengths, TASK_FEATURE_LENGTHS, are in starter.json, which all commands read.

include 'models/t5.1.1.mini.gin'
include 'runs/pretrain.gin'
include 'learning_rate_schedules/constant_0_001.gin'

MIXTURE_OR_TASK_NAME = "{plan.name}_train"
BATCH_SIZE = 16
DROPOUT_RATE = 0.1
USE_CACHED_TASKS = True
TRAIN_STEPS = {STEPS}
EVAL_PERIOD = {STEPS // 4}

constant_learning_rate.learning_rate = 0.003
run.save_checkpoints_steps = {STEPS // 2}
run.keep_checkpoint_max = 1
keep_checkpoints.best_by = "validation_loss"
serialize_num_microbatches.tokens_per_microbatch_per_replica = None
"""


def commands(folder: str, plan: StarterFolder) -> dict[str, list[str]]:
    """Returns step -> the step's command line, in the order of the steps."""

    def inside(*names: str) -> str:
        return posixpath.join(folder, *names)

    predictions = ["new.csv", "--output", "predictions.csv"]
    return {
        "look": ["t0", "show", folder],
        "cache": ["seqio_cache_tasks", f"--output_cache_dir={inside('cache')}"],
        "train": ["t5_mesh_transformer", f"--gin_file={inside('train.gin')}"],
        "evaluate": ["t0", "eval", inside("model")],
        "predict": ["t0", "predict", inside("model"), *predictions],
    }


def _script(lines: Mapping[str, Sequence[str]]) -> str:
    """Returns the text of `commands.sh`.

    The command of the last step is a comment in this file, because the step needs new rows.
    """
    body = ""
    for title, words in lines.items():
        rows = " (your own rows in new.csv)\n# " if title == "predict" else "\n"
        body += f"\n# {title}{rows}{shlex.join(words)}\n"
    head = "#!/usr/bin/env bash\n# Run in the folder that `t0 init` ran in.\nset -euo pipefail\n"
    return head + body
