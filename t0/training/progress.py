"""Progress of a training run: a line now and then, and every line's numbers in `metrics.jsonl`.

    training from step 0 to 12,200: 16 sequences, 11,264 tokens a step at inputs 512, targets 192
    step 1,200/12,200  loss 2.312  lr 0.001  1.04 steps/s  11,500 tokens/s  left 2:56:12

`tokens_per_second` counts the batch's capacity, padding included: with packing that is nearly all
text. The loss is Mesh TensorFlow's: nats summed over the batch's target tokens, divided by all its
target positions, padding included.
"""

import datetime
import json
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import tf1 as tf
from t0.errors import UserError

METRICS_FILE = "metrics.jsonl"


class ProgressHook(tf.estimator.SessionRunHook):
    """Reads the loss of each step, prints and records it each `interval` steps.

    Args:
      model_dir: where `metrics.jsonl` is appended to.
      total_steps: the run's last step.
      sequences: of a global batch.
      sequence_length: tokens of each feature.
      interval: steps between two lines, None for a hundredth of the run, at most 100; the first
        and the last step always get one.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        total_steps: int,
        sequences: int,
        sequence_length: Mapping[str, int],
        interval: int | None = None,
    ) -> None:
        self._model_dir = model_dir
        self.total_steps = total_steps
        self._sequences = sequences
        self._lengths = dict(sequence_length)
        self._tokens = sequences * sum(sequence_length.values())
        self._interval = interval
        self._fetches: dict[str, tf.Tensor] = {}
        self._reported: tuple[int, float] | None = None
        self.last_step = 0

    def begin(self) -> None:
        """Finds the loss and the learning rate in the graph that was just built.

        Raises:
          UserError: if the model directory holds a checkpoint of another model.
        """
        checkpoint = checkpoint_files.latest(self._model_dir)
        if checkpoint:
            checkpoint_files.check_variables(
                checkpoint, checkpoint_files.described(tf.global_variables())
            )
        self._fetches = {"loss": tf.get_collection(tf.GraphKeys.LOSSES)[-1]}
        rate = _summarised("learning_rate")
        if rate is not None:
            self._fetches["learning_rate"] = rate
        self._step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Says where the run starts: at 0, at a checkpoint's step, or at an initial model's."""
        del coord
        start = self.last_step = int(session.run(self._step))
        self._interval = self._interval or max(1, min(100, (self.total_steps - start) // 100))
        lengths = ", ".join(f"{name} {length:,}" for name, length in self._lengths.items())
        print(
            f"training from step {start:,} to {self.total_steps:,}: {self._sequences:,} sequences, "
            f"{self._tokens:,} tokens a step at {lengths}",
            flush=True,
        )

    def before_run(self, run_context: Any) -> tf.estimator.SessionRunArgs:
        """Asks for the numbers beside the step itself."""
        del run_context
        return tf.estimator.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Prints and records; stops the run at a loss that is no number."""
        values = {name: value.item() for name, value in run_values.results.items()}
        # Read after the step: beside it, the value may be from before or after its increment.
        step, before = int(run_context.session.run(self._step)), self.last_step
        self.last_step = step
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"the loss is {values['loss']} at step {step:,}: training has diverged. The last "
                "checkpoint is kept; lower the learning rate or check the data"
            )
        # A TPU runs many steps at once, which may step over a multiple of the interval.
        due = step // self._interval > before // self._interval
        if self._reported is None or due or step >= self.total_steps:
            self._report(step, values)

    def _report(self, step: int, values: dict[str, float]) -> None:
        now = time.monotonic()
        line = {"step": step, **values}
        text = f"step {step:,}/{self.total_steps:,}  loss {values['loss']:.3f}"
        if "learning_rate" in line:
            text += f"  lr {line['learning_rate']:.2g}"
        if self._reported is not None and step > self._reported[0]:
            pace = (step - self._reported[0]) / max(now - self._reported[1], 1e-9)
            line["seconds_per_step"] = 1 / pace
            line["tokens_per_second"] = pace * self._tokens
            left = datetime.timedelta(seconds=round((self.total_steps - step) / pace))
            text += f"  {pace:.2f} steps/s  {pace * self._tokens:,.0f} tokens/s  left {left}"
        self._reported = (step, now)
        print(text, flush=True)
        path = os.path.join(self._model_dir, METRICS_FILE)  # noqa: PTH118
        with tf.io.gfile.GFile(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def _summarised(tag: str) -> tf.Tensor | None:
    # Mesh TensorFlow keeps the learning rate only as a scalar summary.
    for operation in tf.get_default_graph().get_operations():
        if operation.type == "ScalarSummary" and operation.name.endswith(tag):
            return operation.inputs[1]
    return None
