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
- `idx`: the number of the row in the dataset, if the entry of the task says `numbered_by: row`.
- `id`: the row's id. The field exists only if the rows have a column `id`.

`results_<step>.json` has the run's facts and an entry for each task with its metrics. The field
`documents` of an entry is the number of the task's documents, null if no two rows share a document,
or "unknown". Files get these names only when they are complete.

If answers are decoded, `answers/<task>_<step>.jsonl`, next to `scores/`, has a line for each
example with exactly one correct choice:

    {"idx": 0, "answer": "True.", "exact_match": true, "choice": 0}

An answer is an exact match if it equals the correct choice after both are normalized. `choice` is
the index of the first choice that equals the answer, or null if no choice equals it. In the
results, the task's entry has the field `decoded` with three parts: the share of exact matches, the
share of answers that equal no choice, and the settings.

During an evaluation, `unfinished_<step>/<task>.json` has the entry of a finished task, and the
facts that the task's scores depend on. A resumed evaluation reuses the entries whose facts have not
changed. The entries are removed when the results of all steps are written.

If there are several shards, each shard scores some of the batches on its own machine. All shards
plan the same batches over all examples of all tasks. So a choice is scored in the same batch as in
an evaluation without shards, with the same bits, and `t0.evaluation.merging` writes the same files. A
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

import dataclasses
import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.catalogue.entries import datasets
from t0.errors import UserError, write_reason
from t0.evaluation.batching import BatchPlan, BatchShard
from t0.evaluation.rank_metrics import AnswerCounts, RankMetrics, classes_of
from t0.evaluation.ranked_examples import MultipleChoiceExample, ScoringTask
from t0.files import paths, publishing
from t0.files.untrusted import parsed_json
from t0.training.recorder import EventFile

SCHEMA = SHARD_SCHEMA = 1
SHARD_KIND = "shard of a rank evaluation"
# The maximum number of excluded examples that are listed, for each reason.
_LISTED = 20
# If another engine has decoded the texts in a folder, the folder also has this file, which maps
# steps to checkpoints.
DECODED = "checkpoints.json"

# The hash of the config and tokenizer files of a Transformers folder. Earlier versions did not
# record this fact.
SETTINGS = "model_settings_sha256"
# The facts of a run that a task's scores depend on. If one of these facts differs, the task is
# scored again.
MADE_FROM = (
    "checkpoint_fingerprint",
    SETTINGS,
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
    "num_fewshot",
    "fewshot_seed",
    "fewshot_options",
    "shard",
    "batches",
)

# Group in the table of T0's datasets -> group in results files.
_TRAINING_GROUPS = {"BASE": "training", "GPT_EVAL": "T0+ training", "SGLUE": "T0++ training"}

# (example, log-likelihoods [C] of its choices)
Scored = tuple[MultipleChoiceExample, np.ndarray]


class CheckpointResults:
    """Collects the results of one checkpoint task by task, and then writes the results file.

    If several processes evaluate together, only one of them calls the methods that write.

    Args:
      folder: the folder for results.
      run: the run's facts, as in `results_<step>.json`.
      tasks: the names of all tasks, in the order of the results file.
    """

    KIND = "results"
    _NEEDED = frozenset({"metrics", "accuracy_by"})

    def __init__(self, folder: str, run: Mapping[str, Any], tasks: Sequence[str]) -> None:
        self.run, self._step = run, run["step"]
        self._folder, self._unfinished = folder, _join(folder, f"unfinished_{self._step}")
        publishing.remove_leftovers([folder, _join(folder, "scores"), _join(folder, "answers")])
        self._made_from = _made_from(run)
        self._entries = {task: self._load_entry(task) for task in tasks}
        finished = len(tasks) - len(self.unfinished)
        if finished:
            print(f"step {self._step}: {finished} of {len(tasks)} tasks were finished before")

    @property
    def unfinished(self) -> set[str]:
        """The names of the tasks that are not scored yet."""
        return {task for task, entry in self._entries.items() if entry is None}

    @property
    def undecoded(self) -> set[str]:
        """The names of the scored tasks whose answers are not decoded yet."""
        return {task for task, entry in self._entries.items() if entry and "decoded" not in entry}

    def add(self, task: ScoringTask, scored: Iterable[Scored]) -> Mapping[str, Any]:
        """Writes the scores of a task and returns its entry in the results.

        Args:
          scored: its examples in dataset order, with the log-likelihoods [C] of their choices.
        """
        return self._keep_entry(task.name, self._write_scores(task, scored))

    def _write_scores(self, task: ScoringTask, scored: Iterable[Scored]) -> dict[str, Any]:
        """Writes the scores of a task, and returns the task's entry."""
        metrics = RankMetrics(task.facts.metric_fns)
        lines = (score_line(*pair) for pair in metrics.accumulate(scored))
        write_lines(self._path("scores", task.name), lines)
        return task_entry(self._facts_of(task), metrics, task.name)

    def _facts_of(self, task: ScoringTask) -> dict[str, Any]:
        numbering = {"numbered_by": task.numbered_by} if "numbered_by" in self.run else {}
        return task_facts(task) | numbering

    def add_answers(
        self, task: str, lines: Iterable[Mapping[str, Any]], counts: AnswerCounts
    ) -> Mapping[str, Any]:
        """Writes the answers of a scored task, and returns the task's entry in the results.

        Args:
          task: the task's name.
          lines: the lines from `rank_metrics.answer_lines`.
          counts: the counts to which the lines are added while they are written.
        """
        write_lines(self._path("answers", task), counts.count_lines(lines))
        return self._keep_entry(task, {**self._entries[task], "decoded": counts.entry()})

    def write(self) -> str:
        """Writes TensorBoard's events and the results file, and returns the results file's path."""
        write_events(self._folder, self._step, self._entries, kind="ranked")
        return write_results(self._folder, self._step, self.run, self._entries)

    def remove_unfinished(self) -> None:
        """Removes the entries that are needed only to resume an interrupted evaluation."""
        paths.remove(self._unfinished)

    def _path(self, kind: str, task: str) -> str:
        return lines_path(self._folder, kind, task, self._step)

    def _keep_entry(self, task: str, entry: dict[str, Any]) -> Mapping[str, Any]:
        """Writes the entry of a finished task, so that a resumed evaluation can reuse it."""
        self._entries[task] = entry
        size = paths.size_bytes(self._path("scores", task))
        content = {"made_from": self._made_from, "scores_bytes": size, "entry": entry}
        write_whole(_join(self._unfinished, f"{task}.json"), [json.dumps(content) + "\n"])
        return entry

    def _load_entry(self, task: str) -> dict[str, Any] | None:
        """Returns the entry that `_keep_entry` wrote; None if it does not match this run."""
        content = read_json(_join(self._unfinished, f"{task}.json"))
        entry, scores = content.get("entry"), self._path("scores", task)
        current, earlier = json.loads(json.dumps(self._made_from)), content.get("made_from")
        fits = (
            isinstance(earlier, dict)
            and {SETTINGS: current[SETTINGS], **earlier} == current
            and paths.exists(scores)
            and content.get("scores_bytes") == paths.size_bytes(scores)
        )
        return entry if fits and isinstance(entry, dict) and entry.keys() >= self._NEEDED else None


def _made_from(run: Mapping[str, Any]) -> dict[str, Any]:
    numbering = {name: run[name] for name in ("numbered_by",) if name in run}
    return {name: run.get(name) for name in MADE_FROM} | numbering


def is_begun_by_example(folder: str, runs: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether an earlier version, which did not number by row, began an evaluation.

    Args:
      folder: the folder for results, also of shards.
      runs: the facts of each checkpoint's run. Facts about the shard are not compared.
    """
    names = paths.list_names(folder) if paths.is_folder(folder) else []
    shards = [_join(folder, name) for name in names if name.startswith("shard-")]
    facts = [_without_shard(_made_from(run)) for run in runs]
    for run, each in itertools.product(runs, (folder, *shards)):
        entries = _join(each, f"unfinished_{run['step']}")
        files = paths.list_names(entries) if paths.is_folder(entries) else []
        begun = [read_json(_join(entries, name)).get("made_from") for name in files]
        shard = read_json(_join(each, f"shard_{run['step']}.json")).get("run")
        begun += [_made_from(shard)] if isinstance(shard, dict) else []
        if any(isinstance(old, dict) and _without_shard(old) in facts for old in begun):
            return True
    return False


def _without_shard(facts: Mapping[str, Any]) -> dict[str, Any]:
    whole = {name: value for name, value in facts.items() if name not in ("shard", "batches")}
    return json.loads(json.dumps(whole))


def score_line(example: MultipleChoiceExample, scores: np.ndarray) -> dict[str, Any]:
    """Returns the line for one example in the scores file.

    Args:
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


def lines_path(folder: str, kind: str, task: str, step: int) -> str:
    """Returns the path of a task's "scores" or "answers"."""
    return _join(folder, kind, f"{task}_{step}.jsonl")


def write_lines(path: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file of JSON Lines, line by line."""
    write_whole(path, (json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def write_results(
    folder: str, step: int, run: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]
) -> str:
    """Writes `results_<step>.json` under `folder` and returns its path."""
    path = _join(folder, f"results_{step}.json")
    content = {"schema": SCHEMA, "run": dict(run), "tasks": {t: dict(v) for t, v in tasks.items()}}
    write_json(path, content)
    return path


def write_events(
    folder: str,
    step: int,
    tasks: Mapping[str, Mapping[str, Any]],
    *,
    kind: str,
    summaries: Iterable[bytes] = (),
) -> None:
    """Writes TensorBoard's event file of a step, with the same tags as Mesh TensorFlow.

    Args:
      folder: the folder for results.
      step: the checkpoint's step.
      tasks: task -> its entry in the results file. The tags of its metrics are
        `eval/<task>/<metric>`.
      kind: the kind of the evaluation, which is part of the file's name.
      summaries: more serialized `tf.Summary` messages.
    """
    values = {
        f"eval/{task}/{name}": value
        for task, entry in tasks.items()
        for name, value in entry["metrics"].items()
    }
    events = EventFile(folder, suffix=f".{kind}.{step}")
    events.add(step, values)
    for summary in summaries:
        events.add_summary(step, summary)
    events.close()


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
        "excluded": {reason: len(listed) for reason, listed in task.excluded.items()},
        "excluded_examples": {
            reason: list(listed[:_LISTED]) for reason, listed in task.excluded.items()
        },
    }


def task_entry(facts: Mapping[str, Any], metrics: RankMetrics, task: str) -> dict[str, Any]:
    """Returns a task's entry in the results file.

    Args:
      facts: the result of `task_facts`.
      metrics: the task's metrics, in which all scores of the task have been counted.
      task: the task's name, for messages.
    """
    counts = ("truncated_inputs", "truncated_targets", "excluded", "excluded_examples")
    return {
        **{name: facts[name] for name in ("dataset", "prompt", "group", "documents")},
        **({"numbered_by": facts["numbered_by"]} if "numbered_by" in facts else {}),
        "examples": metrics.examples,
        "metrics": metrics.compute(task),
        "accuracy_by": metrics.accuracy_by,
        "chance": metrics.chance,
        "ties": metrics.ties,
        **{name: facts[name] for name in counts},
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
      batches: the result of `batches_digest`.
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
    ) -> None:
        facts = {**run, "shard": dataclasses.asdict(shard), "batches": batches}
        super().__init__(_join(folder, shard.folder), facts, tasks)

    def _write_scores(self, task: ScoringTask, scored: Iterable[Scored]) -> dict[str, Any]:
        counted = 0

        def lines() -> Iterator[dict[str, Any]]:
            nonlocal counted
            for example, row in scored:
                scored_choices = int(np.isfinite(row).sum())
                if scored_choices:
                    counted += scored_choices
                    yield _partial(score_line(example, row))

        write_lines(self._path("scores", task.name), lines())
        return {
            **self._facts_of(task),
            "rows": len(task.choices),
            "choices": int(task.choices.sum()),
            "scored": counted,
            "classes": [classes_of(metric)[0] for metric in task.facts.metric_fns],
        }

    def write(self) -> str:
        """Writes `shard_<step>.json`, and returns its path."""
        path = _join(self._folder, f"shard_{self._step}.json")
        facts = {"schema": SHARD_SCHEMA, "kind": SHARD_KIND}
        write_json(path, {**facts, "run": self.run, "tasks": self._entries})
        return path


def _partial(line: dict[str, Any]) -> dict[str, Any]:
    """Sets the prediction and all missing scores in an example's line to None."""
    for choice in line["choices"]:
        if np.isnan(choice["log_likelihood"]):
            choice["log_likelihood"] = None
    return {**line, "prediction": None}
