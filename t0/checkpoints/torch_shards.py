"""The PyTorch engine's checkpoints, read without PyTorch: safetensors files of rows.

    source = TorchSource(find_folder(Path("/models/tiny"), step=None))
    source.load("encoder/rms_norm/scale_slot_v")

A checkpoint is a folder `torch.ckpt-STEP` that `torch.distributed.checkpoint` has written: each
process's file holds its rows of every weight ("weights/<canonical name>", in PyTorch's orientation)
and of every slot ("slots/<Mesh TensorFlow's name>"), and its header the rows' place. `resume.json`
lists the files and what is known of the model.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from t0.checkpoints import names
from t0.checkpoints.formats import (
    ACTIVATIONS,
    FLOAT32,
    Entry,
    Facts,
    Source,
    checked_rate,
    checked_step,
    read_json,
)
from t0.errors import UserError
from t0.files.names import checked_name
from t0.files.untrusted import parsed_json

RECORD = "resume.json"
PLACES = "DCP_SHARDING_INFO"  # the header's field with the rows' places
_NAME = re.compile(r"torch\.ckpt-([0-9]{1,10})")


class _Part(NamedTuple):
    """Rows of a tensor in a file."""

    first: int
    shape: tuple[int, ...]
    path: Path


def steps(model_dir: Path) -> dict[int, Path]:
    """Returns step -> folder of the complete checkpoints of a model directory, ascending."""
    if not model_dir.is_dir():
        return {}
    found = {
        int(match[1]): path
        for path in model_dir.iterdir()
        if (match := _NAME.fullmatch(path.name)) and (path / RECORD).is_file()
    }
    return dict(sorted(found.items()))


def find_folder(path: Path, step: int | None) -> Path | None:
    """Returns the checkpoint's folder that `path` names, None if it names none.

    Args:
      path: a model directory, or the folder of a checkpoint.
      step: the step of the checkpoint in a directory; the last by default.
    """
    if (path / RECORD).is_file():
        return path
    found = steps(path)
    return found.get(max(found, default=0) if step is None else step)


class TorchSource(Source):
    """A checkpoint of the PyTorch engine.

    Args:
      folder: its folder.
      keep_slots: whether the optimizer's state is read.
    """

    kind = "torch"

    def __init__(self, folder: Path, *, keep_slots: bool = True) -> None:
        super().__init__(str(folder))
        record = read_json(folder / RECORD)
        self._parts = _parts(folder, record)
        unknown = []
        for key in self._parts:
            group, _, native = key.partition("/")
            name = names.from_mtf(native)
            slot = group == "slots"
            if slot and (not keep_slots or name is None):
                self.unused.append((native, "a slot that is not read"))
            elif name is None or slot == (names.split_slot(name)[1] is None):
                unknown.append(key)
            else:
                shape = self._shape(key)
                turned = shape[::-1] if _is_transposed(name, shape) else shape
                self.entries[name] = Entry(turned, FLOAT32, key)
        self.check(unknown)
        self.facts = _facts(record, str(folder / RECORD))

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name, in canonical orientation."""
        key = self.entries[name].native
        whole = np.empty(self._shape(key), np.float32)
        for part in self._parts[key]:
            with safetensors.safe_open(part.path, "np") as file:
                whole[part.first : part.first + part.shape[0]] = file.get_tensor(key)
        return np.ascontiguousarray(whole.T) if _is_transposed(name, whole.shape) else whole

    def close(self) -> None:
        """Nothing stays open."""

    def _shape(self, key: str) -> tuple[int, ...]:
        parts = self._parts[key]
        return sum(part.shape[0] for part in parts), *parts[0].shape[1:]


def _is_transposed(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and names.row_of(name).transposed


def checked_files(folder: Path, files: object) -> list[Path]:
    """Returns the paths of a checkpoint's files; checks that each is there and has its size.

    Args:
      folder: the checkpoint's folder.
      files: name -> bytes, as its record lists them.

    Raises:
      UserError: if the record is damaged, or a file is missing or has another size.
    """
    if not isinstance(files, dict) or not files:
        raise UserError(f"{folder / RECORD} lists no files: it is damaged")
    paths = []
    for name, size in files.items():
        path = folder / checked_name(name, "file", folder / RECORD)
        there = path.stat().st_size if path.is_file() else None
        if there != size:
            got = "is missing" if there is None else f"has {there:,} bytes, not {size!r:.20}"
            raise UserError(
                f"{path} {got}: the checkpoint is damaged. To go on from an older one, remove "
                f"{folder}"
            )
        paths.append(path)
    return paths


def _parts(folder: Path, record: dict[str, Any]) -> dict[str, list[_Part]]:
    """Returns key -> its parts in order, from the headers of the files that the record lists."""
    found: dict[str, list[_Part]] = {}
    for path in checked_files(folder, record.get("files")):
        try:
            with safetensors.safe_open(path, "np") as file:
                places = parsed_json((file.metadata() or {}).get(PLACES, "{}"))
                for key in list(file.keys()):
                    shown = file.get_slice(key)
                    first = places[key]["saved_offsets"][0] if key in places else 0
                    if shown.get_dtype() != "F32" or type(first) is not int:
                        raise ValueError(f"{key} is {shown.get_dtype()} at {first!r:.20}")
                    part = _Part(first, tuple(shown.get_shape()), path)
                    found.setdefault(key, []).append(part)
        except (safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} cannot be read: {error!s:.200}") from error
    for key, parts in found.items():
        _check_tiled(folder, key, parts)
    return found


def _check_tiled(folder: Path, key: str, parts: list[_Part]) -> None:
    parts.sort()
    following = 0
    for part in parts:
        if not part.shape or part.first != following or part.shape[1:] != parts[0].shape[1:]:
            raise UserError(f"{folder}: the rows of {key!r:.100} do not fit: it is damaged")
        following += part.shape[0]


def _facts(record: dict[str, Any], where: str) -> Facts:
    model = record.get("model")
    model = model if isinstance(model, dict) else {}
    activation, pieces = model.get("activation"), model.get("vocabulary")
    if activation not in (None, *ACTIVATIONS):
        raise UserError(f"{where} names the activation {activation!r:.40}; wanted one of T5's")
    tokenizer = Path(pieces) if isinstance(pieces, str) and "://" not in pieces else None
    return Facts(
        step=checked_step(record.get("step"), where),
        activation=activation,
        dropout_rate=checked_rate(model.get("dropout_rate"), where),
        legacy_norms=model.get("legacy_norms") is True,
        tokenizer=tokenizer if tokenizer and tokenizer.is_file() else None,
    )
