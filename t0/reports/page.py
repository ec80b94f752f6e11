"""The HTML page: one file with its style, script and plots, which works offline.

    summary = summarise(read_named_runs(["eval"])[0], title="My evaluation")
    svgs = tuple(panel_svg(p, f"accuracy-{i}") for i, p in enumerate(box_panels(summary)))
    figure = PageFigure("accuracy", "Accuracy over prompts", "A box ...", svgs, legend=())
    index, scripts = browsed(summary.runs)
    tables = evaluation_tables(summary)
    html, beside = render_page(summary, tables, [figure], index=index, scripts=scripts)

Few examples are in the page; many are in scripts beside it (`beside`), see `browsed`. A page that
is still too large has its largest sections in scripts, too, see `parts`.

Every text that comes from data or files is untrusted. It is written to the page in two ways only:
through Jinja's autoescape, and as JSON whose `<`, `>`, `&` and `'` are numeric escapes, which the
script puts into text nodes; a section in a script was escaped before. A content-security policy
allows only this page's one script, the scripts beside it where there are some, and no other
address.

Assumptions: the templates beside this module are trusted; `figures` holds SVG from this package.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from t0.reports.browsed import script_json
from t0.reports.cells import fact, number
from t0.reports.evaluation_plots import axis_label
from t0.reports.evaluation_tables import group_tables
from t0.reports.held_out import held_out_means
from t0.reports.parts import parted
from t0.reports.plots import RUN_COLOURS, themed
from t0.reports.published import figures as figures_of_t0
from t0.reports.statistics import CONFIDENCE
from t0.reports.summary import Summary
from t0.reports.tables import Table
from t0.reports.training_curves import TrainingCurves, training_table

# No page is larger: what does not fit is in scripts beside it.
PAGE_LIMIT_BYTES = 2_000_000
# Examples that are together smaller are in the page, if they fit.
EMBEDDED_BYTES = 600_000
_CALL = re.compile(r"t0Examples\(\d+, (.*)\);\n", re.DOTALL)


@dataclass(frozen=True)
class PageFigure:
    """A plot of the page.

    Attributes:
      panels: SVG elements, as markup.
      legend: (colour, text) of each run or series.
      zoomed: the same panels, each with an axis of its own, if the axis of `panels` is shared.
      compares: whether it is part of the comparison of runs.
    """

    anchor: str
    heading: str
    caption: str
    panels: tuple[Any, ...]
    legend: tuple[tuple[str, str], ...]
    zoomed: tuple[Any, ...] = ()
    compares: bool = False


def render_page(
    summary: Summary,
    tables: Mapping[str, Table],
    figures: Sequence[PageFigure],
    *,
    index: Sequence[Mapping[str, Any]] = (),
    scripts: Mapping[str, str] | None = None,
    links: Sequence[tuple[str, str]] = (),
    curves: Sequence[TrainingCurves] = (),
) -> tuple[str, Mapping[str, str]]:
    """Returns the page, and the scripts that have to be beside it.

    Args:
      summary: the report's content.
      tables: its tables by name.
      figures: the plots.
      index: the index of the examples, see `browsed`.
      scripts: their scripts by name.
      links: (file name, text) of the report's other files.
      curves: the training runs.
    """
    scripts = scripts or {}
    render = functools.partial(_render, summary, tables, index=index, links=links, curves=curves)
    if sum(map(len, scripts.values())) <= EMBEDDED_BYTES:
        text = render(figures, embedded=scripts, loads_scripts=False)
        if len(text.encode()) <= PAGE_LIMIT_BYTES:
            return text, {}
    text, parts = parted(render(figures, embedded={}, loads_scripts=True), PAGE_LIMIT_BYTES)
    return text, {**scripts, **parts}


def breakable(name: str, signs: str = "/_|") -> Any:
    """Returns a name as escaped HTML that may be broken after each of the `signs`."""
    from markupsafe import Markup, escape

    parts = re.split(f"(?<=[{re.escape(signs)}])", name)
    return Markup("<wbr>").join(escape(part) for part in parts)


@functools.cache
def environment() -> Any:
    """Returns the Jinja environment, made once; templates are read as package data."""
    import jinja2
    from markupsafe import Markup

    folder = resources.files(__package__)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
    )
    environment.filters |= {
        "number": number,
        "breakable": breakable,
        "axis_label": axis_label,
        "value_of": lambda facts, key: fact(facts.get(key)),
        "run_colour": lambda position: f"var(--run-{position % len(RUN_COLOURS)})",
        "themed": themed,
        "script_json": lambda value: Markup(script_json(value)),
    }
    return environment


def _render(
    summary: Summary,
    tables: Mapping[str, Table],
    figures: Sequence[PageFigure],
    *,
    index: Sequence[Mapping[str, Any]],
    embedded: Mapping[str, str],
    loads_scripts: bool,
    links: Sequence[tuple[str, str]],
    curves: Sequence[TrainingCurves],
) -> str:
    from markupsafe import Markup

    made = environment()
    script = made.get_template("script.js.j2").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    runs, datasets = summary.runs, set(summary.datasets.dataset)
    marks = [[run.mark.letter, run.mark.position % len(RUN_COLOURS)] for run in runs]
    return made.get_template("page.html.j2").render(
        summary=summary,
        runs=runs,
        several=len(runs) > 1,
        tables=tables,
        group_tables=lambda task: group_tables(summary, task),
        figures=figures,
        fact_keys=list(dict.fromkeys(key for run in runs for key in run.facts)),
        sources=[row for row in figures_of_t0() if datasets & set(row.datasets)],
        held_out=held_out_means(summary),
        index={"runs": [run.label for run in runs], "marks": marks, "groups": index}
        if index
        else None,
        embedded={
            name.removesuffix(".js"): Markup(_CALL.fullmatch(text)[1])
            for name, text in embedded.items()
        },
        loads_scripts=loads_scripts,
        links=links,
        training=curves,
        training_rows=training_table(curves),
        confidence=round(100 * CONFIDENCE),
        script=Markup(script),
        script_digest=digest,
    )
