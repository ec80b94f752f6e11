"""Draws exemplars in the order of SeqIO's `FewshotDataSource`.

    seqio_order(2490, 277, k=4, seed=0)     # int32 [277 * 4]

SeqIO shuffles the split with the exemplars within a buffer, repeats it, and puts consecutive blocks
of K rows before the rows. A split that is not shuffled itself has the seed 0 there.
"""

from collections.abc import Callable

import numpy as np

from t0.catalogue.prompted_task import PromptedRows
from t0.compat import seqio, tf
from t0.prompts.few_shot import FewShot


def exemplar_order(task: PromptedRows, few_shot: FewShot) -> Callable[[str], np.ndarray]:
    """Returns the function of a split that `FewShotPrompts` calls for its `order`."""

    def order(split: str) -> np.ndarray:
        train_rows, rows = (task.open(name).num_rows for name in (few_shot.split, split))
        return seqio_order(train_rows, rows, k=few_shot.k, seed=few_shot.seed)

    return order


def seqio_order(train_rows: int, rows: int, *, k: int, seed: int) -> np.ndarray:
    """Returns the numbers of the exemplars' rows: K for the first row, K for the second, ...

    Args:
      train_rows: the number of rows of the split with the exemplars.
      rows: the number of rows that get exemplars.
    """
    numbers = tf.data.Dataset.range(train_rows, output_type=tf.int32).shuffle(
        seqio.dataset_providers.SHUFFLE_BUFFER_SIZE, seed=seed, reshuffle_each_iteration=True
    )
    return np.fromiter(numbers.repeat().take(rows * k).as_numpy_iterator(), np.int32)
