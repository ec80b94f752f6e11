"""The HTML page: one file that holds its style, script, plots and examples, and works offline.

    html = render_page(Content(title=..., notes=..., runs=..., rows=..., comparisons=...), figures)

Every text that comes from data or files is untrusted. It reaches the page in two ways only: through
Jinja's autoescape, and as JSON whose `<`, `>`, `&` and `'` are written as numeric escapes, which
the script puts into text nodes. A content-security policy allows this page's one script and no
address.

Assumptions: the templates beside this module are trusted; `figures` holds SVG made by this room.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from t0.reports.decoded import SHOWN_PREDICTIONS
from t0.reports.figures import letter, run_colour
from t0.reports.generation import Generation, axis_label, signature_notes
from t0.reports.published import MODELS, published
from t0.reports.read import Run, Task
from t0.reports.scores import WORST_KEPT, Example
from t0.reports.statistics import CONFIDENCE, RESAMPLES, Interval
from t0.reports.summary import Comparison, DatasetRow

PAGE_LIMIT_BYTES = 4_800_000
_TEXT_LIMIT = 1_500  # characters of an input or a choice shown in the browser of errors
_EXAMPLE_LIMITS = (WORST_KEPT, 12, 8, 5, 3, 2, 1)


@dataclass(frozen=True)
class Content:
    """What a report says, in whatever form it is written."""

    title: str
    notes: tuple[str, ...]
    runs: tuple[Run, ...]
    rows: tuple[DatasetRow, ...]
    comparisons: tuple[Comparison, ...]
    generations: tuple[Generation, ...] = ()


@dataclass(frozen=True)
class PageFigure:
    """A plot of the page: its panels as SVG elements and the legend of its colours."""

    anchor: str
    heading: str
    caption: str
    panels: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]


def render_page(content: Content, figures: Sequence[PageFigure]) -> str:
    """Returns the page, with as many errors of each task as `PAGE_LIMIT_BYTES` allows, up to 20."""
    for shown in _EXAMPLE_LIMITS:
        candidate = _render(content, figures, shown=shown)
        if len(candidate.encode("utf-8", "replace")) <= PAGE_LIMIT_BYTES:
            return candidate
    return _render(content, figures, shown=0)


def number(value: float | None, digits: int = 1) -> str:
    """Returns a number with the digits given, a dash for None.

    >>> number(54.151), number(None)
    ('54.2', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """Returns a number with its sign, a typographic minus among them, no sign for zero.

    >>> signed(-2.04), signed(0.01)
    ('−2.0', '0.0')
    """
    text = f"{value:+.{digits}f}"
    return text[1:] if not float(text) else text.replace("-", "−")


def interval(value: Interval | None, digits: int = 1) -> str:
    """Returns an interval as "low to high", empty for None; a range of negatives stays legible."""
    if value is None:
        return ""
    low, high = (f"{v:.{digits}f}".replace("-", "−") for v in (value.low, value.high))
    return f"{low} to {high}"


def p_value(p: float) -> str:
    """Returns a p-value to two significant digits, or that it is below 0.001."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def fact(value: Any) -> str:
    """Returns a value of the results' `run` object as text; objects as "key value, ...".

    >>> fact({"inputs": 1024, "targets": 256})
    'inputs 1024, targets 256'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(fact, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def breakable(name: str, signs: str = "/_|") -> Any:
    """Returns a name, escaped, with leave to break the line after each of the `signs`."""
    from markupsafe import Markup, escape

    parts = re.split(f"(?<=[{re.escape(signs)}])", name)
    return Markup("<wbr>").join(escape(part) for part in parts)


def all_notes(content: Content) -> list[str]:
    """Returns the caller's notes, those of the runs, and what the reader must know of the data."""
    notes = dict.fromkeys([*content.notes, *(note for run in content.runs for note in run.notes)])
    return [*notes, *_warnings(content), *signature_notes(content.generations)]


def _warnings(content: Content) -> list[str]:
    found = []
    tied = [task.name for run in content.runs for task in run.tasks if _mostly_tied(task)]
    if tied:
        all_of_them = sum(len(run.tasks) for run in content.runs)
        found.append(
            f"In {len(tied)} of {all_of_them} evaluations of a task "
            "most examples have several choices of the same highest score, so the accuracy says "
            f"little: {_some(list(dict.fromkeys(tied)))}."
        )
    for run in content.runs:
        bare = [task.name for task in run.tasks if task.scores is None]
        if bare:
            found.append(
                f"{run.label}: {len(bare)} of {len(run.tasks)} tasks have no per-example scores "
                "beside the results; they show no intervals, ties or errors."
            )
        if run.skipped:
            found.append(
                f"{run.label}: {len(run.skipped)} tasks state no accuracy and are left out: "
                f"{_some(run.skipped)}."
            )
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


def _mostly_tied(task: Task) -> bool:
    return task.scores is not None and len(task.scores) > 0 and task.scores.tied.mean() > 0.5


def errors_data(runs: Sequence[Run], shown: int) -> list[dict[str, Any]]:
    """Returns the worst errors of every task for the page's browser, `shown` of each at most."""
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


def _error(example: Example) -> dict[str, Any]:
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


def shortened(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Returns a text, or its beginning and how much is left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … [{len(text) - limit:,} more characters]"


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
        "signed": signed,
        "interval": interval,
        "p_value": p_value,
        "fact": fact,
        "breakable": breakable,
        "axis_label": axis_label,
        "matches": lambda text, targets: text.strip() in targets,
        "shortened": shortened,
        "value_of": lambda facts, key: fact(facts.get(key)),
        "letter": letter,
        "run_colour": run_colour,
    }
    return environment


def _render(content: Content, figures: Sequence[PageFigure], *, shown: int) -> str:
    from markupsafe import Markup

    environment = _environment()
    script = environment.get_template("script.js.j2").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    datasets = {row.dataset for row in content.rows}
    keys = list(dict.fromkeys(key for run in content.runs for key in run.facts))
    return environment.get_template("page.html.j2").render(
        content=content,
        runs=content.runs,
        notes=all_notes(content),
        several=len(content.runs) > 1,
        figures=figures,
        fact_keys=keys,
        published={name: facts for name, facts in published().items() if name in datasets},
        models=MODELS,
        errors=errors_data(content.runs, shown) if shown else [],
        shown=shown,
        cards_shown=-(-shown * SHOWN_PREDICTIONS // WORST_KEPT),
        resamples=RESAMPLES,
        confidence=round(100 * CONFIDENCE),
        script=Markup(script),
        script_digest=digest,
        signatures_of=_signatures_of,
        measure_heads=lambda found: [(axis_label(m), "n") for m in found.measures],
        svg=Markup,
    )


def _signatures_of(found: Generation) -> list[tuple[str, str]]:
    pairs = (pair for row in found.rows for pair in row.task.signatures.items())
    return list(dict.fromkeys(pairs))
