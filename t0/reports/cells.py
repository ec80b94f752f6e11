"""The texts of numbers, facts and rows, as every form of the report shows them.

    number(71.24)          # "71.2"
    p_value(0.0004)        # "< 0.001"
    signed(-0.04)          # "0.0"

What is unknown is a dash.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t0.reports.ways import WAYS

TEXT_LIMIT = 1_500  # characters shown of an input or a choice


def number(value: float | None, digits: int = 1) -> str:
    """Returns a number with the given digits after the point, a dash for None.

    >>> number(54.151), number(None)
    ('54.2', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def count(value: int | None) -> str:
    """Returns a count with thousands separators, a dash for None."""
    return "–" if value is None else f"{value:,}"


def signed(value: float, digits: int = 1) -> str:
    """Returns a number with its sign, which is a typographic minus or plus; zero has no sign.

    >>> signed(-2.04), signed(0.01)
    ('−2.0', '0.0')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if not float(text) else text.replace("-", "−")


def span(low: int, high: int) -> str:
    """Returns the smallest and the largest of some counts, one number where they are equal."""
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def interval(row: Any, kind: str = "interval") -> str:
    """Returns a table row's interval as "low to high", empty where there is none.

    Args:
      row: the row, with the columns `<kind>_low` and `<kind>_high`.
      kind: "interval", "fixed" (for these prompts alone) or "calibration".
    """
    ends = getattr(row, f"{kind}_low"), getattr(row, f"{kind}_high")
    if ends[0] is None:
        return ""
    low, high = (f"{end:.1f}".replace("-", "−") for end in ends)
    return f"{low} to {high}"


def most_predicted(row: Any) -> str:
    """Returns the answer that a prompt predicts most often, with its share, or a dash."""
    if row.most_predicted is None:
        return "–"
    return f"{shortened(row.most_predicted_answer, 40)} {row.most_predicted:.0f} %"


def p_value(p: float) -> str:
    """Returns a p-value to two significant digits, or that it is below 0.001."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def fact(value: Any) -> str:
    """Returns a value of the results' `run` object as text; objects as "key value, ...".

    >>> fact({"inputs": 1024, "targets": 256})
    'inputs 1024, targets 256'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """Returns a text, or its beginning and the number of characters left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … [{len(text) - limit:,} more characters]"


CLEAN_HEADS = ("Examples", "Overlapping", "All", "Clean", "Clean - all", "Interval", "p")
_GAP_HEADS = ("Difference, all", "Difference, clean", "p, clean")


def clean_cells(row: Mapping[str, Any], *, gaps: bool) -> list[str]:
    """Returns the cells of a row of `Summary.clean`, under `CLEAN_HEADS` and those of gaps."""
    difference = ["–"] * 3
    if row["difference"] is not None:
        ends = (signed(row["difference_low"]), signed(row["difference_high"]))
        tested = p_value(row["p_value"])
        difference = [signed(row["difference"]), " to ".join(ends), tested]
    compared = ["–"] * 3
    if row["gap_clean"] is not None:
        compared = [signed(row["gap_all"]), signed(row["gap_clean"]), p_value(row["gap_p_value"])]
    counts = [count(row["examples"]), count(row["overlapping"])]
    means = [number(row["all"]), number(row["clean"])]
    return [*counts, *means, *difference, *(compared if gaps else ())]


def clean_heads(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], bool]:
    """Returns the headings of numbers for rows of `Summary.clean`, and whether there are gaps."""
    gaps = any(row["gap_all"] is not None for row in rows)
    return [*CLEAN_HEADS, *(_GAP_HEADS if gaps else ())], gaps


WAYS_SENTENCE = (
    "Accuracy in percent, mean over prompts with its interval. T0’s is by the plain sum of a "
    "choice’s log-probabilities; beside it the sum divided by the choice’s tokens, and by its "
    "characters; and whether the decoded answer is the right choice."
)


def ways_heads(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns way -> heading of the ways that rows of `Summary.ways` have."""
    return {way: head for way, head in WAYS.items() if any(row[way] is not None for row in rows)}


def ways_cells(row: Mapping[str, Any], ways: Iterable[str]) -> list[str]:
    """Returns the cells of a row of `Summary.ways`."""
    return [
        "–"
        if row[way] is None
        else f"{number(row[way])} ({row[f'{way}_low']:.1f} to {row[f'{way}_high']:.1f})"
        for way in ways
    ]
