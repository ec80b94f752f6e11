"""Writes what a model answered, for each recipe in the form that its own programs read.

    write_predictions("eval", task, 1000, examples=records, predictions=texts)
    # "eval/predictions/qa_squad_1000.json"

| task | file | content |
|---|---|---|
| `sni_...` | `.jsonl` | Tk-Instruct's `predicted_examples.jsonl`: task, instance, `prediction` |
| `qa_...` | `.json` | `predictions`: id -> text, as SQuAD's scripts read; `metrics`; `examples` |
| any other | `.jsonl` | `inputs`, `prediction`, `targets` |

Records are as SeqIO's task gives them, texts in bytes or not; predictions are decoded text.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t0.compat import seqio
from t0.scoring.results import write_whole
from t0.tasks import answer_metrics
from t0.tasks.instruction_tasks import InstructionSource
from t0.tasks.question_answering import QuestionSource

# Examples of a dataset that are written out to be read, evenly spread over it.
READABLE = 100

Record = Mapping[str, Any]


def write_predictions(
    folder: str,
    task: seqio.Task,
    step: int,
    *,
    examples: Sequence[Record],
    predictions: Sequence[str],
) -> str:
    """Writes `predictions/<task>_<step>.json` or `.jsonl` under `folder`; returns its path.

    Args:
      folder: of the evaluation's results, local or `gs://`.
      task: whose records they are.
      step: of the checkpoint.
      examples: the records, as `task.get_dataset` gives them.
      predictions: the decoded text for each.

    Raises:
      UserError: if the file cannot be written.
    """
    pairs = list(zip(examples, predictions, strict=True))
    if isinstance(task.source, QuestionSource):
        ending, lines = "json", [json.dumps(_answers(pairs), indent=1, ensure_ascii=False), "\n"]
    elif isinstance(task.source, InstructionSource):
        told = (task.source.told(example, text.strip()) for example, text in pairs)
        ending, lines = "jsonl", _json_lines(told)
    else:
        ending, lines = "jsonl", _json_lines(_line(example, text) for example, text in pairs)
    path = os.path.join(folder, "predictions", f"{task.name}_{step}.{ending}")  # noqa: PTH118
    write_whole(path, lines)
    return path


def _json_lines(records: Iterator[Record]) -> Iterator[str]:
    return (json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _line(example: Record, prediction: str) -> dict[str, str]:
    line = {"prediction": prediction}
    for name in ("inputs", "targets"):
        if f"{name}_pretokenized" in example:
            line[name] = _text(example[f"{name}_pretokenized"])
    return {name: line[name] for name in ("inputs", "prediction", "targets") if name in line}


def _answers(pairs: Sequence[tuple[Record, str]]) -> dict[str, Any]:
    targets = [[_text(answer) for answer in example["answers"]] for example, _ in pairs]
    texts = [prediction.strip() for _, prediction in pairs]
    may_be_none = answer_metrics.some_unanswerable(targets)
    some = sorted({len(pairs) * number // READABLE for number in range(READABLE)}) if pairs else []
    return {
        "metrics": answer_metrics.metrics(targets, texts) if pairs else {},
        "predictions": {
            _text(example["id"]): text for (example, _), text in zip(pairs, texts, strict=True)
        },
        "examples": [
            {
                **{name: _text(pairs[place][0][name]) for name in ("id", "question", "context")},
                "answers": targets[place],
                "prediction": texts[place],
                **answer_metrics.scores(targets[place], texts[place], may_be_none=may_be_none),
            }
            for place in some
        ],
    }
