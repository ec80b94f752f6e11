"""Records the loss of a run on a TPU, which TensorFlow's estimator trains, as our own loops do.

hook = RecorderHook(
    "gs://bucket/model", total_steps=12_200, sequences=1_024, sequence_length=lengths
)
estimator.train(input_fn=input_fn, max_steps=hook.total_steps, hooks=[hook])
"""

import math
from collections.abc import Mapping
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.training.recorder import Recorder, default_interval
from t0.training.start_report import Steps, first_line


class RecorderHook(tf.estimator.SessionRunHook):
    """Records the loss of a run that TensorFlow's estimator trains.

    Args:
      model_dir: the model directory.
      total_steps: the run's last step.
      sequences: the number of sequences of a global batch.
      sequence_length: name of a feature -> its length in tokens.
      interval: steps between two lines; None for a hundredth of the run, at most 100. The first
        and the last step always have a line.
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
        self._interval = interval
        self._fetches: dict[str, tf.Tensor] = {}
        self._recorder: Recorder | None = None
        self._recorded = False
        self.last_step = 0

    def begin(self) -> None:
        """Finds the loss and the learning rate in the graph.

        Raises:
          UserError: if the model directory holds a checkpoint of another model.
        """
        checkpoint = checkpoint_files.latest(self._model_dir)
        if checkpoint:
            checkpoint_files.check_variables(
                checkpoint, checkpoint_files.read_graph(tf.global_variables())
            )
        self._fetches = {"loss": tf.get_collection(tf.GraphKeys.LOSSES)[-1]}
        rate = _summarised("learning_rate")
        if rate is not None:
            self._fetches["learning_rate"] = rate
        self._step = tf.train.get_global_step()

    def after_create_session(self, session: tf.Session, coord: Any) -> None:
        """Prints the step from which the run starts: 0, or that of a checkpoint."""
        del coord
        start = self.last_step = int(session.run(self._step))
        self._interval = self._interval or default_interval(self.total_steps - start)
        steps = Steps(start, self.total_steps, self._sequences, self._lengths)
        print(first_line(steps), flush=True)
        self._recorder = Recorder(
            self._model_dir,
            total=self.total_steps,
            tokens=steps.tokens,
            start=start,
            events=False,  # the estimator writes its own
        )

    def before_run(self, run_context: Any) -> tf.estimator.SessionRunArgs:
        """Returns the tensors to fetch with the step."""
        del run_context
        return tf.estimator.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Prints and records the fetched numbers.

        Raises:
          UserError: if the loss is not finite.
        """
        values = {name: value.item() for name, value in run_values.results.items()}
        # Read after the step: fetched with it, the value may be that before or after its increment.
        step, before = int(run_context.session.run(self._step)), self.last_step
        self.last_step = step
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"the loss is {values['loss']} at step {step:,}: training has diverged. The last "
                "checkpoint is kept; lower the learning rate or check the data"
            )
        # A TPU takes many steps at once, which may pass a multiple of the interval.
        due = step // self._interval > before // self._interval
        if not self._recorded or due or step >= self.total_steps:
            self._recorder.progress(step, values)
            self._recorded = True

    def end(self, session: tf.Session) -> None:
        """Writes what waits for a bucket."""
        del session
        if self._recorder is not None:
            self._recorder.close()


def _summarised(tag: str) -> tf.Tensor | None:
    # Mesh TensorFlow has the learning rate only as a scalar summary.
    for operation in tf.get_default_graph().get_operations():
        if operation.type == "ScalarSummary" and operation.name.endswith(tag):
            return operation.inputs[1]
    return None
