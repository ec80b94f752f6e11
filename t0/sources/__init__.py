"""Rows of datasets, split sizes and columns. The only room that reads datasets.

    set_data_dirs("/data/t0")
    split = open_split("super_glue", "cb", "validation")
    split.num_rows, split.columns, next(split.rows())

Knows no TensorFlow; the `datasets` library is imported only when the hub is asked.
"""

from t0.sources.folders import DATA_DIR_VARIABLE, data_dirs, set_data_dirs
from t0.sources.own_data import (
    OwnDataset,
    OwnMixture,
    find_own_datasets,
    find_own_mixtures,
)
from t0.sources.schema import features, hidden_label, split_sizes
from t0.sources.splits import SplitRows, available_splits, open_split

__all__ = [
    "DATA_DIR_VARIABLE",
    "OwnDataset",
    "OwnMixture",
    "SplitRows",
    "available_splits",
    "data_dirs",
    "features",
    "find_own_datasets",
    "find_own_mixtures",
    "hidden_label",
    "open_split",
    "set_data_dirs",
    "split_sizes",
]
