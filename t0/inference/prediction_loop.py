"""Runs prediction jobs batch by batch, with any engine. A killed run can resume.

    predict_checkpoints(jobs, {1000: "/models/tiny/model.ckpt-1000"}, make_generator, vocabulary,
                        describe=lambda path: {"checkpoint_fingerprint": "..."})

Several processes may predict together. Process r of n takes batches r, r + n, r + 2 n ... of each
window, and the first process writes the file when all batches are finished. The batches, and
therefore the file, do not depend on the number of processes. All processes need access to the
output folder.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from t0.errors import UserError, say
from t0.inference.inputs import WINDOW, InferenceExample, InputBatch, batches, windows
from t0.inference.methods import EOS
from t0.inference.prediction_file import BatchPredictions, PredictionFile
from t0.inference.prediction_jobs import PredictionJob, predicted_tokens
from t0.progress import ProgressLine

# Name of a count in the summary -> its description. Counts that are not 0 are printed with it.
_COUNTS = {
    "truncated_inputs": "inputs cut at the limit",
    "empty_inputs": "inputs without a token",
    "predictions_without_end": "predictions cut at the limit",
}


class TokenGenerator(Protocol):
    """A model that predicts tokens.

    Attributes:
      replicas: a number that must divide the batch size B.
    """

    replicas: int

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint; returns the number of variables."""

    def predict(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predicts tokens for inputs [B, L], with limits [B] and random draws [B, T].

        Returns:
          (token ids, int32 [B, T]; scores, float32 [B]).
        """


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes that predict together.

    Attributes:
      rank: the number of this process, from 0.
      size: the number of processes.
      wait: a function that waits until all processes have called it.
    """

    rank: int = 0
    size: int = 1
    wait: Callable[[], object] = lambda: None


ALONE = Processes()


def predict_checkpoints(
    jobs: Sequence[PredictionJob],
    checkpoints: Mapping[int, str],
    make_generator: Callable[[], TokenGenerator],
    vocabulary: Any,
    *,
    describe: Callable[[str], Mapping[str, Any]],
    processes: Processes = ALONE,
) -> None:
    """Runs the jobs with each checkpoint; skips files that an earlier run finished.

    Args:
      jobs: the jobs.
      checkpoints: step -> path.
      make_generator: makes the generator; called only if there is something to predict.
      vocabulary: the vocabulary whose `decode` turns tokens into text.
      describe: a function from the path of a checkpoint to the facts about the checkpoint that
        determine the predictions.
      processes: the processes that predict together.

    Raises:
      UserError: if an output file has predictions with different facts, or if a batch size does not
        fit the mesh.
    """
    generator = None
    for step, path in checkpoints.items():
        outputs = []
        for job in jobs:
            file = job.path.replace("{step}", str(step))
            facts = {**describe(path), **job.facts()}
            output = PredictionFile(file, facts, described=job.as_json, writes=not processes.rank)
            processes.wait()
            if output.summary:
                say(f"{file}: {output.summary['examples']:,} predictions, finished before")
            else:
                outputs.append((job, output))
        if outputs:
            generator = generator or make_generator()
            say(f"restored {generator.restore(path)} variables from {path}")
        for job, output in outputs:
            _predict_job(job, output, generator, vocabulary, processes)


def _predict_job(
    job: PredictionJob,
    output: PredictionFile,
    generator: TokenGenerator,
    vocabulary: Any,
    processes: Processes,
) -> None:
    """Predicts the batches that no earlier run has finished, and writes the file."""
    settings, size = job.settings, _batch_size(job, generator.replicas)
    numbers_of_batches, tokens = [], 0
    with ProgressLine(_share(job), unit="input", doing="predicting") as progress:
        stream = job.examples.read(settings.shard_id, settings.num_shards)
        for number, window in windows(stream, size * WINDOW):
            window_batches = list(
                batches(
                    window, job.limits, batch_size=size, method=settings.method, seed=settings.seed
                )
            )
            numbers_of_batches.append(len(window_batches))
            for index, batch in enumerate(window_batches):
                if (number, index) in output.finished_batches:
                    progress.count_before(len(batch.places))
                    continue
                if index % processes.size == processes.rank:
                    predictions = _predict_batch(job, generator, vocabulary, window, batch)
                    output.save_batch(number, index, predictions)
                    tokens += predictions.counts["predicted_tokens"]
                rate = tokens * processes.size / progress.seconds
                progress.count(len(batch.places), note=f"{rate:,.0f} tokens/s")
        processes.wait()
        if not processes.rank:
            summary = output.finish(numbers_of_batches)
            for line in _summary_lines(job, output, summary, progress):
                progress.print(line)
    processes.wait()


def _predict_batch(
    job: PredictionJob,
    generator: TokenGenerator,
    vocabulary: Any,
    window: Sequence[InferenceExample],
    batch: InputBatch,
) -> BatchPredictions:
    ids, scores = generator.predict(batch.inputs, batch.limits, batch.draws)
    counts = collections.Counter(examples=len(batch.places))
    lines = {}
    for row, index in enumerate(batch.places):
        example = window[index]
        tokens = predicted_tokens(ids[row], batch.limits[row])
        lines[index] = job.line(example, vocabulary.decode(tokens), scores[row])
        counts["predicted_tokens"] += len(tokens)
        counts["predictions_without_end"] += tokens[-1] != EOS
        counts["truncated_inputs"] += len(example.tokens) > job.limits.inputs
        counts["empty_inputs"] += not example.tokens
    return BatchPredictions(lines, {name: int(count) for name, count in counts.items()})


def _summary_lines(
    job: PredictionJob, output: PredictionFile, summary: Mapping[str, Any], progress: ProgressLine
) -> Iterator[str]:
    seconds = progress.seconds
    earlier = sum(counts.get("predicted_tokens", 0) for counts in output.finished_batches.values())
    tokens = summary.get("predicted_tokens", 0) - earlier
    before = f" ({progress.before:,} of them before)" if progress.before else ""
    yield (
        f"{output.path}: {summary.get('examples', 0):,} predictions{before}, {tokens:,} tokens "
        f"in {seconds:.1f} s ({tokens / seconds:,.0f} tokens/s)"
    )
    limits = {"truncated_inputs": job.limits.inputs, "predictions_without_end": job.limits.targets}
    for name, words in _COUNTS.items():
        if summary.get(name):
            most = f" of {limits[name]:,} tokens" if name in limits else ""
            yield f"  {words}{most}: {summary[name]:,}"


def _batch_size(job: PredictionJob, replicas: int) -> int:
    """Returns the batch size B: the configured size, or a smaller one if there are few examples."""
    size = job.settings.batch_size
    if size % replicas:
        raise UserError(
            f"infer.batch_size is {size}; the mesh splits a batch into {replicas} equal parts, so "
            f"it must be a multiple of {replicas}"
        )
    share = _share(job)
    return size if share is None else min(size, max(1, -(-share // replicas)) * replicas)


def _share(job: PredictionJob) -> int | None:
    """Returns the number of examples in this shard; None if it is unknown."""
    total, settings = job.examples.total, job.settings
    # A source that has not counted its examples may report 0.
    return len(range(settings.shard_id, total, settings.num_shards)) if total else None
