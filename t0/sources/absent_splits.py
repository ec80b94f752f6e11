"""Lists missing splits in one table, with the file in which each split's rows are expected.

absent_table([AbsentSplit("anli", None, "dev_r1"), AbsentSplit("super_glue", "rte", "test")])
# dataset         split   put its rows into
# anli            dev_r1  /data/anli/default/dev_r1.jsonl
# super_glue/rte  test    /data/super_glue/rte/test.jsonl
"""

from collections.abc import Iterable
from typing import NamedTuple

from t0.sources import hub
from t0.sources.folders import DATA_DIR_VARIABLE, FILE_PATTERN, data_dirs
from t0.sources.schema import DEFAULT_SUBSET
from t0.text_tables import table_lines


class AbsentSplit(NamedTuple):
    """A split whose rows were not found.

    Attributes:
      dataset: the dataset's name.
      subset: its subset; None if it has none.
      split: the dataset's own name of the split.
      hub_faults: the reasons why the rows could not be read from the Hugging Face hub.
    """

    dataset: str
    subset: str | None
    split: str
    hub_faults: tuple[str, ...] = ()


def absent_table(splits: Iterable[AbsentSplit]) -> str:
    """Returns a table of missing splits, and the ways to provide their rows."""
    folder, rows, notes = next(map(str, data_dirs()), "DIR"), [], {}
    for dataset, subset, split, hub_faults in dict.fromkeys(splits):
        file = f"{folder}/{dataset}/{subset or DEFAULT_SUBSET}/{split}.jsonl"
        rows.append(("/".join(filter(None, (dataset, subset))), split, file))
        by_hand = hub.HUB[dataset].by_hand if dataset in hub.HUB else ""
        notes |= dict.fromkeys(filter(None, (by_hand, *hub_faults)))
    advice = (
        f"or into any {FILE_PATTERN}. --data_dir or {DATA_DIR_VARIABLE} sets the folder of the data"
    )
    table = table_lines(("dataset", "split", "put its rows into"), rows)
    return "\n".join([*table, advice, *notes])
