r"""The SeqIO task of a question answering dataset.

    arguments = question_task(question_splits(Path("qa/squad")))
    seqio.TaskRegistry.add("qa_squad", **arguments)

    {"inputs": "Which team won?\nThe Broncos defeated ...", "targets": "Denver Broncos",
     "answers": ["Denver Broncos", ...], "id": ..., "question": ..., "context": ...}

Question and context are separated by a line break, which T5's vocabulary reads as a space; gin's
`qa.separator = ' \\n '` has what UnifiedQA's checkpoints were trained on, a backslash and an n.
Without a context the question stands alone (closed book). The first answer is trained on, the
empty text where there is none.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from t0.compat import gin, tf
from t0.sources.folders import Found
from t0.sources.questions import count_questions, read_questions
from t0.tasks import answer_metrics
from t0.tasks.records import TEXT, TEXTS, Record, RecordSource, t5_features, tokenised

_FIELDS = {
    **dict.fromkeys(("id", "question", "context", "inputs", "targets"), TEXT),
    "answers": TEXTS,
}


@gin.configurable("qa", module="t0")
def separator(separator: str = "\n") -> str:
    r"""Returns what stands between question and context (gin: `qa.separator = '\n'`)."""
    return separator


def _records(splits: Mapping[str, Found], split: str) -> Iterator[Record]:
    between = separator()
    for question in read_questions(splits[split]):
        behind = between + question.context if question.context else ""
        yield {
            "id": question.id,
            "question": question.question,
            "context": question.context,
            "answers": question.answers,
            "inputs": question.question + behind,
            "targets": question.answers[0] if question.answers else "",
        }


def postprocess(
    output: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | list[str]:
    """Returns a prediction as stripped text, a target as the list of accepted answers."""
    if not is_target:
        return output.strip()
    return [tf.compat.as_text(answer) for answer in example["answers"]]


class QuestionSource(RecordSource):
    """The questions of a dataset's files."""

    def __init__(self, splits: Mapping[str, Found]) -> None:
        super().__init__(
            read=functools.partial(_records, splits),
            count=functools.cache(lambda split: count_questions(splits[split])),
            splits=tuple(splits),
            signature=_FIELDS,
        )


def question_task(splits: Mapping[str, Found]) -> dict[str, Any]:
    """Returns the arguments of `seqio.TaskRegistry.add` for a dataset's splits."""
    return {
        "source": QuestionSource(splits),
        "preprocessors": tokenised(),
        "output_features": t5_features(),
        "postprocess_fn": postprocess,
        "metric_fns": [answer_metrics.metrics],
    }
