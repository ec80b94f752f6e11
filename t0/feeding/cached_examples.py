"""Makes examples of cached instructions, answer choices and records without EOS, in numpy.

    lengths = {"inputs": 1024, "targets": 128}
    source = InstructedSource("joke", files, 60, INSTRUCTION_FEATURES, spec=spec, lengths=lengths)
    next(source.blocks(epoch=0, first=0, seed=7))[0]
    # {"inputs": int32 [n], "targets": int32 [m]}

A cached record of an instruction task has an input with all of its demonstrations, the sizes of the
input's parts, and all possible outputs. `t0.tasks.instruction_steps` defines the preprocessing
steps that follow the cache. This module runs the same steps without TensorFlow. Demonstrations that
do not fit are left out, and each epoch draws one of the outputs. The draws depend only on (seed,
task, epoch, block).

    source = ChoiceSource(CachedSource("rte_score_eval", files, 4_980, CHOICE_FEATURES))
    source.choices                             # 2, the largest number of choices of an example
    next(source.blocks(epoch=0, first=0, seed=7))[0]
    # {"inputs": int32 [n], "targets": int32 [2, m]}: the right choice first, padded with zeros

    source = EndedSource("tea", files, 120, ("inputs", "targets"), eos=spec, lengths=lengths)

The cached records of such a task have no EOS, which SeqIO appends while it reads them. The blocks
are those of `t0.feeding.uncached.LiveSource`, so a run that began with SeqIO continues here.

A cache of a rank-evaluation task has one record for each choice, as SeqIO's `rank_classification`
writes it. The choices of an example may lie in different files, so the records of a split are read
together and stay in memory. As in rank evaluation, the feature `weight` is not used, and an example
is only used if exactly one of its choices is right and no other choice has the same tokens.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from t0.config.specification import EosSpec, InstructionSpec
from t0.errors import UserError
from t0.feeding import pretraining
from t0.feeding.random_access import interleave_blocks
from t0.feeding.reading import BLOCK_EXAMPLES, CachedSource, ExampleBlock, key_of, shuffled
from t0.feeding.token_files import Ragged, read_batches, slices

# The features of a record of an answer choice: the numbers of its example and of its choice, the
# token ids, and whether the choice is right.
CHOICE_FEATURES = ("idx", "inputs", "targets", "is_correct")
# The features of a cached record of an instruction task.
INSTRUCTION_FEATURES = ("inputs", "part_tokens", "outputs", "output_tokens")
# This number is in the seed of a block's draws, but not in the seed of the block's order.
_DRAWS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstructedSource(CachedSource):
    """The examples of an instruction task. It reads the `INSTRUCTION_FEATURES` of the task's cache.

    Attributes:
      spec: the parameters that turn records into examples.
      lengths: feature -> maximum number of tokens.
    """

    spec: InstructionSpec
    lengths: Mapping[str, int]

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields the blocks of an epoch from number `first` on, unshuffled if `seed` is None.

        Raises:
          UserError: if a file cannot be read, or if its records do not belong to an instruction
            task.
        """
        blocks = super().blocks(epoch=epoch, first=first, seed=seed)
        for number, block in enumerate(blocks, start=first):
            rng = np.random.default_rng([seed or 0, key_of(self.name), epoch, number, _DRAWS])
            try:
                inputs, _ = join_parts(block.features, self.spec)
                targets = draw_outputs(block.features, rng)
            except ValueError as error:
                raise UserError(
                    f"the cache of task {self.name} is damaged or from another version: {error}. "
                    "Cache it again (seqio_cache_tasks --overwrite)"
                ) from error
            sequences = {
                name: pretraining.append_eos(ids, self.spec.eos[name], self.lengths[name])
                for name, ids in (("inputs", inputs), ("targets", targets))
                if name in self.lengths
            }
            yield ExampleBlock(sequences, block.order)


def join_parts(features: Mapping[str, Ragged], spec: InstructionSpec) -> tuple[Ragged, np.ndarray]:
    """Joins those parts of each input that fit into the maximum length.

    Args:
      features: "inputs" and "part_tokens" of R records.
      spec: the parameters that turn records into examples.

    Returns:
      the ids of R inputs without EOS; and bool [R, parts], which is True for parts that remain.

    Raises:
      ValueError: if the records do not belong to an instruction task.
    """
    inputs, sizes = features["inputs"], part_sizes(features["part_tokens"], spec)
    if not np.array_equal(sizes.sum(1), inputs.lengths):
        raise ValueError("the parts of a record do not add up to its inputs")
    fits = _select_parts(sizes, spec)
    return pretraining.select_masked(inputs, np.repeat(fits.ravel(), sizes.ravel())), fits


def draw_outputs(features: Mapping[str, Ragged], rng: np.random.Generator | None) -> Ragged:
    """Draws one output for each record, and returns the outputs' ids without EOS.

    Args:
      features: "outputs" and "output_tokens" of R records.
      rng: the generator that draws the outputs; None to take the first output of each record.

    Raises:
      ValueError: if the records do not belong to an instruction task.
    """
    outputs, sizes = features["outputs"], features["output_tokens"]
    ends = np.append(0, np.cumsum(sizes.values, dtype=np.int64))
    if sizes.values.min(initial=0) < 0 or not np.array_equal(ends[sizes.ends], outputs.ends):
        raise ValueError("the outputs of a record do not add up")
    if sizes.lengths.min(initial=1) < 1:
        raise ValueError("a record has no outputs")
    indices = sizes.ends[:-1] + (rng.integers(0, sizes.lengths) if rng else 0)
    return slices(outputs.values, ends[indices], sizes.values[indices])


def part_sizes(parts: Ragged, spec: InstructionSpec) -> np.ndarray:
    """Returns the sizes of the records' parts, int64 [R, parts].

    Raises:
      ValueError: if records have different numbers of parts, if they have fewer parts than the task
        needs, or if a size is negative.
    """
    numbers = np.unique(parts.lengths)
    if not numbers.size:
        return np.zeros((0, spec.positives + 3), np.int64)
    # An input has three parts (name, definition and instance) in addition to the demonstrations.
    if numbers.size > 1 or numbers[0] < spec.positives + 3 or parts.values.min() < 0:
        raise ValueError("the parts of a record do not form an instruction")
    return parts.values.reshape(-1, numbers[0]).astype(np.int64)


def _select_parts(sizes: np.ndarray, spec: InstructionSpec) -> np.ndarray:
    """Returns bool [R, parts], which is True for the parts that remain in their input.

    A demonstration remains if all earlier demonstrations of its kind remain, and if it fits
    together with the definition, the instance and the demonstrations before it.
    """
    most = spec.longest_inputs - (spec.eos["inputs"] is not None)
    fits = np.ones(sizes.shape, bool)
    used = sizes[:, 1] + sizes[:, -1]
    for kind in (slice(2, 2 + spec.positives), slice(2 + spec.positives, -1)):
        fits[:, kind] = used[:, None] + np.cumsum(sizes[:, kind], axis=1) <= most
        used = used + (sizes[:, kind] * fits[:, kind]).sum(1)
    return fits


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndedSource(CachedSource):
    """The examples of a task to whose cached records SeqIO appends EOS.

    Attributes:
      eos: the EOS of each feature.
      lengths: feature -> maximum number of tokens.
    """

    eos: EosSpec
    lengths: Mapping[str, int]

    @property
    def cache(self) -> None:
        """None, because the blocks are those of the uncached source `LiveSource`."""
        return

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields the blocks of an epoch from number `first` on, unshuffled if `seed` is None.

        Raises:
          UserError: if a file cannot be read.
        """
        records = interleave_blocks(self._records(file) for file in self.files)
        for number in itertools.count():
            members = [*itertools.islice(records, BLOCK_EXAMPLES)]
            if not members:
                return
            if number >= first:
                columns = zip(self.features, zip(*members, strict=True), strict=True)
                features = {name: _join_sequences(sequences) for name, sequences in columns}
                ended = append_eos(features, self.eos, self.lengths)
                order = shuffled(self.name, epoch, number, seed, len(members))
                yield ExampleBlock(ended, order)

    def read(self, files: Sequence[str]) -> dict[str, Ragged]:
        """Returns feature -> the ids of each record of some of the files, ended but not truncated.

        Raises:
          UserError: if a file cannot be read. The message has the task and the file.
        """
        return append_eos(super().read(files), self.eos)

    def _records(self, file: str) -> Iterator[tuple[np.ndarray, ...]]:
        for ids in read_batches(file, self.features):
            for number in range(len(ids[self.features[0]].lengths)):
                yield tuple(ids[name].sequence(number) for name in self.features)


def _join_sequences(sequences: Sequence[np.ndarray]) -> Ragged:
    return Ragged(np.concatenate(sequences), np.cumsum([0, *map(len, sequences)]))


def append_eos(
    features: Mapping[str, Ragged], eos: EosSpec | None, lengths: Mapping[str, int] | None = None
) -> dict[str, Ragged]:
    """Appends EOS to cached records and truncates them, as SeqIO does.

    Args:
      features: feature -> the ids of each record.
      eos: the EOS of each feature; None to append nothing.
      lengths: feature -> maximum number of tokens; None to truncate nothing.
    """
    ended = dict(features)
    for name, ids in features.items():
        limit = (lengths or {}).get(name)
        if eos and name in eos.ids:
            most = limit if eos.after_trim else None
            ids = pretraining.append_eos(ids, eos.ids[name], most)  # noqa: PLW2901
        ended[name] = pretraining.append_eos(ids, None, limit) if limit is not None else ids
    return ended


class ChoiceBlock(ExampleBlock):
    """A block of examples. `order` has the records of each example, the right choice first."""

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        group = self.order[index]
        choices = [self.features["targets"].sequence(record) for record in group]
        targets = np.zeros((len(choices), max(map(len, choices))), np.int32)
        for row, choice in zip(targets, choices, strict=True):
            row[: len(choice)] = choice
        return {"inputs": self.features["inputs"].sequence(group[0]), "targets": targets}


@dataclasses.dataclass(frozen=True)
class ChoiceSource:
    """The examples of a rank-evaluation task, each with all of its answer choices.

    Attributes:
      records: the task's records, with the features that `CHOICE_FEATURES` names.
      cache: None, because an example consists of several records.
    """

    records: CachedSource
    cache: None = None

    @property
    def name(self) -> str:
        """The task's name."""
        return self.records.name

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self._examples.order)

    @property
    def choices(self) -> int:
        """The largest number of choices of an example."""
        return max(map(len, self._examples.order))

    def blocks(self, *, epoch: int, first: int, seed: int | None) -> Iterator[ExampleBlock]:
        """Yields one block with all examples, unshuffled if `seed` is None.

        An epoch has no other blocks.
        """
        if first == 0:
            examples = self._examples
            order = shuffled(self.name, epoch, 0, seed, self.examples).tolist()
            yield dataclasses.replace(examples, order=[examples.order[i] for i in order])

    @functools.cached_property
    def _examples(self) -> ChoiceBlock:
        """All examples, in the order of their numbers.

        Raises:
          UserError: if the losses are not defined for the records.
        """
        features = self.records.read(self.records.files)
        numbers, right = features["idx"], features["is_correct"]
        if (numbers.lengths != 2).any() or (right.lengths != 1).any():
            raise UserError(
                f"task {self.name} has records without answer choices, and choice_losses needs "
                "them. Train on its rank-evaluation form (_score_eval), or unset choice_losses"
            )
        pairs = numbers.values.reshape(-1, 2)
        if len(np.unique(pairs, axis=0)) < len(pairs):
            raise UserError(
                f"task {self.name} has several records with the same idx; choice_losses needs a "
                "different idx for each answer choice. Was each shard of its source numbered from "
                "0? Cache the task again from a source with one shard"
            )
        example, choice = pairs.T
        order = np.lexsort((choice, right.values == 0, example))
        starts = np.flatnonzero(np.diff(example[order], prepend=-1))
        groups = [
            group
            for group in np.split(order, starts[1:])
            if right.values[group].sum() == 1 and self._is_unambiguous(features, group)
        ]
        if not groups:
            raise UserError(
                f"task {self.name} has no example with exactly one right answer choice in this "
                "split, so choice_losses cannot train on it. Do its rows have labels?"
            )
        return ChoiceBlock(features, groups, 0)

    def _is_unambiguous(self, features: dict[str, Ragged], group: np.ndarray) -> bool:
        """Returns whether no wrong choice of an example has the same tokens as the right choice."""
        inputs, *others = (features["inputs"].sequence(record) for record in group)
        right, *wrong = (features["targets"].sequence(record) for record in group)
        if not all(np.array_equal(inputs, other) for other in others):
            fault = "answer choices of one example with different inputs"
        elif not all(map(len, (right, *wrong))):
            fault = "an answer choice without tokens"
        else:
            return not any(np.array_equal(right, choice) for choice in wrong)
        raise UserError(
            f"task {self.name} has {fault}, which choice_losses cannot compare. Repair the task, "
            "or unset choice_losses"
        )
