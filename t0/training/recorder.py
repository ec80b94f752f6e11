"""Prints a run's metrics in progress lines, and records them in `metrics.jsonl` and event files.

    recorder = Recorder("/models/tiny", total=12_200, tokens=11_264, start=0)
    recorder.progress(1_200, step_fields(values, positions))
    # step 1,200/12,200  loss 2.304  held-out 2.411  lr 0.001  11.5k tok/s  2h56m left

A line is printed every few seconds. If `-v=0` or `train_loop.log_every_steps` is set, every record
gets a line. With `-v=0`, a second line shows all numbers of the record, as in `metrics.jsonl`:

- `loss_per_token`: nats per target token. The line calls it "loss". In the line, "held-out" means
  the nats per target token of the last validation.
- `token_accuracy_without_eos`: the accuracy, which does not count EOS tokens. `token_accuracy` also
  counts EOS tokens.
- `loss`: Mesh TensorFlow's loss, which a TPU's line calls "T5 loss". This is the sum of nats and
  z-loss over the target tokens, divided by the number of target positions (with padding).
- `tokens_per_second`: the speed in positions of the batch, including padding.
- `passes`: the number of examples read so far, divided by the number of examples of all tasks.

TPU runs, which train with TensorFlow's estimator, record their loss and learning rate in the same
way. `start_lines` makes the lines at the start of a run:

    training from step 0 to 12,200: 16 sequences a step, inputs 512, targets 192
      model: 76,961,152 parameters
      12,200 steps of 11,264 tokens in 1 microbatch(es), 137,420,800 tokens in total
      packing: 9.8 examples a sequence; filled: inputs 99.1%, targets 28.7%
      data: 2 task(s); passes over each in these steps:
        super_glue_rte_guaranteed_true: 31.20 passes (2,490 examples, 50.0% of the mixture)

    events = EventFile("/models/tiny/validation_eval", suffix=".1000")
    events.add(1_000, {"eval/super_glue_rte_must_be_true_score_eval/accuracy": 54.15})
    events.close()

An event file is a TFRecord file of `tensorflow.Event` messages. The first message contains the
version of the format. The file is created when the first event is added. Its name has TensorFlow's
form, and contains the second in which the file was created. Objects in a bucket can only be written
as a whole. So for a bucket, the file grows in a temporary folder, and `publish` copies it. If two
files are created in the same folder of a bucket in the same second, they must have different
suffixes.

For local paths, this module does not need TensorFlow, so every engine can use it.
"""

import dataclasses
import json
import math
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from absl import logging

from t0.errors import reading, say
from t0.files import paths, publishing, write_whole
from t0.files.any_path import any_path, read_lines
from t0.files.protobuf_wire import double_field, field, float_field
from t0.files.tfrecord import framed
from t0.files.untrusted import parsed_json
from t0.text_tables import wrap_text

METRICS_FILE = "metrics.jsonl"
# A task's metric has the field PREFIX<task>/<metric>. The mean over tasks has the field
# PREFIX<metric>.
PREFIX = "eval/"
# The number of seconds after which metrics are written to a bucket, unless a checkpoint is saved
# earlier.
_REMOTE_SECONDS = 60
# The number of seconds between two lines, unless every record gets a line.
_LINE_SECONDS = 4.0
_WIDTH = 80
# The maximum number of tasks that are listed at the start.
_MOST_TASKS = 12


def _short_number(number: float) -> str:
    """Formats a positive number with at most three digits before the point.

    >>> _short_number(850), _short_number(11_480), _short_number(2_500_000)
    ('850', '11.5k', '2.5M')
    """
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1e6:.1f}M" if number >= 999_950 else f"{number / 1e3:.1f}k"


def _short_duration(seconds: float) -> str:
    """Formats a duration with its two largest units.

    >>> _short_duration(72), _short_duration(10_572), _short_duration(200_000)
    ('1m12s', '2h56m', '2d7h')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


# Field of metrics.jsonl -> a function that formats the field for the progress line. The field's
# name is also its tag in TensorBoard.
_SHOWN: dict[str, Callable[[float], str]] = {
    "loss_per_token": "loss {:.3f}".format,
    "held_out": "held-out {:.3f}".format,
    "loss": "T5 loss {:.3f}".format,
    "learning_rate": "lr {:.2g}".format,
    "tokens_per_second": lambda speed: f"{_short_number(speed)} tok/s",
}
_VERSION = b"brain.Event:2"
# The fields of `tensorflow.Event`.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
_START = field(1, 1)  # SessionLog.status


def step_fields(values: Mapping[str, float], positions: int) -> dict[str, float]:
    """Computes the fields of a step from the graph's sums.

    Args:
      values: name -> sum over the batch. The names are those of `graph.METRICS` for a training
        step.
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


def validation_fields(
    values: Mapping[str, float], batches: int, positions: int
) -> dict[str, float]:
    """Computes the fields of a held-out loss. Their names start with `validation_`.

    Args:
      values: name -> sum over all batches, for "loss" and the sums of a step.
      batches: the number of batches.
      positions: the number of target positions of a batch.
    """
    mean_loss = values["loss"] / batches
    fields = step_fields({**values, "loss": mean_loss}, positions * batches)
    fields["perplexity"] = math.exp(min(fields["loss_per_token"], 700.0))
    return {f"validation_{name}": value for name, value in fields.items()}


def line(step: int, total: int, fields: Mapping[str, float]) -> str:
    """Returns the progress line of a step, which fits a terminal of 80 columns.

    Args:
      total: the run's last step.
      fields: the fields of the step in `metrics.jsonl`, and the last held-out loss.
    """
    hidden = ("loss",) if "loss_per_token" in fields else ()
    shown = [name for name in _SHOWN if name in fields and name not in hidden]
    words = [_SHOWN[name](fields[name]) for name in shown]
    if "seconds_per_step" in fields:
        words.append(f"{_short_duration((total - step) * fields['seconds_per_step'])} left")
    text = "  ".join([f"step {step:,}/{total:,}", *words])
    return text if len(text) <= _WIDTH else "  ".join([f"step {step:,}", *words])


def evaluation_line(step: int, fields: Mapping[str, float]) -> str:
    """Returns the line of an evaluation, with the held-out loss and the means over tasks."""
    words = [f"step {step:,}"]
    if "validation_loss" in fields:
        words += [
            f"held-out {fields['validation_loss_per_token']:.3f}",
            f"perplexity {fields['validation_perplexity']:.4g}",
            f"accuracy {fields['validation_token_accuracy_without_eos']:.1%}",
        ]
    means = {name: x for name, x in fields.items() if name.startswith(PREFIX)}
    words += [f"{name} {x:.4g}" for name, x in means.items() if name.count("/") == 1]
    return "  ".join(words)


def default_interval(steps: int) -> int:
    """Returns the number of steps between two records: a hundredth of the run, at most 100."""
    return max(1, min(100, steps // 100))


class Recorder:
    """Prints a run's metrics, and writes them to its model directory.

    Args:
      model_dir: the model directory.
      total: the run's last step.
      tokens: the number of positions of a batch, including padding.
      start: the step from which the run continues. Records of later steps are removed.
      events: whether to also write TensorBoard's event file.
      every_line: whether every record gets a line. If False, a line is printed every few seconds.

    Attributes:
      ideal_seconds: the seconds that a step would take at the peak FLOP/s in the GPUs' data sheet;
        None if unknown. The model FLOPs utilization (MFU) is computed from it.
    """

    def __init__(  # noqa: PLR0913 (a run's facts, all by name)
        self,
        model_dir: str,
        *,
        total: int,
        tokens: int,
        start: int,
        events: bool = True,
        every_line: bool = False,
    ) -> None:
        self._path = os.path.join(model_dir, METRICS_FILE)  # noqa: PTH118
        self._total = total
        self._tokens = tokens
        self._detailed = logging.get_verbosity() >= logging.INFO
        self._line_seconds = 0.0 if every_line or self._detailed else _LINE_SECONDS
        self._last_line = -math.inf
        self.ideal_seconds: float | None = None
        # The step of the last record, and the time of that record plus all pauses since.
        self._marked_step, self._marked_at = math.inf, 0.0
        # An object in a bucket can only be rewritten as a whole, and at most once a second. So
        # records are buffered in memory.
        self._remote = paths.is_remote(model_dir)
        self._waiting: list[str] = []
        self._held_out: float | None = None  # nats per target token of the last validation
        _forget_after(self._path, start)
        self._flushed = time.monotonic()
        self._events: EventFile | None = None
        if events:
            self._events = EventFile(model_dir, restarted_at=start + 1 if start else None)

    def progress(self, step: int, fields: Mapping[str, float]) -> None:
        """Records the fields of a training step, and prints a line if a line is due."""
        now = time.monotonic()
        paced = dict(fields)
        if step > self._marked_step:  # False for the first record
            pace = (now - self._marked_at) / (step - self._marked_step)
            paced["seconds_per_step"] = pace
            paced["tokens_per_second"] = self._tokens / pace
            if self.ideal_seconds is not None:
                paced["model_flops_utilization"] = self.ideal_seconds / pace
        self._marked_step, self._marked_at = step, now
        if step >= self._total or now - self._last_line >= self._line_seconds:
            self._last_line = now
            held_out = {} if self._held_out is None else {"held_out": self._held_out}
            say(line(step, self._total, paced | held_out))
            if self._detailed:
                say("  " + "  ".join(f"{name} {value:.5g}" for name, value in paced.items()))
        self.record(step, paced)

    def record(self, step: int, fields: Mapping[str, Any]) -> None:
        """Appends the fields to `metrics.jsonl` and to the event file."""
        self._held_out = fields.get("validation_loss_per_token", self._held_out)
        self._append({"step": step, **fields})
        if self._events is not None:
            self._events.add(step, fields)

    def _append(self, fields: Mapping[str, Any]) -> None:
        self._waiting.append(json.dumps(fields) + "\n")
        if not self._remote or time.monotonic() - self._flushed > _REMOTE_SECONDS:
            self.flush()

    def _write_waiting(self) -> None:
        if self._waiting:
            with paths.opened(self._path, "a") as file:
                file.write("".join(self._waiting))
            self._waiting.clear()

    def flush(self) -> None:
        """Writes buffered records, to a bucket at most once a second."""
        now = time.monotonic()
        if not self._remote or now - self._flushed >= publishing.OBJECT_SECONDS:
            self._write_waiting()
            if self._events is not None:
                self._events.publish()
            self._flushed = now

    def note(self, step: int, fields: Mapping[str, Any]) -> None:
        """Appends fields of any type to `metrics.jsonl`, but not to the event file."""
        if fields:
            self._append({"step": step, **fields})

    def pause(self, seconds: float) -> None:
        """Excludes seconds, such as those of a validation or a save, from the measured speed."""
        self._marked_at += seconds

    def close(self) -> None:
        """Writes buffered records, and closes the event file."""
        self._write_waiting()
        if self._events is not None:
            self._events.close()


def _forget_after(path: str, step: int) -> None:
    # A killed run may have recorded steps after its last checkpoint. These steps are repeated now.
    if not any_path(path).exists():
        return
    with reading(path):
        lines = [line.decode("utf-8", "replace").rstrip("\r\n") for line in read_lines(path)]
    retained = [text for text in lines if _step_of(text) <= step]
    if len(retained) < len(lines):
        write_whole(path, (text + "\n" for text in retained))


def _step_of(text: str) -> float:
    try:
        step = parsed_json(text)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf  # an incomplete line of a killed run
    return step if isinstance(step, int | float) else math.inf


class EventFile:
    """One event file of TensorBoard.

    Args:
      folder: the folder of the file. If it does not exist, it is created.
      suffix: the end of the file's name.
      restarted_at: the first step of a resumed run. From this step on, TensorBoard hides the events
        in earlier files. None for a new run.

    Raises:
      OSError: if the file cannot be written. The methods also raise it.
    """

    def __init__(self, folder: str, *, suffix: str = "", restarted_at: int | None = None) -> None:
        self._folder = folder.rstrip("/")
        self._suffix = suffix
        self._local = tempfile.TemporaryDirectory() if paths.is_remote(folder) else None
        self._file: IO[bytes] | None = None
        if self._local is None:
            paths.make_folder(folder)
        if restarted_at is not None:
            self._write(_step(restarted_at) + field(_SESSION_LOG, _START))

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds the values of a step (name -> number). A local file is updated immediately."""
        encoded = (
            field(1, name.encode()) + float_field(2, float(value)) for name, value in values.items()
        )
        self.add_summary(step, b"".join(field(1, value) for value in encoded))

    def add_summary(self, step: int, summary: bytes) -> None:
        """Adds a serialized `tf.Summary` message of a step."""
        self._write(_step(step) + field(_SUMMARY, summary))

    def _write(self, fields: bytes) -> None:
        if self._file is None:
            self._file = _new_file(self._local.name if self._local else self._folder, self._suffix)
            self._file.write(framed(_now() + field(_FILE_VERSION, _VERSION)))
        self._file.write(framed(_now() + fields))
        self._file.flush()

    def publish(self) -> None:
        """Copies the file to the bucket. If the folder is local, this does nothing."""
        if self._local is not None and self._file is not None:
            name = os.path.basename(self._file.name)  # noqa: PTH119
            paths.copy(self._file.name, f"{self._folder}/{name}")

    def close(self) -> None:
        """Closes the file, and copies it to the bucket if the folder is remote."""
        if self._file is not None and not self._file.closed:
            self._file.close()
            self.publish()
        if self._local is not None:
            self._local.cleanup()


def _now() -> bytes:
    return double_field(_WALL_TIME, time.time())


def _step(step: int) -> bytes:
    return field(_STEP, int(step)) if step else b""


def _new_file(folder: str, suffix: str) -> IO[bytes]:
    """Opens a new file with TensorFlow's name for this second.

    If a file with that name exists, the new file gets the name of the next second without a file.
    """
    seconds = int(time.time())
    while True:
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}{suffix}"
        try:
            return open(os.path.join(folder, name), "xb")  # noqa: PTH118, SIM115
        except FileExistsError:
            seconds += 1


@dataclasses.dataclass(frozen=True)
class RunSize:
    """The sizes of a run.

    Attributes:
      rows: the number of sequences of a global batch.
      lengths: feature -> the length of its sequences in tokens.
      parameters: the number of the model's weights; 0 if it is unknown.
    """

    rows: int
    lengths: Mapping[str, int]
    parameters: int = 0

    @property
    def tokens(self) -> int:
        """The number of positions of a batch, including padding."""
        return self.rows * sum(self.lengths.values())

    @property
    def fields(self) -> dict[str, int]:
        """The sizes of the model and the batch, for the first record of a new run."""
        return {
            "parameters": self.parameters,
            "batch_sequences": self.rows,
            "batch_tokens": self.tokens,
        }

    @property
    def target_positions(self) -> int:
        """The number of target positions of a batch, including padding."""
        return self.rows * self.lengths["targets"]


def start_lines(
    first: int, last: int, size: RunSize, *, microbatches: int, data: Any, notes: Sequence[str] = ()
) -> list[str]:
    """Returns the lines to print at the start of a run.

    Args:
      first: the step from which the run continues; 0 for a new run.
      last: the step at which the run ends.
      size: the sizes of the run.
      microbatches: the number of microbatches of a step.
      data: a `TrainingData`, or another object that has `filling` and `shares`.
      notes: lines about the engine and its memory.
    """
    report = [
        first_line(first, last, size),
        f"  model: {size.parameters:,} parameters",
        *notes,
        f"  {last - first:,} steps of {size.tokens:,} tokens in {microbatches} microbatch(es), "
        f"{(last - first) * size.tokens:,} tokens in total",
        *data_lines(data, (last - first) * size.rows),
    ]
    return wrap_text("\n".join(report), _WIDTH).split("\n")


def first_line(first: int, last: int, size: RunSize) -> str:
    """Returns the line that reports the steps and the size of a batch."""
    each = ", ".join(f"{name} {length:,}" for name, length in size.lengths.items())
    return f"training from step {first:,} to {last:,}: {size.rows:,} sequences a step, {each}"


def memory_line(variables: float, step: float, *, devices: int) -> str:
    """Returns the lines about the memory of each device.

    Args:
      variables: the bytes of the weights and of the optimizer's slots on one device.
      step: the peak bytes of a step's gradients and activations on one device.
      devices: the number of devices. All need the same memory.
    """
    total, weights, values = map(_size, (variables + step, variables, step))
    return (
        f"  memory: about {total} on each of {devices} device(s):\n"
        f"    weights and optimizer {weights}, gradients and activations {values}"
    )


def _size(count: float) -> str:
    """Formats a number of bytes: in GiB from 1 GiB on, otherwise in MiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def data_lines(data: Any, sequences: int) -> list[str]:
    """Returns the lines about the data: the packing, and the passes over each task.

    Args:
      data: a `TrainingData`, or another object that has `filling` and `shares`. If `filling` is
        None, there are no lines.
      sequences: the number of sequences in all steps together.
    """
    filling = data.filling
    if filling is None:
        return []
    each = filling.examples / filling.rows
    full = ", ".join(f"{name} {share:.1%}" for name, share in filling.filled.items())
    report = [f"  packing: {each:.1f} examples a sequence; filled: {full}"]
    if filling.unknown:
        report.append(
            f"  unknown tokens: {filling.unknown:.1%} of the first targets have some, because the "
            "vocabulary does not have all of their characters"
        )
    examples_drawn = sequences * each
    shares = sorted(data.shares(), key=lambda share: -share.rate)
    report.append(f"  data: {len(shares)} task(s); passes over each in these steps:")
    for share in shares[:_MOST_TASKS]:
        passes = f"{examples_drawn * share.rate / share.examples:.2f}" if share.examples else "?"
        count = f"{share.examples:,} examples" if share.examples else "unknown size"
        report.append(
            f"    {share.name}: {passes} passes ({count}, {share.rate:.1%} of the mixture)"
        )
    if len(shares) > _MOST_TASKS:
        report.append(f"    ... and {len(shares) - _MOST_TASKS} more")
    return report


def restored_line(filled: int, total: int, path: str, step: int) -> str:
    """Returns the line that reports how many variables were restored from a checkpoint."""
    return f"restored {filled:,} of {total:,} variables from {path}, step {step:,}"


def slots_line(filled: int, total: int) -> str:
    """Returns the line that reports how many of the optimizer's variables were restored."""
    if not total:
        return "the optimizer keeps no state"
    if filled == total:
        return f"optimizer state: restored, {total:,} of {total:,} slots"
    return f"optimizer state: {filled:,} of {total:,} slots restored, the others start at zero"


def random_line(seed: int) -> str:
    """Returns the line that reports that a run starts from random weights."""
    return f"no checkpoint: starting from random weights, seed {seed}"
