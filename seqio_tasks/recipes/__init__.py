"""The recipes: importing this package registers tasks for what the data folders hold.

    registered()    # {"text": ("text_span_corruption", "text_prefix_lm", "text_lm"), "hub": ...}

For each folder D of `--data_dir` or `T0_DATA_DIR` and each kind of recipe below, the subfolder
D/KIND is handed to the kind's function, if it exists. The function looks at names and sizes of
files and says which tasks there are; little data is read and no network call made.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from seqio_tasks.recipes import mt, qa, sni, text
from seqio_tasks.recipes.definitions import Definitions
from t0.compat import seqio
from t0.errors import UserError
from t0.sources import data_dirs

# The name of a subfolder of a data folder, and what makes its tasks.
KINDS: dict[str, Callable[[Path], Definitions]] = {
    "text": text.definitions,
    "sni": sni.definitions,
    "qa": qa.definitions,
    "mt": mt.definitions,
}
# What needs no folder.
ALWAYS: dict[str, Callable[[], Definitions]] = {
    "hub": text.hub_definitions,
}

_registered: dict[str, tuple[str, ...]] = {}


def registered() -> Mapping[str, tuple[str, ...]]:
    """Returns kind -> names of the tasks and mixtures that it registered."""
    return dict(_registered)


def _found() -> Iterator[tuple[str, str, Definitions]]:
    """Yields kind, where it was found, and what that holds."""
    for kind, define in KINDS.items():
        for folder in (data_dir / kind for data_dir in data_dirs()):
            if folder.is_dir():
                yield kind, str(folder), define(folder)
    for kind, make in ALWAYS.items():
        yield kind, "these recipes", make()


def _register() -> None:
    """Registers all that is found.

    Raises:
      UserError: if two folders give one name, or something else registered it before.
    """
    taken = dict.fromkeys([*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()], "SeqIO")
    found = []
    # All is made before anything is registered: a mistake leaves the registries as they were.
    for kind, where, made in _found():
        for name in (*made.tasks, *made.mixtures):
            if name in taken:
                raise UserError(
                    f"{where}: there is a task or mixture '{name}' already, from {taken[name]}. "
                    "Tasks are named after subfolders: rename one, or name one data folder only."
                )
            taken[name] = where
        found.append((kind, made))
    for kind, made in found:
        for name, arguments in made.tasks.items():
            seqio.TaskRegistry.add(name, **arguments)
        for name, members in made.mixtures.items():
            seqio.MixtureRegistry.add(name, members)
        _registered[kind] = (*_registered.get(kind, ()), *made.tasks, *made.mixtures)


_register()
