"""Writes decoded texts in the formats that the evaluation scripts of the recipes read.

    write_predictions("eval", task, 1000, examples=records, predictions=texts)
    # "eval/predictions/qa_squad_1000.json"

| task | file | content |
|---|---|---|
| `sni_...` | `.jsonl` | Tk-Instruct's `predicted_examples.jsonl`: task, instance, `prediction` |
| `qa_...` | `.json` | `predictions`: id -> text, as SQuAD's scripts read; `metrics`; `examples` |
| any other | `.jsonl` | `idx` (the number of the row), `id`, `inputs`, `prediction`, `targets` |
"""

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t0.compat import seqio
from t0.evaluation.records import text_of
from t0.evaluation.results import write_whole
from t0.tasks.instruction_tasks import InstructionSource
from t0.tasks.metrics import some_unanswerable, squad_metrics, squad_scores
from t0.tasks.recipe_tasks import QuestionSource

# The number of evenly spaced examples of each dataset that are written in full for people to read.
READABLE = 100

Record = Mapping[str, Any]


def write_predictions(
    folder: str,
    task: seqio.Task,
    step: int,
    *,
    examples: Sequence[Record],
    predictions: Sequence[str],
    rows: Sequence[Record] | None = None,
) -> str:
    """Writes `predictions/<task>_<step>.json` or `.jsonl` under `folder`; returns its path.

    Args:
      folder: the folder of the evaluation's results, local or `gs://`.
      task: the task of the records.
      step: the checkpoint's step.
      examples: the records from `task.get_dataset`; texts may be bytes.
      predictions: the decoded text of each record.
      rows: the dataset row of each record, as `RowsOf` returns it; None if the rows are unknown.

    Raises:
      UserError: if the file cannot be written.
    """
    pairs = list(zip(examples, predictions, strict=True))
    if isinstance(task.source, QuestionSource):
        ending, lines = "json", [json.dumps(_answers(pairs), indent=1, ensure_ascii=False), "\n"]
    elif isinstance(task.source, InstructionSource):
        records = (task.source.prediction_line(example, text.strip()) for example, text in pairs)
        ending, lines = "jsonl", _json_lines(records)
    else:
        numbered = zip(rows or itertools.repeat({}), pairs)  # noqa: B905 (there may be more rows)
        ending, lines = "jsonl", _json_lines({**row, **_line(*pair)} for row, pair in numbered)
    path = os.path.join(folder, "predictions", f"{task.name}_{step}.{ending}")  # noqa: PTH118
    write_whole(path, lines)
    return path


def _json_lines(records: Iterator[Record]) -> Iterator[str]:
    return (json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _line(example: Record, prediction: str) -> dict[str, str]:
    line = {"prediction": prediction}
    for name in ("inputs", "targets"):
        if f"{name}_pretokenized" in example:
            line[name] = text_of(example[f"{name}_pretokenized"])
    return {name: line[name] for name in ("inputs", "prediction", "targets") if name in line}


def _answers(pairs: Sequence[tuple[Record, str]]) -> dict[str, Any]:
    targets = [[text_of(answer) for answer in example["answers"]] for example, _ in pairs]
    texts = [prediction.strip() for _, prediction in pairs]
    may_be_none = some_unanswerable(targets)
    indices = (
        sorted({len(pairs) * number // READABLE for number in range(READABLE)}) if pairs else []
    )
    return {
        "metrics": squad_metrics(targets, texts) if pairs else {},
        "predictions": {
            text_of(example["id"]): text for (example, _), text in zip(pairs, texts, strict=True)
        },
        "examples": [
            {
                **{name: text_of(pairs[index][0][name]) for name in ("id", "question", "context")},
                "answers": targets[index],
                "prediction": texts[index],
                **squad_scores(targets[index], texts[index], may_be_none=may_be_none),
            }
            for index in indices
        ],
    }
