"""Reads the records of a rank-evaluation task from its cache's files, without TensorFlow.

for record in cached_records("rte_score_eval", ["/cache/.../validation.tfrecord-00000-of-00001"]):
    record["idx"], record["targets"], record["targets_pretokenized"]
"""  # noqa: E501 (a path)

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from t0.errors import UserError
from t0.feeding.token_files import ids_of, texts_of
from t0.files import paths, tfrecord
from t0.scoring.reading import FEATURES, not_ranked

_TEXTS = tuple(name for name in FEATURES if name.endswith("_pretokenized"))
_NUMBERS = tuple(name for name in FEATURES if not name.endswith("_pretokenized"))
_AT_ONCE = 512


def cached_records(task: str, files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields a task's records with the fields that `ExampleStore.add` takes.

    Args:
      task: the task's name, for messages.
      files: the TFRecord files of the split.

    Raises:
      UserError: if a file cannot be read or is damaged, or its records have no answer choices.
    """
    for file in files:
        try:
            with paths.opened(file) as opened:
                records = tfrecord.unframed(opened)
                while batch := list(itertools.islice(records, _AT_ONCE)):
                    yield from _decoded(task, batch)
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}") from error


def _decoded(task: str, records: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    numbers, texts = ids_of(records, _NUMBERS), texts_of(records, _TEXTS)
    for row in range(len(records)):
        found: dict[str, Any] = {
            name: ids.values[ids.ends[row] : ids.ends[row + 1]] for name, ids in numbers.items()
        }
        if len(found["is_correct"]) != 1 or len(found["idx"]) != 2:
            raise not_ranked(task)
        found["is_correct"] = bool(found["is_correct"][0])
        yield found | {name: text for name, column in texts.items() if (text := column[row])}
