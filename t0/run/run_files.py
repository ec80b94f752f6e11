"""What the macros of `gin/runs/` mean that gin cannot say itself: folders and checkpoints.

    model_dir(None)                                         # what MODEL_DIR says, else None
    folder_of_checkpoint("/models/t5/model.ckpt-100")       # "/models/t5"
    step_of_checkpoint("/models/t5/model.ckpt-100")         # 100

`runs/eval.gin` and `runs/infer.gin` name one checkpoint, `CHECKPOINT_PATH`, where Mesh TensorFlow
wants a folder and a step: the last two functions, bound by these files, take it apart.
"""

import os
import re

from t0.checkpoints import checkpoint_files
from t0.compat import gin, gin_config
from t0.config.bindings import bound
from t0.errors import UserError

_NAME = re.compile(r"model\.ckpt-(?P<step>\d+)(\.index)?")
_OUTPUTS = ("EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR")


def model_dir(flag: str | None) -> str | None:
    """Returns the model directory that the flag or the macro MODEL_DIR names, None if neither does.

    Args:
      flag: the value of --model_dir, None where it is not given.

    Raises:
      UserError: if they name two, or the macro is no text.
    """
    # What gin evaluates stands in the operative config, which is to say nothing of this folder.
    said = bound("%MODEL_DIR", evaluate=False)
    if isinstance(said, gin_config.ConfigurableReference):
        said = bound("%MODEL_DIR")
    if said is None or said is gin.REQUIRED:
        if flag is not None:  # for the files that read the macro
            gin.bind_parameter("%MODEL_DIR", flag)
        return flag
    if not isinstance(said, str) or not said:
        raise UserError(f"MODEL_DIR is {said!r}; wanted the path of a folder, as text in quotes")
    if flag is not None and os.path.normpath(flag) != os.path.normpath(said):
        raise UserError(
            f"--model_dir={flag} and the gin macro MODEL_DIR = {said!r} name two folders: give one"
        )
    return said


def output_dir() -> str | None:
    """Returns the folder that an evaluation or inference was told to write to, else None."""
    named = (bound(f"%{name}", evaluate=False) for name in _OUTPUTS)
    return next((name for name in named if isinstance(name, str)), None)


@gin.configurable(module="t0")
def folder_of_checkpoint(checkpoint: str) -> str:
    """Returns the folder that a checkpoint lies in.

    Args:
      checkpoint: its path up to the step, as in /models/t5/model.ckpt-100, or the folder itself,
        which stands for its latest checkpoint.

    Raises:
      UserError: if it is no text.
    """
    if not isinstance(checkpoint, str) or not checkpoint:
        raise UserError(
            f"CHECKPOINT_PATH is {checkpoint!r}; wanted a path in quotes, such as "
            "'/models/t5/model.ckpt-1000000'"
        )
    return (os.path.dirname(checkpoint) or ".") if _whole(checkpoint) else checkpoint  # noqa: PTH120


@gin.configurable(module="t0")
def step_of_checkpoint(checkpoint: str) -> int:
    """Returns the step of a checkpoint, or that of the latest one in a folder.

    Raises:
      UserError: if it is not there; the closest one, which Mesh TensorFlow takes, is another model.
    """
    folder = folder_of_checkpoint(checkpoint)
    whole, present = _whole(checkpoint), checkpoint_files.steps(folder)
    wanted = int(whole["step"]) if whole else max(present, default=-1)
    if wanted not in present:
        there = ", ".join(map(str, present[-5:])) or "none"
        raise UserError(
            f"CHECKPOINT_PATH = {checkpoint!r} is not there: {folder} holds checkpoints of the "
            f"steps: {there}"
        )
    return wanted


@gin.configurable(module="t0")
def type_of_checkpoint(checkpoint: str) -> str:
    """Returns the type of a checkpoint's weights, as `get_variable_dtype.master_dtype` takes it."""
    folder, step = folder_of_checkpoint(checkpoint), step_of_checkpoint(checkpoint)
    path = checkpoint_files.checkpoint_path(folder, step)
    return checkpoint_files.weights_dtype(path) or "float32"


def _whole(checkpoint: str) -> re.Match[str] | None:
    return _NAME.fullmatch(os.path.basename(checkpoint))  # noqa: PTH119
