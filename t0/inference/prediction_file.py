"""The file of predictions, which is created when it is complete; a killed run can resume.

    file = PredictionFile("/out/qa_1000.jsonl", facts)
    file.finished                            # None, or the summary of the run that wrote it
    file.window(0)                           # None, or the predictions of a finished window
    file.keep_batch(0, 3, predictions)       # writes a finished batch of a window
    file.keep_window(0, predictions)         # writes a finished window, removes its batches
    file.finish(windows=1)                   # writes the file and a summary beside it

`<file>.partial/` holds a file for each finished window, and for each finished batch of the current
window. All files are written under another name and renamed, so that none is ever incomplete.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from t0.errors import UserError
from t0.files import paths, publishing
from t0.scoring.results import read_json, write_json, write_whole

SCHEMA = 1


@dataclasses.dataclass
class FinishedPredictions:
    """Finished predictions.

    Attributes:
      lines: place of an example in its window -> its line in the file.
      counts: the numbers of predicted tokens, truncated inputs and so on.
    """

    lines: dict[int, str]
    counts: dict[str, int]

    def add(self, other: "FinishedPredictions") -> None:
        """Adds the predictions of another batch of the same window."""
        self.lines |= other.lines
        self.counts = added(self.counts, other.counts)


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Returns the sums of two sets of counts."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in one | other}


class PredictionFile:
    """One file of predictions.

    Args:
      path: the file, local or `gs://`.
      facts: the facts that the predictions depend on. A run resumes only from predictions with the
        same facts.
      described: whether a summary is written beside the finished file. If not, an earlier file is
        replaced.
      writes: whether this process writes the file; of several that predict together, one does, and
        each writes its batches.

    Raises:
      UserError: if there are predictions with other facts at this path, finished or not.
    """

    def __init__(
        self, path: str, facts: Mapping[str, Any], *, described: bool = True, writes: bool = True
    ) -> None:
        self.path = path
        self._facts = json.loads(json.dumps(dict(facts)))
        self._described = described
        self._folder = f"{path}.partial"
        if writes and not paths.is_remote(path):
            # The summary of a run that was killed while it wrote that.
            publishing.remove_leftovers([os.path.dirname(path) or "."])  # noqa: PTH120
        self.finished = self._finished() if described else None
        if self.finished is None:
            self._begin(writes)
        elif writes:
            paths.remove(self._folder)

    def _finished(self) -> dict[str, Any] | None:
        if not paths.exists(self.path):
            return None
        summary = read_json(self._summary)
        if not isinstance(summary.get("settings"), dict):
            raise UserError(
                f"{self.path} exists without {self._summary}, which records what it was made from. "
                "Move it away, or name another folder (infer.output_dir)"
            )
        self._check_same(summary["settings"], "was made")
        return summary

    def _begin(self, writes: bool) -> None:
        kept = read_json(self._kept("settings"))
        if kept:
            self._check_same(kept, "was begun")
        elif writes:
            write_json(self._kept("settings"), self._facts)

    def _check_same(self, others: Mapping[str, Any], happened: str) -> None:
        differing = [
            f"{name} {others.get(name)!r}, now {self._facts.get(name)!r}"
            for name in sorted(others.keys() | self._facts.keys())
            if others.get(name) != self._facts.get(name)
        ]
        if differing:
            also = "" if happened == "was made" else f" and {self._folder}"
            raise UserError(
                f"{self.path} {happened} with other settings: {'; '.join(differing)}. Name another "
                f"folder (infer.output_dir), or remove {self.path}{also} and start again"
            )

    def window(self, window: int) -> FinishedPredictions | None:
        """Returns the predictions of a window that an earlier run finished, or None."""
        return self._read(f"window-{window:06d}")

    def batch(self, window: int, batch: int) -> FinishedPredictions | None:
        """Returns the predictions of a batch that an earlier run finished, or None."""
        return self._read(_batch_name(window, batch))

    def keep_batch(self, window: int, batch: int, results: FinishedPredictions) -> None:
        """Writes the predictions of a finished batch."""
        self._write(_batch_name(window, batch), results)

    def keep_window(self, window: int, results: FinishedPredictions) -> None:
        """Writes the predictions of a finished window, and removes those of its batches."""
        self._write(f"window-{window:06d}", results)
        for batch in paths.list_names(self._folder):
            if batch.startswith(f"window-{window:06d}-batch-"):
                paths.remove(os.path.join(self._folder, batch))  # noqa: PTH118 (gs:// paths)

    def finish(self, windows: int) -> dict[str, Any]:
        """Writes the file from the finished windows, and returns the summary."""
        counts: dict[str, int] = {}

        def lines() -> Iterator[str]:
            nonlocal counts
            for window in range(windows):
                results = self.window(window)
                counts = added(counts, results.counts)
                yield from (results.lines[place] + "\n" for place in sorted(results.lines))

        # The file is last: where it exists, everything is complete.
        temporary = os.path.join(self._folder, "predictions")  # noqa: PTH118 (gs:// paths)
        write_whole(temporary, lines())
        summary = {"schema": SCHEMA, "settings": self._facts, **counts}
        if self._described:
            write_json(self._summary, summary)
        paths.rename(temporary, self.path)
        paths.remove(self._folder)
        return summary

    @property
    def _summary(self) -> str:
        return f"{self.path.removesuffix('.jsonl')}.run.json"

    def _kept(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.json")  # noqa: PTH118 (gs:// paths)

    def _read(self, name: str) -> FinishedPredictions | None:
        content = read_json(self._kept(name))
        lines, counts = content.get("lines"), content.get("counts")
        # One that a power failure has damaged is made again.
        if not isinstance(lines, dict) or not isinstance(counts, dict):
            return None
        if not all(place.isdecimal() for place in lines):
            return None
        return FinishedPredictions({int(place): line for place, line in lines.items()}, counts)

    def _write(self, name: str, results: FinishedPredictions) -> None:
        write_json(self._kept(name), dataclasses.asdict(results))


def _batch_name(window: int, batch: int) -> str:
    return f"window-{window:06d}-batch-{batch:04d}"
