"""Measures the share of each task's inputs and targets that is truncated.

    notes = cut_notes([task], "train", {"inputs": 512, "targets": 64}, use_cached=True)
    # data: 1 task(s) at inputs 512, targets 64: nothing is cut
    # WARNING: reviews_which: 12.0% of inputs are longer than 512 tokens and lose the end, ...

The first records of a task's cache are measured. If a prompted task is not read from a cache, its
first rows are rendered and tokenized.

Another warning names the tasks whose sampled targets contain unknown tokens. If every target of a
task is empty or `<NO LABEL>`, that is an error, because the model could not learn anything.
"""

import glob
import itertools
import posixpath
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from t0.compat import seqio
from t0.errors import UserError
from t0.feeding import token_files
from t0.feeding.data_spec import is_all_cached
from t0.feeding.objectives import eos_of
from t0.feeding.packing import LOUD, cut_warning
from t0.files import paths
from t0.prompts.render import NO_LABEL
from t0.prompts.row_report import NO_TARGET
from t0.tasks.prompted_tasks import PromptedSource

# Feature -> the ids of an example.
_Example = Mapping[str, Sequence[int]]
# The numbers of examples to measure: from a cache, and from rows that are rendered.
_FROM_CACHE, _RENDERED = 1000, 100
# The number of further examples to read before concluding that a task has no labels.
_MOST_EXAMPLES = 10_000
_SHOWN = 12


def cut_notes(
    tasks: Sequence[seqio.Task], split: str, lengths: Mapping[str, int], *, use_cached: bool
) -> list[str]:
    """Returns a summary line about truncation, and warnings about tasks.

    There is a warning if more than 1% of a task's inputs or targets are truncated, or if its
    targets contain unknown tokens.

    Args:
      tasks: the tasks to check. All of them have the split.
      lengths: feature -> maximum number of tokens, including EOS.
      use_cached: whether the tasks' caches are read.

    Raises:
      UserError: if every target of a task is empty or `<NO LABEL>`.
    """
    truncated: list[tuple[float, str, str]] = []  # (share, task, feature)
    unknown: list[tuple[float, str]] = []
    measured = 0
    for task in tasks:
        names = [name for name in lengths if name in task.output_features]
        examples, count = _open_examples(task, split, names, use_cached=use_cached)
        if not (sample := [*itertools.islice(examples, count)]):
            continue
        measured += 1
        for name in names:
            share = _share(len(example[name]) > lengths[name] for example in sample)
            truncated += [(share, task.name, name)] if share else []
        if "targets" in names:
            share = _unknown_share(task, split, sample, examples)
            unknown += [(share, task.name)] if share else []
    if not measured:
        return []
    truncated.sort(key=lambda cut: -cut[0])
    loud = [cut for cut in truncated if cut[0] > LOUD]
    minor = [f"{task} {share:.1%} of {name}" for share, task, name in truncated[len(loud) :]]
    statements = [f"{len({task for _, task, _ in loud})} lose over {LOUD:.0%}"] if loud else []
    statements += [f"cut: {_listed(minor)}"] if minor else []
    limits = ", ".join(f"{name} {most:,}" for name, most in lengths.items())
    lines = [f"data: {measured:,} task(s) at {limits}: {'; '.join(statements) or 'nothing is cut'}"]
    lines += [cut_warning(task, name, share, lengths[name]) for share, task, name in loud[:_SHOWN]]
    lines += [f"... and {len(loud) - _SHOWN:,} more such"] if len(loud) > _SHOWN else []
    if unknown:
        unknown.sort(key=lambda item: -item[0])
        lines.append(
            "WARNING: unknown tokens: the vocabulary does not have all characters of the targets "
            f"of {_listed([f'{task} {share:.0%}' for share, task in unknown])}. The model learns "
            f"to write unknown tokens instead: t0 show {unknown[0][1]} names the characters"
        )
    return lines


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _share(answers: Iterator[bool]) -> float:
    return float(np.mean([*answers]))


def _open_examples(
    task: seqio.Task, split: str, names: Sequence[str], *, use_cached: bool
) -> tuple[Iterator[_Example], int]:
    """Returns (a task's examples, the number of examples to measure).

    There are no examples if preprocessing steps after the cache choose the lengths, such as span
    corruption, or if only SeqIO could read the examples.
    """
    eos = eos_of(task)
    if use_cached and task.cache_dir and (eos or is_all_cached(task)):
        return _read_cached(task, split, names, eos.ids if eos else {}), _FROM_CACHE
    if not use_cached and is_all_cached(task) and isinstance(task.source, PromptedSource):
        return _render(task, split, names), _RENDERED
    return iter(()), 0


def _read_cached(
    task: seqio.Task, split: str, names: Sequence[str], eos: Mapping[str, int]
) -> Iterator[_Example]:
    """Yields the examples in the first file of a task's cache, with the EOS that is appended."""
    # If no file is there, this is reported later, when the data is read.
    for file in paths.names_like(task.cache_dir, f"{glob.escape(split)}.tfrecord-*")[:1]:
        for ids in token_files.read_batches(posixpath.join(task.cache_dir, file), names):
            for number in range(len(ids[names[0]].lengths)):
                sequences = {name: ids[name].sequence(number) for name in names}
                yield {
                    name: np.append(sequence, eos[name]) if name in eos else sequence
                    for name, sequence in sequences.items()
                }


def _render(task: seqio.Task, split: str, names: Sequence[str]) -> Iterator[_Example]:
    features = {name: task.output_features[name] for name in names}
    try:
        record = None
        for record in task.source.records(split):
            yield {
                name: feature.vocabulary.encode(record[name])
                + [feature.vocabulary.eos_id] * feature.add_eos
                for name, feature in features.items()
            }
        if record is None and task.source.reports[split].counts[NO_TARGET]:
            raise _make_unlabelled_error(task, split)
    finally:
        task.source.reports.pop(split, None)  # drop the report, which covers only these rows


def _unknown_share(
    task: seqio.Task, split: str, sample: Sequence[_Example], rest: Iterator[_Example]
) -> float:
    """Returns the share of the sample's labelled targets that contain unknown tokens.

    Raises:
      UserError: if no target in the sample and in the next examples is labelled.
    """
    vocabulary = task.output_features["targets"].vocabulary
    # `<NO LABEL>` itself may become unknown tokens.
    empty = [(), tuple(vocabulary.encode(NO_LABEL))]
    empty += [(*ids, vocabulary.eos_id) for ids in empty]
    labelled = [ids for example in sample if tuple(ids := example["targets"]) not in empty]
    if labelled:
        return _share(vocabulary.unk_id in ids for ids in labelled)
    if all(tuple(x["targets"]) in empty for x in itertools.islice(rest, _MOST_EXAMPLES)):
        raise _make_unlabelled_error(task, split)
    return 0.0


def _make_unlabelled_error(task: seqio.Task, split: str) -> UserError:
    return UserError(
        f"task {task.name}, split '{split}': every target is empty or {NO_LABEL} in the "
        "sampled examples, so nothing can be learnt or judged. Are its labels hidden, or in "
        "another form than its template expects (1.0 for 1, names for numbers)? To see them: "
        f"t0 show {task.name} --split={split}"
    )
