"""The results of one checkpoint: tasks are added as they are finished, then all is written.

report = StepReport(folder, run, ["task_a", "task_b"])
report.unfinished                       # {"task_b"}: an interrupted run had finished task_a
report.finish(data, examples_with_scores)
report.write()                          # results_<step>.json, and TensorBoard's events
report.forget()                         # all steps are done: nothing is left to be taken up
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.scoring import results
from t0.scoring.examples import Example
from t0.scoring.judging import Judge
from t0.scoring.reading import TaskData

# What a task's scores depend on; a run that differs in one of these scores it again.
_MADE_FROM = (
    "checkpoint_fingerprint",
    "split",
    "vocabulary_sha256",
    "vocabulary_size",
    "sequence_length",
    "dtype",
    "template_version",
    "reading",
)


class StepReport:
    """What is known of one checkpoint.

    Args:
      folder: where results go.
      run: facts of the run, as `results_<step>.json` holds them.
      tasks: the names of all, in the order of the results file.
    """

    def __init__(self, folder: str, run: Mapping[str, Any], tasks: Sequence[str]) -> None:
        self.run = run
        self._folder = folder
        self._made_from = {name: run.get(name) for name in _MADE_FROM}
        kept = {task: self._kept(task) for task in tasks}
        self._entries: dict[str, Mapping[str, Any] | None] = kept
        finished = len(tasks) - len(self.unfinished)
        if finished:
            print(f"step {run['step']}: {finished} of {len(tasks)} tasks were finished before")

    def _kept(self, task: str) -> Mapping[str, Any] | None:
        return results.kept_entry(self._folder, self.run["step"], task, made_from=self._made_from)

    @property
    def unfinished(self) -> set[str]:
        """The tasks whose scores are still missing."""
        return {task for task, entry in self._entries.items() if entry is None}

    def finish(
        self, data: TaskData, scored: Iterable[tuple[Example, np.ndarray]]
    ) -> Mapping[str, Any]:
        """Writes the scores of a task and returns its entry in the results.

        Args:
          data: the task.
          scored: its examples in dataset order, with the log-likelihoods [C] of their choices.
        """
        judged = Judge(data.metric_fns)
        step = self.run["step"]
        results.write_scores(self._folder, data.name, step, judged.noting(scored))
        entry = self._entries[data.name] = _entry(data, judged)
        results.keep_entry(self._folder, step, data.name, entry=entry, made_from=self._made_from)
        return entry

    def write(self) -> str:
        """Writes TensorBoard's events and the results file, and returns the latter's path.

        Raises:
          ValueError: if a task is unfinished.
        """
        if self.unfinished:
            raise ValueError(f"unfinished: {sorted(self.unfinished)}")
        values = [
            tf.Summary.Value(tag=f"eval/{task}/{name}", simple_value=value)
            for task, entry in self._entries.items()
            for name, value in entry["metrics"].items()
        ]
        with tf.Graph().as_default(), tf.summary.FileWriter(self._folder) as writer:
            writer.add_summary(tf.Summary(value=values), self.run["step"])
        return results.write_results(self._folder, self.run["step"], self.run, self._entries)

    def forget(self) -> None:
        """Removes what an interrupted evaluation would take up."""
        results.forget_entries(self._folder, self.run["step"])


def _entry(data: TaskData, judged: Judge) -> dict[str, Any]:
    dataset, prompt = _origin(data.name)
    return {
        "dataset": dataset,
        "prompt": prompt,
        "examples": judged.examples,
        "metrics": judged.metrics(data.name),
        "chance": judged.chance,
        "ties": judged.ties,
        "truncated_inputs": data.cut.inputs,
        "truncated_targets": data.cut.targets,
        "excluded": {reason: found.count for reason, found in data.excluded.items()},
        "excluded_examples": {reason: found.first for reason, found in data.excluded.items()},
    }


def _origin(task: str) -> tuple[str, str]:
    source = seqio.TaskRegistry.get(task).source if task in seqio.TaskRegistry.names() else None
    dataset = getattr(source, "dataset", None)
    if dataset is None:
        return task, ""
    subset = f"/{source.subset}" if source.subset else ""
    return dataset + subset, source.template.name
