"""Defines your own task: short sentence pairs, English to German, with its own validation split.

    PYTHONPATH=examples/translation T0_DATA_DIR=DATA python -c '
    import short_pairs
    print(next(short_pairs.examples("train")))'

Rows in DATA/mt/train.* are `{"translation": {"en": "...", "de": "..."}}`, as in WMT on the hub, or
have columns `en` and `de`. The task is plain SeqIO; the data folder, T5's features and sacreBLEU
come from `t0`.
"""

import random
from collections.abc import Iterator

import seqio
import tensorflow as tf

from t0.sources import open_split
from t0.tasks.metrics import Bleu
from t0.tasks.recipe_tasks import TEXT, t5_features, tokenized, translation_prefix

MOST_WORDS = 14
# The share of rows for validation.
HELD_OUT = 1 / 40


def examples(split: str) -> Iterator[dict[str, str]]:
    """Yields the texts of `train` or `validation`."""
    pairs = (row.get("translation", row) for row in open_split("mt", None, "train").rows())
    short = [pair for pair in pairs if _words(pair) <= MOST_WORDS]
    # SeqIO only shuffles within 1,000 rows, and the file has news first and captions last.
    random.Random(0).shuffle(short)
    count = round(HELD_OUT * len(short))
    for pair in short[:count] if split == "validation" else short[count:]:
        yield {"inputs": translation_prefix("en", "de") + pair["en"], "targets": pair["de"]}


def _words(pair: dict[str, str]) -> int:
    return max(len(pair[language].split()) for language in ("en", "de"))


def _dataset(split: str, shuffle_files: bool = False, seed: int | None = None) -> tf.data.Dataset:
    del shuffle_files, seed  # SeqIO shuffles the rows itself
    signature = {"inputs": TEXT, "targets": TEXT}
    return tf.data.Dataset.from_generator(lambda: examples(split), output_signature=signature)


seqio.TaskRegistry.add(
    "short_en_de",
    source=seqio.FunctionDataSource(_dataset, splits=("train", "validation")),
    preprocessors=tokenized(),
    output_features=t5_features(),
    metric_fns=[Bleu()],
)
