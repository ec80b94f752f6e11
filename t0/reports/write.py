"""Writes a whole report: page, Markdown, CSV, JSON and plots, or nothing.

    paths = write_report([Path("eval")], Path("report"), metrics_paths=[Path("model")])
    paths.html  # report/report.html

Everything is computed before the first byte is written; the files go into a temporary folder inside
the output folder and are then put in place one by one, the page last.

Assumptions: the same input gives the same bytes (no dates, seeded statistics).
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from t0.errors import UserError
from t0.reports import boxes, lines, metric_lines, plots
from t0.reports.csv_files import metrics_csv, prompts_csv
from t0.reports.curves import Curves, read_curves
from t0.reports.generation import generations
from t0.reports.page import Content, PageFigure, render_page
from t0.reports.read import Run, read_runs
from t0.reports.summary import comparisons, dataset_rows
from t0.reports.text import data_json, markdown

# By whether there is rank evaluation, and whether there is mode `eval`.
_TITLES = {
    (True, False): "T0 rank evaluation",
    (True, True): "T0 evaluation",
    (False, True): "Evaluation",
    (False, False): "Training runs",
}
_BOXES, _STEPS, _CURVES = "accuracy.png", "accuracy_by_step.png", "training.png"
_METRICS, _METRICS_CSV = "metrics_by_step.png", "report_metrics.csv"
_NOT_ALWAYS = (_BOXES, _STEPS, _METRICS, _CURVES, _METRICS_CSV)


@dataclass(frozen=True)
class ReportPaths:
    """Where the parts of a report lie.

    Attributes:
        csv: of rank evaluation; metrics_csv: of mode `eval`, None where there is nothing of it.
    """

    html: Path
    markdown: Path
    csv: Path
    json: Path
    metrics_csv: Path | None
    plots: tuple[Path, ...]


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
) -> ReportPaths:
    """Writes the report of one or more evaluations.

    Args:
        results_paths: `results_<step>.json` and `decoded_<step>.json` files or folders of them,
            the baseline first; none for a report on training runs alone.
        output_dir: made where absent; files of an earlier report in it are replaced.
        title: heading of the page; None for one that says what is on it.
        notes: what a reader must know, shown above everything together with the runs' own notes.
        metrics_paths: `metrics.jsonl` files, or model directories, for training curves.

    Raises:
        UserError: an input is missing or malformed, or the output cannot be written.
    """
    if not results_paths and not metrics_paths:
        raise UserError("nothing to report on. Name results_<step>.json files, or --metrics.")
    runs = read_runs(results_paths) if results_paths else ()
    curves = read_curves(metrics_paths)
    content = _content(runs, [*notes, *_curve_notes(curves)], title)
    decoded = bool(content.generations)
    drawn = _plots(content, curves)
    pictures = [(plot.figure.heading, plot.file) for plot in drawn]
    texts = {
        "report.json": data_json(content),
        "report.csv": prompts_csv(content),
        "report.md": markdown(content, pictures),
        "report.html": render_page(content, [plot.figure for plot in drawn]),
    }
    if decoded:
        texts[_METRICS_CSV] = metrics_csv(content)
    files = {plot.file: plot.png for plot in drawn}
    # Lone surrogates, possible in JSON escapes, have no UTF-8: they become question marks.
    files |= {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    output_dir = Path(output_dir)
    _replace_files(files, output_dir)
    return ReportPaths(
        html=output_dir / "report.html",
        markdown=output_dir / "report.md",
        csv=output_dir / "report.csv",
        json=output_dir / "report.json",
        metrics_csv=output_dir / _METRICS_CSV if decoded else None,
        plots=tuple(output_dir / plot.file for plot in drawn),
    )


def _content(runs: Sequence[Run], notes: Sequence[str], title: str | None) -> Content:
    rows, decoded = dataset_rows(runs), generations(runs)
    return Content(
        title=title or _TITLES[bool(rows), bool(decoded)],
        notes=tuple(notes),
        runs=tuple(runs),
        rows=rows,
        comparisons=comparisons(runs, rows),
        generations=decoded,
    )


def _curve_notes(curves: Sequence[Curves]) -> list[str]:
    return [f"Training run {run.label}: {note}" for run in curves for note in _notes(run)]


def _notes(run: Curves) -> Iterator[str]:
    if run.not_finite:
        yield f"{run.not_finite} values were not finite and are not drawn."
    if run.best:
        metric, step = run.best
        value = run.value(metric, step)
        of = "" if value is None else f" of {value:.4g}"
        stop = run.stopped_early
        end = "" if stop is None else f"; none better came, and it stopped early at step {stop:,}"
        yield f"the best {metric}{of} was at step {step:,}{end}."


def _plots(content: Content, curves: Sequence[Curves]) -> list[_Plot]:
    runs, rows = content.runs, content.rows
    boxed = boxes.boxed_runs(runs)
    last = (
        ""
        if len(boxed) == sum(bool(run.tasks) for run in runs)
        else " Only the last checkpoint of each series is shown."
    )
    metrics = metric_lines.metric_panels(content.generations, runs)
    drawn = metric_lines.MOST_PANELS
    more = f" The first {drawn} of {len(metrics)}; the tables hold all." * (len(metrics) > drawn)
    legend = plots.run_legend(runs)
    curve_legend = lines.curve_legend(curves, runs)
    found = [
        _plot(
            _BOXES,
            heading="Accuracy over prompts",
            caption="Each point is one prompt (its name shows under the pointer), the box "
            "quartiles and median, the diamond the mean. Dotted: chance. Dashed: published means "
            f"over prompts of T0-3B and T0-11B.{last}",
            panels=boxes.box_panels(rows, runs),
            legend=[legend[i] for i in boxed],
        ),
        _plot(
            _STEPS,
            heading="Accuracy against step",
            caption="Mean over prompts, with the band between the quartiles.",
            panels=lines.step_panels(rows, runs),
            legend=_series_legend([run for run in runs if run.tasks], runs),
        ),
        _plot(
            _METRICS,
            heading="Metrics against step",
            caption="What the tasks’ metrics say of the decoded text." + more,
            panels=metrics[: metric_lines.MOST_PANELS],
            legend=_series_legend([run for run in runs if run.decoded], runs),
        ),
        _plot(
            _CURVES,
            heading="Training curves",
            caption="As the training logged them; long curves are smoothed, the raw values pale. "
            "Dashed, with dots: on held-out examples. Star: the best evaluation. Dotted line: the "
            "run was stopped early.",
            panels=lines.curve_panels(curves, [colour for colour, _ in curve_legend]),
            legend=curve_legend,
        ),
    ]
    return [plot for plot in found if plot is not None]


def _series_legend(shown: Sequence[Run], runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns the legend of the series of some of the runs."""
    series = {run.series for run in shown}
    return [entry for name, entry in lines.series_legend(runs).items() if name in series]


def _plot(
    file: str,
    *,
    heading: str,
    caption: str,
    panels: Sequence[plots.Panel],
    legend: Sequence[tuple[str, str]],
) -> _Plot | None:
    if not panels:
        return None
    anchor = file.removesuffix(".png").replace("_", "-")
    svgs = tuple(plots.panel_svg(panel, f"{anchor}-{i}") for i, panel in enumerate(panels))
    figure = PageFigure(anchor, heading, caption, svgs, tuple(legend))
    return _Plot(file, figure, plots.panels_png(panels, legend=legend, heading=heading))


def _replace_files(files: Mapping[str, bytes], output_dir: Path) -> None:
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output_dir, prefix=".report-") as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            for name in files:
                (Path(folder) / name).replace(output_dir / name)
        for name in set(_NOT_ALWAYS) - set(files):  # of an earlier report with more in it
            (output_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write the report to {output_dir}: {error.strerror}. "
            "Choose a folder that can be written with --output."
        ) from error
