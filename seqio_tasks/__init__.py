"""The catalogue: importing this package registers T0's tasks and mixtures with SeqIO.

These are the original's 971 tasks and 8 mixtures, from local tables and promptsource 0.1.0's
templates, and the tasks and mixtures of the user's data folders (`--data_dir` or `T0_DATA_DIR`).
Importing makes no network call and opens no dataset. The published commands import this package as
`t0.seqio_tasks`.
"""

import itertools
from typing import Any

from seqio_tasks.catalogue import Entry, catalogue_entries, own_entries
from seqio_tasks.mixtures import RULES, mixture_tasks, own_mixture_tasks
from t0.compat import seqio
from t0.errors import UserError
from t0.sources import data_dirs, find_own_mixtures
from t0.tasks import task_definitions


def _tasks() -> dict[str, dict[str, Any]]:
    """Returns name -> definition of every prompted task.

    Raises:
      UserError: if two prompts have the same task name, or it is already registered.
    """
    known = set(seqio.TaskRegistry.names())
    tasks: dict[str, dict[str, Any]] = {}
    for entry in itertools.chain(catalogue_entries(), own_entries()):
        for name, arguments in task_definitions(entry.task).items():
            if name in known or name in tasks:
                where = entry.task.template.where or f"template '{entry.task.template.name}'"
                raise UserError(
                    f"{where}: there is a task '{name}' already. A task is named after dataset, "
                    "subset and template: give the template another name, or the dataset."
                )
            tasks[name] = arguments
    return tasks


def _mixtures(tasks: list[str]) -> dict[str, list[tuple[str, Any]]]:
    """Returns name -> (task, rate) of each member, for the original's and the user's mixtures.

    Args:
      tasks: the names of all tasks.

    Raises:
      UserError: if the name of a user's mixture is already used.
    """
    mixtures = {name: mixture_tasks(name, catalogue_entries()) for name in RULES}
    taken = {*mixtures, *tasks, *seqio.MixtureRegistry.names()}
    for own in find_own_mixtures(data_dirs()):
        if own.name in taken:
            raise UserError(
                f"{own.path}: there is a task or mixture '{own.name}' already; rename yours."
            )
        mixtures[own.name] = own_mixture_tasks(own, tasks)
    return mixtures


def _register() -> None:
    # Everything is built before anything is registered: an error leaves the registries unchanged,
    # so that a notebook can import this package again after the error is fixed.
    tasks = _tasks()
    mixtures = _mixtures([*seqio.TaskRegistry.names(), *tasks])
    for name, arguments in tasks.items():
        seqio.TaskRegistry.add(name, **arguments)
    for name, members in mixtures.items():
        seqio.MixtureRegistry.add(name, members)


_register()

__all__ = ["Entry", "catalogue_entries", "mixture_tasks", "own_entries"]
