"""Runs prediction jobs with any engine, and writes their files. A killed run can resume.

A job has a source of inputs, settings, and an output file with a line for each input:

    {"idx": 0, "inputs": "Who wrote it?", "prediction": "Paris", "targets": "...", "score": -1.25}

`targets` is there only if it is known. The file appears only when it is complete. Next to it,
`<file>.run.json` has the settings and counts of the run. Before that, the folder `<file>.partial/`
contains a file for each finished batch.

    job = PredictionJob(source, LengthLimits(512, 64), settings, "/out/qa_{step}.jsonl")
    predict_checkpoints([job], {1000: "/models/tiny/model.ckpt-1000"}, open_model, vocabulary,
                        describe=lambda path: {"checkpoint_fingerprint": "..."})

On TensorFlow, gin binds the settings as `t0.infer` (`t0.inference.jobs`). The PyTorch engine reads
the settings from a run specification.

Several processes may predict together. Process r of n takes batches r, r + n, r + 2 n ... of each
window, and the first process writes the file when all batches are finished. The batches, and
therefore the file, do not depend on the number of processes. All processes need access to the
output folder.
"""

import collections
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from t0.caching.row_numbers import ROW
from t0.config.plain_data import ActivationType, Count, NotNegative, Positive, Range
from t0.errors import UserError, say
from t0.evaluation.batching import check_settings
from t0.evaluation.model import Ability, DecodingMethod, Model, OpenModel
from t0.evaluation.records import draw_numbers, draw_sample
from t0.evaluation.results import read_json, write_json, write_whole
from t0.files import paths
from t0.inference.inputs import (
    EOS,
    WINDOW,
    InferenceExample,
    InputBatch,
    InputSource,
    LengthLimits,
    batches,
    windows,
)
from t0.progress import ProgressLine

SCHEMA = 1
_BATCH = re.compile(r"window-(\d+)-batch-(\d+)\.json")


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """The settings of inference: inputs, decoding method and outputs.

    Attributes:
      mixture_or_task_name: the task or mixture that provides the examples. If `input_file` is set,
        this is the task whose vocabulary encodes the lines of that file.
      split: the task's split.
      use_cached: whether to read the task's cache.
      input_file: a text file with an input on each line. If the name ends in .jsonl or .json, the
        file is JSON Lines, or a single JSON document with rows (`t0.sources.json_lines`). Each row is
        an object with `inputs` and, if known, `targets`. Files of all these formats may be
        compressed (.gz).
      output_dir: the folder to which predictions are written, as `<name>_<step>.jsonl`.
      batch_size: the number of inputs in a batch; None for the run's batch size.
      beam_size: the number of beams; 1 for greedy decoding or sampling.
      alpha: the exponent of the beams' length penalty.
      temperature: the temperature of sampling. 1 samples from the model's distribution, 0 decodes
        greedily.
      top_k: the number of most likely tokens among which a token is sampled; -1 for all tokens.
      seed: the seed of sampling. An example's random numbers do not depend on its batch or shard.
      shard_id: the number of this shard, from 0. The shard has the examples whose number modulo
        `num_shards` is `shard_id`.
      num_shards: the number of shards into which the examples are divided.
      add_eos: whether to append EOS to the inputs of a file. With None, EOS is appended if the task
        appends it, and not appended if there is no task.
      activation_dtype: "float32", "bfloat16" or "auto". "auto" is bfloat16 if the machine has
        instructions for it, otherwise float32.
    """

    mixture_or_task_name: str | None = None
    split: str = "test"
    use_cached: bool = False
    input_file: str | None = None
    output_dir: str | None = None
    batch_size: Positive | None = None
    beam_size: Positive = 1
    alpha: NotNegative = 0.6
    temperature: NotNegative = 0.0
    top_k: Annotated[int, Range(-1)] = -1
    seed: Count = 0
    shard_id: Count = 0
    num_shards: Positive = 1
    add_eos: bool | None = None
    activation_dtype: ActivationType = "float32"

    def __post_init__(self) -> None:
        check_settings(self, "infer")
        if not self.top_k:
            raise UserError("infer.top_k is 0; expected a number from 1, or -1 for all tokens")
        if self.beam_size > 1 and self.temperature:
            raise UserError(
                f"infer.beam_size is {self.beam_size} and infer.temperature {self.temperature}: "
                "beams are searched, not drawn. Set one of them (beam_size = 1, temperature = 0.0)"
            )

    @property
    def configured(self) -> bool:
        """Whether `t0.infer` has an input or output. If not, a run may use T5's `infer.gin`."""
        return any((self.mixture_or_task_name, self.input_file, self.output_dir))

    @property
    def method(self) -> DecodingMethod:
        """The method by which tokens are chosen."""
        return DecodingMethod(self.beam_size, self.alpha, self.temperature, max(0, self.top_k))

    def facts(self) -> dict[str, Any]:
        """Returns the settings that determine the predictions, for the summary file."""
        names = ["shard_id", "num_shards", "batch_size", "beam_size", "activation_dtype"]
        if self.beam_size > 1:
            names.append("alpha")
        if self.temperature:
            names += ["temperature", "top_k", "seed"]
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class PredictionJob:
    """A source of examples, the settings to predict with, and the file for the predictions.

    Attributes:
      examples: the source of the examples.
      limits: the length limits in tokens.
      settings: the settings of the decoding method, the batches and the shards.
      path: the path of the output file, in which {step} stands for the checkpoint's step.
      as_json: whether the output file is JSON Lines. Otherwise each line is a predicted text.
    """

    examples: InputSource
    limits: LengthLimits
    settings: InferenceSettings
    path: str
    as_json: bool = True

    def facts(self) -> dict[str, Any]:
        """Returns the facts that determine the predictions, without those about the checkpoint."""
        return {**self.examples.facts, **dataclasses.asdict(self.limits), **self.settings.facts()}

    def line(self, example: InferenceExample, prediction: str, score: float) -> str:
        """Formats the prediction for an example as a line of the file."""
        if not self.as_json:
            return prediction.replace("\n", " ")
        number = example.number if example.row is None else example.row
        line = {"idx": number, "inputs": example.inputs, "prediction": prediction}
        if example.targets is not None:
            line["targets"] = example.targets
        return json.dumps({**line, "score": round(float(score), 5)}, ensure_ascii=False)


def shard_suffix(settings: InferenceSettings) -> str:
    """Returns the suffix that a shard's file name has before its extension."""
    if settings.num_shards == 1:
        return ""
    return f"-{settings.shard_id:05d}-of-{settings.num_shards:05d}"


@dataclasses.dataclass
class BatchPredictions:
    """The predictions of a batch.

    Attributes:
      lines: index of an example in its window -> the line for this example in the file.
      counts: name -> count, such as the numbers of predicted tokens and of truncated inputs.
    """

    lines: dict[int, str]
    counts: dict[str, int]


class PredictionFile:
    """One file of predictions.

    Args:
      path: the file, local or `gs://`.
      facts: the facts that determine the predictions. A run resumes only from predictions with the
        same facts.
      described: whether to write a summary next to the finished file. Without a summary, an
        existing file is replaced.
      writes: whether this process writes the file. If several processes predict together, each
        process saves its own batches, but only one process writes the file.

    Attributes:
      summary: the summary of a finished file; None if it is not finished.
      finished_batches: (window, batch) -> counts of this batch, for each batch that an earlier run
        finished.

    Raises:
      UserError: if there are finished or unfinished predictions with different facts at this path.
    """

    def __init__(
        self, path: str, facts: Mapping[str, Any], *, described: bool = True, writes: bool = True
    ) -> None:
        self.path = path
        self._facts = json.loads(json.dumps(dict(facts)))
        self._described = described
        self._folder = f"{path}.partial"
        self.summary = self._read_summary() if described else None
        self.finished_batches: dict[tuple[int, int], dict[str, int]] = {}
        if self.summary is None:
            self._find_finished_batches(writes)
        elif writes:
            paths.remove(self._folder)

    @property
    def by_row(self) -> bool:
        """Whether the examples of a task are numbered by row.

        Predictions that an earlier version began keep the numbers of that version.
        """
        return self._facts.get("numbered_by") == ROW

    def _read_summary(self) -> dict[str, Any] | None:
        if not paths.exists(self.path):
            return None
        summary = read_json(self._summary_path)
        if not isinstance(summary.get("settings"), dict):
            raise UserError(
                f"{self.path} exists without {self._summary_path}, which records its settings. "
                "Move it away, or use another folder (infer.output_dir)"
            )
        self._check_same(summary["settings"], "was made")
        return summary

    def _find_finished_batches(self, writes: bool) -> None:
        earlier = read_json(self._partial("settings"))
        if earlier:
            self._check_same(earlier, "was begun")
        elif writes:
            write_json(self._partial("settings"), self._facts)
        for match in filter(None, map(_BATCH.fullmatch, paths.list_names(self._folder))):
            window, batch = map(int, match.groups())
            predictions = self._read(window, batch)
            if predictions:
                self.finished_batches[window, batch] = predictions.counts

    def _check_same(self, others: Mapping[str, Any], happened: str) -> None:
        if "numbered_by" not in others:
            self._facts.pop("numbered_by", None)
        differing = [
            f"{name} {others.get(name)!r}, now {self._facts.get(name)!r}"
            for name in sorted(others.keys() | self._facts.keys())
            if others.get(name) != self._facts.get(name)
        ]
        if differing:
            raise UserError(
                f"{self.path} {happened} with other settings: {'; '.join(differing)}. Use another "
                f"folder (infer.output_dir; `t0 predict`: --output), or remove {self.path} "
                f"and {self._folder} and start again"
            )

    def save_batch(self, window: int, batch: int, predictions: BatchPredictions) -> None:
        """Writes the predictions of a finished batch."""
        write_json(self._partial(_batch_name(window, batch)), dataclasses.asdict(predictions))

    def finish(self, numbers_of_batches: Sequence[int]) -> dict[str, Any]:
        """Writes the file from all batches, and returns the summary.

        Args:
          numbers_of_batches: the number of batches of each window.

        Raises:
          UserError: if a batch is missing.
        """
        counts: collections.Counter[str] = collections.Counter()

        def lines() -> Iterator[str]:
            for window, number in enumerate(numbers_of_batches):
                merged: dict[int, str] = {}
                for batch in range(number):
                    predictions = self._read(window, batch)
                    if predictions is None:
                        raise UserError(
                            f"batch {batch} of window {window} of {self.path} is missing: all "
                            "processes must write to one folder that each of them sees"
                        )
                    merged |= predictions.lines
                    counts.update(predictions.counts)
                yield from (merged[index] + "\n" for index in sorted(merged))

        # The predictions are renamed last, so if their file exists, everything is complete.
        temporary = os.path.join(self._folder, "predictions")  # noqa: PTH118 (gs:// paths)
        write_whole(temporary, lines())
        summary = {"schema": SCHEMA, "settings": self._facts, **counts}
        if self._described:
            write_json(self._summary_path, summary)
        paths.rename(temporary, self.path)
        paths.remove(self._folder)
        return summary

    @property
    def _summary_path(self) -> str:
        return f"{self.path.removesuffix('.jsonl')}.run.json"

    def _partial(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.json")  # noqa: PTH118 (gs:// paths)

    def _read(self, window: int, batch: int) -> BatchPredictions | None:
        content = read_json(self._partial(_batch_name(window, batch)))
        lines, counts = content.get("lines"), content.get("counts")
        # If a power failure damaged the file, write it again.
        if not isinstance(lines, dict) or not isinstance(counts, dict):
            return None
        if not all(index.isdecimal() for index in lines):
            return None
        return BatchPredictions({int(index): line for index, line in lines.items()}, counts)


def _batch_name(window: int, batch: int) -> str:
    return f"window-{window:06d}-batch-{batch:04d}"


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
    open_model: OpenModel,
    vocabulary: Any,
    *,
    describe: Callable[[str], Mapping[str, Any]],
    processes: Processes = ALONE,
) -> None:
    """Runs the jobs with each checkpoint; skips files that an earlier run finished.

    Args:
      checkpoints: step -> path.
      open_model: opens the model; called only if there is something to predict.
      vocabulary: the vocabulary whose `decode` turns tokens into text.
      describe: a function from the path of a checkpoint to the facts about the checkpoint that
        determine the predictions.
      processes: the processes that predict together.

    Raises:
      UserError: if an output file has predictions with different facts, or if a batch size does not
        fit the mesh.
    """
    model = None
    first = jobs[0].settings
    for step, path in checkpoints.items():
        checkpoint_facts, outputs = describe(path), []
        for job in jobs:
            file = job.path.replace("{step}", str(step))
            facts = {**checkpoint_facts, **job.facts()}
            output = PredictionFile(file, facts, described=job.as_json, writes=not processes.rank)
            processes.wait()
            if output.summary:
                say(f"{file}: {output.summary['examples']:,} predictions, finished before")
            else:
                outputs.append((job, output))
        if outputs:
            model = model or open_model(
                Ability.GENERATE, dtype=first.activation_dtype, method=first.method
            )
            say(f"restored {model.restore(path)} variables from {path}")
        for job, output in outputs:
            _predict_job(job, output, model, vocabulary, processes)


def _predict_job(
    job: PredictionJob, output: PredictionFile, model: Model, vocabulary: Any, processes: Processes
) -> None:
    """Predicts the batches that no earlier run has finished, and writes the file."""
    settings, size = job.settings, _batch_size(job, model.replicas)
    numbers_of_batches, tokens = [], 0
    with ProgressLine(_share(job), unit="input", doing="predicting") as progress:
        stream = _read_examples(job.examples, settings, by_row=output.by_row)
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
                    predictions = _predict_batch(job, model, vocabulary, window, batch)
                    output.save_batch(number, index, predictions)
                    tokens += predictions.counts["predicted_tokens"]
                rate = tokens * processes.size / progress.seconds
                progress.count(len(batch.places), note=f"{rate:,.0f} tokens/s")
        processes.wait()
        if not processes.rank:
            summary = output.finish(numbers_of_batches)
            for line in _summary_lines(job, output.path, summary, progress):
                progress.print(line)
    processes.wait()


def _predict_batch(
    job: PredictionJob,
    model: Model,
    vocabulary: Any,
    window: Sequence[InferenceExample],
    batch: InputBatch,
) -> BatchPredictions:
    counts = collections.Counter(examples=len(batch.places))
    lines = {}
    for index, tokens, text, score in decode_batch(model, vocabulary, batch):
        example = window[index]
        lines[index] = job.line(example, text, score)
        counts["predicted_tokens"] += len(tokens)
        counts["predictions_without_end"] += tokens[-1] != EOS
        counts["truncated_inputs"] += len(example.tokens) > job.limits.inputs
        counts["empty_inputs"] += not example.tokens
    return BatchPredictions(lines, {name: int(count) for name, count in counts.items()})


def decode_batch(
    model: Model, vocabulary: Any, batch: InputBatch
) -> Iterator[tuple[int, list[int], str, float]]:
    """Yields (index in the window, tokens up to EOS or the limit, text, score) for each example."""
    ids, scores = model.generate(batch.inputs, batch.limits, batch.draws)
    for row, index in enumerate(batch.places):
        ends = np.flatnonzero(ids[row] == EOS)
        tokens = ids[row][: ends[0] + 1 if len(ends) else batch.limits[row]].tolist()
        yield index, tokens, vocabulary.decode(tokens), scores[row]


def _summary_lines(
    job: PredictionJob, path: str, summary: Mapping[str, Any], progress: ProgressLine
) -> Iterator[str]:
    counts = [summary.get(name, 0) for name in ("examples", "predicted_tokens")]
    before = f" ({progress.before:,} of them before)" if progress.before else ""
    seconds = progress.seconds
    yield f"{path}: {counts[0]:,} predictions{before}, {counts[1]:,} tokens ({seconds:.1f} s)"
    notes = {
        "truncated_inputs": f"inputs cut at the limit of {job.limits.inputs:,} tokens",
        "empty_inputs": "inputs without a token",
        "predictions_without_end": f"predictions cut at the limit of {job.limits.targets:,} tokens",
    }
    yield from (
        f"  {words}: {summary[name]:,}" for name, words in notes.items() if summary.get(name)
    )


def _read_examples(
    source: InputSource, settings: InferenceSettings, *, by_row: bool
) -> Iterator[InferenceExample]:
    """Yields the examples of a shard, with their rows if `by_row`.

    The random numbers and the shard of an example depend on its number, not on its row.
    """
    needs_rows = source.rows and (by_row or source.sample is not None)
    rows = source.rows() if needs_rows else None
    shard, shards = settings.shard_id, settings.num_shards
    if source.sample is None:
        examples = source.read(shard, shards)
    elif rows is None:
        numbered = ((example.number, example) for example in source.read(0, 1))
        examples = (example for _, example in draw_sample(numbered, source.sample))
    else:
        drawn = draw_numbers(rows.count, source.sample)
        examples = (each for each in source.read(0, 1) if rows.of(each.number) in drawn)
    for example in examples:
        if example.number % shards == shard:
            row = rows.of(example.number) if rows and by_row else None
            yield dataclasses.replace(example, row=row)


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
