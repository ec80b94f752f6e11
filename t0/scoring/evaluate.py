"""`score_eval`: scores every task of a mixture at each checkpoint and writes the results.

    rank_evaluate(
        MeshModel("bitransformer", mesh_shape="", layout_rules=""),
        vocabulary=vocabulary, lengths={"inputs": 1024, "targets": 256}, batch_size=64,
        split="validation", model_dir="/models/tiny", datasets=eval_datasets, steps="all",
    )   # /models/tiny/validation_eval/results_1000.json, scores/<task>_1000.jsonl

Records are read once and kept on local disk. Batch shapes are planned over all tasks. Then each
checkpoint is loaded once and scores one task after another. An interrupted evaluation keeps its
finished tasks; when it is resumed, its results equal an uninterrupted run's, bit for bit.
"""

import collections
import dataclasses
import datetime
import functools
import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import gin, mesh_utils, mtf
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, say, unknown_name
from t0.progress import ProgressLine
from t0.scoring import data_facts
from t0.scoring.batch_planning import (
    BatchLimits,
    BatchPlan,
    BatchQueues,
    ScoringBatch,
    model_costs,
    plan_batches,
)
from t0.scoring.mesh_model import (
    MeshModel,
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)
from t0.scoring.reading import (
    ExampleStore,
    Lengths,
    ScoringTask,
    Size,
    choice_groups,
    read_task,
)
from t0.scoring.results import CheckpointResults, Scored, dataset_and_prompt
from t0.scoring.scorer import Scorer

# The most logits [B, C, T, V] of a batch, 4 bytes each.
MAX_LOGITS = 16 * 1024 * 1024
# The most tokens of a batch on each device. Larger batches are no faster, and leave more of the
# last batches empty.
MAX_TOKENS = {"cpu": 8192, "gpu": 32768}
# The parameters of `mesh_eval_dataset_fn` that select a task's records.
_READING = ("num_eval_examples", "shuffle_eval_examples", "seed", "use_cached")
# How many tasks may wait until later groups fill their last batches. More of them fill batches
# better; fewer of them lose less in an interruption.
_MOST_WAITING_TASKS = 8
# How many datasets' running accuracies fit into the progress line.
_SHOWN_DATASETS = 3


@gin.configurable("score_eval", module="t0")
@dataclasses.dataclass(frozen=True)
class RankEvaluationSettings:
    """A rank evaluation's settings, which gin can bind (`score_eval.max_shapes = 32`).

    Attributes:
      max_excluded_share: the share of a task's examples that may not have exactly one correct
        choice.
      max_truncated_targets_share: the share of a task's choices that may exceed the length limit.
      max_shapes: the most batch shapes of a run. More shapes cost more lowerings, fewer shapes more
        padding.
      dtype: the type of activations, "float32" or "bfloat16". Logits and their softmax are always
        float32.
    """

    max_excluded_share: float = 0.5
    max_truncated_targets_share: float = 0.5
    max_shapes: int = 24
    dtype: str = "float32"


def rank_evaluate(  # noqa: PLR0913 (a run's arguments, by name)
    model: MeshModel,
    *,
    vocabulary: Any,
    lengths: Mapping[str, int] | None,
    batch_size: int,
    split: str,
    model_dir: str,
    datasets: Sequence[Any],
    summary_dir: str | None = None,
    steps: Any = None,
    dir_suffix: str | None = None,
    checkpoint: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Scores tasks at each checkpoint and writes the results.

    Args:
      model: the model's type and mesh.
      vocabulary: one vocabulary, or (inputs, targets).
      lengths: the limits {"inputs": tokens, "targets": tokens}; None for no limits.
      batch_size: the most sequences of full length in a batch.
      split: the split to score.
      model_dir: the folder of the checkpoints.
      datasets: Mesh TensorFlow's `EvalDataset` of each task, whose records are not truncated.
      summary_dir: the folder for results; by default `<model_dir>/<split>_eval`.
      steps: a step, a list of steps, "all" or None (the latest).
      dir_suffix: appended to the results folder's name.
      checkpoint: a checkpoint to score instead of those in `model_dir`, or None.
      facts: more facts of the run for the results file.

    Raises:
      UserError: if there is no checkpoint or no task, or a task cannot be scored.
    """
    folder = summary_dir or os.path.join(model_dir, f"{split}_eval")  # noqa: PTH118
    folder += f"_{dir_suffix}" if dir_suffix else ""
    checkpoints = chosen_checkpoints(model_dir, steps, checkpoint)
    vocabularies = both_vocabularies(vocabulary)
    if not datasets:
        raise UserError(f"no task of the mixture has a split '{split}'")
    settings = _checked(RankEvaluationSettings())
    known = {"split": split, "lengths": lengths, "vocabulary": vocabularies[1]}
    runs = [
        {"model_dir": model_dir, "step": step}
        | _run_facts(path, settings, **known)
        | dict(facts or {})
        for step, path in checkpoints.items()
    ]
    with ExampleStore() as store:
        results = [CheckpointResults(folder, run, [data.name for data in datasets]) for run in runs]
        tasks = _read(datasets, results, lengths, store=store, settings=settings)
        if tasks:
            scorer = _build_scorer(model, vocabularies, settings.dtype)
            limits = _batch_limits(batch_size, lengths, vocabularies[1].vocab_size, scorer)
            plan = _plan(runs[0]["checkpoint"], tasks, limits, settings.max_shapes)
        for result in results:
            if result.unfinished:
                _score_checkpoint(scorer, result, tasks, plan)
            say(f"results: {result.write()}")
    # Only after all steps, so that a run that is interrupted in a later step also resumes earlier
    # ones.
    for result in results:
        result.remove_unfinished()


def _checked(settings: RankEvaluationSettings) -> RankEvaluationSettings:
    types = ("float32", "bfloat16")
    if settings.dtype not in types:
        raise unknown_name("type", settings.dtype, types, "(gin: score_eval.dtype)")
    for name in ("max_excluded_share", "max_truncated_targets_share"):
        share = getattr(settings, name)
        if not 0 <= share <= 1:
            raise UserError(f"score_eval.{name} is {share!r}; wanted a share from 0 to 1")
    if settings.max_shapes < 1:
        raise UserError(f"score_eval.max_shapes is {settings.max_shapes!r}; wanted 1 or more")
    return settings


def _read(
    datasets: Sequence[Any],
    results: Sequence[CheckpointResults],
    lengths: Lengths,
    *,
    store: ExampleStore,
    settings: RankEvaluationSettings,
) -> list[ScoringTask]:
    """Reads all tasks, also the finished ones, because batches are planned from all of them.

    Otherwise a resumed evaluation would use other batches, and its log-likelihoods would differ in
    the last digits.
    """
    if not any(result.unfinished for result in results):
        return []
    records = bound("mesh_eval_dataset_fn.num_eval_examples")
    if records:
        print(
            f"num_eval_examples = {records:,} selects as many choices of each task, not examples: "
            "the last example may lack some of its choices",
            file=sys.stderr,
        )
    tasks = []
    with ProgressLine(len(datasets), unit="task", doing="reading") as progress:
        for dataset in datasets:
            tasks.append(
                read_task(
                    dataset,
                    lengths,
                    store=store,
                    max_excluded_share=settings.max_excluded_share,
                    max_truncated_targets_share=settings.max_truncated_targets_share,
                )
            )
            progress.count(1)
    notes, warnings = data_facts.lines(tasks)
    print("\n".join(notes))
    for warning in warnings:
        print(warning, file=sys.stderr)
    return tasks


def _build_scorer(spec: MeshModel, vocabularies: tuple[Any, Any], dtype: str) -> Scorer:
    model, placement = build_model(spec, vocabularies)
    types = mesh_utils.get_variable_dtype()
    if dtype == "bfloat16":
        types = mtf.VariableDType(types.master_dtype, tf.bfloat16, tf.bfloat16)
    return Scorer(model, types, placement)


def _batch_limits(
    batch_size: int, lengths: Lengths, vocabulary_size: int, scorer: Scorer
) -> BatchLimits:
    most = MAX_TOKENS[scorer.device_kind] * scorer.replicas
    configured = batch_size * sum(lengths.values()) if lengths else most
    return BatchLimits(
        tokens=min(most, configured),
        target_tokens=MAX_LOGITS * scorer.replicas // vocabulary_size,
        replicas=scorer.replicas,
    )


def _plan(
    checkpoint: str, tasks: Sequence[ScoringTask], limits: BatchLimits, most_shapes: int
) -> BatchPlan:
    sizes: collections.Counter[Size] = collections.Counter()
    for task in tasks:
        sizes.update(task.sizes)
    present = checkpoint_files.read(checkpoint)
    shapes = {name: shape for name, (shape, _) in present.items() if "_slot_" not in name}
    plan = plan_batches(sizes, model_costs(shapes), limits, most_shapes=most_shapes)
    print(
        f"{sum(sizes.values()):,} inputs of {len(tasks)} tasks in {len(plan.shapes)} batch shapes; "
        f"padding adds {plan.padding - 1:.0%} to the arithmetic"
    )
    return plan


def _score_checkpoint(
    scorer: Scorer, results: CheckpointResults, tasks: Sequence[ScoringTask], plan: BatchPlan
) -> None:
    checkpoint, unfinished = results.run["checkpoint"], results.unfinished
    say(f"restored {scorer.restore(checkpoint)} variables from {checkpoint}")
    choices = sum(int(task.choices.sum()) for task in tasks if task.name in unfinished)
    examples = sum(len(task.choices) for task in tasks if task.name in unfinished)
    with ProgressLine(examples, unit="example", doing="scoring") as progress:
        running = _RunningAccuracy(progress)
        for task, scores in score_tasks(scorer, tasks, plan, wanted=unfinished, tick=running.count):
            entry = results.add(task, with_scores(task, scores))
            progress.print(_task_line(task.name, entry))
    seconds = progress.seconds
    print(
        f"scored {choices:,} choices of {examples:,} examples in {seconds:.1f} s "
        f"({choices / seconds:,.0f} choices/s)"
    )


class _RunningAccuracy:
    """Counts examples on a progress line, with the accuracy so far on the latest datasets."""

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress
        self._dataset = functools.cache(lambda task: dataset_and_prompt(task)[0])
        self._right: collections.Counter[str] = collections.Counter()
        # In the order in which they were last scored.
        self._counted: dict[str, int] = {}

    def count(self, task: ScoringTask, right: bool | None) -> None:
        """Counts an example; `right` is None if it is left out of the accuracy."""
        dataset = self._dataset(task.name)
        if right is not None:
            self._right[dataset] += right
            self._counted[dataset] = self._counted.pop(dataset, 0) + 1
        latest = list(self._counted.items())[-_SHOWN_DATASETS:]
        note = ", ".join(f"{name} {self._right[name] / many:.1%}" for name, many in latest)
        self._progress.count(1, note)


def _task_line(task: str, entry: Mapping[str, Any]) -> str:
    accuracy = entry["metrics"].get("accuracy")
    shown = f"{accuracy:5.1f} %" if accuracy is not None else "      -"
    excluded = sum(entry["excluded"].values())
    left_out = f", {excluded:,} left out" if excluded else ""
    cut = entry["truncated_inputs"] + entry["truncated_targets"]
    truncated = f", {cut:,} truncated" if cut else ""
    return (
        f"{shown}  (chance {entry['chance']:.1f} %)  {task}: "
        f"{entry['examples']:,} examples{left_out}{truncated}"
    )


class _TaskScores:
    """The scores of a task so far, four bytes for each choice.

    Attributes:
      task: the task.
      first: the index in `values` of each example's first choice.
      values: the log-likelihoods of the choices, NaN until they are scored.
      left: the number of choices that are not scored.
      left_of: the same for each example.
    """

    def __init__(self, task: ScoringTask) -> None:
        self.task = task
        self.first = np.concatenate([[0], np.cumsum(task.choices)])
        self.values = np.full(int(self.first[-1]), np.nan, np.float32)
        self.left = len(self.values)
        self.left_of = task.choices.copy()

    def add(self, example: int, choice: int, value: float) -> bool:
        """Adds a choice's log-likelihood; returns whether it is the last of its example."""
        self.values[self.first[example] + choice] = value
        self.left -= 1
        self.left_of[example] -= 1
        return not self.left_of[example]

    def right(self, example: int) -> bool | None:
        """Returns whether the best choice of a scored example is the correct one."""
        gold = self.task.gold[example]
        scores = self.values[self.first[example] : self.first[example + 1]]
        return None if gold < 0 else bool(np.argmax(scores) == gold)


def score_tasks(
    scorer: Scorer,
    tasks: Sequence[ScoringTask],
    plan: BatchPlan,
    *,
    wanted: Collection[str],
    tick: Callable[[ScoringTask, bool | None], None],
) -> Iterator[tuple[ScoringTask, np.ndarray]]:
    """Yields each wanted task with the log-likelihoods of its choices, when the last is scored.

    Args:
      scorer: a scorer with a checkpoint's weights.
      tasks: all tasks of the run. All of them fill the batches, so that a choice is scored in the
        same batch, to the same bits, whichever tasks are wanted. Batches without a wanted choice
        are skipped.
      plan: the batch shapes, planned from all tasks.
      wanted: names of the tasks to yield.
      tick: called for each example whose last choice is scored: its task, and whether the best
        choice is the correct one, None for an example that is left out of the accuracy.

    Yields:
      a task, and the log-likelihoods (float32, nats) of the choices of all its examples, one
      example after another.

    Raises:
      UserError: if a score is not a finite number.
    """
    queues, open_tasks = BatchQueues(plan), dict[int, _TaskScores]()

    def score(batch: ScoringBatch) -> None:
        for scores, example in _score_batch(scorer, batch, open_tasks):
            tick(scores.task, scores.right(example))

    def finished() -> Iterator[tuple[ScoringTask, np.ndarray]]:
        for position in [p for p, scores in open_tasks.items() if not scores.left]:
            scores = open_tasks.pop(position)
            _check_numbers(scores)
            yield scores.task, scores.values

    for position, task in enumerate(tasks):
        if task.name in wanted:
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


def _score_batch(
    scorer: Scorer, batch: ScoringBatch, open_tasks: Mapping[int, _TaskScores]
) -> list[tuple[_TaskScores, int]]:
    """Scores a batch if it has choices of an open task, and returns the examples that it ends."""
    places = [
        (row, column, key)
        for row, keys in enumerate(batch.keys)
        for column, key in enumerate(keys)
        if key[0] in open_tasks
    ]
    if not places:
        return []
    values = scorer.log_likelihoods(batch.inputs, batch.targets)
    return [
        (open_tasks[task], example)
        for row, column, (task, example, choice) in places
        if open_tasks[task].add(example, choice, values[row, column])
    ]


def with_scores(task: ScoringTask, scores: np.ndarray) -> Iterator[Scored]:
    """Yields each example of a task in dataset order, with the scores [C] of its choices."""
    start = 0
    for example in task.examples():
        yield example, scores[start : start + len(example.choices)]
        start += len(example.choices)


def _check_numbers(scores: _TaskScores) -> None:
    broken = np.flatnonzero(~np.isfinite(scores.values))
    if not len(broken):
        return
    number = int(np.searchsorted(scores.first, broken[0], side="right")) - 1
    example = next(itertools.islice(scores.task.examples(), number, None))
    raise UserError(
        f"task {scores.task.name}, example {example.idx}: a choice has the log-likelihood "
        f"{scores.values[broken[0]]}; the checkpoint's weights are broken"
    )


def _run_facts(
    checkpoint: str,
    settings: RankEvaluationSettings,
    *,
    split: str,
    lengths: Lengths,
    vocabulary: Any,
) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint,
        "checkpoint_fingerprint": checkpoint_files.fingerprint(checkpoint),
        "split": split,
        "vocabulary": getattr(vocabulary, "sentencepiece_model_file", str(vocabulary)),
        "vocabulary_sha256": vocabulary_hash(vocabulary),
        "vocabulary_size": vocabulary.vocab_size,
        "sequence_length": dict(lengths) if lengths else None,
        "dtype": settings.dtype,
        "template_version": "promptsource 0.1.0",
        "normalisation": "none: sum of log-probabilities over a choice's tokens and EOS",
        "inputs_eos": False,
        "reading": {n: bound(f"mesh_eval_dataset_fn.{n}") for n in _READING},
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
