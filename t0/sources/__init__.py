"""Reads the rows, split sizes and columns of datasets. No other subpackage reads datasets.

    set_data_dirs("/data/t0")
    split = open_split("super_glue", "cb", "validation")
    split.num_rows, split.columns, next(split.rows())

| file | contents |
|---|---|
| `splits` | `open_split`, which opens the rows of a split; a check for tasks with missing data |
| `absent_splits` | the table of missing splits |
| `folders`, `own_data` | data folders and the splits in them; the user's own prompts |
| `mixture_files` | the user's own mixtures |
| `hub` | data on the Hugging Face hub: names of T0's datasets, rows, streamed documents |
| `schema` | split sizes and columns of T0's datasets; conversion of later copies; withheld labels |
| `column_kinds` | the kinds of values in columns, and how predictions read other files |
| `documents` | the document that belongs to a row, such as a passage |
| `readers`, `csv_reader`, `arrow_readers` | JSON Lines; csv, tsv; parquet, Arrow |
| `texts`, `instructions`, `questions` | the data of the recipes, also parallel sentences |

Importing this package does not import TensorFlow. pyarrow is imported when a parquet or Arrow file
is opened. The `datasets` library is imported when data on the hub is needed.
"""

from t0.sources.absent_splits import AbsentSplit, absent_table
from t0.sources.documents import document_column, document_key
from t0.sources.folders import DATA_DIR_VARIABLE, data_dirs, set_data_dirs
from t0.sources.json_lines import SKIP_VARIABLE, skip_bad_rows
from t0.sources.mixture_files import OwnMixture, find_own_mixtures
from t0.sources.own_data import OwnDataset, find_own_datasets
from t0.sources.schema import features, hidden_label, split_sizes
from t0.sources.splits import (
    SplitRows,
    SplitSource,
    available_splits,
    local_files,
    open_split,
    without_absent,
)

__all__ = [
    "DATA_DIR_VARIABLE",
    "SKIP_VARIABLE",
    "AbsentSplit",
    "OwnDataset",
    "OwnMixture",
    "SplitRows",
    "SplitSource",
    "absent_table",
    "available_splits",
    "data_dirs",
    "document_column",
    "document_key",
    "features",
    "find_own_datasets",
    "find_own_mixtures",
    "hidden_label",
    "local_files",
    "open_split",
    "set_data_dirs",
    "skip_bad_rows",
    "split_sizes",
    "without_absent",
]
