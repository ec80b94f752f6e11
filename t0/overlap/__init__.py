"""Finds evaluation rows whose text occurs in the training data (contamination).

    from t0.overlap import OverlapSearch, find

    find(OverlapSearch(train=("/data/cache",), evaluation=("t0_eval_score_eval",)), "overlap")

| file | content |
|---|---|
| `words` | normalised words, and hashes of n-grams |
| `evaluation_rows` | evaluation rows with their fields and prompted texts |
| `index` | the hashes of the n-grams of evaluation rows, and the search for them |
| `training_texts` | training texts from caches or rendered rows, divided into jobs |
| `overlap_counts`, `overlap_tables` | counts of overlapping rows, prompts and datasets, also as tables |
| `finding` | one complete search, from options to output files |

This package needs TensorFlow only for `gs://` paths.
"""

from t0.overlap.finding import OverlapSearch, find
from t0.overlap.index import OverlapCriteria

__all__ = ["OverlapSearch", "OverlapCriteria", "find"]
