"""Python's garbage collection, which TensorFlow, T5 and Mesh TensorFlow make slow.

    with collection_off():
        import tensorflow
    keep_imported()     # in a command: no later collection searches what is imported

Importing them makes a million objects that stay until the end. With Python's defaults a command
spends a quarter of these imports on collections that find nothing, and a second of its end.
"""

import atexit
import contextlib
import gc
from collections.abc import Iterator

# Whether this process runs a command, and not a notebook, whose garbage is its user's.
_in_command = False


def of_command() -> None:
    """Declares that this process runs a command: no collection searches what it imports."""
    global _in_command  # noqa: PLW0603
    _in_command = True
    # Python searches for garbage once more when it ends, and finds none in what is frozen.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


@contextlib.contextmanager
def collection_off() -> Iterator[None]:
    """Turns garbage collection off where very many objects are made that all stay in use."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def keep_imported() -> None:
    """Lets later collections pass over all objects that exist now; in a notebook does nothing."""
    if _in_command:
        gc.freeze()
