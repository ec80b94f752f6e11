"""Opens the templates of pages, and gives pages the style and the script that their file contains.

    page_template("page.html.j2")     # .render(**read_assets("script.js"), report=report, ...)

The environment escapes all texts. Only the style, the script and SVG that this package makes are
`Markup`, which is not escaped.

Assumption: the templates next to this module are trusted.
"""

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import Any

from t0.reports.evaluation_plots import axis_label
from t0.reports.examples import script_json
from t0.reports.plots import RUN_COLOURS, themed
from t0.reports.tables import fact, number


def page_template(name: str) -> Any:
    """Returns a template of this package, which escapes all texts."""
    return _environment().get_template(name)


@functools.cache
def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    templates = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
    )
    templates.filters |= {
        "number": number,
        "breakable": _make_breakable,
        "axis_label": axis_label,
        "value_of": lambda facts, key: fact(facts.get(key)),
        "run_colour": lambda position: f"var(--run-{position % len(RUN_COLOURS)})",
        "themed": themed,
        "script_json": lambda value: Markup(script_json(value)),
    }
    return templates


def read_assets(script_name: str) -> dict[str, Any]:
    """Returns a page's `style`, its `script`, and the script's `script_digest` for the page's policy.

    Args:
      script_name: the name of the script's file, next to this module.
    """
    from markupsafe import Markup

    templates = _environment()
    script, style = (
        templates.loader.get_source(templates, name)[0].removesuffix("\n")
        for name in (script_name, "style.css")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(style), "script": Markup(script), "script_digest": digest}


def _make_breakable(name: str, signs: str = "/_|") -> Any:
    """Escapes a name for HTML and allows line breaks after each of the `signs`."""
    from markupsafe import Markup, escape

    pieces = re.split(f"(?<=[{re.escape(signs)}])", name)
    return Markup("<wbr>").join(escape(piece) for piece in pieces)
