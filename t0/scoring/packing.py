"""Packs inputs and their choices into rows of tokens, and plans the few shapes of such rows.

Legend: R rows, N input tokens of a row, M target tokens of a row, B inputs, C choices, L input
tokens, T target tokens.

A model that takes packed rows (`t0.scoring.packed_model`) computes no padding but what is left at
the ends of rows. A shape (R, N, M) needs a lowering. Inputs with many target tokens need other
rows than inputs with few of them, so a plan divides the inputs by their target tokens for each
input token. Ranges of this ratio are merged as long as a lowering costs more than the room that it
saves.

    plan = plan_packed({(71, 6): 500, (120, 96): 40}, costs, limits, most_shapes=24)
    queues = plan.queues()
    for batch in queues.add(group):                    # when the waiting groups fill a batch
        batch.scored_by(scorer)

    packed = pack(inputs, targets, shape)              # [B, L], [B, C, T] -> rows
    packed.inputs, packed.input_numbers                # [R, N]
    packed.scores(log_probabilities)                   # [R, M] -> [B, C]
"""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.scoring.batch_planning import BatchLimits, BatchShape, Costs, ScoringBatch
from t0.scoring.reading import ChoiceGroup, ScoreKey

# Inputs whose target tokens for each input token differ by less than this factor share a shape.
_RATIO = 1.25
# How much more room for targets a row has than its inputs need on average.
_SPARE = 1.05
# Groups wait until they fill so many batches, so that a batch can have a mixture of them.
_POOL = 4


@dataclasses.dataclass(frozen=True)
class PackedShape:
    """The shape of a batch of packed rows: `rows` is R, `inputs` N, `targets` M."""

    rows: int
    inputs: int
    targets: int


class Rows:
    """The room in the rows of a batch."""

    def __init__(self, shape: PackedShape) -> None:
        self._left = [[shape.inputs, shape.targets] for _ in range(shape.rows)]

    def add(self, inputs: int, targets: int) -> int | None:
        """Takes the room of an input and its choices in the first row that has it.

        Returns:
          the row, or None if no row has the room.
        """
        for row, left in enumerate(self._left):
            if inputs <= left[0] and targets <= left[1]:
                left[0] -= inputs
                left[1] -= targets
                return row
        return None


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """A batch of groups of choices, in the order in which they find room in the rows.

    Attributes:
      groups: the groups.
      shape: the shape of the rows.
    """

    groups: tuple[ChoiceGroup, ...]
    shape: PackedShape

    @property
    def keys(self) -> tuple[tuple[ScoreKey, ...], ...]:
        """`keys[b][c]` is the choice that input b, column c belongs to."""
        return tuple(group.keys for group in self.groups)

    def scored_by(self, scorer: Any) -> np.ndarray:
        """Returns the log-likelihoods [B, C] by a scorer that packs."""
        choices, inputs, targets = np.max([group.size for group in self.groups], axis=0).tolist()
        padded = BatchShape(len(self.groups), choices, max(1, inputs), targets)
        batch = ScoringBatch(self.groups, padded)
        return scorer.log_likelihoods(batch.inputs, batch.targets, self.shape)


@dataclasses.dataclass(frozen=True)
class PackedPlan:
    """The shapes of a run.

    Attributes:
      shapes: the shapes to lower, those for fewer target tokens for each input token first.
      ratios: the greatest ratio of target tokens to input tokens of each shape's inputs, ascending.
      padding: the cost of all rows divided by the cost of their tokens; about 1.0 or more.
    """

    shapes: tuple[PackedShape, ...]
    ratios: tuple[float, ...]
    padding: float

    def shape_of(self, inputs: int, targets: int) -> int:
        """Returns the index of the shape of an input with so many input and target tokens.

        Raises:
          ValueError: if the shape does not hold it: the plan was made for other groups.
        """
        index = min(np.searchsorted(self.ratios, _ratio(inputs, targets)), len(self.shapes) - 1)
        shape = self.shapes[index]
        if inputs > shape.inputs or targets > shape.targets:
            raise ValueError(f"no row of the plan holds {inputs} input and {targets} target tokens")
        return int(index)

    def queues(self) -> "PackedQueues":
        """Returns empty queues for a run's groups."""
        return PackedQueues(self)


class PackedQueues:
    """Queues of groups of choices, one for each shape of a plan, which must hold every group."""

    def __init__(self, plan: PackedPlan) -> None:
        self._plan = plan
        self._waiting: list[list[ChoiceGroup]] = [[] for _ in plan.shapes]
        self._tokens = np.zeros((len(plan.shapes), 2), np.int64)

    def add(self, group: ChoiceGroup) -> Iterator[PackedBatch]:
        """Yields a batch if there are groups enough for more than one now."""
        index = self._plan.shape_of(*group.tokens)
        self._waiting[index].append(group)
        self._tokens[index] += group.tokens
        shape = self._plan.shapes[index]
        room = np.array([shape.inputs, shape.targets]) * shape.rows
        if (self._tokens[index] >= _POOL * room).any():
            yield self._take(index)

    def flush(self, tasks_before: int | None = None) -> Iterator[PackedBatch]:
        """Yields batches of the waiting groups, of which the last may not be full.

        Args:
          tasks_before: only as long as a group of a task before this one waits; None to leave none.
        """
        for index, waiting in enumerate(self._waiting):
            # Groups come in the order of their tasks: the first is the oldest.
            while waiting and (tasks_before is None or waiting[0].keys[0][0] < tasks_before):
                yield self._take(index, oldest_first=tasks_before is not None)

    def _take(self, index: int, *, oldest_first: bool = False) -> PackedBatch:
        shape, waiting = self._plan.shapes[index], self._waiting[index]
        order = range(len(waiting)) if oldest_first else _mixed(waiting, shape)
        rows = Rows(shape)
        taken = [i for i in order if rows.add(*waiting[i].tokens) is not None]
        batch = PackedBatch(tuple(waiting[i] for i in taken), shape)
        for group in batch.groups:
            self._tokens[index] -= group.tokens
        found = set(taken)
        waiting[:] = [group for i, group in enumerate(waiting) if i not in found]
        return batch


def _mixed(groups: Sequence[ChoiceGroup], shape: PackedShape) -> Iterator[int]:
    """Yields the indices of groups in an order that fills both kinds of room alike."""
    left = collections.deque(sorted(range(len(groups)), key=lambda i: _ratio(*groups[i].tokens)))
    inputs = targets = 0
    while left:
        index = left.pop() if targets * shape.inputs <= inputs * shape.targets else left.popleft()
        inputs, targets = inputs + groups[index].tokens[0], targets + groups[index].tokens[1]
        yield index


@dataclasses.dataclass(frozen=True)
class _Range:
    """The inputs in a range of ratios: their number, sums and greatest numbers of tokens."""

    ratio: float
    groups: int
    inputs: int
    targets: int
    longest: tuple[int, int]

    def __add__(self, other: "_Range") -> "_Range":
        return _Range(
            max(self.ratio, other.ratio),
            self.groups + other.groups,
            self.inputs + other.inputs,
            self.targets + other.targets,
            (max(self.longest[0], other.longest[0]), max(self.longest[1], other.longest[1])),
        )

    def batches(self, limits: BatchLimits) -> int:
        """Returns in how many batches the inputs are scored."""
        return -(-(self.inputs + self.targets) // limits.tokens)

    def shape(self, limits: BatchLimits) -> PackedShape:
        """Returns rows in which the inputs fill their batches nearly."""
        rows = self.batches(limits) * limits.replicas
        if rows == 1:
            return PackedShape(1, self.inputs, self.targets)
        # What is left at the end of a row is on average less than one input.
        inputs, targets = (
            math.ceil(spare * total / rows + total / self.groups)
            for total, spare in ((self.inputs, 1.0), (self.targets, _SPARE))
        )
        longest_input, most_targets = self.longest
        return PackedShape(limits.replicas, max(inputs, longest_input), max(targets, most_targets))

    def cost(self, costs: Costs, limits: BatchLimits) -> float:
        """Returns the cost of all rows, without their attention."""
        shape = self.shape(limits)
        row = shape.inputs * costs.input_token + shape.targets * costs.target_token
        return self.batches(limits) * shape.rows * row


def plan_packed(
    tokens: Mapping[tuple[int, int], int], costs: Costs, limits: BatchLimits, *, most_shapes: int
) -> PackedPlan:
    """Returns at most `most_shapes` shapes of rows for all inputs.

    Args:
      tokens: (input tokens, target tokens of all choices) -> the number of such inputs.
      costs: the model's costs.
      limits: the limits of a batch. A batch with fewer target tokens has more input tokens.
      most_shapes: the most shapes, at least 1.
    """
    ranges: dict[int, _Range] = {}
    for (inputs, targets), count in sorted(tokens.items()):
        ratio = _ratio(inputs, targets)
        one = _Range(ratio, count, count * inputs, count * targets, (inputs, targets))
        number = math.floor(math.log(ratio, _RATIO))
        ranges[number] = ranges[number] + one if number in ranges else one
    left = [ranges[number] for number in sorted(ranges)]
    while len(left) > 1:
        pairs = [a + b for a, b in zip(left[:-1], left[1:], strict=True)]
        extra = [
            pair.cost(costs, limits) - a.cost(costs, limits) - b.cost(costs, limits)
            for pair, a, b in zip(pairs, left[:-1], left[1:], strict=True)
        ]
        least = int(np.argmin(extra))
        if len(left) <= most_shapes and extra[least] > costs.lowering:
            break
        left[least : least + 2] = [pairs[least]]
    bare = sum(x.inputs * costs.input_token + x.targets * costs.target_token for x in left)
    return PackedPlan(
        tuple(one.shape(limits) for one in left),
        tuple(one.ratio for one in left),
        sum(one.cost(costs, limits) for one in left) / bare,
    )


def _ratio(inputs: int, targets: int) -> float:
    return max(1, targets) / inputs


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Rows of tokens, int32; 0 is padding. See `t0.scoring.packed_model.PackedTokens`.

    Attributes:
      inputs: [R, N].
      input_numbers: [R, N].
      decoder_inputs: [R, M].
      choice_numbers: [R, M].
      choice_inputs: [R, M].
      targets: the ids that are predicted, [R, M].
      owners: b * C + c of the choice of each token, -1 in the padding, [R, M].
      choices: (B, C).
    """

    inputs: np.ndarray
    input_numbers: np.ndarray
    decoder_inputs: np.ndarray
    choice_numbers: np.ndarray
    choice_inputs: np.ndarray
    targets: np.ndarray
    owners: np.ndarray
    choices: tuple[int, int]

    def scores(self, log_probabilities: np.ndarray) -> np.ndarray:
        """Returns the sums over the tokens of each choice, float32 [B, C]; 0 without tokens.

        Args:
          log_probabilities: of `targets`, [R, M].
        """
        real = self.owners >= 0
        size = math.prod(self.choices)
        sums = np.bincount(self.owners[real], log_probabilities[real], minlength=size)
        return sums.astype(np.float32).reshape(self.choices)


def token_counts(inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of inputs [B, L], at least 1, and of choices [B, C, T]: [B], [B, C]."""
    return np.maximum(_lengths(inputs), 1), _lengths(targets)


def pack(inputs: np.ndarray, targets: np.ndarray, shape: PackedShape) -> PackedRows:
    """Packs inputs and choices into rows.

    Args:
      inputs: ids [B, L], 0 is padding. An input of padding alone takes one token.
      targets: ids [B, C, T].
      shape: the shape of the rows.

    Raises:
      ValueError: if the rows have no room for the inputs, in their order.
    """
    lengths, written = token_counts(inputs, targets)
    rows, members = Rows(shape), collections.defaultdict(list)
    for b, taken in enumerate(zip(lengths.tolist(), written.sum(axis=1).tolist(), strict=True)):
        row = rows.add(*taken)
        if row is None:
            raise ValueError(f"{shape} has no room for input {b} with {taken} tokens")
        members[row].append(b)
    made = PackedRows(
        *(np.zeros((shape.rows, shape.inputs), np.int32) for _ in range(2)),
        *(np.zeros((shape.rows, shape.targets), np.int32) for _ in range(4)),
        np.full((shape.rows, shape.targets), -1),
        targets.shape[:2],
    )
    # A row without inputs has one of one token, so that there is something to compute.
    made.input_numbers[:, 0] = made.choice_numbers[:, 0] = made.choice_inputs[:, 0] = 1
    for row, found in members.items():
        found.sort(key=lengths.__getitem__)  # see `packed_model`
        _fill(made, row, found, (inputs, lengths), (targets, written))
    return made


def _fill(
    made: PackedRows,
    row: int,
    members: Sequence[int],
    inputs: tuple[np.ndarray, np.ndarray],
    targets: tuple[np.ndarray, np.ndarray],
) -> None:
    """Writes inputs and choices, each given with its numbers of tokens, into a row."""
    start = first = choice = 0
    for number, b in enumerate(members, 1):
        length = inputs[1][b]
        own = slice(start, start + length)
        made.inputs[row, own], made.input_numbers[row, own] = inputs[0][b, :length], number
        start += length
        for c in np.flatnonzero(targets[1][b]):
            count, choice = targets[1][b, c], choice + 1
            own, ids = slice(first, first + count), targets[0][b, c, :count]
            made.targets[row, own] = ids
            made.decoder_inputs[row, own] = [0, *ids[:-1]]
            made.choice_numbers[row, own], made.choice_inputs[row, own] = choice, number
            made.owners[row, own] = b * targets[0].shape[1] + c
            first += count


def _lengths(ids: np.ndarray) -> np.ndarray:
    """Returns the numbers of ids before the padding, [..., n] -> [...]."""
    real = ids != 0
    return np.where(real.any(-1), ids.shape[-1] - np.argmax(real[..., ::-1], axis=-1), 0)
