"""A run that gin and the command have configured."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t0.compat import mesh_utils
from t0.run import run_arguments


@dataclasses.dataclass(frozen=True)
class ConfiguredRun:
    """A run that has been configured and checked.

    Attributes:
      mode: one of `t0.run.modes.MODES`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`. gin has all
        others.
      checkpoint: the checkpoint that the mode reads; None for the checkpoints in the model
        directory.
      eval_words: the flags with which `t0 eval` reads the data of a training run.
    """

    mode: str
    arguments: Mapping[str, Any]
    checkpoint: str | None = None
    eval_words: tuple[str, ...] = ()

    def read(self) -> dict[str, Any]:
        """Returns all arguments of `run`; see `run_arguments.read`."""
        return run_arguments.read(self.arguments)

    def call_mesh(self) -> None:
        """Calls Mesh TensorFlow's `run`."""
        mesh_utils.run(**self.arguments)
