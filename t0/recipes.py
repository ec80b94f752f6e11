"""Registers tasks for the user's data folders: `--module_import=t0.recipes`.

    D/text/train.jsonl.gz   ->  text_span_corruption, text_prefix_lm, text_lm
    D/sni/...  D/qa/...  D/mt/...

`D` is a folder that `--data_dir` or `T0_DATA_DIR` names. The recipes are in `seqio_tasks.recipes`.
Importing that module also registers T0's catalogue.
"""

from seqio_tasks.recipes import registered

__all__ = ["registered"]
