"""Makes batches of answer choices: packed rows, a few padded shapes, or groups sorted by length.

Legend: B groups of choices, C choices of a group, L input tokens of a group, T target tokens of a
choice; R packed rows, N input tokens of a row, M target tokens of a row.

| plan | model | batches |
|---|---|---|
| `plan_packed` | a T5 in Mesh TensorFlow | rows of inputs [R, N], rows of their choices [R, M] |
| `plan_padded` | other Mesh TensorFlow models | inputs [B, L] and targets [B, C, T] in few shapes |
| `SortedPlan(limits)` | PyTorch | inputs [B, L] and targets [B, C, T] in any shape, by length |

A group consists of the choices of an example that have the same input. Mesh TensorFlow's shapes
are static, and each shape needs a lowering. A packed row has padding only at its end. The best
shape of a row depends on a task's ratio of target tokens to input tokens, so tasks with similar
ratios share a shape. Two shapes are merged if the lowering of a second shape costs more than the
padding that the second shape saves.

Groups of several tasks wait in queues until they fill a batch:

    queues = BatchQueues(plan_packed(tasks, costs, limits, most_shapes=24))
    for group in choice_groups(0, 0, example):
        for batch in queues.add(group):    # when a queue has enough groups
            model.score(batch)             # float32 [B, C]
    for batch in queues.flush():           # the last groups, in batches that are not full
        model.score(batch)
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.config.plain_data import read_plain
from t0.errors import UserError
from t0.evaluation.ranked_examples import ChoiceGroup, ScoringTask, Size

# Two tasks share a shape if their ratios of target tokens to input tokens differ by less than this.
_RATIO = 1.1
# The space for targets in a row is the average number of target tokens for the row's inputs, times
# this number.
_SPARE = 1.05
# Groups wait until they fill this many packed batches, so that a batch can combine different
# groups.
_POOL = 4
# Groups wait until they fill this many batches. Then they are sorted, so that each batch has groups
# of similar length.
_SORTED_POOL = 32
# C, L and T of padded batches are rounded up to multiples of these steps. If there are too many
# shapes, the steps are doubled. Targets are short, so the step of T is small.
_STEPS = (1, 32, 4)


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of computations, in floating point operations.

    Attributes:
      input_token: the cost of an input token: its encoding, and its keys and values for the
        decoder.
      target_token: the cost of a target token in the decoder and the softmax.
      lowering: the cost of one more shape, which needs a lowering.
    """

    input_token: float
    target_token: float
    lowering: float


def model_costs(variables: Mapping[str, tuple[int, ...]]) -> Costs:
    """Returns the costs of an encoder-decoder.

    Args:
      variables: name -> shape of the variables in a Mesh TensorFlow checkpoint.
    """
    encoder = decoder = memory = 0
    for name, shape in variables.items():
        size = int(np.prod(shape)) if len(shape) > 1 else 0
        kind = name.rpartition("/")[0].rpartition("/")[2]
        if name.startswith("encoder/"):
            encoder += size
        elif kind == "EncDecAttention" and name.endswith(("/k", "/v")):
            memory += size
        elif name.startswith("decoder/"):
            decoder += size
        elif "decoder/logits/kernel" not in variables:
            decoder += size  # the softmax uses the shared embeddings
    # Lowering takes about 7 ms per variable. Two cores compute 1 to 3 GFLOP in that time.
    return Costs(2.0 * (encoder + memory), 2.0 * decoder, lowering=1.8e9 * len(variables))


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """The upper bounds for one batch.

    Attributes:
      tokens: the maximum number of tokens: input tokens B*L plus target tokens B*C*T.
      target_tokens: the maximum number of target tokens B*C*T. The number of logits is this number
        times the vocabulary size.
      replicas: the number of parts into which a mesh splits the batch. B is a multiple of this
        number, even if B then exceeds the bounds.
    """

    tokens: int
    target_tokens: int
    replicas: int = 1

    def groups(self, size: Size) -> int:
        """Returns how many groups of a size are put into a batch; at least one for each replica."""
        choices, inputs, targets = size
        written = max(1, choices * targets)
        most = min(self.tokens // (inputs + written), self.target_tokens // written)
        return max(1, most // self.replicas) * self.replicas


@dataclasses.dataclass(frozen=True)
class BatchShard:
    """One shard of an evaluation: the batches that one of several machines scores.

    Attributes:
      id: the number of the shard, from 0.
      of: the number of all shards.
    """

    id: int = 0
    of: int = 1

    def has(self, number: int) -> bool:
        """Returns whether batch `number` belongs to the shard."""
        return number % self.of == self.id

    @property
    def folder(self) -> str:
        """The name of the shard's folder."""
        return f"shard-{self.id:05d}-of-{self.of:05d}"

    @property
    def words(self) -> str:
        """The words with which messages name the shard; empty if there is only one shard."""
        return "" if self.of == 1 else f" (shard {self.id} of {self.of})"


WHOLE = BatchShard()


def check_settings(settings: Any, name: str) -> None:
    """Checks the types and ranges of a dataclass of settings, and that its shard exists.

    Args:
      settings: the settings. Their values are converted to the fields' types.
      name: gin's name of the settings, for messages.

    Raises:
      UserError: if a value is invalid.
    """
    for field in dataclasses.fields(settings):
        try:
            value = read_plain(getattr(settings, field.name), field.type, f"{name}.{field.name}")
        except ValueError as error:
            raise UserError(str(error)) from error
        object.__setattr__(settings, field.name, value)
    if settings.shard_id >= settings.num_shards:
        raise UserError(
            f"{name}.shard_id is {settings.shard_id}; with {settings.num_shards} shard(s), "
            f"expected 0 to {settings.num_shards - 1} (--shard_id, --num_shards)"
        )


@dataclasses.dataclass(frozen=True)
class PaddedBatch:
    """A batch of padded rows.

    Attributes:
      groups: the groups, one for each of the first rows; the other rows are padding.
      rows: the number of rows, B.
      size: (C, L, T).
    """

    groups: tuple[ChoiceGroup, ...]
    rows: int
    size: Size

    def lay_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the padded inputs [B, L] and targets [B, C, T]."""
        choices, input_length, target_length = self.size
        inputs = np.zeros((self.rows, input_length), np.int32)
        targets = np.zeros((self.rows, choices, target_length), np.int32)
        for row, group in enumerate(self.groups):
            inputs[row, : len(group.inputs)] = group.inputs
            for column, target in enumerate(group.targets):
                targets[row, column, : len(target)] = target
        return inputs, targets


@dataclasses.dataclass(frozen=True)
class PackedShape:
    """The shape of a batch of packed rows: `rows` is R, `inputs` N, `targets` M."""

    rows: int
    inputs: int
    targets: int


class FreeTokens:
    """The numbers of free tokens in the rows of a batch."""

    def __init__(self, shape: PackedShape) -> None:
        self._free = [[shape.inputs, shape.targets] for _ in range(shape.rows)]

    def take(self, inputs: int, targets: int) -> int | None:
        """Reserves space for an input and its choices in the first row with enough free space.

        Returns:
          the number of the row; None if no row has enough space.
        """
        for row, free in enumerate(self._free):
            if inputs <= free[0] and targets <= free[1]:
                free[0] -= inputs
                free[1] -= targets
                return row
        return None


@dataclasses.dataclass(frozen=True)
class PackedTokens:
    """The tokens of packed rows, int32. The padding at the end of each row is 0.

    Attributes:
      inputs: the ids of the inputs, concatenated, [R, N].
      input_numbers: for each input token, the number of its input in the row, from 1, [R, N].
      decoder_inputs: the ids of the choices, each shifted by one token, [R, M].
      choice_numbers: for each target token, the number of its choice in the row, from 1, [R, M].
      choice_inputs: for each target token, the number of the input to which its choice belongs, [R,
        M].
      targets: the ids to predict, [R, M].
    """

    inputs: Any
    input_numbers: Any
    decoder_inputs: Any
    choice_numbers: Any
    choice_inputs: Any
    targets: Any


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """A batch of groups of choices in packed rows.

    Attributes:
      groups: the groups.
      rows: the row of each group.
      shape: the shape of the rows.
    """

    groups: tuple[ChoiceGroup, ...]
    rows: tuple[int, ...]
    shape: PackedShape

    def sum_choices(self, values: np.ndarray, owners: np.ndarray) -> np.ndarray:
        """Sums the values [R, M] of target tokens by choice; see `lay_out` for the owners.

        Returns:
          float32 [B, C], which is 0 for a choice without tokens.
        """
        real, most = owners >= 0, max(len(group.targets) for group in self.groups)
        sums = np.bincount(owners[real], values[real], minlength=len(self.groups) * most)
        return sums.astype(np.float32).reshape(len(self.groups), most)

    def lay_out(self) -> tuple[PackedTokens, np.ndarray]:
        """Builds the rows of tokens, and finds out to which choice each target token belongs.

        Returns:
          (tokens, owners of the target tokens). The owners are int [R, M]. A token of choice c of
          group b has the owner b * C + c, and padding has the owner -1.
        """
        shape, most = self.shape, max(len(group.targets) for group in self.groups)
        tokens = PackedTokens(
            *(np.zeros((shape.rows, shape.inputs), np.int32) for _ in range(2)),
            *(np.zeros((shape.rows, shape.targets), np.int32) for _ in range(4)),
        )
        owners = np.full((shape.rows, shape.targets), -1)
        # A row without inputs gets an input of one token, because attention needs at least one
        # token.
        tokens.input_numbers[:, 0] = tokens.choice_numbers[:, 0] = tokens.choice_inputs[:, 0] = 1
        for row in range(shape.rows):
            members = [b for b, of_group in enumerate(self.rows) if of_group == row]
            members.sort(key=lambda b: self.groups[b].tokens[0])  # see `_PARTS` in `scorer`
            start = first = choice = 0
            for number, b in enumerate(members, 1):
                group, length = self.groups[b], self.groups[b].tokens[0]
                tokens.inputs[row, start : start + len(group.inputs)] = group.inputs
                tokens.input_numbers[row, start : start + length] = number
                start += length
                for c, ids in enumerate(group.targets):
                    if not len(ids):
                        continue
                    own, choice = slice(first, first + len(ids)), choice + 1
                    tokens.targets[row, own] = ids
                    tokens.decoder_inputs[row, own] = [0, *ids[:-1]]
                    tokens.choice_numbers[row, own], tokens.choice_inputs[row, own] = choice, number
                    owners[row, own] = b * most + c
                    first += len(ids)
        return tokens, owners


def pack_groups(groups: Sequence[ChoiceGroup], shape: PackedShape) -> PackedBatch:
    """Packs groups into rows of a shape, in order.

    Raises:
      ValueError: if the groups do not fit into the shape.
    """
    free, rows = FreeTokens(shape), []
    for number, group in enumerate(groups):
        row = free.take(*group.tokens)
        if row is None:
            raise ValueError(f"{shape} has no room for input {number} with {group.tokens} tokens")
        rows.append(row)
    return PackedBatch(tuple(groups), tuple(rows), shape)


ScoringBatch = PaddedBatch | PackedBatch
# Waiting groups, oldest first.
Waiting = list[ChoiceGroup]


class BatchQueues:
    """The queues of a plan, which must have a queue for every group that is added."""

    def __init__(self, plan: "BatchPlan") -> None:
        self._plan = plan
        self._waiting: list[Waiting] = [[] for _ in plan.shapes]
        self._tokens = np.zeros((len(plan.shapes), 2), np.int64)

    def add(self, group: ChoiceGroup) -> Iterator[ScoringBatch]:
        """Adds a group, and yields the batches that are ready now."""
        queue = self._plan.queue_of(group)
        self._waiting[queue].append(group)
        self._tokens[queue] += group.tokens
        if self._plan.is_full(queue, self._waiting[queue], self._tokens[queue]):
            yield from self._take(queue, 0)

    def flush(self, tasks_before: int | None = None) -> Iterator[ScoringBatch]:
        """Yields batches of the waiting groups; the last batches may not be full.

        Args:
          tasks_before: the number of a task. Batches are yielded until no group of an earlier task
            is waiting. None to empty the queues.
        """
        for queue in range(len(self._waiting)):
            # Groups arrive in the order of their tasks, so the first group in a queue belongs to
            # its earliest task.
            while (waiting := self._waiting[queue]) and (
                tasks_before is None or waiting[0].keys[0][0] < tasks_before
            ):
                yield from self._take(queue, tasks_before or 0)

    def _take(self, queue: int, tasks_before: int) -> list[ScoringBatch]:
        batches, waiting = self._plan.take(queue, self._waiting[queue], tasks_before)
        self._waiting[queue] = waiting
        for batch in batches:
            for group in batch.groups:
                self._tokens[queue] -= group.tokens
        return batches


@dataclasses.dataclass(frozen=True)
class SortedPlan:
    """Sorts the groups by length, and divides them into batches with a limited number of tokens.

    Attributes:
      limits: the limits of a batch.
      steps: the steps of C, L and T. In static shapes, these sizes are rounded up to multiples of
        the steps.
      largest: the largest C, L and T of all groups, beyond which sizes are not rounded up.
      static_groups: (C, L, T) -> B, the static shapes; empty if batches may have any shape.
    """

    limits: BatchLimits
    steps: Size = (1, 1, 1)
    largest: Size = (0, 0, 0)
    static_groups: Mapping[Size, int] = dataclasses.field(default_factory=dict)

    @property
    def shapes(self) -> tuple["SortedPlan", ...]:
        """Only the plan itself, because batches of the only queue vary in shape."""
        return (self,)

    @property
    def described(self) -> str:
        """The plan in words."""
        return f"in batches of at most {self.limits.tokens:,} tokens, sorted by length"

    def queue_of(self, group: ChoiceGroup) -> int:
        """Returns 0, the index of the only queue."""
        del group
        return 0

    def is_full(self, queue: int, waiting: Waiting, tokens: np.ndarray) -> bool:
        """Returns whether the waiting groups fill many batches."""
        del queue, waiting
        return bool(tokens.sum() >= _SORTED_POOL * self.limits.tokens)

    def take(
        self, queue: int, waiting: Waiting, tasks_before: int
    ) -> tuple[list[PaddedBatch], Waiting]:
        """Returns batches of all waiting groups."""
        del queue, tasks_before
        batches: list[PaddedBatch] = []
        members: list[ChoiceGroup] = []
        size: Size = (0, 0, 0)
        by_size = [(self.padded_size(group.size), group) for group in waiting]
        for padded, group in sorted(by_size, key=lambda pair: pair[0][::-1], reverse=True):
            larger = tuple(map(max, size, padded))
            if members and (
                len(members) + 1 > self._most_groups(larger)
                or (self.static_groups and padded != size)
            ):
                batches.append(self._pad_batch(members, size))
                members, larger = [], padded
            members.append(group)
            size = larger
        return [*batches, self._pad_batch(members, size)], []

    def padded_size(self, size: Size) -> Size:
        """Returns the size (C, L, T) to which a group is padded."""
        rounded = np.maximum(1, -(-np.array(size) // self.steps)) * self.steps
        if any(self.largest):
            rounded = np.minimum(rounded, self.largest)
        choices, inputs, targets = rounded.tolist()
        return choices, inputs, targets

    def _most_groups(self, size: Size) -> int:
        return self.static_groups.get(size) or self.limits.groups(size)

    def _pad_batch(self, members: Sequence[ChoiceGroup], size: Size) -> PaddedBatch:
        replicas = self.limits.replicas
        rounded = -(-len(members) // replicas) * replicas
        return PaddedBatch(tuple(members), self.static_groups.get(size, rounded), size)


def plan_padded(
    tasks: Sequence[ScoringTask], limits: BatchLimits, *, most_shapes: int
) -> SortedPlan:
    """Plans batches with at most `most_shapes` shapes.

    C, L and T are rounded up to multiples of steps. The steps are doubled until there are few
    enough shapes.

    Args:
      tasks: all tasks.
      limits: the limits of a batch.
      most_shapes: the maximum number of shapes, at least 1.
    """
    sizes: collections.Counter[Size] = collections.Counter()
    for task in tasks:
        sizes.update(task.sizes)
    choices, inputs, targets = (max(1, *numbers) for numbers in zip(*sizes, strict=True))
    plan = SortedPlan(limits, _STEPS, (choices, inputs, targets))
    while len({plan.padded_size(size) for size in sizes}) > most_shapes:
        choices, inputs, targets = (2 * step for step in plan.steps)
        plan = dataclasses.replace(plan, steps=(choices, inputs, targets))
    groups: collections.Counter[Size] = collections.Counter()
    for size, count in sizes.items():
        groups[plan.padded_size(size)] += count
    # Reduce B so that the last batch of each shape is nearly full.
    batches = {size: -(-count // limits.groups(size)) for size, count in groups.items()}
    static = {
        size: -(-count // (batches[size] * limits.replicas)) * limits.replicas
        for size, count in groups.items()
    }
    return dataclasses.replace(plan, static_groups=static)


@dataclasses.dataclass(frozen=True)
class PackedPlan:
    """Packs groups into rows of a few static shapes.

    Attributes:
      shapes: the shapes, in ascending order of target tokens per input token.
      of_tasks: the index of each task's shape.
      padding: the cost of all rows divided by the cost of their tokens without padding. This ratio
        is about 1.0 or more.
    """

    shapes: tuple[PackedShape, ...]
    of_tasks: tuple[int, ...]
    padding: float

    @property
    def described(self) -> str:
        """The plan in words."""
        count = len(self.shapes)
        shapes = "1 batch shape" if count == 1 else f"{count} batch shapes"
        return f"in {shapes}; padding adds {self.padding - 1:.0%} to the arithmetic"

    def queue_of(self, group: ChoiceGroup) -> int:
        """Returns the index of the shape that the group's task uses."""
        return self.of_tasks[group.keys[0][0]]

    def is_full(self, queue: int, waiting: Waiting, tokens: np.ndarray) -> bool:
        """Returns whether the waiting groups fill several batches."""
        del waiting
        shape = self.shapes[queue]
        room = np.array([shape.inputs, shape.targets]) * shape.rows
        return bool((tokens >= _POOL * room).any())

    def take(
        self, queue: int, waiting: Waiting, tasks_before: int
    ) -> tuple[list[PackedBatch], Waiting]:
        """Returns a batch of the oldest and some newer groups, and the groups that still wait.

        The newer groups are chosen so that the space for inputs and the space for targets fill
        evenly.
        """
        shape = self.shapes[queue]
        old = sum(group.keys[0][0] < tasks_before for group in waiting)
        # Half a batch is reserved for the oldest groups. Otherwise a group with an unusual ratio
        # could wait for a long time.
        old = max(old, len(waiting) // (2 * _POOL))
        tokens = [group.tokens for group in waiting]
        ratios = [targets / inputs for inputs, targets in tokens]
        others = collections.deque(sorted(range(old, len(tokens)), key=ratios.__getitem__))
        oldest, free = collections.deque(range(old)), FreeTokens(shape)
        rows: dict[int, int] = {}
        inputs = targets = 0
        while oldest or others:
            fewer_targets = targets * shape.inputs > inputs * shape.targets
            index = (
                oldest.popleft() if oldest else others.popleft() if fewer_targets else others.pop()
            )
            row = free.take(*tokens[index])
            if row is not None:
                rows[index] = row
                inputs, targets = inputs + tokens[index][0], targets + tokens[index][1]
        batch = PackedBatch(tuple(waiting[i] for i in rows), tuple(rows.values()), shape)
        return [batch], [group for i, group in enumerate(waiting) if i not in rows]


@dataclasses.dataclass(frozen=True)
class _SharedShape:
    """The tasks that share one shape of packed rows.

    Attributes:
      numbers: the numbers of the tasks.
      tokens: the total numbers of input tokens and of target tokens, for each set of tasks with
        similar ratios, [sets, 2].
      groups: the number of groups in all of these tasks.
      longest: the maximum input tokens and the maximum target tokens of a group, [2].
    """

    numbers: tuple[int, ...]
    tokens: np.ndarray
    groups: int
    longest: np.ndarray

    @classmethod
    def of(cls, number: int, counts: Mapping[tuple[int, int], int]) -> "_SharedShape":
        sizes = np.array([*counts], np.int64).reshape(-1, 2)
        group_counts = np.array([*counts.values()], np.int64)
        tokens = (sizes * group_counts[:, None]).sum(axis=0, keepdims=True)
        return cls((number,), tokens, int(group_counts.sum()), sizes.max(axis=0, initial=1))

    def join(self, other: "_SharedShape", *, alike: bool) -> "_SharedShape":
        both = np.concatenate([self.tokens, other.tokens])
        return _SharedShape(
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
        """Returns the number of batches for these tasks."""
        total = float(self.tokens.sum(axis=0) @ [1.0, _SPARE])
        if total <= limits.tokens:
            return 1
        unused = limits.replicas * total / self.groups
        return math.ceil(total / max(limits.tokens - unused, limits.tokens / 2))

    def shape(self, limits: BatchLimits) -> PackedShape:
        """Returns a shape of rows that groups of all of these tasks fill with little padding."""
        totals = self.tokens.sum(axis=0)
        rows = self.batches(limits) * limits.replicas
        if rows > 1:
            # The free space at the end of a row is smaller than one group on average.
            totals = np.ceil(totals * [1.0, _SPARE] / rows + totals / max(1, self.groups))
        inputs, targets = np.maximum(totals, self.longest).astype(int).tolist()
        return PackedShape(limits.replicas, inputs, targets)

    def cost(self, costs: Costs, limits: BatchLimits) -> float:
        """Returns the cost of all rows, without attention.

        If there are few batches, each batch is assumed to contain groups of all tasks. If there are
        many batches, each batch is assumed to contain only tasks with similar ratios of target
        tokens to input tokens.
        """
        shape, rows = self.shape(limits), self.batches(limits) * limits.replicas
        room = np.array([shape.inputs, shape.targets])
        if rows > _POOL:
            rows = float((self.tokens / room).max(axis=1).sum())
        return float(rows * (room @ _token_costs(costs)))


# A plan decides how groups are divided into queues, and how a queue's groups become batches.
BatchPlan = SortedPlan | PackedPlan


def _token_costs(costs: Costs) -> np.ndarray:
    return np.array([costs.input_token, costs.target_token])


def plan_packed(
    tasks: Sequence[ScoringTask], costs: Costs, limits: BatchLimits, *, most_shapes: int
) -> PackedPlan:
    """Plans packed rows for all tasks, with at most `most_shapes` shapes.

    Args:
      tasks: all tasks.
      costs: the model's costs.
      limits: the limits of a batch. If a batch has fewer target tokens, it may have more input
        tokens.
      most_shapes: the maximum number of shapes, at least 1.
    """
    by_ratio: dict[int, _SharedShape] = {}
    for number, task in enumerate(tasks):
        single = _SharedShape.of(number, task.tokens)
        ratio = math.floor(math.log(single.ratio, _RATIO))
        by_ratio[ratio] = by_ratio[ratio].join(single, alike=True) if ratio in by_ratio else single
    shapes = [by_ratio[ratio] for ratio in sorted(by_ratio)]
    while len(shapes) > 1:
        pairs = [a.join(b, alike=False) for a, b in itertools.pairwise(shapes)]
        separate = [each.cost(costs, limits) for each in shapes]
        extra = [
            pair.cost(costs, limits) - a - b
            for pair, (a, b) in zip(pairs, itertools.pairwise(separate), strict=True)
        ]
        least = int(np.argmin(extra))
        if len(shapes) <= most_shapes and extra[least] > costs.lowering:
            break
        shapes[least : least + 2] = [pairs[least]]
    unpadded_cost = sum(float((each.tokens @ _token_costs(costs)).sum()) for each in shapes)
    index_of = {number: index for index, each in enumerate(shapes) for number in each.numbers}
    return PackedPlan(
        tuple(each.shape(limits) for each in shapes),
        tuple(index_of[number] for number in range(len(tasks))),
        sum(each.cost(costs, limits) for each in shapes) / max(unpadded_cost, 1.0),
    )
