"""Checks of a run before anything is built: its mode, batch and checkpoints fit together.

    check_run("/models/tiny", vocabulary=vocabulary, mesh_shape="")   # UserError, or notes

The values are those that gin has bound; what Mesh TensorFlow would answer with a traceback,
minutes later or not at all, is said here.
"""

from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils, mtf
from t0.errors import UserError, unknown_name
from t0.mesh.batch import check_batch
from t0.training import choices, macros
from t0.training.config import bound
from t0.training.loop import train_model

# run.mode -> the function whose mixture it reads, if any.
MODES: dict[str, str | None] = {
    "train": "mesh_train_dataset_fn",
    "eval": "mesh_eval_dataset_fn",
    "score_eval": "mesh_eval_dataset_fn",
    "perplexity_eval": "mesh_eval_dataset_fn",
    "score_from_dataset": "mesh_eval_dataset_fn",
    "score_from_strings": None,
    "infer": None,
    "export": None,
    "export_infer": None,
    "export_score": None,
}
# Modes of Mesh TensorFlow in which eval_checkpoint_step = None means: wait for checkpoints.
_WAITING = ("eval", "perplexity_eval", "score_from_dataset", "score_from_strings")


def run_mode() -> str:
    """Returns the configured mode.

    Raises:
      UserError: for an unknown one, with the nearest.
    """
    mode = bound("run.mode", "train")
    if mode not in MODES:
        raise unknown_name("mode", str(mode), MODES, "(run.mode)")
    return mode


def check_run(
    model_dir: str, *, vocabulary: Any, mesh_shape: Any, checkpoint: str | None = None
) -> list[str]:
    """Checks the configured run.

    Args:
      model_dir: where its checkpoints are or will be.
      vocabulary: one, or (inputs, targets).
      mesh_shape: of the run.
      checkpoint: what another mode than training reads instead of those in `model_dir`.

    Returns:
      notes that are worth a line each.

    Raises:
      UserError: if the run cannot work.
    """
    mode = run_mode()
    for parameter in choices.KINDS:
        choices.check_not_text(parameter, macros.literal(f"run.{parameter}"))
    _check_dataset_function(mode)
    lengths = bound("run.sequence_length")
    lengths = dict.fromkeys(("inputs", "targets"), lengths) if isinstance(lengths, int) else lengths
    if lengths is None and mode not in ("eval", "score_eval"):
        raise UserError(f"run.sequence_length must be set in mode '{mode}'")
    check_batch(
        bound("run.batch_size", ("tokens_per_replica", 2048)),
        sequence_length=lengths,
        mesh_shape=mtf.convert_to_shape(mesh_shape),
        layout_rules=mtf.convert_to_layout_rules(bound("run.layout_rules")),
    )
    if checkpoint and mode != "train":
        check_vocabulary(checkpoint, vocabulary)
        return []
    check = _check_training if mode == "train" else _check_checkpoints
    return check(model_dir, vocabulary)


def _check_dataset_function(mode: str) -> None:
    own_loop = bound("run.train_model_fn") not in (None, train_model)
    name, file = {
        "train": ("run.train_dataset_fn", "dataset.gin"),
        "eval": ("run.eval_dataset_fn", "eval.gin"),
        "score_eval": ("run.eval_dataset_fn", "score_eval.gin"),
        "perplexity_eval": ("run.eval_dataset_fn", "perplexity_eval.gin"),
        "score_from_dataset": ("score_from_dataset.score_dataset_fn", "score_from_task.gin"),
    }.get(mode, (None, None))
    if name and bound(name) is None and not (mode == "train" and own_loop):
        raise UserError(f"{name} is not set, so mode '{mode}' has no data: add --gin_file={file}")


def _check_training(model_dir: str, vocabulary: Any) -> list[str]:
    split = bound("run.dataset_split", "train")
    if split != "train":
        raise UserError(f"training reads the split 'train', run.dataset_split is '{split}'")
    latest = checkpoint_files.latest(model_dir)
    if latest:  # Training goes on from it and leaves init_checkpoint alone.
        check_vocabulary(latest, vocabulary)
        return []
    checkpoint = bound("run.init_checkpoint") or bound("tpu_estimator_model_fn.init_checkpoint")
    if not checkpoint:
        return []
    check_vocabulary(checkpoint, vocabulary)
    done, wanted = checkpoint_files.global_step(checkpoint), bound("run.train_steps")
    if isinstance(wanted, int) and wanted <= done:
        raise UserError(
            f"run.train_steps = {wanted:,} counts from the start of pretraining, and {checkpoint} "
            f"is at step {done:,}: nothing would be trained. For {wanted:,} steps more, "
            f"run.train_steps = {done + wanted}"
        )
    return [f"starting from {checkpoint}, step {done:,}"]


def _check_checkpoints(model_dir: str, vocabulary: Any) -> list[str]:
    mode = run_mode()
    name = "export_checkpoint_step" if mode.startswith("export") else "eval_checkpoint_step"
    wanted = bound(f"run.{name}")
    if wanted is None and mode in _WAITING:
        latest = checkpoint_files.steps(model_dir)[-1:]
        notes = [
            f"{name} is not set: waiting for checkpoints in {model_dir}, without end. Set it to a "
            "step or to -1, the latest"
        ]
    else:
        latest = checkpoint_files.select_steps(model_dir, wanted)[-1:]
        asked = wanted if isinstance(wanted, list | tuple) else [wanted]
        notes = [
            f"no checkpoint of step {step:,}: the closest, {closest:,}, is taken"
            for step in asked
            if isinstance(step, int) and step > 0
            for closest in checkpoint_files.select_steps(model_dir, step)
            if closest != step
        ]
    for step in latest:
        check_vocabulary(checkpoint_files.checkpoint_path(model_dir, step), vocabulary)
    return notes


def check_vocabulary(checkpoint: str, vocabulary: Any) -> None:
    """Checks that `vocabulary`, one or (inputs, targets), is of the size that `checkpoint` has.

    Raises:
      UserError: with both sizes.
    """
    inputs = mesh_utils.inputs_vocabulary(vocabulary)
    divisor = bound("encoder/Unitransformer.vocab_divisor") or bound("Unitransformer.vocab_divisor")
    checkpoint_files.check_vocabulary(
        checkpoint,
        vocabulary=inputs.vocab_size,
        divisor=divisor or 128,
        source=getattr(inputs, "sentencepiece_model_file", str(inputs)),
    )
