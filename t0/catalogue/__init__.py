"""Lists the prompted tasks and mixtures of T0 and of the user's data folders as plain data.

    entries = catalogue_entries()            # a task for each template of T0's datasets
    listing = read_listing()                 # every task and mixture by name, with rates
    listing.members("t0_train")[0]           # ("adversarial_qa_dbert_...", 10000.0)

| file | contents |
|---|---|
| `prompted_task` | a template applied to a dataset: the task's name, splits and rows |
| `entries` | tasks of T0's tables (`datasets.csv`, `exclusions.csv`) and of the user's folders |
| `listing` | search for tasks, caches and mixtures by name; the tasks of T0's mixtures |
| `mixture_members` | the tasks and mixtures that the user's mixtures select |
| `mixing_rates` | rates from counts, caps and temperatures; the rates of mixtures in mixtures |
| `row_preview` | rendered rows with token counts and truncation (`t0 show`) |
| `exemplars` | exemplars of few-shot prompts, drawn from a task's training rows |
| `sentence_pieces` | token counts and the position at which a token limit truncates a text |
| `text_growth` | limits of the rules with which a tokenizer changes a text |
| `columns` | a summary of the columns of a user's data (`t0 init`) |
| `starter_folder` | the folder that `t0 init` writes |
| `starter_update` | new lengths, rows and prompts for such a folder (`t0 init --update`) |
| `lint` | checks of a prompt on sample rows |

Importing this package does not import TensorFlow, so tasks can be listed, shown and checked within
a second. `t0.tasks` builds SeqIO tasks from the entries, and `seqio_tasks` registers them.
"""

from t0.catalogue.entries import CatalogueEntry, catalogue_entries, own_entries
from t0.catalogue.listing import mixture_tasks
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
