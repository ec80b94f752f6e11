"""Documents for pretraining: folders of text files, read a range of bytes at a time.

    D/text/train-00000.jsonl.gz     texts = FolderTexts(Path("D/text"))
    D/text/train/more.txt           texts.splits                     # ('train', 'validation')
    D/text/validation.jsonl         texts.shards("train")            # (Shard, ...): sizes only
                                    next(texts.documents(texts.shards("train")[0]))

A document is a line: of `.txt` the line itself, of `.jsonl` or `.json` its field `text`; either may
be packed with gzip. Documents with nothing but white space are passed over. A file is of the split
that its name says (`train`, `train-00000`, `c4-train.00000-of-01024`, or a folder `train/`; `val`,
`valid` and `dev` mean validation); where no name says train, the files that name no split are it.

A shard is some 8 MB: a stretch of a large file, or several small ones. A packed file is not split,
as it can only be read from its start.
"""

import contextlib
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from t0.errors import UserError, reading
from t0.sources.readers import parsed_line

SHARD_BYTES = 8 * 2**20
# Text is about so many times as long as its packed form.
_UNPACKED = 3
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
    """A stretch of a file: the lines that start at bytes `start` to `stop` (None: its end)."""

    path: Path
    start: int
    stop: int | None


class Shard(NamedTuple):
    """What is read as one: pieces of files, in order."""

    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        first = self.pieces[0]
        more = f" and {len(self.pieces) - 1} more" if len(self.pieces) > 1 else ""
        return f"{first.path}:{first.start}{more}"


class Texts(Protocol):
    """Documents in splits, read by shards."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""

    def shards(self, split: str) -> Sequence[object]:
        """The shards of a split, in order; each can be turned into a string of its own."""

    def documents(self, shard: object) -> Iterator[str]:
        """The documents of a shard, in order, blank ones left out."""


class FolderTexts:
    """The text files of one folder.

    Args:
      folder: see the module's header.
      shard_bytes: how much is read as one.

    Raises:
      UserError: the folder has no text files, or they cannot be looked at.
    """

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder
        self._shard_bytes = shard_bytes
        self._files = split_files(folder)
        if not self._files:
            raise UserError(
                f"{folder}: holds no text files. Wanted one document a line, as {FILE_PATTERN} "
                '(JSON Lines have {"text": "..."} on each line; .gz may follow).'
            )

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return tuple(self._files)

    def shards(self, split: str) -> tuple[Shard, ...]:
        """The shards of a split: each byte of its files is in one of them."""
        shards: list[Shard] = []
        together: list[Piece] = []
        size = 0
        for path in self._files[split]:
            packed = path.suffix == ".gz"
            with reading(path):
                length = path.stat().st_size
            for start in [0] if packed else range(0, length, self._shard_bytes):
                stop = None if packed else min(start + self._shard_bytes, length)
                taken = length * _UNPACKED if stop is None else stop - start
                if together and size + taken > self._shard_bytes:
                    shards.append(Shard(tuple(together)))
                    together, size = [], 0
                together.append(Piece(path, start, stop))
                size += taken
        return (*shards, Shard(tuple(together))) if together else tuple(shards)

    def documents(self, shard: Shard) -> Iterator[str]:
        """Yields the documents of a shard.

        Raises:
          UserError: a line is no JSON object with a text, or not UTF-8, naming file and line.
        """
        for piece in shard.pieces:
            yield from _documents(piece)


def text_folders(folder: Path) -> dict[str, Path]:
    """Returns name -> folder of the texts in `folder`: "" for itself, then its subfolders.

    Raises:
      UserError: there are none.
    """
    inner = (p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith("."))
    found = {path.name: path for path in inner if not _split_of(path)}
    if split_files(folder) or not found:
        found = {"": folder} | found
    return found


def split_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Returns split -> its files, by name, train first."""
    found: dict[str, list[Path]] = {name: [] for name in dict.fromkeys(_SPLITS.values())}
    unnamed: list[Path] = []
    for path in sorted(folder.iterdir()):
        split = _split_of(path)
        if path.is_dir():
            if split:
                found[split] += [p for p in sorted(path.rglob("*")) if _is_text(p)]
        elif _is_text(path):
            (found[split] if split else unnamed).append(path)
    found["train"] = found["train"] or unnamed
    return {split: tuple(files) for split, files in found.items() if files}


def _split_of(path: Path) -> str | None:
    if path.is_dir():
        return _SPLITS.get(path.name.lower())
    words = _SPLIT_WORD.findall(path.name)
    return _SPLITS[words[0].lower()] if words else None


def _is_text(path: Path) -> bool:
    return _ending(path) in _ENDINGS and not path.name.startswith(".") and path.is_file()


def _ending(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix


def _documents(piece: Piece) -> Iterator[str]:
    text_of = _line_text if _ending(piece.path) == ".txt" else _field
    for start, line in _lines(piece):
        if not line.strip():
            continue
        try:
            text = text_of(str(piece.path), line)
        except UserError:
            # Again, with the line's number, which is counted only now.
            number = 1 + sum(1 for at, _ in _lines(Piece(piece.path, 0, None)) if at < start)
            text_of(f"{piece.path}, line {number}", line)
            raise
        if text.strip():
            yield text


def _line_text(where: str, line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: not UTF-8 ({error.reason}, byte {error.start} of the line). Write the file "
            "again in UTF-8."
        ) from None


def _field(where: str, line: bytes) -> str:
    row = parsed_line(where, line)
    if "text" not in row:
        raise UserError(
            f"{where}: lacks the field 'text'; it has: {', '.join(row) or 'none'}. Each line wants "
            'a {"text": "the document"}, and may have more fields.'
        )
    if not isinstance(row["text"], str):
        raise UserError(f"{where}: the field 'text' is {row['text']!r:.60}, wanted a string.")
    return row["text"]


def _lines(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that start within a piece, each with the byte that it starts at."""
    path, start, stop = piece
    with contextlib.ExitStack() as stack:
        with reading(path):
            opener = gzip.open if path.suffix == ".gz" else open
            file: IO[bytes] = stack.enter_context(opener(path, "rb"))
            if start:
                # The line that the piece before reads to its end.
                file.seek(start - 1)
                start += len(file.readline()) - 1
        while stop is None or start < stop:
            with reading(path):
                line = file.readline()
            if not line:
                return
            yield start, line.removeprefix(b"\xef\xbb\xbf") if start == 0 else line
            start += len(line)
