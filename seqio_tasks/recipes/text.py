"""Pretraining tasks: text_span_corruption, text_prefix_lm and text_lm, of folders and of the hub.

    D/text/train.jsonl.gz       ->  text_span_corruption, text_prefix_lm, text_lm
    D/text/books/train/*.txt    ->  text_books_span_corruption, ...

T5's own tasks of C4 through TensorFlow Datasets, `c4_v220_span_corruption` and others, stand in
`t5.data.mixtures`.
"""

from pathlib import Path

from seqio_tasks.recipes.definitions import Definitions
from t0.sources.hub import HubTexts
from t0.sources.own_data import TEMPLATES
from t0.sources.texts import FolderTexts, text_folders
from t0.tasks.prompted_tasks import task_name
from t0.tasks.recipe_tasks import pretraining_definitions

# Prefix of the tasks -> repository and configuration on the hub.
HUB = {"c4_hub": ("allenai/c4", "en")}


def definitions(folder: Path) -> Definitions:
    """Returns the tasks of a folder with text files, and of its subfolders.

    Raises:
      UserError: if the folder, or a subfolder, has no text files.
    """
    tasks = {}
    for name, path in text_folders(folder).items():
        # A dataset with templates, which happens to be called text.
        if not (path / TEMPLATES).exists():
            prefix = task_name("text", name or None, None)
            tasks |= pretraining_definitions(prefix, FolderTexts(path))
    return Definitions(tasks)


def hub_definitions() -> Definitions:
    """Returns the tasks that stream from the hub. The network is needed when they are read."""
    tasks = {}
    for prefix, (repo, config) in HUB.items():
        texts = HubTexts(repo, config, splits=("train", "validation"))
        tasks |= pretraining_definitions(prefix, texts)
    return Definitions(tasks)
