"""The catalogue as plain data: T0's prompted tasks and mixtures, and those of the user's folders.

    entries = catalogue_entries()            # a task for each template of T0's datasets
    listing = read_listing()                 # every task and mixture by name, with rates
    listing.mixtures["t0_train"][0]          # ("adversarial_qa_dbert_...", 10000)

| file | what is in it |
|---|---|
| `prompted_task` | a template over a dataset: its name, splits and rows |
| `entries` | the tasks of T0's tables (`datasets.csv`, `exclusions.csv`) and of own folders |
| `mixtures` | the members of each mixture, with their mixing rates |
| `listing` | tasks and mixtures by name or regular expression; which are cached |
| `row_preview` | rendered rows with token counts and cuts (`t0 show`) |
| `sentence_pieces` | counts tokens |
| `columns`, `starter_folder` | `t0 init`: a summary of the columns; the folder that it writes |
| `lint` | checks of a prompt on sample rows |

This room does not import TensorFlow, so that tasks are listed, shown and checked within a second.
`t0.tasks` makes SeqIO tasks of the entries, `seqio_tasks` registers them.
"""

from t0.catalogue.entries import CatalogueEntry, catalogue_entries, own_entries
from t0.catalogue.mixtures import mixture_tasks
from t0.catalogue.prompted_task import SCORE_EVAL, PromptedTask, task_name

__all__ = [
    "SCORE_EVAL",
    "CatalogueEntry",
    "PromptedTask",
    "catalogue_entries",
    "mixture_tasks",
    "own_entries",
    "task_name",
]
