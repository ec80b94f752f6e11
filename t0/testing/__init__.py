"""What a test of prompts, tasks or runs needs: a tiny vocabulary, a tiny dataset, a tiny model.

    model = train_vocabulary(folder / "tiny.model", ["rain in Oslo.", "snow in Lima."] * 50)
    prompts = {"which": ("{{text}} ||| {{answer_choices[label]}}", "rain ||| snow")}
    write_dataset(folder / "data" / "weather", prompts, {"train": [{"text": "wet", "label": 0}]})
    with registries_restored(), gin_restored():     # what is global is as it was, afterwards
        ...

Functions alone, for any test framework. The vocabularies are SentencePiece's own, with T5's special
pieces; the datasets are a user's own, as `T0_DATA_DIR` finds them. Buckets that answer for Google's
are in `t0.testing.served_buckets`. Nothing here reads the network, and nothing imports TensorFlow
before it is needed.
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
