"""Finds and loads the result files of evaluations, of two kinds.

    eval/results_1000.json      rank evaluation, mode `score_eval`
    eval/decoded_1000.json      decoded text that the tasks' metrics judged, mode `eval`

    >>> find_results([Path("eval")])                                # doctest: +SKIP
    [Path("eval/decoded_1000.json"), Path("eval/results_1000.json")]

Assumptions: a file's kind is what it says of its run, so it may have been renamed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.reports.fields import field

SCHEMA = 1
PATTERNS = ("results_*.json", "decoded_*.json")
_STEP = re.compile(r"(?:results|decoded)_(\d+)$")


def find_results(paths: Iterable[Path]) -> list[Path]:
    """Returns the result files among and below `paths`, each once, in the order given.

    A folder stands for the files of both kinds below it, ordered by folder, then by step.

    Raises:
        UserError: nothing given, a path is missing, or a folder holds no results.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_dir():
            below = [file for pattern in PATTERNS for file in path.rglob(pattern)]
            below.sort(key=lambda file: (file.parent, file_step(file) or -1, file.name))
            if not below:
                raise UserError(
                    f"no {' or '.join(PATTERNS)} below the folder {path}. Run an evaluation first."
                )
        elif path.is_file():
            below = [path]
        else:
            raise UserError(
                f"results file {path} does not exist. Give a results_<step>.json or "
                "decoded_<step>.json file, or a folder of them."
            )
        for file in below:
            found.setdefault(file.resolve(), file)
    if not found:
        raise UserError("no results given. Name at least one results_<step>.json or a folder.")
    return list(found.values())


def file_step(path: Path) -> int | None:
    """Returns the step in a file's name, None where there is none."""
    found = _STEP.match(path.stem)
    return int(found[1]) if found else None


def load(path: Path) -> dict[str, Any]:
    """Returns the object in a result file, of a schema that is known here.

    Raises:
        UserError: the file cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}. Evaluate that step again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold one JSON object, got {type(content).__name__}.")
    schema = field(content, "schema", int, path)
    if schema != SCHEMA:
        raise UserError(f"{path} has schema {schema}; this version reads schema {SCHEMA}.")
    return content


def is_decoded(content: Mapping[str, Any]) -> bool:
    """Tells whether a file's content is of mode `eval`."""
    run = content.get("run")
    return isinstance(run, dict) and run.get("mode") == "eval"
