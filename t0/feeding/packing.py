"""Packs examples into rows of fixed length, by best fit over a window of examples.

The examples of a window are sorted by length. Each example is put into the fullest row that has
room for all of its features. The segmentation array numbers the examples of a row from 1. The
position array numbers the tokens of each example from 0:

    inputs               7 8 9 5 5 0      inputs_segmentation  1 1 1 2 2 0
    targets              3 1 4 1 0 0      inputs_position      0 1 2 0 1 0

    rows = pack(examples, {"inputs": 1024, "targets": 256})
    filled_share(rows, "inputs")        # 0.99

Tokens only attend to tokens of the same example. This mask applies in the encoder, in the decoder
and between them. So packing does not change an example's loss.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Example = Mapping[str, np.ndarray]
Rows = dict[str, np.ndarray]

# At most this many rows with the same amount of free room are tried. Then rows with more room are
# tried.
_TRIES = 4
# The truncated share of inputs or targets above which users are warned.
LOUD = 0.01


def assign(lengths: np.ndarray, limits: Sequence[int]) -> list[list[int]]:
    """Assigns examples to rows, each to the fullest row that has room for it.

    Args:
      lengths: the number of tokens of each feature of each example, int [examples, features]. Every
        number must be within its limit.
      limits: for each feature, the number of tokens that a row holds. The fullest row is the row
        with the least room for the first feature.

    Returns:
      the indices of the examples in each row.
    """
    rows: list[list[int]] = []
    room: list[list[int]] = []
    # by_room[n]: the rows with room for n tokens; bit n of `nonempty`: by_room[n] is not empty.
    by_room: list[list[int]] = [[] for _ in range(limits[0] + 1)]
    nonempty = 0
    order = np.lexsort(tuple(-lengths[:, k] for k in reversed(range(lengths.shape[1]))))
    for number in order.tolist():
        needed = lengths[number].tolist()
        row, index = _find_best_row(needed, nonempty, by_room, room)
        if row is None:
            row = len(rows)
            rows.append([])
            room.append(list(limits))
        else:
            free = room[row][0]
            del by_room[free][index]
            if not by_room[free]:
                nonempty &= ~(1 << free)
        rows[row].append(number)
        room[row] = [has - takes for has, takes in zip(room[row], needed, strict=True)]
        remaining = room[row][0]
        by_room[remaining].append(row)
        nonempty |= 1 << remaining
    return rows


def _find_best_row(
    needed: Sequence[int],
    nonempty: int,
    by_room: Sequence[list[int]],
    room: Sequence[Sequence[int]],
) -> tuple[int | None, int]:
    """Finds the fullest row with room for an example.

    Returns:
      the row, and the row's index in its list in `by_room`; (None, 0) if no row has room.
    """
    others = needed[1:]
    candidates = nonempty >> needed[0] << needed[0]
    while candidates:
        lowest = candidates & -candidates
        rows = by_room[lowest.bit_length() - 1]
        for index in range(len(rows) - 1, max(-1, len(rows) - 1 - _TRIES), -1):
            row = rows[index]
            if all(has >= takes for has, takes in zip(room[row][1:], others, strict=True)):
                return row, index
        candidates ^= lowest
    return None, 0


def pack(
    examples: Sequence[Example],
    lengths: Mapping[str, int],
    *,
    ends_in_eos: Sequence[str] = (),
    order: np.random.Generator | None = None,
) -> Rows:
    """Truncates examples to `lengths`, and packs them into rows by best fit.

    Args:
      examples: the examples, each a mapping feature -> ids.
      lengths: feature -> the number of tokens of a row. The fullest row is the row with the least
        room for the first feature.
      ends_in_eos: the features whose rows must end in EOS (1) if they are full, as in Mesh
        TensorFlow.
      order: the generator that shuffles the rows; None for no shuffling.

    Returns:
      feature, feature_segmentation and feature_position -> int32 [rows, length].
    """
    sizes = _sizes(examples, lengths)
    rows = assign_shuffled(examples, lengths, order)
    packed: Rows = {}
    for column, name in enumerate(lengths):
        packed |= _lay_out(name, rows, examples, sizes[:, column], lengths[name])
        if name in ends_in_eos:
            end_in_eos(packed[name])
    return packed


def assign_shuffled(
    examples: Sequence[Example], lengths: Mapping[str, int], order: np.random.Generator | None
) -> list[list[int]]:
    """Returns the indices of the examples in each row that `pack` makes with the same arguments."""
    rows = assign(_sizes(examples, lengths), list(lengths.values()))
    if order is None:
        return rows
    return [rows[number] for number in order.permutation(len(rows))]


def _sizes(examples: Sequence[Example], lengths: Mapping[str, int]) -> np.ndarray:
    """Returns the number of tokens of each feature of each example, int [examples, features]."""
    return np.array(
        [
            [min(len(example[name]), length) for name, length in lengths.items()]
            for example in examples
        ]
    ).reshape(len(examples), len(lengths))


def _lay_out(
    name: str,
    rows: Sequence[Sequence[int]],
    examples: Sequence[Example],
    sizes: np.ndarray,
    length: int,
) -> Rows:
    flat = [number for row in rows for number in row]
    counts = np.array([len(row) for row in rows])
    flat_sizes = sizes[flat]
    first = np.cumsum(counts) - counts  # index in `flat` of each row's first example
    starts = np.cumsum(flat_sizes) - flat_sizes
    row_of = np.repeat(np.arange(len(rows)), counts)
    within = starts - starts[first][row_of]  # the offset of an example in its row
    indices = np.repeat(row_of * length + within - starts, flat_sizes) + np.arange(flat_sizes.sum())
    arrays = {key: np.zeros((len(rows), length), np.int32) for key in _keys(name)}
    ids, segments, positions = (arrays[key].reshape(-1) for key in _keys(name))
    ids[indices] = np.concatenate(
        [np.zeros(0, np.int32), *(examples[n][name][:length] for n in flat)]
    )
    segments[indices] = np.repeat(np.arange(len(flat)) - first[row_of] + 1, flat_sizes)
    positions[indices] = np.arange(flat_sizes.sum()) - np.repeat(starts, flat_sizes)
    return arrays


def _keys(name: str) -> tuple[str, str, str]:
    return name, f"{name}_segmentation", f"{name}_position"


def pad(
    examples: Sequence[Example],
    lengths: Mapping[str, int],
    *,
    ends_in_eos: Sequence[str] = (),
    choices: int | None = None,
) -> Rows:
    """Returns rows with one example each, truncated or padded with zeros.

    Args:
      examples: the examples, each a mapping feature -> ids.
      lengths: feature -> the number of tokens of a row.
      ends_in_eos: the features whose rows must end in EOS (1) if they are full.
      choices: the number of answer choices to which the targets [C, L] of examples are padded; None
        if each example has one target [L].
    """
    padded = {}
    for name, length in lengths.items():
        row_shape = (choices, length) if choices and name == "targets" else (length,)
        padded[name] = np.zeros((len(examples), *row_shape), np.int32)
        for row, example in zip(padded[name], examples, strict=True):
            ids = example[name][..., :length]
            row[tuple(map(slice, ids.shape))] = ids
        if name in ends_in_eos:
            end_in_eos(padded[name])
    return padded


def end_in_eos(rows: np.ndarray) -> None:
    """Replaces the last token of full rows [..., length] with EOS (1), in place.

    Rows that are not full end with padding (0), which stays.
    """
    np.minimum(rows[..., -1], 1, out=rows[..., -1])


def filled_share(rows: Rows, name: str) -> float:
    """Returns the share of a feature's positions that hold a token."""
    return float(np.count_nonzero(rows[name]) / max(1, rows[name].size))


def cut_warning(name: str, feature: str, share: float, most: int) -> str:
    """Returns the warning that a share of inputs or targets is truncated to `most` tokens."""
    lost = "the end, where the question mostly stands" if feature == "inputs" else "their ends"
    return (
        f"WARNING: {name}: {share:.1%} of {feature} are longer than {most:,} tokens and lose "
        f"{lost}. Raise '{feature}' of TASK_FEATURE_LENGTHS or run.sequence_length (t0 eval: "
        f"--lengths)"
    )
