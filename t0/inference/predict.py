"""Mode `infer`: predicts for a task or a file with a checkpoint, on this machine.

    predict(
        MeshModel("bitransformer", mesh_shape="", layout_rules=""),
        vocabulary=vocabulary, lengths={"inputs": 1024, "targets": 256}, batch_size=32,
        model_dir="/models/tiny",
    )   # as t0.infer is configured, into <infer.output_dir>/<task>_1000.jsonl

Finished batches and windows are written to files, so that a killed run resumes after its last
batch.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils, mtf
from t0.compat import tf1 as tf
from t0.errors import UserError, say
from t0.inference.generator import Generator
from t0.inference.inputs import WINDOW, InferenceExample, InputBatch, batches, windows
from t0.inference.jobs import (
    InferenceSettings,
    PredictionJob,
    RunArguments,
    jobs,
    jobs_of_t5,
    predicted_tokens,
)
from t0.inference.prediction_file import FinishedPredictions, PredictionFile
from t0.inference.search import EOS
from t0.mesh import devices
from t0.progress import ProgressLine
from t0.scoring.mesh_model import (
    MeshModel,
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)

# The summary's counts that are printed if they are not 0.
_COUNTS = {
    "truncated_inputs": "inputs cut at the limit",
    "empty_inputs": "inputs without a token",
    "predictions_without_end": "predictions cut at the limit",
}


def predict(
    model: MeshModel,
    *,
    vocabulary: Any,
    lengths: Mapping[str, int],
    batch_size: int,
    model_dir: str,
    steps: Any = None,
    checkpoint: str | None = None,
) -> None:
    """Writes the predictions that gin configures: `t0.infer`'s, or those of T5's `infer.gin`.

    Args:
      model: the model's type and mesh.
      vocabulary: one vocabulary, or (inputs, targets).
      lengths: the limits {"inputs": tokens, "targets": tokens}.
      batch_size: the sequences of a batch, unless `infer.batch_size` is set.
      model_dir: the folder of the checkpoints.
      steps: a step, a list of steps, "all" or None (the latest).
      checkpoint: a checkpoint to use instead of those in `model_dir`, or None.

    Raises:
      UserError: if nothing is configured, or an input or output file cannot be used.
    """
    settings = InferenceSettings()
    vocabularies = both_vocabularies(vocabulary)
    run = RunArguments(vocabularies, lengths, batch_size)
    wanted = jobs(settings, run) if settings.configured else jobs_of_t5(run)
    generator = None
    for step, path in chosen_checkpoints(model_dir, steps, checkpoint).items():
        facts = {
            "checkpoint_fingerprint": checkpoint_files.fingerprint(path),
            "vocabulary_sha256": vocabulary_hash(vocabularies[0]),
        }
        outputs = [_prediction_file(job, step, facts) for job in wanted]
        left = [both for both in zip(wanted, outputs, strict=True) if not both[1].finished]
        if left:
            generator = generator or _generator(model, vocabularies, wanted[0])
            say(f"restored {generator.restore(path)} variables from {path}")
        for job, output in left:
            _predict(job, output, generator, vocabularies[1])


def _prediction_file(job: PredictionJob, step: int, facts: Mapping[str, Any]) -> PredictionFile:
    path = job.path.replace("{step}", str(step))
    file = PredictionFile(path, {**facts, **job.facts()}, described=job.as_json)
    if file.finished:
        say(f"{path}: {file.finished['examples']:,} predictions, finished before")
    return file


def _generator(spec: MeshModel, vocabularies: tuple[Any, Any], job: PredictionJob) -> Generator:
    model, placement = build_model(spec, vocabularies)
    types = mesh_utils.get_variable_dtype()
    activations = devices.activation_dtype(job.settings.activation_dtype)
    if activations != tf.float32:
        types = mtf.VariableDType(types.master_dtype, activations, activations)
    return Generator(model, types, placement, job.settings.method)


def _predict(
    job: PredictionJob, output: PredictionFile, generator: Generator, vocabulary: Any
) -> None:
    """Predicts the batches that an earlier run did not finish, and writes the file."""
    settings = job.settings
    size = _batch_size(job, generator.replicas)
    tokens = count = 0
    with ProgressLine(_share(job), unit="input", doing="predicting") as progress:
        stream = job.examples.read(settings.shard_id, settings.num_shards)
        for number, window in windows(stream, size * WINDOW):
            count = number + 1
            if output.window(number):
                progress.count_before(len(window))
                continue
            whole = FinishedPredictions({}, {})
            made = batches(
                window, job.limits, batch_size=size, method=settings.method, seed=settings.seed
            )
            for part, batch in enumerate(made):
                found = output.batch(number, part)
                if found is None:
                    found = _predictions(job, window, batch, generator, vocabulary)
                    output.keep_batch(number, part, found)
                    tokens += found.counts["predicted_tokens"]
                    speed = f"{tokens / progress.seconds:,.0f} tokens/s"
                    progress.count(found.counts["examples"], note=speed)
                else:
                    progress.count_before(len(batch.places))
                whole.add(found)
            output.keep_window(number, whole)
        for line in _summary_lines(job, output.path, output.finish(count), tokens, progress):
            progress.print(line)


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


def _predictions(
    job: PredictionJob,
    window: Sequence[InferenceExample],
    batch: InputBatch,
    generator: Generator,
    vocabulary: Any,
) -> FinishedPredictions:
    ids, scores = generator.predict(batch.inputs, batch.limits, batch.draws)
    counts = collections.Counter(examples=len(batch.places))
    lines = {}
    for row, place in enumerate(batch.places):
        example, limit = window[place], batch.limits[row]
        tokens = predicted_tokens(ids[row], limit)
        lines[place] = job.line(example, vocabulary.decode(tokens), scores[row])
        counts["predicted_tokens"] += len(tokens)
        counts["predictions_without_end"] += tokens[-1] != EOS
        counts["truncated_inputs"] += len(example.tokens) > job.limits.inputs
        counts["empty_inputs"] += not example.tokens
    return FinishedPredictions(lines, {name: int(count) for name, count in counts.items()})


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
