"""Collects the examples of a report: as scripts for the browser of the page, or as a table file.

    runs = read_runs([Path("eval")])
    index, scripts = collect_examples(runs)
    index[0]["name"], index[0]["tasks"][0]["prompt"]     # ("RTE", "GPT-3 style")
    scripts[0]                                           # {"strings": [...], "tasks": [...]}
    write_examples(runs, Path("wrong.csv"), only="wrong")
    # id,prompt,text,target,prediction,correct,score billing,score technical problem
    # T-17,which,My invoice is ...,billing,technical problem,false,-3.41,-0.92

A page opened from disk cannot fetch another file, but it can load a script. So the examples of each
dataset are JSON in a script. If several prompts or runs share a text, the text is written only
once. A long text is cut in the middle, because the question is often at the end. For each prompt, a
script lists the examples in the order of their rows:

    [row, input, gold, choices, [[run, prediction, [log-likelihood of each choice]], ...], id]
    [heading, input, targets, [[run, text], ...]]                  # decoded text

Inputs, choices, texts and ids are indices into `strings`. The id comes from the user's data; most
rows have no id. If the runs scored different choices for a row, the row has several records.

The extension of a table file selects its format (`t0.files.table_files`). `id` is the id in the
user's data. If the data has no ids, it is the number of the row. A score is the log-likelihood of a
choice in nats. If the choices differ between examples, the columns are `choice 1`, `score 1` and so
on. Decoded texts have no scores. With several runs or datasets, the first columns name them.

Assumptions: each row of a dataset has the same number in every run.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.errors import UserError
from t0.files.table_files import write_table
from t0.progress import ProgressLine
from t0.reports.evaluations import DecodedTask, EvaluatedRun, RankedTask, read_predictions
from t0.reports.example_scores import inputs_of
from t0.reports.published import held_out_titles, title_of
from t0.reports.tables import Row, escape_formula

TEXT_LIMIT = 3_000  # the maximum number of characters of an input or answer
# If there are more different choices than this, the columns are named `choice 1`, `score 1` and so
# on instead of after the choices.
_MOST_NAMED_CHOICES = 50
ONLY = ("wrong", "right")
Tasks = Mapping[str, Mapping[int, Any]]


def collect_examples(
    runs: Sequence[EvaluatedRun], prompts: Sequence[Row] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the index of all datasets, and the examples of each record of the index as JSON.

    For ranked tasks, the index has one record per dataset. For tasks whose answers are decoded, it
    has one record per task, and the record's `tasks` has only this task. A record has the keys
    `name`, `kind` and `tasks`. Each task in `tasks` has its `prompt` and, for each run, a diagnosis
    or None.

    Args:
      runs: the evaluated checkpoints.
      prompts: the rows of the table of prompts, which contain the diagnoses.

    Raises:
      UserError: if a file of scores or predictions cannot be read.
    """
    diagnoses = {(row["task"], row["run"]): row["predictions"] for row in prompts}
    index: list[dict[str, Any]] = []
    scripts: list[str] = []
    groups = _group_tasks(runs)
    total = sum(len(tasks) for _, _, tasks in groups)
    with ProgressLine(total, unit="task", doing="collecting examples") as progress:
        for name, kind, tasks in groups:
            strings: dict[str, int] = {}
            entries, task_rows = [], []
            collect_rows = _collect_ranked_rows if kind == "rank" else _collect_decoded_rows
            for task_name, by_run in tasks.items():
                task_rows.append(collect_rows(by_run, strings))
                task = next(iter(by_run.values()))
                entries.append(
                    {
                        "task": task_name,
                        "prompt": task.prompt if kind == "rank" else task_name,
                        "runs": sorted(by_run),
                        "diagnoses": [diagnoses.get((task_name, i)) for i in range(len(runs))],
                        "examples": len(task_rows[-1]),
                    }
                )
                progress.count(1)
            index.append({"name": name, "kind": kind, "tasks": entries})
            scripts.append(script_json({"strings": [*strings], "tasks": task_rows}))
    return index, scripts


def script_json(content: object) -> str:
    """Encodes a value as JSON that is safe in a script, whether in the page or in its own file."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _group_tasks(runs: Sequence[EvaluatedRun]) -> list[tuple[str, str, Tasks]]:
    """Returns (name, kind, prompt -> run -> task) for each dataset and each decoded task."""
    ranked: dict[str, dict[str, dict[int, RankedTask]]] = {}
    decoded: dict[str, dict[str, dict[int, DecodedTask]]] = {}
    for position, run in enumerate(runs):
        for task in run.tasks:
            if task.scores:
                prompts = ranked.setdefault(task.dataset, {})
                prompts.setdefault(task.name, {})[position] = task
        for task in run.decoded:
            if task.predictions_file:
                decoded.setdefault(task.name, {}).setdefault(task.name, {})[position] = task
    ordered = sorted(ranked, key=lambda name: (name not in held_out_titles(), name))
    return [
        *((title_of(name), "rank", ranked[name]) for name in ordered),
        *((name, "decoded", tasks) for name, tasks in decoded.items()),
    ]


def _add_string(strings: dict[str, int], text: str) -> int:
    """Returns the index of a text in `strings`; adds the text if it is missing."""
    return strings.setdefault(cut_in_middle(text), len(strings))


def cut_in_middle(text: str, limit: int = TEXT_LIMIT) -> str:
    """Keeps only the beginning and the end of a text that is longer than the limit.

    >>> cut_in_middle("abcdefghij", limit=4)
    'ab … [6 characters left out] … ij'
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters left out] … {text[-half:]}"


def _collect_ranked_rows(
    by_run: Mapping[int, RankedTask], strings: dict[str, int]
) -> list[list[Any]]:
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for run, task in by_run.items():
        for record in task.scores.records():
            scored_choices, idx, gold = record["choices"], record["idx"], record["gold"]
            choices = tuple([_add_string(strings, choice["text"]) for choice in scored_choices])
            inputs = inputs_of(record)
            input_index = None if inputs is None else _add_string(strings, inputs)
            row = [idx, input_index, gold, choices, []]
            row += [_add_string(strings, str(record["id"]))] if "id" in record else []
            row = rows.setdefault((task.scores.numbered_by, idx, gold, choices), row)
            values = [round(float(choice["log_likelihood"]), 3) for choice in scored_choices]
            row[4].append([run, record["prediction"], values])
    return [rows[key] for key in sorted(rows)]


def _collect_decoded_rows(
    by_run: Mapping[int, DecodedTask], strings: dict[str, int]
) -> list[list[Any]]:
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for run, task in by_run.items():
        seen: dict[tuple[Any, ...], int] = {}
        for example in read_predictions(task.predictions_file):
            key = (example.heading, example.inputs, example.targets)
            seen[key] = seen.get(key, 0) + 1
            targets = [_add_string(strings, target) for target in example.targets]
            row = rows.setdefault(
                (*key, seen[key]),
                [example.heading, _add_string(strings, example.inputs), targets, []],
            )
            row[3].append([run, _add_string(strings, example.prediction)])
    return list(rows.values())


def write_examples(
    runs: Sequence[EvaluatedRun], path: Path, only: str | None = None, *, excel: bool = False
) -> int:
    """Writes the examples of runs to a file, and returns their number.

    Args:
      path: the file, with an extension that `table_files.check_format` accepts.
      only: one of `ONLY`; None for all examples.
      excel: whether Excel shall read a CSV or TSV file as UTF-8.

    Raises:
      UserError: if there are no per-example scores and no decoded texts, a file of scores cannot be
        read, or the output cannot be written.
    """
    ranked = [(run, task) for run in runs for task in run.tasks if task.scores]
    decoded = [(run, task) for run in runs for task in run.decoded if task.predictions_file]
    if not ranked and not decoded:
        raise UserError("--examples: these results have no per-example scores or decoded texts")
    columns, named = _list_columns(runs, ranked)
    is_spreadsheet = path.suffix.lower() in (".csv", ".tsv")
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

    write_table(str(path), columns, rows(), byte_order_mark=excel)
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
            "id": example.heading or (number if example.row is None else example.row),
            "prompt": task.name,
            "text": example.inputs,
            "target": " ||| ".join(example.targets),
            "prediction": example.prediction,
            "correct": example.prediction.strip() in example.targets,
        }
