"""Preflight checks: mode, data, batch and checkpoints fit together, before anything is built.

    run_mode()                                                        # "train"
    check_mixtures({"vocab": ["/v/spiece.model"]})                    # UserError, or notes
    check_run("/models/tiny", vocabulary=vocabulary, mesh_shape="")   # UserError, or notes

The checked values are those that gin has bound. Mesh TensorFlow would end with a traceback for the
same mistakes, minutes later, or would not notice them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils, mtf
from t0.config.bindings import bound
from t0.config.explain import KINDS, check_not_text
from t0.config.flags import GIN_MODES
from t0.errors import UserError, unknown_name
from t0.feeding import opening
from t0.mesh.batch import check_batch
from t0.training.estimator import train_model

# run.mode -> the dataset function whose mixture the mode reads.
_EVALUATES = ("eval", "score_eval", "perplexity_eval", "score_from_dataset")
DATASET_FUNCTIONS = {"train": "mesh_train_dataset_fn"}
DATASET_FUNCTIONS |= dict.fromkeys(_EVALUATES, "mesh_eval_dataset_fn")
# Modes in which Mesh TensorFlow waits for new checkpoints where eval_checkpoint_step is None.
_WAITING = ("eval", "perplexity_eval", "score_from_dataset", "score_from_strings")


def run_mode() -> str:
    """Returns the configured mode.

    Raises:
      UserError: for an unknown mode, with the nearest.
    """
    mode = bound("run.mode", "train")
    if mode not in GIN_MODES:
        raise unknown_name("mode", str(mode), GIN_MODES, "(run.mode)")
    return mode


def check_mixtures(settings: Mapping[str, Sequence[str]]) -> list[str]:
    """Checks that the mixtures of the configured mode exist, and are cached where they must be.

    Args:
      settings: flag -> values; the caching command must be given the same flags.

    Returns:
      notes about the data, to be printed one to a line.

    Raises:
      UserError: if a mixture, its cache or its split is missing.
    """
    mode = run_mode()
    notes: list[str] = []
    for function in ("get_vocabulary", *filter(None, [DATASET_FUNCTIONS.get(mode)])):
        name = bound(f"{function}.mixture_or_task_name")
        if name is None:
            continue
        opening.known_mixture(name)
        if function == "get_vocabulary":
            continue
        if bound(f"{function}.use_cached", False):
            opening.require_cached(name, function=function, settings=settings)
        split = bound("run.dataset_split", "train")
        opening.require_split(name, split)
        # Only training loses the tokens that are cut off a target.
        lengths = bound("run.sequence_length") if mode == "train" else None
        notes += opening.notes(name, split, lengths)
    return notes


def check_run(
    model_dir: str, *, vocabulary: Any, mesh_shape: Any, checkpoint: str | None = None
) -> list[str]:
    """Checks the configured run.

    Args:
      model_dir: the folder of its checkpoints.
      vocabulary: one vocabulary, or (inputs, targets).
      mesh_shape: the run's mesh.
      checkpoint: the checkpoint that a mode other than training reads; None for those in
        `model_dir`.

    Returns:
      notes, to be printed one to a line.

    Raises:
      UserError: if the run cannot work.
    """
    mode = run_mode()
    for parameter in KINDS:
        check_not_text(parameter, bound(f"run.{parameter}", evaluate=False))
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
    if latest:  # Training resumes from it and does not read init_checkpoint.
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
        requested = wanted if isinstance(wanted, list | tuple) else [wanted]
        notes = [
            f"no checkpoint of step {step:,}: the closest, {closest:,}, is taken"
            for step in requested
            if isinstance(step, int) and step > 0
            for closest in checkpoint_files.select_steps(model_dir, step)
            if closest != step
        ]
    for step in latest:
        check_vocabulary(checkpoint_files.checkpoint_path(model_dir, step), vocabulary)
    return notes


def check_vocabulary(checkpoint: str, vocabulary: Any) -> None:
    """Checks that a vocabulary has as many ids as a checkpoint's embedding.

    Args:
      checkpoint: a checkpoint prefix.
      vocabulary: one vocabulary, or (inputs, targets).

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
