r"""Formats the result of an overlap search as plain text of at most 80 columns.

    print("\n".join(tables(facts)))        # facts: the content of overlap.json

The text starts with a table, followed by the training datasets and examples of each evaluation
dataset. The table has a row for each evaluation dataset, and below it rows for its fields and
prompts:

    evaluation rows                           rows     13-grams       8-grams
                                                     rows  words    rows  words
    super_glue/rte                             277   4.3%   1.9%    7.9%   3.1%
      field hypothesis                         277   0.4%   0.3%    0.7%   0.5%
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t0.errors import printable

WIDTH = 80
_NAME, _COUNT, _SHARE = 42, 8, 7
_MOST_LENGTHS = 2
_MOST_DATASETS = 8


def tables(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the plain text, from the content of `overlap.json`."""
    run = facts["run"]
    yield from _wrap(
        f"{', '.join(run['eval'])} (split {run['eval_split']}) in {', '.join(run['train'])} "
        f"(split {run['train_split']}): {run['train_texts']:,} texts, {run['train_words']:,} "
        "words."
    )
    ngrams = [str(n) for n in run["ngrams"][:_MOST_LENGTHS]]
    yield from _wrap(
        f"A row overlaps if {run['ngrams'][0]} of its consecutive words, or a whole field of at "
        f"least {run['min_words']} words, occur in a training text."
    )
    for note in run["notes"]:
        yield from _wrap(f"note: {note}")
    yield ""
    yield _format_line("evaluation rows", "rows", [f"{n}-grams" for n in ngrams], 2 * _SHARE)
    yield _format_line("", "", [title for _ in ngrams for title in ("rows", "words")])
    for name, counts in facts["datasets"].items():
        yield from _format_dataset(name, counts, ngrams)
    for name, counts in facts["datasets"].items():
        yield from _format_training_datasets(name, counts)
        for example in counts["examples"][:2]:
            yield from _format_example(example)


def _format_dataset(name: str, counts: Mapping[str, Any], ngrams: Sequence[str]) -> Iterator[str]:
    fields = counts["fields"].values()
    words = sum(field["words"] for field in fields)
    shares = []
    for n in ngrams:
        overlapping = sum(field["overlapping_words"][n] for field in fields)
        shares += [
            _format_share(counts["overlapping"][n], counts["rows"]),
            _format_share(overlapping, words),
        ]
    yield from _format_row(name, counts["rows"], shares)
    for kind in ("field", "prompt"):
        for text_name, tally in counts[f"{kind}s"].items():
            shares = []
            for n in ngrams:
                shares += [
                    _format_share(tally["overlapping"][n], tally["texts"]),
                    _format_share(tally["overlapping_words"][n], tally["words"]),
                ]
            yield from _format_row(f"  {kind} {text_name}", tally["texts"], shares)


def _format_row(name: str, count: int, shares: Sequence[str]) -> Iterator[str]:
    name = printable(name).replace("\n", " ")
    if len(name) >= _NAME:
        yield from textwrap.wrap(name, WIDTH, subsequent_indent="    ", drop_whitespace=False)
        name = ""
    yield _format_line(name, f"{count:,}", shares)


def _format_line(name: str, count: str, cells: Sequence[str], width: int = _SHARE) -> str:
    return f"{name:<{_NAME}}{count:>{_COUNT}}{''.join(f'{c:>{width}}' for c in cells)}".rstrip()


def _format_share(count: int, total: int) -> str:
    """Formats a share as a percentage; only an exact zero is shown as 0.

    >>> _format_share(0, 7), _format_share(1, 10_000), _format_share(1, 3)
    ('0', '<0.1%', '33.3%')
    """
    if not count:
        return "0"
    share = 100 * count / total
    return "<0.1%" if share < 0.1 else f"{share:.1f}%"


def _format_training_datasets(name: str, counts: Mapping[str, Any]) -> Iterator[str]:
    if not counts["found_in"]:
        return
    datasets = [*counts["found_in"].items()]
    words = [f"{dataset} {rows:,}" for dataset, rows in datasets[:_MOST_DATASETS]]
    omitted = len(datasets) - _MOST_DATASETS
    words += [f"and {omitted} more datasets"] if omitted > 0 else []
    yield ""
    yield from _wrap(f"{name}, rows found in: {', '.join(words)}")


def _format_example(example: Mapping[str, Any]) -> Iterator[str]:
    where = example["where"]
    location = f"{where['task']}, split {where['split']}, record {where['record']:,}"
    yield from _wrap(
        f"row {example['row']}, {example['part']}: {example['same']} consecutive words in "
        f"{location}:",
        "  ",
    )
    yield from _wrap(f"... {example['training_text']} ...", "    ")


def _wrap(text: str, indent: str = "") -> Iterator[str]:
    yield from textwrap.wrap(
        printable(text).replace("\n", " "),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + ("" if indent else "  "),
    )
