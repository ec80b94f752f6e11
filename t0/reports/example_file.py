"""Writes the examples of runs to a table, for example all wrong predictions for a spreadsheet.

    write_examples(read_runs([Path("eval")]), Path("wrong.csv"), only="wrong")
    # id,prompt,text,target,prediction,correct,score billing,score technical problem
    # T-17,which,My invoice is ...,billing,technical problem,false,-3.41,-0.92

The extension of the file selects the format (`t0.files.table_files`). `id` is the id in the user's
data. If the data has no ids, it is the number of the row. A score is the log-likelihood of a choice
in nats. If the choices differ between examples, the columns are `choice 1`, `score 1` and so on.
Decoded texts have no scores. With several runs or datasets, the first columns name them.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.files.table_files import write_table
from t0.reports.accuracies import scores_of
from t0.reports.evaluations import DecodedTask, EvaluatedRun, RankedTask, read_predictions
from t0.reports.example_scores import inputs_of
from t0.reports.tables import escape_formula

# If there are more different choices than this, the columns are named `choice 1`, `score 1` and so
# on instead of after the choices.
_MOST_NAMED_CHOICES = 50
ONLY = ("wrong", "right")


def write_examples(runs: Sequence[EvaluatedRun], path: Path, only: str | None = None) -> int:
    """Writes the examples of runs to a file, and returns their number.

    Args:
      runs: the runs.
      path: the file, with an extension that `table_files.check_format` accepts.
      only: one of `ONLY`; None for all examples.

    Raises:
      UserError: if there are no per-example scores and no decoded texts, a file of scores cannot be
        read, or the output cannot be written.
    """
    ranked = [(run, task) for run in runs for task in run.tasks if scores_of([task])]
    decoded = [
        (run, task)
        for run in runs
        for task in run.decoded
        if task.predictions_file and task.predictions_file.is_file()
    ]
    if not ranked and not decoded:
        raise UserError("--examples: these results have no per-example scores or decoded texts")
    columns, named = _list_columns(runs, ranked)
    is_spreadsheet = path.suffix in (".csv", ".tsv")
    count = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal count
        examples = (row for pair in ranked for row in _ranked_rows(*pair, named))
        texts = (row for pair in decoded for row in _decoded_rows(*pair))
        for row in itertools.chain(examples, texts):
            if only is None or row["correct"] == (only == "right"):
                count += 1
                values = map(row.get, columns)
                cells = map(escape_formula, values) if is_spreadsheet else values
                yield dict(zip(columns, cells, strict=True))

    write_table(str(path), columns, rows())
    return count


def _list_columns(
    runs: Sequence[EvaluatedRun], ranked: Sequence[tuple[EvaluatedRun, RankedTask]]
) -> tuple[list[str], bool]:
    """Returns the columns, and whether columns of scores are named after the choices' texts."""
    datasets = {task.dataset for _, task in ranked}
    columns = ["run"] * (len(runs) > 1) + ["dataset"] * (len(datasets) > 1)
    columns += ["id", "prompt", "text", "target", "prediction", "correct"]
    labels = [task.scores.labels for _, task in ranked]
    choices = dict.fromkeys(text for texts in labels for text in texts or ())
    if all(labels) and len(choices) <= _MOST_NAMED_CHOICES:
        return [*columns, *(f"score {text}" for text in choices)], True
    most = max(int(task.scores.choices.max()) for _, task in ranked)
    numbers = range(1, most + 1)
    return [*columns, *(f"{kind} {n}" for n in numbers for kind in ("choice", "score"))], False


def _ranked_rows(run: EvaluatedRun, task: RankedTask, named: bool) -> Iterator[dict[str, Any]]:
    for record in task.scores.records():
        texts = [choice["text"] for choice in record["choices"]]
        gold, prediction = record["gold"], record["prediction"]
        row = {
            "run": run.label,
            "dataset": task.dataset,
            "id": record.get("id", record["idx"]),
            "prompt": task.prompt or task.name,
            "text": inputs_of(record),
            "target": texts[gold],
            "prediction": texts[prediction],
            "correct": prediction == gold,
        }
        for number, choice in enumerate(record["choices"], start=1):
            score = round(float(choice["log_likelihood"]), 4)
            row[f"score {choice['text'] if named else number}"] = score
            row[f"choice {number}"] = choice["text"]
        yield row


def _decoded_rows(run: EvaluatedRun, task: DecodedTask) -> Iterator[dict[str, Any]]:
    for number, example in enumerate(read_predictions(task.predictions_file)):
        yield {
            "run": run.label,
            "dataset": task.name,
            "id": example.heading or number,
            "prompt": task.name,
            "text": example.inputs,
            "target": " ||| ".join(example.targets),
            "prediction": example.prediction,
            "correct": example.prediction.strip() in example.targets,
        }
