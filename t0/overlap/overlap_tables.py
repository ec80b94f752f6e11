r"""Formats the result as plain text of at most 80 columns: a table, then details by dataset.

    print("\n".join(tables(facts)))        # facts: the content of overlap.json

The table has a row for each dataset, and below it rows for its fields and prompts:

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
    """Yields the lines of the report."""
    run = facts["run"]
    yield from _wrapped(
        f"{', '.join(run['eval'])} (split {run['eval_split']}) in {', '.join(run['train'])} "
        f"(split {run['train_split']}): {run['train_texts']:,} texts, {run['train_words']:,} "
        "words."
    )
    ngrams = [str(n) for n in run["ngrams"][:_MOST_LENGTHS]]
    yield from _wrapped(
        f"A row overlaps if {run['ngrams'][0]} of its words in a row, or a whole field of at least "
        f"{run['min_words']}, occur in a training text."
    )
    for note in run["notes"]:
        yield from _wrapped(f"note: {note}")
    yield ""
    yield _line("evaluation rows", "rows", [f"{n}-grams" for n in ngrams], 2 * _SHARE)
    yield _line("", "", [title for _ in ngrams for title in ("rows", "words")])
    for name, found in facts["datasets"].items():
        yield from _dataset(name, found, ngrams)
    for name, found in facts["datasets"].items():
        yield from _places(name, found)
        for example in found["examples"][:2]:
            yield from _example(example)


def _dataset(name: str, found: Mapping[str, Any], ngrams: Sequence[str]) -> Iterator[str]:
    fields = found["fields"].values()
    words = sum(field["words"] for field in fields)
    shares = []
    for n in ngrams:
        overlapping = sum(field["overlapping_words"][n] for field in fields)
        shares += [_share(found["overlapping"][n], found["rows"]), _share(overlapping, words)]
    yield from _row(name, found["rows"], shares)
    for kind in ("field", "prompt"):
        for part, tally in found[f"{kind}s"].items():
            shares = []
            for n in ngrams:
                shares += [
                    _share(tally["overlapping"][n], tally["texts"]),
                    _share(tally["overlapping_words"][n], tally["words"]),
                ]
            yield from _row(f"  {kind} {part}", tally["texts"], shares)


def _row(name: str, count: int, shares: Sequence[str]) -> Iterator[str]:
    name = printable(name).replace("\n", " ")
    if len(name) >= _NAME:
        yield from textwrap.wrap(name, WIDTH, subsequent_indent="    ", drop_whitespace=False)
        name = ""
    yield _line(name, f"{count:,}", shares)


def _line(name: str, count: str, cells: Sequence[str], width: int = _SHARE) -> str:
    return f"{name:<{_NAME}}{count:>{_COUNT}}{''.join(f'{c:>{width}}' for c in cells)}".rstrip()


def _share(part: int, whole: int) -> str:
    """Formats a share as a percentage; only an exact zero is shown as 0.

    >>> _share(0, 7), _share(1, 10_000), _share(1, 3)
    ('0', '<0.1%', '33.3%')
    """
    if not part:
        return "0"
    share = 100 * part / whole
    return "<0.1%" if share < 0.1 else f"{share:.1f}%"


def _places(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    if not found["found_in"]:
        return
    several = [*found["found_in"].items()]
    words = [f"{dataset} {rows:,}" for dataset, rows in several[:_MOST_DATASETS]]
    more = len(several) - _MOST_DATASETS
    words += [f"and {more} more datasets"] if more > 0 else []
    yield ""
    yield from _wrapped(f"{name}, rows found in: {', '.join(words)}")


def _example(example: Mapping[str, Any]) -> Iterator[str]:
    where = example["where"]
    place = f"{where['task']}, split {where['split']}, record {where['record']:,}"
    yield from _wrapped(
        f"row {example['row']}, {example['part']}: {example['same']} words in a row in {place}:",
        "  ",
    )
    yield from _wrapped(f"... {example['training_text']} ...", "    ")


def _wrapped(text: str, indent: str = "") -> Iterator[str]:
    yield from textwrap.wrap(
        printable(text).replace("\n", " "),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + ("" if indent else "  "),
    )
