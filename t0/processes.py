"""Starts other Python processes that never search the working directory for modules first.

    subprocess.run(module_command("t0.cli.mesh_transformer", "--engine=torch"))    # python -m ...
    spawn_context().Process(target=work).start()

With `python -m` and with `multiprocessing`, a new process searches its working directory before
Python's own modules. The working directory can be a downloaded folder, in which a `torch.py` or a
`signal.py` would run.
"""

import multiprocessing
import sys
from multiprocessing import util
from multiprocessing.context import SpawnContext
from pathlib import Path

# Appends the folder of this package, which may not be installed.
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_make_flags = util._args_from_interpreter_flags


def module_command(module: str, *words: str) -> list[str]:
    """Returns a command that runs a module as `python -m` does."""
    return [sys.executable, "-c", _START, str(Path(__file__).parents[1]), module, *words]


def spawn_context() -> SpawnContext:
    """Returns `multiprocessing`'s context "spawn".

    A worker process gets the module search path of this process before it imports other modules
    than Python's own.
    """
    util._args_from_interpreter_flags = _make_safe_flags
    return multiprocessing.get_context("spawn")


def _make_safe_flags() -> list[str]:
    """Returns the flags of Python for a process of `multiprocessing`."""
    safe = "-P" if sys.version_info >= (3, 11) else "-I"  # 3.10 has no flag for this alone
    flags = _make_flags()
    return flags if safe in flags or "-I" in flags else [safe, *flags]
