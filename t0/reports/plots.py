"""What the report's plots share: panels, reference lines, legends, and putting panels together.

Each plot is made of panels; a panel alone goes into the page as SVG, all panels of a plot together
into one PNG. One function draws a panel in both places.

    panels = box_panels(rows, runs)                    # t0.reports.boxes: one for each dataset
    svgs = [panel_svg(panel, f"box-{i}") for i, panel in enumerate(panels)]
    png = panels_png(panels, legend=run_legend(runs), heading="Accuracy over prompts")

Chance is the dotted line, published values the dashed ones.

Assumptions: accuracies in percent.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from t0.reports import figures
from t0.reports.read import Run
from t0.reports.summary import DatasetRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_REFERENCE_STYLE = {
    "T0-11B": ((0, (6, 2)), "#7a4b94"),
    "T0-3B": ((0, (3, 2)), "#4c7a3f"),
    "chance": ((0, (1, 2)), "#555555"),
}
_PANEL_WIDTH_INCHES, _PANEL_HEIGHT_INCHES = 3.3, 2.8
_COLUMNS = 3
_TITLE_CHARACTERS, _TITLE_LINES = 30, 3
_SMALLEST_SPAN = 20.0  # percentage points: a smaller axis would make noise look like an effect


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        draw: draws onto axes and returns the tooltips of the artists it marked.
    """

    title: str
    description: str
    draw: Callable[["Axes"], list[str]]


def run_legend(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns (colour, text) for each run, with its letter where there are several."""
    letters = [f"{figures.letter(i)}  " if len(runs) > 1 else "" for i in range(len(runs))]
    return [(figures.run_colour(i), letters[i] + run.label) for i, run in enumerate(runs)]


def references(rows: Sequence[DatasetRow]) -> dict[str, float]:
    """Returns the reference lines by name: chance (mean over the runs) and published values."""
    chances = [row.chance for row in rows if row.chance is not None]
    lines = {"chance": sum(chances) / len(chances)} if chances else {}
    facts = rows[0].published
    return lines | (dict(facts.values) if facts else {})


def draw_references(axes: "Axes", lines: dict[str, float]) -> None:
    """Draws the lines and writes their names at the right margin, moved apart where close."""
    low, high = axes.get_ylim()
    names = sorted(lines, key=lines.__getitem__)
    gap = 0.075 * (high - low)
    places = [lines[name] for name in names]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    if places:
        excess = max(0.0, places[-1] - high)
        places = [place - excess for place in places]
    for name, place in zip(names, places, strict=True):
        style, colour = _REFERENCE_STYLE[name]
        axes.axhline(lines[name], linestyle=style, color=colour, linewidth=1.3, zorder=1)
        axes.annotate(
            f"{name} {lines[name]:.1f}",
            (1.015, place),
            annotation_clip=False,
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
            color=colour,
        )


def limit_percent(axes: "Axes", values: Sequence[float]) -> None:
    """Gives an axis of percentages limits that hold the values and span at least 20 points."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(values), max(values)
    pad = max(0.08 * (high - low), (_SMALLEST_SPAN - (high - low)) / 2)
    low, high = max(low - pad, -1.5), min(high + pad, 101.5)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.set_ylabel("accuracy (%)")


def set_title(axes: "Axes", text: str) -> None:
    """Writes a panel's title, in lines that fit its width."""
    axes.set_title("\n".join(title_lines(text)))


def title_lines(text: str, width: int = _TITLE_CHARACTERS) -> list[str]:
    """Returns a name in lines: broken after a sign where there is one, the third cut short.

    >>> title_lines("super_glue/wsc.fixed", width=12)
    ['super_glue/', 'wsc.fixed']
    """
    lines = [""]
    for part in re.findall(r"[^\s/_:.-]*[\s/_:.-]?", text):
        for piece in (part[i : i + width] for i in range(0, len(part), width)):
            if len(lines[-1]) + len(piece.rstrip()) > width:
                lines.append("")
            lines[-1] += piece
    lines = [line.strip() for line in lines]
    if len(lines) > _TITLE_LINES:
        lines = [*lines[: _TITLE_LINES - 1], lines[_TITLE_LINES - 1][: width - 1] + "…"]
    return lines


def panel_svg(panel: Panel, name: str) -> str:
    """Returns one panel as an `<svg>` element; `name` prefixes its ids."""
    figure = figures.new_figure(_PANEL_WIDTH_INCHES, _PANEL_HEIGHT_INCHES)
    with figures.styled():
        axes = figure.subplots()
        set_title(axes, panel.title)
        tooltips = panel.draw(axes)
    return figures.inline_svg(figure, name, panel.description, tooltips)


def panels_png(
    panels: Sequence[Panel], *, legend: Sequence[tuple[str, str]], heading: str
) -> bytes:
    """Returns all panels in one picture, with a heading and a legend of colours above them."""
    from matplotlib.lines import Line2D

    # Four in two rows of two: three would leave one alone.
    columns = 2 if len(panels) == 4 else min(_COLUMNS + (len(panels) > 9), len(panels))
    rows = -(-len(panels) // columns)
    top = 0.55 + 0.22 * len(legend)
    height = rows * _PANEL_HEIGHT_INCHES + top
    figure = figures.new_figure(max(columns * _PANEL_WIDTH_INCHES, 5.0), height)
    with figures.styled():
        figure.get_layout_engine().set(
            hspace=0.06, rect=(0.01, 0.01, 0.98, 1 - top / height - 0.01)
        )
        figure.text(0.012, 1 - 0.3 / height, heading, fontsize=12, fontweight="bold", va="center")
        handles = [
            Line2D([], [], marker="s", markersize=8, linestyle="", color=colour, label=text)
            for colour, text in legend
        ]
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.0, 1 - 0.45 / height),
            fontsize=9,
            alignment="left",
            handletextpad=0.2,
        )
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            set_title(axes, panel.title)
            panel.draw(axes)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
    return figures.png_bytes(figure)
