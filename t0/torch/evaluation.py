"""Runs modes `score_eval`, `infer` and `eval` on PyTorch: ranks choices and predicts texts.

    score_eval(spec, world)                         # spec: a `RunSpec` whose mode is "score_eval"
    predict(spec, world)                            # spec: a `RunSpec` whose mode is "infer"
    evaluate(spec, world, judge)                    # spec: a `RunSpec` whose mode is "eval"

`score_eval` ranks answer choices. Tasks are read from their caches. Each process encodes and
scores every `world.size`-th example of a batch. The first process writes the same files as the
TensorFlow engine.

`predict` predicts texts for the inputs in task caches and files. The inputs, batches and output
files are the same as on the TensorFlow engine, because `t0.inference` makes them for both engines.
A run may have several processes. Each process has the whole model, and predicts every
`world.size`-th batch.

In mode `eval`, the metrics of a task decide whether its choices are ranked or texts are decoded.
After decoding, the first process computes T5's metrics, which need TensorFlow and the modules that
register the tasks, and writes the same files as the TensorFlow engine. It does not if TensorFlow is
not installed, or if the run comes from a specification file, because it would import the modules
that this file names. In both cases the decoded texts are kept, and a command is printed.
"""

import dataclasses
import functools
import importlib.util
import itertools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from t0.catalogue.sentence_pieces import Tokens
from t0.config.model_spec import T5Spec, require_t5
from t0.config.specification import JobSpec, RankSpec, RunSpec, TaskSpec, read_value
from t0.errors import UserError, say
from t0.evaluation import ranking
from t0.evaluation.batching import BatchLimits, BatchPlan, PaddedBatch, SortedPlan
from t0.evaluation.model import GREEDY, Ability, DecodingMethod, Model
from t0.evaluation.rank_metrics import RankClassification
from t0.evaluation.ranked_examples import RankTaskFacts, ScoringTask
from t0.evaluation.records import TaskRecords, cached_records, not_ranked, sample_facts
from t0.evaluation.results import DECODED, write_json
from t0.inference import cached_inputs, inputs, predictions
from t0.inference.inputs import EOS, InferenceExample, InputSource, LengthLimits
from t0.inference.predictions import InferenceSettings, PredictionJob
from t0.torch import checkpointing, sharding
from t0.torch.generator import TorchGenerator
from t0.torch.model import move_to_device
from t0.torch.processes import World, check_local, choose_activation_type

_INCOMPLETE = (
    "the specification has no evaluation or predictions: write it again with t5_mesh_transformer "
    "--save_spec"
)


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
        raise UserError(_INCOMPLETE)
    targets = Pieces(spec.targets_vocabulary.file)
    jobs = [_make_job(job, spec, targets, joined) for job in spec.infer.jobs]

    def describe(path: str) -> dict[str, Any]:
        return {
            "engine": "torch",
            "checkpoint_fingerprint": checkpointing.fingerprint(path),
            "vocabulary_sha256": spec.infer.vocabulary_sha256,
        }

    with joined.only_first_prints():
        predictions.predict_checkpoints(
            jobs,
            checkpointing.find_checkpoints(spec.model_dir, spec.infer.checkpoint, spec.infer.steps),
            functools.partial(open_model, require_t5(spec.model), joined),
            targets,
            describe=describe,
            processes=predictions.Processes(joined.rank, joined.size, joined.wait),
        )


def _make_job(job: JobSpec, spec: RunSpec, targets: Pieces, joined: World) -> PredictionJob:
    settings = read_value(job.settings, InferenceSettings, "infer.jobs.settings")
    limits = read_value(job.limits, LengthLimits, "infer.jobs.limits")
    check_local(job.path, "infer.output_dir")
    activations = str(choose_activation_type(settings.activation_dtype, joined.device))
    settings = dataclasses.replace(settings, activation_dtype=activations.removeprefix("torch."))
    source, most = _select_first(_open_source(job, spec, targets), job.first), job.examples
    if spec.mode == "eval":  # the metrics are joined with the texts by the numbers of the examples
        facts = {name: fact for name, fact in source.facts.items() if name != "numbered_by"}
        source = dataclasses.replace(source, facts=facts)
    if most is not None:
        total = None if source.total is None else min(source.total, most)
        of_rows = {"sample_of": "rows"} if source.rows else {}
        facts = {**source.facts, **sample_facts(most), **of_rows}
        source = dataclasses.replace(source, total=total, facts=facts, sample=most)
    return PredictionJob(source, limits, settings, job.path, job.as_json)


def _select_first(source: InputSource, most: int | None) -> InputSource:
    """Returns a source with the first `most` examples, or all if `most` is None."""
    if most is None:
        return source

    def read(shard: int, shards: int) -> Iterator[InferenceExample]:
        return itertools.takewhile(lambda each: each.number < most, source.read(shard, shards))

    total = None if source.total is None else min(source.total, most)
    facts = {**source.facts, "first_examples": most}
    rows = source.rows and (lambda: source.rows().first(most))
    return dataclasses.replace(source, total=total, facts=facts, read=read, rows=rows)


def _open_source(job: JobSpec, spec: RunSpec, targets: Any) -> InputSource:
    if job.task is None:
        return inputs.open_file(
            job.input_file or "", Pieces(job.vocabulary), add_eos=job.add_eos, repeats=job.repeats
        )
    if not job.task.cache_files:
        raise _uncached_error(job.task.name, "USE_CACHED_TASKS")
    return cached_inputs.open_cache(
        job.task.name,
        job.split,
        job.task.cache_files,
        total=job.task.examples,
        vocabularies=(Pieces(spec.inputs_vocabulary.file), targets),
        spec=job.task.instructions,
        eos=job.task.eos,
        hides_targets=job.hides_targets,
    )


def evaluate(spec: RunSpec, world: World, judge: Callable[[str], None] | None) -> None:
    """Evaluates the tasks of a specification.

    Args:
      spec: a run whose mode is "eval".
      world: the processes of the run.
      judge: a function that computes the metrics of the texts in a folder. None if the
        specification comes from a file, because its tasks come from modules that the file names.

    Raises:
      UserError: if this engine cannot evaluate this run, or the metrics cannot be computed.
    """
    if spec.data is None or (spec.rank is None and spec.infer is None):
        raise UserError(_INCOMPLETE)
    if spec.rank is not None:
        ranked = tuple(task for task in spec.data.tasks if task.rank)
        data = dataclasses.replace(spec.data, tasks=ranked)
        score_eval(dataclasses.replace(spec, data=data), world)
    if spec.infer is None:
        return
    predict(spec, world)
    world.broadcast_text(lambda: _compute_metrics(spec, judge))


def _compute_metrics(spec: RunSpec, judge: Callable[[str], None] | None) -> str:
    """Computes the metrics of the decoded texts, or prints the command that computes them."""
    infer = spec.infer
    checkpoints = checkpointing.find_checkpoints(spec.model_dir, infer.checkpoint, infer.steps)
    write_json(f"{infer.folder}/{DECODED}", {str(step): path for step, path in checkpoints.items()})
    if judge is None or importlib.util.find_spec("tensorflow") is None:
        command = shlex.join(["python", "-m", "t0.cli.mesh_transformer", *spec.judge])
        say(
            "the texts are decoded, and their metrics need TensorFlow. On a machine with "
            f"TensorFlow, if you trust the source of the specification, run: {command}"
        )
        return "decoded"
    try:
        judge(infer.folder)
    except UserError as error:
        raise UserError(f"{error} (the texts are kept, and the same command resumes)") from error
    return "judged"


def score_eval(spec: RunSpec, world: World) -> None:
    """Scores the tasks of a specification at each checkpoint, and writes the results.

    Args:
      spec: a run whose mode is "score_eval".
      world: the processes of the run.

    Raises:
      UserError: if this engine cannot evaluate this run, or the evaluation fails.
    """
    rank = _check_supported(spec)
    runs = ranking.describe_runs(
        rank,
        checkpointing.find_checkpoints(spec.model_dir, rank.checkpoint, rank.steps),
        checkpointing.fingerprint,
        model_dir=spec.model_dir,
        split=spec.data.split,
        lengths=spec.lengths,
        engine="torch",
    )
    with world.only_first_prints():
        ranking.rank(
            runs,
            rank.folder,
            {
                task.name: (
                    RankTaskFacts(
                        task.name,
                        task.rank.dataset,
                        task.rank.prompt,
                        [RankClassification(classes) for classes in task.rank.classes],
                        task.rank.rows,
                    ),
                    functools.partial(_read_records, task, rank.given.get("examples")),
                )
                for task in spec.data.tasks
            },
            lengths=spec.lengths,
            open_model=functools.partial(open_model, require_t5(spec.model), world),
            limits=functools.partial(
                ranking.batch_limits,
                spec.batch_sequences,
                spec.lengths,
                spec.targets_vocabulary.size,
            ),
            settings=ranking.RankEvaluationSettings(**rank.settings),
            writes=world.first,
            wait=world.wait,
        )


def _read_records(task: TaskSpec, examples: int | None, by_row: bool) -> TaskRecords:
    options = {"examples": examples, "by_row": by_row, "eos": task.eos}
    return cached_records(task.name, task.cache_files, **options)


def open_model(
    spec: T5Spec,
    world: World,
    ability: Ability,
    *,
    dtype: str,
    method: DecodingMethod = GREEDY,
    features: Sequence[str] = (),
) -> Model:
    """Opens a model for one ability; see `t0.evaluation.model.OpenModel`.

    Args:
      spec: the model.
      world: the processes that compute together.
      ability: the ability that is needed.
      dtype: the type of activations.
      method: the method by which tokens are generated.
      features: ignored, because shapes are not static.
    """
    del features
    activations = choose_activation_type(dtype, world.device)
    if ability == Ability.GENERATE:
        return TorchGenerator(spec, world.device, activations, method)
    return ShardedScorer(spec, world, activations)


class ShardedScorer:
    """Scores choices and measures losses with a sharded model; see `t0.evaluation.model.Model`.

    Args:
      spec: the model.
      world: the processes of the run, over which each batch is divided.
      activations: the type of activations.
    """

    def __init__(self, spec: T5Spec, world: World, activations: torch.dtype) -> None:
        self._world = world
        if world.size > 1:
            model = sharding.sharded(spec, world, activations=activations)
        else:
            model = sharding.unsharded(spec).to(activations).to_empty(device=world.device)
        self.model = model.eval()
        self.replicas = world.size
        self.device_kind = world.device_kind

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint in any format; returns the number of variables."""
        sharding.reshard(self.model)
        checkpointing.load(self.model, None, checkpoint, self._world)
        return len(sharding.names_and_parameters(self.model))

    def close(self) -> None:
        """Frees the weights."""
        del self.model

    def plan(self, tasks: Sequence[ScoringTask], limits: BatchLimits, **options: Any) -> BatchPlan:
        """Plans batches of any shape, sorted by length."""
        del tasks, options
        return SortedPlan(limits)

    def score(self, batch: PaddedBatch) -> np.ndarray:
        """Returns the log-likelihoods of a batch, float32 [B, C]."""
        return self.log_likelihoods(*batch.lay_out())

    @torch.no_grad()
    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the log-likelihoods [B, C] in nats of choices [B, C, T] of inputs [B, L]."""
        own = slice(self._world.rank, None, self._world.size)
        batch = move_to_device({"inputs": inputs[own], "targets": targets[own]}, self._world.device)
        scores = torch.zeros(targets.shape[:2], device=self._world.device)
        scores[own] = self.model(batch)
        return self._world.all_reduce_sum(scores).cpu().numpy()

    @torch.no_grad()
    def measure(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the sums of `model.SUM_NAMES` over a batch of examples padded to [B, L].

        All processes must be given the same batch.
        """
        return self.model(move_to_device(batch, self._world.device)).double().cpu().numpy()


def _check_supported(spec: RunSpec) -> RankSpec:
    """Returns the rank specification; rejects settings that this engine does not support."""
    if spec.rank is None or spec.data is None or not spec.data.tasks:
        raise UserError(
            "the specification has no rank evaluation, or no task with its split: write it again "
            "with t5_mesh_transformer --save_spec"
        )
    check_local(spec.rank.folder, "run.eval_summary_dir")
    if (spec.rank.reading.get("num_eval_examples") or 0) > 0:
        raise UserError(
            "mesh_eval_dataset_fn.num_eval_examples is set, and the PyTorch engine ranks every "
            "example of a task: set it to -1. For a random sample of 500 rows: "
            "--gin_param='t0.evaluation.examples = 500'"
        )
    for task in spec.data.tasks:
        if task.rank is None:
            raise not_ranked(task.name)
        if task.rank.other_metrics:
            raise UserError(
                f"task {task.name} has the metric {task.rank.other_metrics[0]}, which the PyTorch "
                "engine does not compute; t5_mesh_transformer without --engine=torch does"
            )
        if not task.cache_files:
            raise _uncached_error(task.name, "mesh_eval_dataset_fn.use_cached")
    return spec.rank


def _uncached_error(task: str, parameter: str) -> UserError:
    return UserError(
        f"task {task} is not read from a cache, and the PyTorch engine reads caches only. Cache "
        f"it: seqio_cache_tasks --tasks={task} --output_cache_dir=DIR, and pass "
        f"--additional_task_cache_dirs=DIR and --gin_param='{parameter} = True'"
    )
