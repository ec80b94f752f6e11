"""Makes a report on evaluations and training runs, as terminal text, page, CSV, JSON and pictures.

    report = read_report(["eval"], metrics_paths=[Path("model")])
    print(report.lines())
    paths = report.write(Path("report"))
    paths.html  # report/report.html

Everything is computed before the first file is written. If the folder has an earlier report, each
file is replaced atomically. The page is written last.

The same input always gives the same bytes, because files contain no dates and random numbers are
seeded.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t0.errors import UserError, printable
from t0.files import paths
from t0.files.any_path import any_path
from t0.files.publishing import remove_leftovers, write_whole, writing
from t0.reports.clean_examples import read_overlap
from t0.reports.comparison import RunComparison, comparison_tables, legend_lines
from t0.reports.diagnosis import reliability_panels
from t0.reports.evaluation_plots import (
    MOST_METRIC_PANELS,
    MOST_PANELS,
    box_panels,
    boxed_runs,
    difference_panels,
    metric_panels,
    run_legend,
    series_legend,
    step_panels,
)
from t0.reports.evaluation_tables import evaluation_tables
from t0.reports.evaluations import EvaluatedRun
from t0.reports.example_browser import PATTERN, collect_examples
from t0.reports.held_out import headlines
from t0.reports.named_runs import read_named_runs
from t0.reports.page import PageFigure, are_embedded, render_page
from t0.reports.plots import Panel, panel_svg, panels_png
from t0.reports.statistics import CONFIDENCE, POWER
from t0.reports.summary import Summary, summarise
from t0.reports.tables import MARK, ReportTable
from t0.reports.training_curves import TrainingCurves, curve_legend, curve_panels, read_curves

SCHEMA = 2
_BOXES, _STEPS, _CURVES = "accuracy.png", "accuracy_by_step.png", "training.png"
_RELIABILITY, _METRICS = "reliability.png", "metrics_by_step.png"
_DIFFERENCES = "run_differences.png"
_LINKS = {
    "report.csv": "CSV",
    "report_classes.csv": "CSV of classes",
    "report_metrics.csv": "CSV of metrics",
    "report.json": "JSON",
}
# Files that only some reports have, or that only earlier versions of this module wrote. If an
# earlier report in the folder has such a file and the new report does not, the file is removed.
_NOT_ALWAYS = (
    *(_BOXES, _RELIABILITY, _STEPS, _METRICS, _CURVES, _DIFFERENCES, "run_prompts.png"),
    *("report.csv", "report_classes.csv", "report_metrics.csv", "report.md"),
    *("report_differences.csv", "report_prompt_differences.csv"),
)
# The terminal does not show these tables if it shows a comparison.
_REPLACED = ("datasets", "ways")


@dataclass(frozen=True)
class ReportPaths:
    """The paths of a report's files.

    Attributes:
      csv: the CSV files. If there is a rank evaluation, the first file is the table of prompts.
    """

    html: Path
    json: Path
    csv: tuple[Path, ...]
    plots: tuple[Path, ...]


@dataclass(frozen=True)
class _Plot:
    file: str
    figure: PageFigure
    png: bytes


@dataclass(frozen=True)
class EvaluationReport:
    """The content of a report, independent of its output format.

    Attributes:
      summary: the numbers of the evaluations.
      tables: name -> table with numbers from `summary`.
      curves: the curves of the training runs.
    """

    summary: Summary
    tables: Mapping[str, ReportTable]
    curves: Sequence[TrainingCurves]

    def lines(self, width: int | None = None) -> list[str]:
        """Formats the report for a terminal of `width` characters; None for no limit."""
        summary, comparison = self.summary, self.summary.comparison
        lines = [f"Note: {note}" for note in summary.notes] + headlines(summary.runs)
        if comparison:
            lines += legend_lines(comparison)
        else:
            has_several_runs = len(summary.runs) > 1
            letters = [f"{run.mark.letter} " if has_several_runs else "" for run in summary.runs]
            lines += [letter + run.label for letter, run in zip(letters, summary.runs, strict=True)]
        for name, table in self.tables.items():
            value_columns = [column for column in table.columns if column.kind != "run"]
            is_shown = any(column.short for column in value_columns) and table.shown_rows
            if is_shown and not (comparison and name in _REPLACED):
                lines += ["", table.title, *table.lines(width)]
        return lines

    def data(self) -> dict[str, Any]:
        """Returns the report's numbers as a JSON value; each table is a list of its rows."""
        summary, comparison = self.summary, self.summary.comparison
        return {
            "schema": SCHEMA,
            "title": summary.title,
            "notes": list(summary.notes),
            "confidence": CONFIDENCE,
            "power": POWER,
            "runs": [_make_run_record(run) for run in summary.runs],
            "baseline": comparison and comparison.runs[comparison.baseline].name,
            **{name: table.records() for name, table in self.tables.items()},
            "calibration": [
                {key: value for key, value in row.items() if key != MARK}
                for row in summary.reliabilities
            ],
            "generation": [dataclasses.asdict(results) for results in summary.decoded],
        }

    def write(self, output_dir: Path) -> ReportPaths:
        """Writes the page, the CSV and JSON files, and the pictures.

        Args:
          output_dir: the folder, which is made if necessary. Files of an earlier report are
            replaced.

        Raises:
          UserError: if a file of scores or predictions cannot be read, or the output cannot be
            written.
        """
        plots = _draw_plots(self.summary, self.curves)
        texts = {"report.json": json.dumps(self.data(), indent=1, allow_nan=False) + "\n"}
        texts |= {table.file: table.csv() for table in self.tables.values() if table.file}
        index, scripts = collect_examples(self.summary.runs)
        page = render_page(
            self.summary,
            self.tables,
            [plot.figure for plot in plots],
            index=index,
            scripts=scripts,
            links=[(n, text) for n, text in _LINKS.items() if n in texts and self.summary.runs],
            curves=self.curves,
        )
        texts |= {} if are_embedded(scripts) else scripts
        files = {plot.file: plot.png for plot in plots}
        files |= {name: text.encode() for name, text in texts.items()}
        files["report.html"] = page.encode()  # written last
        folder = any_path(output_dir)
        _replace_files(files, folder)
        return ReportPaths(
            html=folder / "report.html",
            json=folder / "report.json",
            csv=tuple(folder / name for name in texts if name.endswith(".csv")),
            plots=tuple(folder / plot.file for plot in plots),
        )


def read_report(
    words: Sequence[str | Path],
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    metrics_paths: Sequence[Path] = (),
    overlap_path: Path | None = None,
    baseline: str | None = None,
    any_texts: bool = False,
    must_compare: bool = False,
) -> EvaluationReport:
    """Reads one or more evaluated runs, and compares them if there are several.

    Args:
      words: the runs, as in `read_named_runs`; empty for a report on training runs only.
      title: the heading of the page; None for a heading that names the kinds of evaluations.
      notes: sentences that are shown before the runs' own notes.
      metrics_paths: `metrics.jsonl` files, or model directories, for training curves.
      overlap_path: the output of `t0 overlap`, for the accuracy on examples without overlap.
      baseline: the run with which all other runs are compared; by default the first run.
      any_texts: whether examples with equal rows are compared even if their inputs or choices
        differ.
      must_compare: whether it is an error if the runs cannot be compared. Otherwise the report has
        a note with the reason.

    Raises:
      UserError: if an input is missing or malformed, or if `must_compare` is set and the runs
        cannot be compared.
    """
    if not words and not metrics_paths:
        raise UserError("nothing to report on. Name results_<step>.json files, or --metrics.")
    named, position = read_named_runs(words, baseline=baseline) if words else ((), 0)
    curves = read_curves(metrics_paths)
    summary = summarise(
        named,
        title=title,
        notes=[*notes, *(note for run in curves for note in run.notes)],
        overlap=read_overlap(overlap_path) if overlap_path else None,
        baseline=position,
        any_texts=any_texts,
        must_compare=must_compare,
    )
    tables = evaluation_tables(summary)
    if summary.comparison:
        tables |= comparison_tables(summary.comparison)
    return EvaluationReport(summary, tables, curves)


def write_report(words: Sequence[str | Path], output_dir: Path, **options: Any) -> ReportPaths:
    """Reads a report with the options of `read_report`, and writes it."""
    return read_report(words, **options).write(output_dir)


def _make_run_record(run: EvaluatedRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "step": run.step,
        "results": printable(str(run.path)),
        "others": [printable(str(path)) for path in run.other_paths],
        "run": dict(run.facts),
    }


def _draw_plots(summary: Summary, curves: Sequence[TrainingCurves]) -> list[_Plot]:
    runs = summary.runs
    boxed = boxed_runs(runs)
    all_boxed = len(boxed) == sum(bool(run.tasks) for run in runs)
    last = "" if all_boxed else " Only the last checkpoint of each series is shown."
    legend = run_legend(runs)
    training_legend = curve_legend(curves, runs)
    plots = [
        _draw_plot(
            _BOXES,
            heading="Accuracy over prompts",
            caption="Each point is one prompt: point at it, tap it, or choose a panel with "
            "the tab key and move between points with the arrow keys. The box shows "
            "quartiles and median, the diamond the mean. Dotted: chance. Dashed: published means "
            f"over prompts of T0-3B and T0-11B.{last}",
            panels=box_panels(summary),
            legend=[legend[i] for i in boxed],
        ),
        _draw_plot(
            _RELIABILITY,
            heading="Calibration",
            caption="Accuracy against confidence, the predicted choice’s share of the probability "
            "of all choices, in ten bins over all prompts; a larger point has more examples. Below "
            "the diagonal, a model is overconfident. ECE: the mean distance from the diagonal, "
            f"with an interval that resamples each example together with all its prompts.{last}",
            panels=reliability_panels(summary.reliabilities, boxed),
            legend=[legend[i] for i in boxed],
        ),
        _draw_plot(
            _STEPS,
            heading="Accuracy against step",
            caption="Mean over prompts, with the band between the quartiles.",
            panels=step_panels(summary),
            legend=_series_legend([run for run in runs if run.tasks], runs),
        ),
        _draw_plot(
            _METRICS,
            heading="Metrics against step",
            caption="The tasks’ metrics of the decoded text.",
            panels=metric_panels(summary),
            limit=MOST_METRIC_PANELS,
            legend=_series_legend([run for run in runs if run.decoded], runs),
        ),
        _draw_plot(
            _CURVES,
            heading="Training curves",
            caption="As logged during training; long curves are smoothed, the raw values pale. "
            "With dots: on held-out examples. Star: the best evaluation. Dotted line: the run was "
            "stopped early. An axis of losses is logarithmic if they fall far.",
            panels=curve_panels(curves, [colour for colour, _ in training_legend]),
            legend=training_legend,
        ),
    ]
    if summary.comparison:
        plots.append(_draw_difference_plot(summary.comparison))
    return [plot for plot in plots if plot is not None]


def _draw_difference_plot(comparison: RunComparison) -> _Plot | None:
    legend = [
        (run.mark.colour, f"{run.mark.letter}  {run.name}")
        for position, run in enumerate(comparison.runs)
        if position != comparison.baseline
    ]
    return _draw_plot(
        _DIFFERENCES,
        heading=f"Intervals of the differences from {comparison.baseline_letter}",
        caption="Thin: the 95 % interval for other examples and prompts; thick: for these "
        "prompts only. A filled point is significant after adjustment over the table.",
        panels=difference_panels(comparison),
        legend=legend,
        compares=True,
    )


def _series_legend(
    shown: Sequence[EvaluatedRun], runs: Sequence[EvaluatedRun]
) -> list[tuple[str, str]]:
    """Returns (colour, text) for each series with at least one run in `shown`."""
    series = {run.series for run in shown}
    return [entry for name, entry in series_legend(runs).items() if name in series]


def _draw_plot(
    file: str,
    *,
    heading: str,
    caption: str,
    panels: Sequence[Panel],
    legend: Sequence[tuple[str, str]],
    limit: int = MOST_PANELS,
    compares: bool = False,
) -> _Plot | None:
    from markupsafe import Markup

    if not panels:
        return None
    if len(panels) > limit:
        caption += f" The first {limit} of {len(panels)}; the tables have all."
        panels = panels[:limit]
    anchor = file.removesuffix(".png").replace("_", "-")
    svgs = tuple(Markup(panel_svg(panel, f"{anchor}-{i}")) for i, panel in enumerate(panels))
    figure = PageFigure(anchor, heading, caption, svgs, tuple(legend), compares)
    return _Plot(file, figure, panels_png(panels, legend=legend, heading=heading))


def _replace_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes files in the given order, then removes the outdated files of an earlier report.

    Raises:
      UserError: if the folder cannot be written.
    """
    with writing(str(folder)):
        paths.make_folder(str(folder))
    remove_leftovers([str(folder)])  # left by a killed process
    for name, content in files.items():
        write_whole(str(folder / name), content)
    outdated = {*_NOT_ALWAYS, *(path.name for path in folder.glob(PATTERN))} - set(files)
    for name in outdated:
        (folder / name).unlink(missing_ok=True)
