"""Writes a whole report: page, Markdown, CSV, JSON and plots, or nothing.

    paths = write_report([Path("eval")], Path("report"), metrics_paths=[Path("model")])
    paths.html  # report/report.html

Everything is computed before the first byte is written. The files are written to a temporary folder
in the output folder and then renamed one by one, the page last.

Assumptions: the same input gives the same bytes (no dates, seeded statistics).
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t0.errors import UserError
from t0.files.any_path import any_path
from t0.files.paths import is_remote
from t0.files.publishing import remove_leftovers, unfinished_tag, write_whole
from t0.reports.browsed import PATTERN as EXAMPLES
from t0.reports.browsed import browsed
from t0.reports.clean_part import read_overlap
from t0.reports.data_files import data_json, metrics_csv, prompts_csv
from t0.reports.evaluation_plots import (
    MOST_METRIC_PANELS,
    MOST_PANELS,
    box_panels,
    boxed_runs,
    metric_panels,
    run_legend,
    series_legend,
    step_panels,
)
from t0.reports.evaluations import EvaluatedRun, read_runs
from t0.reports.markdown_tables import markdown
from t0.reports.page import PageFigure, render_page
from t0.reports.parts import PATTERN as PARTS
from t0.reports.plots import Panel, panel_svg, panels_png
from t0.reports.reliability import reliability_panels
from t0.reports.summary import Summary, summarise
from t0.reports.training_curves import TrainingCurves, curve_legend, curve_panels, read_curves

_BOXES, _STEPS, _CURVES = "accuracy.png", "accuracy_by_step.png", "training.png"
_RELIABILITY = "reliability.png"
_METRICS, _METRICS_CSV = "metrics_by_step.png", "report_metrics.csv"
_LINKS = {"report.csv": "CSV", _METRICS_CSV: "CSV of metrics", "report.json": "JSON"}
_NOT_ALWAYS = (_BOXES, _RELIABILITY, _STEPS, _METRICS, _CURVES, _METRICS_CSV)


@dataclass(frozen=True)
class ReportPaths:
    """The paths of a report's files.

    Attributes:
      csv: the table of rank evaluation.
      metrics_csv: the table of mode `eval`, None without one.
      runs: the runs of the report, which need not be read again.
    """

    html: Path
    markdown: Path
    csv: Path
    json: Path
    metrics_csv: Path | None
    plots: tuple[Path, ...]
    runs: tuple[EvaluatedRun, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class _Plot:
    file: str
    figure: PageFigure
    png: bytes


def write_report(
    results_paths: Sequence[Path],
    output_dir: Path,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    metrics_paths: Sequence[Path] = (),
    overlap_path: Path | None = None,
) -> ReportPaths:
    """Writes the report of one or more evaluations.

    Args:
      results_paths: `results_<step>.json` and `decoded_<step>.json` files or folders of them,
        the baseline first; none for a report on training runs only.
      output_dir: made where absent; files of an earlier report in it are replaced.
      title: the page's heading; None for a heading that names its content.
      notes: sentences that are shown above everything else, before the runs' own notes.
      metrics_paths: `metrics.jsonl` files, or model directories, for training curves.
      overlap_path: what `t0 overlap` wrote, for the accuracy on examples that do not overlap.

    Raises:
      UserError: if an input is missing or malformed, or the output cannot be written.
    """
    if not results_paths and not metrics_paths:
        raise UserError("nothing to report on. Name results_<step>.json files, or --metrics.")
    runs = read_runs(results_paths) if results_paths else ()
    curves = read_curves(metrics_paths)
    notes = [*notes, *(note for run in curves for note in run.notes)]
    overlap = read_overlap(overlap_path) if overlap_path else None
    summary = summarise(runs, title=title, notes=notes, overlap=overlap)
    drawn = _plots(summary, curves)
    pictures = [(plot.figure.heading, plot.file) for plot in drawn]
    texts = {
        "report.json": data_json(summary),
        "report.csv": prompts_csv(summary),
        "report.md": markdown(summary, pictures),
    }
    if summary.decoded:
        texts[_METRICS_CSV] = metrics_csv(summary)
    index, scripts = browsed(runs)
    page, beside = render_page(
        summary,
        [plot.figure for plot in drawn],
        index=index,
        scripts=scripts,
        links=[(name, text) for name, text in _LINKS.items() if name in texts and runs],
        curves=curves,
    )
    files = {plot.file: plot.png for plot in drawn}
    files |= {name: text.encode() for name, text in (texts | dict(beside)).items()}
    files["report.html"] = page.encode()  # the last one
    output_dir = any_path(output_dir)
    replace_files(files, output_dir, outdated=_outdated(output_dir, files))
    return ReportPaths(
        html=output_dir / "report.html",
        markdown=output_dir / "report.md",
        csv=output_dir / "report.csv",
        json=output_dir / "report.json",
        metrics_csv=output_dir / _METRICS_CSV if summary.decoded else None,
        plots=tuple(output_dir / plot.file for plot in drawn),
        runs=tuple(runs),
    )


def _plots(summary: Summary, curves: Sequence[TrainingCurves]) -> list[_Plot]:
    runs = summary.runs
    boxed = boxed_runs(runs)
    all_boxed = len(boxed) == sum(bool(run.tasks) for run in runs)
    last = "" if all_boxed else " Only the last checkpoint of each series is shown."
    legend = run_legend(runs)
    of_curves = curve_legend(curves, runs)
    found = [
        _plot(
            _BOXES,
            heading="Accuracy over prompts",
            caption="Each point is one prompt: point at it, tap it, or choose a panel with "
            "the tab key and go from point to point with the arrow keys. The box has "
            "quartiles and median, the diamond the mean. Dotted: chance. Dashed: published means "
            f"over prompts of T0-3B and T0-11B.{last}",
            panels=box_panels(summary),
            zoomed=box_panels(summary, whole=False),
            legend=[legend[i] for i in boxed],
        ),
        _plot(
            _RELIABILITY,
            heading="Calibration",
            caption="Accuracy against confidence, the predicted choice’s share of the probability "
            "of all choices, in ten bins over all prompts; a larger point has more examples. Below "
            "the diagonal a model is too sure. ECE: the mean distance from it, with its interval, "
            f"in which an example under all of its prompts is drawn as one.{last}",
            panels=reliability_panels(summary.reliabilities, boxed),
            legend=[legend[i] for i in boxed],
        ),
        _plot(
            _STEPS,
            heading="Accuracy against step",
            caption="Mean over prompts, with the band between the quartiles.",
            panels=step_panels(summary),
            zoomed=step_panels(summary, whole=False),
            legend=_series_legend([run for run in runs if run.tasks], runs),
        ),
        _plot(
            _METRICS,
            heading="Metrics against step",
            caption="What the tasks’ metrics say of the decoded text.",
            panels=metric_panels(summary),
            most=MOST_METRIC_PANELS,
            legend=_series_legend([run for run in runs if run.decoded], runs),
        ),
        _plot(
            _CURVES,
            heading="Training curves",
            caption="As the training logged them; long curves are smoothed, the raw values pale. "
            "With dots: on held-out examples. Star: the best evaluation. Dotted line: the run was "
            "stopped early. An axis of losses is logarithmic where they fall far.",
            panels=curve_panels(curves, [colour for colour, _ in of_curves]),
            legend=of_curves,
        ),
    ]
    return [plot for plot in found if plot is not None]


def _series_legend(
    shown: Sequence[EvaluatedRun], runs: Sequence[EvaluatedRun]
) -> list[tuple[str, str]]:
    """Returns the legend of the series of some of the runs."""
    series = {run.series for run in shown}
    return [entry for name, entry in series_legend(runs).items() if name in series]


def _plot(
    file: str,
    *,
    heading: str,
    caption: str,
    panels: Sequence[Panel],
    legend: Sequence[tuple[str, str]],
    zoomed: Sequence[Panel] = (),
    most: int = MOST_PANELS,
) -> _Plot | None:
    if not panels:
        return None
    if len(panels) > most:
        caption += f" The first {most} of {len(panels)}; the tables hold all."
        panels, zoomed = panels[:most], zoomed[:most]
    anchor = file.removesuffix(".png").replace("_", "-")
    svgs = tuple(panel_svg(panel, f"{anchor}-{i}") for i, panel in enumerate(panels))
    own = tuple(panel_svg(panel, f"{anchor}-own-{i}") for i, panel in enumerate(zoomed))
    figure = PageFigure(anchor, heading, caption, svgs, tuple(legend), own)
    return _Plot(file, figure, panels_png(panels, legend=legend, heading=heading))


def replace_files(
    files: Mapping[str, bytes], output_dir: Path, *, outdated: Collection[str] = ()
) -> None:
    """Writes files, the page last, in place of an earlier report's.

    Args:
      files: their contents by name.
      output_dir: made where absent.
      outdated: the names of files of an earlier report that are not among these.

    Raises:
      UserError: if the folder cannot be written.
    """
    if is_remote(output_dir):
        # An object is replaced in one step; the page is the last of them.
        for name, content in files.items():
            write_whole(str(output_dir / name), content)
        for name in outdated:
            (output_dir / name).unlink(missing_ok=True)
        return
    staging = output_dir / f"report.{unfinished_tag()}"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        remove_leftovers([str(output_dir)])  # of a process that was killed
        for name, content in files.items():
            (staging / name).write_bytes(content)
        for name in files:
            (staging / name).replace(output_dir / name)
        for name in outdated:
            (output_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write the report to {output_dir}: {error.strerror}. "
            "Choose a folder that can be written with --output."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _outdated(output_dir: Path, files: Mapping[str, bytes]) -> set[str]:
    """Returns the names of files that an earlier report with more in it may have left."""
    beside = {path.name for kind in (EXAMPLES, PARTS) for path in output_dir.glob(kind)}
    return {*_NOT_ALWAYS, *beside} - set(files)
