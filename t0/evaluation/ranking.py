"""Runs a rank evaluation on any engine: reads tasks, plans batches, scores, writes results.

    rank(
        runs, "/models/tiny/validation_eval", {"rte_score_eval": (facts, open_records)},
        lengths={"inputs": 512, "targets": 64}, open_model=open_model,
        limits=lambda model: BatchLimits(8192, 522), settings=RankEvaluationSettings(),
    )

Batches are planned over all tasks. Then each checkpoint is loaded once, and all tasks are scored
with it, one after another. If an evaluation is interrupted, the scores of its finished tasks are
preserved. After it is resumed, its results equal those of an uninterrupted evaluation bit for bit.

If several processes evaluate together, they all run the same code. Their models split each batch,
and one process writes the results. Alternatively, independent machines can score shards, which are
subsets of the batches (`t0.evaluation.batching.BatchShard`).
"""

import collections
import dataclasses
import datetime
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from t0.caching.row_numbers import ROW
from t0.config.plain_data import Count, Positive, Share
from t0.config.specification import RankSpec
from t0.errors import UserError, say
from t0.evaluation import rank_metrics
from t0.evaluation.batching import (
    WHOLE,
    BatchLimits,
    BatchPlan,
    BatchQueues,
    BatchShard,
    ScoringBatch,
    check_settings,
)
from t0.evaluation.model import Ability, Model, OpenModel
from t0.evaluation.ranked_examples import (
    Lengths,
    RankTaskFacts,
    ScoringTask,
    choice_groups,
    count_task,
    note_on_numbers,
    warn_of_truncation,
)
from t0.evaluation.records import TaskRecords, sort_records
from t0.evaluation.results import (
    CheckpointResults,
    Scored,
    ShardResults,
    batches_digest,
    is_begun_by_example,
)
from t0.measures.choice_lengths import WITH_EOS
from t0.progress import ProgressLine

# The maximum number of logits [B, C, T, V] of a batch. Each logit has 4 bytes.
MAX_LOGITS = {"cpu": 16 * 1024 * 1024, "gpu": 256 * 1024 * 1024}
# The maximum number of tokens of a batch on each device. Larger batches are not faster, and the
# last batches then have more empty rows.
MAX_TOKENS = {"cpu": 8192, "gpu": 32768}
# The last groups of a task may wait until groups of later tasks fill the batch. This is the number
# of later tasks for which they may wait. If the number is larger, batches are fuller. If it is
# smaller, an interruption loses less work.
_MOST_WAITING_TASKS = 16


# The facts about a task, and a function that reads its records in any order. The argument of the
# function says whether to number the examples by row.
RankedTask = tuple[RankTaskFacts, Callable[[bool], TaskRecords]]


@dataclasses.dataclass(frozen=True)
class RankEvaluationSettings:
    """The settings of a rank evaluation. Gin binds the field NAME as `score_eval.NAME`.

    Attributes:
      max_excluded_share: the maximum share of a task's examples that are excluded from the
        accuracy. An example is excluded if it has no correct choice, if it has several correct
        choices, or if its correct choice has the same tokens as a wrong choice.
      max_truncated_targets_share: the maximum share of a task's choices that exceed the length
        limit.
      max_shapes: the maximum number of batch shapes in Mesh TensorFlow. More shapes need more
        lowerings; fewer shapes need more padding.
      dtype: the type of activations, "float32" or "bfloat16". Logits and their softmax are always
        float32.
      shard_id: the number of this shard, from 0. The shard scores the batches whose number modulo
        `num_shards` is `shard_id`.
      num_shards: the number of shards into which the batches are divided. `t0 merge` merges the
        results of all shards.
      decode_answers: whether to also decode an answer to each input, and judge the answer by exact
        match.
    """

    max_excluded_share: Share = 0.5
    max_truncated_targets_share: Share = 0.5
    max_shapes: Positive = 24
    dtype: Literal["float32", "bfloat16"] = "float32"
    shard_id: Count = 0
    num_shards: Positive = 1
    decode_answers: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "score_eval")

    @property
    def shard(self) -> BatchShard:
        """The subset of batches that this evaluation scores."""
        return BatchShard(self.shard_id, self.num_shards)


def results_folder(arguments: Mapping[str, Any]) -> str:
    """Returns the folder for the results of a run; `<model_dir>/<split>_eval` by default."""
    folder = f"{arguments['dataset_split']}_eval"
    folder = arguments["eval_summary_dir"] or os.path.join(arguments["model_dir"], folder)  # noqa: PTH118
    suffix = arguments["eval_dir_suffix"]
    return folder + (f"_{suffix}" if suffix else "")


def rank(  # noqa: PLR0913 (a run's arguments, by name)
    runs: Sequence[Mapping[str, Any]],
    folder: str,
    ranked: Mapping[str, RankedTask],
    *,
    lengths: Lengths,
    open_model: OpenModel,
    limits: Callable[[Model], BatchLimits],
    settings: RankEvaluationSettings,
    writes: bool = True,
    wait: Callable[[], object] = lambda: None,
    make_decoder: Callable[[], rank_metrics.Decoder] | None = None,
) -> None:
    """Scores tasks at each checkpoint and writes the results.

    Args:
      runs: the facts of each checkpoint's run, as in `results_<step>.json`.
      folder: the folder for results.
      ranked: task name -> the task's facts and records.
      lengths: the limits of inputs and targets in tokens; None for no limits.
      open_model: a function that opens the model to score. It is called only if something has to
        be scored.
      limits: a function of the open model that returns the limits of a batch.
      writes: whether this process writes the results.
      wait: a function that waits until all processes that evaluate together have called it.
      make_decoder: a function that builds the decoder of answers. It is called after all choices
        are scored. None if the engine cannot decode answers.

    Raises:
      UserError: if a task or a checkpoint cannot be read, or results cannot be written.
    """
    shard, decodes = settings.shard, settings.decode_answers
    if decodes and make_decoder is None:
        raise UserError(
            "score_eval.decode_answers is set, but this engine cannot decode answers. "
            "t5_mesh_transformer and `t0 eval` can, for encoder-decoders (--decode_answers)"
        )

    by_row = not is_begun_by_example(folder, runs)
    if by_row:
        runs = [{**run, "numbered_by": ROW} for run in runs]
    else:
        say(f"{folder} was begun by an earlier version: examples keep its numbers, not the rows'")

    def prepare() -> tuple[list[ScoringTask], Model, BatchPlan]:
        tasks = _read(ranked, lengths, settings, by_row=by_row)
        model = open_model(Ability.SCORE, dtype=settings.dtype)
        checkpoint, most = runs[0]["checkpoint"], settings.max_shapes
        plan = model.plan(tasks, limits(model), checkpoint=checkpoint, most_shapes=most)
        groups = sum(sum(task.sizes.values()) for task in tasks)
        print(f"{groups:,} inputs of {len(tasks)} tasks {plan.described}")
        return tasks, model, plan

    if shard == WHOLE:
        results = [CheckpointResults(folder, run, [*ranked]) for run in runs]
        pending = [each.unfinished or (decodes and each.undecoded) for each in results]
        ready = prepare() if any(pending) else None
    else:
        ready = tasks, _, plan = prepare()
        digest = batches_digest(tasks, plan)
        results = [
            ShardResults(folder, run, [*ranked], shard=shard, batches=digest) for run in runs
        ]
    wait()  # wait until all processes know which tasks are finished
    for result in results:
        if result.unfinished:
            _score_checkpoint(*ready, result, shard, writes=writes)
        if writes and not decodes:
            say(f"{result.KIND}: {result.write()}")
    if decodes:
        if ready:
            ready[1].close()  # because two models at the same time would need twice the memory
        _decode(results, ready[0] if ready else (), make_decoder, shard)
    # The entries of all steps are removed together at the end. If a later step is interrupted, the
    # resumed run also needs the entries of the earlier steps.
    if writes:
        for result in results:
            result.remove_unfinished()


def _read(
    ranked: Mapping[str, RankedTask],
    lengths: Lengths,
    settings: RankEvaluationSettings,
    *,
    by_row: bool,
) -> list[ScoringTask]:
    """Reads all tasks, even finished tasks, because batches are planned over all tasks.

    Without the finished tasks, a resumed evaluation would use different batches, and its
    log-likelihoods would differ in the last digits.
    """
    tasks = []
    with ProgressLine(len(ranked), unit="task", doing="reading") as progress:
        for facts, open_records in ranked.values():
            opened = open_records(by_row)
            task = count_task(
                facts,
                sort_records(opened.records),
                lengths,
                rows=opened.rows,
                max_excluded_share=settings.max_excluded_share,
                max_truncated_targets_share=settings.max_truncated_targets_share,
            )
            tasks.append(task)
            progress.count(1)
    for warning in [*warn_of_truncation(tasks), *(note_on_numbers(tasks) if by_row else ())]:
        print(warning, file=sys.stderr)
    return tasks


def batch_limits(
    batch_size: int, lengths: Lengths, vocabulary_size: int, model: Model
) -> BatchLimits:
    """Computes the limits of a batch.

    Args:
      batch_size: the maximum number of full-length sequences.
      lengths: the lengths of full sequences in tokens; None for no limits.
      vocabulary_size: the number of logits per token.
      model: the model, from which the kind of device and the number of replicas are read.
    """
    most = MAX_TOKENS[model.device_kind] * model.replicas
    configured = batch_size * sum(lengths.values()) if lengths else most
    return BatchLimits(
        tokens=min(most, configured),
        target_tokens=MAX_LOGITS[model.device_kind] * model.replicas // vocabulary_size,
        replicas=model.replicas,
    )


def _score_checkpoint(
    tasks: Sequence[ScoringTask],
    model: Model,
    plan: BatchPlan,
    results: CheckpointResults,
    shard: BatchShard,
    *,
    writes: bool,
) -> None:
    checkpoint, unfinished = results.run["checkpoint"], results.unfinished
    say(f"restored {model.restore(checkpoint)} variables from {checkpoint}")
    counts = [task.choices for task in tasks if task.name in unfinished]
    total, examples, choices = sum(int(c.sum()) for c in counts), sum(map(len, counts)), 0
    remaining = collections.Counter(t.facts.dataset for t in tasks if t.name in unfinished)
    entries = collections.defaultdict[str, dict[str, Mapping[str, Any]]](dict)
    with ProgressLine(total, unit="choice", doing=f"scoring{shard.words}") as progress:
        for task, scores in score_tasks(
            model, tasks, plan, task_names=unfinished, tick=progress.count, shard=shard
        ):
            choices += int(np.isfinite(scores).sum())
            if writes:
                dataset = task.facts.dataset
                entries[dataset][task.name] = results.add(task, with_scores(task, scores))
                if len(entries[dataset]) == remaining[dataset]:
                    progress.print(dataset_line(dataset, entries[dataset]))
    seconds = progress.seconds
    print(
        f"scored {choices:,} choices of {examples:,} examples{shard.words} in {seconds:.1f} s "
        f"({choices / seconds:,.0f} choices/s)"
    )


def _decode(
    results: Sequence[CheckpointResults],
    tasks: Sequence[ScoringTask],
    make_decoder: Callable[[], rank_metrics.Decoder],
    shard: BatchShard,
) -> None:
    """Decodes the answers of every checkpoint, and writes the checkpoint's results."""
    decoder = make_decoder() if any(result.undecoded for result in results) else None
    for result in results:
        remaining = [
            numbered_task
            for numbered_task in enumerate(tasks)
            if numbered_task[1].name in result.undecoded
        ]
        if remaining:
            checkpoint = result.run["checkpoint"]
            say(f"restored {decoder.restore(checkpoint)} variables to decode from {checkpoint}")
        with ProgressLine(len(remaining), unit="task", doing=f"decoding{shard.words}") as progress:
            for position, task in remaining:
                own_windows = [
                    n for n in range(rank_metrics.windows_of(task)) if shard.has(position + n)
                ]
                most = rank_metrics.most_tokens(task)
                lines = rank_metrics.answer_lines(decoder, task, most, windows=own_windows)
                entry = result.add_answers(task.name, lines, rank_metrics.AnswerCounts(most))
                progress.count(1)
                match, count = entry["decoded"]["exact_match"], entry["decoded"]["examples"]
                progress.print(f"{match:5.1f} %  exact match  {task.name}: {count:,} answers")
        say(f"{result.KIND}: {result.write()}")


def dataset_line(dataset: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the line about the prompts of a dataset. A single prompt has its own name."""
    name = dataset if len(entries) > 1 else next(iter(entries))

    def total(*fields: str) -> int:
        return sum(entry[field] for entry in entries.values() for field in fields)

    if any("metrics" not in entry for entry in entries.values()):
        return f"{name}: {total('scored'):,} of {total('choices'):,} choices are in this shard"
    accuracies = [entry["metrics"].get("accuracy") for entry in entries.values()]
    shown, spread = "      -", ""
    if None not in accuracies:
        shown = f"{statistics.fmean(accuracies):5.1f} %"
        spread = f" ({min(accuracies):.1f} to {max(accuracies):.1f})"
    prompts = f"mean of {len(entries)} prompts{spread}, " if len(entries) > 1 else ""
    excluded = sum(sum(entry["excluded"].values()) for entry in entries.values())
    cut = total("truncated_inputs", "truncated_targets")
    return (
        f"{shown}  (chance {total('chance') / len(entries):.1f} %)  {name}: {prompts}"
        f"{total('examples'):,} examples{f', {excluded:,} left out' if excluded else ''}"
        f"{f', {cut:,} truncated' if cut else ''}"
    )


class _TaskScores:
    """The scores of a task so far, with four bytes for each choice.

    Attributes:
      task: the task.
      first: for each example, the index of its first choice in `values`.
      values: the log-likelihoods of the choices; NaN if a choice is not scored yet.
      remaining: the number of choices of the task that still have to be scored or skipped.
    """

    def __init__(self, task: ScoringTask) -> None:
        self.task = task
        self.first = np.cumsum(task.choices) - task.choices
        self.remaining = int(task.choices.sum())
        self.values = np.full(self.remaining, np.nan, np.float32)

    def add(self, example: int, choice: int, value: float | None) -> None:
        """Adds a choice's log-likelihood; None if another shard scores the choice."""
        self.remaining -= 1
        if value is None:
            return
        if not np.isfinite(value):
            raise UserError(
                f"task {self.task.name}: a choice has the log-likelihood {value}; the checkpoint's "
                "weights are broken"
            )
        self.values[self.first[example] + choice] = value


def score_tasks(
    model: Model,
    tasks: Sequence[ScoringTask],
    plan: BatchPlan,
    *,
    task_names: Collection[str],
    tick: Callable[[int], object],
    shard: BatchShard = WHOLE,
) -> Iterator[tuple[ScoringTask, np.ndarray]]:
    """Scores tasks, and yields each named task as soon as its last choice is scored.

    Args:
      model: a model to score, with a checkpoint's weights.
      tasks: all tasks of the run. The batches are always filled from all tasks. So a choice is
        always scored in the same batch, with the same bits, even if `task_names` has other tasks.
        If a batch has no choice of a named task, it is skipped.
      plan: the batch shapes, planned from all tasks.
      task_names: the names of the tasks to yield.
      tick: a function that is called with the number of choices after each batch.
      shard: the batches to score.

    Yields:
      (task, log-likelihoods of all choices of all its examples in order, float32, in nats). A
      choice that another shard scores has NaN.

    Raises:
      UserError: if a score is NaN or infinite.
    """
    queues, open_tasks = BatchQueues(plan), dict[int, _TaskScores]()
    numbers = itertools.count()

    def score(batch: ScoringBatch) -> None:
        own = shard.has(next(numbers))
        cells = [
            (row, column, key)
            for row, group in enumerate(batch.groups)
            for column, key in enumerate(group.keys)
            if key[0] in open_tasks
        ]
        values = model.score(batch) if own and cells else None
        for row, column, (task, example, choice) in cells:
            open_tasks[task].add(example, choice, values[row, column] if own else None)
        tick(len(cells))

    def finished() -> Iterator[tuple[ScoringTask, np.ndarray]]:
        for position in [p for p, scores in open_tasks.items() if not scores.remaining]:
            scores = open_tasks.pop(position)
            yield scores.task, scores.values

    for position, task in enumerate(tasks):
        if task.name in task_names:
            open_tasks[position] = _TaskScores(task)
        for number, example in enumerate(task.examples()):
            for group in choice_groups(position, number, example):
                for batch in queues.add(group):
                    score(batch)
        for batch in queues.flush(position - _MOST_WAITING_TASKS):
            score(batch)
        yield from finished()
    for batch in queues.flush():
        score(batch)
    yield from finished()


def with_scores(task: ScoringTask, scores: np.ndarray) -> Iterator[Scored]:
    """Yields each example of a task in dataset order, with the scores [C] of its choices."""
    start = 0
    for example in task.examples():
        yield example, scores[start : start + len(example.choices)]
        start += len(example.choices)


def describe_runs(
    spec: RankSpec,
    checkpoints: Mapping[int, str],
    fingerprint: Callable[[str], str],
    *,
    model_dir: str,
    split: str,
    lengths: Lengths,
    **facts: str,
) -> list[dict[str, Any]]:
    """Returns the facts of each checkpoint's run; see `run_facts`.

    Args:
      spec: the evaluation.
      checkpoints: step -> the checkpoint's path.
      fingerprint: a function of this path.
      model_dir: the model directory.
      lengths: the limits in tokens; None for no limits.
      **facts: further facts.
    """
    settings = RankEvaluationSettings(**spec.settings)
    options = {"vocabulary": spec.vocabulary, "reading": spec.reading}
    options |= {"split": split, "lengths": lengths}
    return [
        {"model_dir": model_dir, "step": step, **facts}
        | run_facts(path, fingerprint(path), settings, **options)
        | dict(spec.given)
        for step, path in checkpoints.items()
    ]


def run_facts(
    checkpoint: str,
    fingerprint: str,
    settings: RankEvaluationSettings,
    *,
    split: str,
    lengths: Lengths,
    vocabulary: Mapping[str, Any],
    reading: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the facts of a run for its results file.

    Args:
      lengths: the limits in tokens; None for no limits.
      vocabulary: the facts "vocabulary" (the vocabulary's path), "vocabulary_sha256" and
        "vocabulary_size".
      reading: the parameters of `mesh_eval_dataset_fn` that select a task's records.
    """
    return {
        "checkpoint": checkpoint,
        "checkpoint_fingerprint": fingerprint,
        "split": split,
        **vocabulary,
        "sequence_length": dict(lengths) if lengths else None,
        "dtype": settings.dtype,
        "template_version": "promptsource 0.1.0",
        "normalisation": WITH_EOS,
        "inputs_eos": False,
        "reading": dict(reading),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
