"""Translation: a task for each direction of each dataset.

    D/mt/{train,validation,wmt21}.jsonl.gz      ->  mt_en_de, mt_de_en
    D/mt/medical/{train,validation}.tsv         ->  mt_medical_en_de, mt_medical_de_en
    D/mt/en-fr/{train,validation}.jsonl         ->  mt_en_fr, mt_fr_en

Which languages a dataset has, the first row of one of its files says. T5's own tasks of WMT through
TensorFlow Datasets, `wmt_t2t_ende_v003` and others, stand in `t5.data.mixtures`.
"""

import itertools
import re
from pathlib import Path

from seqio_tasks.recipes.definitions import Definitions, folders
from t0.errors import UserError
from t0.sources.folders import FILE_PATTERN, folder_splits
from t0.sources.translations import languages
from t0.tasks.prompted_tasks import task_name
from t0.tasks.recipe_tasks import translation_task


def definitions(folder: Path) -> Definitions:
    """Returns the tasks of a folder and of its subfolders, whichever hold splits.

    Raises:
      UserError: if none does, or one names no two languages.
    """
    tasks = {}
    for name, path in folders(folder).items():
        splits = folder_splits(path)
        codes = next(filter(None, map(languages, splits.values())), ())
        # A folder that is called en-de says nothing that the direction does not.
        own = None if set(re.split("[-_]", name)) <= {*codes, ""} else name
        for source, target in itertools.permutations(codes, 2):
            task = task_name("mt", own, f"{source}_{target}")
            tasks[task] = translation_task(splits, source, target)
    if not tasks:
        raise UserError(
            f"{folder}: no translations. Put files {FILE_PATTERN} there, or folders of them; rows "
            'are like {"translation": {"en": "...", "de": "..."}}.'
        )
    return Definitions(tasks)
