"""What a kind of recipe hands over to be registered."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.sources.own_data import TEMPLATES


@dataclasses.dataclass(frozen=True)
class Definitions:
    """Tasks and mixtures before registration.

    Attributes:
      tasks: name -> keyword arguments of `seqio.TaskRegistry.add`.
      mixtures: name -> (task, rate) of each member.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    mixtures: Mapping[str, Sequence[tuple[str, float]]] = dataclasses.field(default_factory=dict)


def folders(folder: Path) -> dict[str, Path]:
    """Returns name -> folder of where a recipe's datasets may be: "" for itself, its subfolders.

    Those with prompts are left out: they are a dataset that happens to be called like a recipe.
    """
    inner = (
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".") and os.access(path, os.R_OK | os.X_OK)
    )
    every = {"": folder} | {path.name: path for path in inner}
    return {name: path for name, path in every.items() if not (path / TEMPLATES).exists()}
