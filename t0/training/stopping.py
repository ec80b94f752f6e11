"""What ends a run before its last step: patience for a better evaluation, hours, or a signal.

    best = BestEvaluation(BestRule("validation_loss", patience=3))
    best.see(100, {"validation_loss": 2.1})        # True: the best so far
    best.see(200, {"validation_loss": 2.2})        # False
    best.best, best.exhausted                      # (Best(2.1, step=100), False)

    limit = TimeLimit(hours=4.0, spent_seconds=record["seconds"])
    with told_to_stop() as told:       # told(): whether SIGTERM came
        limit.over(reserve_seconds=30)

The state of both is a few numbers in each checkpoint, so that a run that goes on counts on. Time
counts from where a start begins to build the model. What a killed run spent after its last
checkpoint is not counted: those steps are lost, too.
"""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t0.errors import UserError, unknown_name

# Exit status of a run that was told to stop, has saved, and will go on: EX_TEMPFAIL.
PREEMPTED = 75
# Parts of the names of metrics of which less is better; of all others more is.
_SMALLER = ("loss", "perplexity", "nll", "edit_distance", "error")


@dataclasses.dataclass(frozen=True)
class BestRule:
    """Which evaluation is the best.

    Attributes:
      metric: by name, such as "validation_loss" or "eval/accuracy"; None for none.
      smaller_is_better: None to tell by the metric's name.
      patience: evaluations in a row without a better one that end the run; None for no end.
    """

    metric: str | None = None
    smaller_is_better: bool | None = None
    patience: int | None = None

    @property
    def smaller(self) -> bool:
        """Whether less of the metric is better."""
        if self.smaller_is_better is not None:
            return self.smaller_is_better
        return any(word in (self.metric or "") for word in _SMALLER)


@dataclasses.dataclass(frozen=True)
class Best:
    """The best value of the metric, and the step that had it."""

    value: float
    step: int


class BestEvaluation:
    """Remembers the best evaluation, and how many worse ones followed it.

    Args:
      rule: which is the best.
      state: of an earlier start, to go on from; one of another metric is forgotten.
    """

    def __init__(self, rule: BestRule, state: Mapping[str, Any] | None = None) -> None:
        self._rule = rule
        self.best: Best | None = None
        self._since = 0
        self._seen: set[str] = set()
        if isinstance(state, Mapping) and state.get("metric") == rule.metric:
            self.best = Best(state["value"], state["step"])
            self._since = state["since"]

    def see(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Takes an evaluation into account; returns whether it is the best so far."""
        self._seen |= metrics.keys()
        value = metrics.get(self._rule.metric) if self._rule.metric else None
        if value is None:
            return False
        better = math.isfinite(value) and (
            self.best is None
            or (value < self.best.value if self._rule.smaller else value > self.best.value)
        )
        if better:
            self.best = Best(value, step)
        self._since = 0 if better else self._since + 1
        return better

    @property
    def exhausted(self) -> bool:
        """Whether the last better evaluation is longer ago than patience lasts."""
        patience = self._rule.patience
        return patience is not None and self._since >= patience

    @property
    def verdict(self) -> str:
        """A sentence about patience that is exhausted."""
        rule = self._rule
        where = f"{self.best.value:.4g} at step {self.best.step:,}" if self.best else "no value"
        return (
            f"{rule.metric} has been no better than {where} for {self._since} evaluations in a row"
        )

    @property
    def note(self) -> dict[str, Any]:
        """What `metrics.jsonl` says of it beside the evaluation's own fields."""
        if self.best is None:
            return {}
        found = {"best_by": self._rule.metric, "best_step": self.best.step}
        return found | ({"stopped_early": True} if self.exhausted else {})

    @property
    def state(self) -> dict[str, Any] | None:
        """What goes into a checkpoint."""
        if self.best is None:
            return None
        best = dataclasses.asdict(self.best)
        return {"metric": self._rule.metric, **best, "since": self._since}

    @property
    def knows_metric(self) -> bool:
        """Whether the metric was among those of any evaluation seen; True where none is named."""
        return self._rule.metric is None or self._rule.metric in self._seen

    def unknown_metric(self) -> UserError:
        """Returns the error for a metric that no evaluation of a run gives."""
        hint = "(keep_checkpoints.best_by)"
        return unknown_name("metric", str(self._rule.metric), sorted(self._seen), hint)


class TimeLimit:
    """Counts seconds of training against a number of hours.

    Args:
      hours: None for no end.
      spent_seconds: by earlier starts of the run.
      began: `time.monotonic()` of this start.
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
        """Spent so far, by all starts."""
        return self.before_seconds + time.monotonic() - self._began

    def over(self, reserve_seconds: float = 0.0) -> bool:
        """Returns whether less than `reserve_seconds` are left."""
        return self.hours is not None and self.seconds + reserve_seconds >= self.hours * 3600


@contextlib.contextmanager
def told_to_stop() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether SIGTERM came; the step in hand is finished first."""
    came: list[int] = []
    try:
        before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    except ValueError:  # not the main thread: the signal is not ours to handle
        yield lambda: False
        return
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)
