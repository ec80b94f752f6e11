"""Starts other Python processes that never search the working directory for modules first.

    subprocess.run(module_command("t0.cli.mesh_transformer", "--engine=torch"))    # python -m ...
    spawn_context().Process(target=work).start()

With `python -m` and with `multiprocessing`, a new process searches its working directory before
Python's own modules. The working directory can be a downloaded folder, in which a `torch.py` or a
`signal.py` would run.
"""

import multiprocessing
import sys
from multiprocessing.context import SpawnContext
from pathlib import Path

from t0 import compat

# Appends the folder of this package, which may not be installed.
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *words: str) -> list[str]:
    """Returns a command that runs a module as `python -m` does."""
    return [sys.executable, "-c", _START, str(Path(__file__).parents[1]), module, *words]


def spawn_context() -> SpawnContext:
    """Returns `multiprocessing`'s context "spawn".

    A worker process gets the module search path of this process before it imports other modules
    than Python's own.
    """
    compat.apply("multiprocessing")
    return multiprocessing.get_context("spawn")
