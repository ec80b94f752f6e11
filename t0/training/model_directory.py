"""Manages a model directory: its lock, its configuration and its retained checkpoints.

    with lock("/models/tiny"):          # a second process gets a UserError here
        ...
    check_same("/models/tiny", {"run.batch_size": "4"}, allowed=False)     # lists the differences
    select_retained_steps([10, 20, 30, 40], Keep(last=1, every_steps=20))  # [20, 40]
    choose_best_checkpoint("/models/tiny")     # "/models/tiny/model.ckpt-20"

The operating system locks the file `.trainer` in the directory. So the lock is released when the
process that holds it ends, even if the process is killed. The file stays, and names the last
process that held the lock. If the directory is remote, or if its file system does not support
locks, there is no lock.

`configuration.json` holds gin's values as text. If a run is started again, it compares its current
values with the recorded values. `t0.training.checkpointing` registers `Keep` with gin, as
`keep_checkpoints`. Both engines use this module. It needs neither TensorFlow nor gin.

`write_model_info` writes model-info.txt, which lists a model's variables and its optimizer's slots
as T5X does. Names and shapes are those of Mesh TensorFlow:

    shapes = {"shared/embedding": (256, 64), "shared/embedding_slot_vc": (256,)}
    write_model_info("/models/tiny", shapes, weights=["shared/embedding"])

    Variable    shared/embedding    size 16384    shape (vocab=256, d_model=64)
    Total number of parameters: 16384

    Variable    shared/embedding_slot_vc    size 256    shape (vocab=256)
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import math
import os
import posixpath
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from t0.checkpoints import checkpoint_files, conversion, names
from t0.checkpoints.shape import factored_axes
from t0.config import saved_config
from t0.config.plain_data import Count, NotNegative, read_file
from t0.errors import UserError, printable, refuse_unanswered, say
from t0.feeding import manifest
from t0.files import paths, write_whole
from t0.files.any_path import read_lines
from t0.files.untrusted import parsed_json
from t0.prompts.model_prompts import FILE as PROMPTS_FILE
from t0.prompts.model_prompts import VOCABULARY_FILE
from t0.training import resume_file

LOCK_FILE = ".trainer"
_HELD = (errno.EACCES, errno.EAGAIN)
CONFIGURATION_FILE = "configuration.json"
ESTIMATOR_FILE = "training_seconds.json"
_INFO_FILE = "model-info.txt"
# The letters of an axis in `names.ROWS` -> the axis's name in Mesh TensorFlow.
_AXES = {"V": "vocab", "D": "d_model", "I": "heads", "F": "d_ff", "H": "heads", "B": "buckets"}
# Parameters that older versions did not have -> the value with which those versions trained.
_ADDED = {
    "train_loop.loss_average": "'positions'",
    "choice_losses.length_normalized": "0.0",
    "choice_losses.likelihood": "0.0",
    "choice_losses.unlikelihood": "0.0",
    "adapter.target_modules": "()",
    "adapter.exclude_modules": "()",
    "adapter.layers_to_transform": "()",
    "adapter.base": "'full'",
}
# Parameters that may differ between two starts of the same run.
_MAY_DIFFER = re.compile(
    r"(^|[./])(run\.(train_steps|total_run_steps|save_checkpoints_steps|keep_checkpoint_max|"
    r"model_dir|mesh_shape|mesh_devices|mode|iterations_per_loop|init_checkpoint|eval_\w+|"
    r"export_\w+|perplexity_eval_steps|dataset_split|skip_seen_data|seen_data_init_step|"
    r"checkpoint_input_pipeline|tpu\w*|gcp_project|autostack|layout_rules|vocabulary|"
    r"train_model_fn|output_eval_examples|predict_fn)"
    r"|train_loop\.(?!loss_average$)\w+|task_metrics\.\w+|keep_checkpoints\.\w+|tpu_mesh_shape\.\w+"
    r"|\w+\.model_info_file"
    # Only the first start of a run reads the following parameters, for the initial checkpoint.
    r"|init_checkpoint_variable_mapping\.\w+|should_load_variable\.\w+)$"
)


@contextlib.contextmanager
def lock(model_dir: str, busy: Callable[[str, str], str] | None = None) -> Iterator[None]:
    """Locks the directory while the context is open.

    Args:
      model_dir: the directory, which is created if necessary.
      busy: a function that returns the error message. Its arguments are the name of the other
        process and the advice to end it. None for the message of training runs.

    Raises:
      UserError: if another process uses the directory. The message names the process.
    """
    if "://" in model_dir:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            Path(model_dir).mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((Path(model_dir) / LOCK_FILE).open("a+", encoding="utf-8"))
            # This kind of lock belongs to one process. Processes forked from it do not hold the
            # lock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD and not isinstance(error, PermissionError):
                raise _locked_error(model_dir, busy) from error
            # If the directory is not writable, saving the first checkpoint reports the error.
            yield
            return
        file.truncate(0)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
        file.write(json.dumps(owner) + "\n")
        file.flush()
        yield


def _locked_error(model_dir: str, busy: Callable[[str, str], str] | None) -> UserError:
    try:
        owner = parsed_json(paths.read_bytes(posixpath.join(model_dir, LOCK_FILE)))
        pid = int(owner["pid"])
        who = f"process {pid} on {owner['host']}, since {owner['since']}"
        end = f"end it (kill -TERM {pid}: it saves first)"
    except (OSError, ValueError, KeyError, TypeError):
        who, end = "another process", "end it"
    if busy:
        return UserError(busy(who, end))
    return UserError(
        f"{model_dir} is in use by another training run ({who}): two trainers would overwrite each "
        f"other's checkpoints. Wait for it, {end}, or use another --model_dir"
    )


def configuration_text(values: Mapping[str, str]) -> str:
    """Returns the text of `configuration.json`."""
    return json.dumps(values, indent=1) + "\n"


def comparable_values(values: Mapping[str, str]) -> dict[str, str]:
    """Drops the values that may differ between two starts, and the macros that only they use."""
    values = {name: value for name, value in values.items() if not _MAY_DIFFER.search(name)}
    reached = {name for name in values if "." in name}  # a macro's name has no dot
    while True:
        text = " ".join(values[name] for name in reached)
        named = {name for name in re.findall(r"%([\w/]+)", text) if name in values} | reached
        if named == reached:
            return {name: value for name, value in values.items() if name in reached}
        reached = named


def save_prompts(model_dir: str, text: str, vocabulary: str) -> None:
    """Writes the prompts of a run, and says how many rows of the training data they contain.

    If the vocabulary is a local file, writes a copy of it.

    Args:
      model_dir: the run's model directory.
      text: the text of `prompts.json`.
      vocabulary: the path of the run's vocabulary.
    """
    if "://" not in vocabulary and paths.exists(vocabulary):
        write_whole(posixpath.join(model_dir, VOCABULARY_FILE), paths.read_bytes(vocabulary))
    path = posixpath.join(model_dir, PROMPTS_FILE)
    if rows := sum(len(each.get("exemplars", ())) for each in parsed_json(text)["prompts"]):
        say(
            f"{path} stores {rows:,} rows of the training data, the exemplars for predictions "
            "(`store: false` in few_shot leaves them out)"
        )
    write_whole(path, text)


def check_same(model_dir: str, now: Mapping[str, str], *, allowed: bool) -> list[str]:
    """Compares a configuration with the configuration recorded in `model_dir`, if there is any.

    Args:
      model_dir: the run's model directory.
      now: parameter -> its current value as text, with credentials masked.
      allowed: whether differences are allowed. If True, they are returned without an error.

    Returns:
      the differences, one line each.

    Raises:
      UserError: if there are differences and they are not allowed. The message lists them.
    """
    path, fix = posixpath.join(model_dir, CONFIGURATION_FILE), "To continue without it, remove it"
    recorded = read_file(path, Mapping[str, str], fix)
    if recorded is None:
        return []
    before = comparable_values({n: saved_config.mask_value(n, x) for n, x in recorded.items()})
    before, now = _ADDED | before, _ADDED | comparable_values(now)
    lines = [
        f"  {name}: was {before.get(name, 'not set')}, is {now.get(name, 'not set')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if lines and not allowed:
        raise UserError(
            f"{model_dir} holds a run with another configuration:\n"
            + "\n".join(lines)
            + "\nUse another --model_dir, or continue with the new values: --allow_config_change"
        )
    return lines


@dataclasses.dataclass(frozen=True)
class EstimatorRecord:
    """The record of a run on a TPU, whose checkpoints have no resume file.

    Attributes:
      step: the step of the last checkpoint.
      seconds: the training time until then, added up over all starts.
      began: the step at which training began; None in records of earlier versions.
    """

    step: Count
    seconds: NotNegative
    began: Count | None = None


def read_estimator_record(model_dir: str) -> EstimatorRecord | None:
    """Returns the record of a run on a TPU; None if the model directory has none.

    Raises:
      UserError: if the record is damaged.
    """
    fix = "To restart the count of --max_hours, remove it"
    return read_file(posixpath.join(model_dir, ESTIMATOR_FILE), EstimatorRecord, fix)


def find_first_step(model_dir: str, default: int | None = None) -> int | None:
    """Returns the step at which a run began; `default` if the run has no checkpoint."""
    latest = checkpoint_files.latest(model_dir)
    if latest is None:
        return default
    if record := resume_file.record(latest):
        return record["began"]
    on_tpu = read_estimator_record(model_dir)
    if on_tpu and on_tpu.began is not None:
        return on_tpu.began
    recorded = manifest.read(model_dir)
    return recorded.start.step if recorded else checkpoint_files.global_step(latest)


@dataclasses.dataclass(frozen=True)
class Keep:
    """The rule that decides which checkpoints are retained; gin: `keep_checkpoints.NAME`.

    Attributes:
      last: the number of latest checkpoints to retain (`run.keep_checkpoint_max`); None or 0 to
        retain all checkpoints, as in TensorFlow and T5X.
      every_steps: a number of steps. Checkpoints whose step is a multiple of it are also retained.
        None for no such checkpoints.
      best_by: an evaluation metric, such as "validation_loss" or "eval/accuracy". If it is set, a
        checkpoint is written whenever an evaluation is the best so far, and the best checkpoint is
        also retained. None for no such checkpoint.
      smaller_is_better: whether a smaller value of that metric is better. None to decide by the
        metric's name: smaller is better for a loss, a perplexity or an error.
    """

    last: Count | None = None
    every_steps: Count | None = None
    best_by: str | None = None
    smaller_is_better: bool | None = None

    def __post_init__(self) -> None:
        """Checks the number of checkpoints.

        Raises:
          UserError: if it is not a number of checkpoints.
        """
        if self.last is not None and (type(self.last) is not int or self.last < 0):
            raise UserError(
                f"run.keep_checkpoint_max is {self.last!r:.40}; expected the number of latest "
                "checkpoints to keep, or None or 0 to keep all"
            )


def select_retained_steps(steps: Sequence[int], keep: Keep, best: int | None = None) -> list[int]:
    """Returns the steps whose checkpoints are retained.

    >>> select_retained_steps([10, 20, 30, 40], Keep(last=1, every_steps=20))
    [20, 40]
    """
    if not keep.last:
        return sorted(steps)
    stay = set(sorted(steps)[-keep.last :])
    if keep.every_steps:
        stay |= {step for step in steps if step % keep.every_steps == 0}
    if best is not None:
        stay |= {best} & set(steps)
    return sorted(stay)


def choose_best_checkpoint(path: str) -> str:
    """Returns the best checkpoint of a model directory, and prints which checkpoint this is.

    Args:
      path: a model directory, or any other checkpoint.

    Returns:
      the path of the checkpoint with the best evaluation, if `path` is a model directory whose run
      has kept this checkpoint. Otherwise `path` itself, which means the latest checkpoint.
    """
    best = _recorded_best(path)
    kind, latest = conversion.recognise(path) if best else ("", "")
    if kind not in ("mtf", "torch", "adapter"):
        return path
    metric, step = best
    chosen = re.sub(r"-\d+$", f"-{step}", latest)
    if chosen == latest or not paths.exists(chosen + (".index" if kind == "mtf" else "")):
        return path
    note = f"using {chosen}, the best by {metric}. To use the latest: {latest}"
    print(printable(note), file=sys.stderr)
    return chosen


def _recorded_best(model_dir: str) -> tuple[str, int] | None:
    """Returns the metric and the step of the best evaluation that `metrics.jsonl` records."""
    best = None
    try:
        for line in read_lines(posixpath.join(model_dir, "metrics.jsonl")):
            with contextlib.suppress(ValueError, AttributeError):
                record = parsed_json(line) if b"best_by" in line else {}
                metric, step = record.get("best_by"), record.get("best_step")
                if isinstance(metric, str) and type(step) is int:
                    best = metric, step
    except OSError as error:  # `path` is no model directory of a training run
        refuse_unanswered(error)
    return best


def write_model_info(
    model_dir: str,
    shapes: Mapping[str, Sequence[int]],
    weights: Collection[str],
    *,
    stock_file: str | None = None,
) -> None:
    """Writes model-info.txt into a model directory.

    Args:
      model_dir: the model directory.
      shapes: name of a variable -> its shape.
      weights: the names of the model's weights; all other variables are slots.
      stock_file: the file in which the user wants Mesh TensorFlow's own list; None if there is
        none. If this is `model-info.txt` in the model directory, Mesh TensorFlow's list is kept.
    """
    path = posixpath.join(model_dir, _INFO_FILE)
    if stock_file == path:
        return
    lines = [
        *(_line(name, shapes) for name in sorted(weights)),
        f"Total number of parameters: {sum(math.prod(shapes[name]) for name in weights)}",
        "",
        *(_line(name, shapes) for name in sorted(shapes.keys() - weights)),
    ]
    write_whole(path, "\n".join(lines) + "\n")


def _line(name: str, shapes: Mapping[str, Sequence[int]]) -> str:
    shape = shapes[name]
    named = _axes_of_t5(name, shapes)
    sizes = [f"{axis}={size}" for axis, size in zip(named, shape, strict=True)] if named else shape
    text = f"({', '.join(map(str, sizes))})"
    return f"Variable    {name:<80} size {math.prod(shape):<12} shape {text}"


def _axes_of_t5(name: str, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns the names of the axes of a T5's variable or slot; [] if the name is unknown."""
    parameter, slot = names.split_slot(name.removesuffix("/momentum_v"))
    row = names.row_of(names.from_mtf(parameter) or parameter)
    if row is None or len(row.dims) != len(shapes[parameter]):
        return []
    axes = [_AXES[letter] for letter in row.dims]
    if slot in ("vr", "vc"):
        del axes[factored_axes(tuple(shapes[parameter]))[slot == "vc"]]
    return axes
