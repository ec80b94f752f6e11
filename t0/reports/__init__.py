"""Makes reports on evaluations and training runs from their result files.

    from t0.reports import read_report

    report = read_report(["eval"])
    report.lines()                          # the tables in the terminal
    report.write(Path("report")).html       # report/report.html

The inputs are `results_<step>.json` from mode `score_eval`, with the folder `scores/` next to it;
`decoded_<step>.json` from mode `eval`, with the folder `predictions/` next to it; and
`metrics.jsonl` from training runs.

    read_runs(paths)                 result files -> evaluated checkpoints
    read_named_runs(words)           words of a command line -> runs, each with its checkpoints
    read_curves(paths)               metrics.jsonl -> training curves
    read_report(words)               words -> the report: its tables and plots
    write_report(words, output)      words -> report.html, .csv, .json and pictures in a folder

The page of `t0 show --html` shares the style of the report's page: `row_page.render_row_page`.

A report is made in three steps. `evaluations` reads the runs, with the outcome of each example.
`accuracies.shared_grid` lays out the outcomes of a dataset as one table of runs, prompts and
examples, whether one run is reported or several are compared. `evaluation_rows` and
`comparison_rows` compute rows from these tables, and `report_tables` gives the rows their columns.

This package imports only six other packages and modules of t0: `absent_classes`, `errors`, `files`,
`measures`, `progress` and `text_tables`. It never imports TensorFlow. matplotlib, Jinja and scipy
are imported only when a report is made.
"""

from t0.reports.evaluations import EvaluatedRun, read_runs
from t0.reports.report import EvaluationReport, ReportPaths, read_report, write_report
from t0.reports.report_runs import NamedRun, read_named_runs
from t0.reports.training_curves import TrainingCurves, read_curves

__all__ = [
    "EvaluatedRun",
    "NamedRun",
    "EvaluationReport",
    "ReportPaths",
    "TrainingCurves",
    "read_curves",
    "read_named_runs",
    "read_report",
    "read_runs",
    "write_report",
]
