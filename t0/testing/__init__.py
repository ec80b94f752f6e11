"""Test utilities for prompts, tasks and runs: a tiny vocabulary, a tiny dataset, a tiny model.

    model = train_vocabulary(folder / "tiny.model", ["rain in Oslo.", "snow in Lima."] * 50)
    prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "rain ||| snow")}
    write_dataset(folder / "data" / "weather", prompts, {"train": [{"text": "wet", "label": 0}]})
    with registries_restored(), gin_restored():     # restores the global state at the end
        ...

These are plain functions for any test framework. SentencePiece trains the vocabularies, with T5's
special pieces. The datasets are folders that `T0_DATA_DIR` can point to. No function uses the
network, and TensorFlow is imported only by the functions that need it.
"""

from t0.testing.datasets import write_dataset, write_rows, write_templates
from t0.testing.state import TINY_MODEL, Killed, gin_restored, registries_restored
from t0.testing.vocabularies import train_vocabulary, with_sentinels

__all__ = [
    "TINY_MODEL",
    "Killed",
    "gin_restored",
    "registries_restored",
    "train_vocabulary",
    "with_sentinels",
    "write_dataset",
    "write_rows",
    "write_templates",
]
