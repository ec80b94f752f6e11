"""Makes a report on evaluations and training runs, as terminal text, page, CSV, JSON and pictures.

    report = read_report(["eval"], metrics_paths=[Path("model")])
    print(report.lines())
    paths = report.write(Path("report"))
    paths.html  # report/report.html

Everything is computed before the first file is written. If the folder has an earlier report, each
file is replaced atomically. The page is written last. The same input always gives the same bytes,
because files contain no dates and random numbers are seeded.

The page works offline, because its file contains the style, script and plots. If there are few
examples, the page contains them. Otherwise they are in scripts next to the page. All text from data
or files is untrusted. It reaches the page in only two ways: through Jinja's autoescape, or as JSON.
In this JSON, `<`, `>` and `&` are numeric escapes, and the page's script puts the texts into text
nodes. A content security policy allows only the page's own script and the scripts with examples.
The page cannot load anything else.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t0.absent_classes import warn_of_absent_classes
from t0.errors import UserError, printable
from t0.files import paths
from t0.files.any_path import any_path
from t0.files.publishing import remove_leftovers, write_whole, writing
from t0.reports.clean_examples import read_overlap
from t0.reports.comparison import RunComparison, compare, legend_lines
from t0.reports.diagnosis import reliability_rows
from t0.reports.evaluation_plots import Plot, list_plots
from t0.reports.evaluation_rows import decoded_results
from t0.reports.evaluations import EvaluatedRun, RankedTask
from t0.reports.examples import collect_examples
from t0.reports.held_out import headlines, held_out_means
from t0.reports.page_templates import page_template, read_assets
from t0.reports.plots import RUN_COLOURS, panel_pictures, panel_svg
from t0.reports.published import held_out_titles, published_accuracies
from t0.reports.report_runs import NamedRun, read_named_runs
from t0.reports.report_tables import PROMPTS_FILE, group_tables, report_tables
from t0.reports.statistics import CONFIDENCE, POWER
from t0.reports.tables import MARK, ReportTable, Row, group_by
from t0.reports.training_curves import TrainingCurves, read_curves, training_table

SCHEMA = 2
# The page contains the examples if they have at most this many characters in total.
EMBEDDED_BYTES = 600_000
# Files that only some reports have. If an earlier report in the folder has such a file and the new
# report does not, the file is removed.
_NOT_ALWAYS = (
    *("report*.csv", "report_examples_*.js"),
    *(
        f"{plot}.{ending}"
        for plot in ("accuracy*", "reliability", "metrics_by_step", "training", "run_differences")
        for ending in ("png", "pdf", "svg")
    ),
)
# The terminal does not show these tables if it shows a comparison.
_REPLACED = ("datasets", "ways")


@dataclass(frozen=True)
class ReportPaths:
    """The paths of a report's files.

    Attributes:
      csv: the CSV files. If there is a rank evaluation, the first file is the table of prompts.
      plots: the PNG files. Next to each is the same picture as `.pdf` and `.svg`.
    """

    html: Path
    json: Path
    csv: tuple[Path, ...]
    plots: tuple[Path, ...]


@dataclass(frozen=True)
class EvaluationReport:
    """The content of a report, independent of its output format.

    Attributes:
      notes: the caller's notes, the runs' notes, and warnings about the data.
      runs: all evaluated checkpoints.
      comparison: the comparison of the runs with the baseline; None if there is only one run.
      tables: name -> table, for the tables that are not empty.
      reliabilities: a row for each dataset and run, see `diagnosis.reliability_rows`.
      curves: the curves of the training runs.
    """

    title: str
    notes: tuple[str, ...]
    runs: tuple[EvaluatedRun, ...]
    comparison: RunComparison | None
    tables: Mapping[str, ReportTable]
    reliabilities: Sequence[Row]
    curves: Sequence[TrainingCurves]

    def rows(self, name: str) -> Sequence[Row]:
        """Returns the rows of a table; [] if the report does not have this table."""
        return self.tables[name].rows if name in self.tables else []

    def lines(self, width: int | None = None) -> list[str]:
        """Formats the report for a terminal of `width` characters; None for no limit."""
        comparison = self.comparison
        lines = [f"Note: {note}" for note in self.notes] + headlines(self.runs)
        if comparison:
            lines += legend_lines(comparison)
        else:
            several = len(self.runs) > 1
            lines += [f"{run.mark.letter} " * several + run.label for run in self.runs]
        for name, table in self.tables.items():
            if table.is_in_terminal and not (comparison and name in _REPLACED):
                lines += ["", table.title, *table.lines(width)]
        return lines

    def data(self) -> dict[str, Any]:
        """Returns the report's numbers as a JSON value; each table is a list of its rows."""
        comparison = self.comparison
        return {
            "schema": SCHEMA,
            "title": self.title,
            "notes": list(self.notes),
            "confidence": CONFIDENCE,
            "power": POWER,
            "runs": [_make_run_record(run) for run in self.runs],
            "baseline": comparison and comparison.runs[comparison.baseline].name,
            **{name: table.records() for name, table in self.tables.items()},
            "calibration": [
                {key: value for key, value in row.items() if key != MARK}
                for row in self.reliabilities
            ],
            "generation": decoded_results(self.runs),
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
        texts = {"report.json": json.dumps(self.data(), indent=1, allow_nan=False) + "\n"}
        texts |= {table.file: table.csv() for table in self.tables.values() if table.file}
        rows = {name: self.rows(name) for name in ("datasets", "prompts", "metrics")}
        plots = list_plots(self.runs, rows, self.reliabilities, self.comparison, self.curves)
        index, examples = collect_examples(self.runs, rows["prompts"])
        embeds = sum(map(len, examples)) <= EMBEDDED_BYTES
        page = _render_page(self, plots, [*texts], index, examples if embeds else None)
        if not embeds:
            texts |= {
                f"report_examples_{number}.js": f"t0Examples({number}, {script});\n"
                for number, script in enumerate(examples)
            }
        pictures = {
            f"{plot.name}.{ending}": picture
            for plot in plots
            for ending, picture in panel_pictures(
                plot.panels, legend=plot.legend, heading=plot.heading
            ).items()
        }
        files = pictures | {name: text.encode() for name, text in texts.items()}
        folder = any_path(output_dir)
        csv = [name for name in texts if name.endswith(".csv")]
        _replace_files(files | {"report.html": page.encode()}, folder)
        return ReportPaths(
            html=folder / "report.html",
            json=folder / "report.json",
            csv=tuple(folder / name for name in sorted(csv, key=lambda n: n != PROMPTS_FILE)),
            plots=tuple(folder / name for name in pictures if name.endswith(".png")),
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
      UserError: if an input is missing or malformed, the overlap was computed for different rows
        than the evaluations, or `must_compare` is set and the runs cannot be compared.
    """
    if not words and not metrics_paths:
        raise UserError("nothing to report on. Name results_<step>.json files, or --metrics.")
    named, position = read_named_runs(words, baseline=baseline) if words else ((), 0)
    curves = read_curves(metrics_paths)
    runs = tuple(run for model in named for run in model.checkpoints)
    comparison, compared_notes = _compare_runs(
        named, position, any_texts=any_texts, must_compare=must_compare
    )
    overlap = read_overlap(overlap_path) if overlap_path else None
    tables = {table.name: table for table in report_tables(runs, overlap, comparison)}
    caller_notes = [*notes, *(note for run in curves for note in run.notes)]
    all_notes = dict.fromkeys(
        [*map(printable, caller_notes), *(n for run in runs for n in run.notes)]
    )
    metrics = tables["metrics"].rows if "metrics" in tables else []
    return EvaluationReport(
        title=printable(title or ("T0 evaluation" if runs else "Training runs")),
        notes=(
            *all_notes,
            *_find_warnings(runs),
            *compared_notes,
            *_find_signature_warnings(metrics),
        ),
        runs=runs,
        comparison=comparison,
        tables=tables,
        reliabilities=reliability_rows(runs),
        curves=curves,
    )


def write_report(words: Sequence[str | Path], output_dir: Path, **options: Any) -> ReportPaths:
    """Reads a report with the options of `read_report`, and writes it."""
    return read_report(words, **options).write(output_dir)


def _compare_runs(
    named: Sequence[NamedRun], baseline: int, *, any_texts: bool, must_compare: bool
) -> tuple[RunComparison | None, tuple[str, ...]]:
    """Returns the comparison of the runs that have scores, and the notes about this comparison."""
    compared = [run for run in named if must_compare or run.has_scores]
    if len(compared) < 2 and not must_compare:
        return None, ()
    chosen = named[baseline]
    position = compared.index(chosen) if chosen in compared else 0
    try:
        comparison = compare(compared, baseline=position, any_texts=any_texts)
    except UserError as error:
        if must_compare:
            raise
        return None, (f"The runs are not compared: {error}",)
    return comparison, comparison.notes


def _make_run_record(run: EvaluatedRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "step": run.step,
        "results": printable(str(run.path)),
        "others": [printable(str(path)) for path in run.other_paths],
        "run": _replace_nan(run.facts),
    }


def _replace_nan(value: Any) -> Any:
    """Returns plain data in which NaN and infinities, which JSON does not have, are None."""
    if isinstance(value, Mapping):
        return {name: _replace_nan(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Warnings about the data.


def _find_warnings(runs: Sequence[EvaluatedRun]) -> list[str]:
    warnings = []
    tied = [task.name for run in runs for task in run.tasks if _is_mostly_tied(task)]
    if tied:
        warnings.append(
            f"In {len(tied)} of {sum(len(run.tasks) for run in runs)} evaluations of a task, "
            "several choices tie for the highest score in most examples, so the accuracy means "
            f"little: {_format_first_five(list(dict.fromkeys(tied)))}."
        )
    warnings += _find_absent_classes(runs)
    for run in runs:
        without_scores = sum(not task.scores for task in run.tasks)
        if without_scores:
            warnings.append(
                f"{run.label}: {without_scores} of {len(run.tasks)} tasks have no per-example "
                "scores next to the results, so they have no intervals, ties or examples."
            )
        if run.skipped:
            warnings.append(
                f"{run.label}: {len(run.skipped)} tasks have no accuracy and are left out: "
                f"{_format_first_five(run.skipped)}."
            )
    return warnings


def _find_absent_classes(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Returns a warning for each dataset with a prompt that has a class without examples."""
    warnings: dict[str, dict[str, str]] = {}
    for task in (task for run in runs for task in run.tasks):
        scores = task.scores
        if scores and scores.labels:
            counts = scores.confusion.sum(axis=1).tolist()
            support = dict(zip(scores.labels, counts, strict=True))
            if warning := warn_of_absent_classes(support, task.dataset):
                warnings.setdefault(task.dataset, {})[task.name] = warning
    return [
        f"{next(iter(by_task.values()))}"
        + (f" (first of {len(by_task)} prompts)." if len(by_task) > 1 else ".")
        for by_task in warnings.values()
    ]


def _format_first_five(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


def _is_mostly_tied(task: RankedTask) -> bool:
    return bool(task.scores) and task.scores.tied.mean() > 0.5


def _find_signature_warnings(metrics: Sequence[Row]) -> list[str]:
    """Returns a warning for each metric that was computed differently for different runs."""
    whole = group_by((row for row in metrics if not row["group"]), "task", "metric")
    warnings = []
    for (task, metric), rows in whole.items():
        signatures = sorted({str(row["signature"]) for row in rows})
        if len(signatures) > 1:
            warnings.append(
                f"{task}: {metric} was computed in different ways ({'; '.join(signatures)}): do "
                "not compare its values."
            )
    return warnings


# The page, and the files.


def _render_page(
    report: EvaluationReport,
    plots: Sequence[Plot],
    links: Sequence[str],
    index: Sequence[Mapping[str, Any]],
    examples: Sequence[str] | None,
) -> str:
    """Renders the HTML page.

    Args:
      plots: the report's plots.
      links: the names of the report's CSV and JSON files.
      index: the index of the examples, see `examples.collect_examples`.
      examples: the examples of each record of the index as JSON; None if they are in scripts next
        to the page.
    """
    from markupsafe import Markup

    runs, datasets = report.runs, {row["dataset"] for row in report.rows("datasets")}
    marks = [[run.mark.letter, run.mark.position % len(RUN_COLOURS)] for run in runs]
    labels = [run.label for run in runs]
    svgs = {
        plot.name: [
            Markup(panel_svg(panel, f"{plot.anchor}-{i}")) for i, panel in enumerate(plot.panels)
        ]
        for plot in plots
    }
    return page_template("page.html.j2").render(
        **read_assets("script.js"),
        report=report,
        runs=runs,
        several=len(runs) > 1,
        tables=report.tables,
        decoded=decoded_results(runs),
        group_tables=group_tables(runs),
        figures=plots,
        svgs=svgs,
        fact_keys=list(dict.fromkeys(key for run in runs for key in run.facts)),
        sources=[row for row in published_accuracies() if datasets & set(row["datasets"])],
        held_out=held_out_means(runs),
        all_held_out=len(held_out_titles()),
        index={"runs": labels, "marks": marks, "groups": index} if index else None,
        embedded=[Markup(text) for text in examples or ()],
        loads_scripts=examples is None,
        links=links,
        training=report.curves,
        training_rows=training_table(report.curves),
        confidence=round(100 * CONFIDENCE),
    )


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
    for pattern in _NOT_ALWAYS:
        for path in folder.glob(pattern):
            if path.name not in files:
                path.unlink(missing_ok=True)
