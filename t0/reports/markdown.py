"""Markdown that says exactly what it is given: texts are untrusted, HTML in them included.

plain("<b> | *")                                     # &lt;b&gt;, both signs escaped
table(["Prompt", "Accuracy"], [["GPT-3", 54.2]], 1)  # lines of a table
"""

import html
import re
from collections.abc import Sequence

_SIGNS = re.compile(r"([\\`*_\[\]|#~])")


def plain(text: object) -> str:
    """Returns text that Markdown shows as it is: no markup, no HTML, one line."""
    escaped = _SIGNS.sub(r"\\\1", " ".join(str(text).split()))
    return html.escape(escaped, quote=False)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], texts: int) -> list[str]:
    """Returns a table whose first `texts` columns are left-aligned texts, the others numbers."""
    rules = ["---"] * texts + ["---:"] * (len(heads) - texts)
    lines = [heads, rules, *([plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]
