"""Draws panels with matplotlib: each as inline SVG, or all together as one picture.

    def draw(axes):
        axes.plot([1, 2], [3, 4])
        return []

    panel = Panel("Loss", "Loss against training step", draw)
    svg = panel_svg(panel, "loss-0")
    files = panel_pictures([panel], legend=[("#0072b2", "my model")], heading="Training curves")
    files["pdf"]                             # the bytes of the picture; also "png" and "svg"

Each plot of a report consists of panels. The page contains each panel as an SVG. A picture contains
all panels of a plot, as PNG, and as PDF and SVG for papers. The same function draws a panel in all
formats. matplotlib's global state is not used.

`inline_svg` changes matplotlib's SVG for the page: it adds a tooltip for each point and a text
alternative, makes ids unique in the page, and removes XML namespaces. An artist (matplotlib's term
for a drawn object) with `gid=tooltip_id(n)` gets the n-th tooltip.

matplotlib is imported only when something is drawn. The same figure always gives the same bytes,
because dates are left out and ids are hashed with a fixed salt. Assumption: texts are printable,
because SVG does not allow control characters.
"""

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PNG_DOTS_PER_INCH = 160
INK = "#22303c"
MUTED = "#5d6b78"
GRID = "#e4e8ec"
# The palette of Okabe and Ito. Colour-blind readers can distinguish its colours. The darkest
# colours come first.
RUN_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#a07800",
    "#56b4e9",
    "#6a51a3",
    "#222222",
)

_STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#9aa6b2",
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, because many publishers refuse Type 3
    "svg.hashsalt": "t0 report",
}
# Matches a reference to an id in SVG.
_REFERENCE = re.compile(r"url\(#|^#")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
# Colour in a picture -> the page's CSS variable for it, see style.css.
_VARIABLES = {
    **{colour: f"var(--run-{number})" for number, colour in enumerate(RUN_COLOURS)},
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    "#ffffff": "var(--page)",
    "#9aa6b2": "var(--edge)",
    "#555555": "var(--muted)",
    "#000000": "var(--ink)",
    "#7a4b94": "var(--t0-11b)",
    "#4c7a3f": "var(--t0-3b)",
}
_PANEL_WIDTH_INCHES, _PANEL_HEIGHT_INCHES = 3.3, 2.8
_COLUMNS = 3
_TITLE_CHARACTERS, _TITLE_LINES = 30, 3
_SVG_DOTS_PER_INCH = 72  # points, the unit of SVG
# An id of a clip path or a marker in matplotlib's SVG.
_HASHED_ID = re.compile(rb'(?<=[#"])[mp][0-9a-f]{10}(?=[)"])')


@dataclass(frozen=True)
class Panel:
    """A panel: one pair of axes with a title.

    Attributes:
      draw: a function that draws on the axes, and returns the tooltips of the artists with a
        `tooltip_id`.
    """

    title: str
    description: str
    draw: Callable[["Axes"], list[str]]


def run_colour(position: int) -> str:
    """Returns the colour of the run at a position in the report. The eight colours repeat."""
    return RUN_COLOURS[position % len(RUN_COLOURS)]


def run_letter(position: int) -> str:
    """Returns the short name of a run: A, B ... Z, then A2, B2 ...

    >>> run_letter(0), run_letter(27)
    ('A', 'B2')
    """
    lap, offset = divmod(position, 26)
    return chr(ord("A") + offset) + (str(lap + 1) if lap else "")


@dataclass(frozen=True)
class Mark:
    """The letter, colour and name with which tables and plots show a checkpoint or a run.

    Attributes:
      letter: the short name, see `run_letter`; "A.2" is the second checkpoint of run A.
      position: the run's position in the report, which determines the colour.
      name: the full name.
    """

    letter: str = "A"
    position: int = 0
    name: str = ""

    @property
    def colour(self) -> str:
        """The run's colour in pictures."""
        return run_colour(self.position)


def tooltip_id(number: int) -> str:
    """Returns the `gid` for the artist that gets the tooltip with this number."""
    return f"tip-{number}"


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    """Returns an empty figure that is not registered with pyplot."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        return Figure(figsize=(width_inches, height_inches), layout="constrained")


def styled() -> object:
    """Returns a context manager that applies the report's style to axes and saved figures."""
    from matplotlib import rc_context

    return rc_context(_STYLE)


def percent_axis(axes: "Axes") -> None:
    """Makes the y axis an accuracy from 0 to 100, so that panels can be compared."""
    from matplotlib.ticker import MaxNLocator

    axes.set_ylim(-1.5, 101.5)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.set_ylabel("accuracy (%)")


def name_lines(axes: "Axes") -> None:
    """Names the lines that have a label at the right margin, if there is such a line."""
    if axes.get_legend_handles_labels()[1]:
        where = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "borderaxespad": 0.2}
        axes.legend(**where, fontsize=7, labelcolor="linecolor", handlelength=1.4, reverse=True)


def step_axis(axes: "Axes") -> None:
    """Labels the x axis as training steps."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.set_xlabel("training step")


def _wrap_title(title: str) -> str:
    return textwrap.fill(title, _TITLE_CHARACTERS, max_lines=_TITLE_LINES, placeholder="…")


def panel_svg(panel: Panel, name: str) -> str:
    """Draws one panel as an `<svg>` element, in which `name` is the prefix of all ids."""
    figure = new_figure(_PANEL_WIDTH_INCHES, _PANEL_HEIGHT_INCHES)
    with styled():
        axes = figure.subplots()
        axes.set_title(_wrap_title(panel.title))
        tooltips = panel.draw(axes)
    return inline_svg(figure, name, panel.description, tooltips)


def panel_pictures(
    panels: Sequence[Panel], *, legend: Sequence[tuple[str, str]], heading: str
) -> dict[str, bytes]:
    """Draws all panels in one picture, below a heading and a legend of colours.

    Returns:
      "png", "pdf" and "svg" -> the picture in this format.
    """
    from matplotlib.lines import Line2D

    # Four panels are arranged two by two. Otherwise the fourth would be alone in the second row.
    columns = 2 if len(panels) == 4 else min(_COLUMNS + (len(panels) > 9), len(panels))
    rows = -(-len(panels) // columns)
    top = 0.55 + 0.22 * len(legend)
    height = rows * _PANEL_HEIGHT_INCHES + top
    figure = new_figure(max(columns * _PANEL_WIDTH_INCHES, 5.0), height)
    with styled():
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
            axes.set_title(_wrap_title(panel.title))
            panel.draw(axes)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
    png = png_bytes(figure)
    figure.set_layout_engine("none")  # the other formats keep the positions, which take long
    return {"png": png, **vector_bytes(figure)}


def png_bytes(figure: "Figure") -> bytes:
    """Renders the figure as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    figure.set_dpi(PNG_DOTS_PER_INCH)
    with styled():
        # `savefig` would draw the figure twice, because the figure has a layout engine.
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def vector_bytes(figure: "Figure") -> dict[str, bytes]:
    """Renders the figure as "pdf" and "svg". Texts in the SVG are outlines, so it needs no font."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    pdf, svg = io.BytesIO(), io.BytesIO()
    figure.set_dpi(_SVG_DOTS_PER_INCH)
    with styled(), rc_context({"svg.fonttype": "path"}):
        FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
    # matplotlib's ids are hashes of coordinates, whose last digits may differ between two runs.
    numbers: dict[bytes, bytes] = {}
    numbered = _HASHED_ID.sub(
        lambda match: numbers.setdefault(match[0], b"id%d" % len(numbers)), svg.getvalue()
    )
    return {"pdf": pdf.getvalue(), "svg": numbered}


def inline_svg(figure: "Figure", name: str, description: str, tooltips: Sequence[str] = ()) -> str:
    """Converts a figure to an `<svg>` element for an HTML page.

    Args:
      name: the prefix of all ids, unique in the page (letters, digits, hyphens).
      description: the text alternative.
      tooltips: the tooltips. The n-th belongs to the artist whose gid is `tooltip_id(n)`.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    figure.set_dpi(_SVG_DOTS_PER_INCH)
    with styled():
        # `savefig` is avoided for the same reason as in `png_bytes`. The metadata is left out
        # because it has a date.
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(buffer, metadata=metadata)
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        _make_plain(element, name)
    for number, text in enumerate(tooltips):
        target = root.find(f".//*[@id='{name}-{tooltip_id(number)}']")
        if target is not None:
            title = ElementTree.Element("title")
            title.text = text
            target.insert(0, title)
            target.set("class", "tip")
    for size in ("width", "height"):
        root.attrib.pop(size, None)  # the page sets the width, and the viewBox the proportions
    root.set("role", "img")
    root.set("aria-label", description)
    if tooltips:
        root.set("tabindex", "0")  # focusable, so that arrow keys can move between tooltips
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _make_plain(element: ElementTree.Element, name: str) -> None:
    """Removes namespaces, which HTML does not need, and makes ids unique to this figure."""
    element.tag = element.tag.rpartition("}")[2]
    for key in list(element.attrib):
        value = element.attrib.pop(key)
        plain = key.rpartition("}")[2]
        if plain == "id":
            value = f"{name}-{value}"
        elif _REFERENCE.search(value):
            value = value.replace("url(#", f"url(#{name}-")
            value = f"#{name}-{value[1:]}" if value.startswith("#") and plain == "href" else value
        element.set(plain, themed(value) if plain in ("style", "fill", "stroke") else value)


def themed(style: str) -> str:
    """Replaces the colours in a CSS style with the page's variables, which follow the theme."""
    return _COLOUR.sub(lambda match: _VARIABLES.get(match[0].lower(), match[0]), style)
