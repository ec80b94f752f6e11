"""Writes a comparison of runs: page, Markdown, JSON and pictures, or nothing.

    found = compare(read_contenders(["eval/results_1000.json"]))
    paths = write_comparison(found, Path("comparison"))
    paths[0]        # comparison/compare.html

The page needs no network, and is made as that of a report: every text is escaped.
"""

from collections.abc import Sequence
from pathlib import Path

from t0.errors import printable
from t0.files.any_path import any_path
from t0.reports.browsed import cut_in_middle
from t0.reports.comparing import RunComparison
from t0.reports.comparison_plots import difference_panels, prompt_panels
from t0.reports.comparison_tables import (
    answers,
    clear_text,
    comparison_json,
    comparison_markdown,
    rows_of,
    tied_letters,
)
from t0.reports.evaluation_plots import MOST_PANELS
from t0.reports.page import PageFigure, environment, page_script
from t0.reports.plots import Panel, panel_svg, panels_png, run_colour, run_letter
from t0.reports.report import replace_files
from t0.reports.statistics import CONFIDENCE

_DIFFERENCES, _PROMPTS = "compare_differences.png", "compare_prompts.png"
_HTML, _MARKDOWN, _JSON = "compare.html", "compare.md", "compare.json"


def write_comparison(
    found: RunComparison, output_dir: Path, *, title: str | None = None
) -> list[Path]:
    """Writes the comparison and returns the paths of its files, the page first.

    Args:
      found: the comparison.
      output_dir: made where absent; files of an earlier comparison in it are replaced.
      title: the page's heading.

    Raises:
      UserError: if the folder cannot be written.
    """
    title = printable(title) if title else "Comparison of evaluations"
    legend = [
        (run_colour(run), f"{run_letter(run)}  {one.name}")
        for run, one in enumerate(found.contenders)
        if run != found.baseline
    ]
    drawn = [
        _figure(
            _DIFFERENCES,
            f"Intervals of the differences from {run_letter(found.baseline)}",
            "Thin: the 95 % interval for other examples and prompts; thick: for these prompts "
            "alone. A filled point is told apart from no difference, adjusted for the table.",
            difference_panels(found),
            legend,
        ),
        _figure(
            _PROMPTS,
            "Prompt by prompt",
            f"Each point is a prompt: the accuracy of {run_letter(found.baseline)} to the right, "
            "of the run upwards. On the dotted line they are equal. Point at it to see its name.",
            prompt_panels(found),
            legend,
        ),
    ]
    drawn = [one for one in drawn if one is not None]
    pictures = [(figure.heading, file) for file, figure, _ in drawn]
    files = {file: png for file, _, png in drawn}
    files[_MARKDOWN] = comparison_markdown(found, title, pictures).encode()
    files[_JSON] = comparison_json(found).encode()
    files[_HTML] = _page(found, title, [figure for _, figure, _ in drawn]).encode()
    output_dir = any_path(output_dir)
    replace_files(files, output_dir, outdated={_DIFFERENCES, _PROMPTS} - set(files))
    return [output_dir / name for name in reversed(files)]


def _figure(
    file: str,
    heading: str,
    caption: str,
    panels: Sequence[Panel],
    legend: Sequence[tuple[str, str]],
) -> tuple[str, PageFigure, bytes] | None:
    if not panels:
        return None
    if len(panels) > MOST_PANELS:
        caption += f" The first {MOST_PANELS} of {len(panels)}; the tables have all."
        panels = panels[:MOST_PANELS]
    anchor = file.removesuffix(".png").replace("_", "-")
    svgs = tuple(panel_svg(panel, f"{anchor}-{i}") for i, panel in enumerate(panels))
    figure = PageFigure(anchor, heading, caption, svgs, tuple(legend))
    return file, figure, panels_png(panels, legend=legend, heading=heading)


def _page(found: RunComparison, title: str, figures: Sequence[PageFigure]) -> str:
    from markupsafe import Markup

    script, digest = page_script()
    made = environment()
    made.filters["cut"] = cut_in_middle
    return made.get_template("comparison.html.j2").render(
        found=found,
        title=title,
        names=[one.name for one in found.contenders],
        seeds=[len(one.seeds) for one in found.contenders],
        rows=rows_of(found),
        figures=figures,
        links=[(_JSON, "JSON"), (_MARKDOWN, "Markdown")],
        tied_letters=tied_letters,
        clear_text=clear_text,
        answers=answers,
        confidence=round(100 * CONFIDENCE),
        script=script,
        script_digest=digest,
        svg=Markup,
    )
