"""The progress line in the terminal while choices are scored or predictions are made.

    with ProgressLine(total=554, unit="choice", doing="scoring") as progress:
        progress.count(64)
        progress.print("rte: done")      # above the live line, on standard output
    progress.seconds                     # since the line was created

If standard error is not a terminal, there is no live line, so that logs stay readable.
"""

import time

from tqdm import tqdm


class ProgressLine:
    """Counts work on a live line, which is removed when the `with` block ends.

    Args:
      total: the number of units to do, None if unknown.
      unit: the name of a unit, in the singular.
      doing: the name of the work, such as "scoring".

    Attributes:
      before: the number of units that an earlier run did.
    """

    def __init__(self, total: int | None, *, unit: str, doing: str) -> None:
        self._bar = tqdm(total=total, unit=unit, desc=doing, disable=None, leave=False)
        self._started = time.monotonic()
        self.before = 0

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    @property
    def seconds(self) -> float:
        """The seconds since the line was created; never 0."""
        return max(time.monotonic() - self._started, 1e-9)

    def count(self, number: int, note: str = "") -> None:
        """Counts `number` more as done; `note` is shown at the line's end."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(number)

    def count_before(self, number: int) -> None:
        """Counts `number` more as done by an earlier run, which does not change the shown rate."""
        self.before += number
        self._bar.update(number)
        self._bar.initial = self.before

    def print(self, line: str) -> None:
        """Prints a line above the live line."""
        self._bar.write(line)
