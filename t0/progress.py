"""Shows the progress of scoring, decoding and caching, live in a terminal or as lines in a log.

    with ProgressLine(total=554, unit="example", doing="scoring") as progress:
        progress.count(64, note="rte 54.2%")
        progress.print("rte: done")      # above the live line, on standard output
    progress.seconds                     # since the line was created

If the output is not a terminal, a plain line is printed every ten seconds:

    scoring: 64 of 554 examples (12%), 6.1 examples/s, 01:20 left, rte 54.2%
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO, TypeVar

from tqdm import tqdm

PLAIN_SECONDS = 10.0
_COUNTED_AT_A_TIME = 1000
_T = TypeVar("_T")


class ProgressLine:
    """Shows the number of finished units of work on a live line.

    The line is removed when the `with` block ends.

    Args:
      total: the number of units of work; None if unknown.
      unit: the name of a unit, in the singular.
      doing: the name of the work, such as "scoring".
      file: the terminal or log to print to; standard error by default.

    Attributes:
      before: the number of units finished by an earlier run.
    """

    _is_hidden = False

    def __init__(
        self, total: int | None, *, unit: str, doing: str, file: TextIO | None = None
    ) -> None:
        self._file = file or sys.stderr
        disable = self._is_hidden or None  # None: disabled unless the file is a terminal
        self._bar = tqdm(
            total=total, unit=unit, desc=doing, disable=disable, leave=False, file=self._file
        )
        self._started = self._shown = time.monotonic()
        self._total, self._unit, self._doing = total, unit, doing
        self._done = 0
        self._note = ""
        self.before = 0

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the live line."""
        self._bar.close()

    @property
    def seconds(self) -> float:
        """The seconds since the line was created; never 0."""
        return max(time.monotonic() - self._started, 1e-9)

    def count(self, number: int, note: str = "") -> None:
        """Adds `number` finished units, and shows `note` at the end of the line."""
        self._done += number
        if note:
            self._note = note
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(number)
        if self._bar.disable and time.monotonic() - self._shown >= PLAIN_SECONDS:
            self.show()

    @classmethod
    @contextlib.contextmanager
    def hidden(cls, *, hides: bool = True) -> Iterator[None]:
        """Hides progress and standard output in a `with` block, unless `hides` is False.

        Warnings and errors are printed to standard error, so they are still visible.
        """
        with contextlib.ExitStack() as stack:
            if hides:
                nothing = stack.enter_context(Path(os.devnull).open("w"))
                stack.enter_context(contextlib.redirect_stdout(nothing))
                stack.callback(setattr, cls, "_is_hidden", cls._is_hidden)
                cls._is_hidden = True
            yield

    def show(self) -> None:
        """Prints a plain line now. Has no effect if there is a live line."""
        if self._bar.disable and not self._is_hidden:
            self._shown = time.monotonic()
            print(self.plain(), file=self._file, flush=True)

    def count_before(self, number: int) -> None:
        """Adds `number` units finished by an earlier run. The rate does not include these units."""
        self.before += number
        self._bar.update(number)
        self._bar.initial = self.before

    def plain(self) -> str:
        """Returns the line for a log: finished units, rate, remaining time and note."""
        done, rate = self.before + self._done, self._done / self.seconds
        units = f"{self._unit}s"
        # A unit may finish several times: a rank task has an example for each choice of a row.
        if self._total and done <= self._total:
            remaining = tqdm.format_interval((self._total - done) / rate) if rate else "?"
            share = f"{done / self._total:.0%}"
            words = [f"{self._doing}: {done:,} of {self._total:,} {units} ({share})"]
        else:
            words, remaining = [f"{self._doing}: {done:,} {units}"], ""
        words.append(f"{rate:,.0f} {units}/s" if rate >= 10 else f"{rate:.2g} {units}/s")
        words += [f"{remaining} left"] if remaining else []
        return ", ".join([*words, *([self._note] if self._note else [])])

    def print(self, line: str) -> None:
        """Prints a line above the live line."""
        self._bar.write(line)


def count_units(units: Iterable[_T], *, unit: str, doing: str) -> Iterator[_T]:
    """Yields `units`, whose number is unknown; shows a progress line."""
    with ProgressLine(total=None, unit=unit, doing=doing) as progress:
        for number, item in enumerate(units, 1):
            yield item
            if number % _COUNTED_AT_A_TIME == 0:
                progress.count(_COUNTED_AT_A_TIME)
