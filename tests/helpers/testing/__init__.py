"""Helps to test prompts, tasks and runs: makes a tiny vocabulary, dataset and model.

    model = train_vocabulary(folder / "tiny.model", ["rain in Oslo.", "snow in Lima."] * 50)
    prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "rain ||| snow")}
    write_dataset(folder / "data" / "weather", prompts, {"train": [{"text": "wet", "label": 0}]})
    with registries_restored(), gin_restored():     # restores the global state at the end
        ...

All of these are plain functions, which work with any test framework. The vocabularies are
SentencePiece models with T5's special pieces. `T0_DATA_DIR` can point to a folder with the
datasets. No function uses the network. TensorFlow is imported only by the functions that need it.
"""

from tests.helpers.testing.datasets import write_dataset, write_rows, write_templates
from tests.helpers.testing.state import TINY_MODEL, Killed, gin_restored, registries_restored
from tests.helpers.testing.vocabularies import train_vocabulary, with_sentinels

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
