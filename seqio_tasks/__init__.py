"""Registers T0's catalogue of tasks and mixtures with SeqIO when this package is imported.

The package registers the 971 tasks and 8 mixtures of the original code. It builds them from local
tables and from the templates of promptsource 0.1.0. It also registers the tasks and mixtures of the
user's data folders (`--data_dir` or `T0_DATA_DIR`). The import makes no network call and opens no
dataset. The published commands import this package as `t0.seqio_tasks`.
"""

from typing import Any

from t0.catalogue import CatalogueEntry, catalogue_entries, mixture_tasks, own_entries
from t0.catalogue.listing import mixtures_by_name, tasks_by_name
from t0.compat import seqio
from t0.tasks import task_definitions


def _tasks() -> dict[str, dict[str, Any]]:
    """Returns name -> definition of every prompted task."""
    tasks: dict[str, dict[str, Any]] = {}
    for listed in tasks_by_name(known=set(seqio.TaskRegistry.names())).values():
        if not listed.ranked:  # `task_definitions` also defines the template's ranked task
            tasks |= task_definitions(listed.task)
    return tasks


def _register() -> None:
    # Build all definitions before registering any. If there is an error, the registries are then
    # unchanged, and a notebook can import this package again after the error is fixed.
    tasks = _tasks()
    names = [*seqio.TaskRegistry.names(), *tasks]
    mixtures = mixtures_by_name(names, known=set(seqio.MixtureRegistry.names()))
    for name, arguments in tasks.items():
        seqio.TaskRegistry.add(name, **arguments)
    for name, members in mixtures.items():
        seqio.MixtureRegistry.add(name, members)


_register()

__all__ = ["CatalogueEntry", "catalogue_entries", "mixture_tasks", "own_entries"]
