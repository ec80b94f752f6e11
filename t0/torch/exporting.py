"""Converts a checkpoint of the PyTorch engine for Mesh TensorFlow or Hugging Face.

    to_mesh(Path("/models/tiny/torch.ckpt-20"), "/models/tiny_mtf")   # with slots and position
    to_hugging_face(Path("/models/tiny/torch.ckpt-20"), "/models/tiny_hf")

The TensorFlow engine can resume the run in the folder that `to_mesh` writes. Its next batch is the
one that the PyTorch engine would have used. Tensors are converted one at a time, so the whole model
is never in memory.
"""

import contextlib
import shutil
import sys
import uuid
from pathlib import Path

import numpy as np

from t0.checkpoints import ConversionOptions, convert, names
from t0.checkpoints.conversion import check_destination
from t0.checkpoints.torch_shards import TorchSource, read_record
from t0.errors import UserError
from t0.files import publishing
from t0.training import model_directory, resume_file


def to_mesh(checkpoint: Path, folder: str, *, dtype: str = "float32") -> str:
    """Writes a model directory of Mesh TensorFlow; returns a line that describes it.

    Args:
      checkpoint: the folder of a checkpoint of this engine.
      folder: the folder to write, new or empty.
      dtype: the type of the weights in the new checkpoint. It must be equal to the gin parameter
        `get_variable_dtype.master_dtype` of the run. If the type has fewer bits than float32, the
        missing bits of each weight are written to the resume file.

    Raises:
      UserError: if the checkpoint is damaged, or the folder cannot be written.
    """
    target = Path(folder)
    check_destination(target, 0)
    record = read_record(checkpoint)
    step = record["step"]
    resume = {name: value for name, value in record.items() if name in resume_file.FIELDS}
    staging = target.with_name(f".{target.name}.{uuid.uuid4().hex}.{publishing.unfinished_tag()}")
    try:
        options = ConversionOptions(dtype=dtype)
        report = convert(checkpoint, staging, to="mtf", options=options)
        resume["own"] = [step]
        resume_file.write(f"{staging}/model.ckpt-{step}", resume, _low_halves(checkpoint, dtype))
        configuration_file = checkpoint.parent / model_directory.CONFIGURATION_FILE
        if configuration_file.is_file():  # the next start compares its configuration with this file
            shutil.copy(configuration_file, staging)
        staging.replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return f"exported {checkpoint} to {target}: {len(report.rows):,} tensors for Mesh TensorFlow"


def _low_halves(checkpoint: Path, dtype: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a resume file: the bits of weights that type `dtype` does not have."""
    if dtype == "float32":
        return {}
    arrays: dict[str, np.ndarray] = {}
    with contextlib.closing(TorchSource(checkpoint, keep_slots=False)) as source:
        for name in source.parameters:
            native = names.to_mtf(name, legacy_norms=source.facts.legacy_norms)
            arrays |= resume_file.low_halves(f"{native}/0", source.load(name))
    return arrays


def to_hugging_face(checkpoint: Path, folder: str) -> str:
    """Writes a Hugging Face folder with the tokenizer's files; returns a line that describes it.

    Args:
      checkpoint: the folder of a checkpoint of this engine.
      folder: the folder to write, new or empty.

    Raises:
      UserError: if the checkpoint is damaged, or the folder cannot be written.
    """
    report = convert(checkpoint, folder, to="hf")
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    return f"exported {checkpoint} to {folder}: {len(report.rows):,} tensors for Hugging Face"
