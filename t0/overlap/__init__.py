"""Overlap: evaluation rows whose text occurs in the training data (contamination).

    from t0.overlap import OverlapSearch, find

    find(OverlapSearch(train=("/data/cache",), evaluation=("t0_eval_score_eval",)), "overlap")

| file | what is in it |
|---|---|
| `words` | normalised words, and hashes of runs of words |
| `evaluation_rows` | evaluation rows with their fields and prompted texts |
| `index` | the hashes of the evaluation's runs, on disk |
| `training_texts` | training texts of caches, or rendered, in jobs |
| `scanning`, `beam_search` | the search, in processes here or on Apache Beam |
| `outcome`, `overlap_tables` | counts by row, prompt and dataset; their tables as text |
| `finding` | one search from request to files |

This room does not import TensorFlow, and needs none but for `gs://`.
"""

from t0.overlap.finding import OverlapSearch, find
from t0.overlap.index import OverlapCriteria

__all__ = ["OverlapSearch", "OverlapCriteria", "find"]
