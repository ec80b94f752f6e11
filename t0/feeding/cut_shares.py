"""Measures the share of each task's inputs and targets that is truncated.

    notes = cut_notes([task], "train", {"inputs": 512, "targets": 64}, use_cached=True)
    # data: 1 task(s) at inputs 512, targets 64: nothing is cut
    # WARNING: reviews_which: 12.0% of inputs are longer than 512 tokens and lose the end, ...

A cache's statistics contain the length of its longest example. If that length is within the limit,
only a few records of the cache are measured; otherwise, many are. If a prompted task is not read
from a cache, its first rows are rendered and tokenized.

Another warning names the tasks whose sampled targets contain unknown tokens. If every target of a
task is empty or `<NO LABEL>`, that is an error, because the model could not learn anything.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import seqio
from t0.errors import UserError
from t0.feeding import token_files
from t0.feeding.cut_warning import LOUD, cut_warning
from t0.files import paths
from t0.files.untrusted import parsed_json
from t0.prompts.render import NO_LABEL
from t0.tasks.prompted_tasks import PromptedSource

# Three numbers per task: the records to measure in a cache, the rows to render without a cache, and
# the records to measure in a cache in which nothing is truncated.
FROM_CACHE, RENDERED, LOOKED_AT = 1000, 100, 100
# The number of rows to render before concluding that a task has no labels.
_MOST_ROWS = 10_000
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class _Measured:
    """The measured lengths of a task's first examples.

    Attributes:
      sizes: feature -> the number of tokens of each measured example. If nothing is truncated, the
        array holds only the length of the longest example.
      unknown: the share of targets with unknown tokens.
    """

    sizes: Mapping[str, np.ndarray]
    unknown: float = 0.0


@dataclasses.dataclass(frozen=True)
class TruncatedShare:
    """The share of a task's examples that are truncated, for one feature."""

    task: str
    feature: str
    share: float
    most: int


def cut_notes(
    tasks: Sequence[seqio.Task], split: str, lengths: Mapping[str, int], *, use_cached: bool
) -> list[str]:
    """Returns a summary line about truncation, and warnings about tasks.

    There is a warning if more than 1% of a task's inputs or targets are truncated, or if its
    targets contain unknown tokens.

    Args:
      tasks: the tasks to check. All of them have the split.
      split: the split.
      lengths: feature -> maximum number of tokens, including EOS.
      use_cached: whether the tasks' caches are read.

    Raises:
      UserError: if every target of a task is empty or `<NO LABEL>`.
    """
    truncated: list[TruncatedShare] = []
    unknown: dict[str, float] = {}
    measured = 0
    for task in tasks:
        sample = _measure(task, split, lengths, use_cached=use_cached)
        if sample is None:
            continue
        measured += 1
        if sample.unknown:
            unknown[task.name] = sample.unknown
        for feature, most in lengths.items():
            counts = sample.sizes.get(feature)
            if counts is not None and len(counts) and counts.max() > most:
                truncated.append(
                    TruncatedShare(task.name, feature, float(np.mean(counts > most)), most)
                )
    if not measured:
        return []
    truncated.sort(key=lambda cut: -cut.share)
    loud = [cut for cut in truncated if cut.share > LOUD]
    limits = ", ".join(f"{name} {most:,}" for name, most in lengths.items())
    minor = [f"{cut.task} {cut.share:.1%} of {cut.feature}" for cut in truncated if cut not in loud]
    more = f" and {len(minor) - _SHOWN} more" if len(minor) > _SHOWN else ""
    summary = f"cut: {', '.join(minor[:_SHOWN])}{more}" if minor else "nothing is cut"
    if loud:
        summary = f"{len({cut.task for cut in loud})} lose over {LOUD:.0%}" + (
            f"; {summary}" if minor else ""
        )
    lines = [f"data: {measured:,} task(s) at {limits}: {summary}"]
    lines += [cut_warning(cut.task, cut.feature, cut.share, cut.most) for cut in loud[:_SHOWN]]
    lines += [f"... and {len(loud) - _SHOWN:,} more such"] if len(loud) > _SHOWN else []
    return lines + _unknown_lines(unknown)


def _unknown_lines(shares: Mapping[str, float]) -> list[str]:
    """Returns a warning about unknown tokens; `shares` is task -> share of targets with them."""
    if not shares:
        return []
    largest = sorted(shares.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name} {share:.0%}" for name, share in largest[:_SHOWN])
    more = f" and {len(largest) - _SHOWN} more" if len(largest) > _SHOWN else ""
    return [
        "WARNING: unknown tokens: the vocabulary does not have all characters of the targets of "
        f"{listed}{more}. The model learns to write unknown tokens instead: "
        f"t0 show {largest[0][0]} names the characters"
    ]


def _measure(
    task: seqio.Task, split: str, lengths: Mapping[str, int], *, use_cached: bool
) -> _Measured | None:
    """Measures the lengths of a task's first examples.

    Returns None if preprocessing steps after the cache choose the lengths, or if only SeqIO could
    read the examples.
    """
    # Steps after the cache, such as span corruption, produce examples of the right length.
    if not task.supports_caching or task.preprocessors[task._cache_step_idx + 1 :]:
        return None
    names = [name for name in lengths if name in task.output_features]
    if use_cached and task.cache_dir:
        return _measure_cache(task, split, names, lengths)
    if isinstance(task.source, PromptedSource) and not use_cached:
        return _measure_rows(task, split, names)
    return None


def _measure_cache(
    task: seqio.Task, split: str, names: Sequence[str], lengths: Mapping[str, int]
) -> _Measured:
    folder = task.cache_dir
    try:
        stats = parsed_json(paths.read_bytes(f"{folder}/stats.{split}.json"))
        count = parsed_json(paths.read_bytes(f"{folder}/info.{split}.json"))["num_shards"]
        longest = {name: stats.get(f"{name}_max_tokens") for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Measured({})  # a damaged cache is reported later, when the data is read
    # The lengths in some caches' statistics do not count EOS.
    fits = all(
        isinstance(tokens, int) and tokens < lengths[name] for name, tokens in longest.items()
    )
    file = f"{folder}/{split}.tfrecord-00000-of-{count:05d}"
    # If nothing is truncated, few records are enough. This saves time for mixtures like T0++, which
    # has hundreds of tasks.
    read = token_files.first_ids(file, names, LOOKED_AT if fits else FROM_CACHE)
    if fits and _has_no_labels(task, read):
        read = token_files.first_ids(file, names, FROM_CACHE)
    if _has_no_labels(task, read):
        count = len(read["targets"].lengths)
        raise _no_labels_error(task.name, split, f"the first {count:,} records of {file}")
    unknown = 0.0
    if "targets" in read:
        ids, feature = read["targets"], task.output_features["targets"]
        empty = _no_label_ids(feature)  # `<NO LABEL>` itself may become unknown tokens
        targets = [t for t in np.split(ids.values, ids.ends[1:-1]) if tuple(t) not in empty]
        unknown = _token_share(feature.vocabulary.unk_id, targets)
    if fits:
        return _Measured({name: np.array([longest[name]]) for name in names}, unknown)
    return _Measured({name: ids.lengths for name, ids in read.items()}, unknown)


def _token_share(token: int | None, targets: Sequence[Any]) -> float:
    """Returns the share of targets that contain a token."""
    return float(np.mean([token in target for target in targets])) if len(targets) else 0.0


def _has_no_labels(task: seqio.Task, read: Mapping[str, Any]) -> bool:
    """Returns whether every target is empty or `<NO LABEL>`; False if there are no targets."""
    targets = read.get("targets")
    if targets is None or not len(targets.lengths):
        return False
    empty = _no_label_ids(task.output_features["targets"])
    return all(tuple(ids) in empty for ids in np.split(targets.values, targets.ends[1:-1]))


def _no_label_ids(feature: seqio.Feature) -> set[tuple[int, ...]]:
    """Returns the ids of an empty target and of `<NO LABEL>`, with and without EOS."""
    vocabulary = feature.vocabulary
    without_eos = [(), tuple(vocabulary.encode(NO_LABEL))]
    return {ids + end for ids in without_eos for end in ((), (vocabulary.eos_id,))}


def _measure_rows(task: seqio.Task, split: str, names: Sequence[str]) -> _Measured:
    records = _render_records(task.source, split)
    first = list(itertools.islice(records, RENDERED))
    rest = itertools.islice(records, _MOST_ROWS)
    if first and not any(_has_label(row) for row in itertools.chain(first, rest)):
        raise _no_labels_error(task.name, split, "the sampled rows")
    sizes, unknown = {}, 0.0
    for name in names:
        feature = task.output_features[name]
        encoded = [feature.vocabulary.encode(record[name]) for record in first]
        sizes[name] = np.array([*map(len, encoded)], np.int64) + int(feature.add_eos)
        if name == "targets":
            labelled = [i for i, r in zip(encoded, first, strict=True) if _has_label(r)]
            unknown = _token_share(feature.vocabulary.unk_id, labelled)
    return _Measured(sizes, unknown)


def _has_label(record: Mapping[str, Any]) -> bool:
    return record["targets"] not in ("", NO_LABEL)


def _render_records(source: PromptedSource, split: str) -> Iterator[dict[str, Any]]:
    try:
        yield from source.records(split)
    finally:
        source.reports.pop(split, None)  # drop the report, which covers only these rows


def _no_labels_error(name: str, split: str, where: str) -> UserError:
    return UserError(
        f"task {name}, split '{split}': every target is empty or {NO_LABEL} in {where}, so "
        f"nothing can be learnt or judged. Are its labels hidden, or in another form than its "
        f"template expects (1.0 for 1, names for numbers)? To see them: "
        f"t0 show {name} --split={split}"
    )
