"""Finds and loads the result files of evaluations, and declares their fields.

    eval/results_1000.json      rank evaluation, mode `score_eval`
    eval/decoded_1000.json      the tasks' metrics of decoded text, mode `eval`
    eval/perplexity_1000.json   nats per token of tasks without metrics, mode `eval`

    paths = find_results([Path("eval")])
    content = load_results(paths[0])
    results = read_record(content, ResultsFile, paths[0])
    [*results.tasks], results.run.step           # (["sciq_q"], 1000)

Texts are untrusted. JSON can contain control characters and lone surrogates. They are replaced by
visible escapes, so they never reach a terminal, plot or page.

Assumptions: the kind of a file is determined by the mode in its `run` object, so files may be
renamed. A null field counts as missing. Booleans, NaN and infinities are not numbers, except that
a metric may be NaN.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Any

from t0.config.plain_data import Count, OpenRecord, Range, read_plain
from t0.errors import UserError, printable
from t0.files import paths, untrusted
from t0.files.any_path import any_path, read_lines

SCHEMA = 1
PATTERNS = ("results_*.json", "decoded_*.json", "perplexity_*.json")
# The values of `numbered_by`. Results without it are numbered by example.
ROW, EXAMPLE = "row", "example"
Percentage = Annotated[float, Range(0, 100)]
_MISSING = object()
_STEP = re.compile(r"(?:results|decoded|perplexity)_(\d+)$")


@dataclasses.dataclass(frozen=True)
class RunRecord(OpenRecord):
    """The object `run` of a results file: the facts that reports read. They show all facts."""

    mode: Any = None
    step: int | None = None
    numbered_by: str = EXAMPLE
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class TaskRecord(OpenRecord):
    """A task in a results file.

    Rank evaluations write the fields from `dataset` to `decoded`. Mode `eval` writes those after it.

    Attributes:
      metrics: metric -> value; None if it is undefined.
      chance: the accuracy of guessing, in percent.
      excluded: reason -> number of examples that were left out for this reason.
      signatures: metric -> sacreBLEU's signature, which identifies how the metric was computed.
      intervals: metric -> the ends of its 95 % interval, if the evaluation computed an interval.
      predictions: the file of all predictions, relative to the folder of the results.
    """

    examples: Count
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    truncated_inputs: int | None = None
    truncated_targets: int | None = None
    dataset: str = ""
    prompt: str = ""
    group: str = ""
    numbered_by: str = ""
    chance: Percentage | None = None
    excluded: Mapping[str, Count] = dataclasses.field(default_factory=dict)
    decoded: Any = None
    signatures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    predictions: str | None = None


@dataclasses.dataclass(frozen=True)
class ResultsFile(OpenRecord):
    """A results file. Its schema is checked by `load_results`."""

    tasks: Mapping[str, TaskRecord]
    run: RunRecord = RunRecord()


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
    content = json_object(read_text(path), path)
    if not is_harness(content):
        schema = content.get("schema")
        if schema != SCHEMA:
            raise UserError(f"{path} has schema {schema!r:.40}; expected schema {SCHEMA}.")
    return content


def is_harness(content: Mapping[str, Any]) -> bool:
    """Returns whether a file comes from lm-evaluation-harness; see `lm_eval_samples`."""
    return "schema" not in content and all(
        isinstance(content.get(key), dict) for key in ("results", "configs")
    )


def read_text(path: Path) -> str:
    """Reads a text file.

    Raises:
      UserError: if the file cannot be read.
    """
    try:
        return paths.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the file and line as a text for messages, and the object, of each line of a file.

    Raises:
      UserError: if the file cannot be read, or a line is not a JSON object.
    """
    for number, line in number_lines(path):
        where = f"{path}, line {number}"
        yield where, json_object(line, where)


def number_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not blank, numbered from 1.

    Raises:
      UserError: if the file cannot be read, or has a line of more than 64 MiB.
    """
    try:
        for number, line in enumerate(read_lines(path), start=1):
            if line.strip():
                yield number, line
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}.") from error


def parsed_json(text: str | bytes) -> Any:
    """Parses a JSON text and makes all texts in it printable.

    Raises:
      ValueError: if the text is not valid JSON in UTF-8, or is nested too deep.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    value = untrusted.parsed_json(text)
    plain = text.isascii() and "\\" not in text and "\x7f" not in text
    return value if plain else _make_printable(value)


def json_object(text: str | bytes, where: object) -> dict[str, Any]:
    """Parses a JSON text that must be an object.

    Raises:
      UserError: if the text is not valid JSON, or not an object.
    """
    try:
        record = parsed_json(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON: {error}.") from error
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


def read_record(value: object, kind: Any, where: object, name: str = "") -> Any:
    """Converts a value from JSON to a type, such as `ResultsFile`, with `read_plain`.

    Args:
      where: the file and line, for messages.
      name: the name of the value in the file, for messages.

    Raises:
      UserError: if the value, or a value in it, has a wrong type or is out of range.
    """
    try:
        return read_plain(value, kind, name)
    except ValueError as error:
        raise UserError(f"{where}: {str(error).lstrip('. ')}.") from error


def field(
    record: Mapping[str, Any], key: str, kind: Any, where: object, *, default: Any = _MISSING
) -> Any:
    """Returns `record[key]` as a type; the default, if any, if the key is missing or null.

    See `read_record` for the arguments and errors.
    """
    value = record.get(key)
    if value is None and default is not _MISSING:
        return default
    return read_record(value, kind, where, key)


def distinct_names(paths: Collection[PurePath]) -> dict[PurePath, str]:
    """Returns path -> its shortest end that no other path ends with.

    >>> list(distinct_names([PurePosixPath("sni/model"), PurePosixPath("/out/qa/model")]).values())
    ['sni/model', 'qa/model']
    """
    names = {}
    for path in paths:
        tails = [path.parts[-count:] for count in range(1, len(path.parts) + 1)] or [()]
        others = [other for other in paths if other != path]
        distinct = (t for t in tails if all(other.parts[-len(t) :] != t for other in others))
        names[path] = printable(str(PurePosixPath(*next(distinct, path.parts))))
    return names
