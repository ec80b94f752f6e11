"""Registers T0's tasks. Published commands import this module: `--module_import=t0.seqio_tasks`.

This module imports the top-level package `seqio_tasks`, which registers the tasks, and re-exports
the names of that package.
"""

from seqio_tasks import CatalogueEntry, catalogue_entries, mixture_tasks, own_entries

__all__ = ["CatalogueEntry", "catalogue_entries", "mixture_tasks", "own_entries"]
