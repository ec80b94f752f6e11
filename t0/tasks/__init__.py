"""The parts of a SeqIO task: from a dataset's rows and a template to what a registry takes.

Nothing here registers; `seqio_tasks`, the catalogue, does.
"""

from t0.tasks.prompted_tasks import (
    SCORE_EVAL,
    PromptedSource,
    PromptedTask,
    task_definitions,
    task_name,
)
from t0.tasks.vocabulary import default_vocabulary, set_vocabulary, vocabulary_path

__all__ = [
    "SCORE_EVAL",
    "PromptedSource",
    "PromptedTask",
    "default_vocabulary",
    "set_vocabulary",
    "task_definitions",
    "task_name",
    "vocabulary_path",
]
