"""Which examples of a task share a document: rows of one text are one observation in statistics.

    source = seqio.TaskRegistry.get("super_glue_boolq_exam_score_eval").source
    documents_of(source, "validation", 3270, only_local=False)   # (0, 1, 2, 2, 4, ...)

A document is a column of the dataset (`COLUMNS`), or of one's own data the column `document_id`. An
example's document is the number of the first example that has the same.

Assumptions: the examples are the rows of the split, in order. Where some were dropped, or the rows
are not there, nothing is known of documents.
"""

from t0.errors import AbsentData
from t0.sources import SplitSource, available_splits

OWN_COLUMN = "document_id"
# Dataset, with or without its subset -> the column whose text several rows share.
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


def documents_of(
    source: SplitSource, split: str, examples: int, *, only_local: bool
) -> tuple[int, ...] | None:
    """Returns each example's document; None if no two share one, or it is not known.

    Args:
      source: the source of a prompted task.
      split: the task's split.
      examples: the number of the task's examples.
      only_local: whether rows are read only if they are on this machine, as for a cached task.
    """
    if only_local:
        there = available_splits(source.dataset, source.subset)
        if source.split_mapping.get(split) not in there:
            return None
    try:
        rows = source.open(split)
    except AbsentData:
        return None
    column = COLUMNS.get(f"{source.dataset}/{source.subset}") or COLUMNS.get(source.dataset)
    column = column or OWN_COLUMN
    if column not in rows.columns or rows.num_rows != examples:
        return None
    first: dict[str, int] = {}
    found = tuple(
        first.setdefault(str(row[column]), number) for number, row in enumerate(rows.rows())
    )
    return found if len(first) < examples else None
