"""The HTML page: one file with its style, script, plots and examples, which works offline.

    summary = summarise(read_runs([Path("eval")]), title="My evaluation")
    svgs = tuple(panel_svg(p, f"accuracy-{i}") for i, p in enumerate(box_panels(summary)))
    figure = PageFigure("accuracy", "Accuracy over prompts", "A box ...", svgs, legend=())
    html = render_page(summary, [figure])

Every text that comes from data or files is untrusted. It is written to the page in two ways only:
through Jinja's autoescape, and as JSON whose `<`, `>`, `&` and `'` are numeric escapes, which the
script puts into text nodes. A content-security policy allows only this page's one script, and no
network address.

Assumptions: the templates beside this module are trusted; `figures` holds SVG from this package.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from t0.reports.evaluation_plots import axis_label
from t0.reports.evaluations import SHOWN_PREDICTIONS, EvaluatedRun
from t0.reports.example_scores import WORST_KEPT, ScoredExample
from t0.reports.plots import run_colour, run_letter
from t0.reports.published import MODELS, published
from t0.reports.significance import CONFIDENCE, RESAMPLES
from t0.reports.summary import CATEGORY, PART, WHOLE, Summary, group_values
from t0.reports.tables import count, fact, interval, number, p_value, shortened, signed, span

PAGE_LIMIT_BYTES = 4_800_000
_EXAMPLE_LIMITS = (WORST_KEPT, 12, 8, 5, 3, 2, 1)


@dataclass(frozen=True)
class PageFigure:
    """A plot of the page: its panels as SVG elements and the legend of its colours."""

    anchor: str
    heading: str
    caption: str
    panels: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]


def render_page(summary: Summary, figures: Sequence[PageFigure]) -> str:
    """Returns the page, with as many errors of each task as `PAGE_LIMIT_BYTES` allows, up to 20."""
    for shown in _EXAMPLE_LIMITS:
        candidate = _render(summary, figures, shown=shown)
        if len(candidate.encode()) <= PAGE_LIMIT_BYTES:
            return candidate
    return _render(summary, figures, shown=0)


def breakable(name: str, signs: str = "/_|") -> Any:
    """Returns a name as escaped HTML that may be broken after each of the `signs`."""
    from markupsafe import Markup, escape

    parts = re.split(f"(?<=[{re.escape(signs)}])", name)
    return Markup("<wbr>").join(escape(part) for part in parts)


def worst_errors(runs: Sequence[EvaluatedRun], shown: int) -> list[dict[str, Any]]:
    """Returns the worst errors of every task, at most `shown` of each, for the page's script."""
    return [
        {
            "run": position,
            "dataset": task.dataset,
            "prompt": task.prompt,
            "wrong": int((~task.scores.correct).sum()),
            "examples": len(task.scores),
            "errors": [_error(example) for example in task.scores.worst[:shown]],
        }
        for position, run in enumerate(runs)
        for task in run.tasks
        if task.scores is not None and task.scores.worst
    ]


def _error(example: ScoredExample) -> dict[str, Any]:
    return {
        "idx": example.idx,
        "margin": round(example.margin_nats, 3),
        "inputs": None if example.inputs is None else shortened(example.inputs),
        "gold": example.gold,
        "prediction": example.prediction,
        "choices": [
            [shortened(choice.text), round(choice.log_likelihood, 3), choice.tokens]
            for choice in example.choices
        ],
    }


@functools.cache
def _environment() -> Any:
    """Returns the Jinja environment, made once; templates are read as package data."""
    import jinja2

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
        "matches": lambda text, targets: text.strip() in targets,
        "shortened": shortened,
        "value_of": lambda facts, key: fact(facts.get(key)),
        "letter": run_letter,
        "run_colour": run_colour,
    }
    return environment


def _render(summary: Summary, figures: Sequence[PageFigure], *, shown: int) -> str:
    from markupsafe import Markup

    environment = _environment()
    script = environment.get_template("script.js.j2").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    datasets = set(summary.datasets.dataset)
    metrics = summary.metrics
    return environment.get_template("page.html.j2").render(
        summary=summary,
        runs=summary.runs,
        several=len(summary.runs) > 1,
        figures=figures,
        fact_keys=list(dict.fromkeys(key for run in summary.runs for key in run.facts)),
        datasets=list(summary.datasets.itertuples()),
        prompts=list(summary.prompts.itertuples()),
        values=list(metrics[metrics.kind == WHOLE].itertuples()),
        categories=lambda task: group_values(metrics, task, CATEGORY),
        parts=lambda task: group_values(metrics, task, PART),
        published={name: facts for name, facts in published().items() if name in datasets},
        models=MODELS,
        errors=worst_errors(summary.runs, shown) if shown else [],
        shown=shown,
        decoded_shown=-(-shown * SHOWN_PREDICTIONS // WORST_KEPT),
        resamples=RESAMPLES,
        confidence=round(100 * CONFIDENCE),
        script=Markup(script),
        script_digest=digest,
        svg=Markup,
    )
