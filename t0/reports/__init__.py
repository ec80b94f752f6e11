"""Reports on evaluations and training runs, from result files alone: a page, plots, tables.

    from t0.reports import console_tables, write_report

    paths = write_report([Path("eval/results_1000.json")], Path("report"))

This room reads JSON and writes files. It imports no other room and no TensorFlow; matplotlib, Jinja
and scipy are imported when a report is made.
"""

from t0.reports.table import console_tables
from t0.reports.write import ReportPaths, write_report

__all__ = ["ReportPaths", "console_tables", "write_report"]
