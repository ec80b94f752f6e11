"""Reads the PyTorch engine's checkpoints without PyTorch: sharded safetensors files.

    source = TorchSource(find_folder(Path("/models/tiny"), step=None))
    source.load("encoder/rms_norm/scale_slot_v")

A checkpoint is a folder `torch.ckpt-STEP` written by `torch.distributed.checkpoint`. Each process
writes one file. The file has the process's rows of every weight ("weights/<canonical name>", in
PyTorch's orientation) and of every slot ("slots/<Mesh TensorFlow's name>"). The file's header says
which rows these are. `resume.json` has the model's settings, and lists the files with their
checksums. Another checksum in `resume.json` covers `resume.json` itself. Older checkpoints (schema
1) have no checksums, so they are read without a check.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from t0.checkpoints import names
from t0.checkpoints.formats import (
    ACTIVATIONS,
    FLOAT32,
    CheckpointFacts,
    CheckpointSource,
    TensorEntry,
    checked_rate,
    checked_step,
)
from t0.config.plain_data import Count, read_plain
from t0.errors import UserError, reading
from t0.files.paths import read_bytes, sha256
from t0.files.untrusted import checked_name, parsed_json

RECORD = "resume.json"
_CHECKSUM = "checksum"  # the record's field with the SHA-256 of all other fields
_SCHEMAS = (1, 2)  # records of schema 2 have checksums
_TYPES = {"step": Count, "files": Mapping[str, Count], "sha256": Mapping[str, str]}
_ADVICE = "To resume from an older checkpoint, remove {}"
PLACES = "DCP_SHARDING_INFO"  # the header's field with the first row of each tensor
_NAME = re.compile(r"torch\.ckpt-([0-9]{1,10})")


class _RowRange(NamedTuple):
    """A range of rows of a tensor, in one file."""

    first: int
    shape: tuple[int, ...]
    path: Path


def steps(model_dir: Path) -> dict[int, Path]:
    """Returns step -> folder of the complete checkpoints in a model directory, ascending."""
    if not model_dir.is_dir():
        return {}
    folders = {
        int(match[1]): path
        for path in model_dir.iterdir()
        if (match := _NAME.fullmatch(path.name)) and (path / RECORD).is_file()
    }
    return dict(sorted(folders.items()))


def find_folder(path: Path, step: int | None) -> Path | None:
    """Returns the checkpoint folder at or in `path`; None if there is no checkpoint.

    Args:
      path: a model directory, or the folder of a checkpoint.
      step: the step of the checkpoint in a directory; the last by default.
    """
    if (path / RECORD).is_file():
        return path
    folders = steps(path)
    return folders.get(max(folders, default=0) if step is None else step)


class TorchSource(CheckpointSource):
    """A checkpoint of the PyTorch engine.

    Args:
      folder: the checkpoint's folder.
      keep_slots: whether to read the optimizer's state.
    """

    kind = "torch"

    def __init__(self, folder: Path, *, keep_slots: bool = True) -> None:
        super().__init__(str(folder))
        record = read_record(folder)
        check_checksums(folder, record)
        self._row_ranges = _read_row_ranges(folder, record)
        unknown = []
        for key in self._row_ranges:
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
                self.entries[name] = TensorEntry(turned, FLOAT32, key)
        self.check(unknown)
        self.facts = _read_facts(record, str(folder / RECORD))

    def load(self, name: str) -> np.ndarray:
        """Returns a tensor by canonical name, in canonical orientation."""
        key = self.entries[name].native
        whole = np.empty(self._shape(key), np.float32)
        for rows in self._row_ranges[key]:
            with safetensors.safe_open(rows.path, "np") as file:
                whole[rows.first : rows.first + rows.shape[0]] = file.get_tensor(key)
        return np.ascontiguousarray(whole.T) if _is_transposed(name, whole.shape) else whole

    def _shape(self, key: str) -> tuple[int, ...]:
        row_ranges = self._row_ranges[key]
        return sum(rows.shape[0] for rows in row_ranges), *row_ranges[0].shape[1:]


def _is_transposed(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and names.row_of(name).transposed


def record_text(record: Mapping[str, Any], checksums: Mapping[str, str]) -> str:
    """Returns the JSON text of a checkpoint's record.

    Args:
      record: the fields of the record, among them "step" and "files".
      checksums: file name -> its SHA-256, from `file_checksum`.
    """
    content = {**record, "schema": _SCHEMAS[-1], "sha256": dict(checksums)}
    return json.dumps({**content, _CHECKSUM: _checksum_of(content)})


def read_record(folder: Path, check: Callable[[dict[str, Any]], object] = bool) -> dict[str, Any]:
    """Reads the record of a checkpoint, and checks the record's checksum and its list of files.

    Args:
      folder: the checkpoint's folder.
      check: a function that raises a ValueError, LookupError or TypeError if the record is wrong.

    Raises:
      UserError: if the record is damaged, or has another version.
    """
    path = folder / RECORD
    with reading(path):
        content = read_bytes(path)
    try:
        record = parsed_json(content)
        if not isinstance(record, dict) or record.get("schema") not in _SCHEMAS:
            raise ValueError(f"its schema is not among {', '.join(map(str, _SCHEMAS))}")
        checksum = record.pop(_CHECKSUM, None)
        if record["schema"] > 1 and checksum != _checksum_of(record):
            raise ValueError("its content does not have its checksum")
        for name in ("step", "files", *(["sha256"] if record["schema"] > 1 else [])):
            read_plain(record[name], _TYPES[name], f"its {name}")
        if record["schema"] > 1 and record["sha256"].keys() != record["files"].keys():
            raise ValueError("its sha256 has other files")
        check(record)
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{path} is damaged or of another version ({error!s:.200}). {_ADVICE.format(folder)}"
        ) from error
    return record


def check_checksums(folder: Path, record: Mapping[str, Any]) -> None:
    """Checks the sizes of a checkpoint's files and, except in schema 1, their checksums.

    Raises:
      UserError: if a file is missing, or if its size or bytes have changed since it was written.
    """
    for path in checked_files(folder, record["files"]):
        if not has_checksum(path, record):
            raise damaged(path)


def has_checksum(path: Path, record: Mapping[str, Any]) -> bool:
    """Returns whether a file's checksum equals that in the record; True for records of schema 1."""
    return record["schema"] == 1 or file_checksum(path) == record["sha256"].get(path.name)


def damaged(path: Path) -> UserError:
    """Returns the error for a file whose bytes have changed since it was written."""
    return UserError(
        f"{path} is damaged: its bytes are not those that were written (SHA-256). "
        + _ADVICE.format(path.parent)
    )


def file_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file. The result is cached until the file's size or time changes."""
    with reading(path):
        status = path.stat()
        return _hash_file(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _hash_file(path: Path, *_: int) -> str:
    return sha256(path)


def _checksum_of(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def checked_files(folder: Path, files: object) -> list[Path]:
    """Returns the paths of a checkpoint's files; checks that each exists and has the right size.

    Args:
      folder: the checkpoint's folder.
      files: name -> size in bytes, from the record.

    Raises:
      UserError: if the record is damaged, or a file is missing or has another size.
    """
    if not isinstance(files, dict) or not files:
        raise UserError(f"{folder / RECORD} lists no files: it is damaged")
    paths = []
    for name, size in files.items():
        path = folder / checked_name(name, "file", folder / RECORD)
        actual = path.stat().st_size if path.is_file() else None
        if actual != size:
            got = "is missing" if actual is None else f"has {actual:,} bytes, not {size!r:.20}"
            raise UserError(f"{path} {got}: the checkpoint is damaged. {_ADVICE.format(folder)}")
        paths.append(path)
    return paths


def _read_row_ranges(folder: Path, record: dict[str, Any]) -> dict[str, list[_RowRange]]:
    """Returns key -> its row ranges in order, from the headers of the files in the record."""
    row_ranges: dict[str, list[_RowRange]] = {}
    for path in checked_files(folder, record.get("files")):
        try:
            with safetensors.safe_open(path, "np") as file:
                places = parsed_json((file.metadata() or {}).get(PLACES, "{}"))
                for key in list(file.keys()):
                    tensor = file.get_slice(key)
                    first = places[key]["saved_offsets"][0] if key in places else 0
                    if tensor.get_dtype() != "F32" or type(first) is not int:
                        raise ValueError(f"{key} is {tensor.get_dtype()} at {first!r:.20}")
                    rows = _RowRange(first, tuple(tensor.get_shape()), path)
                    row_ranges.setdefault(key, []).append(rows)
        except (safetensors.SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} cannot be read: {error!s:.200}") from error
    for key, ranges in row_ranges.items():
        _check_tiled(folder, key, ranges)
    return row_ranges


def _check_tiled(folder: Path, key: str, row_ranges: list[_RowRange]) -> None:
    row_ranges.sort()
    next_row = 0
    for rows in row_ranges:
        if not rows.shape or rows.first != next_row or rows.shape[1:] != row_ranges[0].shape[1:]:
            raise UserError(f"{folder} is damaged: the rows of {key!r:.100} do not fit together")
        next_row += rows.shape[0]


def _read_facts(record: dict[str, Any], where: str) -> CheckpointFacts:
    model = record.get("model")
    model = model if isinstance(model, dict) else {}
    activation, pieces = model.get("activation"), model.get("vocabulary")
    if activation not in (None, *ACTIVATIONS):
        raise UserError(f"{where} names the activation {activation!r:.40}; expected one of T5's")
    tokenizer = Path(pieces) if isinstance(pieces, str) and "://" not in pieces else None
    return CheckpointFacts(
        step=checked_step(record.get("step"), where),
        activation=activation,
        dropout_rate=checked_rate(model.get("dropout_rate"), where),
        legacy_norms=model.get("legacy_norms") is True,
        tokenizer=tokenizer if tokenizer and tokenizer.is_file() else None,
    )
