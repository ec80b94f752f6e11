"""Writes what a rank evaluation found: a line for each example, a summary for each step.

`scores/<task>_<step>.jsonl`, one line for each example in dataset order:

    {"idx": 0, "inputs": "... True or False?",
     "choices": [{"text": "True", "log_likelihood": -1.25, "tokens": 2}, ...],
     "gold": 1, "prediction": 0}

Log-likelihoods are nats, summed over the choice's tokens and its EOS; `gold` is -1 for an example
that is left out of the accuracy. `results_<step>.json`
holds the run's facts and each task's metrics. Both appear under their names only when complete.

While an evaluation is under way, `unfinished_<step>/<task>.json` holds the entries of the finished
tasks, with what they were made from: an evaluation that was interrupted takes up those that were
made from the same. They go when the results of all steps are there.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.scoring.examples import Example
from t0.training import disk

SCHEMA = 1


def score_line(example: Example, scores: np.ndarray) -> dict[str, Any]:
    """Returns the record of one example; `scores` [C] in nats, in the choices' order."""
    return {
        "idx": example.idx,
        "inputs": example.text,
        "choices": [
            {
                "text": choice.text,
                "log_likelihood": float(score),
                "tokens": len(choice.tokens),
            }
            for choice, score in zip(example.choices, scores, strict=True)
        ],
        "gold": example.gold,
        "prediction": int(np.argmax(scores)),
    }


def write_scores(
    folder: str, task: str, step: int, scored: Iterable[tuple[Example, np.ndarray]]
) -> str:
    """Writes `scores/<task>_<step>.jsonl` under `folder`, line by line, and returns its path."""
    path = _scores_path(folder, task, step)
    write_whole(
        path,
        (
            json.dumps(score_line(example, row), ensure_ascii=False) + "\n"
            for example, row in scored
        ),
    )
    return path


def write_results(
    folder: str, step: int, run: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]
) -> str:
    """Writes `results_<step>.json` under `folder` and returns its path."""
    path = _join(folder, f"results_{step}.json")
    content = {"schema": SCHEMA, "run": dict(run), "tasks": {t: dict(v) for t, v in tasks.items()}}
    write_json(path, content)
    return path


def keep_entry(
    folder: str, step: int, task: str, *, entry: Mapping[str, Any], made_from: Mapping[str, Any]
) -> None:
    """Keeps the entry of a finished task for an evaluation that goes on after an interruption."""
    size = _bytes(_scores_path(folder, task, step))
    content = {"made_from": dict(made_from), "scores_bytes": size, "entry": dict(entry)}
    write_whole(_unfinished_path(folder, step, task), [json.dumps(content) + "\n"])


def kept_entry(
    folder: str, step: int, task: str, *, made_from: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the entry of a task that an interrupted evaluation finished, if it can be taken up.

    It can if it was made from the same and its scores are there, as many bytes as were written.
    """
    path = _unfinished_path(folder, step, task)
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        try:
            content = json.load(file)
        except ValueError:
            return None
    same = content["made_from"] == json.loads(json.dumps(dict(made_from)))
    whole = content.get("scores_bytes") == _bytes(_scores_path(folder, task, step))
    return content["entry"] if same and whole else None


def forget_entries(folder: str, step: int) -> None:
    """Removes what `keep_entry` kept: the evaluation is finished."""
    unfinished = _join(folder, f"unfinished_{step}")
    if tf.io.gfile.isdir(unfinished):
        tf.io.gfile.rmtree(unfinished)


def write_json(path: str, content: Any) -> None:
    """Writes a file that is one JSON document, as `write_whole` does."""
    write_whole(path, [json.dumps(content, indent=1, ensure_ascii=False) + "\n"])


def write_whole(path: str, lines: Iterable[str]) -> None:
    """Writes a file under a temporary name and renames it; local or `gs://`.

    Raises:
      UserError: if the file cannot be written.
    """
    temporary = f"{path}.partial-{os.getpid()}"
    try:
        tf.io.gfile.makedirs(os.path.dirname(path))  # noqa: PTH120
        with tf.io.gfile.GFile(temporary, "w") as file:
            file.write("")  # makes the file, even of no lines
            for line in lines:
                file.write(line)
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except disk.WRITING as error:
        raise UserError(
            f"cannot write {path}: {disk.reason(error)}. What was finished is kept: mend that and "
            "start the same command again"
        ) from error
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)


def _bytes(path: str) -> int | None:
    return tf.io.gfile.stat(path).length if tf.io.gfile.exists(path) else None


def _scores_path(folder: str, task: str, step: int) -> str:
    return _join(folder, "scores", f"{task}_{step}.jsonl")


def _unfinished_path(folder: str, step: int, task: str) -> str:
    return _join(folder, f"unfinished_{step}", f"{task}.json")


def _join(*parts: str) -> str:
    return os.path.join(*parts)  # noqa: PTH118
