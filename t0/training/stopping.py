"""Ends a run before its last step, by early stopping, the time limit or SIGTERM.

    best = BestEvaluation("validation_loss", patience=3)
    best.update(100, {"validation_loss": 2.1})     # True: the best so far
    best.update(200, {"validation_loss": 2.2})     # False
    best.best, best.exhausted                      # (Best(2.1, step=100), False)

    limit = TimeLimit(hours=4.0, spent_seconds=record["seconds"])
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
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from t0.errors import INTERRUPTED, UserError, say, unknown_name

# The exit status of a run that saved after SIGTERM and can be resumed. It is EX_TEMPFAIL.
PREEMPTED = 75
# If a metric's name contains one of these words, smaller is better. Otherwise, larger is better.
_SMALLER = ("loss", "perplexity", "nll", "edit_distance", "error")


@dataclasses.dataclass(frozen=True)
class Best:
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
        self._seen: set[str] = set()

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from the `state` of an earlier start, unless its values cannot be compared."""
        measured = (self.metric, self._mixture)
        if isinstance(state, Mapping) and measured == (state.get("metric"), state.get("mixture")):
            self.best = Best(state["value"], state["step"])
            self._evaluations_since_best = state["since"]

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Adds an evaluation, and returns whether it is the best so far."""
        self._seen |= metrics.keys()
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
        best = dataclasses.asdict(self.best)
        mixture = {"mixture": self._mixture} if self._mixture else {}
        return {"metric": self.metric, **best, "since": self._evaluations_since_best, **mixture}

    @property
    def knows_metric(self) -> bool:
        """Whether any evaluation so far had the metric; True if no metric is set."""
        return self.metric is None or self.metric in self._seen

    def unknown_metric(self) -> UserError:
        """Returns the error that reports that no evaluation of the run computes the metric."""
        hint = "(keep_checkpoints.best_by)"
        return unknown_name("metric", str(self.metric), sorted(self._seen), hint)


class TimeLimit:
    """Limits the training time, added up over all starts of a run.

    Args:
      hours: the limit in hours; None for no limit.
      spent_seconds: the training time of earlier starts of the run, in seconds.
      began: the value of `time.monotonic()` when this start of the run began; None for the current
        time.
    """

    def __init__(
        self, hours: float | None, *, spent_seconds: float = 0.0, began: float | None = None
    ) -> None:
        if hours is not None and hours <= 0:
            raise UserError(f"--max_hours is {hours:g}; wanted a number above 0")
        self.hours = hours
        self._began = time.monotonic() if began is None else began
        self.before_seconds = spent_seconds

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
