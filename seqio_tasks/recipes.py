"""Registers tasks for the user's data folders when this module is imported.

    registered()    # {"text": ("text_span_corruption", "text_prefix_lm", ...), "hub": ...}

    D/text/train.jsonl.gz                       ->  text_span_corruption, text_prefix_lm, text_lm,
                                                    text_ul2_r1, ..., and the mixture text_ul2
    D/text/books/train/*.txt                    ->  text_books_span_corruption, ...
    D/sni/tasks/*.json, D/sni/splits/           ->  sni_def_pos_2, sni_def, ..., sni_tk_instruct
    D/qa/squad/{train,validation}.jsonl.gz      ->  qa_squad
    D/qa/{train-v1.1,dev-v1.1}.json             ->  qa
    D/mt/{train,validation,wmt21}.jsonl.gz      ->  mt_en_de, mt_de_en
    D/mt/medical/{train,validation}.tsv         ->  mt_medical_en_de, mt_medical_de_en

D is a folder that `--data_dir` or `T0_DATA_DIR` names. Each kind of recipe has a function. If the
subfolder D/KIND exists, the function receives it and returns the tasks for the files in it. The
function uses file names and sizes, reads little data and makes no network call. The languages of a
translation dataset come from the first row of one of its files.

T5 has its own tasks, such as `c4_v220_span_corruption` and `wmt_t2t_ende_v003`, which use
TensorFlow Datasets. To register them, import `t5.data.mixtures`.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t0.catalogue import task_name
from t0.compat import seqio
from t0.errors import UserError
from t0.files.any_path import is_readable
from t0.sources import data_dirs
from t0.sources.folders import FILE_PATTERN, folder_splits
from t0.sources.hub import HubTexts
from t0.sources.own_data import TEMPLATES
from t0.sources.questions import languages, question_splits
from t0.sources.texts import FolderTexts, text_folders
from t0.tasks.denoisers import denoiser_definitions, denoiser_mixtures
from t0.tasks.instruction_tasks import instruction_tasks
from t0.tasks.recipe_tasks import pretraining_definitions, question_task, translation_task

# Name of a task -> keyword arguments of `seqio.TaskRegistry.add`.
TaskDefinitions = Mapping[str, Mapping[str, Any]]


def _dataset_folders(folder: Path) -> dict[str, Path]:
    """Returns the folders that may hold a dataset: name -> folder.

    The name of `folder` itself is "". The name of a subfolder is its own name. Folders with prompt
    templates are skipped, because they hold prompted datasets, which may have the name of a recipe.
    """
    inner = (
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".") and is_readable(path)
    )
    every = {"": folder} | {path.name: path for path in inner}
    return {name: path for name, path in every.items() if not (path / TEMPLATES).exists()}


# Prefix of the task names -> repository and configuration on the Hugging Face hub.
HUB = {"c4_hub": ("allenai/c4", "en")}


def text_recipe(folder: Path) -> TaskDefinitions:
    """Returns the tasks of a folder of text files and of its subfolders.

    Raises:
      UserError: the folder, or a subfolder, has no text files.
    """
    tasks = {}
    for name, path in text_folders(folder).items():
        # A folder with templates holds a prompted dataset instead of documents.
        if not (path / TEMPLATES).exists():
            prefix = task_name("text", name or None, None)
            texts = FolderTexts(path)
            tasks |= pretraining_definitions(prefix, texts) | denoiser_definitions(prefix, texts)
    return tasks


def hub_recipe() -> TaskDefinitions:
    """Returns the tasks that stream data from the Hugging Face hub.

    Defining the tasks needs no network. Reading their data does.
    """
    tasks = {}
    for prefix, (repo, config) in HUB.items():
        texts = HubTexts(repo, config, splits=("train", "validation"))
        tasks |= pretraining_definitions(prefix, texts) | denoiser_definitions(prefix, texts)
    return tasks


def instruction_recipe(folder: Path) -> TaskDefinitions:
    """Returns the tasks of a folder with the published files of natural-instructions.

    Raises:
      UserError: the folder has no lists of tasks.
    """
    return instruction_tasks(folder)


def question_recipe(folder: Path) -> TaskDefinitions:
    """Returns the question answering tasks of a folder and its subfolders.

    Raises:
      UserError: none of these folders holds a split.
    """
    splits = {name: question_splits(path) for name, path in _dataset_folders(folder).items()}
    tasks = {
        task_name("qa", name or None, None): question_task(files)
        for name, files in splits.items()
        if files
    }
    if not tasks:
        raise UserError(
            f"{folder}: no questions. Put a folder for each dataset there, with files "
            f"{FILE_PATTERN}; the splits are train, validation (or dev) and test."
        )
    return tasks


def translation_recipe(folder: Path) -> TaskDefinitions:
    """Returns the translation tasks of a folder and its subfolders.

    Raises:
      UserError: none of these folders holds a split, or a file has fewer than two languages.
    """
    tasks = {}
    for name, path in _dataset_folders(folder).items():
        splits = folder_splits(path)
        codes = next(filter(None, map(languages, splits.values())), ())
        # Leave out a folder name such as "en-de": the task name already contains the languages.
        folder_name = None if set(re.split("[-_]", name)) <= {*codes, ""} else name
        for source, target in itertools.permutations(codes, 2):
            task = task_name("mt", folder_name, f"{source}_{target}")
            tasks[task] = translation_task(splits, source, target)
    if not tasks:
        raise UserError(
            f"{folder}: no translations. Put files {FILE_PATTERN} there, or folders of them; rows "
            'are like {"translation": {"en": "...", "de": "..."}}.'
        )
    return tasks


# Name of the subfolder in a data folder -> the function that returns its tasks.
KINDS: dict[str, Callable[[Path], TaskDefinitions]] = {
    "text": text_recipe,
    "sni": instruction_recipe,
    "qa": question_recipe,
    "mt": translation_recipe,
}
# Name of a recipe that needs no folder -> the function that returns its tasks.
ALWAYS: dict[str, Callable[[], TaskDefinitions]] = {"hub": hub_recipe}

_registered: dict[str, tuple[str, ...]] = {}


def registered() -> Mapping[str, tuple[str, ...]]:
    """Returns kind of recipe -> names of the tasks that were registered for this kind."""
    return dict(_registered)


def _define_tasks() -> Iterator[tuple[str, str, TaskDefinitions]]:
    """Yields (kind, folder, definitions of the tasks) for each recipe."""
    for kind, define in KINDS.items():
        for folder in (data_dir / kind for data_dir in data_dirs()):
            if folder.is_dir():
                yield kind, str(folder), define(folder)
    for kind, make in ALWAYS.items():
        yield kind, "these recipes", make()


def _register() -> None:
    """Registers the tasks of all recipes.

    Raises:
      UserError: two folders define tasks with the same name, or a task's name is already
        registered.
    """
    taken = dict.fromkeys([*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()], "SeqIO")
    definitions = []
    # Build all definitions before registering any, so that an error does not change the registries.
    for kind, where, tasks in _define_tasks():
        for name in (*tasks, *denoiser_mixtures(tasks)):
            if name in taken:
                raise UserError(
                    f"{where}: a task or mixture '{name}' exists already, from {taken[name]}. "
                    "Tasks are named after subfolders: rename one, or use only one data folder."
                )
            taken[name] = where
        definitions.append((kind, tasks))
    for kind, tasks in definitions:
        for name, arguments in tasks.items():
            seqio.TaskRegistry.add(name, **arguments)
        for name, members in denoiser_mixtures(tasks).items():
            seqio.MixtureRegistry.add(name, members)
        _registered[kind] = (*_registered.get(kind, ()), *tasks)


_register()
