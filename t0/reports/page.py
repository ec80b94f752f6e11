"""Renders the HTML page. It works offline, because its file contains the style, script and plots.

    summary = summarise(read_named_runs(["eval"])[0], title="My evaluation")
    svgs = tuple(panel_svg(p, f"accuracy-{i}") for i, p in enumerate(box_panels(summary)))
    figure = PageFigure("accuracy", "Accuracy over prompts", "A box ...", svgs, legend=())
    index, scripts = collect_examples(summary.runs)
    tables = evaluation_tables(summary)
    html = render_page(summary, tables, [figure], index=index, scripts=scripts)

If there are few examples, the page contains them. Otherwise they are in scripts next to the page,
see `example_browser`.

All text from data or files is untrusted. It reaches the page in only two ways: through Jinja's
autoescape, or as JSON. In this JSON, `<`, `>`, `&` and `'` are numeric escapes, and the page's
script puts the texts into text nodes. A content security policy allows only the page's own script
and the scripts with examples. The page cannot load anything else.

Assumptions: the templates next to this module are trusted, and `figures` contains SVG from this
package.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from t0.reports.evaluation_plots import axis_label
from t0.reports.evaluation_tables import group_tables
from t0.reports.example_browser import script_json
from t0.reports.held_out import held_out_means, held_out_titles, published_accuracies
from t0.reports.plots import RUN_COLOURS, themed
from t0.reports.statistics import CONFIDENCE
from t0.reports.summary import Summary
from t0.reports.tables import ReportTable, fact, number
from t0.reports.training_curves import TrainingCurves, training_table

# The page contains the examples if their scripts have at most this many characters in total.
EMBEDDED_BYTES = 600_000
_CALL = re.compile(r"t0Examples\(\d+, (.*)\);\n", re.DOTALL)


@dataclass(frozen=True)
class PageFigure:
    """A plot of the page.

    Attributes:
      panels: the plot's panels, as SVG markup.
      legend: for each run or series, its colour and its text in the legend.
      compares: whether the plot belongs to the comparison of runs.
    """

    anchor: str
    heading: str
    caption: str
    panels: tuple[Any, ...]
    legend: tuple[tuple[str, str], ...]
    compares: bool = False


def render_page(
    summary: Summary,
    tables: Mapping[str, ReportTable],
    figures: Sequence[PageFigure],
    *,
    index: Sequence[Mapping[str, Any]] = (),
    scripts: Mapping[str, str] | None = None,
    links: Sequence[tuple[str, str]] = (),
    curves: Sequence[TrainingCurves] = (),
) -> str:
    """Renders the HTML page of a report.

    Args:
      summary: the report's content.
      tables: the report's tables by name.
      figures: the report's plots.
      index: the index of the examples, see `example_browser.collect_examples`.
      scripts: file name -> script with examples; see `are_embedded`.
      links: for each other file of the report, its name and the text of the link to it.
      curves: the curves of the training runs.
    """
    from markupsafe import Markup

    scripts = scripts or {}
    embedded = scripts if are_embedded(scripts) else {}
    templates = environment()
    script = templates.get_template("script.js.j2").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    runs, datasets = summary.runs, {row["dataset"] for row in summary.datasets}
    marks = [[run.mark.letter, run.mark.position % len(RUN_COLOURS)] for run in runs]
    labels = [run.label for run in runs]
    return templates.get_template("page.html.j2").render(
        summary=summary,
        runs=runs,
        several=len(runs) > 1,
        tables=tables,
        group_tables=lambda task: group_tables(summary, task),
        figures=figures,
        fact_keys=list(dict.fromkeys(key for run in runs for key in run.facts)),
        sources=[row for row in published_accuracies() if datasets & set(row.datasets)],
        held_out=held_out_means(runs),
        all_held_out=len(held_out_titles()),
        index={"runs": labels, "marks": marks, "groups": index} if index else None,
        embedded={
            name.removesuffix(".js"): Markup(_CALL.fullmatch(text)[1])
            for name, text in embedded.items()
        },
        loads_scripts=not are_embedded(scripts),
        links=links,
        training=curves,
        training_rows=training_table(curves),
        confidence=round(100 * CONFIDENCE),
        script=Markup(script),
        script_digest=digest,
    )


def are_embedded(scripts: Mapping[str, str]) -> bool:
    """Returns whether the page contains the examples; otherwise they are in scripts next to it."""
    return sum(map(len, scripts.values())) <= EMBEDDED_BYTES


def breakable(name: str, signs: str = "/_|") -> Any:
    """Escapes a name for HTML and allows line breaks after each of the `signs`."""
    from markupsafe import Markup, escape

    pieces = re.split(f"(?<=[{re.escape(signs)}])", name)
    return Markup("<wbr>").join(escape(piece) for piece in pieces)


@functools.cache
def environment() -> Any:
    """Returns the Jinja environment, which reads the templates in this package."""
    import jinja2
    from markupsafe import Markup

    folder = resources.files(__package__)
    templates = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
    )
    templates.filters |= {
        "number": number,
        "breakable": breakable,
        "axis_label": axis_label,
        "value_of": lambda facts, key: fact(facts.get(key)),
        "run_colour": lambda position: f"var(--run-{position % len(RUN_COLOURS)})",
        "themed": themed,
        "script_json": lambda value: Markup(script_json(value)),
    }
    return templates
