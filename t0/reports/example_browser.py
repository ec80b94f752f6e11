"""Writes the examples of a report into scripts, which the page loads when a user opens examples.

    index, scripts = collect_examples(read_runs([Path("eval")]))
    index[0]["name"], index[0]["tasks"][0]["prompt"]     # ("RTE", "GPT-3 style")
    scripts["report_examples_0.js"]                      # t0Examples(0, {"strings": [...], ...});

A page opened from disk cannot fetch another file, but it can load a script. So the examples of each
dataset are JSON in a script, as the argument of a function call. If several prompts or runs share a
text, the text is written only once. A long text is cut in the middle, because the question is often
at the end.

For each prompt, a script lists the examples in the order of their rows:

    [row, input, gold, choices, [[run, prediction, [log-likelihood of each choice]], ...], id]
    [heading, input, targets, [[run, text], ...]]                  # decoded text

Inputs, choices, texts and ids are indices into `strings`. The id comes from the user's data; most
rows have no id. If the runs scored different choices for a row, the row has several records.

Assumptions: each row of a dataset has the same number in every run.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from t0.progress import ProgressLine
from t0.reports import accuracies
from t0.reports.diagnosis import Diagnosis, diagnose
from t0.reports.evaluations import DecodedTask, EvaluatedRun, RankedTask, read_predictions
from t0.reports.example_scores import inputs_of
from t0.reports.held_out import held_out_titles, title_of

TEXT_LIMIT = 3_000  # the maximum number of characters of an input or answer
PATTERN = "report_examples_*.js"


def collect_examples(runs: Sequence[EvaluatedRun]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns the index of all datasets, and a mapping from file name to script.

    The report's page contains the index. A script contains the examples of one record of the index.

    For ranked tasks, the index has one record per dataset. For tasks whose answers are decoded, it
    has one record per task, and the record's `tasks` has only this task. A record has the keys
    `name`, `kind` and `tasks`. Each task in `tasks` has its `prompt` and, for each run, a diagnosis
    or None.

    Raises:
      UserError: if a file of scores or predictions cannot be read.
    """
    index: list[dict[str, Any]] = []
    scripts: dict[str, str] = {}
    groups = _group_tasks(runs)
    total = sum(len(tasks) for _, _, tasks in groups)
    with ProgressLine(total, unit="task", doing="collecting examples") as progress:
        for number, (name, kind, tasks) in enumerate(groups):
            strings, entries, rows = {}, [], []
            for prompt, by_run in tasks.items():
                rows.append(
                    (_collect_ranked_rows if kind == "rank" else _collect_decoded_rows)(
                        by_run, strings
                    )
                )
                entries.append(
                    _make_index_entry(prompt, by_run, runs) | {"examples": len(rows[-1])}
                )
                progress.count(1)
            index.append({"name": name, "kind": kind, "tasks": entries})
            script = script_json({"strings": [*strings], "tasks": rows})
            scripts[f"report_examples_{number}.js"] = f"t0Examples({number}, {script});\n"
    return index, scripts


def script_json(content: object) -> str:
    """Encodes a value as JSON that is safe in a script, whether in the page or in its own file."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


Tasks = Mapping[str, Mapping[int, Any]]


def _group_tasks(runs: Sequence[EvaluatedRun]) -> list[tuple[str, str, Tasks]]:
    """Returns (name, kind, prompt -> run -> task) for each dataset and each decoded task."""
    ranked: dict[str, dict[str, dict[int, RankedTask]]] = {}
    decoded: dict[str, dict[str, dict[int, DecodedTask]]] = {}
    for position, run in enumerate(runs):
        for task in run.tasks:
            if accuracies.scores_of([task]):
                prompts = ranked.setdefault(task.dataset, {})
                prompts.setdefault(task.name, {})[position] = task
        for task in run.decoded:
            if task.predictions_file is not None and task.predictions_file.is_file():
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
            row = rows.setdefault((idx, gold, choices), row)
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


def _make_index_entry(
    name: str, by_run: Mapping[int, Any], runs: Sequence[EvaluatedRun]
) -> dict[str, Any]:
    task = next(iter(by_run.values()))
    ranked = isinstance(task, RankedTask)
    diagnoses = {
        run: diagnosis_record(diagnose(ranked_task.scores))
        for run, ranked_task in by_run.items()
        if ranked
    }
    return {
        "task": name,
        "prompt": task.prompt if ranked else name,
        "runs": [run for run in range(len(runs)) if run in by_run],
        "diagnoses": [diagnoses.get(run) for run in range(len(runs))],
    }


def diagnosis_record(diagnosis: Diagnosis | None) -> dict[str, Any] | None:
    """Converts a diagnosis to the record that the page and `report.json` contain."""
    if diagnosis is None:
        return None
    calibration = diagnosis.calibration
    return {
        "answers": [cut_in_middle(answer, 120) for answer in diagnosis.answers],
        "same_choices": diagnosis.fixed,
        "confusion": None if diagnosis.matrix is None else diagnosis.matrix.tolist(),
        "majority": round(diagnosis.majority, 4),
        "most_predicted": round(diagnosis.most_predicted, 4),
        "most_predicted_answer": cut_in_middle(diagnosis.most_predicted_answer, 120),
        "calibration": [list(bin_values) for bin_values in calibration.bins],
        "calibration_error": round(calibration.error, 4),
        "calibration_interval": [round(calibration.low, 4), round(calibration.high, 4)],
        "accuracy_without_ties": diagnosis.without_ties and round(diagnosis.without_ties, 4),
        "entropy_bits": round(diagnosis.entropy, 4),
        "classes": diagnosis.classes and diagnosis.classes.rows,
    }
