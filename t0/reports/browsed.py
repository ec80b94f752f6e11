"""All examples of a report, in scripts beside the page that it loads when they are looked at.

    index, scripts = browsed(read_runs([Path("eval")]))
    index[0]["name"], index[0]["tasks"][0]["prompt"]     # ("RTE", "GPT-3 style")
    scripts["report_examples_0.js"]                      # t0Examples(0, {"strings": [...], ...});

A page that was opened from a file cannot fetch another file, but it can load a script, so the
examples of each dataset are a call of one function with JSON. Texts of examples that several
prompts and runs share are written once. A long text is cut in its middle, because the question is
often at its end.

A script holds, for each prompt, the examples in the order of their rows:

    [row, input, gold, choices, [[run, prediction, [log-likelihood of each choice]], ...]]
    [heading, input, targets, [[run, text], ...]]                  # decoded text

where an input, a choice and a text is its position in `strings`; a run that scored other choices
for a row has a record of its own.

Assumptions: one row of a dataset has the same number in every run.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from t0.progress import ProgressLine
from t0.reports.diagnosis import Diagnosis, diagnose
from t0.reports.evaluations import DecodedTask, EvaluatedRun, RankedTask, read_predictions
from t0.reports.example_scores import inputs_of
from t0.reports.published import published

TEXT_LIMIT = 3_000  # characters of an input or answer
PATTERN = "report_examples_*.js"


def browsed(runs: Sequence[EvaluatedRun]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns the index of all datasets for the page, and the scripts by name.

    The index has a record for each dataset and each task of decoded text: `name`, `kind`, and
    `tasks`, of which each has the `prompt`, and for each run its diagnosis or None.

    Raises:
      UserError: if a file of scores or predictions cannot be read.
    """
    index: list[dict[str, Any]] = []
    scripts: dict[str, str] = {}
    groups = _groups(runs)
    total = sum(len(tasks) for _, _, tasks in groups)
    with ProgressLine(total, unit="task", doing="collecting examples") as progress:
        for number, (name, kind, tasks) in enumerate(groups):
            strings, entries, rows = _Strings(), [], []
            for prompt, by_run in tasks.items():
                rows.append((_ranked_rows if kind == "rank" else _decoded_rows)(by_run, strings))
                entries.append(_index_entry(prompt, by_run, runs) | {"examples": len(rows[-1])})
                progress.count(1)
            index.append({"name": name, "kind": kind, "tasks": entries})
            script = script_json({"strings": strings.texts, "tasks": rows})
            scripts[f"report_examples_{number}.js"] = f"t0Examples({number}, {script});\n"
    return index, scripts


def script_json(content: object) -> str:
    """Returns JSON that is safe in a script, in a page and beside it."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


Tasks = Mapping[str, Mapping[int, Any]]


def _groups(runs: Sequence[EvaluatedRun]) -> list[tuple[str, str, Tasks]]:
    """Returns (name, kind, prompt -> run -> task) of each dataset and each decoded task."""
    ranked: dict[str, dict[str, dict[int, RankedTask]]] = {}
    decoded: dict[str, dict[str, dict[int, DecodedTask]]] = {}
    for position, run in enumerate(runs):
        for task in run.tasks:
            if task.scores is not None and len(task.scores):
                found = ranked.setdefault(task.dataset, {})
                found.setdefault(task.name, {})[position] = task
        for task in run.decoded:
            if task.predictions_file is not None and task.predictions_file.is_file():
                decoded.setdefault(task.name, {}).setdefault(task.name, {})[position] = task
    names = published()
    return [
        *(
            (names[name].title if name in names else name, "rank", ranked[name])
            for name in sorted(ranked, key=lambda name: (name not in names, name))
        ),
        *((name, "decoded", tasks) for name, tasks in decoded.items()),
    ]


class _Strings:
    """Texts and their positions; a text that occurs again is not kept again."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._known: dict[str, int] = {}

    def place(self, text: str) -> int:
        shown = cut_in_middle(text)
        place = self._known.setdefault(shown, len(self.texts))
        if place == len(self.texts):
            self.texts.append(shown)
        return place


def cut_in_middle(text: str, limit: int = TEXT_LIMIT) -> str:
    """Returns a text, or its beginning and its end.

    >>> cut_in_middle("abcdefghij", limit=4)
    'ab … [6 characters left out] … ij'
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters left out] … {text[-half:]}"


def _ranked_rows(by_run: Mapping[int, RankedTask], strings: _Strings) -> list[list[Any]]:
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for run, task in by_run.items():
        for record in task.scores.records():
            listed, idx, gold = record["choices"], record["idx"], record["gold"]
            choices = tuple([strings.place(choice["text"]) for choice in listed])
            inputs = inputs_of(record)
            place = None if inputs is None else strings.place(inputs)
            row = rows.setdefault((idx, gold, choices), [idx, place, gold, choices, []])
            values = [round(float(choice["log_likelihood"]), 3) for choice in listed]
            row[4].append([run, record["prediction"], values])
    return [rows[key] for key in sorted(rows)]


def _decoded_rows(by_run: Mapping[int, DecodedTask], strings: _Strings) -> list[list[Any]]:
    found: dict[tuple[Any, ...], list[Any]] = {}
    for run, task in by_run.items():
        seen: dict[tuple[Any, ...], int] = {}
        for one in read_predictions(task.predictions_file):
            same = (one.heading, one.inputs, one.targets)
            seen[same] = seen.get(same, 0) + 1
            targets = [strings.place(target) for target in one.targets]
            row = found.setdefault(
                (*same, seen[same]), [one.heading, strings.place(one.inputs), targets, []]
            )
            row[3].append([run, strings.place(one.prediction)])
    return list(found.values())


def _index_entry(
    name: str, by_run: Mapping[int, Any], runs: Sequence[EvaluatedRun]
) -> dict[str, Any]:
    task = next(iter(by_run.values()))
    ranked = isinstance(task, RankedTask)
    diagnoses = {
        run: diagnosis_record(diagnose(found.scores)) for run, found in by_run.items() if ranked
    }
    return {
        "task": name,
        "prompt": task.prompt if ranked else name,
        "runs": [run for run in range(len(runs)) if run in by_run],
        "diagnoses": [diagnoses.get(run) for run in range(len(runs))],
    }


def diagnosis_record(found: Diagnosis | None) -> dict[str, Any] | None:
    """Returns a diagnosis as it stands in the page and in `report.json`."""
    if found is None:
        return None
    return {
        "answers": [cut_in_middle(answer, 120) for answer in found.answers],
        "same_choices": found.fixed,
        "confusion": None if found.matrix is None else found.matrix.tolist(),
        "majority": round(found.majority, 4),
        "most_predicted": round(found.most_predicted, 4),
        "most_predicted_answer": cut_in_middle(found.most_predicted_answer, 120),
        "calibration": [list(one) for one in found.bins],
        "calibration_error": round(found.calibration_error, 4),
        "calibration_interval": [round(found.calibration_low, 4), round(found.calibration_high, 4)],
        "accuracy_without_ties": found.without_ties and round(found.without_ties, 4),
        "entropy_bits": round(found.entropy, 4),
    }
