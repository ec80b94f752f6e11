"""What a run shows: how large it is, a line now and then, `metrics.jsonl`, TensorBoard's events.

    recorder = Recorder("/models/tiny", total=12_200, tokens=11_264, start=0)
    recorder.progress(1_200, step_fields(values, positions))
    # step 1,200/12,200  loss 2.312  z-loss 0.011  accuracy 41.2%  lr 0.001  gradient 0.92
    #   weights 4068  11,500 tokens/s  0.98 s/step  0.21 passes  left 2:56:12

One line on the terminal. `tokens_per_second` counts the batch's capacity, padding included. The
loss is Mesh TensorFlow's: nats and z-loss summed over the target tokens, divided by all target
positions, padding included; `loss_per_token` is the nats divided by the target tokens. `passes` is
examples drawn over examples there are, over all tasks. A run on a TPU, which TensorFlow's estimator
carries out, is recorded by the same recorder (`RecorderHook`): its loss and learning rate.

At the start of a run of our own loop (`show_start`):

    training from step 0 to 12,200: 16 sequences, 11,264 tokens a step at inputs 512, targets 192
      model: 76,961,152 parameters
      memory: about 1.7 GiB on each of 1 device(s): weights and optimizer 294.5 MiB, gradients and
        activations 1.4 GiB (estimated by liveness over the step's own graph, within a quarter)
      12,200 steps of 1 microbatch(es), 137,420,800 tokens
      packing: 9.8 examples a sequence; filled: inputs 99.1%, targets 28.7%
      data: 2 task(s); passes over each in these steps:
        super_glue_rte_guaranteed_true: 31.20 passes (2,490 examples, 50.0% of the mixture)

How long it will take is said some steps later, when it was measured.
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
from t0.errors import UserError
from t0.mesh.devices import visible_gpus
from t0.mesh.lowering import read_program
from t0.mesh.memory import peak_memory
from t0.training.graph import TrainingGraph
from t0.training.options import TrainingSpec

METRICS_FILE = "metrics.jsonl"
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
_MOST_TASKS = 12


def step_fields(values: Mapping[str, float], positions: int) -> dict[str, float]:
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
      events: whether TensorBoard's event file is written, too.
    """

    def __init__(
        self, model_dir: str, *, total: int, tokens: int, start: int, events: bool = True
    ) -> None:
        self._path = os.path.join(model_dir, METRICS_FILE)  # noqa: PTH118
        self._total = total
        self._tokens = tokens
        self._mark: _Mark | None = None
        self._pace_shown = False
        _forget_after(self._path, start)
        self._events: tf.summary.FileWriter | None = None
        if not events:
            return
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
        if self._events is None:
            return
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
        if self._events is not None:
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


@dataclasses.dataclass(frozen=True)
class Span:
    """Steps of a run: `first` done, `last` wanted."""

    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of all devices of a run together.

    Attributes:
      variables: weights, in all the types in which they are held, and the optimizer's slots.
      step: the most that a step's gradients and activations take at once.
    """

    variables: int
    step: int


def show_start(spec: TrainingSpec, data: Any, graph: TrainingGraph, span: Span) -> None:
    """Prints how large everything is."""
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

    Gradients and activations are the largest sum of values that are alive at once, in the order
    in which TensorFlow's executor may run the step's operations; see `t0.mesh.memory`.
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
    """Returns bytes in words: GiB from one on, MiB below."""
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
    """Records the loss of a run that TensorFlow's estimator carries out.

    Args:
      model_dir: where `metrics.jsonl` is.
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
        self._interval = interval
        self._fetches: dict[str, tf.Tensor] = {}
        self._recorder: Recorder | None = None
        self._recorded = False
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
        if not self._recorded or due or step >= self.total_steps:
            self._recorder.progress(step, values)
            self._recorded = True


def default_interval(steps: int) -> int:
    """Returns the steps between two lines of progress: a hundredth of the run, at most 100."""
    return max(1, min(100, steps // 100))


def _summarised(tag: str) -> tf.Tensor | None:
    # Mesh TensorFlow keeps the learning rate only as a scalar summary.
    for operation in tf.get_default_graph().get_operations():
        if operation.type == "ScalarSummary" and operation.name.endswith(tag):
            return operation.inputs[1]
    return None
