"""Prepares the checkpoint that a checked run reads, and exports the trained model.

    arguments, checkpoint = find(run)           # --checkpoint, run.init_checkpoint
    export(flags, vocabulary)                   # --export_hf

The checkpoint may have any format. If it is not in Mesh TensorFlow's format, it is converted once,
to `converted/` in the model directory.
"""

import os
from typing import Any

from t0.checkpoints import adapter_folders, as_mesh_checkpoint, checkpoint_files
from t0.compat import gin
from t0.config.bindings import bound, is_configured
from t0.errors import UserError
from t0.run import run_files
from t0.run.parsed_run import INITIAL_PARAMETERS, ParsedRun
from t0.training import export as export_hf

# With the step -1, every mode reads the checkpoint that is passed to it and no other.
_STEPS = ("eval_checkpoint_step", "export_checkpoint_step")


def find(run: ParsedRun) -> tuple[dict[str, Any], str | None]:
    """Finds the checkpoint that the run reads, and converts it if necessary.

    Args:
      run: a run that has passed its checks.

    Returns:
      arguments for Mesh TensorFlow's `run`, and the checkpoint that the run's mode reads. The
      checkpoint is None if the mode reads a checkpoint in the model directory.

    Raises:
      UserError: the checkpoint cannot be converted.
    """
    if run.mode == "train":
        return _initial_checkpoint(run), None
    checkpoint = run.named_checkpoint
    if not checkpoint:
        return {}, None
    folder = run_files.output_dir() or run.flags.model_dir
    if run.flags.adapter:
        checkpoint = adapter_folders.join(run.flags.adapter, checkpoint, folder)
    if run.read_elsewhere:
        gin.bind_parameter("get_variable_dtype.master_dtype", "float32")
        return dict.fromkeys(_STEPS, -1), checkpoint
    checkpoint = _convert_to_mesh(checkpoint, folder, slots=False)
    if dtype := checkpoint_files.weights_dtype(checkpoint):
        gin.bind_parameter("get_variable_dtype.master_dtype", dtype)
    return dict.fromkeys(_STEPS, -1), checkpoint


def check_export(flags: Any, vocabulary: Any, *, trains: bool) -> None:
    """Checks that the model can be exported at the end of the run.

    Raises:
      UserError: the model cannot be exported.
    """
    if not trains:
        raise UserError(
            f"--export_hf is for training; to export a trained model: t0 convert "
            f"{flags.model_dir} {flags.export_hf} --to hf"
        )
    export_hf.check(flags.export_hf, vocabulary=vocabulary)


def export(flags: Any, vocabulary: Any) -> None:
    """Writes the trained model to the folder in `--export_hf`.

    Raises:
      UserError: the export fails.
    """
    export_hf.export(flags.export_hf, model_dir=flags.model_dir, vocabulary=vocabulary)


def _initial_checkpoint(run: ParsedRun) -> dict[str, Any]:
    """Returns the argument of `run` that names the initial checkpoint; {} if none is needed."""
    checkpoint = run.named_checkpoint
    if not checkpoint or run.latest_checkpoint:
        return {}  # training resumes from its own latest checkpoint
    if is_configured("t0.adapter"):  # the engine reads every format, and records this path
        return {"init_checkpoint": checkpoint}
    converted = _convert_to_mesh(checkpoint, run.flags.model_dir, slots=True)
    # If gin already binds the same value, no argument is needed, and the operative config has the
    # value.
    return {} if converted in map(bound, INITIAL_PARAMETERS) else {"init_checkpoint": converted}


def _convert_to_mesh(path: str, folder: str, *, slots: bool) -> str:
    workdir = os.path.join(folder, "converted")  # noqa: PTH118 (gs:// paths)
    return as_mesh_checkpoint(path, workdir, slots=slots)
