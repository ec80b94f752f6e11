"""The file of predictions, which appears when it is whole; what a killed run finished is kept.

    file = PredictionFile("/out/qa_1000.jsonl", facts)
    file.finished                            # None, or the summary of the run that wrote it
    file.window(0)                           # None, or the kept predictions of a whole window
    file.keep_batch(0, 3, predictions)       # while a window is under way
    file.keep_window(0, predictions)         # its batches are removed
    file.finish(windows=1)                   # writes the file and a summary beside it

What is kept lies in `<file>.partial/`: a file for each finished window, and for each finished batch
of the one under way. All are written under another name first, so none is ever half there.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from t0.errors import UserError
from t0.files import paths
from t0.scoring.results import read_json, write_json, write_whole

SCHEMA = 1


@dataclasses.dataclass
class FinishedPredictions:
    """Finished predictions.

    Attributes:
      lines: of the file, by the example's place in its window.
      counts: how many tokens were predicted, inputs cut, and the like.
    """

    lines: dict[int, str]
    counts: dict[str, int]

    def add(self, other: "FinishedPredictions") -> None:
        """Takes in what another batch gave."""
        self.lines |= other.lines
        self.counts = added(self.counts, other.counts)


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Returns the sums of two sets of counts."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in one | other}


class PredictionFile:
    """One file of predictions.

    Args:
      path: of the file, local or `gs://`.
      facts: on what the predictions depend: a run goes on only with what has the same.
      described: whether a summary is written beside the finished file. If not, an earlier file is
        replaced.

    Raises:
      UserError: if the path is taken by predictions of other settings, finished or not.
    """

    def __init__(self, path: str, facts: Mapping[str, Any], *, described: bool = True) -> None:
        self.path = path
        self._facts = json.loads(json.dumps(dict(facts)))
        self._described = described
        self._folder = f"{path}.partial"
        self.finished = self._finished() if described else None
        if self.finished is None:
            self._begin()
        else:
            paths.remove(self._folder)

    def _finished(self) -> dict[str, Any] | None:
        if not paths.exists(self.path):
            return None
        summary = read_json(self._summary)
        if "settings" not in summary:
            raise UserError(
                f"{self.path} is there, and no {self._summary} that tells what it was made from. "
                "Move it away, or name another folder (infer.output_dir)"
            )
        self._check_same(summary["settings"], "was made")
        return summary

    def _begin(self) -> None:
        kept = read_json(self._kept("settings"))
        if kept:
            self._check_same(kept, "was begun")
            return
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
                f"folder (infer.output_dir), or remove {self.path}{also} and begin anew"
            )

    def window(self, window: int) -> FinishedPredictions | None:
        """Returns the results of a window that was finished before."""
        return self._read(f"window-{window:06d}")

    def batch(self, window: int, batch: int) -> FinishedPredictions | None:
        """Returns the results of a batch that was finished before."""
        return self._read(_batch_name(window, batch))

    def keep_batch(self, window: int, batch: int, results: FinishedPredictions) -> None:
        """Keeps the results of a batch."""
        self._write(_batch_name(window, batch), results)

    def keep_window(self, window: int, results: FinishedPredictions) -> None:
        """Keeps the results of a whole window, and removes those of its batches."""
        self._write(f"window-{window:06d}", results)
        for batch in paths.list_names(self._folder):
            if batch.startswith(f"window-{window:06d}-batch-"):
                paths.remove(os.path.join(self._folder, batch))  # noqa: PTH118 (gs:// paths)

    def finish(self, windows: int) -> dict[str, Any]:
        """Writes the file from what was kept of all windows, and returns the summary."""
        counts: dict[str, int] = {}

        def lines() -> Iterator[str]:
            nonlocal counts
            for window in range(windows):
                results = self.window(window)
                counts = added(counts, results.counts)
                yield from (results.lines[place] + "\n" for place in sorted(results.lines))

        # The file last: that it is there says that all is.
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
        if not content:
            return None
        return FinishedPredictions(
            {int(k): v for k, v in content["lines"].items()}, content["counts"]
        )

    def _write(self, name: str, results: FinishedPredictions) -> None:
        write_json(self._kept(name), dataclasses.asdict(results))


def _batch_name(window: int, batch: int) -> str:
    return f"window-{window:06d}-batch-{batch:04d}"
