"""Runs the training loop, which both engines share: batches, steps, evaluations, checkpoints.

    stepping = Stepping(engine, data, options, size=size, model_dir="/models/tiny", keep=keep,
                        save_every=100)
    stepping.resume(100, record, time_limit)        # the record passed to `Engine.save`
    stepping.run(time_limit)

The loop ends if

- the run has completed its steps,
- the time limit is reached,
- early stopping applies,
- SIGTERM or Ctrl-C has arrived (the loop then saves, and exits with `PREEMPTED` or 130), or
- the loss is not finite.

If several processes train together, all of them run the same steps and make the same decisions.
Only the first process prints and records.
"""

import contextlib
import dataclasses
import io
import math
import os
import shlex
import signal
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from t0.config.specification import Count, Rows
from t0.config.starter_settings import find_starter_folder
from t0.errors import UserError, say
from t0.feeding import manifest
from t0.feeding.reading import read_ahead
from t0.feeding.training_data import is_of_earlier_version
from t0.files import write_whole
from t0.training import recorder
from t0.training.loss_normalization import LossAverage, add_loss_weights
from t0.training.model_directory import Keep, find_first_step
from t0.training.recorder import Recorder
from t0.training.start_report import NO_POSITION, OTHER_ORDER, RunSize
from t0.training.stopping import BestEvaluation, TimeLimit, exit_by_signal, watched_signals

ActivationType = Literal["auto", "float32", "bfloat16"]
Values = Mapping[str, float]
NO_HELD_OUT = (
    "train_loop.validate_every_steps is set, but the training data has no split 'validation'; "
    "unset it, or set train_loop.validation_mixture to a task that has that split"
)
_REPEATED_SECONDS = 2.0  # a second SIGINT within this time was forwarded by torchrun


class Engine(Protocol):
    """Computes the steps, evaluations and checkpoints of a run."""

    def take(self, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Runs one step, and returns the values for `recorder.step_fields` as name -> value.

        If the batch has the feature `LOSS_WEIGHTS`, the loss is the weighted sum over its tokens.
        """

    def evaluate(self, step: int, *, last: bool) -> dict[str, float]:
        """Runs the evaluations that are due (all of them if `last`), and returns their fields."""

    def all_kinds_in(self, fields: Values) -> bool:
        """Returns whether `fields` has results of each kind of evaluation that the run performs."""

    def save(self, step: int, record: Mapping[str, Any], best: int | None) -> None:
        """Writes a checkpoint and its resume record.

        Args:
          step: the number of completed steps.
          record: the resume record.
          best: the step of the best checkpoint so far, or None.
        """

    def checkpoint(self, step: int) -> str:
        """Returns the checkpoint path of a step."""

    def start_lines(self, first: int, last: int) -> Sequence[str]:
        """Returns the lines to print when the first batch of steps `first` to `last` is ready."""

    def ideal_seconds(self) -> float | None:
        """Returns the seconds that a step takes at peak FLOP/s; None if the peak is unknown."""

    def gpu_peaks(self) -> Sequence[int]:
        """Returns the peak memory of each GPU so far, in bytes."""

    def max_over_processes(self, number: int) -> int:
        """Returns the maximum of a number over all processes."""

    def infinite_weights(self) -> Sequence[str]:
        """Returns the names of this process's weights that contain NaN or infinity."""


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """The settings of the training loop; gin sets the fields as `train_loop.NAME`.

    Attributes:
      train_steps: the step to stop at.
      log_every_steps: the number of steps between two records in `metrics.jsonl`. None means a
        hundredth of the run, but at most 100 steps. If a number is set, every record also gets a
        progress line.
      seed: the seed of the data's order, dropout and initial weights.
      loss_average: what the loss is averaged over. "positions": all target positions of the batch,
        including padding, as in Mesh TensorFlow. If `Unitransformer.loss_denominator` is set,
        "positions" divides the summed loss by that number instead. "tokens": the target tokens.
        "sequences": the loss is first averaged over the target tokens of each sequence and then
        over the sequences, as in mT0 and T5X's AVERAGE_PER_SEQUENCE.
      activation_dtype: "float32", "bfloat16", or "auto", which means bfloat16 on machines that
        compute it fast.
      validate_every_steps: the number of steps between two validations, which measure the loss on
        a validation split.
      validation_batches: the number of batches of a validation.
      validation_mixture: the task or mixture whose validation split is measured; None for the
        training mixture.
      evaluate_every_steps: the number of steps between two evaluations with the tasks' metrics,
        which `task_metrics` configures.
      stop_after_evaluations: the number of evaluations for early stopping. The run ends if the
        metric `keep_checkpoints.best_by` (default: "validation_loss") does not improve in this
        number of evaluations in a row.
      max_hours: the maximum training time in hours, added up over all starts of the run. When it is
        reached, the run saves and ends normally. It does not change learning rate schedules, which
        end at `train_steps`.
      unfilled_variables: regular expressions that match the names of variables which may be missing
        in `run.init_checkpoint`.
      allow_config_change: whether the run may continue if its configuration differs from the
        configuration recorded in its model directory.
    """

    train_steps: Count
    log_every_steps: Count | None = None
    seed: Count = 0
    loss_average: LossAverage = "positions"
    activation_dtype: ActivationType = "auto"
    validate_every_steps: Count | None = None
    validation_batches: Rows = 8
    validation_mixture: str | None = None
    evaluate_every_steps: Count | None = None
    stop_after_evaluations: Count | None = None
    max_hours: float | None = None
    unfilled_variables: Sequence[str] = ()
    allow_config_change: bool = False

    def __post_init__(self) -> None:
        choices = typing.get_args(LossAverage)
        if self.loss_average not in choices:
            raise UserError(
                f"train_loop.loss_average is {self.loss_average!r:.40}; wanted "
                f"{' or '.join(map(repr, choices))}"
            )


class Stepping:
    """Runs the steps of one start of a run, and tracks the step and the position in the data.

    Args:
      engine: the engine that computes the steps.
      data: the training data.
      options: the settings of the loop.
      size: the sizes of the run.
      model_dir: the model directory.
      keep: the rule that decides which checkpoints are retained.
      save_every: the number of steps between two checkpoints; None for no regular checkpoints.
      prints: whether this process prints and records.
    """

    def __init__(  # noqa: PLR0913 (a run's facts, all by name)
        self,
        engine: Engine,
        data: Any,
        options: LoopOptions,
        *,
        size: RunSize,
        model_dir: str,
        keep: Keep,
        save_every: int | None,
        prints: bool = True,
    ) -> None:
        self._engine, self._data, self._options = engine, data, options
        self._size, self._model_dir = size, model_dir
        self._best = _best_evaluation(keep, options)
        self._save_every, self._prints = save_every, prints
        self._position: Mapping[str, Any] | None = None
        self._step = self._began = 0
        self._saved: int | None = None
        self._evaluated = True
        self._step_seconds = self._evaluating_seconds = self._saving_seconds = 0.0

    def begin(self, step: int) -> None:
        """Begins a new run, at step 0 or at the step of an initial checkpoint."""
        self._step = self._began = step
        self._follow_manifest(None)

    def resume(self, step: int, record: Mapping[str, Any] | None, time_limit: TimeLimit) -> None:
        """Continues from a checkpoint of this run.

        Args:
          step: the checkpoint's step.
          record: the checkpoint's resume record; None if another loop wrote the checkpoint.
          time_limit: the time limit. This method adds the training time of earlier starts to it.

        Raises:
          UserError: if the checkpoint's run used another seed, or if its position in the data is
            invalid.
        """
        self._step = self._saved = step
        recorded = manifest.read(self._model_dir)
        by_another_loop = record is None
        if by_another_loop:
            began = find_first_step(self._model_dir, default=step)
            record = {"began": began, "seed": self._options.seed, "position": None}
        has_other_order = is_of_earlier_version(record["position"])
        self._began = record["began"]
        self._evaluated = record.get("evaluated", True)
        self._best.restore(record.get("judge"))
        time_limit.before_seconds = record.get("seconds", 0.0)
        try:
            position = None if has_other_order else record["position"]
            self._position = self._data.read_position(position)
        except ValueError as error:
            raise UserError(
                f"{self._engine.checkpoint(step)} is damaged: {error}. To resume from an older "
                "checkpoint, remove this one"
            ) from error
        if record["seed"] != self._options.seed:
            raise UserError(
                f"{self._engine.checkpoint(step)} was trained with seed {record['seed']}, this run "
                f"has seed {self._options.seed}, which would read the data in another order. Add "
                f"--seed={record['seed']}"
            )
        self._follow_manifest(recorded)
        if self._position is None and (by_another_loop or has_other_order):
            self._print(OTHER_ORDER if has_other_order else NO_POSITION)

    def _follow_manifest(self, recorded: manifest.Manifest | None) -> None:
        """Compares the data with the run's manifest, and computes the position if it is missing.

        The manifest describes the data of the run (`t0.feeding.manifest`).
        """
        self._manifest = None
        if recorded or self._prints:  # one process reads the caches to make a new manifest
            self._manifest, self._position = manifest.follow(
                self._model_dir,
                recorded,
                self._data,
                self._size.rows,
                (self._step, self._position),
                allow_change=self._options.allow_config_change,
            )
        self._engine.max_over_processes(0)  # waits until all processes have read the old manifest
        if self._prints and self._manifest not in (None, recorded):
            manifest.publish(self._model_dir, self._manifest)

    @property
    def finished(self) -> bool:
        """Returns whether all steps are done. If they are, prints a line."""
        step, total = self._step, self._options.train_steps
        if step >= total:
            self._print(finished_line(self._model_dir, step, total))
        return step >= total

    def run(self, time_limit: TimeLimit) -> None:
        """Runs the remaining steps.

        Raises:
          UserError: if the data ends, or if the loss or the gradient is not finite.
          SystemExit: `PREEMPTED` after SIGTERM; 130 after Ctrl-C.
        """
        self._time_limit = time_limit
        first, total = self._step, self._options.train_steps
        reason = self._reason_to_stop()
        if reason:
            self._print(f"nothing to train: {reason}")
            return
        interval = self._options.log_every_steps or recorder.default_interval(total - first)
        batches = read_ahead(self._data.batches(self._size.rows, self._position))
        repeated = _REPEATED_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        with (
            watched_signals(prints=self._prints, repeated_seconds=repeated) as received_signal,
            contextlib.closing(self._recording(first)) as recording,
            contextlib.closing(batches),
        ):
            size = self._first_fields() if self._saved is None or first == 0 else {}
            if self._saved is None:
                self._save(recording)
            batch = self._next(batches)
            for line in self._engine.start_lines(first, total):
                self._print(line)
            recording.ideal_seconds = self._engine.ideal_seconds()
            if not self._evaluated:
                self._evaluate(recording, last=False)
            while self._step < total:
                values = self._one_step(batch[0])
                self._position = batch[1]
                self._check_finite(values, batch[0])
                due = self._step % interval == 0
                if due or self._step in (first + 1, total):
                    recording.progress(self._step, self._fields(values) | size)
                    size = {}
                recording.first_pace(self._step)
                reason = self._after_step(recording, received_signal())
                if reason:
                    self._print(f"{reason}; saved at step {self._step:,} of {total:,}")
                    break
                if self._step < total:
                    batch = self._next(batches)
        for line in self._end_lines():
            self._print(line)

    def _end_lines(self) -> list[str]:
        """Returns the lines that report the model's folder and suggest the next command."""
        checkpoint = self._engine.checkpoint(self._step)
        lines = [f"trained to step {self._step:,}: {checkpoint}"]
        best = self._best.best
        if best:
            checkpoint = self._engine.checkpoint(best.step)
            lines.append(f"best by {self._best.metric}: {checkpoint}")
        tasks = "" if find_starter_folder(self._model_dir) else " --tasks=TASKS"
        return [*lines, f"next: t0 eval {shlex.quote(checkpoint)}{tasks}"]

    def _recording(self, first: int) -> "Recorder | _Silent":
        if not self._prints:
            return _Silent()
        return Recorder(
            self._model_dir,
            total=self._options.train_steps,
            tokens=self._size.tokens,
            start=first,
            every_line=self._options.log_every_steps is not None,
            gpu_peaks=self._engine.gpu_peaks,
        )

    def _print(self, line: str) -> None:
        if self._prints:
            say(line)

    def _after_step(self, recording: Recorder, signalled: signal.Signals | None) -> str:
        """Evaluates and saves if due; returns the reason to end the run, or "" to continue."""
        signalled = self._engine.max_over_processes(signalled or 0)
        last = self._step == self._options.train_steps
        # After a signal there may be little time. So the evaluation is left to the next start.
        self._evaluated = last or not signalled
        better = self._evaluated and self._evaluate(
            recording, last=last or bool(self._reason_to_stop())
        )
        every = self._save_every
        reason = "" if last else self._reason_to_stop()
        if signalled or last or better or reason or (every and self._step % every == 0):
            self._save(recording)
        if signalled:
            where = f"step {self._step:,} of {self._options.train_steps:,}"
            path = self._engine.checkpoint(self._step)
            saved_in = f"{path}; the same command resumes from there, bit for bit"
            exit_by_signal(signal.Signals(signalled), where, saved_in, prints=self._prints)
        return reason

    def _reason_to_stop(self) -> str:
        """Returns the reason to end the run early, or "" to continue."""
        if self._best.exhausted:
            return f"early stop: {self._best.verdict} (train_loop.stop_after_evaluations)"
        limit = self._time_limit
        if limit.hours is None:
            return ""
        next_seconds = self._step_seconds + self._evaluating_seconds + self._saving_seconds
        return limit.verdict if self._engine.max_over_processes(limit.over(next_seconds)) else ""

    def _next(self, batches: Iterator[Any]) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
        try:
            return next(batches)
        except StopIteration:
            raise UserError(
                f"the training data ended at step {self._step:,} of {self._options.train_steps:,}: "
                "the mixture gives too few examples to fill a batch. Is its cache empty?"
            ) from None

    def _one_step(self, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        began = time.monotonic()
        values = self._engine.take(add_loss_weights(batch, self._options.loss_average))
        self._step += 1
        self._step_seconds = time.monotonic() - began
        return values

    def _first_fields(self) -> dict[str, int]:
        """Returns the sizes of the model and the batch, for the first record of a new run."""
        return {
            "parameters": self._size.parameters,
            "batch_sequences": self._size.rows,
            "batch_tokens": self._size.tokens,
        }

    def _fields(self, values: Values) -> dict[str, float]:
        fields = recorder.step_fields(values, self._size.target_positions)
        shares = [s for s in self._data.shares() if s.examples]
        if shares and self._position:
            fields["passes"] = self._position["examples"] / sum(s.examples for s in shares)
        return fields

    def _check_finite(self, values: Values, batch: Mapping[str, np.ndarray]) -> None:
        names = ("loss", "gradient_square", "weight_square")
        if all(math.isfinite(values[name]) for name in names):
            return
        path = os.path.join(self._model_dir, f"bad_batch_{self._step}.npz")  # noqa: PTH118
        if self._prints:
            content = io.BytesIO()
            np.savez(content, **batch)
            write_whole(path, content.getvalue())
        gradient, weight = (math.sqrt(values[n]) if values[n] >= 0 else math.nan for n in names[1:])
        raise self._diverged(
            f"the loss is {values['loss']:g}, the weights' norm {weight:g} and the gradient's norm "
            f"{gradient:g}",
            f", and the batch of this step is in {path}",
        )

    def _diverged(self, fault: str, note: str = "") -> UserError:
        """Returns the error that reports NaN or infinite numbers."""
        last = "No checkpoint is saved yet"
        if self._saved is not None:
            last = f"The last checkpoint, step {self._saved:,}, is kept"
        return UserError(
            f"{fault} at step {self._step:,}: training has diverged. {last}{note}; lower the "
            "learning rate or check the data"
        )

    def _evaluate(self, recording: Recorder, *, last: bool) -> bool:
        """Runs the evaluations that are due; returns whether the result is the best so far."""
        began = time.monotonic()
        fields = self._engine.evaluate(self._step, last=last)
        if not fields:
            return False
        loss = fields.get("validation_loss", 0.0)
        if not math.isfinite(loss):
            raise self._diverged(f"the held-out loss is {loss:g}")
        better = self._best.update(self._step, fields)
        recording.record(self._step, fields)
        recording.note(self._step, self._best.note)
        line = recorder.evaluation_line(self._step, fields)
        self._print(line + ("  best so far" if better else ""))
        self._evaluating_seconds = time.monotonic() - began
        recording.pause(self._evaluating_seconds)
        if self._engine.all_kinds_in(fields) and not self._best.knows_metric:
            self._save(recording)  # the training itself is right; only the metric's name is wrong
            raise self._best.unknown_metric()
        return better

    def _save(self, recording: Recorder) -> None:
        began = time.monotonic()
        infinite = self._engine.infinite_weights()
        if self._engine.max_over_processes(
            len(infinite)
        ):  # if `infinite` is empty here, another process has these weights
            names = f", such as {infinite[0]}" if infinite else ""
            raise self._diverged(f"weights are not finite numbers{names},")
        record = {
            "began": self._began,
            "seed": self._options.seed,
            "position": self._position,
            "seconds": self._time_limit.seconds,
            "judge": self._best.state,
            "evaluated": self._evaluated,
        }
        best = self._best.best
        self._engine.save(self._step, record, best.step if best else None)
        if self._prints and self._manifest:
            manifest.save_windows(self._model_dir, self._manifest, self._data)
        recording.flush()
        self._saved = self._step
        self._saving_seconds = time.monotonic() - began
        recording.pause(self._saving_seconds)


def finished_line(model_dir: str, step: int, total: int) -> str:
    """Returns the line for a run that has no steps left."""
    return (
        f"nothing to train: {model_dir} is at step {step:,} of {total:,}. To continue, raise "
        "run.train_steps (TRAIN_STEPS in a run file), which counts from the start of pretraining: "
        f"for 1,000 steps more, {step + 1000}"
    )


class _Silent:
    """Replaces the recorder in processes that do not record."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _best_evaluation(keep: Keep, options: LoopOptions) -> BestEvaluation:
    metric = keep.best_by
    if options.stop_after_evaluations is not None and metric is None:
        metric = "validation_loss"
    if metric and not (options.validate_every_steps or options.evaluate_every_steps):
        raise UserError(
            f"the best checkpoint is chosen by {metric}, but nothing is evaluated: set "
            "train_loop.validate_every_steps or train_loop.evaluate_every_steps"
        )
    patience, mixture = options.stop_after_evaluations, options.validation_mixture
    return BestEvaluation(metric, keep.smaller_is_better, patience, mixture)
