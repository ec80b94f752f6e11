"""Which share of each task's inputs and targets the lengths cut, from its cache or from a sample.

    notes = cut_notes([task], "train", {"inputs": 512, "targets": 64}, use_cached=True)
    # data: 1 task(s) at inputs 512, targets 64: nothing is cut
    # WARNING: reviews_which: 12.0% of inputs are longer than 512 tokens and lose the end, ...

A cache's statistics say how long its longest example is; only where that is over the length, the
first records are measured. Without a cache, the first rows of prompted tasks are rendered and
tokenised. A task whose every target is empty or `<NO LABEL>` is an error: nothing could be learnt.
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

# Records of a cache, and rows that are rendered, that are measured.
FROM_CACHE, RENDERED = 1000, 100
# Rows that are rendered before a task is believed to have no label at all.
_MOST_ROWS = 10_000
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Cut:
    """The share of a task's examples that are longer than a feature's length."""

    task: str
    feature: str
    share: float
    most: int


def cut_notes(
    tasks: Sequence[seqio.Task], split: str, lengths: Mapping[str, int], *, use_cached: bool
) -> list[str]:
    """Returns a line about what the lengths cut, and a warning for each task that loses over 1%.

    Args:
      tasks: the tasks that have the split.
      split: the split.
      lengths: feature -> most tokens, EOS included.
      use_cached: whether the tasks' caches are read.

    Raises:
      UserError: if every target of a task is empty or `<NO LABEL>`.
    """
    found: list[Cut] = []
    measured = 0
    for task in tasks:
        sizes = _sizes(task, split, lengths, use_cached=use_cached)
        if sizes is None:
            continue
        measured += 1
        for feature, most in lengths.items():
            counts = sizes.get(feature)
            if counts is not None and len(counts) and counts.max() > most:
                found.append(Cut(task.name, feature, float(np.mean(counts > most)), most))
    if not measured:
        return []
    found.sort(key=lambda cut: -cut.share)
    loud = [cut for cut in found if cut.share > LOUD]
    at = ", ".join(f"{name} {most:,}" for name, most in lengths.items())
    some = [f"{cut.task} {cut.share:.1%} of {cut.feature}" for cut in found if cut not in loud]
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    least = f"cut: {', '.join(some[:_SHOWN])}{more}" if some else "nothing is cut"
    if loud:
        least = f"{len({cut.task for cut in loud})} lose over {LOUD:.0%}" + (
            f"; {least}" if some else ""
        )
    lines = [f"data: {measured:,} task(s) at {at}: {least}"]
    lines += [cut_warning(cut.task, cut.feature, cut.share, cut.most) for cut in loud[:_SHOWN]]
    lines += [f"... and {len(loud) - _SHOWN:,} more such"] if len(loud) > _SHOWN else []
    return lines


def _sizes(
    task: seqio.Task, split: str, lengths: Mapping[str, int], *, use_cached: bool
) -> dict[str, np.ndarray] | None:
    """Returns feature -> tokens of each measured example; None for a task that is not measured."""
    # Steps after the cache, such as span corruption, make examples of the right length.
    if not task.supports_caching or task.preprocessors[task._cache_step_idx + 1 :]:
        return None
    names = [name for name in lengths if name in task.output_features]
    if use_cached and task.cache_dir:
        return _of_cache(task, split, names, lengths)
    if isinstance(task.source, PromptedSource) and not use_cached:
        return _of_rows(task, split, names)
    return None


def _of_cache(
    task: seqio.Task, split: str, names: Sequence[str], lengths: Mapping[str, int]
) -> dict[str, np.ndarray]:
    folder = task.cache_dir
    try:
        stats = parsed_json(paths.read_bytes(f"{folder}/stats.{split}.json"))
        count = parsed_json(paths.read_bytes(f"{folder}/info.{split}.json"))["num_shards"]
        longest = {name: stats.get(f"{name}_max_tokens") for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # whoever reads the data says what is wrong with its cache
    # Statistics may be without EOS.
    fits = all(
        isinstance(tokens, int) and tokens < lengths[name] for name, tokens in longest.items()
    )
    file = f"{folder}/{split}.tfrecord-00000-of-{count:05d}"
    # Where nothing is cut, one record with a target is enough: T0++ has hundreds of tasks.
    read = token_files.first_ids(file, names, 1 if fits else FROM_CACHE)
    if fits and _unlabelled(task, read):
        read = token_files.first_ids(file, names, FROM_CACHE)
    if _unlabelled(task, read):
        count = len(read["targets"].lengths)
        raise _without_labels(task.name, split, f"the first {count:,} records of {file}")
    if fits:
        return {name: np.array([longest[name]]) for name in names}
    return {name: ids.lengths for name, ids in read.items()}


def _unlabelled(task: seqio.Task, read: Mapping[str, Any]) -> bool:
    """Returns whether there are targets, and each is empty or `<NO LABEL>`."""
    targets = read.get("targets")
    if targets is None or not len(targets.lengths):
        return False
    empty = _no_label(task.output_features["targets"])
    return all(tuple(ids) in empty for ids in np.split(targets.values, targets.ends[1:-1]))


def _no_label(feature: seqio.Feature) -> set[tuple[int, ...]]:
    """Returns the ids of an empty target and of `<NO LABEL>`, with and without EOS."""
    vocabulary = feature.vocabulary
    bare = [(), tuple(vocabulary.encode(NO_LABEL))]
    return {ids + end for ids in bare for end in ((), (vocabulary.eos_id,))}


def _of_rows(task: seqio.Task, split: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    records = _rendered(task.source, split)
    first = list(itertools.islice(records, RENDERED))
    rest = itertools.islice(records, _MOST_ROWS)
    if first and not any(_labelled(one) for one in itertools.chain(first, rest)):
        raise _without_labels(task.name, split, "the rows that were looked at")
    sizes = {}
    for name in names:
        feature = task.output_features[name]
        counts = [len(feature.vocabulary.encode(record[name])) for record in first]
        sizes[name] = np.array(counts, np.int64) + int(feature.add_eos)
    return sizes


def _labelled(record: Mapping[str, Any]) -> bool:
    return record["targets"] not in ("", NO_LABEL)


def _rendered(source: PromptedSource, split: str) -> Iterator[dict[str, Any]]:
    try:
        yield from source.records(split)
    finally:
        source.reports.pop(split, None)  # of these rows only


def _without_labels(name: str, split: str, where: str) -> UserError:
    return UserError(
        f"task {name}, split '{split}': every target is empty or {NO_LABEL} in {where}: nothing "
        f"can be learnt or judged. Are its labels hidden, or written otherwise than its template "
        f"expects (1.0 for 1, names for numbers)? Look at them: t0 show {name} --split={split}"
    )
