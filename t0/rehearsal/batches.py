"""Packed batches of random tokens, for a rehearsal that opens no data.

    next(random_batches(run))["inputs_segmentation"]      # int32 [sequences, length]: 1, 2, then 0

A row holds two examples and ends in padding, so that segments, positions and the loss's mask count.
"""

from collections.abc import Iterator

import numpy as np

from t0.mesh.pod_run import PodRun

_FIRST_PIECE = 2  # after padding and EOS
_EXAMPLES = 2


def random_batches(run: PodRun, *, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches without end: feature -> int32 [sequences, length].

    Args:
      run: the run; where it does not pack, the batches have no segments and no positions.
      seed: of the tokens.
    """
    rng = np.random.default_rng(seed)
    while True:
        batch = {}
        for name, length in run.sequence_length.items():
            shape = (run.batch_sequences, length)
            ids = rng.integers(_FIRST_PIECE, run.vocabulary_size, shape)
            padding = rng.integers(1, max(2, length // 4), (run.batch_sequences, 1))
            columns = np.broadcast_to(np.arange(length), shape)
            there = columns < length - padding
            batch[name] = ids * there
            if run.packed:
                each = -(-length // _EXAMPLES)
                batch[f"{name}_segmentation"] = (1 + columns // each) * there
                batch[f"{name}_position"] = columns % each * there
        yield {name: value.astype(np.int32) for name, value in batch.items()}
