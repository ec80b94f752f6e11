"""Warns that some classes have no examples, so that an evaluation cannot measure their recall.

    >>> warn_of_absent_classes({"yes": 30, "no": 0, "maybe": 0}, "validation")
    "validation has no example of the classes 'no', 'maybe', so it cannot measure their recall"

`t0 init`, caching and reports all print this warning.
"""

from collections.abc import Mapping

_MOST_NAMED = 5


def warn_of_untrained_classes(counts: Mapping[str, Mapping[str, int]]) -> str | None:
    """Returns a warning that names the classes that only the validation split has.

    Args:
      counts: "train" and "validation" -> class -> number of the split's examples.
    """
    only = [
        f"{n!r}" for n, count in counts["validation"].items() if count > counts["train"][n] == 0
    ]
    if not only:
        return None
    return (
        f"train has no example of {_list_some(only)}, which validation has, so the model cannot "
        "learn to answer this"
    )


def warn_of_absent_classes(counts: Mapping[str, int], where: str) -> str | None:
    """Returns a warning that names the classes without examples; None if there are none.

    Args:
      counts: class -> number of its examples. If all numbers are 0, the dataset withholds the
        labels. Other functions report withheld labels, so this function then returns None.
      where: the name of the split or task, with which the warning starts.
    """
    absent = [repr(name) for name, count in counts.items() if not count]
    if not absent or len(absent) == len(counts):
        return None
    noun, pronoun = ("class", "its") if len(absent) == 1 else ("classes", "their")
    names = _list_some(absent)
    return f"{where} has no example of the {noun} {names}, so it cannot measure {pronoun} recall"


def _list_some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" * (len(names) > _MOST_NAMED)
    return ", ".join(names[:_MOST_NAMED]) + more
