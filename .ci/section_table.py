"""Writes the table of sections in CONTRIBUTING.md: tests and minutes, from the output of a run.

    bash .ci/run 2>&1 | tee run.log
    .venv/bin/python .ci/section_table.py run.log

A section that the output does not contain, or that failed, keeps its row.
"""

import datetime
import os
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
_SECTION = re.compile(
    r"^=== (?P<name>.+)\n(?P<text>(?:(?!=== [\w. -]+$).*\n)*?)=== (?P=name): ok, (?P<seconds>\d+) s$",
    re.M,
)
_PASSED = re.compile(r"(\d+) passed")
_ROW = re.compile(
    r"^(?P<head>  \| `?(?P<name>[\w. -]+?)`?(?P<about>:[^|]*)?) \|[^|]*\|[^|]*\|(?P<limit>[^|]*)\|$",
    re.M,
)
_MACHINE = re.compile(r"(?<=The table shows the last run, )[^.]*(?=\.)")


def sections(output: str) -> dict[str, tuple[int, float]]:
    """Returns section -> (passed tests, minutes)."""
    return {
        match["name"]: (sum(map(int, _PASSED.findall(match["text"]))), int(match["seconds"]) / 60)
        for match in _SECTION.finditer(output)
    }


def updated(page: str, output: str, machine: str) -> str:
    """Returns the page with the tests and minutes of a run, and its machine."""
    done = sections(output)

    def row(match: re.Match[str]) -> str:
        if match["name"] not in done:
            return match[0]
        tests, minutes = done[match["name"]]
        return (
            f"{match['head']} | {f'{tests:,}' if tests else ''} | {minutes:.1f} |{match['limit']}|"
        )

    head, mark, table = page.partition("| section ")
    return _MACHINE.sub(machine, head) + mark + _ROW.sub(row, table)


def _machine() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return f"{datetime.date.today():%-d %B %Y}, on {os.cpu_count()} cores of {names[0]}"


if __name__ == "__main__":
    log = Path(sys.argv[1]).read_text(encoding="utf-8")
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), log, _machine()), encoding="utf-8")
