"""The parts of a SeqIO task: from a dataset's rows and a template to what a registry takes.

    task = PromptedTask("super_glue", "rte", template, {"train": "train"}, {"train": 2490})
    task_definitions(task)      # name -> keyword arguments of seqio.TaskRegistry.add

| file | what is in it |
|---|---|
| `prompted_tasks` | the tasks of a prompt: source, preprocessing, definitions |
| `recipe_tasks`, `instruction_tasks` | those of documents, questions, translations, instructions |
| `metrics` | the metrics of all of them |
| `vocabulary` | the vocabulary that they share |
| `lint` | what a prompt makes of sample rows |

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
