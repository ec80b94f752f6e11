"""Lets --module_import and gin's `import` find modules in the folder that a command runs in.

    cd my_project && t5_mesh_transformer --module_import=my_tasks ...     # my_project/my_tasks.py

Python itself searches that folder for scripts and `python -m`, but not for installed commands.
"""

import os
import sys


def from_working_directory() -> None:
    """Makes modules in the working directory importable, after all installed ones.

    They come last because a folder there may have the name of a package, such as gin or datasets.
    """
    here = os.getcwd()  # noqa: PTH109 (as Python's own entries are written)
    if not {here, ""} & set(sys.path):
        sys.path.append(here)
