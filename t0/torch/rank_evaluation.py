"""`score_eval` on PyTorch: the evaluation of all engines, with a scorer on sharded weights.

    evaluate(spec, world)    # spec: a `RunSpec` whose mode is "score_eval"

Tasks are read from their caches. Each process encodes and scores every `world.size`-th example of a
batch; the first writes the same files as Mesh TensorFlow's evaluation.
"""

import dataclasses
import functools

import numpy as np
import torch

from t0.checkpoints.shape import expected_shapes
from t0.config.specification import RankSpec, RunSpec, TaskSpec
from t0.errors import UserError
from t0.scoring import ranking
from t0.scoring.batch_planning import Costs, model_costs
from t0.scoring.cached_records import cached_records
from t0.scoring.rank_metrics import RankClassification
from t0.scoring.reading import (
    ExampleStore,
    Lengths,
    ScoringTask,
    TaskFacts,
    kept_task,
    not_ranked,
)
from t0.torch import sharding, weights
from t0.torch.shape import T5Spec, t5
from t0.torch.world import World, choose_activation_type

# Hundreds of kernels of some microseconds each, in floating point operations.
_START = 1e9


def evaluate(spec: RunSpec, world: World) -> None:
    """Scores the tasks of a specification at each checkpoint, and writes the results.

    Args:
      spec: a run whose mode is "score_eval".
      world: the processes.

    Raises:
      UserError: if this engine does not evaluate such a run, or the evaluation raises one.
    """
    rank, model = _check_supported(spec), t5(spec.model)
    settings = ranking.checked(ranking.RankEvaluationSettings(**rank.settings))
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
                task.name: _make_reader(task, spec.lengths, rank.given.get("examples"))
                for task in spec.data.tasks
            },
            make_scorer=lambda: ShardedScorer(
                model, world, choose_activation_type(settings.dtype, world.device)
            ),
            limits=functools.partial(
                ranking.batch_limits,
                spec.batch_sequences,
                spec.lengths,
                spec.targets_vocabulary.size,
            ),
            costs=lambda: _estimate_costs(model),
            settings=settings,
            writes=world.first,
            wait=world.wait,
        )


class ShardedScorer:
    """Scores choices by a sharded model; see `ranking.Scorer`.

    Args:
      spec: the model.
      world: the processes, which divide each batch.
      activations: the type of activations.
    """

    def __init__(self, spec: T5Spec, world: World, activations: torch.dtype) -> None:
        self._world = world
        self._model = sharding.sharded(spec, world, activations=activations).eval()
        self.replicas = world.size
        self.packs = False
        self.device_kind = "gpu" if world.device.type == "cuda" else "cpu"

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint in any format; returns the number of variables."""
        sharding.give_back(self._model)
        weights.load(self._model, None, checkpoint, self._world)
        return len(sharding.names_and_parameters(self._model))

    @torch.no_grad()
    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns log p(choice | input) in nats; see `ranking.Scorer`."""
        own = slice(self._world.rank, None, self._world.size)
        given = {
            name: torch.from_numpy(values[own]).to(self._world.device, torch.int64)
            for name, values in (("inputs", inputs), ("targets", targets))
        }
        scores = torch.zeros(targets.shape[:2], device=self._world.device)
        scores[own] = self._model(given)
        return self._world.all_reduce_sum(scores).cpu().numpy()


def _check_supported(spec: RunSpec) -> RankSpec:
    """Returns what is ranked; checks what this engine does not do."""
    if spec.rank is None or spec.data is None:
        raise UserError(
            "the specification has no rank evaluation: write it again, by t5_mesh_transformer "
            "--save_spec"
        )
    if not spec.data.tasks:
        raise UserError(f"no task of the mixture has a split '{spec.data.split}'")
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
                "engine does not compute; t5_mesh_transformer without it does"
            )
    absent = [task.name for task in spec.data.tasks if not task.cache_files]
    if absent:
        raise UserError(
            f"{len(absent)} of the {len(spec.data.tasks)} tasks are not read from a cache, the "
            f"first {absent[0]}; the PyTorch engine reads caches only. Cache them: "
            f"seqio_cache_tasks --tasks={spec.data.mixture} --output_cache_dir=DIR, and pass "
            "--additional_task_cache_dirs=DIR and "
            "--gin_param='mesh_eval_dataset_fn.use_cached = True'"
        )
    return spec.rank


def _make_reader(task: TaskSpec, lengths: Lengths, most: int | None) -> ranking.Reader:
    """Returns what reads a task's first `most` examples, or all of them."""
    kind = task.rank

    def read(store: ExampleStore, **shares: float) -> ScoringTask:
        records = cached_records(task.name, task.cache_files)
        if most:
            records = (record for record in records if record["idx"][0] < most)
        number = store.add(records)
        metrics = [RankClassification(classes) for classes in kind.classes]
        facts = TaskFacts(task.name, kind.dataset, kind.prompt, metrics)
        return kept_task(facts, number, lengths, store=store, **shares)

    return read


def _estimate_costs(model: T5Spec) -> Costs:
    """Returns the costs of the model; a further shape costs the start of a batch's kernels."""
    return dataclasses.replace(model_costs(expected_shapes(model.sizes)), lowering=_START)
