"""The texts of numbers, intervals and facts, as page and terminal show them.

    number(71.24)          # "71.2"
    p_value(0.0004)        # "< 0.001"
    signed(-0.04)          # "0.0"

An unknown value is a dash.
"""

from collections.abc import Mapping
from typing import Any

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


def span(low: float, high: float, digits: int = 0) -> str:
    """Returns the smallest and the largest of some values, one number if they are equal.

    >>> span(9, 1267), span(40.0, 62.54, 1)
    ('9–1,267', '40.0–62.5')
    """
    texts = [f"{value:,.{digits}f}" for value in (low, high)]
    return texts[0] if low == high and not digits else "–".join(texts)


def interval(row: Mapping[str, Any], kind: str = "interval") -> str:
    """Returns a row's interval as "low to high", empty if there is none.

    Args:
      row: the row, with the keys `<kind>_low` and `<kind>_high`.
      kind: "interval", "fixed" (for these prompts only) or another prefix.
    """
    ends = row[f"{kind}_low"], row[f"{kind}_high"]
    if ends[0] is None:
        return ""
    low, high = (f"{end:.1f}".replace("-", "−") for end in ends)
    return f"{low} to {high}"


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
