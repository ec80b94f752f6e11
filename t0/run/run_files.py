"""Defines functions with which the gin files in `gin/runs/` get folders and checkpoints.

    model_dir(None)                                         # the macro MODEL_DIR, or None
    folder_of_checkpoint("/models/t5/model.ckpt-100")       # "/models/t5"
    step_of_checkpoint("/models/t5/model.ckpt-100")         # 100

In `runs/eval.gin` and `runs/infer.gin`, the macro `CHECKPOINT_PATH` names the checkpoint. But Mesh
TensorFlow needs the folder and the step of the checkpoint. So these files call
`folder_of_checkpoint` and `step_of_checkpoint`.
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
    """Returns the model directory from the flag or the macro MODEL_DIR; None if neither is set.

    Args:
      flag: the value of --model_dir, or None.

    Raises:
      UserError: the flag and the macro name different folders, or the macro is not text.
    """
    # If gin evaluates a macro, it also writes the macro to the operative config. The operative
    # config must not contain this folder. So a macro whose value is a text is not evaluated.
    macro = bound("%MODEL_DIR", evaluate=False)
    if isinstance(macro, gin_config.ConfigurableReference):
        macro = bound("%MODEL_DIR")
    if macro is None or macro is gin.REQUIRED:
        if flag is not None:  # for gin files that read the macro
            gin.bind_parameter("%MODEL_DIR", flag)
        return flag
    if not isinstance(macro, str) or not macro:
        raise UserError(f"MODEL_DIR is {macro!r}; expected the path of a folder, as text in quotes")
    if flag is not None and os.path.normpath(flag) != os.path.normpath(macro):
        raise UserError(
            f"--model_dir={flag} and the gin macro MODEL_DIR = {macro!r} differ: set only one"
        )
    return macro


def output_dir() -> str | None:
    """Returns the configured output folder of an evaluation or inference; None if none is set."""
    named = (bound(f"%{name}", evaluate=False) for name in _OUTPUTS)
    return next((name for name in named if isinstance(name, str)), None)


@gin.configurable(module="t0")
def folder_of_checkpoint(checkpoint: str) -> str:
    """Returns the folder of a checkpoint.

    Args:
      checkpoint: the checkpoint's path up to the step, such as /models/t5/model.ckpt-100. If it is
        a folder, it stands for the latest checkpoint in the folder.

    Raises:
      UserError: `checkpoint` is not text.
    """
    if not isinstance(checkpoint, str) or not checkpoint:
        raise UserError(
            f"CHECKPOINT_PATH is {checkpoint!r}; expected a path in quotes, such as "
            "'/models/t5/model.ckpt-1000000'"
        )
    if not _match_checkpoint_name(checkpoint):
        return checkpoint
    return os.path.dirname(checkpoint) or "."  # noqa: PTH120


@gin.configurable(module="t0")
def step_of_checkpoint(checkpoint: str) -> int:
    """Returns the step of a checkpoint, or the step of the latest checkpoint in a folder.

    Raises:
      UserError: the checkpoint does not exist. (Mesh TensorFlow would read the checkpoint with the
        closest step instead.)
    """
    folder = folder_of_checkpoint(checkpoint)
    name_match, steps = _match_checkpoint_name(checkpoint), checkpoint_files.steps(folder)
    step = int(name_match["step"]) if name_match else checkpoint_files.latest_step(folder)
    if step not in steps:
        last_steps = ", ".join(map(str, steps[-5:])) or "none"
        raise UserError(
            f"CHECKPOINT_PATH = {checkpoint!r} does not exist: {folder} has checkpoints of the "
            f"steps: {last_steps}"
        )
    return step


@gin.configurable(module="t0")
def type_of_checkpoint(checkpoint: str) -> str:
    """Returns the type of a checkpoint's weights, for `get_variable_dtype.master_dtype`."""
    folder, step = folder_of_checkpoint(checkpoint), step_of_checkpoint(checkpoint)
    path = checkpoint_files.checkpoint_path(folder, step)
    return checkpoint_files.weights_dtype(path) or "float32"


def _match_checkpoint_name(checkpoint: str) -> re.Match[str] | None:
    return _NAME.fullmatch(os.path.basename(checkpoint))  # noqa: PTH119
