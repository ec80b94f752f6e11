"""Plans the few static shapes of padded batches, for scorers that do not pack rows.

Legend: B groups of choices, C choices, L input tokens, T target tokens.

Each shape (B, C, L, T) needs a lowering, which takes as long as scoring many batches. So a run
counts the sizes of all its groups and merges them to a few shapes. Each merge is the one that adds
the least padding. Merging ends when there are no more than `most_shapes` shapes and the next merge
would cost more than the lowering that it saves.

    sizes = {(2, 71, 3): 500, (2, 80, 3): 20, (4, 200, 30): 100}
    costs = model_costs({"encoder/block_000/layer_000/SelfAttention/q": (512, 384)})
    plan = plan_batches(sizes, costs, BatchLimits(tokens=4096, target_tokens=2048), most_shapes=16)
    plan.shape_of(2, 75, 3)      # the index of the cheapest shape that holds such a group

Batches hold examples of several tasks: groups wait in a queue for each shape until they fill a
batch.

    queues = BatchQueues(plan)
    for group in choice_groups(0, 0, example):
        for batch in queues.add(group):    # whenever a shape has enough groups
            scorer.log_likelihoods(batch.inputs, batch.targets)
    for batch in queues.flush():           # what is left, in batches that are not full
        scorer.log_likelihoods(batch.inputs, batch.targets)
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.scoring.reading import ChoiceGroup, ScoreKey, Size

# The most sizes that are merged: merging is quadratic in their number. More are first rounded up.
MOST_SIZES = 1000


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of computations, in floating point operations.

    Attributes:
      input_token: one token through the encoder, and its keys and values for the decoder.
      input_pair: one token attending to another in the encoder, over all layers.
      target_token: one token through the decoder and the softmax.
      target_pair: one target token attending to an input token, over all layers.
      lowering: the lowering of one more shape.
    """

    input_token: float
    input_pair: float
    target_token: float
    target_pair: float
    lowering: float

    def of_group(self, sizes: np.ndarray) -> np.ndarray:
        """Returns the cost of one group of each size; `sizes` [..., 3] holds C, L, T."""
        choices, inputs, targets = np.moveaxis(np.asarray(sizes, np.float64), -1, 0)
        written = choices * targets
        return inputs * (self.input_token + self.input_pair * inputs) + written * (
            self.target_token + self.target_pair * inputs
        )


def model_costs(variables: Mapping[str, tuple[int, ...]]) -> Costs:
    """Returns the costs of an encoder-decoder.

    Args:
      variables: name -> shape of the variables in a Mesh TensorFlow checkpoint.
    """
    encoder = decoder = memory = encoder_width = decoder_width = 0
    for name, shape in variables.items():
        size = int(np.prod(shape)) if len(shape) > 1 else 0
        kind = name.rpartition("/")[0].rpartition("/")[2]
        if name.startswith("encoder/"):
            encoder += size
            encoder_width += shape[-1] if name.endswith("SelfAttention/q") else 0
        elif kind == "EncDecAttention" and name.endswith(("/k", "/v")):
            memory += size
        elif name.startswith("decoder/"):
            decoder += size
            decoder_width += shape[-1] if kind == "EncDecAttention" and name.endswith("/q") else 0
        elif "decoder/logits/kernel" not in variables:
            decoder += size  # the softmax uses the shared embeddings
    return Costs(
        input_token=2.0 * (encoder + memory),
        input_pair=4.0 * encoder_width,
        target_token=2.0 * decoder,
        target_pair=4.0 * decoder_width,
        # About 7 ms for each variable, in which two cores do 1 to 3 GFLOP.
        lowering=1.8e9 * len(variables),
    )


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """Upper bounds of one batch.

    Attributes:
      tokens: the most input tokens B*L plus target tokens B*C*T.
      target_tokens: the most target tokens B*C*T. Times the vocabulary size this is the size of
        the logits.
      replicas: the number of parts into which a mesh splits the batch. B is a multiple of it, even
        if B then exceeds the bounds.
    """

    tokens: int
    target_tokens: int
    replicas: int = 1


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The shape of a batch: `groups` is B, `choices` C, `inputs` L, `targets` T."""

    groups: int
    choices: int
    inputs: int
    targets: int


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The shapes of a run, the cheapest first.

    Attributes:
      shapes: the shapes to lower.
      padding: the cost of the padded groups divided by the cost without padding; at least 1.0.
    """

    shapes: tuple[BatchShape, ...]
    padding: float

    def shape_of(self, choices: int, inputs: int, targets: int) -> int:
        """Returns the index of the cheapest shape that holds a group.

        Raises:
          ValueError: if no shape holds it: the plan was made for other groups.
        """
        for index, shape in enumerate(self.shapes):
            if choices <= shape.choices and inputs <= shape.inputs and targets <= shape.targets:
                return index
        raise ValueError(f"no shape of the plan holds C={choices}, L={inputs}, T={targets}")

    def queues(self) -> "BatchQueues":
        """Returns empty queues for a run's groups."""
        return BatchQueues(self)


def plan_batches(
    sizes: Mapping[Size, int], costs: Costs, limits: BatchLimits, *, most_shapes: int
) -> BatchPlan:
    """Returns at most `most_shapes` shapes that hold every group.

    Args:
      sizes: (C, L, T) -> the number of groups of this size.
      costs: the model's costs.
      limits: the limits of a batch.
      most_shapes: the most shapes, at least 1.
    """
    shapes, counts = _merge(*_rounded(sizes), costs, most_shapes)
    order = np.argsort(costs.of_group(shapes), kind="stable")
    made = tuple(
        BatchShape(batch_size(tuple(shapes[i]), int(counts[i]), limits), *map(int, shapes[i]))
        for i in order
    )
    bare = sum(n * float(costs.of_group(np.array(size))) for size, n in sizes.items())
    plan = BatchPlan(made, 1.0)
    held = np.array([dataclasses.astuple(shape)[1:] for shape in made])
    cost = costs.of_group(held)
    padded = sum(n * float(cost[plan.shape_of(*size)]) for size, n in sizes.items())
    return dataclasses.replace(plan, padding=padded / bare)


def batch_size(size: Size, groups: int, limits: BatchLimits) -> int:
    """Returns B for a number of groups of one size.

    B is within the limits, and chosen so that the last batch is nearly full.
    """
    choices, inputs, targets = size
    most = min(
        limits.tokens // (inputs + choices * targets), limits.target_tokens // (choices * targets)
    )
    shares = max(1, most // limits.replicas)
    batches = -(-groups // (shares * limits.replicas))
    return -(-groups // (batches * limits.replicas)) * limits.replicas


@dataclasses.dataclass(frozen=True)
class ScoringBatch:
    """A batch, which is padded with 0 when its ids are read.

    Attributes:
      groups: the groups of its first rows; the others are padding.
      shape: the shape.
    """

    groups: tuple[ChoiceGroup, ...]
    shape: BatchShape

    @property
    def keys(self) -> tuple[tuple[ScoreKey, ...], ...]:
        """`keys[b][c]` is the choice that row b, column c belongs to; padding has no key."""
        return tuple(group.keys for group in self.groups)

    @property
    def inputs(self) -> np.ndarray:
        """Token ids [B, L]."""
        found = np.zeros((self.shape.groups, self.shape.inputs), np.int32)
        for row, group in enumerate(self.groups):
            found[row, : len(group.inputs)] = group.inputs
        return found

    @property
    def targets(self) -> np.ndarray:
        """Token ids [B, C, T]."""
        shape = self.shape
        found = np.zeros((shape.groups, shape.choices, shape.targets), np.int32)
        for row, group in enumerate(self.groups):
            for column, target in enumerate(group.targets):
                found[row, column, : len(target)] = target
        return found

    def scored_by(self, scorer: Any) -> np.ndarray:
        """Returns the log-likelihoods [B, C] by a scorer."""
        return scorer.log_likelihoods(self.inputs, self.targets)


class BatchQueues:
    """Queues of groups of choices, one for each batch shape.

    Args:
      plan: the batch shapes, which must hold every group that is added.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan
        self._waiting: list[list[ChoiceGroup]] = [[] for _ in plan.shapes]

    def add(self, group: ChoiceGroup) -> Iterator[ScoringBatch]:
        """Yields the batch that `group` completes, if it does."""
        index = self._plan.shape_of(*group.size)
        waiting = self._waiting[index]
        waiting.append(group)
        if len(waiting) == self._plan.shapes[index].groups:
            yield self._take(index)

    def flush(self, tasks_before: int | None = None) -> Iterator[ScoringBatch]:
        """Yields batches of the waiting groups, which may not be full.

        Args:
          tasks_before: yield only the queues that hold a group of a task before this one; None to
            yield all queues.
        """
        for index, waiting in enumerate(self._waiting):
            if not waiting:
                continue
            # Groups come in the order of their tasks: the first is the oldest.
            if tasks_before is None or waiting[0].keys[0][0] < tasks_before:
                yield self._take(index)

    def _take(self, index: int) -> ScoringBatch:
        chunk, self._waiting[index] = self._waiting[index], []
        return ScoringBatch(tuple(chunk), self._plan.shapes[index])


def _rounded(sizes: Mapping[Size, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most MOST_SIZES sizes [N, 3], rounded up as little as possible, and counts [N]."""
    step = 1
    while True:
        counter: collections.Counter[Size] = collections.Counter()
        for (choices, inputs, targets), count in sizes.items():
            # Targets are short, so they are rounded less.
            t_step = max(1, step // 8)
            rounded = (choices, -(-inputs // step) * step, -(-targets // t_step) * t_step)
            counter[tuple(max(1, size) for size in rounded)] += count
        if len(counter) <= MOST_SIZES or step > 4096:
            found = sorted(counter.items())
            return np.array([size for size, _ in found]), np.array([n for _, n in found])
        step *= 2


def _merge(
    sizes: np.ndarray, counts: np.ndarray, costs: Costs, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merges, again and again, the pair of sizes whose merging adds the least padding.

    Args:
      sizes: int [N, 3].
      counts: number of groups of each size, [N].
      costs: the model's costs.
      most: the most sizes to keep.

    Returns:
      the sizes and counts that are left.
    """
    sizes, counts = sizes.copy(), counts.astype(np.float64)
    numbers = np.arange(len(sizes))
    extra = np.stack([_extra(i, sizes, counts, costs) for i in numbers])
    np.fill_diagonal(extra, np.inf)
    # Each size's best partner, so that a step compares N pairs, not N*N.
    best = extra.argmin(axis=1)
    alive = np.ones(len(sizes), bool)
    while alive.sum() > 1:
        one = int(extra[numbers, best].argmin())
        other = int(best[one])
        if alive.sum() <= most and extra[one, other] > costs.lowering:
            break
        sizes[one] = np.maximum(sizes[one], sizes[other])
        counts[one] += counts[other]
        alive[other] = False
        extra[other, :] = extra[:, other] = np.inf
        row = np.where(alive, _extra(one, sizes, counts, costs), np.inf)
        row[one] = np.inf
        extra[one, :] = extra[:, one] = row
        stale = (best == one) | (best == other)
        best[stale] = extra[stale].argmin(axis=1)
        best = np.where(row < extra[numbers, best], one, best)
        best[one] = row.argmin()
    return sizes[alive], counts[alive].astype(np.int64)


def _extra(i: int, sizes: np.ndarray, counts: np.ndarray, costs: Costs) -> np.ndarray:
    """Returns the cost of the padding added by merging size `i` with each other size, [N]."""
    cost = costs.of_group(sizes)
    merged = costs.of_group(np.maximum(sizes, sizes[i]))
    return counts * (merged - cost) + counts[i] * (merged - cost[i])
