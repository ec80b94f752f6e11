"""Collects the notes and the faults of checks, so that a command reports all faults together.

    findings = Findings()
    findings.check_all((check_lengths, After((check_lengths,), check_batch)), run)
    notes = findings.notes()                  # UserError with all faults

A check reads a run or its flags from its arguments. It returns or yields notes. It raises a
UserError for a fault, or yields several.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from t0.errors import UserError

Check = Callable[..., Iterable[str | UserError] | None]


class After(NamedTuple):
    """A check that is skipped if one of the checks that it needs has found a fault."""

    needs: tuple[Check, ...]
    check: Check


class Findings:
    """The notes and faults of checks."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._faults: list[UserError] = []
        self._failed: set[Check] = set()

    def check(self, check: Check, *arguments: Any) -> None:
        """Calls a check, and keeps its notes and faults."""
        faults: list[UserError] = []
        try:
            for line in check(*arguments) or ():
                if isinstance(line, UserError):
                    faults.append(line)
                else:
                    self._notes.append(line)
        except UserError as error:
            faults.append(error)
        if faults:
            self._faults += faults
            self._failed.add(check)

    def check_all(self, checks: Sequence[Check | After], *arguments: Any) -> None:
        """Calls checks in order. A check that needs a skipped check is also skipped."""
        for each in checks:
            needs, check = each if isinstance(each, After) else ((), each)
            if self._failed.intersection(needs):
                self._failed.add(check)
            else:
                self.check(check, *arguments)

    def notes(self) -> list[str]:
        """Returns the notes.

        Raises:
          UserError: there are faults. If there are several, its message lists all of them.
        """
        if len(self._faults) == 1:
            raise self._faults[0]
        if self._faults:
            faults = "\n".join(f"  - {fault}" for fault in self._faults)
            raise UserError(f"{len(self._faults)} faults:\n{faults}")
        return self._notes
