"""What a run measures of itself now and then: its loss on held-out batches, and task metrics.

    evaluation = Evaluation(settings, data, plan, graph, session)
    evaluation.measure(500, last=False)     # {"validation_loss": 2.31, "eval/accuracy": 41.0, ...}

Both are of the weights in the session, without dropout, on the same examples each time. The fields
of the held-out loss are those of a training step with `validation_` before them, and
`validation_perplexity`, e to the power of the nats for each target token.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from t0.compat import tf1 as tf
from t0.config.specification import DataSpec
from t0.errors import UserError
from t0.feeding.opening import open_split
from t0.training import metrics, task_metrics
from t0.training.graph import TrainingGraph
from t0.training.losses import PARTS
from t0.training.outputs import Outputs
from t0.training.settings import Settings


class Evaluation:
    """The evaluations of one run.

    Args:
      settings: of the run.
      data: what it trains on.
      plan: how often, and on how much.
      graph: the training graph; session: holds its variables.

    Raises:
      UserError: if there is nothing to evaluate on.
    """

    def __init__(
        self, settings: Settings, data: Any, plan: Any, *, graph: TrainingGraph, session: tf.Session
    ) -> None:
        self._data, self._plan = data, plan
        self._graph, self._session = graph, session
        self._rows = settings.batch_size * (settings.ensemble_inputs or 1)
        self._positions = self._rows * settings.sequence_length["targets"]
        self._tasks: list[task_metrics.TaskExamples] = []
        self._held_out: list[Mapping[str, np.ndarray]] = []
        if plan.validate_every_steps and open_split(data, "validation") is None:
            raise UserError(
                "train_loop.validate_every_steps is set, and the training data has no split "
                "'validation' to validate on"
            )
        if plan.evaluate_every_steps:
            self._tasks = _read_tasks(settings, data)
            self._outputs = Outputs(settings, graph, session)

    def describe(self) -> list[str]:
        """Returns lines about what is evaluated, for the start of the run."""
        if not self._tasks:
            return []
        examples = sum(len(task.rows) for task in self._tasks)
        return [
            f"  task metrics every {self._plan.evaluate_every_steps:,} steps: "
            f"{len(self._tasks)} task(s), {examples:,} examples"
        ]

    def measure(self, step: int, *, last: bool) -> dict[str, float]:
        """Returns what is due at `step`; everything at the last step of a run."""
        found = {}
        if _due(self._plan.validate_every_steps, step, last):
            found |= self._loss()
        if _due(self._plan.evaluate_every_steps, step, last):
            found |= task_metrics.measured(self._tasks, self._outputs)
        return found

    def all_kinds_in(self, fields: Mapping[str, float]) -> bool:
        """Tells whether `fields` has something of each kind of evaluation that is asked for."""
        loss = not self._plan.validate_every_steps or "validation_loss" in fields
        tasks = any(name.startswith(task_metrics.PREFIX) for name in fields)
        return loss and (tasks or not self._plan.evaluate_every_steps)

    def _loss(self) -> dict[str, float]:
        count = self._plan.validation_batches
        if not self._held_out:
            batches = open_split(self._data, "validation").batches(self._rows)
            self._held_out = [next(batches)[0] for _ in range(count)]
        sums = np.zeros(1 + len(PARTS))
        for batch in self._held_out:
            fed = {self._graph.features[name]: batch[name] for name in self._graph.features}
            sums += self._session.run(self._graph.validate, fed)
        values = dict(zip(("loss", *PARTS), sums.tolist(), strict=True))
        values["loss"] /= count
        fields = metrics.measured(values, self._positions * count)
        fields["perplexity"] = math.exp(min(fields["loss_per_token"], 700.0))
        return {f"validation_{name}": value for name, value in fields.items()}


def _due(every: int | None, step: int, last: bool) -> bool:
    return bool(every) and (last or step % every == 0)


def _read_tasks(settings: Settings, data: Any) -> list[task_metrics.TaskExamples]:
    chosen = task_metrics.choice()
    spec: DataSpec | None = data.spec
    mixture = chosen.mixture or (spec and spec.mixture)
    if mixture is None:
        raise UserError(
            "train_loop.evaluate_every_steps is set, and the training data is no mixture of "
            "SeqIO's: name one by task_metrics.mixture_or_task_name"
        )
    cached = chosen.use_cached
    return task_metrics.read_tasks(
        mixture,
        chosen.split,
        settings.sequence_length,
        examples=chosen.examples,
        use_cached=bool(spec and spec.use_cached) if cached is None else cached,
    )


def line(step: int, fields: Mapping[str, float]) -> str:
    """Returns the line about an evaluation: the held-out loss, and the means over tasks."""
    words = [f"step {step:,}"]
    if "validation_loss" in fields:
        words += [
            f"validation loss {fields['validation_loss']:.3f}",
            f"{fields['validation_loss_per_token']:.3f} nats/token",
            f"perplexity {fields['validation_perplexity']:.4g}",
            f"accuracy {fields['validation_token_accuracy']:.1%}",
        ]
    means = {name: x for name, x in fields.items() if name.startswith(task_metrics.PREFIX)}
    words += [f"{name} {x:.4g}" for name, x in means.items() if name.count("/") == 1]
    return "  ".join(words)
