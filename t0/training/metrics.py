"""What a run shows: a line now and then, `metrics.jsonl`, and TensorBoard's event files.

    step 1,200/12,200  loss 2.312  z-loss 0.011  accuracy 41.2%  lr 0.001  gradient 0.92
      weights 4068  11,500 tokens/s  0.98 s/step  0.21 passes  left 2:56:12

One line on the terminal. `tokens_per_second` counts the batch's capacity, padding included. The
loss is Mesh TensorFlow's: nats and z-loss summed over the target tokens, divided by all target
positions, padding included; `loss_per_token` is the nats divided by the target tokens. `passes` is
examples drawn over examples there are, over all tasks.
"""

import dataclasses
import datetime
import json
import math
import os
import resource
import time
from collections.abc import Mapping
from typing import Any

from t0.compat import tf as tf2
from t0.compat import tf1 as tf
from t0.mesh.devices import visible_gpus
from t0.training.progress import METRICS_FILE

# Steps after which the pace is worth showing.
_PACE_STEPS = 5

# field of metrics.jsonl -> (words on the line, format); TensorBoard's tag is the field's name.
_SHOWN: dict[str, tuple[str, str]] = {
    "loss": ("loss {}", ".3f"),
    "z_loss": ("z-loss {}", ".3f"),
    "token_accuracy": ("accuracy {}", ".1%"),
    "learning_rate": ("lr {}", ".2g"),
    "gradient_norm": ("gradient {}", ".3g"),
    "weight_norm": ("weights {}", ".4g"),
    "tokens_per_second": ("{} tokens/s", ",.0f"),
    "seconds_per_step": ("{} s/step", ".2f"),
    "passes": ("{} passes", ".2f"),
}


def measured(values: Mapping[str, float], positions: int) -> dict[str, float]:
    """Returns the fields of a step from the graph's sums.

    Args:
      values: `graph.METRICS`, or the "loss" and sums of validation.
      positions: target positions of the batch.
    """
    tokens = max(values["tokens"], 1.0)
    fields = {
        "loss": values["loss"],
        "z_loss": values["z_loss"] / positions,
        "loss_per_token": values["nll"] / tokens,
        "token_accuracy": values["correct"] / tokens,
        "target_tokens": values["tokens"],
    }
    if "learning_rate" in values:
        fields["learning_rate"] = values["learning_rate"]
        fields["gradient_norm"] = math.sqrt(values["gradient_square"])
        fields["weight_norm"] = math.sqrt(values["weight_square"])
    return fields


def used_memory() -> str:
    """Returns the most memory that this process has used so far, in words."""
    gpus = [f"GPU:{number}" for number in range(len(visible_gpus()))]
    peaks = [tf2.config.experimental.get_memory_info(name)["peak"] for name in gpus]
    if peaks:
        return f"{max(peaks) / 2**30:.1f} GiB used on a GPU"
    # Linux counts in KiB.
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB used"


def line(step: int, total: int, fields: Mapping[str, float]) -> str:
    """Returns the line of progress."""
    words = [f"step {step:,}/{total:,}"]
    for name, (text, form) in _SHOWN.items():
        if name in fields:
            words.append(text.format(format(fields[name], form)))
    if "seconds_per_step" in fields:
        left = round((total - step) * fields["seconds_per_step"])
        words.append(f"left {datetime.timedelta(seconds=left)}")
    return "  ".join(words)


@dataclasses.dataclass
class _Mark:
    step: int
    seconds: float


class Recorder:
    """Writes metrics of a run to its directory, and prints them.

    Args:
      model_dir: where to.
      total: the run's last step.
      tokens: of a batch, padding included.
      start: the step the run goes on from: what was recorded of later ones is dropped.
    """

    def __init__(self, model_dir: str, *, total: int, tokens: int, start: int) -> None:
        self._path = os.path.join(model_dir, METRICS_FILE)  # noqa: PTH118
        self._total = total
        self._tokens = tokens
        self._mark: _Mark | None = None
        self._pace_shown = False
        _forget_after(self._path, start)
        with tf.Graph().as_default():
            self._events = tf.summary.FileWriter(model_dir)
        if start:
            self._events.add_session_log(
                tf.SessionLog(status=tf.SessionLog.START), global_step=start + 1
            )

    def progress(self, step: int, fields: Mapping[str, float]) -> None:
        """Prints and records the fields of a training step, with pace and time left."""
        now = time.monotonic()
        paced = dict(fields)
        if self._mark is not None and step > self._mark.step:
            self._pace_shown = True
            pace = (now - self._mark.seconds) / (step - self._mark.step)
            paced["seconds_per_step"] = pace
            paced["tokens_per_second"] = self._tokens / pace
        self._mark = _Mark(step, now)
        print(line(step, self._total, paced), flush=True)
        self.record(step, paced)

    def first_pace(self, step: int) -> None:
        """Prints, once and some steps after the first line, how long the run will take."""
        if self._mark is None or self._pace_shown or step < self._mark.step + _PACE_STEPS:
            return
        self._pace_shown = True
        pace = (time.monotonic() - self._mark.seconds) / (step - self._mark.step)
        left = datetime.timedelta(seconds=round((self._total - step) * pace))
        print(
            f"  pace: {pace:.2f} s/step, {self._tokens / pace:,.0f} tokens/s: step {self._total:,} "
            f"in about {left}, saving and evaluation not counted; {used_memory()}",
            flush=True,
        )

    def record(self, step: int, fields: Mapping[str, Any]) -> None:
        """Appends the fields to `metrics.jsonl` and to the event file."""
        self._append({"step": step, **fields})
        values = [tf.Summary.Value(tag=name, simple_value=x) for name, x in fields.items()]
        self._events.add_summary(tf.Summary(value=values), step)
        self._events.flush()

    def _append(self, fields: Mapping[str, Any]) -> None:
        with tf.io.gfile.GFile(self._path, "a") as file:
            file.write(json.dumps(fields) + "\n")

    def note(self, step: int, fields: Mapping[str, Any]) -> None:
        """Appends fields that are no numbers to `metrics.jsonl`."""
        if fields:
            self._append({"step": step, **fields})

    def pause(self, seconds: float) -> None:
        """Leaves `seconds` out of the pace: time for validation or saving is not a step's."""
        if self._mark is not None:
            self._mark.seconds += seconds

    def close(self) -> None:
        """Closes the event file."""
        self._events.close()


def _forget_after(path: str, step: int) -> None:
    # A run that was killed has recorded steps that are now taken again.
    if not tf.io.gfile.exists(path):
        return
    with tf.io.gfile.GFile(path) as file:
        lines = file.read().splitlines()
    kept = [text for text in lines if _step_of(text) <= step]
    if len(kept) < len(lines):
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            file.write("".join(text + "\n" for text in kept))
        tf.io.gfile.rename(path + ".new", path, overwrite=True)


def _step_of(text: str) -> float:
    try:
        return json.loads(text)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf  # the half line of a killed run
