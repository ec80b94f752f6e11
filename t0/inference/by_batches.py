"""Predicts a job batch by batch, on any engine, and writes its file; a killed run resumes.

    output = opened(job, step=1000, facts=facts)        # None if the file was finished before
    predict(job, output, generator, vocabulary)

Several processes may predict together: each takes every `size`-th batch of a window, and the first
writes the window when all have its batches. The batches, and so the file, do not depend on their
number. All must see the folder of the predictions.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t0.errors import UserError, say
from t0.inference.inputs import WINDOW, InferenceExample, InputBatch, batches, windows
from t0.inference.methods import EOS
from t0.inference.prediction_file import FinishedPredictions, PredictionFile
from t0.inference.prediction_jobs import PredictionJob, predicted_tokens
from t0.progress import ProgressLine

# The summary's counts that are printed if they are not 0.
_COUNTS = {
    "truncated_inputs": "inputs cut at the limit",
    "empty_inputs": "inputs without a token",
    "predictions_without_end": "predictions cut at the limit",
}


class Generator(Protocol):
    """What predicts tokens."""

    def predict(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids int32 [B, T] and scores float32 [B] of inputs [B, L], limits [B] and draws
        [B, T].
        """


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes that predict together.

    Attributes:
      rank: the number of this one, from 0 on.
      size: their number.
      wait: waits until all are there.
    """

    rank: int = 0
    size: int = 1
    wait: Callable[[], object] = lambda: None


ALONE = Processes()


def opened(
    job: PredictionJob, *, step: int, facts: Mapping[str, Any], processes: Processes = ALONE
) -> PredictionFile | None:
    """Opens the file of a job's predictions; returns None if an earlier run has finished it.

    Args:
      job: the job.
      step: the checkpoint's step.
      facts: the facts on which the predictions depend, beside those of the job.
      processes: the processes that predict together.

    Raises:
      UserError: if there are predictions with other facts.
    """
    path = job.path.replace("{step}", str(step))
    facts = {**facts, **job.facts()}
    file = PredictionFile(path, facts, described=job.as_json, writes=not processes.rank)
    processes.wait()
    if not file.finished:
        return file
    say(f"{path}: {file.finished['examples']:,} predictions, finished before")
    return None


def predict(
    job: PredictionJob,
    output: PredictionFile,
    generator: Generator,
    vocabulary: Any,
    *,
    replicas: int = 1,
    processes: Processes = ALONE,
) -> None:
    """Predicts the batches that an earlier run did not finish, and writes the file.

    Args:
      job: the job.
      output: its file.
      generator: predicts the tokens.
      vocabulary: has `decode`, from tokens to text.
      replicas: B is a multiple of this number.
      processes: the processes that predict together.
    """
    settings = job.settings
    size = _batch_size(job, replicas)
    work = _Work(job, output, generator, vocabulary, processes)
    count = 0
    with ProgressLine(_share(job), unit="input", doing="predicting") as progress:
        stream = job.examples.read(settings.shard_id, settings.num_shards)
        for number, window in windows(stream, size * WINDOW):
            count = number + 1
            if output.window(number):
                progress.count_before(len(window))
                continue
            made = batches(
                window, job.limits, batch_size=size, method=settings.method, seed=settings.seed
            )
            work.window(number, window, list(made), progress)
        if not processes.rank:
            summary = output.finish(count)
            for line in _summary_lines(job, output.path, summary, work.tokens, progress):
                progress.print(line)
    processes.wait()


@dataclasses.dataclass
class _Work:
    """The work of this process; `tokens` counts what the processes have predicted."""

    job: PredictionJob
    output: PredictionFile
    generator: Generator
    vocabulary: Any
    processes: Processes
    tokens: int = 0

    def window(
        self,
        number: int,
        window: Sequence[InferenceExample],
        made: Sequence[InputBatch],
        progress: ProgressLine,
    ) -> None:
        """Predicts this process's batches of a window; the first process writes the window."""
        before = [self.output.batch(number, part) for part in range(len(made))]
        self.processes.wait()  # until all have seen which batches are finished
        whole = FinishedPredictions({}, {})
        for part in range(self.processes.rank, len(made), self.processes.size):
            if before[part] is not None:
                continue
            found = self._predictions(window, made[part])
            self.output.keep_batch(number, part, found)
            self._count(found, progress)
        self.processes.wait()
        if self.processes.rank:
            return
        for part, earlier in enumerate(before):
            found = earlier or self.output.batch(number, part)
            if found is None:
                raise UserError(
                    f"batch {part} of {self.output.path}, which process "
                    f"{part % self.processes.size} has predicted, is not here: all processes must "
                    "write to one folder that each of them sees"
                )
            if earlier:
                progress.count_before(found.counts["examples"])
            elif part % self.processes.size:
                self._count(found, progress)
            whole.add(found)
        self.output.keep_window(number, whole)

    def _count(self, found: FinishedPredictions, progress: ProgressLine) -> None:
        self.tokens += found.counts["predicted_tokens"]
        speed = f"{self.tokens / progress.seconds:,.0f} tokens/s"
        progress.count(found.counts["examples"], note=speed)

    def _predictions(
        self, window: Sequence[InferenceExample], batch: InputBatch
    ) -> FinishedPredictions:
        ids, scores = self.generator.predict(batch.inputs, batch.limits, batch.draws)
        counts = collections.Counter(examples=len(batch.places))
        lines = {}
        for row, place in enumerate(batch.places):
            example, limit = window[place], batch.limits[row]
            tokens = predicted_tokens(ids[row], limit)
            lines[place] = self.job.line(example, self.vocabulary.decode(tokens), scores[row])
            counts["predicted_tokens"] += len(tokens)
            counts["predictions_without_end"] += tokens[-1] != EOS
            counts["truncated_inputs"] += len(example.tokens) > self.job.limits.inputs
            counts["empty_inputs"] += not example.tokens
        return FinishedPredictions(lines, {name: int(count) for name, count in counts.items()})


def _summary_lines(
    job: PredictionJob, path: str, summary: Mapping[str, Any], tokens: int, progress: ProgressLine
) -> Iterator[str]:
    seconds = progress.seconds
    before = f" ({progress.before:,} of them before)" if progress.before else ""
    yield (
        f"{path}: {summary.get('examples', 0):,} predictions{before}, {tokens:,} tokens "
        f"in {seconds:.1f} s ({tokens / seconds:,.0f} tokens/s)"
    )
    limits = {
        "truncated_inputs": job.limits.inputs,
        "predictions_without_end": job.limits.targets,
    }
    for name, words in _COUNTS.items():
        if summary.get(name):
            most = f" of {limits[name]:,} tokens" if name in limits else ""
            yield f"  {words}{most}: {summary[name]:,}"


def _batch_size(job: PredictionJob, replicas: int) -> int:
    """Returns B: the configured size, or less if there are fewer examples."""
    size = job.settings.batch_size
    if size % replicas:
        raise UserError(
            f"infer.batch_size is {size}; the mesh splits a batch into {replicas} equal parts, so "
            f"it must be a multiple of {replicas}"
        )
    share = _share(job)
    return size if share is None else min(size, max(1, -(-share // replicas)) * replicas)


def _share(job: PredictionJob) -> int | None:
    """Returns the number of examples of this shard, None if it is not known."""
    total, settings = job.examples.total, job.settings
    # A source that has not counted its examples may have 0 as their number.
    return len(range(settings.shard_id, total, settings.num_shards)) if total else None
