"""What is known of T0's own datasets that would otherwise stop a run: dropped rows, hidden labels.

    behaviours("glue", "mrpc", "train", "generate_paraphrase")
    # (Behaviour(kind="drops", rows=3668, kept=2474, reason="asks for a paraphrase, ..."),)

The table is `known.csv`: what the templates of promptsource 0.1.0 do with the datasets of October
2021, by their own conditions. `kept` is the number of examples that P3, as published, has.
"""

import csv
import dataclasses
import functools
import importlib.resources

DROPS, HIDES, MISMATCHES = "drops", "hides", "mismatches"
_ALL = "*"


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """A row of the table, as it concerns one split of a task.

    Attributes:
      kind: DROPS (the template renders nothing for some rows), HIDES (labels are withheld) or
        MISMATCHES (the template's answer choices never contain its target).
      reason: why that is right.
      rows: rows of the split in 2021, None if not recorded.
      kept: examples of the split in P3, None if not recorded.
    """

    kind: str
    reason: str
    rows: int | None = None
    kept: int | None = None


@functools.cache
def _table() -> tuple[dict[str, str], ...]:
    file = importlib.resources.files("t0.caching").joinpath("known.csv")
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def behaviours(
    dataset: str, subset: str | None, split: str, template: str
) -> tuple[Behaviour, ...]:
    """Returns what is known of a template over a split of a dataset; mostly nothing."""
    wanted = {"dataset": dataset, "subset": subset or "", "split": split}
    return tuple(
        Behaviour(row["kind"], row["reason"], _number(row["rows"]), _number(row["kept"]))
        for row in _table()
        if all(row[name] in (_ALL, value) for name, value in wanted.items())
        and (row["templates"] == _ALL or template in row["templates"].split("|"))
    )


def _number(text: str) -> int | None:
    return int(text) if text else None
