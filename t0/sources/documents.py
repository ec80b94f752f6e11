"""Finds the document of a row, such as the passage that a question is about.

    column = document_column("super_glue", "boolq", rows.columns)     # "passage"
    document_key(row[column])                                         # "c0ffee0123456789"
    documents_in_rows("super_glue", "boolq", "validation", 3270)      # a key for each row

Several rows may have the same document. Statistics treat these rows as one observation. In caches
for rank evaluation, each record stores the key of its document as the feature `document`. For T0's
datasets, `COLUMNS` lists the column that contains the documents. In the user's own data, this is
the column `document_id`.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from t0.errors import AbsentData, UserError
from t0.sources.splits import available_splits, open_split

OWN_COLUMN = "document_id"
# If fewer than one in so many rows are needed, they are read one by one instead of all together.
_SAMPLE = 8
# Name of a dataset, with or without its subset -> the column that holds the documents.
COLUMNS = {
    "adversarial_qa": "context",
    "anli": "premise",
    "cosmos_qa": "context",
    "hellaswag": "source_id",
    "quail": "context_id",
    "quoref": "context",
    "race": "article",
    "ropes": "background",
    "squad_v2": "context",
    "super_glue/boolq": "passage",
    "super_glue/cb": "premise",
    "super_glue/multirc": "paragraph",
    "super_glue/record": "passage",
    "super_glue/rte": "premise",
    "super_glue/wsc.fixed": "text",
    "wiki_qa": "question_id",
}


def document_column(dataset: str, subset: str | None, columns: Iterable[str]) -> str | None:
    """Returns the column that holds the documents of a dataset; None if there is no such column."""
    column = COLUMNS.get(f"{dataset}/{subset}") or COLUMNS.get(dataset) or OWN_COLUMN
    return column if column in columns else None


def document_key(value: Any) -> str:
    """Returns a hash of a row's document as 16 hexadecimal digits."""
    text = str(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def documents_in_rows(
    dataset: str, subset: str | None, split: str, count: int, numbers: Sequence[int] | None = None
) -> list[str] | None:
    """Returns the document key of rows of a split that is on this machine.

    Args:
      dataset: the dataset's name.
      subset: the dataset's subset, or None.
      split: the split's name in the dataset.
      count: the expected number of rows of the split.
      numbers: the numbers of the rows to read, ascending; None for all rows.

    Returns:
      the keys; None if the split is not on this machine, if its rows have no column with documents,
      or if the number of its rows is not `count`.
    """
    find_column = functools.partial(document_column, dataset, subset)
    keys = _column_of_rows(dataset, subset, split, count, numbers, find_column)
    return keys and [document_key(key) for key in keys]


def ids_in_rows(
    dataset: str, subset: str | None, split: str, count: int, numbers: Sequence[int] | None = None
) -> list[str] | None:
    """Returns the user's id of rows of a split.

    If a row has no id, its number is returned instead. The arguments are the same as those of
    `documents_in_rows`. The result is None if the split is not on this machine, if its rows have no
    column `id`, or if the number of its rows is not `count`. It is also None if the rows cannot be
    read. That is no error, because an evaluation of a cache does not need the ids.
    """

    def find_id(columns: Iterable[str]) -> str | None:
        return next((name for name in columns if name.lower() == "id"), None)

    try:
        ids = _column_of_rows(dataset, subset, split, count, numbers, find_id)
    except UserError:
        return None
    if ids is None:
        return None
    numbered = zip(range(count) if numbers is None else numbers, ids, strict=True)
    return [str(number if row_id is None else row_id) for number, row_id in numbered]


def _column_of_rows(
    dataset: str,
    subset: str | None,
    split: str,
    count: int,
    numbers: Sequence[int] | None,
    find_column: Callable[[Iterable[str]], str | None],
) -> list[Any] | None:
    if split not in available_splits(dataset, subset):
        return None
    try:
        rows = open_split(dataset, subset, split)
    except AbsentData:
        return None
    column = find_column(rows.columns)
    if column is None or rows.num_rows != count:
        return None
    if numbers is not None and len(numbers) < count / _SAMPLE:
        return [row[column] for number in numbers for row in rows.rows(number, number + 1)]
    values = [row[column] for row in rows.rows()]
    return values if numbers is None else [values[number] for number in numbers]
