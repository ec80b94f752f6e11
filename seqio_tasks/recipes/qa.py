"""Question answering, with a context or from memory: a task for each dataset.

D/qa/squad/{train,validation}.jsonl.gz      ->  qa_squad
D/qa/nq_open/validation.jsonl.gz            ->  qa_nq_open
D/qa/{train-v1.1,dev-v1.1}.json             ->  qa
"""

from pathlib import Path

from seqio_tasks.recipes.definitions import Definitions, folders
from t0.errors import UserError
from t0.sources.folders import FILE_PATTERN
from t0.sources.questions import question_splits
from t0.tasks.prompted_tasks import task_name
from t0.tasks.recipe_tasks import question_task


def definitions(folder: Path) -> Definitions:
    """Returns the tasks of a folder and of its subfolders, whichever hold splits.

    Raises:
      UserError: if none does.
    """
    splits = {name: question_splits(path) for name, path in folders(folder).items()}
    tasks = {
        task_name("qa", name or None, None): question_task(found)
        for name, found in splits.items()
        if found
    }
    if not tasks:
        raise UserError(
            f"{folder}: no questions. Put a folder for each dataset there, with files "
            f"{FILE_PATTERN}; the splits are train, validation (or dev) and test."
        )
    return Definitions(tasks)
