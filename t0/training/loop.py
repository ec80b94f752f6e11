"""Runs the training loop, which both engines share: batches, steps, evaluations, checkpoints.

    stepping = Stepping(engine, data, options, model_dir="/models/tiny", save_every=100)
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

    best = BestEvaluation("validation_loss", patience=3)
    best.update(100, {"validation_loss": 2.1})     # True: the best so far
    best.update(200, {"validation_loss": 2.2})     # False
    best.best, best.exhausted                      # (Best(2.1, step=100), False)

    limit = TimeLimit(hours=4.0)
    with watched_signals() as received:   # received(): the signal that arrived, or None
        limit.over(next_seconds=30)

Each checkpoint holds the state of `BestEvaluation` and the seconds of `TimeLimit`. So both continue
in a resumed run. In each start of a run, the clock begins before the model is built. If a run is
killed, the time since its last checkpoint is not counted, because the steps since this checkpoint
are also lost.
"""

import contextlib
import dataclasses
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, Protocol

import numpy as np

from t0.config.plain_data import ActivationType, Count, Rows
from t0.config.starter_settings import find_starter_folder
from t0.errors import INTERRUPTED, UserError, say, unknown_name
from t0.feeding import manifest
from t0.feeding.reading import read_ahead
from t0.training import recorder, trackers
from t0.training.model_directory import Keep, find_first_step
from t0.training.recorder import Recorder, RunSize

LossAverage = Literal["positions", "tokens", "sequences"]
LOSS_WEIGHTS = "targets_loss_weights"
Values = Mapping[str, float]
NO_HELD_OUT = (
    "train_loop.validate_every_steps is set, but the training data has no split 'validation'; "
    "unset it, or set train_loop.validation_mixture to a task that has that split"
)
# The exit status of a run that saved after SIGTERM and can be resumed. It is EX_TEMPFAIL.
PREEMPTED = 75
# If a metric's name contains one of these words, smaller is better. Otherwise, larger is better.
_SMALLER = ("loss", "perplexity", "nll", "edit_distance", "error")
NO_POSITION = (
    "the checkpoint records no position in the data, or that of an earlier version, which drew the "
    "examples in another order: the data is read from its beginning, so examples may be seen again"
)
_REPEATED_SECONDS = 2.0  # a second SIGINT within this time was forwarded by torchrun


class Engine(Protocol):
    """Computes the steps, evaluations and checkpoints of a run.

    Attributes:
      size: the sizes of the run.
      keep: the rule that decides which checkpoints are retained.
    """

    size: RunSize
    keep: Keep

    def take(self, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Runs one step, and returns the values for `recorder.step_fields` as name -> value.

        If the batch has the feature `LOSS_WEIGHTS`, the loss is the weighted sum over its tokens.
        """

    def evaluate(self, step: int, *, last: bool) -> dict[str, float]:
        """Runs the evaluations that are due (all of them if `last`), and returns their fields."""

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
      report_to: the experiment tracker that gets the metrics, "trackio", "wandb" or "mlflow"; None
        for no tracker.
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
    report_to: trackers.Tracker | None = None
    unfilled_variables: Sequence[str] = ()
    allow_config_change: bool = False


class Best(NamedTuple):
    """The best value of the metric so far, and the step of its evaluation."""

    value: float
    step: int


class BestEvaluation:
    """Tracks the best evaluation so far, and the number of evaluations after it.

    Args:
      metric: the metric's name, such as "validation_loss" or "eval/accuracy"; None for no metric.
      smaller_is_better: whether a smaller value is better; None to decide by the metric's name.
      patience: the number of evaluations for early stopping. The run ends if the value does not
        improve in this number of evaluations in a row. None for no early stopping.
      mixture: the task or mixture of the held-out loss; None for the training mixture. Losses on
        different mixtures are not compared.
    """

    def __init__(
        self,
        metric: str | None = None,
        smaller_is_better: bool | None = None,
        patience: int | None = None,
        mixture: str | None = None,
    ) -> None:
        self.metric, self._patience, self._mixture = metric, patience, mixture
        by_name = any(word in (metric or "") for word in _SMALLER)
        self._smaller = by_name if smaller_is_better is None else smaller_is_better
        self.best: Best | None = None
        self._evaluations_since_best = 0

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from the `state` of an earlier start, unless its values cannot be compared."""
        measured = (self.metric, self._mixture)
        if isinstance(state, Mapping) and measured == (state.get("metric"), state.get("mixture")):
            self.best = Best(state["value"], state["step"])
            self._evaluations_since_best = state["since"]

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Adds an evaluation, and returns whether it is the best so far."""
        value = metrics.get(self.metric) if self.metric else None
        if value is None:
            return False
        better = math.isfinite(value) and (
            self.best is None
            or (value < self.best.value if self._smaller else value > self.best.value)
        )
        if better:
            self.best = Best(value, step)
        self._evaluations_since_best = 0 if better else self._evaluations_since_best + 1
        return better

    @property
    def exhausted(self) -> bool:
        """Whether `patience` evaluations in a row did not improve the best value."""
        return self._patience is not None and self._evaluations_since_best >= self._patience

    @property
    def verdict(self) -> str:
        """The reason for early stopping, in words that fit into a sentence."""
        where = f"{self.best.value:.4g} at step {self.best.step:,}" if self.best else "no value"
        times = f"{self._evaluations_since_best} evaluations in a row"
        return f"{self.metric} has been no better than {where} for {times}"

    @property
    def note(self) -> dict[str, Any]:
        """The fields that describe the best evaluation in `metrics.jsonl`."""
        if self.best is None:
            return {}
        fields = {"best_by": self.metric, "best_step": self.best.step}
        return fields | ({"stopped_early": True} if self.exhausted else {})

    @property
    def state(self) -> dict[str, Any] | None:
        """The state that a checkpoint holds; None if there was no evaluation yet."""
        if self.best is None:
            return None
        best = self.best._asdict()
        mixture = {"mixture": self._mixture} if self._mixture else {}
        return {"metric": self.metric, **best, "since": self._evaluations_since_best, **mixture}

    def is_unknown_to(self, fields: Values) -> bool:
        """Returns whether an evaluation of the metric's kind ("eval/") does not have the metric."""
        kind = (self.metric or "/")[:5]
        return self.metric not in fields and any(name.startswith(kind) for name in fields)


class TimeLimit:
    """Limits the training time, added up over all starts of a run.

    Args:
      hours: the limit in hours; None for no limit.

    Attributes:
      before_seconds: the training time of earlier starts of the run, in seconds.
    """

    def __init__(self, hours: float | None) -> None:
        if hours is not None and not hours > 0:  # also NaN
            raise UserError(f"--max_hours is {hours:g}; expected a number above 0")
        self.hours = hours
        self._began = time.monotonic()
        self.before_seconds = 0.0

    @property
    def seconds(self) -> float:
        """The training time of all starts so far, in seconds."""
        return self.before_seconds + time.monotonic() - self._began

    def over(self, next_seconds: float = 0.0) -> bool:
        """Returns whether the limit will be reached before the next steps and checkpoint are done.

        Args:
          next_seconds: the seconds that the previous steps and checkpoint took. The next steps and
            checkpoint may take up to 1.5 times as long.
        """
        return self.hours is not None and self.seconds + 1.5 * next_seconds >= self.hours * 3600

    @property
    def verdict(self) -> str:
        """The reason for stopping at the time limit, in words that fit into a sentence."""
        return f"the budget of {self.hours:g} hours is used (--max_hours)"


def exit_by_signal(
    signalled: signal.Signals, where: str, saved_in: str, *, prints: bool = True
) -> NoReturn:
    """Exits after a run was stopped by a signal and saved, and prints where it stopped.

    Args:
      signalled: the signal, SIGTERM or SIGINT.
      where: the step, such as "step 3 of 8".
      saved_in: the end of a sentence that names the checkpoint or its folder, and says how to
        continue.
      prints: whether this process prints. If several processes train together, only one prints.

    Raises:
      SystemExit: `PREEMPTED` after SIGTERM, `INTERRUPTED` after Ctrl-C.
    """
    if prints:
        say(f"stopped by {signalled.name} at {where}: everything so far is kept in {saved_in}")
    raise SystemExit(INTERRUPTED if signalled == signal.SIGINT else PREEMPTED)


@contextlib.contextmanager
def watched_signals(
    *, prints: bool = True, repeated_seconds: float = 0.0
) -> Iterator[Callable[[], signal.Signals | None]]:
    """Yields a function that returns the signal that has arrived, SIGTERM or SIGINT, or None.

    SIGINT is the signal of Ctrl-C. While the context is open, SIGTERM and a first Ctrl-C do not end
    the process. A second Ctrl-C ends it.

    Args:
      prints: whether this process prints a line when it receives Ctrl-C.
      repeated_seconds: the seconds after a first Ctrl-C in which a second Ctrl-C is ignored. A
        process started by `torchrun` receives each Ctrl-C twice: from the terminal and from
        `torchrun`.
    """
    received: list[int] = []
    first = math.inf

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        now = time.monotonic()
        if number == signal.SIGINT and signal.SIGINT in received:
            if now - first >= repeated_seconds:
                raise KeyboardInterrupt
            return
        received.append(number)
        if number == signal.SIGINT:
            first = now
            if prints:
                say("\nCtrl-C: saving after this step; press it again to end without saving")

    watched = (signal.SIGTERM, signal.SIGINT)
    try:
        before = {number: signal.signal(number, handle) for number in watched}
    except ValueError:  # only the main thread can handle signals
        yield lambda: None
        return
    try:
        yield lambda: signal.Signals(received[0]) if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def add_loss_weights(
    batch: Mapping[str, np.ndarray], average: LossAverage
) -> Mapping[str, np.ndarray]:
    """Returns the batch with the weight of each target token's loss, float32 [rows, tokens].

    The loss is the weighted sum over tokens. The numbers are those of T5X's loss normalizing
    factors AVERAGE_PER_SEQUENCE ("sequences") and NUM_REAL_TARGET_TOKENS ("tokens"). The weights
    are computed from the whole batch, so microbatches and processes do not change the loss.

    Args:
      batch: the global batch. If its rows are packed, it has "targets_segmentation", and each
        segment is a sequence.
      average: "positions" to return the batch unchanged, because the engine then divides by a
        constant; "tokens" for the mean over all target tokens; "sequences" for the mean over
        sequences, in which the loss of a sequence is the mean over its target tokens.
    """
    if average == "positions":
        return batch
    predicted = batch["targets"] > 0
    sequences = np.zeros_like(batch["targets"])
    if average == "sequences":
        segments = batch.get("targets_segmentation", sequences)
        rows = np.arange(len(segments))[:, None]
        sequences = rows * (segments.max(initial=0) + 1) + segments
    tokens = np.bincount(sequences[predicted])
    weights = np.zeros(predicted.shape, np.float32)
    weights[predicted] = 1.0 / (tokens[sequences[predicted]] * np.count_nonzero(tokens))
    return {**batch, LOSS_WEIGHTS: weights}


def check_no_other_normalization(others: Mapping[str, Any]) -> None:
    """Checks that gin does not also set another loss or denominator.

    Args:
      others: name of the setting -> its value, or None.

    Raises:
      UserError: if one of them is set.
    """
    for name, value in others.items():
        if value is not None:
            raise UserError(
                f"train_loop.loss_average and {name} = {value} are both set; both normalize the "
                f"loss. Unset {name}, or set train_loop.loss_average = 'positions'"
            )


class _Silent:
    """Replaces the recorder in processes that do not record."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class Stepping:
    """Runs the steps of one start of a run, and tracks the step and the position in the data.

    Args:
      engine: the engine that computes the steps.
      data: the training data.
      options: the settings of the loop.
      model_dir: the model directory.
      save_every: the number of steps between two checkpoints; None for no regular checkpoints.
      prints: whether this process prints and records.
      eval_words: the flags with which `t0 eval` reads the run's data, for the line "next:".
    """

    def __init__(
        self,
        engine: Engine,
        data: Any,
        options: LoopOptions,
        *,
        model_dir: str,
        save_every: int | None,
        prints: bool = True,
        eval_words: Sequence[str] = (),
    ) -> None:
        self._engine, self._data, self._options = engine, data, options
        self._eval_words = eval_words
        self._size, self._model_dir = engine.size, model_dir
        self._best = _best_evaluation(engine.keep, options)
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
        self._began = record["began"]
        self._evaluated = record.get("evaluated", True)
        self._best.restore(record.get("judge"))
        time_limit.before_seconds = record.get("seconds", 0.0)
        position = record["position"]
        is_of_earlier_version = position is not None and "mixture" in position
        try:
            self._position = self._data.read_position(None if is_of_earlier_version else position)
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
        if self._position is None and (by_another_loop or is_of_earlier_version):
            self._print(NO_POSITION)

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

    def run(self, time_limit: TimeLimit) -> None:
        """Runs the remaining steps. If there are none, prints a line.

        Raises:
          UserError: if the data ends, or if the loss or the gradient is not finite.
          SystemExit: `PREEMPTED` after SIGTERM; 130 after Ctrl-C.
        """
        self._time_limit = time_limit
        first, total = self._step, self._options.train_steps
        if first >= total:
            self._print(finished_line(self._model_dir, first, total))
            return
        if reason := self._reason_to_stop():
            self._print(f"nothing to train: {reason}")
            return
        interval = self._options.log_every_steps or recorder.default_interval(total - first)
        batches = read_ahead(self._data.batches(self._size.rows, self._position))
        repeated = _REPEATED_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        recording: Recorder | _Silent = _Silent()
        if self._prints:
            recording = Recorder(
                self._model_dir,
                total=total,
                tokens=self._size.tokens,
                start=first,
                every_line=self._options.log_every_steps is not None,
            )
        with (
            watched_signals(prints=self._prints, repeated_seconds=repeated) as received_signal,
            trackers.reporting(self._options.report_to if self._prints else None, self._model_dir),
            contextlib.closing(recording),
            contextlib.closing(batches),
        ):
            size = self._size.fields if self._saved is None or first == 0 else {}
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
                self._check_finite(values)
                due = self._step % interval == 0
                if due or self._step in (first + 1, total):
                    recording.progress(self._step, self._fields(values) | size)
                    size = {}
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
        words = [checkpoint]
        if not find_starter_folder(self._model_dir):
            spec = self._data.spec  # None if the data comes from a user's own function
            words += [f"--tasks={spec.mixture}"] if spec else []
            words += self._eval_words
        return [*lines, f"next: t0 eval {shlex.join(words)}"]

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
            saved_in = f"{path}; the same command resumes from there"
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

    def _fields(self, values: Values) -> dict[str, float]:
        fields = recorder.step_fields(values, self._size.target_positions)
        shares = [s for s in self._data.shares() if s.examples]
        if shares and self._position:
            fields["passes"] = self._position["examples"] / sum(s.examples for s in shares)
        return fields

    def _check_finite(self, values: Values) -> None:
        names = ("loss", "gradient_square", "weight_square")
        if all(math.isfinite(values[name]) for name in names):
            return
        gradient, weight = (math.sqrt(values[n]) if values[n] >= 0 else math.nan for n in names[1:])
        raise self._diverged(
            f"the loss is {values['loss']:g}, the weights' norm {weight:g} and the gradient's norm "
            f"{gradient:g}"
        )

    def _diverged(self, fault: str) -> UserError:
        """Returns the error that reports NaN or infinite numbers."""
        last = "No checkpoint is saved yet"
        if self._saved is not None:
            last = f"The last checkpoint, step {self._saved:,}, is kept"
        return UserError(
            f"{fault} at step {self._step:,}: training has diverged. {last}; lower the learning "
            "rate or check the data"
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
        if self._best.is_unknown_to(fields):
            self._save(recording)  # the training itself is right; only the metric's name is wrong
            raise unknown_name("metric", self._best.metric, fields, "(keep_checkpoints.best_by)")
        return better

    def _save(self, recording: Recorder) -> None:
        began = time.monotonic()
        infinite = self._engine.infinite_weights()
        # If `infinite` is empty here, another process may have such weights.
        if self._engine.max_over_processes(len(infinite)):
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


def _best_evaluation(keep: Keep, options: LoopOptions) -> BestEvaluation:
    metric = keep.best_by
    if options.stop_after_evaluations is not None and metric is None:
        metric = "validation_loss"
    kinds = {"validation_": options.validate_every_steps, "eval/": options.evaluate_every_steps}
    if metric and not any(every and metric.startswith(kind) for kind, every in kinds.items()):
        raise UserError(
            f"the best checkpoint is chosen by {metric}, but nothing evaluates it: set "
            "train_loop.validate_every_steps for a metric such as validation_loss, or "
            "train_loop.evaluate_every_steps for a metric such as eval/accuracy"
        )
    patience, mixture = options.stop_after_evaluations, options.validation_mixture
    return BestEvaluation(metric, keep.smaller_is_better, patience, mixture)
