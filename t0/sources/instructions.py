"""Reads Super-NaturalInstructions: a folder of tasks in JSON, and lists of the tasks of each split.

    folder = Path("natural-instructions")
    split_files(folder)              # {"train": Path(".../train_tasks.txt"), "test": ...}
    task = read_task(folder, "task1146_country_capital")
    task.definition, task.instances[0].outputs       # "In this task, ...", ("Kabul",)
    chosen = choose(folder, "train", per_task=100, languages=("English",), seed=0)
    chosen.instances[0]              # (Task, Instance), the first of 100 of each task, shuffled
    chosen.left_out                  # {"not in tasks/": ["task547_...", ...]}

Tasks are in `tasks/<name>.json`, which may be gzipped. Lists of tasks are in `splits/default/` or
`splits/`. Instances are chosen as in Tk-Instruct. From each test task, the first 100 instances are
used, because the authors of the collection balanced these instances. From each training task, a
random sample is used.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from t0.errors import UserError, reading
from t0.files import checked_name
from t0.files.any_path import unpacked
from t0.files.paths import read_bytes
from t0.files.untrusted import parsed_json
from t0.sources.json_lines import LARGEST_DOCUMENT, check_unicode, holds_texts, without_bad_rows

# SeqIO's name of a split -> the file that lists the tasks of the split. The list dev_tasks.txt only
# exists if the user adds it.
_LISTS = {"train": "train_tasks.txt", "validation": "dev_tasks.txt", "test": "test_tasks.txt"}
_FOLDERS = ("splits/default", "splits")
_LANGUAGES = ("Input_language", "Output_language", "Instruction_language")
_SIDES = ("input", "output")
# The number of instances of each test task that Tk-Instruct evaluates.
TEST_INSTANCES = 100


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """An example that is part of the instruction of a task."""

    input: str
    output: str
    explanation: str | None


@dataclasses.dataclass(frozen=True)
class Instance:
    """An input of a task, with all accepted outputs."""

    id: str
    input: str
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: its instruction and its instances.

    Attributes:
      name: the name of the task's file, without the extension.
      category: the first category that the file lists.
      definition: the instruction.
      positives: demonstrations with correct outputs.
      negatives: demonstrations with wrong outputs.
      languages: the languages of the inputs, outputs and instruction.
      instances: all instances in the file.
    """

    name: str
    category: str
    definition: str
    positives: tuple[Demonstration, ...]
    negatives: tuple[Demonstration, ...]
    languages: frozenset[str]
    instances: tuple[Instance, ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The instances that were chosen for a split.

    Attributes:
      instances: pairs of task and instance. In the training split, the pairs are shuffled. In other
        splits, the tasks take turns: first comes the first instance of each task, then the second
        instance of each task, and so on.
      left_out: reason -> names of the listed tasks that are left out.
    """

    instances: tuple[tuple[Task, Instance], ...]
    left_out: Mapping[str, Sequence[str]]


def split_files(folder: Path) -> dict[str, Path]:
    """Returns split -> the file that lists the tasks of the split.

    Raises:
      UserError: the list for training and the list for testing are both missing.
    """
    lists = {}
    for split, name in _LISTS.items():
        for subfolder in _FOLDERS:
            if (folder / subfolder / name).is_file():
                lists.setdefault(split, folder / subfolder / name)
    if not {"train", "test"} & lists.keys():
        raise UserError(
            f"{folder}: there is neither a train_tasks.txt nor a test_tasks.txt in "
            f"{folder / _FOLDERS[0]} or {folder / _FOLDERS[1]}. Put the folders tasks and splits "
            "of natural-instructions there, unchanged."
        )
    return lists


def listed_files(folder: Path, split: str) -> list[Path]:
    """Returns the file that lists the tasks of a split, and all listed task files that exist."""
    listing = split_files(folder)[split]
    tasks = [_path(folder, name) for name in _names(listing)]
    return [listing, *filter(None, tasks)]


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Returns the whole content of a task's file.

    Raises:
      UserError: the file is missing or not a JSON object.
    """
    path = _path(folder, name)
    if path is None:
        raise UserError(f"{folder / 'tasks'}: there is no {name}.json and no {name}.json.gz.")
    try:
        with reading(path), unpacked(path) as file:
            text = file.read(LARGEST_DOCUMENT + 1)
        if len(text) > LARGEST_DOCUMENT:
            raise ValueError(f"it has more than {LARGEST_DOCUMENT:,} bytes")
        content = parsed_json(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}). Copy it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, got a {type(content).__name__}.")
    for key, value in content.items():
        if key != "Instances":  # `_read_instance` checks the instances one by one
            check_unicode(f"{path}: '{key}'", value)
    return content


def read_task(folder: Path, name: str) -> Task:
    """Reads a task.

    Raises:
      UserError: the file is missing or malformed, or has no instances.
    """
    content, where = read_json(folder, name), _path(folder, name)
    definition = content.get("Definition")
    # In older versions of the collection, the value is a string. In newer versions, it is a list of
    # one string.
    if isinstance(definition, list):
        definition = definition[0] if definition else None
    categories, instances = content.get("Categories"), content.get("Instances")
    for key, is_valid, expected in (
        ("Definition", isinstance(definition, str), "a text or a list of texts"),
        ("Categories", holds_texts(categories), "a list of texts"),
        ("Instances", isinstance(instances, list) and instances, "a list of instances"),
    ):
        if not is_valid:
            raise UserError(f"{where}: '{key}' must be {expected}, got {content.get(key)!r:.60}.")
    return Task(
        name=name,
        category=categories[0],
        definition=definition,
        positives=_read_demonstrations(content, "Positive Examples", where),
        negatives=_read_demonstrations(content, "Negative Examples", where),
        languages=frozenset(
            language for key in _LANGUAGES for language in content.get(key) or () if language
        ),
        instances=tuple(
            _read_instance(entry, f"{where}: instance {number}", f"{name}-{number}")
            for number, entry in without_bad_rows(enumerate(instances), where)
        ),
    )


# The cache holds the three splits of a run. Without the cache, each epoch would read the gigabytes
# of the published folder again. The chosen instances take only tens of megabytes.
@functools.lru_cache(maxsize=3)
def choose(
    folder: Path, split: str, *, per_task: int | None, languages: tuple[str, ...], seed: int
) -> Chosen:
    """Reads the tasks of a split and chooses instances from each task.

    Args:
      folder: the folder with `tasks` and `splits`.
      split: train, validation or test.
      per_task: the maximum number of instances of a task. If None, all instances of a training or
        validation task are used, and the first 100 instances of a test task.
      languages: the languages to use. Tasks in other languages are left out.
      seed: the seed of the random samples and of the order of the training split.

    Raises:
      UserError: a task is malformed, or all tasks are left out.
    """
    lists = split_files(folder)
    if split not in lists:
        raise UserError(f"{folder}: there is no {_LISTS.get(split, split)} in splits/default.")
    left_out: dict[str, list[str]] = {}
    chosen: list[list[tuple[Task, Instance]]] = []
    names = _names(lists[split])
    for name in tqdm(names, f"reading {lists[split].name}", disable=None, leave=False):
        if _path(folder, name) is None:
            left_out.setdefault("not in tasks/", []).append(name)
            continue
        task = read_task(folder, name)
        others = sorted(task.languages - set(languages))
        if others:
            left_out.setdefault(f"in {', '.join(others)}", []).append(name)
            continue
        selected = _choose_instances(task, split, per_task, seed)
        # Remove the instances from the task, so that thousands of unused instances can be freed.
        bare = dataclasses.replace(task, instances=())
        chosen.append([(bare, instance) for instance in selected])
    if not chosen:
        reasons = "; ".join(f"{len(tasks)} {why}" for why, tasks in left_out.items())
        raise UserError(
            f"{lists[split]}: none of its {len(names)} tasks can be used: "
            f"{reasons or 'the list is empty'}. Tasks must be in {', '.join(languages)} (gin: "
            "sni.languages) and their files must exist."
        )
    # The tasks take turns, so that the first instances of a split come from many tasks.
    turns = itertools.zip_longest(*chosen)
    instances = [item for turn in turns for item in turn if item is not None]
    if split == "train":
        random.Random(f"order {seed}").shuffle(instances)
    return Chosen(tuple(instances), left_out)


def _choose_instances(
    task: Task, split: str, per_task: int | None, seed: int
) -> Sequence[Instance]:
    if split == "train":
        if per_task is None or per_task >= len(task.instances):
            return task.instances
        return random.Random(f"{task.name} {seed}").sample(task.instances, per_task)
    most = TEST_INSTANCES if split == "test" else len(task.instances)
    return task.instances[: min(most, per_task if per_task is not None else most)]


def _names(path: Path) -> list[str]:
    with reading(path, UnicodeError):
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    return [checked_name(line.strip(), "task", path) for line in lines if line.strip()]


def _path(folder: Path, name: str) -> Path | None:
    for ending in (".json", ".json.gz"):
        path = folder / "tasks" / (name + ending)
        if path.is_file():
            return path
    return None


def _read_demonstrations(
    content: Mapping[str, Any], key: str, where: Path | None
) -> tuple[Demonstration, ...]:
    demonstrations = content.get(key) or ()
    for number, entry in enumerate(demonstrations):
        if not isinstance(entry, dict) or not holds_texts([entry.get(k) for k in _SIDES]):
            raise UserError(
                f"{where}: '{key}' {number} must have the texts 'input' and 'output', got "
                f"{entry!r:.80}."
            )
    return tuple(
        Demonstration(entry["input"], entry["output"], entry.get("explanation"))
        for entry in demonstrations
    )


def _read_instance(entry: object, where: str, default_id: str) -> Instance:
    check_unicode(where, entry)
    outputs = entry.get("output") if isinstance(entry, dict) else None
    if isinstance(outputs, str):
        outputs = [outputs]
    if not holds_texts(outputs) or not isinstance(entry.get("input"), str):
        raise UserError(
            f"{where} must have a text 'input' and a list of texts 'output', got {entry!r:.80}."
        )
    return Instance(str(entry.get("id") or default_id), entry["input"], tuple(outputs))
