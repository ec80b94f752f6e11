"""Random tokens, for a rehearsal that opens no data: packed batches, and answer choices.

    next(random_batches(run))["inputs_segmentation"]   # int32 [sequences, length]: 1, 2, then 0
    inputs, targets = choices(run)   # int32 [inputs, length], [inputs, choices, length]

A row holds two examples and ends in padding, so that segments, positions and the loss's mask count.
"""

from collections.abc import Iterator

import numpy as np

from t0.mesh.pod_run import PodRun

_EOS = 1
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


def choices(run: PodRun, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns random inputs [inputs, length] and choices [inputs, choices, length] of a batch.

    Targets end in EOS and padding; their lengths differ.
    """
    rng = np.random.default_rng(seed)
    each = 2 if run.batch_sequences % 2 == 0 else 1
    shape = (run.batch_sequences // each, each, run.sequence_length["targets"])
    inputs = rng.integers(
        _FIRST_PIECE, run.vocabulary_size, (shape[0], run.sequence_length["inputs"])
    )
    targets = rng.integers(_FIRST_PIECE, run.vocabulary_size, shape)
    ends = rng.integers(1, shape[-1], shape[:2])[..., None]
    columns = np.arange(shape[-1])
    targets = np.where(columns < ends, targets, np.where(columns == ends, _EOS, 0))
    return inputs.astype(np.int32), targets.astype(np.int32)
