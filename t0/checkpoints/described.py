"""Prepares a checkpoint of any format for a run, with its gin file and its vocabulary.

    path, source = locate("/models/t0_3b")
    ready = describe(path, source, Path("out"))
    ready.checkpoint        # "out/converted/t0_3b-5f3c.../model.ckpt-0"
    ready.gin_file          # "out/converted/t0_3b-5f3c.../operative_config.gin"
    ready.vocabulary        # "/models/t0_3b/spiece.model"

The shape of a T5 encoder-decoder is inferred from its tensors. A Mesh TensorFlow checkpoint of any
other model needs its operative config in the same folder.
"""

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

from t0.checkpoints import conversion, hub_models, look_alikes, operative_config, tokenizer
from t0.checkpoints.formats import BFLOAT16, CheckpointSource
from t0.checkpoints.shape import ModelShape
from t0.errors import UserError
from t0.files.any_path import any_path

MODEL_FILE = "model.gin"


@dataclasses.dataclass(frozen=True)
class Described:
    """A checkpoint that is ready for a run.

    Attributes:
      source: the origin of the checkpoint, which is written into the results: its path, or its hub
        name with the revision.
      checkpoint: the prefix of a Mesh TensorFlow checkpoint.
      gin_file: the gin file of the checkpoint's model.
      vocabulary: the path of the checkpoint's SentencePiece model, or None.
      model: the model's shape; None if it is not a T5 encoder-decoder.
    """

    source: str
    checkpoint: str
    gin_file: str
    vocabulary: str | None
    model: ModelShape | None


def locate(path: str) -> tuple[str, str]:
    """Returns a checkpoint's path and its origin. If `path` is a hub name, downloads the model.

    Raises:
      UserError: if the checkpoint does not exist.
    """
    if hub_models.is_hub_name(path):
        print(f"{path} is not a path here: looking for it on the Hugging Face hub", file=sys.stderr)
        folder, source = hub_models.fetch(path)
        look_alikes.check(any_path(folder))
        return folder, source
    look_alikes.check(any_path(path))
    return path, str(Path(path).absolute()) if "://" not in path else path


def describe(path: str, source: str, output: Path, *, vocabulary: str | None = None) -> Described:
    """Prepares a checkpoint for a run: converts it if necessary, and finds or writes its gin file.

    Args:
      path: a checkpoint in any format.
      source: the checkpoint's origin, as `locate` returns it.
      output: the folder for the gin file and for a converted checkpoint.
      vocabulary: the SentencePiece model to use instead of the checkpoint's.

    Raises:
      UserError: if there is no checkpoint, if it is not a T5, if `output` cannot be written, or if
        `vocabulary` is None but the checkpoint's tokenizer cannot be read.
    """
    kind, prefix_or_folder = conversion.recognise(path)
    if kind != "mtf":
        with contextlib.closing(conversion.open_source(path, keep_slots=False)) as opened:
            model, facts = opened.model, opened.facts
        if line := tokenizer.difference(facts, vocabulary):
            print(f"note: {line}", file=sys.stderr)
        elif facts.tokenizer_fault and not vocabulary:
            raise UserError(facts.tokenizer_fault)
        prefix = conversion.as_mesh_checkpoint(
            path, output / "converted", slots=False, progress=sys.stderr.isatty()
        )
        config = os.path.join(os.path.dirname(prefix), operative_config.FILE)  # noqa: PTH118,PTH120
        pieces = facts.tokenizer
        if pieces and pieces.suffix == ".json":  # the converted folder has a spiece.model
            pieces = os.path.join(os.path.dirname(prefix), tokenizer.FILE)  # noqa: PTH118,PTH120
        return Described(source, prefix, config, pieces and str(pieces), model)
    config = Path(prefix_or_folder).parent / operative_config.FILE
    try:
        with contextlib.closing(conversion.open_source(path, keep_slots=False)) as opened:
            gin_file = str(_write(opened, output / MODEL_FILE))
            model, pieces = opened.model, opened.facts.tokenizer
    except UserError as error:
        if not config.is_file():
            raise
        print(f"note: {error}; its model is read from {config}", file=sys.stderr)
        gin_file, model, pieces = str(config), None, None
    return Described(source, prefix_or_folder, gin_file, pieces and str(pieces), model)


def _write(source: CheckpointSource, path: Path) -> Path:
    facts = source.facts
    activation = facts.activation
    if activation is None:
        activation = "gelu" if source.model.gated else "relu"
        print(
            f"note: {source.path} has no operative_config.gin that names its feed-forward "
            f"activation: using {activation}, as in {'T5 1.1' if source.model.gated else 'T5'}",
            file=sys.stderr,
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        dtypes = {entry.dtype for entry in source.parameters.values()}
        operative_config.write_operative(
            path,
            source.model,
            activation=activation,
            dropout_rate=None,
            master_dtype="bfloat16" if dtypes == {BFLOAT16} else "float32",
            legacy_norms=facts.legacy_norms,
            source=f"the tensors of {Path(source.path).name!r}",
        )
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written: {error.strerror} (--output)") from error
    return path
