"""Builds SeqIO tasks from datasets and templates, with all arguments that SeqIO's registry needs.

    task = PromptedTask("super_glue", "rte", template, {"train": "train"}, {"train": 2490})
    task_definitions(task)      # name -> keyword arguments of seqio.TaskRegistry.add

| file | contents |
|---|---|
| `prompted_tasks` | the tasks of a prompt: source, preprocessing, definitions |
| `few_shot_tasks` | few-shot forms of prompted tasks, for evaluations and gin's mixtures |
| `recipe_tasks`, `instruction_tasks` | tasks of documents, questions, translations, instructions |
| `denoisers` | UL2's denoisers over documents, and their mixture |
| `gin_mixtures` | mixtures that gin defines |
| `metrics` | the metrics of all tasks |
| `vocabulary` | the vocabulary that all tasks share |

This package does not register tasks, except the few-shot forms of an evaluation. The package
`seqio_tasks` registers them.
"""

from t0.catalogue import PromptedTask
from t0.tasks.prompted_tasks import PromptedSource, task_definitions
from t0.tasks.vocabulary import default_vocabulary, set_vocabulary, vocabulary_path

__all__ = [
    "PromptedSource",
    "PromptedTask",
    "default_vocabulary",
    "set_vocabulary",
    "task_definitions",
    "vocabulary_path",
]
