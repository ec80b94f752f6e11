"""Finds the checkpoint that a run reads, in any format, and exports the trained model.

    arguments, checkpoint = find(flags)         # --checkpoint, run.init_checkpoint
    export(flags, vocabulary)                   # --export_hf

`--checkpoint` names a checkpoint. Training starts from its weights. All other modes read it instead
of a checkpoint in the model directory. It may have any format, and so may `run.init_checkpoint`. If
a checkpoint is not in Mesh TensorFlow's format, it is converted once, to `converted/` in the model
directory.
"""

import contextlib
import os
import sys
from typing import Any

from t0.checkpoints import (
    adapter_folders,
    as_mesh_checkpoint,
    checkpoint_files,
    open_source,
    recognise,
    tokenizer,
)
from t0.compat import gin, mesh_utils
from t0.config.bindings import bound, is_configured
from t0.errors import UserError
from t0.run import run_files
from t0.run.preflight import check_sizes, run_mode
from t0.training import export as export_hf

_INITIAL_PARAMETERS = ("run.init_checkpoint", "tpu_estimator_model_fn.init_checkpoint")
# With the step -1, every mode reads the checkpoint that is passed to it and no other.
_STEPS = ("eval_checkpoint_step", "export_checkpoint_step")


def find(flags: Any, vocabulary: Any = None) -> tuple[dict[str, Any], str | None]:
    """Finds the checkpoint that the run reads, and converts it if necessary.

    Args:
      flags: the parsed flags.
      vocabulary: the run's vocabulary or (inputs, targets). It is compared with the checkpoint's
        vocabulary.

    Returns:
      arguments for Mesh TensorFlow's `run`, and the checkpoint that the run's mode reads. The
      checkpoint is None if the mode reads a checkpoint in the model directory.

    Raises:
      UserError: the checkpoint does not exist, cannot be converted, or has another tokenizer.
    """
    if run_mode() == "train":
        if is_configured("t0.adapter") and not flags.save_spec:
            raise UserError(
                "t0.adapter is set, and only the PyTorch engine trains adapters; add --engine=torch"
            )
        return _initial_checkpoint(flags, vocabulary), None
    checkpoint_given = flags.checkpoint or _foreign_checkpoint_of_run_file()
    if not checkpoint_given:
        if flags.adapter:
            raise UserError("--adapter needs its base: name it with --checkpoint")
        return {}, None
    _check_tokenizer(checkpoint_given, flags, vocabulary)
    folder = run_files.output_dir() or flags.model_dir
    if flags.adapter:
        checkpoint_given = adapter_folders.join(flags.adapter, checkpoint_given, folder)
    if read_elsewhere(flags):
        check_sizes(checkpoint_given)
        gin.bind_parameter("get_variable_dtype.master_dtype", "float32")
        return dict.fromkeys(_STEPS, -1), checkpoint_given
    checkpoint = _convert_to_mesh(checkpoint_given, folder, slots=False)
    if dtype := checkpoint_files.weights_dtype(checkpoint):
        gin.bind_parameter("get_variable_dtype.master_dtype", dtype)
    return dict.fromkeys(_STEPS, -1), checkpoint


def read_elsewhere(flags: Any) -> bool:
    """Returns whether this run leaves reading the checkpoints to another engine.

    This is the case if the run only writes a specification for another engine, or if another engine
    has already decoded the texts to evaluate. The other engine reads every format.
    """
    return bool(flags.save_spec or bound("t0.evaluation.decoded"))


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


def _initial_checkpoint(flags: Any, vocabulary: Any) -> dict[str, Any]:
    """Returns the argument of `run` that names the initial checkpoint; {} if none is needed."""
    checkpoint = flags.checkpoint or next(filter(None, map(bound, _INITIAL_PARAMETERS)), None)
    if not checkpoint or checkpoint_files.latest(flags.model_dir):
        return {}  # training resumes from its own latest checkpoint
    _check_tokenizer(checkpoint, flags, vocabulary)
    if is_configured("t0.adapter"):  # the engine reads every format, and records this path
        check_sizes(checkpoint)
        return {"init_checkpoint": checkpoint}
    converted = _convert_to_mesh(checkpoint, flags.model_dir, slots=True)
    # If gin already binds the same value, no argument is needed, and the operative config has the
    # value.
    return {} if converted in map(bound, _INITIAL_PARAMETERS) else {"init_checkpoint": converted}


def _check_tokenizer(path: str, flags: Any, vocabulary: Any) -> None:
    """Checks that a Hugging Face folder's tokenizer gives the same ids as the run's vocabulary.

    Raises:
      UserError: the ids differ, and --vocab is not set.
    """
    model = vocabulary and getattr(
        mesh_utils.inputs_vocabulary(vocabulary), "sentencepiece_model_file", None
    )
    if not model or "://" in path or recognise(path)[0] != "hf":
        return
    with contextlib.closing(open_source(path)) as source:
        line = tokenizer.difference(source.facts, model)
    if line and not flags.vocab:
        raise UserError(f"{line}. If this is intended, set --vocab={model}")
    if line:
        print(f"note: {line}", file=sys.stderr)


def _foreign_checkpoint_of_run_file() -> str | None:
    """Returns the macro CHECKPOINT_PATH; None if that checkpoint has Mesh TensorFlow's format."""
    checkpoint = bound("%CHECKPOINT_PATH", evaluate=False)
    if not isinstance(checkpoint, str) or "://" in checkpoint:
        return None
    try:
        return checkpoint if recognise(checkpoint)[0] != "mtf" else None
    except UserError:  # a later check of the macro reports this error
        return None


def _convert_to_mesh(path: str, folder: str, *, slots: bool) -> str:
    check_sizes(path)
    workdir = os.path.join(folder, "converted")  # noqa: PTH118 (gs:// paths)
    return as_mesh_checkpoint(path, workdir, slots=slots)
