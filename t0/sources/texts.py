"""Reads documents for pretraining from folders of text files, one byte range at a time.

    D/text/train-00000.jsonl.gz     texts = FolderTexts(Path("D/text"))
    D/text/train/more.txt           texts.splits                     # ('train', 'validation')
    D/text/validation.jsonl         texts.shards("train")            # (TextShard, ...), from sizes
                                    next(texts.documents(texts.shards("train")[0]))

Each line holds a document. In `.txt` files, the document is the line itself. In `.jsonl` and
`.json` files, the document is the field `text` of the object in the line. A `.jsonl` or `.json`
file may also contain a single JSON value whose rows have the field `text` (`t0.sources.json_lines`).
Files may be gzipped. Blank documents are skipped. The name of the file or of its folder contains
the split: `train`, `train-00000`, `c4-train.00000-of-01024`, `train/`. The names `val`, `valid` and
`dev` mean validation. If no name contains `train`, the files without a split in their name form the
train split.

A shard has about 8 MB. It is a range of a large file, or it consists of several small files.
Compressed files and JSON documents are not divided, because they can only be read from the start.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from t0.errors import UserError, reading
from t0.files.any_path import LARGEST_LINE, limited_lines, unpacked
from t0.sources.json_lines import (
    checked_row,
    parsed_line,
    read_document,
    rows_of_document,
    without_bad_rows,
)

SHARD_BYTES = 8 * 2**20
# The approximate size of a text divided by its compressed size.
_EXPANSION = 3
_ENDINGS = (".jsonl", ".json", ".txt")
_SPLITS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_SPLIT_WORD = re.compile(rf"(?:^|[._-])({'|'.join(_SPLITS)})(?=[._-]|$)", re.IGNORECASE)
FILE_PATTERN = "train.jsonl, train-00000.txt.gz, train/*.txt or validation.jsonl"


class Piece(NamedTuple):
    """A range of a file: the lines whose first byte is at a position from `start` up to `stop`.

    If `stop` is None, the range ends at the end of the file.
    """

    path: Path
    start: int
    stop: int | None


class TextShard(NamedTuple):
    """An ordered list of pieces of files, which are read together."""

    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        first = self.pieces[0]
        more = f" and {len(self.pieces) - 1} more" if len(self.pieces) > 1 else ""
        return f"{first.path}:{first.start}{more}"


class FolderTexts:
    """The text files of one folder.

    Args:
      folder: the path of the folder. The header of this module describes the folder's layout.
      shard_bytes: the approximate size of a shard in bytes.

    Raises:
      UserError: the folder has no text files, or cannot be listed.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder
        self._shard_bytes = shard_bytes
        self._files = split_files(folder)
        self.splits = tuple(self._files)
        if not self._files:
            raise UserError(
                f"{folder}: has no text files. Expected one document per line, as {FILE_PATTERN} "
                '(JSON Lines have {"text": "..."} on each line; .gz may follow).'
            )

    def files(self, split: str) -> tuple[Path, ...]:
        """Returns the files of a split."""
        return self._files[split]

    def shards(self, split: str) -> tuple[TextShard, ...]:
        """Returns the shards of a split. Each byte of the split's files is in exactly one shard."""
        shards: list[TextShard] = []
        together: list[Piece] = []
        size = 0
        for path in self._files[split]:
            with reading(path):
                length = path.stat().st_size
            whole = path.suffix.lower() == ".gz" or (
                length > self._shard_bytes and _document(path) is not None
            )
            for start in [0] if whole else range(0, length, self._shard_bytes):
                stop = None if whole else min(start + self._shard_bytes, length)
                taken = length * _EXPANSION if stop is None else stop - start
                if together and size + taken > self._shard_bytes:
                    shards.append(TextShard(tuple(together)))
                    together, size = [], 0
                together.append(Piece(path, start, stop))
                size += taken
        return (*shards, TextShard(tuple(together))) if together else tuple(shards)

    def documents(self, shard: TextShard) -> Iterator[str]:
        """Yields the documents of a shard.

        Raises:
          UserError: a line is not UTF-8, or is not a JSON object with the field `text`. The message
            names the file and line.
        """
        for piece in shard.pieces:
            yield from _documents(piece)


def text_folders(folder: Path) -> dict[str, Path]:
    """Returns name -> folder, for the folders that may contain texts.

    The name of `folder` itself is "". The name of a subfolder is its own name.
    """
    inner = (p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith("."))
    folders = {path.name: path for path in inner if not _split_of(path)}
    if split_files(folder) or not folders:
        folders = {"": folder} | folders
    return folders


def split_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Returns split -> the files of the split, sorted by name. The first split is train."""
    files: dict[str, list[Path]] = {name: [] for name in dict.fromkeys(_SPLITS.values())}
    unnamed: list[Path] = []
    for path in sorted(folder.iterdir()):
        split = _split_of(path)
        if path.is_dir():
            if split:
                files[split] += [p for p in sorted(path.rglob("*")) if _is_text(p)]
        elif _is_text(path):
            (files[split] if split else unnamed).append(path)
    files["train"] = files["train"] or unnamed
    return {split: tuple(files) for split, files in files.items() if files}


def _split_of(path: Path) -> str | None:
    if path.is_dir():
        return _SPLITS.get(path.name.lower())
    words = _SPLIT_WORD.findall(path.name)
    return _SPLITS[words[0].lower()] if words else None


def _is_text(path: Path) -> bool:
    return _ending(path) in _ENDINGS and not path.name.startswith(".") and path.is_file()


def _ending(path: Path) -> str:
    packed = path.suffix.lower() == ".gz"
    return (path.with_suffix("") if packed else path).suffix.lower()


def _document(path: Path) -> Any:  # noqa: ANN401 (whatever JSON holds)
    return None if _ending(path) == ".txt" else read_document(path)


def _documents(piece: Piece) -> Iterator[str]:
    path = piece.path
    document = _document(path) if piece.start == 0 else None
    if document is None:
        texts = _texts_of_lines(piece)
    else:
        rows = enumerate(rows_of_document(document, str(path)))
        texts = (
            _field(where, checked_row(where, row))
            for number, row in without_bad_rows(rows, path)
            if (where := f"{path}, row {number} (the first is 0)")
        )
    return (text for text in texts if text.strip())


def _texts_of_lines(piece: Piece) -> Iterator[str]:
    is_text = _ending(piece.path) == ".txt"
    lines = _lines(piece) if is_text else without_bad_rows(_lines(piece), piece.path)
    text_of = (
        _line_text if is_text else (lambda where, line: _field(where, parsed_line(where, line)))
    )
    for start, line in lines:
        if not line.strip():
            continue
        try:
            text = text_of(str(piece.path), line)
        except UserError:
            # Determine the line's number only now, and raise the error again with this number.
            number = 1 + sum(1 for at, _ in _lines(Piece(piece.path, 0, None)) if at < start)
            text_of(f"{piece.path}, line {number}", line)
            raise
        yield text


def _line_text(where: str, line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: not UTF-8 ({error.reason}, byte {error.start} of the line). Write the file "
            "again in UTF-8."
        ) from None


def _field(where: str, row: Mapping[str, Any]) -> str:
    if "text" not in row:
        raise UserError(
            f"{where}: has no field 'text'; it has: {', '.join(row) or 'none'}. Each line must be "
            'a {"text": "the document"}, and may have more fields.'
        )
    if not isinstance(row["text"], str):
        raise UserError(f"{where}: the field 'text' is {row['text']!r:.60}, expected a string.")
    return row["text"]


def _lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yields (position of the first byte, line) for the lines that start within a piece."""
    path, start, stop = piece
    with contextlib.ExitStack() as stack:
        with reading(path):
            file: IO[bytes] = stack.enter_context(unpacked(path))
            if start:
                # Skip the line that started in the previous piece.
                file.seek(start - 1)
                start += len(file.readline(LARGEST_LINE + 1)) - 1
        while stop is None or start < stop:
            with reading(path):
                line = next(limited_lines(file, path), b"")
            if not line:
                return
            yield start, line.removeprefix(b"\xef\xbb\xbf") if start == 0 else line
            start += len(line)
