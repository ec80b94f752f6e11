r"""Sections of a page in scripts beside it, so that the page stays below a size.

    whole = '<section id="prompts">\n<table>...</table>\n</section>'
    text, scripts = parted(whole, 20)
    scripts["report_part_prompts.js"]     # puts the section "prompts" back where it was

The largest sections go first, as many as have to. A page that was opened from a file cannot fetch
another file, but it can load a script: this one puts the section's HTML before itself while the
page is read, so that the page's own script, at its end, finds a page that is whole.

Assumptions: a section with an id holds no other section; texts of data are escaped in the page, so
that none of them looks like a section.
"""

import re

from t0.reports.browsed import script_json

PATTERN = "report_part_*.js"
_SECTION = re.compile(r'(<section id="([\w-]+)">\n)(.*?)(</section>)', re.DOTALL)
_PLACE = """\
<p>This part is in {name}, which has to lie beside this page; it needs JavaScript.</p>
<script src="{name}"></script>
"""
_SCRIPT = """\
(function () {{
  var here = document.currentScript;
  here.previousElementSibling.remove();
  here.insertAdjacentHTML("beforebegin", {html});
}})();
"""


def parted(page: str, limit_bytes: int) -> tuple[str, dict[str, str]]:
    r"""Returns a page of at most so many bytes, and the scripts of the sections that it loads.

    What is outside of sections stays in the page, whatever its size. The page's policy has to admit
    scripts beside it.

    >>> parted('<section id="runs">\nNone.</section>', 1_000)
    ('<section id="runs">\nNone.</section>', {})
    """
    scripts: dict[str, str] = {}
    sizes = {found[2]: len(found[3].encode()) for found in _SECTION.finditer(page)}
    excess = len(page.encode()) - limit_bytes
    for anchor in sorted(sizes, key=lambda anchor: -sizes[anchor]):
        if excess <= 0:
            break
        scripts[anchor] = ""
        excess -= sizes[anchor] - len(_PLACE.format(name=_name(anchor)))

    def place(found: re.Match[str]) -> str:
        anchor = found[2]
        if anchor not in scripts:
            return found[0]
        scripts[anchor] = _SCRIPT.format(html=script_json(found[3]))
        return found[1] + _PLACE.format(name=_name(anchor)) + found[4]

    text = _SECTION.sub(place, page)
    return text, {_name(anchor): script for anchor, script in scripts.items()}


def _name(anchor: str) -> str:
    return f"report_part_{anchor}.js"
