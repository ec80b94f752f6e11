"""Finds and loads the result files of evaluations, and checks their fields.

    eval/results_1000.json      rank evaluation, mode `score_eval`
    eval/decoded_1000.json      the tasks' metrics of decoded text, mode `eval`
    eval/perplexity_1000.json   nats per token of tasks without metrics, mode `eval`

    paths = find_results([Path("eval")])
    content = load_results(paths[0])
    tasks = field(content, "tasks", dict, paths[0])

    >>> field({"step": 3}, "step", int, "results_3.json")
    3
    >>> field({}, "step", int, "results_3.json", default=None)

Texts are untrusted. JSON can contain control characters and lone surrogates. They are replaced by
visible escapes, so they never reach a terminal, plot or page.

Assumptions: the kind of a file is determined by the mode in its `run` object, so files may be
renamed. A null field counts as missing. Booleans, NaN and infinities are not numbers.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from t0.errors import UserError, printable
from t0.files import untrusted
from t0.files.any_path import any_path

SCHEMA = 1
PATTERNS = ("results_*.json", "decoded_*.json", "perplexity_*.json")
_STEP = re.compile(r"(?:results|decoded|perplexity)_(\d+)$")
# Matches all unprintable characters and escapes in a JSON text, and a few printable ones.
_MAY_BE_UNPRINTABLE = re.compile(
    r"\\[bfr]|\\u(?:00[0189]|007f|d[89a-f]|fff)|[\x7f-\x9f\ud800-\udfff\ufffe\uffff]", re.IGNORECASE
)
_MISSING = object()


def find_results(paths: Iterable[Path]) -> list[Path]:
    """Returns the result files in `paths` in the given order, without duplicates.

    A folder is searched for result files of all kinds, which are sorted by folder and then by step.

    Raises:
      UserError: if no path is given, a path does not exist, or a folder has no results.
    """
    files: dict[Path, Path] = {}
    for path in map(any_path, paths):
        if path.is_dir():
            candidates = [file for pattern in PATTERNS for file in path.rglob(pattern)]
            candidates.sort(key=lambda file: (file.parent, file_step(file) or -1, file.name))
            if not candidates:
                raise UserError(
                    f"no {' or '.join(PATTERNS)} below the folder {path}. Run an evaluation first."
                )
        elif path.is_file():
            candidates = [path]
        else:
            raise UserError(
                f"results file {path} does not exist. Give a results_<step>.json, "
                "decoded_<step>.json or perplexity_<step>.json file, or a folder of them."
            )
        for file in candidates:
            files.setdefault(file.resolve(), file)
    if not files:
        raise UserError("no results given. Name at least one results_<step>.json or a folder.")
    return list(files.values())


def file_step(path: Path) -> int | None:
    """Returns the step in a file's name; None if the name has no step."""
    match = _STEP.match(path.stem)
    return int(match[1]) if match else None


def load_results(path: Path) -> dict[str, Any]:
    """Loads a result file of a known schema, or of lm-evaluation-harness.

    Raises:
      UserError: if the file cannot be read, or has an unknown schema.
    """
    try:
        content = parsed_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}. Evaluate that step again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must be one JSON object, got {type(content).__name__}.")
    if is_harness(content):
        return content
    schema = field(content, "schema", int, path)
    if schema != SCHEMA:
        raise UserError(f"{path} has schema {schema}; this version reads schema {SCHEMA}.")
    return content


def is_harness(content: Mapping[str, Any]) -> bool:
    """Returns whether a file comes from lm-evaluation-harness; see `lm_eval_samples`."""
    return "schema" not in content and all(
        isinstance(content.get(key), dict) for key in ("results", "configs")
    )


def is_decoded(content: Mapping[str, Any]) -> bool:
    """Returns whether a result file has metrics of decoded text or perplexity."""
    run = content.get("run")
    return isinstance(run, dict) and run.get("mode") in ("eval", "perplexity")


def parsed_json(text: str) -> Any:
    """Parses a JSON text and makes all texts in it printable.

    Raises:
      ValueError: if the text is not valid JSON, or is nested too deep.
    """
    value = untrusted.parsed_json(text)
    # Most texts are printable ASCII. This check is twenty times as fast as a search for the
    # pattern.
    plain = text.isascii() and "\\" not in text and "\x7f" not in text
    return value if plain or not _MAY_BE_UNPRINTABLE.search(text) else _make_printable(value)


def json_object(text: str, where: object) -> dict[str, Any]:
    """Parses a JSON text that must be an object.

    Raises:
      UserError: if the text is not valid JSON, or not an object.
    """
    try:
        record = parsed_json(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected an object, got {record!r:.80}.")
    return record


def _make_printable(value: Any) -> Any:
    if isinstance(value, str):
        # A carriage return before a line feed is kept. All other carriage returns are escaped.
        return "\r\n".join(map(printable, value.split("\r\n")))
    if isinstance(value, dict):
        return {_make_printable(key): _make_printable(element) for key, element in value.items()}
    return [_make_printable(element) for element in value] if isinstance(value, list) else value


def field(
    record: Mapping[str, Any], key: str, kind: type, where: object, *, default: Any = _MISSING
) -> Any:
    """Returns `record[key]`, which must have the given type; the default if the key is missing.

    Raises:
      UserError: if the field is missing and there is no default, if its value has another type, or
        if its value is an integer of more than 64 bits.
    """
    value = record.get(key)
    if value is None:
        if default is _MISSING:
            raise UserError(f"{where}: the field '{key}' is missing.")
        return default
    if not isinstance(value, kind) or (kind is int and not is_integer(value)):
        raise UserError(f"{where}: '{key}' must be {kind.__name__}, got {value!r:.80}.")
    return value


def is_integer(value: object) -> bool:
    """Returns whether a value is an integer of at most 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def finite(value: object) -> float | None:
    """Returns a finite number as a float; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None
    return number if math.isfinite(number) else None


def numbers(record: Mapping[str, Any], where: str) -> dict[str, float]:
    """Checks that all values of a record are finite numbers, and returns the record."""
    values = {key: finite(value) for key, value in record.items()}
    for key, value in values.items():
        if value is None:
            raise UserError(f"{where}: '{key}' must be a finite number, got {record[key]!r:.80}.")
    return values


def percentage(record: Mapping[str, Any], key: str, where: str) -> float | None:
    """Checks that `record[key]` is from 0 to 100, and returns it; None if it is missing."""
    if record.get(key) is None:
        return None
    value = numbers({key: record[key]}, where)[key]
    if not 0 <= value <= 100:
        raise UserError(f"{where}: '{key}' must be a percentage from 0 to 100, got {value:g}.")
    return value


def counts(record: Mapping[str, Any], where: str) -> dict[str, int]:
    """Checks that all values of a record are counts, and returns the record."""
    for key, value in record.items():
        if not is_integer(value) or value < 0:
            raise UserError(f"{where}: '{key}' must be a count, got {value!r:.80}.")
    return dict(record)


def distinct_names(folders: Collection[PurePath]) -> dict[PurePath, str]:
    """Returns folder -> the shortest end of its path that no other path ends with.

    >>> list(distinct_names([PurePosixPath("sni/model"), PurePosixPath("/out/qa/model")]).values())
    ['sni/model', 'qa/model']
    """
    return {folder: printable(_distinct_name(folder, folders)) for folder in folders}


def _distinct_name(folder: PurePath, folders: Collection[PurePath]) -> str:
    others = [other for other in folders if not ends_alike(folder, other)]
    for count in range(1, len(folder.parts)):
        tail = folder.parts[-count:]
        if all(other.parts[-count:] != tail for other in others):
            return str(PurePosixPath(*tail))
    return str(folder)


def ends_alike(first: PurePath, second: PurePath) -> bool:
    """Returns whether one path ends with the other, so that both may be the same folder."""
    count = min(len(first.parts), len(second.parts))
    return first.parts[len(first.parts) - count :] == second.parts[len(second.parts) - count :]
