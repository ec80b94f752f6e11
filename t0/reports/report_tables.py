"""Builds the tables of a report, for one run and for several.

    runs = read_runs([Path("eval")])
    tables = {table.name: table for table in report_tables(runs)}
    tables["datasets"].records()[0]["mean"]
    print(tables["prompts"].csv())

Each table is declared with its columns, and has no rows. The rows come from `evaluation_rows` and,
if runs are compared, from `comparison_rows`. A table without rows is left out. The same column of
runs and the same rules for columns hold for all tables.

Assumptions: rows have the keys that the columns of their table name. Rows with a key "label" have
the mark of their run.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from t0.errors import printable
from t0.measures.rank_measures import CLASS_MEASURES
from t0.reports.clean_examples import Overlap
from t0.reports.comparison import RunComparison, comparison_rows
from t0.reports.evaluation_plots import axis_label
from t0.reports.evaluation_rows import evaluation_rows, group_rows
from t0.reports.evaluations import EvaluatedRun
from t0.reports.examples import cut_in_middle
from t0.reports.published import MODELS, held_out_titles, title_of
from t0.reports.statistics import CONFIDENCE
from t0.reports.tables import (
    ReportColumn,
    ReportTable,
    Row,
    interval,
    number,
    p_value,
    prompt_name,
    signed,
    span,
)

PROMPTS_FILE = "report.csv"
_PERCENT = round(100 * CONFIDENCE)
_MOST_TERMINAL_ROWS = 40
# With more runs, the intervals of all accuracies do not fit into 80 columns of a terminal.
_RUNS_WITH_INTERVALS = 2


def report_tables(
    runs: Sequence[EvaluatedRun],
    overlap: Overlap | None = None,
    comparison: RunComparison | None = None,
) -> list[ReportTable]:
    """Returns the non-empty tables of a report, in the order of the page.

    Args:
      runs: the evaluated checkpoints.
      overlap: the overlap with the training data, or None.
      comparison: the comparison of the runs, or None. Its tables are not left out if they are
        empty.

    Raises:
      UserError: if the overlap was computed for different rows than the evaluations.
    """
    rows = {name: rows for name, rows in evaluation_rows(runs, overlap).items() if rows}
    definition = f"{printable(overlap.sentence)} " if overlap else ""
    clean = dataclasses.replace(_CLEAN, note=definition + _CLEAN.note)
    tables = [_DATASETS, clean, *_PROMPTS_AND_METRICS]
    if comparison:
        rows |= comparison_rows(comparison)
        tables += _list_comparison_tables(comparison)
    return [_fill(table, rows[table.name], runs) for table in tables if table.name in rows]


def group_tables(runs: Sequence[EvaluatedRun]) -> dict[str, ReportTable]:
    """Returns task -> the table of its metrics by category and by subtask, if it has any."""
    tables = {}
    for task, rows in group_rows(runs).items():
        columns = [ReportColumn("group", "Group", css="t head"), _RUN]
        for key in rows[0]:
            kind, _, metric = key.partition(" ")
            if kind == "metric":
                columns.append(dataclasses.replace(_VALUE, key=key, heading=axis_label(metric)))
        tables[task] = _fill(ReportTable(f"{task}-groups", "Groups", columns), rows, runs)
    return tables


def _fill(table: ReportTable, rows: Sequence[Row], runs: Sequence[EvaluatedRun]) -> ReportTable:
    """Returns the table with rows, without the columns that these rows and runs do not need."""
    columns = [
        column
        for column in table.columns
        if (column.kind != "run" or len(runs) > 1)
        and (column.needed is None or any(map(column.needed, rows)))
    ]
    return dataclasses.replace(table, columns=columns, rows=rows)


def _has(key: str) -> Callable[[Row], bool]:
    return lambda row: row[key] is not None


def _is_held_out(row: Row) -> bool:
    return row["dataset"] in held_out_titles()


def _format_two_digits(value: float) -> str:
    return number(value, 2)


def _format_sizes(row: Row) -> str:
    return span(row["fewest_examples"], row["most_examples"])


def _format_quartiles(row: Row) -> str:
    return span(row["first_quartile"], row["third_quartile"], 1)


def _format_range(row: Row) -> str:
    return span(row["low"], row["high"], 1)


def _format_reasons(row: Row) -> str:
    return ", ".join(f"{value} {reason}" for reason, value in row["excluded_reasons"].items())


def _make_normalization_column(key: str, heading: str) -> ReportColumn:
    interval_text = partial(interval, kind=key)
    return ReportColumn(key, heading, heading.lower(), detail=interval_text, needed=_has(key))


_clean_interval = partial(interval, kind="difference")

# Columns that several tables have.
_RUN = ReportColumn("label", "Run", "run", css="t short", kind="run")
_DATASET = ReportColumn("dataset", "Dataset", "dataset", css="t head", kind="name")
_TITLE = dataclasses.replace(_DATASET, key="title")
_PROMPT = ReportColumn("prompt", "Prompt", "prompt", css="t head", text=prompt_name)
_INTERVAL = ReportColumn("interval_low", "", f"{_PERCENT}% interval", text=interval)
_EXAMPLES = ReportColumn("examples", "Examples", "examples")
_METRIC = ReportColumn("metric", "Metric", "metric", axis_label, css="t wide")
_VALUE = ReportColumn("value", "Value", "value", _format_two_digits, css="n strong")
_CUT = (
    ReportColumn("truncated_inputs", "Inputs cut"),
    ReportColumn("truncated_targets", "Targets cut"),
)

_DATASETS = ReportTable(
    "datasets",
    "Accuracy (%) over prompts",
    columns=(
        ReportColumn("dataset", "", "dataset", css="t"),
        dataclasses.replace(
            _TITLE,
            short="",
            detail=lambda row: "" if row["title"] == row["dataset"] else row["dataset"],
        ),
        _RUN,
        ReportColumn("group", "Group", css="t short"),
        ReportColumn("prompts", "Prompts", "prompts"),
        ReportColumn("most_examples", "Examples", "examples", text=_format_sizes),
        ReportColumn("mean", "Mean", "mean", detail=interval),
        dataclasses.replace(_INTERVAL, needed=_has("interval_low")),
        ReportColumn("median", "Median", "median", detail=_format_quartiles),
        ReportColumn("high", "Range", "range", text=_format_range),
        ReportColumn("chance", "Chance", "chance"),
        ReportColumn("majority", "Majority"),
        *(ReportColumn(model, model, model, css="n ref", needed=_is_held_out) for model in MODELS),
        ReportColumn("ties", "Ties"),
        *_CUT,
        ReportColumn("excluded", "Excluded", css="n long", detail=_format_reasons),
    ),
    note="Rank evaluation: the answer choice of the highest log-likelihood is the prediction. "
    "Accuracy (%) over the prompts of each dataset; in small type the quartiles and the "
    f"{_PERCENT} % interval of the mean for other examples and other prompts like these (JSON "
    "also has it for these prompts only). Group: whether T0 held the dataset out or trained on "
    "it. Majority: always giving the most frequent right answer. Ties, cut texts and excluded "
    "examples are summed over prompts. Click a heading to sort.",
    file="report_datasets.csv",
    nested=("excluded_reasons",),
)
_CLEAN = ReportTable(
    "clean_part",
    "Accuracy (%) without overlapping examples",
    columns=(
        _DATASET,
        _RUN,
        _EXAMPLES,
        ReportColumn("overlapping", "Overlapping", "overlapping"),
        ReportColumn("all", "All", "all"),
        ReportColumn("clean", "Clean", "clean"),
        ReportColumn("difference", "Clean - all", "clean - all", signed, detail=_clean_interval),
        ReportColumn("p_value", "p", "p", p_value),
        ReportColumn("gap_all", "Difference, all", "diff. all", signed, needed=_has("gap_all")),
        ReportColumn(
            "gap_clean", "Difference, clean", "diff. clean", signed, needed=_has("gap_all")
        ),
        ReportColumn("gap_p_value", "p, clean", "p, clean", p_value, needed=_has("gap_all")),
    ),
    note="Clean: accuracy (%) on the other examples. The test of clean minus all is paired, "
    "because both contain the clean examples.",
)
_PROMPTS_AND_METRICS = (
    ReportTable(
        "ways",
        "Accuracy (%) by normalization",
        columns=(
            _DATASET,
            _RUN,
            _make_normalization_column("sum", "Sum"),
            _make_normalization_column("tokens", "By tokens"),
            _make_normalization_column("characters", "By characters"),
            _make_normalization_column("decoded", "Decoded"),
        ),
        note="Mean over prompts with its interval. T0’s accuracy uses the plain sum of a choice’s "
        "log-probabilities. Next to it: the sum divided by the choice’s tokens, and by its "
        "characters; and whether the decoded answer is the right choice.",
    ),
    ReportTable(
        "class_means",
        "Macro F1 and balanced accuracy (%)",
        columns=(
            _DATASET,
            _RUN,
            *(ReportColumn(m.name, m.heading, m.short) for m in CLASS_MEASURES),
        ),
        note="Mean over the prompts whose choices are the same in all examples. "
        + " ".join(m.meaning for m in CLASS_MEASURES if m.meaning),
    ),
    ReportTable(
        "rank_metrics",
        "Metrics of the ranked tasks",
        columns=(_DATASET, _RUN, _PROMPT, _METRIC, _VALUE),
        note="The other metrics of the tasks (`metric_fns`), as the evaluation computed them.",
        file="report_rank_metrics.csv",
        long=True,
        terminal_rows=_MOST_TERMINAL_ROWS,
    ),
    ReportTable(
        "metrics",
        "Metrics of the tasks",
        columns=(
            ReportColumn("task", "Task", "task", css="t head", kind="name"),
            _METRIC,
            _RUN,
            dataclasses.replace(_VALUE, detail=interval),
            _EXAMPLES,
            *_CUT,
        ),
        note="The tasks’ metrics of the decoded text; a dash if a metric is undefined. In small "
        f"type the {_PERCENT} % interval over other examples, if the evaluation computed one. Cut: "
        "texts longer than the limits of the evaluation. Click a heading to sort.",
        file="report_metrics.csv",
        long=True,
        shown=lambda row: not row["group"],
    ),
    ReportTable(
        "prompts",
        "Prompts",
        columns=(
            ReportColumn("dataset", "Dataset", css="t", text=lambda row: title_of(row["dataset"])),
            _RUN,
            dataclasses.replace(_PROMPT, short="", kind="prompt"),
            ReportColumn("accuracy_percent", "Accuracy", css="n strong"),
            ReportColumn(
                "interval_low_percent",
                "Interval",
                text=lambda row: interval(row, suffix="_percent") or "–",
            ),
            ReportColumn("chance_percent", "Chance"),
            ReportColumn("majority_percent", "Majority"),
            ReportColumn(
                "most_predicted_percent",
                "Most predicted",
                "",
                lambda value: f"{value:.0f} %",
                detail=lambda row: cut_in_middle(row["most_predicted_answer"] or "", 40),
            ),
            ReportColumn("examples", "Examples"),
            ReportColumn("ties", "Ties"),
            *_CUT,
            ReportColumn("excluded", "Excluded"),
        ),
        note=f"Accuracy (%) of each prompt with its {_PERCENT} % interval. Most predicted: the "
        "answer that the model gives most often, and how often. A prompt’s name opens its "
        "confusion matrix, calibration and examples. Click a heading to sort.",
        file=PROMPTS_FILE,
        nested=("metrics", "predictions"),
        long=True,
    ),
    ReportTable(
        "classes",
        "Metrics per class (%)",
        columns=(
            _DATASET,
            _RUN,
            _PROMPT,
            ReportColumn("class", "Class", "class", lambda text: cut_in_middle(text, 40), css="t"),
            ReportColumn("precision", "Precision", "precision"),
            ReportColumn("recall", "Recall", "recall"),
            ReportColumn("f1", "F1", "F1"),
            ReportColumn("support", "Examples", "examples"),
            ReportColumn("predicted", "Predicted", "predicted"),
        ),
        note="Precision, recall and F1 (%) of each class of the prompts whose choices are the same "
        "in all examples. Examples: how often the class is right. A dash: the class is never "
        "predicted, or has no examples.",
        file="report_classes.csv",
        long=True,
        terminal_rows=_MOST_TERMINAL_ROWS,
    ),
)


# The tables of a comparison, whose columns and titles name its runs.


def _list_comparison_tables(comparison: RunComparison) -> list[ReportTable]:
    columns = [
        ReportColumn("prompts", "Prompts", "pr."),
        ReportColumn("examples", "Examples", "ex."),
    ]
    has_room = len(comparison.runs) <= _RUNS_WITH_INTERVALS
    for run in comparison.runs:
        letter = run.mark.letter
        text = _accuracy_formatter(run.name, "{mean:.1f} {letters}", missing="–")
        detail = _accuracy_formatter(run.name, "{low:.1f} to {high:.1f}")
        columns.append(
            ReportColumn(
                "title",
                f"{letter} {run.name}",
                "" if has_room else letter,
                text=text,
                detail=detail,
                sort=lambda row, name=run.name: row["accuracies"].get(name, {}).get("mean"),
            )
        )
        if has_room:
            long_text = _accuracy_formatter(
                run.name, "{mean:.1f} ({low:.1f} to {high:.1f}) {letters}", missing="–"
            )
            columns.append(ReportColumn("title", "", letter, text=long_text))
    accuracies = dataclasses.replace(_ACCURACIES, columns=(_TITLE, *columns))
    title = f"Difference from {comparison.baseline_letter}"
    return [accuracies, dataclasses.replace(_DIFFERENCES, title=title), _PROMPT_DIFFERENCES]


def _accuracy_formatter(name: str, template: str, missing: str = "") -> Callable[[Row], str]:
    def text(row: Row) -> str:
        accuracy = row["accuracies"].get(name)
        letters = row["letters"].get(name)
        return template.format(letters=letters, **accuracy).strip() if accuracy else missing

    return text


def _pair_formatter(first: str, second: str) -> Callable[[Row], str]:
    return lambda row: "–" if row[first] is None else f"{row[first]}/{row[second]}"


def _format_differing(row: Row) -> str:
    if row["differing"] is None:
        return ""
    return f"{row['differing']:,} of {row['examples']:,} examples differ"


def _format_mid_p(row: Row) -> str:
    return f"mid-p {p_value(row['mid_p_value'])}"


_ACCURACIES = ReportTable(
    "accuracies",
    "Compared accuracy (%)",
    columns=(),
    note="Mean over prompts, on the prompts and examples that all runs of a row scored; in small "
    f"type the {_PERCENT} % interval for other examples and prompts. Runs that share a small "
    "letter do not differ significantly on that dataset; without letters, no two runs do.",
)
_DIFFERENCES = ReportTable(
    "differences",
    "Difference from the baseline",
    columns=(
        _TITLE,
        _RUN,
        ReportColumn("difference", "Difference", "diff.", signed, detail=interval),
        _INTERVAL,
        ReportColumn("fixed_low", "These prompts", text=lambda row: interval(row, "fixed")),
        ReportColumn("adjusted_p_value", "Adjusted p", "adj. p", p_value),
        ReportColumn("detectable", "Detectable", "detect."),
        ReportColumn("correlation", "Correlation", "", _format_two_digits),
        ReportColumn(
            "better", "Better / worse prompts", "+/−", text=_pair_formatter("better", "worse")
        ),
        ReportColumn(
            "won",
            "Won / lost",
            "won/lost",
            text=_pair_formatter("won", "lost"),
            detail=_format_differing,
        ),
        ReportColumn("examples", "Examples"),
    ),
    note="In percentage points, paired by prompt and example; in small type the interval for other "
    "examples and prompts, under “These prompts” for other examples only. Adjusted p: by "
    "Benjamini and Hochberg over this table. Detectable: the smallest true difference that an "
    "evaluation like this finds in four of five cases. Correlation: between the two runs’ "
    "means by example; pairing makes use of it. Better and worse: prompts with McNemar’s p "
    "below 0.05, before any correction. Won and lost: examples that the run has right under "
    "more, and under fewer, prompts.",
    file="report_differences.csv",
)
_PROMPT_DIFFERENCES = ReportTable(
    "prompt_differences",
    "Differences of each prompt",
    columns=(
        ReportColumn("title", "Dataset", css="t"),
        _RUN,
        dataclasses.replace(_PROMPT, short=""),
        ReportColumn("first_accuracy", "Baseline"),
        ReportColumn("second_accuracy", "Run’s"),
        ReportColumn("difference", "Difference", "", signed, detail=interval),
        ReportColumn("first_only", "Only baseline right"),
        ReportColumn("second_only", "Only run right"),
        ReportColumn("p_value", "McNemar p", "", p_value, detail=_format_mid_p),
    ),
    note="Each prompt by itself, with McNemar’s exact test, which rejects too rarely, and mid-p; "
    "neither is adjusted for the number of prompts.",
    file="report_prompt_differences.csv",
    long=True,
)
