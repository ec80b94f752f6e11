"""Runs mode `score_eval` on PyTorch: ranks answer choices with a model sharded over processes.

    evaluate(spec, world)    # spec: a `RunSpec` whose mode is "score_eval"

Tasks are read from their caches. Each process encodes and scores every `world.size`-th example of a
batch. The first process writes the same files as the TensorFlow engine.
"""

import functools
from collections.abc import Mapping

import numpy as np
import torch

from t0.config.specification import RankSpec, RunSpec, TaskSpec
from t0.errors import UserError
from t0.scoring import ranking
from t0.scoring.batching import SortedPlan
from t0.scoring.examples import RankTaskFacts
from t0.scoring.rank_metrics import RankClassification
from t0.scoring.records import ReadRecords, RecordSorter, cached_records, not_ranked
from t0.torch import sharding, weights
from t0.torch.model import move_to_device
from t0.torch.shape import T5Spec, t5
from t0.torch.world import World, choose_activation_type


def evaluate(spec: RunSpec, world: World) -> None:
    """Scores the tasks of a specification at each checkpoint, and writes the results.

    Args:
      spec: a run whose mode is "score_eval".
      world: the processes of the run.

    Raises:
      UserError: if this engine cannot evaluate this run, or the evaluation fails.
    """
    rank, model = _check_supported(spec), t5(spec.model)
    settings = ranking.check_settings(ranking.RankEvaluationSettings(**rank.settings))
    runs = [
        {"model_dir": spec.model_dir, "step": step, "engine": "torch"}
        | ranking.run_facts(
            path,
            weights.fingerprint(path),
            settings,
            split=spec.data.split,
            lengths=spec.lengths,
            vocabulary=rank.vocabulary,
            reading=rank.reading,
        )
        | dict(rank.given)
        for step, path in weights.find_checkpoints(
            spec.model_dir, rank.checkpoint, rank.steps
        ).items()
    ]
    with world.only_first_prints():
        ranking.rank(
            runs,
            rank.folder,
            {
                task.name: (
                    _facts(task),
                    functools.partial(_open_records, task, rank.given.get("examples")),
                )
                for task in spec.data.tasks
            },
            lengths=spec.lengths,
            make_scorer=lambda: ShardedScorer(
                model, world, choose_activation_type(settings.dtype, world.device)
            ),
            make_plan=lambda tasks, scorer: SortedPlan(
                ranking.batch_limits(
                    spec.batch_sequences, spec.lengths, spec.targets_vocabulary.size, scorer
                )
            ),
            settings=settings,
            writes=world.first,
            wait=world.wait,
        )


class ShardedScorer:
    """Scores choices with a sharded model. Implements `ranking.ChoiceScorer`.

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
        weights.load(self.model, None, checkpoint, self._world)
        return len(sharding.names_and_parameters(self.model))

    def close(self) -> None:
        """Frees the weights."""
        del self.model

    @torch.no_grad()
    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the log-likelihoods of choices in nats; see `ranking.ChoiceScorer`."""
        own = slice(self._world.rank, None, self._world.size)
        batch = move_to_device({"inputs": inputs[own], "targets": targets[own]}, self._world.device)
        scores = torch.zeros(targets.shape[:2], device=self._world.device)
        scores[own] = self.model(batch)
        return self._world.all_reduce_sum(scores).cpu().numpy()

    @torch.no_grad()
    def sums(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the sums of `losses.SUM_NAMES` over a batch of examples padded to [B, L].

        All processes must be given the same batch; see `t0.scoring.perplexity.HeldOutModel`.
        """
        return self.model(move_to_device(batch, self._world.device)).double().cpu().numpy()


def _check_supported(spec: RunSpec) -> RankSpec:
    """Returns the rank specification; rejects settings that this engine does not support."""
    if spec.rank is None or spec.data is None or not spec.data.tasks:
        raise UserError(
            "the specification has no rank evaluation, or no task with its split: write it again "
            "with t5_mesh_transformer --save_spec"
        )
    if "://" in spec.rank.folder:
        raise UserError(
            f"the results' folder {spec.rank.folder} is not on this machine; the PyTorch engine "
            "writes to folders that all its processes see (run.eval_summary_dir)"
        )
    if spec.rank.reading.get("num_eval_examples"):
        raise UserError(
            "mesh_eval_dataset_fn.num_eval_examples is set, and the PyTorch engine scores every "
            "example of a task: set it to None"
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
            raise UserError(
                f"task {task.name} is not read from a cache, and the PyTorch engine reads caches "
                f"only. Cache it: seqio_cache_tasks --tasks={spec.data.mixture} "
                "--output_cache_dir=DIR, and pass --additional_task_cache_dirs=DIR and "
                "--gin_param='mesh_eval_dataset_fn.use_cached = True'"
            )
    return spec.rank


def _facts(task: TaskSpec) -> RankTaskFacts:
    rank = task.rank
    metrics = [RankClassification(classes) for classes in rank.classes]
    return RankTaskFacts(task.name, rank.dataset, rank.prompt, metrics, rank.rows)


def _open_records(task: TaskSpec, examples: int | None, sorter: RecordSorter) -> ReadRecords:
    return cached_records(task.name, task.cache_files, sorter, examples=examples)
