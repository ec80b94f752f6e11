"""Registers tasks for the data folders: `--module_import=t0.recipes`.

    D/text/train.jsonl.gz   ->  text_span_corruption, text_prefix_lm, text_lm
    D/sni/...  D/qa/...  D/mt/...

`D` is a folder of `--data_dir` or `T0_DATA_DIR`. The recipes are in `seqio_tasks.recipes`;
importing that module also registers T0's catalogue.
"""

from seqio_tasks.recipes import registered

__all__ = ["registered"]
