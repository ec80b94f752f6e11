"""`t0 tasks [REGEX]`: lists tasks and mixtures, their sizes, and whether they are cached.

t0 tasks                         # the mixtures
t0 tasks t0++_train              # a mixture's tasks with their rates
t0 tasks 'super_glue_rte_.*'     # tasks by regular expression (matched at the name's start)
t0 tasks --additional_task_cache_dirs=/data/cache --json sciq_.*
t0 tasks t0_train --rates --steps=10000     # shares, epochs, and the tasks whose rate is capped

Without --module_import, it reads T0's catalogue. This does not need TensorFlow. `t0 show` and
`t0 lint` read their tasks in the same way:

    listing = read_listing(["t0.recipes"], ["/data/cache"])
    listing.tasks["text_lm"].splits
"""

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t0.catalogue import listing
from t0.catalogue.mixing_rates import capped_tasks
from t0.catalogue.row_preview import PreviewText, RowPreview
from t0.cli.arguments import Number, add_shared, split_list
from t0.config.plain_data import Positive
from t0.errors import UserError, unknown_name
from t0.text_tables import print_table

_COLUMNS = {
    "mixture": ("mixture", "tasks", "rate", "cached"),
    "task": ("task", "splits", "rate", "cached"),
}
_RATE_COLUMNS = ("task", "rate", "share", "epochs", "capped")
# T0 and T5 train with 2^20 tokens a batch, which are 1,024 rows of 1,024 tokens.
_EXAMPLES_PER_STEP = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    regex = "a mixture's name, or a regular expression of tasks"
    parser.add_argument("regex", nargs="?", help=regex)
    add_shared(parser, "data_dir", "cache_dirs", "module_import", "json")
    parser.add_argument(
        "--rates",
        action="store_true",
        help="print rate, share, epochs and caps of a mixture's tasks",
    )
    parser.add_argument(
        "--steps", action=Number, kind=Positive, metavar="N", help="steps, to compute epochs"
    )
    parser.add_argument(
        "--examples_per_step",
        action=Number,
        kind=Positive,
        default=_EXAMPLES_PER_STEP,
        metavar="N",
        help=f"examples in a batch (default: {_EXAMPLES_PER_STEP:,}; packed rows have several)",
    )


def main(args: argparse.Namespace) -> int:
    """Lists the selected tasks or mixtures.

    Raises:
      UserError: a name is unknown. The message suggests similar names.
    """
    if args.steps and not args.rates:
        raise UserError(f"--steps={args.steps} is for the epochs in --rates: add --rates.")
    tasks = read_listing(args.module_import, split_list(args.cache_dirs))
    if args.rates:
        columns, rows = _RATE_COLUMNS, _rate_rows(tasks, args)
        kind = "task"
    else:
        kind, rows = _rows(tasks, args.regex)
        columns = _COLUMNS[kind]
    if args.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    format_value = _format_rate if args.rates else _format_value
    cells = [[format_value(row[c]) for c in columns] for row in rows]
    print_table(columns, cells, right=("rate", "share", "epochs"))
    print(f"{len(rows):,} {kind if len(rows) == 1 else kind + 's'}", file=sys.stderr)
    return 0


def _rows(tasks: Any, regex: str | None) -> tuple[str, list[dict[str, Any]]]:
    if regex is None:
        return "mixture", [_mixture(tasks, name) for name in tasks.mixtures]
    if regex in tasks.mixtures:
        return "task", [_task(tasks, name, rate) for name, rate in tasks.members(regex)]
    return "task", [_task(tasks, name, None) for name in tasks.select(regex)]


def _rate_rows(tasks: Any, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each task of a mixture.

    The keys are `task`, `rate`, `share` (of the examples), `epochs` (passes over the train split in
    `--steps` steps; None if unknown) and `capped` (whether the rate would be larger without a cap).

    Raises:
      UserError: the mixture is unknown.
    """
    mixture = args.regex
    if mixture not in tasks.mixtures:
        fix = "Name a mixture: t0 tasks MIXTURE --rates."
        raise unknown_name("mixture", mixture or "", tasks.mixtures, fix)
    members, capped = tasks.members(mixture), tasks.capped(mixture)
    total = sum(rate for _, rate in members if rate is not None)
    rows = []
    for name, rate in members:
        share = rate / total if total and rate is not None else None
        size = tasks.training_examples(name) if args.steps and share is not None else None
        epochs = args.steps * args.examples_per_step * share / size if size else None
        row = (name, rate, share, epochs, name in capped)
        rows.append(dict(zip(_RATE_COLUMNS, row, strict=True)))
    return rows


def _format_rate(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:,.4g}" if isinstance(value, float) and value < 1000 else _format_value(value)


def _mixture(tasks: Any, name: str) -> dict[str, Any]:
    members = tasks.members(name)
    cached = sum(bool(tasks.tasks[task].cache_dir) for task, _ in members)
    return {
        "mixture": name,
        "tasks": len(members),
        "rate": None if None in dict(members).values() else sum(dict(members).values()),
        "cached": f"{cached} of {len(members)}",
    }


def _task(tasks: Any, name: str, rate: float | None) -> dict[str, Any]:
    cached = tasks.tasks[name].cache_dir or ""
    return {"task": name, "splits": tasks.sizes(name), "rate": rate, "cached": cached}


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        # The number of examples of a text source is unknown before it is read.
        sizes = {split: "?" if size is None else f"{size:,}" for split, size in value.items()}
        return ", ".join(f"{split} {size}" for split, size in sizes.items())
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return value or "-"


@dataclasses.dataclass(frozen=True)
class RegisteredListing:
    """Gives SeqIO's registries the methods of `t0.catalogue.listing.Listing`.

    Attributes:
      tasks: name -> SeqIO task.
      mixtures: name -> SeqIO mixture.
    """

    tasks: Mapping[str, Any]
    mixtures: Mapping[str, Any]

    def members(self, mixture: str) -> list[tuple[str, float | None]]:
        """Returns (task, rate) for each task of a mixture. The rate is None if it is unknown."""
        from t0.feeding.data_spec import rate_of

        seqio_mixture = self.mixtures[mixture]
        return [
            (task.name, _if_known(functools.partial(rate_of, seqio_mixture, task), task.name))
            for task in seqio_mixture.tasks
        ]

    def capped(self, mixture: str) -> set[str]:
        """Returns the names of a mixture's tasks whose rate would be larger without a cap."""
        mixtures = {n: list(m.rate_per_task_name.items()) for n, m in self.mixtures.items()}
        return _if_known(lambda: capped_tasks(mixture, mixtures, self.tasks), mixture) or set()

    def training_examples(self, name: str) -> int | None:
        """Returns the number of a task's training examples, those of its cache if it has one."""
        from t0.feeding.data_spec import count_examples

        task = self.tasks[name]
        cached = bool(task.cache_dir)
        return _if_known(lambda: count_examples(task, "train", use_cached=cached), name)

    def sizes(self, name: str) -> dict[str, int | None]:
        """Returns split -> number of examples (None if unknown); {} if the data is absent."""
        from t0.feeding.data_spec import count_examples

        task = self.tasks[name]

        def count_splits() -> dict[str, int | None]:
            return {split: count_examples(task, split) for split in task.splits}

        return _if_known(count_splits, name) or {}

    def select(self, expression: str) -> list[str]:
        """Returns the sorted names of the tasks that an expression selects.

        Args:
          expression: a mixture's name, or a regular expression that matches the start of tasks'
            names.
        """
        if expression in self.mixtures:
            return [task.name for task in self.mixtures[expression].tasks]
        return listing.matching(expression, self.tasks, self.mixtures)


def _if_known(compute: Callable[[], Any], name: str) -> Any:
    """Returns the result of a function. If its data is missing, prints why and returns None."""
    try:
        return compute()
    except UserError as error:  # not raised, because users did not request every task in a listing
        print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def read_listing(
    modules: Sequence[str] | None, cache_dirs: Sequence[str] = ()
) -> listing.Listing | RegisteredListing:
    """Returns the catalogue's tasks or, if modules are named, the tasks that they register.

    Args:
      modules: the names of the modules to import. If empty or None, the catalogue is returned.
      cache_dirs: folders with cached tasks.

    Raises:
      UserError: a module does not exist.
    """
    if not modules:
        return listing.read_listing(cache_dirs)
    from t0.compat import seqio
    from t0.run.configure import import_modules

    import_modules(modules)
    seqio.add_global_cache_dirs(list(cache_dirs))
    return RegisteredListing(
        {name: seqio.TaskRegistry.get(name) for name in seqio.TaskRegistry.names()},
        {name: seqio.MixtureRegistry.get(name) for name in seqio.MixtureRegistry.names()},
    )


def shown_examples(
    task: Any, split: str, first: int, number: int, lengths: Mapping[str, int]
) -> Iterator[RowPreview]:
    """Yields examples of a SeqIO task, after its preprocessors, truncated to `lengths`.

    Args:
      first: the index of the first example to yield, in the task's order.
      number: the maximum number of examples.
      lengths: feature -> the maximum number of tokens, for inputs and targets.

    Raises:
      UserError: the first example does not exist, or the task's vocabulary does not fit T5.
    """
    from t0.tasks.vocabulary import check_vocabularies

    check_vocabularies(task)
    limits = {n: lengths.get(n, lengths["inputs"]) for n in task.output_features}
    dataset = task.get_dataset(limits, split=split, use_cached=False, shuffle=False)
    index = first - 1
    examples = dataset.skip(first).take(number).as_numpy_iterator()
    for index, example in enumerate(examples, start=first):
        # Features that are not required may be absent.
        present = [name for name in task.output_features if name in example]
        texts = {name: _preview_text(task, name, example, limits[name]) for name in present}
        title = f"{task.name}, split {split}, example {index}"
        yield RowPreview(
            title, texts.get("inputs"), texts.get("targets"), None, _describe_gaps(task, texts)
        )
    if index < first:
        raise UserError(f"{task.name}, split '{split}', has no example {first}; the first is 0")


def _preview_text(task: Any, name: str, example: Mapping[str, Any], limit: int) -> PreviewText:
    ids = [int(token) for token in example[name]]
    return PreviewText(task.output_features[name].vocabulary.decode(ids), ids, limit)


def _describe_gaps(task: Any, texts: Mapping[str, PreviewText]) -> list[str]:
    features, target = task.output_features, texts.get("targets")
    unknown = target.ids.count(features["targets"].vocabulary.unk_id) if target else 0
    plural = "s" * (unknown > 1)
    notes = [
        f"the target has {unknown} unknown token{plural}, because the vocabulary does not have all "
        "of its characters"
    ] * bool(unknown)
    return notes + [
        f"{name} fill their length: the rest may be cut off"
        for name, text in texts.items()
        if len(text.ids) == text.limit
    ]
