"""Our own training loop: one session over the lowered step, exact to resume, its numbers shown.

    train(settings, data, Plan(train_steps=12_200, seed=0))

Order of a start: the graph is built; weights come from the latest checkpoint, or an initial one, or
are random; the model directory's configuration is compared; the first checkpoint is written where
there was none. Then steps, until `train_steps`, the end of the budget of hours or of the patience
for a better evaluation, SIGTERM (the run saves and exits with `PREEMPTED`) or a loss that is no
number.
"""

import contextlib
import io
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import tf1 as tf
from t0.errors import UserError, original
from t0.mesh.gather_embedding import bind_gather_embedding
from t0.training import disk, evaluation, initial, metrics, placement, same_run, screen
from t0.training.batches import Ahead
from t0.training.checkpointing import Checkpoints, Keep, keep_checkpoints
from t0.training.evaluation import Evaluation
from t0.training.graph import METRICS, TrainingGraph, build
from t0.training.judging import Judge, Rule
from t0.training.plan import Plan
from t0.training.settings import Settings
from t0.training.stopping import PREEMPTED, Budget, told_to_stop


def train(settings: Settings, data: Any, plan: Plan) -> None:
    """Trains to `plan.train_steps`.

    Args:
      settings: the model, batch and optimizer.
      data: a `TrainingData` or an `AnyDataset`.
      plan: what else.

    Raises:
      UserError: if the data ends, the loss or the gradient is not finite, or a checkpoint cannot
        be read or written.
      SystemExit: `PREEMPTED`, after SIGTERM.
    """
    budget = Budget(plan.max_hours)
    placement.check_devices(settings.mesh_devices)
    _check_features(settings.model_type, data.features)
    bind_gather_embedding(settings.mesh_shape, settings.layout_rules)
    graph = build(settings, features=data.features, seed=plan.seed, activations=plan.activations)
    with (
        disk.full_disk_said(settings.model_dir),
        tf.Session(
            graph=graph.graph, config=placement.session_config(settings.mesh_devices)
        ) as session,
    ):
        run = _Run(settings, data, plan, graph, session)
        run.start(budget)
        run.go()


def _check_features(model_type: str, names: Sequence[str]) -> None:
    if model_type == "bitransformer" and "inputs" not in names:
        raise UserError(
            "the training data has targets and no inputs, which an encoder-decoder reads. Take a "
            "task that makes inputs, such as one of prefix LM, or train a decoder alone "
            "(run.model_type = 'lm', as in models/lm_v1.gin)"
        )


class _Run:
    """One start of a run."""

    def __init__(
        self, settings: Settings, data: Any, plan: Plan, graph: TrainingGraph, session: tf.Session
    ) -> None:
        self._settings, self._data, self._plan = settings, data, plan
        self._graph, self._session = graph, session
        self._keep = keep_checkpoints(settings.keep_checkpoint_max)
        self._judge = Judge(_rule(self._keep, plan))
        self._checkpoints = Checkpoints(settings.model_dir, graph, session, self._keep)
        self._evaluation = Evaluation(settings, data, plan, graph=graph, session=session)
        self._rows = settings.batch_size * (settings.ensemble_inputs or 1)
        self._positions = self._rows * settings.sequence_length["targets"]
        self._tokens = self._rows * sum(settings.sequence_length.values())
        self._position: Mapping[str, Any] | None = None
        self._step = self._began = 0
        self._saved: int | None = None
        self._evaluated = True
        self._step_seconds = self._evaluating_seconds = self._saving_seconds = 0.0

    def start(self, budget: Budget) -> None:
        """Fills the variables, says from where, and compares the configuration.

        Args:
          budget: of this start; what earlier starts have spent is added to it.
        """
        model_dir, plan = self._settings.model_dir, self._plan
        self._budget = budget
        latest = checkpoint_files.latest(model_dir)
        # First, as a checkpoint of another shape says more than its configuration.
        for line in self._fill(latest):
            print(line, flush=True)
        for change in same_run.check_same(model_dir, allowed=plan.allow_config_change):
            print(f"changed:{change}", flush=True)
        self._step = int(self._session.run(self._graph.step))
        if not latest:
            self._began = self._step
        same_run.save(model_dir)

    def _fill(self, latest: str | None) -> Iterator[str]:
        graph, plan = self._graph, self._plan
        trained, slots = len(graph.trained), len(graph.slots)
        if latest:
            resume = self._checkpoints.restore(latest)
            step = int(self._session.run(graph.step))
            self._saved = step
            yield initial.restored(trained, trained, latest, step)
            yield initial.slots_line(slots, slots)
            self._began = resume["began"] if resume else step
            self._go_on_from(resume or {})
            if resume is None:
                yield "it says nothing of the data, which is read from its beginning"
            elif resume["seed"] != plan.seed:
                raise UserError(
                    f"{latest} was trained with seed {resume['seed']}, this run has "
                    f"{plan.seed}: the data would not go on where it stood. --seed={resume['seed']}"
                )
            else:
                self._position = resume["position"]
            return
        with graph.graph.as_default():
            self._session.run(tf.global_variables_initializer())
        if self._settings.init_checkpoint:
            source = initial.Source(self._settings.init_variable_filter, plan.unfilled_variables)
            path = self._settings.init_checkpoint
            yield from initial.restore_initial(self._checkpoints, graph, path, source)
        else:
            yield f"no checkpoint: starting from random weights, seed {plan.seed}"
        self._session.run(graph.to_slices)

    def _go_on_from(self, record: Mapping[str, Any]) -> None:
        self._judge = Judge(_rule(self._keep, self._plan), record.get("judge"))
        self._budget.before_seconds = record.get("seconds", 0.0)
        self._evaluated = record.get("evaluated", True)

    def go(self) -> None:
        """Takes the steps."""
        plan, settings = self._plan, self._settings
        first, total = self._step, plan.train_steps
        ended = self._ended()
        if ended:
            print(f"nothing to train: {ended}")
            return
        interval = plan.log_every_steps or max(1, min(100, (total - first) // 100))
        recorder = metrics.Recorder(
            settings.model_dir, total=total, tokens=self._tokens, start=first
        )
        batches = Ahead(self._data.batches(self._rows, self._position))
        with contextlib.closing(recorder), batches, told_to_stop() as told:
            if self._saved is None:
                self._save(recorder)
            batch = self._next(batches)
            screen.show(settings, self._data, self._graph, screen.Span(first, total))
            for line in self._evaluation.describe():
                print(line, flush=True)
            if not self._evaluated:
                self._evaluate(recorder, last=False)
            while self._step < total:
                values = self._one_step(batch[0])
                self._position = batch[1]
                self._check_finite(values, batch[0])
                due = self._step % interval == 0
                if due or self._step in (first + 1, total):
                    recorder.progress(self._step, self._fields(values))
                recorder.first_pace(self._step)
                ended = self._after_step(recorder, told())
                if ended:
                    print(f"{ended}; saved at step {self._step:,} of {total:,}")
                    return
                if self._step < total:
                    batch = self._next(batches)

    def _after_step(self, recorder: metrics.Recorder, told: bool) -> str:
        """Evaluates and saves as is due; returns why the run ends here, if it does."""
        last = self._step == self._plan.train_steps
        # Who is told to stop may have little time: the evaluation is the next start's.
        self._evaluated = last or not told
        better = self._evaluated and self._evaluate(recorder, last or bool(self._ended()))
        every = self._settings.save_checkpoints_steps
        ended = "" if last else self._ended()
        if told or last or better or ended or (every and self._step % every == 0):
            self._save(recorder)
        if told:
            print(f"told to stop: saved at step {self._step:,}; start again to go on")
            raise SystemExit(PREEMPTED)
        return ended

    def _ended(self) -> str:
        """Why the run ends before its last step, if it does."""
        if self._judge.exhausted:
            return f"early stop: {self._judge.verdict} (train_loop.stop_after_evaluations)"
        # One more step, evaluation and checkpoint must still fit, even if half as long again.
        once_more = self._step_seconds + self._evaluating_seconds + self._saving_seconds
        if self._budget.over(1.5 * once_more):
            return f"the budget of {self._plan.max_hours:g} hours is used (--max_hours)"
        return ""

    def _next(self, batches: Ahead) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
        try:
            return next(batches)
        except StopIteration:
            raise UserError(
                f"the training data ended at step {self._step:,} of {self._plan.train_steps:,}: "
                "the mixture gives too few examples to fill a batch. Is its cache empty?"
            ) from None

    def _one_step(self, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        fed = {self._graph.features[name]: batch[name] for name in self._graph.features}
        began = time.monotonic()
        try:
            values, _ = self._session.run([self._graph.metrics, self._graph.train], fed)
        except tf.errors.OpError as error:
            raise original(error) from error
        self._step += 1
        self._step_seconds = time.monotonic() - began
        return dict(zip(METRICS, values.tolist(), strict=True))

    def _fields(self, values: Mapping[str, float]) -> dict[str, float]:
        fields = metrics.measured(values, self._positions)
        shares = [s for s in self._data.shares() if s.examples]
        if shares and self._position:
            fields["passes"] = self._position["examples"] / sum(s.examples for s in shares)
        return fields

    def _check_finite(self, values: Mapping[str, float], batch: Mapping[str, np.ndarray]) -> None:
        if all(math.isfinite(values[name]) for name in ("loss", "gradient_square")):
            return
        path = os.path.join(self._settings.model_dir, f"bad_batch_{self._step}.npz")  # noqa: PTH118
        content = io.BytesIO()
        np.savez(content, **batch)
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(content.getvalue())
        square = values["gradient_square"]
        norm = math.sqrt(square) if square >= 0 else math.nan
        raise UserError(
            f"the loss is {values['loss']:g} and the gradient's norm {norm:g} at step "
            f"{self._step:,}: training has diverged. The last checkpoint, step {self._saved:,}, is "
            f"kept, and the batch of this step is in {path}; lower the learning rate or check the "
            "data"
        )

    def _evaluate(self, recorder: metrics.Recorder, last: bool) -> bool:
        """Measures what is due; returns whether it is the best so far."""
        began = time.monotonic()
        fields = self._evaluation.measure(self._step, last=last)
        if not fields:
            return False
        better = self._judge.see(self._step, fields)
        recorder.record(self._step, fields)
        recorder.note(self._step, self._judge.note)
        print(evaluation.line(self._step, fields) + ("  best so far" if better else ""), flush=True)
        self._evaluating_seconds = time.monotonic() - began
        recorder.pause(self._evaluating_seconds)
        if self._evaluation.all_kinds_in(fields) and not self._judge.knows_metric:
            self._save(recorder)  # the steps are good, though what is asked for by name is not
            raise self._judge.unknown_metric()
        return better

    def _save(self, recorder: metrics.Recorder) -> None:
        began = time.monotonic()
        record = {
            "began": self._began,
            "seed": self._plan.seed,
            "position": self._position,
            "seconds": self._budget.seconds,
            "judge": self._judge.state,
            "evaluated": self._evaluated,
        }
        best = self._judge.best
        self._checkpoints.save(self._step, record, best.step if best else None)
        self._saved = self._step
        self._saving_seconds = time.monotonic() - began
        recorder.pause(self._saving_seconds)


def _rule(keep: Keep, plan: Plan) -> Rule:
    metric = keep.best_by
    if plan.stop_after_evaluations is not None and metric is None:
        metric = "validation_loss"
    if metric and not (plan.validate_every_steps or plan.evaluate_every_steps):
        raise UserError(
            f"the best checkpoint is asked for by {metric}, and nothing is evaluated: set "
            "train_loop.validate_every_steps or train_loop.evaluate_every_steps"
        )
    return Rule(metric, keep.smaller_is_better, plan.stop_after_evaluations)
