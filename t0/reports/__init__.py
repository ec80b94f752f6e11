"""Reports on evaluations and training runs, made from result files only: a page, plots, tables.

    from t0.reports import console_tables, write_report

    paths = write_report([Path("eval/results_1000.json")], Path("report"))
    paths.html                                              # report/report.html

The input files are `results_<step>.json` of mode `score_eval` with `scores/` beside it,
`decoded_<step>.json` of mode `eval` with `predictions/`, and `metrics.jsonl` of training runs.

    read_runs(paths)                 result files -> runs, one for each evaluated checkpoint
    read_curves(paths)               metrics.jsonl -> training curves
    summarise(runs)                  runs -> data frames, comparisons, notes
    write_report(paths, output)      result files -> report.html, .md, .csv, .json and pictures
    console_tables(paths)            result files -> rich tables for the terminal

This package imports only `errors`, `files` and `progress` of t0, and no TensorFlow; matplotlib,
Jinja and scipy are imported when a report is made.
"""

from t0.reports.evaluations import EvaluatedRun, read_runs
from t0.reports.report import ReportPaths, write_report
from t0.reports.summary import Summary, summarise
from t0.reports.terminal_tables import console_tables
from t0.reports.training_curves import TrainingCurves, read_curves

__all__ = [
    "EvaluatedRun",
    "ReportPaths",
    "Summary",
    "TrainingCurves",
    "console_tables",
    "read_curves",
    "read_runs",
    "summarise",
    "write_report",
]
