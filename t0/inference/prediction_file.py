"""Writes a file of predictions, which appears only when complete. A killed run can resume.

    file = PredictionFile("/out/qa_1000.jsonl", facts)
    file.summary                             # None, or the summary of the run that wrote it
    file.save_batch(0, 3, predictions)       # writes batch 3 of window 0
    file.finished_batches                    # {(0, 2): {"examples": 32, ...}} of an earlier run
    file.finish([32, 9])                     # writes the file of 41 batches, and its summary

The folder `<file>.partial/` contains a file for each finished batch. Each file is written under a
temporary name and then renamed, so no file is ever incomplete.
"""

import collections
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t0.errors import UserError
from t0.files import paths, publishing
from t0.scoring.results import read_json, write_json, write_whole

SCHEMA = 1
_BATCH = re.compile(r"window-(\d+)-batch-(\d+)\.json")


@dataclasses.dataclass
class BatchPredictions:
    """The predictions of a batch.

    Attributes:
      lines: index of an example in its window -> the line for this example in the file.
      counts: name -> count, such as the numbers of predicted tokens and of truncated inputs.
    """

    lines: dict[int, str]
    counts: dict[str, int]


class PredictionFile:
    """One file of predictions.

    Args:
      path: the file, local or `gs://`.
      facts: the facts that determine the predictions. A run resumes only from predictions with the
        same facts.
      described: whether to write a summary next to the finished file. Without a summary, an
        existing file is replaced.
      writes: whether this process writes the file. If several processes predict together, each
        process saves its own batches, but only one process writes the file.

    Attributes:
      summary: the summary of a finished file; None if it is not finished.
      finished_batches: (window, batch) -> counts of this batch, for each batch that an earlier run
        finished.

    Raises:
      UserError: if there are finished or unfinished predictions with different facts at this path.
    """

    def __init__(
        self, path: str, facts: Mapping[str, Any], *, described: bool = True, writes: bool = True
    ) -> None:
        self.path = path
        self._facts = json.loads(json.dumps(dict(facts)))
        self._described = described
        self._folder = f"{path}.partial"
        if writes and not paths.is_remote(path):
            # A run that was killed while it wrote the summary may have left a temporary file.
            publishing.remove_leftovers([os.path.dirname(path) or "."])  # noqa: PTH120
        self.summary = self._read_summary() if described else None
        self.finished_batches: dict[tuple[int, int], dict[str, int]] = {}
        if self.summary is None:
            self._find_finished_batches(writes)
        elif writes:
            paths.remove(self._folder)

    def _read_summary(self) -> dict[str, Any] | None:
        if not paths.exists(self.path):
            return None
        summary = read_json(self._summary_path)
        if not isinstance(summary.get("settings"), dict):
            raise UserError(
                f"{self.path} exists without {self._summary_path}, which records its settings. "
                "Move it away, or use another folder (infer.output_dir)"
            )
        self._check_same(summary["settings"], "was made")
        return summary

    def _find_finished_batches(self, writes: bool) -> None:
        earlier = read_json(self._partial("settings"))
        if earlier:
            self._check_same(earlier, "was begun")
        elif writes:
            write_json(self._partial("settings"), self._facts)
        for match in filter(None, map(_BATCH.fullmatch, paths.list_names(self._folder))):
            window, batch = map(int, match.groups())
            predictions = self._read(window, batch)
            if predictions:
                self.finished_batches[window, batch] = predictions.counts

    def _check_same(self, others: Mapping[str, Any], happened: str) -> None:
        differing = [
            f"{name} {others.get(name)!r}, now {self._facts.get(name)!r}"
            for name in sorted(others.keys() | self._facts.keys())
            if others.get(name) != self._facts.get(name)
        ]
        if differing:
            also = "" if happened == "was made" else f" and {self._folder}"
            raise UserError(
                f"{self.path} {happened} with other settings: {'; '.join(differing)}. Use another "
                f"folder (infer.output_dir; `t0 predict`: --output), or remove {self.path}{also} "
                "and start again"
            )

    def save_batch(self, window: int, batch: int, predictions: BatchPredictions) -> None:
        """Writes the predictions of a finished batch."""
        write_json(self._partial(_batch_name(window, batch)), dataclasses.asdict(predictions))

    def finish(self, numbers_of_batches: Sequence[int]) -> dict[str, Any]:
        """Writes the file from all batches, and returns the summary.

        Args:
          numbers_of_batches: the number of batches of each window.

        Raises:
          UserError: if a batch is missing.
        """
        counts: collections.Counter[str] = collections.Counter()

        def lines() -> Iterator[str]:
            for window, number in enumerate(numbers_of_batches):
                merged: dict[int, str] = {}
                for batch in range(number):
                    predictions = self._read(window, batch)
                    if predictions is None:
                        raise UserError(
                            f"batch {batch} of window {window} of {self.path} is missing: all "
                            "processes must write to one folder that each of them sees"
                        )
                    merged |= predictions.lines
                    counts.update(predictions.counts)
                yield from (merged[index] + "\n" for index in sorted(merged))

        # The predictions are renamed last, so if their file exists, everything is complete.
        temporary = os.path.join(self._folder, "predictions")  # noqa: PTH118 (gs:// paths)
        write_whole(temporary, lines())
        summary = {"schema": SCHEMA, "settings": self._facts, **counts}
        if self._described:
            write_json(self._summary_path, summary)
        paths.rename(temporary, self.path)
        paths.remove(self._folder)
        return summary

    @property
    def _summary_path(self) -> str:
        return f"{self.path.removesuffix('.jsonl')}.run.json"

    def _partial(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.json")  # noqa: PTH118 (gs:// paths)

    def _read(self, window: int, batch: int) -> BatchPredictions | None:
        content = read_json(self._partial(_batch_name(window, batch)))
        lines, counts = content.get("lines"), content.get("counts")
        # If a power failure damaged the file, write it again.
        if not isinstance(lines, dict) or not isinstance(counts, dict):
            return None
        if not all(index.isdecimal() for index in lines):
            return None
        return BatchPredictions({int(index): line for index, line in lines.items()}, counts)


def _batch_name(window: int, batch: int) -> str:
    return f"window-{window:06d}-batch-{batch:04d}"
