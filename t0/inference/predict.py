"""`infer`: a checkpoint's predictions for a task or a file, on this machine.

    predict(
        ModelSpec("bitransformer", mesh_shape="", layout_rules=""),
        vocabulary=vocabulary, lengths={"inputs": 1024, "targets": 256}, batch_size=32,
        model_dir="/models/tiny",
    )   # what t0.infer configures, into <infer.output_dir>/<task>_1000.jsonl

Batches of a finished window are kept, so that a run that was killed goes on after its last batch.
"""

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils, mtf
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.inference.batches import WINDOW, Batch, batches, windows
from t0.inference.choice import EOS
from t0.inference.inputs import Example
from t0.inference.jobs import Job, Run, jobs, jobs_of_t5, predicted_tokens
from t0.inference.model import Generator
from t0.inference.output import Output, Results
from t0.inference.progress import Progress
from t0.inference.settings import Settings
from t0.mesh import devices
from t0.scoring.mesh_model import (
    ModelSpec,
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)


def infer_model(  # noqa: PLR0913 (the signature that mesh_utils.run calls)
    estimator: functools.partial,
    vocabulary: Any,
    sequence_length: Mapping[str, int],
    batch_size: int,
    model_type: str,
    model_dir: str,
    eval_checkpoint_step: Any,
    *,
    checkpoint: str | None = None,
) -> None:
    """Writes the configured predictions; takes what `mesh_utils.infer_model` takes.

    `estimator` is the partial application of `mesh_utils.get_estimator` that `run` prepared.
    """
    del model_type
    predict(
        ModelSpec.from_estimator_arguments(estimator.keywords),
        vocabulary=vocabulary,
        lengths=sequence_length,
        batch_size=batch_size,
        model_dir=model_dir,
        steps=eval_checkpoint_step,
        checkpoint=checkpoint,
    )


def predict(
    model: ModelSpec,
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
      model: which model, and its mesh.
      vocabulary: one, or (inputs, targets).
      lengths: {"inputs": tokens, "targets": tokens}, the limits.
      batch_size: sequences of a batch, where `infer.batch_size` does not say.
      model_dir: holds the checkpoints.
      steps: a step, a list of steps, "all" or None (the latest).
      checkpoint: what is read instead of checkpoints in `model_dir`.

    Raises:
      UserError: if nothing is configured, or what is read or written is not what it must be.
    """
    settings = Settings()
    vocabularies = both_vocabularies(vocabulary)
    run = Run(vocabularies, lengths, batch_size)
    wanted = jobs(settings, run) if settings.asked_for else jobs_of_t5(run)
    generator = None
    for step, path in chosen_checkpoints(model_dir, steps, checkpoint).items():
        facts = {
            "checkpoint_fingerprint": checkpoint_files.fingerprint(path),
            "vocabulary_sha256": vocabulary_hash(vocabularies[0]),
        }
        outputs = [_output(job, step, facts) for job in wanted]
        left = [both for both in zip(wanted, outputs, strict=True) if not both[1].finished]
        if left:
            generator = generator or _generator(model, vocabularies, wanted[0])
            print(f"restored {generator.restore(path)} variables from {path}")
        for job, output in left:
            _predict(job, output, generator, vocabularies[1])


def _output(job: Job, step: int, facts: Mapping[str, Any]) -> Output:
    path = job.path.replace("{step}", str(step))
    output = Output(path, {**facts, **job.facts()}, described=job.as_json)
    if output.finished:
        print(f"{path}: {output.finished['examples']:,} predictions, finished before")
    return output


def _generator(spec: ModelSpec, vocabularies: tuple[Any, Any], job: Job) -> Generator:
    model, placement = build_model(spec, vocabularies)
    types = mesh_utils.get_variable_dtype()
    activations = devices.activation_dtype(job.settings.activation_dtype)
    if activations != tf.float32:
        types = mtf.VariableDType(types.master_dtype, activations, activations)
    return Generator(model, types, placement, job.settings.method)


def _predict(job: Job, output: Output, generator: Generator, vocabulary: Any) -> None:
    """Predicts what an earlier run has not, and writes the file."""
    settings, examples = job.settings, job.examples
    size = _batch_size(job, generator.replicas)
    with Progress(_share(job)) as progress:
        count = 0
        stream = examples.read(settings.shard_id, settings.num_shards)
        for number, window in windows(stream, size * WINDOW):
            count = number + 1
            if output.window(number):
                progress.before(len(window))
                continue
            whole = Results({}, {})
            made = batches(
                window, job.limits, batch_size=size, method=settings.method, seed=settings.seed
            )
            for part, batch in enumerate(made):
                results = output.batch(number, part)
                if results is None:
                    results = _results(
                        job, window, batch, generator=generator, vocabulary=vocabulary
                    )
                    output.keep_batch(number, part, results)
                    progress.now(results.counts)
                else:
                    progress.before(len(batch.places))
                whole.add(results)
            output.keep_window(number, whole)
        limits = {
            "truncated_inputs": job.limits.inputs,
            "predictions_without_end": job.limits.targets,
        }
        progress.finished(output.path, output.finish(count), limits)


def _results(
    job: Job, window: Sequence[Example], batch: Batch, *, generator: Generator, vocabulary: Any
) -> Results:
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
    return Results(lines, {name: int(count) for name, count in counts.items()})


def _batch_size(job: Job, replicas: int) -> int:
    """Returns B: what is configured, less where there are fewer examples than that."""
    size = job.settings.batch_size
    if size % replicas:
        raise UserError(
            f"infer.batch_size is {size}; the mesh splits a batch into {replicas} equal parts, so "
            f"it must be a multiple of {replicas}"
        )
    share = _share(job)
    return size if share is None else min(size, max(1, -(-share // replicas)) * replicas)


def _share(job: Job) -> int | None:
    """Returns how many examples this shard has, None if that is not known."""
    total, settings = job.examples.total, job.settings
    # A count of none is of a source that has not looked.
    return len(range(settings.shard_id, total, settings.num_shards)) if total else None
