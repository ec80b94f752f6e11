"""Prints and records a run's metrics: its size, lines of progress, `metrics.jsonl`, event files.

    recorder = Recorder("/models/tiny", total=12_200, tokens=11_264, start=0)
    recorder.progress(1_200, step_fields(values, positions))
    # step 1,200/12,200  2.304 nats/token  held-out 2.411  accuracy 41.2%  T5 loss 0.662
    #   z-loss 0.011  lr 0.001  gradient 0.92  weights 4068  11,500 tokens/s  0.98 s/step
    #   0.21 passes  left 2:56:12

That is one line on the terminal. `tokens_per_second` counts all positions of the batch, padding
included. Nats per token (`loss_per_token`) are of the target tokens; held-out, those of the last
validation. The accuracy shown leaves EOS out (`token_accuracy_without_eos`; `token_accuracy` counts
it). T5's loss (`loss`) is Mesh TensorFlow's: nats and z-loss summed over the target tokens, divided
by all target positions, padding included.
`passes` is the examples read divided by the examples of all tasks. Of a run on a TPU, which
TensorFlow's estimator trains, `RecorderHook` records loss and learning rate in the same way.

`show_start` prints, at the start of a run of our own loop:

    training from step 0 to 12,200: 16 sequences, 11,264 tokens a step at inputs 512, targets 192
      model: 76,961,152 parameters
      memory: about 1.7 GiB on each of 1 device(s): weights and optimizer 294.5 MiB, gradients and
        activations 1.4 GiB (estimated by liveness over the step's own graph, within a quarter)
      12,200 steps of 1 microbatch(es), 137,420,800 tokens
      packing: 9.8 examples a sequence; filled: inputs 99.1%, targets 28.7%
      data: 2 task(s); passes over each in these steps:
        super_glue_rte_guaranteed_true: 31.20 passes (2,490 examples, 50.0% of the mixture)

`Recorder.first_pace` prints the expected duration some steps later, when it can be measured.
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

from t0.checkpoints import checkpoint_files
from t0.compat import tf as tf2
from t0.compat import tf1 as tf
from t0.errors import UserError, reading
from t0.files import paths, publishing, write_whole
from t0.files.untrusted import parsed_json
from t0.mesh.devices import visible_gpus
from t0.mesh.lowering import read_program
from t0.mesh.memory import peak_memory
from t0.training.event_files import EventFile
from t0.training.graph import TrainingGraph
from t0.training.options import TrainingSpec

METRICS_FILE = "metrics.jsonl"
# Seconds between two writes of the metrics to a bucket, if no checkpoint is saved.
_REMOTE_SECONDS = 60
# The number of steps after which the measured pace is printed.
_PACE_STEPS = 5

# Field of metrics.jsonl -> (words of the line, format); the field's name is TensorBoard's tag.
_SHOWN: dict[str, tuple[str, str]] = {
    "loss_per_token": ("{} nats/token", ".3f"),
    "held_out": ("held-out {}", ".3f"),
    "token_accuracy_without_eos": ("accuracy {}", ".1%"),
    "loss": ("T5 loss {}", ".3f"),
    "z_loss": ("z-loss {}", ".3f"),
    "learning_rate": ("lr {}", ".2g"),
    "gradient_norm": ("gradient {}", ".3g"),
    "weight_norm": ("weights {}", ".4g"),
    "tokens_per_second": ("{} tokens/s", ",.0f"),
    "seconds_per_step": ("{} s/step", ".2f"),
    "passes": ("{} passes", ".2f"),
}
_MOST_TASKS = 12


def step_fields(values: Mapping[str, float], positions: int) -> dict[str, float]:
    """Returns the fields of a step from the graph's sums.

    Args:
      values: the values of `graph.METRICS`, or the "loss" and sums of a validation.
      positions: the number of target positions of the batch.
    """
    tokens = max(values["tokens"], 1.0)
    fields = {
        "loss": values["loss"],
        "z_loss": values["z_loss"] / positions,
        "loss_per_token": values["nll"] / tokens,
        "token_accuracy": values["correct"] / tokens,
        "token_accuracy_without_eos": values["correct_before_eos"]
        / max(values["tokens_before_eos"], 1.0),
        "target_tokens": values["tokens"],
    }
    if "learning_rate" in values:
        fields["learning_rate"] = values["learning_rate"]
        fields["gradient_norm"] = math.sqrt(values["gradient_square"])
        fields["weight_norm"] = math.sqrt(values["weight_square"])
    return fields


def used_memory() -> str:
    """Returns the peak memory of this process as text."""
    gpus = [f"GPU:{number}" for number in range(len(visible_gpus()))]
    peaks = [tf2.config.experimental.get_memory_info(name)["peak"] for name in gpus]
    if peaks:
        return f"{max(peaks) / 2**30:.1f} GiB used on a GPU"
    # Linux counts in KiB.
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB used"


def line(step: int, total: int, fields: Mapping[str, float]) -> str:
    """Returns the line of progress of a step."""
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
    """Prints a run's metrics, and writes them to its model directory.

    Args:
      model_dir: the model directory.
      total: the run's last step.
      tokens: the positions of a batch, padding included.
      start: the step from which the run continues; records of later steps are removed.
      events: whether to write TensorBoard's event file, too.
    """

    def __init__(
        self, model_dir: str, *, total: int, tokens: int, start: int, events: bool = True
    ) -> None:
        self._path = os.path.join(model_dir, METRICS_FILE)  # noqa: PTH118
        self._total = total
        self._tokens = tokens
        self._mark: _Mark | None = None
        self._pace_shown = False
        # An object of a bucket is rewritten as a whole, at most once a second.
        self._remote = paths.is_remote(model_dir)
        self._waiting: list[str] = []
        self._flushed = time.monotonic()
        self._held_out: float | None = None  # nats for each target token of the last validation
        _forget_after(self._path, start)
        self._events: EventFile | None = None
        if events:
            self._events = EventFile(model_dir, restarted_at=start + 1 if start else None)

    def progress(self, step: int, fields: Mapping[str, float]) -> None:
        """Prints and records the fields of a training step, with the pace and the time left."""
        now = time.monotonic()
        paced = dict(fields)
        if self._mark is not None and step > self._mark.step:
            self._pace_shown = True
            pace = (now - self._mark.seconds) / (step - self._mark.step)
            paced["seconds_per_step"] = pace
            paced["tokens_per_second"] = self._tokens / pace
        self._mark = _Mark(step, now)
        held_out = {} if self._held_out is None else {"held_out": self._held_out}
        print(line(step, self._total, paced | held_out), flush=True)
        self.record(step, paced)

    def first_pace(self, step: int) -> None:
        """Prints the expected duration of the run, once, some steps after the first line."""
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
        self._held_out = fields.get("validation_loss_per_token", self._held_out)
        self._append({"step": step, **fields})
        if self._events is not None:
            self._events.add(step, fields)

    def _append(self, fields: Mapping[str, Any]) -> None:
        self._waiting.append(json.dumps(fields) + "\n")
        if not self._remote:
            self._write_waiting()
        elif time.monotonic() - self._flushed > _REMOTE_SECONDS:
            self.flush()

    def _write_waiting(self) -> None:
        if self._waiting:
            with tf.io.gfile.GFile(self._path, "a") as file:
                file.write("".join(self._waiting))
            self._waiting.clear()

    def flush(self) -> None:
        """Writes what waits for a bucket, unless that was done within the last second."""
        if self._remote and time.monotonic() - self._flushed >= publishing.OBJECT_SECONDS:
            self._write_waiting()
            if self._events is not None:
                self._events.publish()
            self._flushed = time.monotonic()

    def note(self, step: int, fields: Mapping[str, Any]) -> None:
        """Appends fields that may be other than numbers to `metrics.jsonl` alone."""
        if fields:
            self._append({"step": step, **fields})

    def pause(self, seconds: float) -> None:
        """Leaves seconds out of the pace, such as those of validation or saving."""
        if self._mark is not None:
            self._mark.seconds += seconds

    def close(self) -> None:
        """Writes what waits, and closes the event file."""
        if self._remote:
            passed = time.monotonic() - self._flushed
            time.sleep(max(0.0, publishing.OBJECT_SECONDS - passed))
        self._write_waiting()
        if self._events is not None:
            self._events.close()


def _forget_after(path: str, step: int) -> None:
    # A killed run has recorded steps that are now taken again.
    if not tf.io.gfile.exists(path):
        return
    with reading(path):
        lines = paths.read_bytes(path).decode("utf-8", "replace").splitlines()
    kept = [text for text in lines if _step_of(text) <= step]
    if len(kept) < len(lines):
        write_whole(path, (text + "\n" for text in kept))


def _step_of(text: str) -> float:
    try:
        step = parsed_json(text)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf  # an incomplete line, from a killed run
    return step if isinstance(step, int | float) else math.inf


@dataclasses.dataclass(frozen=True)
class Span:
    """The steps of a run: it starts at step `first` and ends at step `last`."""

    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of a run in bytes, summed over all its devices.

    Attributes:
      variables: the weights, in all the types in which they are held, and the optimizer's slots.
      step: the peak of a step's gradients and activations.
    """

    variables: int
    step: int


def show_start(spec: TrainingSpec, data: Any, graph: TrainingGraph, span: Span) -> None:
    """Prints the size of the run: its steps, model, memory and data."""
    steps = span.last - span.first
    rows = spec.batch_size * (spec.ensemble_inputs or 1)
    tokens = rows * sum(spec.sequence_length.values())
    lines = [
        _first_line(span, rows, spec.sequence_length),
        f"  model: {graph.parameters:,} parameters",
        _memory_line(memory(graph), spec.mesh_shape.size),
        f"  {steps:,} steps of {graph.microbatches} microbatch(es), {steps * tokens:,} tokens",
        *_data_lines(data, steps * rows),
    ]
    print("\n".join(lines), flush=True)


def _first_line(span: Span, sequences: int, lengths: Mapping[str, int]) -> str:
    tokens = sequences * sum(lengths.values())
    each = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
    return (
        f"training from step {span.first:,} to {span.last:,}: {sequences:,} sequences, "
        f"{tokens:,} tokens a step at {each}"
    )


def memory(graph: TrainingGraph) -> Memory:
    """Estimates the memory of a lowered step.

    The peak of gradients and activations is the largest sum of values that are alive at the same
    time, in the order in which TensorFlow's executor may run the step's operations; see
    `t0.mesh.memory`.
    """
    program = read_program(graph.graph, (graph.train, graph.metrics))
    needed = {step.name for step in program.steps}
    handles = (
        op
        for op in graph.graph.get_operations()
        if op.type in ("VarHandleOp", "VariableV2") and op.name in needed
    )
    return Memory(sum(map(_variable_bytes, handles)), peak_memory(program, fused=False).bytes)


def _variable_bytes(handle: tf.Operation) -> int:
    elements = tf.TensorShape(handle.get_attr("shape")).num_elements() or 0
    return elements * tf.as_dtype(handle.get_attr("dtype")).size


def _memory_line(needed: Memory, devices: int) -> str:
    both = needed.variables + needed.step
    total, variables, step = (_size(n / devices) for n in (both, needed.variables, needed.step))
    return (
        f"  memory: about {total} on each of {devices} device(s): weights and optimizer "
        f"{variables}, gradients and activations {step}\n"
        "    (estimated by liveness over the step's own graph, within a quarter)"
    )


def _size(count: float) -> str:
    """Returns bytes as text, in GiB if it is at least one, else in MiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _data_lines(data: Any, rows: int) -> list[str]:
    filling = data.filling
    if filling is None:
        return []
    each = filling.examples / filling.rows
    full = ", ".join(f"{name} {share:.1%}" for name, share in filling.filled.items())
    found = [f"  packing: {each:.1f} examples a sequence; filled: {full}"]
    drawn = rows * each
    shares = sorted(data.shares(), key=lambda share: -share.rate)
    found.append(f"  data: {len(shares)} task(s); passes over each in these steps:")
    for share in shares[:_MOST_TASKS]:
        passes = f"{drawn * share.rate / share.examples:.2f}" if share.examples else "?"
        count = f"{share.examples:,} examples" if share.examples else "unknown size"
        found.append(
            f"    {share.name}: {passes} passes ({count}, {share.rate:.1%} of the mixture)"
        )
    if len(shares) > _MOST_TASKS:
        found.append(f"    ... and {len(shares) - _MOST_TASKS} more")
    return found


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
                checkpoint, checkpoint_files.described(tf.global_variables())
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
        print(
            _first_line(Span(start, self.total_steps), self._sequences, self._lengths), flush=True
        )
        self._recorder = Recorder(
            self._model_dir,
            total=self.total_steps,
            tokens=self._sequences * sum(self._lengths.values()),
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


def default_interval(steps: int) -> int:
    """Returns the steps between two lines of progress: a hundredth of the run, at most 100."""
    return max(1, min(100, steps // 100))


def _summarised(tag: str) -> tf.Tensor | None:
    # Mesh TensorFlow has the learning rate only as a scalar summary.
    for operation in tf.get_default_graph().get_operations():
        if operation.type == "ScalarSummary" and operation.name.endswith(tag):
            return operation.inputs[1]
    return None
