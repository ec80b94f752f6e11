"""Packs inputs and their choices into rows of tokens, and plans the few shapes of such rows.

Legend: R rows, N input tokens of a row, M target tokens of a row, B inputs, C choices, L input
tokens, T target tokens.

A model that takes packed rows (`t0.scoring.packed_model`) computes no padding but what is left at
the ends of rows. A shape (R, N, M) needs a lowering. A task with many target tokens for each input
token needs other rows than one with few of them. So tasks of like ratio share a shape, and shapes
are merged as long as a lowering costs more than the room that it saves.

    tokens = [{(71, 6): 500}, {(120, 96): 40}]         # of each task
    plan = plan_packed(tokens, costs, limits, most_shapes=24)
    queues = plan.queues()
    for batch in queues.add(group):                    # when the waiting groups fill a batch
        batch.scored_by(scorer)

    packed = pack(inputs, targets, shape)              # [B, L], [B, C, T] -> rows
    packed.inputs, packed.input_numbers                # [R, N]
    packed.scores(log_probabilities)                   # [R, M] -> [B, C]
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.scoring.batch_planning import BatchLimits, BatchShape, Costs, ScoringBatch
from t0.scoring.reading import ChoiceGroup, ScoreKey

# Tasks whose target tokens for each input token differ by less than this factor share a shape.
_RATIO = 1.1
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
      of_tasks: the index of each task's shape.
      padding: the cost of all rows divided by the cost of their tokens, about 1.0 or more.
    """

    shapes: tuple[PackedShape, ...]
    of_tasks: tuple[int, ...]
    padding: float

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
        """Yields a batch if there are groups enough for several now."""
        index = self._plan.of_tasks[group.keys[0][0]]
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
                yield self._take(index, tasks_before or 0)

    def _take(self, index: int, tasks_before: int = 0) -> PackedBatch:
        """Takes the oldest groups, those of the tasks before one, and a mixture of the others."""
        shape, waiting = self._plan.shapes[index], self._waiting[index]
        old = sum(group.keys[0][0] < tasks_before for group in waiting)
        # Half a batch of them, so that none waits for long, whatever its ratio.
        old = max(old, len(waiting) // (2 * _POOL))
        taken = _mixture([group.tokens for group in waiting], shape, first=old)
        batch = PackedBatch(tuple(waiting[i] for i in taken), shape)
        for group in batch.groups:
            self._tokens[index] -= group.tokens
        found = set(taken)
        waiting[:] = [group for i, group in enumerate(waiting) if i not in found]
        return batch


def _mixture(tokens: Sequence[tuple[int, int]], shape: PackedShape, *, first: int) -> list[int]:
    """Returns the indices of groups that fill a batch's room for inputs and for targets alike.

    Args:
      tokens: the input and target tokens of each group.
      shape: the shape of the batch.
      first: the number of the groups that are taken before the others.
    """
    ratios = [targets / inputs for inputs, targets in tokens]
    left = collections.deque(sorted(range(first, len(tokens)), key=ratios.__getitem__))
    old, rows = collections.deque(range(first)), Rows(shape)
    taken, inputs, targets = [], 0, 0
    while old or left:
        fewer_targets = targets * shape.inputs > inputs * shape.targets
        index = old.popleft() if old else left.popleft() if fewer_targets else left.pop()
        if rows.add(*tokens[index]) is not None:
            taken.append(index)
            inputs, targets = inputs + tokens[index][0], targets + tokens[index][1]
    return taken


@dataclasses.dataclass(frozen=True)
class _Tasks:
    """Tasks that share a shape.

    Attributes:
      numbers: the tasks.
      tokens: the input and target tokens of tasks of like ratio, [., 2].
      groups: the number of their groups of choices.
      longest: the most input tokens, and the most target tokens, of a group.
    """

    numbers: tuple[int, ...]
    tokens: np.ndarray
    groups: int
    longest: np.ndarray

    @classmethod
    def of(cls, number: int, counts: Mapping[tuple[int, int], int]) -> "_Tasks":
        sizes = np.array([*counts], np.int64).reshape(-1, 2)
        many = np.array([*counts.values()], np.int64)
        tokens = (sizes * many[:, None]).sum(axis=0, keepdims=True)
        return cls((number,), tokens, int(many.sum()), sizes.max(axis=0, initial=1))

    def joined(self, other: "_Tasks", *, alike: bool) -> "_Tasks":
        both = np.concatenate([self.tokens, other.tokens])
        return _Tasks(
            self.numbers + other.numbers,
            both.sum(axis=0, keepdims=True) if alike else both,
            self.groups + other.groups,
            np.maximum(self.longest, other.longest),
        )

    @property
    def ratio(self) -> float:
        inputs, targets = self.tokens.sum(axis=0).tolist()
        return max(1, targets) / max(1, inputs)

    def batches(self, limits: BatchLimits) -> int:
        """Returns in how many batches the tasks are scored."""
        total = float(self.tokens.sum(axis=0) @ [1.0, _SPARE])
        if total <= limits.tokens:
            return 1
        left_over = limits.replicas * total / self.groups
        return math.ceil(total / max(limits.tokens - left_over, limits.tokens / 2))

    def shape(self, limits: BatchLimits) -> PackedShape:
        """Returns rows in which mixtures of the tasks nearly fill their batches."""
        totals = self.tokens.sum(axis=0)
        rows = self.batches(limits) * limits.replicas
        if rows > 1:
            # What is left at the end of a row is on average less than one group.
            totals = np.ceil(totals * [1.0, _SPARE] / rows + totals / max(1, self.groups))
        inputs, targets = np.maximum(totals, self.longest).astype(int).tolist()
        return PackedShape(limits.replicas, inputs, targets)

    def cost(self, costs: Costs, limits: BatchLimits) -> float:
        """Returns the cost of all rows, without attention.

        Few batches are mixtures of all tasks, many of them of tasks of like ratio.
        """
        shape, rows = self.shape(limits), self.batches(limits) * limits.replicas
        room = np.array([shape.inputs, shape.targets])
        if rows > _POOL:
            rows = float((self.tokens / room).max(axis=1).sum())
        return float(rows * (room @ _token_costs(costs)))


def _token_costs(costs: Costs) -> np.ndarray:
    return np.array([costs.input_token, costs.target_token])


def plan_packed(
    tokens: Sequence[Mapping[tuple[int, int], int]],
    costs: Costs,
    limits: BatchLimits,
    *,
    most_shapes: int,
) -> PackedPlan:
    """Returns at most `most_shapes` shapes of rows for all tasks.

    Args:
      tokens: for each task (input tokens, target tokens of all choices) -> the number of groups.
      costs: the model's costs.
      limits: the limits of a batch. A batch with fewer target tokens has more input tokens.
      most_shapes: the most shapes, at least 1.
    """
    alike: dict[int, _Tasks] = {}
    for number, counts in enumerate(tokens):
        one = _Tasks.of(number, counts)
        ratio = math.floor(math.log(one.ratio, _RATIO))
        alike[ratio] = alike[ratio].joined(one, alike=True) if ratio in alike else one
    left = [alike[ratio] for ratio in sorted(alike)]
    while len(left) > 1:
        pairs = [a.joined(b, alike=False) for a, b in itertools.pairwise(left)]
        alone = [one.cost(costs, limits) for one in left]
        extra = [
            pair.cost(costs, limits) - a - b
            for pair, (a, b) in zip(pairs, itertools.pairwise(alone), strict=True)
        ]
        least = int(np.argmin(extra))
        if len(left) <= most_shapes and extra[least] > costs.lowering:
            break
        left[least : least + 2] = [pairs[least]]
    bare = sum(float((one.tokens @ _token_costs(costs)).sum()) for one in left)
    index_of = {number: index for index, one in enumerate(left) for number in one.numbers}
    return PackedPlan(
        tuple(one.shape(limits) for one in left),
        tuple(index_of[number] for number in range(len(tokens))),
        sum(one.cost(costs, limits) for one in left) / max(bare, 1.0),
    )


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
