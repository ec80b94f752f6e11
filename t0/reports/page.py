"""The HTML page: one file with its style, script and plots, which works offline.

    summary = summarise(read_runs([Path("eval")]), title="My evaluation")
    svgs = tuple(panel_svg(p, f"accuracy-{i}") for i, p in enumerate(box_panels(summary)))
    figure = PageFigure("accuracy", "Accuracy over prompts", "A box ...", svgs, legend=())
    index, scripts = browsed(summary.runs)
    html, beside = render_page(summary, [figure], index=index, scripts=scripts)

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
from t0.reports.cells import (
    WAYS_SENTENCE,
    clean_cells,
    clean_heads,
    count,
    fact,
    interval,
    number,
    p_value,
    shortened,
    signed,
    span,
    ways_cells,
    ways_heads,
)
from t0.reports.evaluation_plots import axis_label
from t0.reports.held_out import HeldOutMean
from t0.reports.markdown_tables import run_mean
from t0.reports.parts import parted
from t0.reports.plots import RUN_COLOURS, run_letter, themed
from t0.reports.published import MODELS, published
from t0.reports.published import figures as figures_of_t0
from t0.reports.statistics import CONFIDENCE
from t0.reports.summary import CATEGORY, PART, WHOLE, Summary, group_values
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
      panels: SVG elements.
      legend: (colour, text) of each run or series.
      zoomed: the same panels, each with an axis of its own, if the axis of `panels` is shared.
    """

    anchor: str
    heading: str
    caption: str
    panels: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]
    zoomed: tuple[str, ...] = ()


def render_page(
    summary: Summary,
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
      figures: the plots.
      index: the index of the examples, see `browsed`.
      scripts: their scripts by name.
      links: (file name, text) of the report's other files.
      curves: the training runs.
    """
    scripts = scripts or {}
    render = functools.partial(_render, summary, index=index, links=links, curves=curves)
    if sum(map(len, scripts.values())) <= EMBEDDED_BYTES:
        text = render(figures, embedded=scripts, loads_scripts=False)
        if len(text.encode()) <= PAGE_LIMIT_BYTES:
            return text, {}
    text, parts = parted(render(figures, embedded={}, loads_scripts=True), PAGE_LIMIT_BYTES)
    return text, {**scripts, **parts}


def _held_out(summary: Summary) -> list[tuple[int, HeldOutMean]]:
    """Returns (run, its mean over T0's held-out datasets) of the runs that have one."""
    found = [(position, run_mean(summary, position)) for position in range(len(summary.runs))]
    return [(position, mean) for position, mean in found if mean is not None]


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
        "count_text": count,
        "span": lambda ends: span(*ends),
        "signed": signed,
        "interval": interval,
        "p_value": p_value,
        "fact": fact,
        "breakable": breakable,
        "axis_label": axis_label,
        "shortened": shortened,
        "value_of": lambda facts, key: fact(facts.get(key)),
        "letter": run_letter,
        "run_colour": lambda position: f"var(--run-{position % len(RUN_COLOURS)})",
        "themed": themed,
        "script_json": lambda value: Markup(script_json(value)),
    }
    return environment


def page_script() -> tuple[Any, str]:
    """Returns the page's script and the digest by which its policy allows it."""
    from markupsafe import Markup

    script = environment().get_template("script.js.j2").render()
    return Markup(script), base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _render(
    summary: Summary,
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
    script, digest = page_script()
    datasets = set(summary.datasets.dataset)
    of_clean, gaps = clean_heads(summary.clean)
    by_way = ways_heads(summary.ways)
    metrics = summary.metrics
    return made.get_template("page.html.j2").render(
        summary=summary,
        runs=summary.runs,
        several=len(summary.runs) > 1,
        figures=figures,
        fact_keys=list(dict.fromkeys(key for run in summary.runs for key in run.facts)),
        datasets=list(summary.datasets.itertuples()),
        prompts=list(summary.prompts.itertuples()),
        clean_heads=[("Dataset", "t"), ("Run", "t"), *((head, "n") for head in of_clean)],
        clean=[
            (row, list(zip(of_clean, clean_cells(row, gaps=gaps), strict=True)))
            for row in summary.clean
        ],
        ways_sentence=WAYS_SENTENCE,
        ways_heads=[("Dataset", "t"), ("Run", "t"), *((head, "n") for head in by_way.values())],
        ways=[
            (row, list(zip(by_way.values(), ways_cells(row, by_way), strict=True)))
            for row in summary.ways
        ],
        values=list(metrics[metrics.kind == WHOLE].itertuples()),
        categories=lambda task: group_values(metrics, task, CATEGORY),
        parts=lambda task: group_values(metrics, task, PART),
        published={name: facts for name, facts in published().items() if name in datasets},
        sources=[row for row in figures_of_t0() if datasets & set(row.datasets)],
        models=MODELS,
        held_out=_held_out(summary),
        index={"runs": [run.label for run in summary.runs], "groups": index} if index else None,
        embedded={
            name.removesuffix(".js"): Markup(_CALL.fullmatch(text)[1])
            for name, text in embedded.items()
        },
        loads_scripts=loads_scripts,
        links=links,
        training=curves,
        training_rows=training_table(curves),
        confidence=round(100 * CONFIDENCE),
        script=script,
        script_digest=digest,
        svg=Markup,
    )
