"""Runs mode `infer` on PyTorch: predicts texts for the inputs in task caches and files.

    predict(spec, world)    # spec: a `RunSpec` whose mode is "infer"

The inputs, batches and output files are the same as on the TensorFlow engine, because
`t0.inference` makes them for both engines. A run may have several processes. Each process has the
whole model, and predicts every `world.size`-th batch.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from t0.catalogue.sentence_pieces import Tokens
from t0.config.specification import JobSpec, RunSpec
from t0.errors import UserError
from t0.inference import cached_inputs, inputs, prediction_loop
from t0.inference.inputs import InferenceExample, InputSource, LengthLimits
from t0.inference.methods import EOS
from t0.inference.prediction_jobs import InferenceSettings, PredictionJob
from t0.scoring.records import draw_sample, sample_facts
from t0.torch import weights, world
from t0.torch.decoding import TorchGenerator
from t0.torch.shape import t5
from t0.torch.world import World


class Pieces:
    """A SentencePiece vocabulary with the interface of SeqIO's vocabularies.

    Args:
      path: the file of the SentencePiece model.
    """

    eos_id = EOS

    def __init__(self, path: str) -> None:
        self._tokens = Tokens(path)
        self.encode, self.decode = self._tokens.ids, self._tokens.text


def predict(spec: RunSpec, joined: World) -> None:
    """Writes the predictions of a specification.

    Args:
      spec: a run whose mode is "infer".
      joined: the processes of the run.

    Raises:
      UserError: if this engine does not support the run, or a file cannot be read or written.
    """
    if spec.infer is None:
        raise UserError(
            "the specification has no predictions: write it again with t5_mesh_transformer "
            "--save_spec"
        )
    with joined.only_first_prints():
        _predict(spec, spec.infer.jobs, joined)


def _predict(spec: RunSpec, job_specs: tuple[JobSpec, ...], joined: World) -> None:
    model, targets = t5(spec.model), Pieces(spec.targets_vocabulary.file)
    jobs = [_make_job(job, spec, targets, joined) for job in job_specs]

    def describe(path: str) -> dict[str, Any]:
        return {
            "engine": "torch",
            "checkpoint_fingerprint": weights.fingerprint(path),
            "vocabulary_sha256": spec.infer.vocabulary_sha256,
        }

    def make_generator() -> TorchGenerator:
        settings = jobs[0].settings
        activations = getattr(torch, settings.activation_dtype)
        return TorchGenerator(model, joined.device, activations, settings.method)

    prediction_loop.predict_checkpoints(
        jobs,
        weights.find_checkpoints(spec.model_dir, spec.infer.checkpoint, spec.infer.steps),
        make_generator,
        targets,
        describe=describe,
        processes=prediction_loop.Processes(joined.rank, joined.size, joined.wait),
    )


def _make_job(job: JobSpec, spec: RunSpec, targets: Pieces, joined: World) -> PredictionJob:
    try:
        settings = InferenceSettings(**job.settings)
        multiple = job.limits["targets_per_input"]
        limits = LengthLimits(**{**job.limits, "targets_per_input": multiple and tuple(multiple)})
    except (TypeError, KeyError) as error:
        raise UserError(
            f"the specification's predictions cannot be read ({error!s:.200}); write it again with "
            "t5_mesh_transformer --save_spec"
        ) from error
    if "://" in job.path:
        raise UserError(
            f"the predictions' file {job.path} is not on this machine; the PyTorch engine writes "
            "to folders that all its processes see (infer.output_dir)"
        )
    activations = world.choose_activation_type(settings.activation_dtype, joined.device)
    type_name = str(activations).removeprefix("torch.")
    settings = dataclasses.replace(settings, activation_dtype=type_name)
    source = _sample_examples(_open_source(job, spec, targets), job.examples)
    return PredictionJob(source, limits, settings, job.path, job.as_json)


def _sample_examples(source: InputSource, most: int | None) -> InputSource:
    """Returns a source with a random sample of `most` examples, or all if `most` is None."""
    if most is None:
        return source

    def read(shard: int, shards: int) -> Iterator[InferenceExample]:
        numbered = ((example.number, example) for example in source.read(0, 1))
        sample = draw_sample(numbered, most)
        return (example for number, example in sample if number % shards == shard)

    total = None if source.total is None else min(source.total, most)
    facts = {**source.facts, **sample_facts(most)}
    return dataclasses.replace(source, total=total, facts=facts, read=read)


def _open_source(job: JobSpec, spec: RunSpec, targets: Any) -> InputSource:
    if job.task is None:
        return inputs.open_file(
            job.input_file or "", Pieces(job.vocabulary), add_eos=job.add_eos, repeats=job.repeats
        )
    if not job.task.cache_files:
        raise UserError(
            f"task {job.task.name} is not read from a cache, and the PyTorch engine reads caches "
            f"only. Cache it: seqio_cache_tasks --tasks={job.task.name} --output_cache_dir=DIR, "
            "and pass --additional_task_cache_dirs=DIR and --gin.USE_CACHED_TASKS=True"
        )
    return cached_inputs.open_cache(
        job.task.name,
        job.split,
        job.task.cache_files,
        total=job.task.examples,
        vocabularies=(Pieces(spec.inputs_vocabulary.file), targets),
        spec=job.task.instructions,
        hides_targets=job.hides_targets,
    )
