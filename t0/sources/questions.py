"""Reads questions and answers, and parallel sentences, from the usual formats of datasets.

    splits = question_splits(Path("qa/squad"))      # {"train": SplitFile(...), "validation": ...}
    for question in read_questions(splits["validation"]):
        question.question, question.context, question.answers    # ..., ("Denver Broncos",)

A file contains rows (JSON Lines, csv, tsv, parquet, arrow) or one JSON document. A document is a
list of rows, an object of columns, or SQuAD's articles with paragraphs. A list or an object may
also be under the key `data` of the document. A row has these columns:

    question    a string
    context     a string, a list of strings, or nothing for a question without a context
    answers     SQuAD's {"text": [...], "answer_start": [...]}, or `answer`: a string or a list

A column `id` is optional. Some collections, such as collections of causal questions, also have
columns with the suffix `_processed`. For example, if there is a column `question_processed`, it is
used instead of `question`. If a question has no answers, the question cannot be answered from its
context (SQuAD 2.0).

Parallel sentences train and evaluate translation:

    splits = folder_splits(Path("mt"))               # {"train": SplitFile(...), ...}
    languages(splits["train"])                       # ("en", "de"), read from the first row
    next(read_pairs(splits["train"], "en", "de"))    # ("Good morning.", "Guten Morgen.")

Their rows have one of two forms. The first form is `{"translation": {"en": "...", "de": "..."}}`,
as on the Hugging Face hub. In the second form, the row has a column for each language, whose name
is the language code. In csv and tsv files, only the second form is possible.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.prompts import is_missing
from t0.sources.folders import FILE_PATTERN, SplitFile, folder_splits
from t0.sources.json_lines import checked_row, read_document, rows_of_document, without_bad_rows
from t0.sources.readers import Reader, reader_for

# The names of splits. The folder may also contain other files, such as predictions and metrics.
_SPLITS = (
    (re.compile(r"train(?![A-Za-z]).*"), "train"),
    (re.compile(r"(validation|valid|val|dev)(?![A-Za-z]).*"), "validation"),
    (re.compile(r"test(?![A-Za-z]).*"), "test"),
)
_PROCESSED = "_processed"
_QUESTION, _CONTEXT, _ANSWERS = ("question",), ("context",), ("answers", "answer")


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its context and answers.

    Attributes:
      id: the id in the file; if the file has no ids, the row's number.
      question: the question's text.
      context: the text that contains the answer; empty if there is no context.
      answers: all accepted answers. The first answer is the training target. Empty if the question
        cannot be answered.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]


def question_splits(folder: Path) -> dict[str, SplitFile]:
    """Returns split -> file, without opening the files.

    A file's name starts with the name of its split, as in train.jsonl.gz and dev-v1.1.json.

    Raises:
      UserError: two files are the same split.
    """
    splits: dict[str, SplitFile] = {}
    for name, split_file in folder_splits(folder).items():
        split = next((split for pattern, split in _SPLITS if pattern.fullmatch(name)), None)
        if split is None:
            continue
        if split in splits:
            raise UserError(
                f"{folder}: both {splits[split].path.name} and {split_file.path.name} are the "
                f"split '{split}'. Remove one of them."
            )
        splits[split] = split_file
    return splits


def read_questions(split_file: SplitFile) -> Iterator[Question]:
    """Yields the questions of a file in order.

    Raises:
      UserError: the file cannot be read, or a row has missing columns. The message names the row.
    """
    columns: tuple[str | None, ...] | None = None
    for number, row in enumerate(_read_rows(split_file)):
        where = f"{split_file.path}, row {number} (the first is 0)"
        if columns is None:
            columns = _find_columns(row, split_file.path)
        yield _read_question(row, columns, number, where)


def count_questions(split_file: SplitFile) -> int:
    """Returns the number of questions in a file."""
    if split_file.kind != "jsonl" or read_document(split_file.path) is None:
        return _open_reader(split_file).count()
    return sum(1 for _ in _read_rows(split_file))


def _open_reader(split_file: SplitFile) -> Reader:
    return reader_for(split_file.kind, (split_file.path,), numbers=False)


def _read_rows(split_file: SplitFile) -> Iterator[Mapping[str, Any]]:
    where = str(split_file.path)
    document = read_document(split_file.path) if split_file.kind == "jsonl" else None
    if document is None:
        yield from _open_reader(split_file).rows(0, None)
        return
    rows = (
        row
        for article in rows_of_document(document, where)
        for row in (
            _read_article(article, where)
            if isinstance(article, Mapping) and "paragraphs" in article
            else (article,)
        )
    )
    for number, row in without_bad_rows(enumerate(rows), where):
        yield checked_row(f"{where}, row {number} (the first is 0)", row)


def _read_article(article: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    try:
        for paragraph, question in itertools.chain.from_iterable(
            ((paragraph, question) for question in paragraph["qas"])
            for paragraph in article["paragraphs"]
        ):
            yield {
                "id": question["id"],
                "question": question["question"],
                "context": paragraph["context"],
                "answers": question["answers"],
            }
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{where}: an article of SQuAD has no {error}; its paragraphs need a 'context' and "
            "'qas', these 'id', 'question' and 'answers'."
        ) from error


def _find_columns(row: Mapping[str, Any], path: Path) -> tuple[str | None, ...]:
    """Returns the names of the columns with the question, the context and the answers."""

    def first(names: tuple[str, ...]) -> str | None:
        preferred = (*(name + _PROCESSED for name in names), *names)
        return next((name for name in preferred if name in row), None)

    question, context, answers = first(_QUESTION), first(_CONTEXT), first(_ANSWERS)
    if question is None or answers is None:
        expected = "'question'" if question is None else "'answers' or 'answer'"
        raise UserError(
            f"{path}: has no column {expected}; its columns: {', '.join(map(str, row))}. "
            f"Splits are files {FILE_PATTERN} with the columns question, context and answers."
        )
    return question, context, answers


def _read_question(
    row: Mapping[str, Any], columns: tuple[str | None, ...], number: int, where: str
) -> Question:
    question, context, answers = (row.get(name) if name else None for name in columns)
    if not isinstance(question, str):
        raise UserError(f"{where}: '{columns[0]}' must be a text, got {question!r:.60}.")
    if isinstance(context, list):
        context = "\n".join(str(each) for each in context if not is_missing(each))
    if not isinstance(context, str | None):
        raise UserError(f"{where}: '{columns[1]}' must be a text or null, got {context!r:.60}.")
    identifier = row.get("id")
    return Question(
        str(number if identifier is None else identifier),
        question,
        context or "",
        _read_answers(answers, f"{where}: '{columns[2]}'"),
    )


def _read_answers(value: Any, where: str) -> tuple[str, ...]:  # noqa: ANN401
    if isinstance(value, Mapping):
        value = value.get("text")
    if isinstance(value, str):
        return (value,)
    several = value if isinstance(value, list | tuple) else ()
    texts = [answer.get("text") if isinstance(answer, Mapping) else answer for answer in several]
    if (several is not value and value is not None) or not all(isinstance(x, str) for x in texts):
        raise UserError(
            f"{where} must be a text, a list of texts, or an object with a list 'text', got "
            f"{value!r:.60}."
        )
    return tuple(texts)


_NESTED = "translation"
# The pattern of ISO 639 codes, which may have a region or a script: en, pt-BR, zh_Hans.
_CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,4})?")


def languages(split_file: SplitFile) -> tuple[str, ...]:
    """Returns the language codes of a file's first row; an empty tuple if the file is empty.

    Raises:
      UserError: the file cannot be read, or has columns for fewer than two languages.
    """
    for row in _open_reader(split_file).rows(0, 1):
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
      source: the code of the first language.
      target: the code of the second language.

    Raises:
      UserError: a row has no text in one of the languages. The message names the row and the
        language.
    """
    for number, row in enumerate(_open_reader(split_file).rows(0, None)):
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
    return _open_reader(split_file).count()


def _read_side(texts: Any, language: str) -> str | None:  # noqa: ANN401 (a cell of a file)
    value = texts.get(language) if isinstance(texts, Mapping) else None
    return value if isinstance(value, str) else None
