"""A run's model directory: checkpoints, the state to resume from, and the configuration.

    checkpoints = Checkpoints("/models/tiny", graph, session, Keep(last=2))
    checkpoints.save(100, {"position": position}, best=80)
    checkpoints.restore("/models/tiny/model.ckpt-100")     # its resume state, or None
    check_same_configuration("/models/tiny", allowed=False)     # UserError: the differences
    save_configuration("/models/tiny")

A checkpoint of step 100 is `model.ckpt-100.index` and `.data-...`, as Mesh TensorFlow writes them,
and `model.ckpt-100.resume.npz`: the position in the data, the seed, and the low halves of weights
that are wider in memory than in the checkpoint. It has its name only when it is whole: the index,
which makes it a checkpoint, is renamed last, and `checkpoint`, which names it the latest, after
that.

`configuration.json` beside the checkpoints holds gin's values as text. A run that would go on with
others is refused, with what differs; what may change between two starts of one run is left out.
"""

import contextlib
import dataclasses
import errno
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import gin
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.training.graph import TrainingGraph

_SAVING = ".saving-"
WRITE_ERRORS = (OSError, tf.errors.OpError)
_FULL = ("No space left", "Disk quota exceeded", os.strerror(errno.ENOSPC), "File too large")
CONFIGURATION_FILE = "configuration.json"

# Parameters that may differ between two starts of the same run.
_MAY_DIFFER = re.compile(
    r"(^|[./])(run\.(train_steps|total_run_steps|save_checkpoints_steps|keep_checkpoint_max|"
    r"model_dir|mesh_shape|mesh_devices|mode|iterations_per_loop|init_checkpoint|eval_\w+|"
    r"export_\w+|perplexity_eval_steps|dataset_split|skip_seen_data|seen_data_init_step|"
    r"checkpoint_input_pipeline|tpu\w*|gcp_project|autostack|layout_rules|vocabulary|"
    r"train_model_fn|output_eval_examples|predict_fn)"
    r"|train_loop\.\w+|task_metrics\.\w+|keep_checkpoints\.\w+|tpu_mesh_shape\.\w+"
    r"|\w+\.model_info_file"
    # Asked only where an initial checkpoint is read: at the first start.
    r"|init_checkpoint_variable_mapping\.\w+|should_load_variable\.\w+)$"
)


@gin.configurable("keep_checkpoints", module="t0", denylist=["last"])
@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints stay; gin sets it as `keep_checkpoints.NAME`.

    Attributes:
      last: how many of the latest (`run.keep_checkpoint_max`); None keeps all.
      every_steps: those whose step is a multiple stay, None for none.
      best_by: the metric of evaluation whose best checkpoint stays, such as "validation_loss" or
        "eval/accuracy"; a checkpoint is then written whenever an evaluation is the best so far.
      smaller_is_better: None to tell by the metric's name: of a loss, perplexity or error.
    """

    last: int | None = None
    every_steps: int | None = None
    best_by: str | None = None
    smaller_is_better: bool | None = None


def steps_done(model_dir: str) -> int:
    """Returns the step of the model directory's latest checkpoint, 0 without one."""
    latest = checkpoint_files.latest(model_dir)
    return checkpoint_files.global_step(latest) if latest else 0


def is_finished(model_dir: str, train_steps: int) -> bool:
    """Returns whether the model directory is at its last step already, and prints a line if so."""
    done = steps_done(model_dir)
    if done >= train_steps:
        print(f"nothing to train: {model_dir} is at step {done:,} of {train_steps:,}")
    return done >= train_steps


def record(checkpoint: str) -> dict[str, Any] | None:
    """Returns where a run of ours stood at `checkpoint`; None for a checkpoint of another loop."""
    path = checkpoint + ".resume.npz"
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        return json.loads(str(np.load(io.BytesIO(file.read()))["record"]))


def kept(steps: Sequence[int], keep: Keep, best: int | None = None) -> list[int]:
    """Returns which of `steps` stay.

    >>> kept([10, 20, 30, 40], Keep(last=1, every_steps=20))
    [20, 40]
    """
    if keep.last is None:
        return sorted(steps)
    stay = set(sorted(steps)[-max(1, keep.last) :])
    if keep.every_steps:
        stay |= {step for step in steps if step % keep.every_steps == 0}
    if best is not None:
        stay |= {best} & set(steps)
    return sorted(stay)


class Checkpoints:
    """The checkpoints of one run.

    Args:
      model_dir: where they are.
      graph: the lowered step; session: holds its variables.
      keep: which stay.
    """

    def __init__(
        self, model_dir: str, graph: TrainingGraph, session: tf.Session, keep: Keep
    ) -> None:
        self._model_dir = model_dir
        self._graph = graph
        self._session = session
        self._keep = keep
        with graph.graph.as_default():
            self._variables = {v.op.name: v for v in tf.global_variables()}
            self._saver = tf.train.Saver(list(self._variables.values()), max_to_keep=None)
        # Steps that this run or an earlier one of it wrote, which it may delete again.
        self._own: list[int] = []

    def save(self, step: int, resume: Mapping[str, Any], best: int | None = None) -> str:
        """Writes the checkpoint of `step`.

        Args:
          step: the number of steps done.
          resume: what `restore` hands back: where the run stands.
          best: the step whose checkpoint is the best so far.

        Returns:
          its path.

        Raises:
          UserError: if it cannot be written; the checkpoints before it are as they were.
        """
        path = checkpoint_files.checkpoint_path(self._model_dir, step)
        folder = os.path.join(self._model_dir, f"{_SAVING}{step}")  # noqa: PTH118
        with _explained(path, self._model_dir, lambda: _remove(folder)):
            _remove_leftovers(self._model_dir)
            tf.io.gfile.makedirs(folder)
            prefix = os.path.join(folder, os.path.basename(path))  # noqa: PTH118,PTH119
            self._session.run(self._graph.to_masters)
            with self._graph.graph.as_default():  # the saver asks whether it runs eagerly
                self._saver.save(self._session, prefix, write_meta_graph=False, write_state=False)
            own = sorted({*self._own, step})
            self._write_resume(prefix, {**resume, "own": own})
            _publish(folder, self._model_dir)
            self._own = own
            _name_latest(self._model_dir, step)
        self._delete(best)
        return path

    def restore(self, checkpoint: str) -> dict[str, Any] | None:
        """Loads a checkpoint of this run, exactly, and returns the record that `save` was given.

        None where there is none: a checkpoint of Mesh TensorFlow's own loop.

        Raises:
          UserError: if a variable is missing or of another shape or type.
        """
        checkpoint_files.check_variables(
            checkpoint, checkpoint_files.described(self._variables.values())
        )
        with self._graph.graph.as_default():
            self._saver.restore(self._session, checkpoint)
        self._session.run(self._graph.to_slices)
        resume = self._read_resume(checkpoint)
        if resume is not None:
            self._own = resume.pop("own")
        return resume

    def assign(self, name: str, value: np.ndarray) -> None:
        """Sets a variable."""
        variable = self._variables[name]
        kind = variable.dtype.base_dtype.as_numpy_dtype
        initial = variable.initializer.inputs[1]
        self._session.run(variable.initializer, {initial: value.astype(kind)})

    @property
    def variables(self) -> dict[str, tuple[tuple[int, ...], tf.DType]]:
        """Name -> (shape, type) of what a checkpoint holds."""
        return checkpoint_files.described(self._variables.values())

    def _delete(self, best: int | None) -> None:
        stay = kept(self._own, self._keep, best)
        for step in set(self._own) - set(stay):
            path = checkpoint_files.checkpoint_path(self._model_dir, step)
            # The index first: without it the rest is no checkpoint.
            for file in sorted(
                tf.io.gfile.glob(path + ".*"), key=lambda name: not name.endswith(".index")
            ):
                tf.io.gfile.remove(file)
        self._own = stay

    def _write_resume(self, prefix: str, resume: Mapping[str, Any]) -> None:
        content = io.BytesIO()
        np.savez(content, record=np.array(json.dumps(resume)), **self._low_halves())
        with tf.io.gfile.GFile(prefix + ".resume.npz", "wb") as file:
            file.write(content.getvalue())

    def _low_halves(self) -> dict[str, np.ndarray]:
        """What the checkpoint's types leave out of the weights in memory."""
        halves = {}
        for name, slices in self._graph.slices.items():
            master = self._variables[name]
            for number, wide in enumerate(self._session.run(slices)):
                key = f"{name}/{number}"
                if master.dtype.base_dtype == tf.bfloat16 and wide.dtype == np.float32:
                    halves[f"low/{key}"], halves[f"ties/{key}"] = split_halves(wide)
                else:
                    halves[f"wide/{key}"] = wide
        return halves

    def _read_resume(self, checkpoint: str) -> dict[str, Any] | None:
        path = checkpoint + ".resume.npz"
        if not tf.io.gfile.exists(path):
            return None
        with tf.io.gfile.GFile(path, "rb") as file:
            content = np.load(io.BytesIO(file.read()))
        for name, slices in self._graph.slices.items():
            for number, variable in enumerate(slices):
                key = f"{name}/{number}"
                if f"low/{key}" in content:
                    nearest = self._session.run(variable)
                    wide = join_halves(nearest, content[f"low/{key}"], content[f"ties/{key}"])
                else:
                    wide = content[f"wide/{key}"]
                self._set(variable, wide)
        return json.loads(str(content["record"]))

    def _set(self, variable: tf.Variable, value: np.ndarray) -> None:
        self._session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def _publish(folder: str, model_dir: str) -> None:
    """Moves the files of a finished checkpoint to their names, the index last."""
    names = sorted(tf.io.gfile.listdir(folder), key=lambda name: name.endswith(".index"))
    for name in names:
        _to_disk(os.path.join(folder, name))  # noqa: PTH118
    for name in names:
        source, target = (os.path.join(place, name) for place in (folder, model_dir))  # noqa: PTH118
        tf.io.gfile.rename(source, target, overwrite=True)
    _to_disk(model_dir)
    _remove(folder)


def _to_disk(path: str) -> None:
    if "://" in path:
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _name_latest(model_dir: str, step: int) -> None:
    """Writes the file that TensorFlow asks for the latest checkpoint."""
    steps = [s for s in checkpoint_files.steps(model_dir) if s != step]
    names = [f"model.ckpt-{s}" for s in [*steps, step]]
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    target = os.path.join(model_dir, "checkpoint")  # noqa: PTH118
    with tf.io.gfile.GFile(target + ".new", "w") as file:
        file.write("\n".join(lines) + "\n")
    tf.io.gfile.rename(target + ".new", target, overwrite=True)


def _remove(folder: str) -> None:
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def _remove_leftovers(model_dir: str) -> None:
    """Removes what a run that was killed while saving has left."""
    for folder in tf.io.gfile.glob(os.path.join(model_dir, _SAVING + "*")):  # noqa: PTH118
        _remove(folder)
    present = set(checkpoint_files.steps(model_dir))
    for file in tf.io.gfile.glob(os.path.join(model_dir, "model.ckpt-*")):  # noqa: PTH118
        match = re.search(r"model\.ckpt-(\d+)\.(data-\S+|resume\.npz)$", file)
        if match and int(match[1]) not in present:
            tf.io.gfile.remove(file)


@contextlib.contextmanager
def _explained(path: str, model_dir: str, clean: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except WRITE_ERRORS as error:
        with contextlib.suppress(*WRITE_ERRORS):
            clean()
        raise UserError(
            f"checkpoint {path} cannot be saved: {reason_of(error)}. {_last_checkpoint(model_dir)}"
        ) from error


def rounded(wide: np.ndarray) -> np.ndarray:
    """Returns float32 values rounded to those that bfloat16 can hold, as float32."""
    bits = wide.view(np.uint32).astype(np.uint64)
    up = (bits >> np.uint64(16)) & np.uint64(1)
    nearest = (bits + np.uint64(0x7FFF) + up) >> np.uint64(16) << np.uint64(16)
    return nearest.astype(np.uint32).view(np.float32)


def split_halves(wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns what bfloat16 leaves out of float32 weights, half their size.

    Returns:
      int16, the differences of the bit patterns to the rounded values; int64, where they wrap.
    """
    difference = wide.view(np.int32).astype(np.int64) - rounded(wide).view(np.int32)
    return difference.astype(np.int16), np.flatnonzero(difference == 1 << 15)


def join_halves(nearest: np.ndarray, low: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Returns the float32 weights of which `split_halves` made `low` and `ties`."""
    difference = low.astype(np.int32)
    difference.reshape(-1)[ties] = 1 << 15
    return (nearest.view(np.int32) + difference).view(np.float32)


def reason_of(error: BaseException) -> str:
    """Returns why something could not be written, in a few words."""
    text = str(getattr(error, "message", None) or error).splitlines()[0]
    return "the disk is full" if any(words in text for words in _FULL) else text


def _last_checkpoint(model_dir: str) -> str:
    """Returns a sentence about the last checkpoint of `model_dir`, and what to do."""
    steps = checkpoint_files.steps(model_dir)
    last = checkpoint_files.checkpoint_path(model_dir, steps[-1]) if steps else None
    there = f"The last checkpoint, {last}, is intact" if last else "There is no checkpoint yet"
    return f"{there}; make room and start the same command again"


@contextlib.contextmanager
def full_disk_explained(model_dir: str) -> Iterator[None]:
    """Turns errors of writing to a full disk into a UserError; others stay as they are."""
    try:
        yield
    except WRITE_ERRORS as error:
        if reason_of(error) != "the disk is full":
            raise
        raise UserError(
            f"the disk of {model_dir} is full. {_last_checkpoint(model_dir)}"
        ) from error


def configuration() -> dict[str, str]:
    """Returns what gin's functions were called with so far: parameter -> value as text."""
    values: dict[str, str] = {}
    text = gin.operative_config_str(max_line_length=1_000_000)
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals and not line.startswith("#"):
            values[name] = value
    return _compared(values)


def _compared(values: dict[str, str]) -> dict[str, str]:
    """Leaves out what may differ, and macros that only such parameters read, like TRAIN_STEPS."""
    values = {name: value for name, value in values.items() if not _MAY_DIFFER.search(name)}
    found = {name for name in values if "." in name}  # a macro's name has no dot
    while True:
        text = " ".join(values[name] for name in found)
        named = {name for name in re.findall(r"%([\w/]+)", text) if name in values} | found
        if named == found:
            return {name: value for name, value in values.items() if name in found}
        found = named


def check_same_configuration(model_dir: str, *, allowed: bool) -> list[str]:
    """Compares the configuration with the one recorded in `model_dir`, if there is one.

    Args:
      model_dir: of the run.
      allowed: whether differences are merely returned.

    Returns:
      the differences, a line each.

    Raises:
      UserError: with the differences.
    """
    path = os.path.join(model_dir, CONFIGURATION_FILE)  # noqa: PTH118
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        before = _compared(json.loads(file.read()))
    now = configuration()
    lines = [
        f"  {name}: was {before.get(name, 'not set')}, is {now.get(name, 'not set')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if lines and not allowed:
        raise UserError(
            f"{model_dir} holds a run of another configuration:\n"
            + "\n".join(lines)
            + "\nName another --model_dir, or go on with the new values by --allow_config_change"
        )
    return lines


def save_configuration(model_dir: str) -> None:
    """Records the configuration, and gin's own `operative_config.gin`."""
    files = {
        CONFIGURATION_FILE: json.dumps(configuration(), indent=1) + "\n",
        "operative_config.gin": gin.operative_config_str() + "\n",
    }
    for name, text in files.items():
        path = os.path.join(model_dir, name)  # noqa: PTH118
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            file.write(text)
        tf.io.gfile.rename(path + ".new", path, overwrite=True)
