"""Helps to test your own prompts, preprocessors and runs: tiny vocabulary, dataset, task and model.

    def test_my_preprocessor(tmp_path):
        model = train_vocabulary(tmp_path / "tiny.model", ["rain in Oslo.", "snow in Lima."] * 50)
        with tiny_task("moods", {"train": ROWS}, [my_preprocessor], vocabulary=model):
            assert_cache_like_seqio("moods", tmp_path / "cache")

    prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "rain ||| snow")}
    write_dataset(folder / "data" / "weather", prompts, {"train": [{"text": "wet", "label": 0}]})
    with registries_restored(), gin_restored():     # restores the global state at the end
        ...

| module | for |
|---|---|
| `vocabularies` | SentencePiece models with T5's special pieces, trained in milliseconds |
| `datasets` | datasets with their own prompts, for `T0_DATA_DIR` |
| `tiny_tasks` | a SeqIO task over a few rows; a check that its cache equals SeqIO's examples |
| `state` | the global state of SeqIO and gin, and the settings of a tiny model |

All of these are plain functions, which work with any test framework. No function uses the network.
TensorFlow is imported only by the functions that need it.
"""

from t0.testing.datasets import write_dataset, write_rows, write_templates
from t0.testing.state import TINY_MODEL, gin_restored, registries_restored
from t0.testing.tiny_tasks import assert_cache_like_seqio, tiny_task
from t0.testing.vocabularies import train_vocabulary, with_sentinels

__all__ = [
    "TINY_MODEL",
    "assert_cache_like_seqio",
    "gin_restored",
    "registries_restored",
    "tiny_task",
    "train_vocabulary",
    "with_sentinels",
    "write_dataset",
    "write_rows",
    "write_templates",
]
