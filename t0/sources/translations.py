"""Reads parallel sentences in several languages, to train and evaluate translation.

    splits = folder_splits(Path("mt"))               # {"train": SplitFile(...), ...}
    languages(splits["train"])                       # ("en", "de"), read from the first row
    next(read_pairs(splits["train"], "en", "de"))    # ("Good morning.", "Guten Morgen.")

A row has one of two forms. The first form is `{"translation": {"en": "...", "de": "..."}}`, as on
the Hugging Face hub. In the second form, the row has a column for each language, whose name is the
language code. In csv and tsv files, only the second form is possible.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from t0.errors import UserError
from t0.sources.folders import SplitFile
from t0.sources.readers import reader_for

_NESTED = "translation"
# The pattern of ISO 639 codes, which may have a region or a script: en, pt-BR, zh_Hans.
_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,4})?")


def languages(split_file: SplitFile) -> tuple[str, ...]:
    """Returns the language codes of a file's first row; an empty tuple if the file is empty.

    Raises:
      UserError: the file cannot be read, or has columns for fewer than two languages.
    """
    for row in reader_for(split_file.kind, (split_file.path,), numbers=False).rows(0, 1):
        texts = row.get(_NESTED, row)
        if isinstance(texts, Mapping):
            codes = tuple(name for name in texts if _CODE.fullmatch(name))
            if len(codes) > 1:
                return codes
        raise UserError(
            f"{split_file.path}: has columns for fewer than two languages; its columns: "
            f"{', '.join(row)}. Rows must be "
            'like {"translation": {"en": "...", "de": "..."}} or have columns such as en and de.'
        )
    return ()


def read_pairs(split_file: SplitFile, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yields the sentence pairs of a file.

    Args:
      split_file: the file.
      source: the code of the first language.
      target: the code of the second language.

    Raises:
      UserError: a row has no text in one of the languages. The message names the row and the
        language.
    """
    for number, row in enumerate(
        reader_for(split_file.kind, (split_file.path,), numbers=False).rows(0, None)
    ):
        texts = row.get(_NESTED, row)
        sides = [_read_side(texts, language) for language in (source, target)]
        if None in sides:
            missing = source if sides[0] is None else target
            raise UserError(
                f"{split_file.path}, row {number} (the first is 0): has no text for the language "
                f"'{missing}', got {row!r:.80}."
            )
        yield sides[0], sides[1]


def count_pairs(split_file: SplitFile) -> int:
    """Returns the number of rows in a file."""
    return reader_for(split_file.kind, (split_file.path,), numbers=False).count()


def _read_side(texts: Any, language: str) -> str | None:  # noqa: ANN401 (a cell of a file)
    value = texts.get(language) if isinstance(texts, Mapping) else None
    return value if isinstance(value, str) else None
