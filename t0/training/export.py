"""Writes the last checkpoint of a run as a Hugging Face folder (`--export_hf`).

    check("/models/tiny_hf", vocabulary=vocabulary)      # before training
    export("/models/tiny_hf", model_dir="/models/tiny", vocabulary=vocabulary)     # after training

The model is the one that gin configures for Mesh TensorFlow's `run`.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t0.checkpoints import ConversionOptions, checkpoint_files, convert, operative_config, tokenizer
from t0.checkpoints.conversion import check_destination
from t0.compat import mesh_utils
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError, say
from t0.files.any_path import any_path


def check(folder: str, *, vocabulary: Any) -> None:
    """Checks, before training starts, that the trained model can be exported.

    Args:
      folder: the folder to write, which must not exist.
      vocabulary: one vocabulary, or (inputs, targets).

    Raises:
      UserError: if the folder exists, if its disk is full, or if the epsilon or the vocabulary
        cannot be exported.
    """
    check_destination(any_path(folder), 0)
    operative_config.check_epsilon(bound(operative_config.EPSILON), "--export_hf: the run")
    with _tokenizer(mesh_utils.inputs_vocabulary(vocabulary)) as path:
        if path and (reason := tokenizer.unexportable(path)):
            raise UserError(
                f"--export_hf: the vocabulary {path} {reason}. Train without the flag, then write "
                "only the weights: t0 convert MODEL_DIR FOLDER --to hf"
            )


def export(folder: str, *, model_dir: str, vocabulary: Any) -> None:
    """Writes the last checkpoint and the tokenizer files into a new folder, and prints a line.

    Args:
      folder: the folder to write, which must not exist.
      model_dir: the run's model directory.
      vocabulary: one vocabulary, or (inputs, targets).

    Raises:
      UserError: if there is no checkpoint, or if the checkpoint cannot be converted.
    """
    checkpoint = checkpoint_files.latest(model_dir)
    if checkpoint is None:
        raise UserError(f"--export_hf: {model_dir} holds no checkpoint")
    with _tokenizer(mesh_utils.inputs_vocabulary(vocabulary)) as pieces:
        options = ConversionOptions(tokenizer=pieces)
        report = convert(checkpoint, folder, to="hf", options=options)
    say(
        f"exported {checkpoint} to {folder}: {len(report.rows):,} tensors, "
        f"{report.nbytes / 1e9:,.2f} GB" + ("" if pieces else ", no tokenizer")
    )


@contextlib.contextmanager
def _tokenizer(vocabulary: Any) -> Iterator[Path | None]:
    """Yields a local file with the vocabulary's SentencePiece model; None if it has no model."""
    path = getattr(vocabulary, "sentencepiece_model_file", None)
    if path is None or "://" not in path:
        yield path and Path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        tf.io.gfile.copy(path, f"{folder}/spiece.model")
        yield Path(folder) / "spiece.model"
