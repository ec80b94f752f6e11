"""Flags with comma-separated values that may be given several times.

    parser.add_argument("--cache_dirs", default="", action=JoinedList)
    parser.parse_args(["--cache_dirs=a,b", "--cache_dirs=c"]).cache_dirs      # "a,b,c"

`argparse` would keep the last value only.
"""

import argparse
from typing import Any


class JoinedList(argparse.Action):
    """Joins the values of all occurrences with commas; they replace the default."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Adds the value of one occurrence."""
        before = getattr(namespace, self.dest)
        first = not before or before is self.default
        setattr(namespace, self.dest, values if first else f"{before},{values}")
