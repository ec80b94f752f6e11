"""Writes the results of a rank evaluation: a line for each example, and a summary for each step.

`scores/<task>_<step>.jsonl` has one line for each example, in dataset order:

    {"idx": 0, "inputs": "... True or False?",
     "choices": [{"text": "True", "log_likelihood": -1.25, "tokens": 2, "characters": 4}, ...],
     "gold": 1, "prediction": 0}

- `log_likelihood`: the log-likelihood in nats, summed over the choice's tokens and its EOS.
  `tokens` also counts EOS.
- `prediction`: the index of the choice with the highest log-likelihood.
- `gold`: the index of the correct choice; -1 if the example is excluded from the accuracy.
- `document`: the `idx` of the first row with the same document (`t0.sources.documents`). The field
  exists only if rows share documents.
- `id`: the row's id. The field exists only if the rows have a column `id` and all rows are
  evaluated.

`results_<step>.json` has the run's facts and an entry for each task with its metrics. The field
`documents` of an entry is the number of the task's documents, null if no two rows share a document,
or "unknown". If answers were decoded, each entry has the field `decoded`, and the folder `answers/`
with `<task>_<step>.jsonl` is next to `scores/` (`t0.scoring.answers`). Files get these names only
when they are complete.

During an evaluation, `unfinished_<step>/<task>.json` has the entry of a finished task, and the
facts that the task's scores depend on. A resumed evaluation reuses the entries whose facts have not
changed. The entries are removed when the results of all steps are written.

If there are several shards, each shard scores some of the batches on its own machine. All shards
plan the same batches over all examples of all tasks. So a choice is scored in the same batch as in
an evaluation without shards, with the same bits, and `t0.scoring.merging` writes the same files. A
shard has a folder such as `shard-00002-of-00008` in the folder for results:

    scores/<task>_<step>.jsonl    a line for each example with a choice that the shard scored;
                                  log-likelihoods of other choices, and the prediction, are null
    shard_<step>.json             the run, and each task's data for its entry in the results

    results = CheckpointResults("/models/tiny/validation_eval", run, ["task_a", "task_b"])
    results.unfinished                   # {"task_b"}: an interrupted evaluation had finished task_a
    results.add(task, scored)
    results.write()                      # results_<step>.json, and TensorBoard's events
    results.remove_unfinished()
"""

import collections
import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from t0.catalogue.entries import datasets
from t0.errors import UserError, write_reason
from t0.files import paths, publishing
from t0.files.untrusted import parsed_json
from t0.scoring.answers import AnswerCounts
from t0.scoring.batching import BatchPlan, BatchShard
from t0.scoring.examples import MultipleChoiceExample, ScoringTask
from t0.scoring.rank_metrics import RankMetrics, classes_of
from t0.training.recorder import EventFile

SCHEMA = SHARD_SCHEMA = 1
SHARD_KIND = "shard of a rank evaluation"
# The description of the normalization of log-likelihoods, in the facts of a run.
WITH_EOS = "none: sum of log-probabilities over a choice's tokens and EOS"
WITHOUT_EOS = "none: sum of log-probabilities over a choice's tokens"
# If another engine has decoded the texts in a folder, the folder also has this file, which maps
# steps to checkpoints.
DECODED = "checkpoints.json"

# The facts of a run that a task's scores depend on. If one of these facts differs, the task is
# scored again.
MADE_FROM = (
    "checkpoint_fingerprint",
    "split",
    "vocabulary_sha256",
    "vocabulary_size",
    "sequence_length",
    "dtype",
    "engine",
    "joined",
    "template_version",
    "reading",
    "examples",
    "sample_seed",
    "shard",
    "batches",
)

# Group in the table of T0's datasets -> group in results files.
_TRAINING_GROUPS = {"BASE": "training", "GPT_EVAL": "T0+ training", "SGLUE": "T0++ training"}

# (example, log-likelihoods [C] of its choices)
Scored = tuple[MultipleChoiceExample, np.ndarray]


class CheckpointResults:
    """Collects the results of one checkpoint task by task, and then writes the results file.

    Args:
      folder: the folder for results.
      run: the run's facts, as in `results_<step>.json`.
      tasks: the names of all tasks, in the order of the results file.
      writes: whether this process writes files. If several processes evaluate together, only one
        process writes.
    """

    KIND = "results"
    _NEEDED = frozenset({"metrics", "accuracy_by"})

    def __init__(
        self, folder: str, run: Mapping[str, Any], tasks: Sequence[str], *, writes: bool = True
    ) -> None:
        self.run = run
        self._folder, self._writes = folder, writes
        publishing.remove_leftovers([folder, _join(folder, "scores"), _join(folder, "answers")])
        self._made_from = {name: run.get(name) for name in MADE_FROM}
        entries = {task: self._load_entry(task) for task in tasks}
        self._entries: dict[str, Mapping[str, Any] | None] = entries
        finished = len(tasks) - len(self.unfinished)
        if finished:
            print(f"step {run['step']}: {finished} of {len(tasks)} tasks were finished before")

    def _load_entry(self, task: str) -> Mapping[str, Any] | None:
        step, needed = self.run["step"], self._NEEDED
        return load_finished_entry(
            self._folder, step, task, made_from=self._made_from, needed=needed
        )

    @property
    def unfinished(self) -> set[str]:
        """The names of the tasks that are not scored yet."""
        return {task for task, entry in self._entries.items() if entry is None}

    def add(self, task: ScoringTask, scored: Iterable[Scored]) -> Mapping[str, Any]:
        """Writes the scores of a task and returns its entry in the results.

        Args:
          task: the task.
          scored: its examples in dataset order, with the log-likelihoods [C] of their choices.
        """
        entry = self._entries[task.name] = self._scored(task, scored)
        if self._writes:
            step, facts = self.run["step"], self._made_from
            save_finished_entry(self._folder, step, task.name, entry=entry, made_from=facts)
        return entry

    def _scored(self, task: ScoringTask, scored: Iterable[Scored]) -> dict[str, Any]:
        """Writes the scores of a task, and returns the task's entry."""
        metrics = RankMetrics(task.facts.metric_fns)
        lines = (score_line(*pair) for pair in metrics.accumulate(scored))
        self._write_lines(task.name, lines)
        return task_entry(task_facts(task), metrics, task.name)

    @property
    def undecoded(self) -> set[str]:
        """The names of the scored tasks whose answers are not decoded yet."""
        return {task for task, entry in self._entries.items() if entry and "decoded" not in entry}

    def add_answers(
        self, task: str, lines: Iterable[Mapping[str, Any]], counts: AnswerCounts
    ) -> Mapping[str, Any]:
        """Writes the answers of a scored task, and returns the task's entry in the results.

        Args:
          task: the task's name.
          lines: the lines from `answers.answer_lines`.
          counts: the counts to which the lines are added while they are written.
        """
        step, counted_lines = self.run["step"], counts.count_lines(lines)
        if self._writes:
            write_answers(self._folder, task, step, counted_lines)
        else:
            collections.deque(counted_lines, maxlen=0)
        entry = self._entries[task] = {**self._entries[task], "decoded": counts.entry()}
        if self._writes:
            save_finished_entry(self._folder, step, task, entry=entry, made_from=self._made_from)
        return entry

    def _write_lines(self, task: str, lines: Iterable[Mapping[str, Any]]) -> None:
        if self._writes:
            write_lines(self._folder, task, self.run["step"], lines)
        else:
            collections.deque(lines, maxlen=0)

    def write(self) -> str:
        """Writes TensorBoard's events and the results file, and returns the results file's path.

        Raises:
          ValueError: if a task is unfinished.
        """
        if self.unfinished:
            raise ValueError(f"unfinished: {sorted(self.unfinished)}")
        step = self.run["step"]
        if not self._writes:
            return _results_path(self._folder, step)
        write_events(self._folder, step, self._entries, kind="ranked")
        return write_results(self._folder, step, self.run, self._entries)

    def remove_unfinished(self) -> None:
        """Removes the entries that are needed only to resume an interrupted evaluation."""
        if self._writes:
            remove_entries(self._folder, self.run["step"])


def score_line(example: MultipleChoiceExample, scores: np.ndarray) -> dict[str, Any]:
    """Returns the line for one example in the scores file.

    Args:
      example: the example.
      scores: the log-likelihood of each choice in nats, in the choices' order, [C].
    """
    line = {
        "idx": example.idx,
        "inputs": example.text,
        "choices": [
            {
                "text": choice.text,
                "log_likelihood": float(score),
                "tokens": len(choice.tokens),
                "characters": len(choice.text),
            }
            for choice, score in zip(example.choices, scores, strict=True)
        ],
        "gold": example.gold,
        "prediction": int(np.argmax(scores)),
    }
    more = {"document": example.document, "id": example.id}
    return line | {name: value for name, value in more.items() if value is not None}


def write_lines(folder: str, task: str, step: int, lines: Iterable[Mapping[str, Any]]) -> str:
    """Writes `scores/<task>_<step>.jsonl` under `folder`, line by line, and returns its path."""
    path = scores_path(folder, task, step)
    write_whole(path, (json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


def write_answers(folder: str, task: str, step: int, lines: Iterable[Mapping[str, Any]]) -> str:
    """Writes `answers/<task>_<step>.jsonl` under `folder`, and returns its path."""
    path = answers_path(folder, task, step)
    write_whole(path, (json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


def write_results(
    folder: str, step: int, run: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]
) -> str:
    """Writes `results_<step>.json` under `folder` and returns its path."""
    path = _results_path(folder, step)
    content = {"schema": SCHEMA, "run": dict(run), "tasks": {t: dict(v) for t, v in tasks.items()}}
    write_json(path, content)
    return path


def write_events(
    folder: str, step: int, tasks: Mapping[str, Mapping[str, Any]], *, kind: str
) -> None:
    """Writes TensorBoard's event file of a step, with the same tags as Mesh TensorFlow.

    Args:
      folder: the folder for results.
      step: the checkpoint's step.
      tasks: task -> its entry in the results file. The tags of its metrics are
        `eval/<task>/<metric>`.
      kind: the kind of the evaluation, which is part of the file's name.
    """
    values = {
        f"eval/{task}/{name}": value
        for task, entry in tasks.items()
        for name, value in entry["metrics"].items()
    }
    events = EventFile(folder, suffix=f".{kind}.{step}")
    events.add(step, values)
    events.close()


def save_finished_entry(
    folder: str, step: int, task: str, *, entry: Mapping[str, Any], made_from: Mapping[str, Any]
) -> None:
    """Writes the entry of a finished task, so that a resumed evaluation can reuse it.

    Args:
      folder: the folder for results.
      step: the checkpoint's step.
      task: the task's name.
      entry: the task's entry in the results file.
      made_from: the facts that the task's scores depend on.
    """
    size = _bytes(scores_path(folder, task, step))
    content = {"made_from": dict(made_from), "scores_bytes": size, "entry": dict(entry)}
    write_whole(_unfinished_path(folder, step, task), [json.dumps(content) + "\n"])


def load_finished_entry(
    folder: str,
    step: int,
    task: str,
    *,
    made_from: Mapping[str, Any],
    needed: Set[str] = frozenset(),
) -> dict[str, Any] | None:
    """Returns the entry of a task that an interrupted evaluation finished.

    Returns None if there is no such entry, if it was made from other facts than `made_from`, if one
    of the `needed` fields is missing, or if the size of the scores file has changed.
    """
    content = read_json(_unfinished_path(folder, step, task))
    same = content.get("made_from") == json.loads(json.dumps(dict(made_from)))
    whole = content.get("scores_bytes") == _bytes(scores_path(folder, task, step))
    entry = content.get("entry")
    complete = isinstance(entry, dict) and needed <= entry.keys()
    return entry if same and whole and complete else None


def remove_entries(folder: str, step: int) -> None:
    """Removes the entries that `save_finished_entry` wrote for a step."""
    paths.remove(_join(folder, f"unfinished_{step}"))


def read_json(path: str) -> dict[str, Any]:
    """Reads the object in a JSON file; returns {} if the file is missing or malformed."""
    if not paths.exists(path):
        return {}
    try:
        content = parsed_json(paths.read_text(path))
    except ValueError:  # a power failure can leave a damaged file
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: str, content: Any) -> None:
    """Writes a JSON file with `write_whole`, so that it is never incomplete."""
    write_whole(path, [json.dumps(content, indent=1, ensure_ascii=False) + "\n"])


def write_whole(path: str, lines: Iterable[str]) -> None:
    """Writes a file, local or `gs://`, and creates its folder. The file is never incomplete.

    Args:
      path: the file.
      lines: the file's text in pieces. A piece does not have to be a line.

    Raises:
      UserError: if the file cannot be written.
    """
    try:
        paths.make_folder(os.path.dirname(path))  # noqa: PTH120
        publishing.write_whole(path, lines)
    except (OSError, publishing.OutputError) as error:
        reason = write_reason(error.__cause__ or error)
        raise UserError(
            f"cannot write {path}: {reason}. Finished tasks are kept. Fix this and start the "
            "same command again"
        ) from error


def task_facts(task: ScoringTask) -> dict[str, Any]:
    """Returns the fields of a task's entry that do not depend on its scores."""
    return {
        "dataset": task.facts.dataset,
        "prompt": task.facts.prompt,
        "group": group_in_t0(task.facts.dataset),
        "documents": task.document_count,
        "truncated_inputs": task.truncated.inputs,
        "truncated_targets": task.truncated.targets,
        "excluded": {reason: listed.count for reason, listed in task.excluded.items()},
        "excluded_examples": {reason: listed.first for reason, listed in task.excluded.items()},
    }


_NAMES = ("dataset", "prompt", "group")
_COUNTS = ("truncated_inputs", "truncated_targets", "excluded", "excluded_examples")


def task_entry(facts: Mapping[str, Any], metrics: RankMetrics, task: str) -> dict[str, Any]:
    """Returns a task's entry in the results file.

    Args:
      facts: the result of `task_facts`.
      metrics: the task's metrics, in which all scores of the task have been counted.
      task: the task's name, for messages.
    """
    return {
        **{name: facts[name] for name in _NAMES},
        "documents": facts.get("documents"),
        "examples": metrics.examples,
        "metrics": metrics.compute(task),
        "accuracy_by": metrics.accuracy_by,
        "chance": metrics.chance,
        "ties": metrics.ties,
        **{name: facts[name] for name in _COUNTS},
    }


def group_in_t0(dataset: str) -> str:
    """Returns how T0 uses a dataset: as held-out or as training data; "" if T0 does not use it.

    >>> group_in_t0("super_glue/rte"), group_in_t0("sciq"), group_in_t0("mine")
    ('held-out', 'training', '')
    """
    for row in datasets():
        if dataset == (f"{row.name}/{row.subset}" if row.subset else row.name):
            evaluated = "held-out" if row.eval_group == "BASE" else ""
            return evaluated or _TRAINING_GROUPS.get(row.train_group, "")
    return ""


def _bytes(path: str) -> int | None:
    return paths.size_bytes(path) if paths.exists(path) else None


def _results_path(folder: str, step: int) -> str:
    return _join(folder, f"results_{step}.json")


def scores_path(folder: str, task: str, step: int) -> str:
    """Returns the path of a task's scores."""
    return _join(folder, "scores", f"{task}_{step}.jsonl")


def answers_path(folder: str, task: str, step: int) -> str:
    """Returns the path of a task's decoded answers."""
    return _join(folder, "answers", f"{task}_{step}.jsonl")


def _unfinished_path(folder: str, step: int, task: str) -> str:
    return _join(folder, f"unfinished_{step}", f"{task}.json")


def _join(*parts: str) -> str:
    return os.path.join(*parts)  # noqa: PTH118


def batches_digest(tasks: Sequence[ScoringTask], plan: BatchPlan) -> str:
    """Returns a hash of all tasks and their planned batches. It is equal in all shards of a run.

    Raises:
      UserError: if a task has a metric that is not T5's rank classification.
    """
    rows = []
    for task in tasks:
        if any(classes_of(metric) is None for metric in task.facts.metric_fns):
            raise UserError(
                f"task {task.name} has a metric that is not T5's rank classification, which "
                "`t0 merge` cannot compute: evaluate it without --num_shards"
            )
        counts = (len(task.choices), int(task.choices.sum()), zlib.crc32(task.gold.tobytes()))
        sizes = [sorted(counted.items()) for counted in (task.sizes, task.tokens)]
        rows.append([task.name, counts, sizes, task.documents])
    shapes = [repr(shape) for shape in plan.shapes]
    return hashlib.sha256(json.dumps([shapes, rows], default=int).encode()).hexdigest()[:16]


class ShardResults(CheckpointResults):
    """The results of one checkpoint in one shard; see `CheckpointResults`.

    Args:
      folder: the folder for the results of all shards.
      run: the run's facts.
      tasks: the names of all tasks.
      shard: the shard.
      batches: the result of `batches_digest`.
      writes: whether this process writes.
    """

    KIND = "shard"
    _NEEDED = frozenset({"scored", "classes"})

    def __init__(
        self,
        folder: str,
        run: Mapping[str, Any],
        tasks: Sequence[str],
        *,
        shard: BatchShard,
        batches: str,
        writes: bool = True,
    ) -> None:
        facts = {**run, "shard": dataclasses.asdict(shard), "batches": batches}
        super().__init__(_join(folder, shard.folder), facts, tasks, writes=writes)

    def _scored(self, task: ScoringTask, scored: Iterable[Scored]) -> dict[str, Any]:
        counted = 0

        def lines() -> Iterator[dict[str, Any]]:
            nonlocal counted
            for example, row in scored:
                scored_choices = int(np.isfinite(row).sum())
                if scored_choices:
                    counted += scored_choices
                    yield _partial(score_line(example, row))

        self._write_lines(task.name, lines())
        return {
            **task_facts(task),
            "rows": len(task.choices),
            "choices": int(task.choices.sum()),
            "scored": counted,
            "classes": [classes_of(metric)[0] for metric in task.facts.metric_fns],
        }

    def write(self) -> str:
        """Writes `shard_<step>.json`, and returns its path.

        Raises:
          ValueError: if a task is unfinished.
        """
        if self.unfinished:
            raise ValueError(f"unfinished: {sorted(self.unfinished)}")
        path = _join(self._folder, f"shard_{self.run['step']}.json")
        if self._writes:
            content = {
                "schema": SHARD_SCHEMA,
                "kind": SHARD_KIND,
                "run": self.run,
                "tasks": self._entries,
            }
            write_json(path, content)
        return path


def _partial(line: dict[str, Any]) -> dict[str, Any]:
    """Sets the prediction and all missing scores in an example's line to None."""
    for choice in line["choices"]:
        if np.isnan(choice["log_likelihood"]):
            choice["log_likelihood"] = None
    return {**line, "prediction": None}
