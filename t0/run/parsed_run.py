"""A run whose flags and gin files have been parsed, and which has not been checked yet.

    run = ParsedRun(flags, run_mode())          # gin has been parsed
    run.lengths                 # {"inputs": 1024, "targets": 256}

The checks read a run through this record and through gin.
"""

import dataclasses
import functools
from typing import Any

from t0.checkpoints import checkpoint_files, recognise
from t0.compat import t5_mesh
from t0.config.bindings import bound
from t0.config.flag_table import GIN_MODES
from t0.errors import UserError, unknown_name
from t0.mesh import devices

# Flags that must have the same values in the caching command.
_TASK_FLAGS = ("module_import", "data_dir", "vocab")
INITIAL_PARAMETERS = ("run.init_checkpoint", "tpu_estimator_model_fn.init_checkpoint")


@dataclasses.dataclass(frozen=True)
class ParsedRun:
    """A run that has been parsed.

    Attributes:
      flags: the parsed flags, see `t0.config.flags`.
      mode: the value of `run.mode`.
    """

    flags: Any
    mode: str

    @functools.cached_property
    def vocabulary(self) -> Any:
        """The run's vocabulary, or a pair of vocabularies (inputs, targets)."""
        return t5_mesh.get_vocabulary()

    @property
    def split(self) -> str:
        """The split that the run reads."""
        return bound("run.dataset_split", "train")

    @property
    def lengths(self) -> dict[str, int] | None:
        """Feature -> maximum number of tokens; None for no limit."""
        return lengths_of_run()

    @property
    def mesh_shape(self) -> Any:
        """The shape of the run's mesh, on this machine or on a TPU."""
        mesh = {} if self.flags.tpu else devices.local_arguments()[0]
        return mesh["mesh_shape"] if mesh else bound("run.mesh_shape")

    @property
    def task_flags(self) -> dict[str, list[str]]:
        """Flag -> values, for the flags of the run that the caching command also needs."""
        flags = [self.flags[name] for name in _TASK_FLAGS if self.flags[name].present]
        return {x.name: [x.value] if isinstance(x.value, str) else x.value for x in flags}

    @functools.cached_property
    def latest_checkpoint(self) -> str | None:
        """The latest checkpoint in the model directory, from which training resumes, or None."""
        return checkpoint_files.latest(self.flags.model_dir)

    @functools.cached_property
    def named_checkpoint(self) -> str | None:
        """The checkpoint that the flags or gin name.

        Training starts from it, unless it resumes. All other modes read it instead of a checkpoint
        in the model directory. None if no checkpoint is named.
        """
        if self.flags.checkpoint:
            return self.flags.checkpoint
        if self.mode == "train":
            return next(filter(None, map(bound, INITIAL_PARAMETERS)), None)
        return _foreign_checkpoint_of_run_file()

    @property
    def read_elsewhere(self) -> bool:
        """Whether another engine reads the checkpoints, in every format.

        This is the case if the run only writes a specification for another engine, or if another
        engine has already decoded the texts to evaluate.
        """
        return bool(self.flags.save_spec or bound("t0.evaluation.decoded"))


def run_mode() -> str:
    """Returns the configured mode.

    Raises:
      UserError: the mode is unknown. The message suggests similar modes.
    """
    mode = bound("run.mode", "train")
    if mode not in GIN_MODES:
        raise unknown_name("mode", str(mode), GIN_MODES, "(run.mode)")
    return mode


def lengths_of_run() -> dict[str, int] | None:
    """Returns feature -> maximum number of tokens (`run.sequence_length`); None for no limit."""
    lengths = bound("run.sequence_length")
    return dict.fromkeys(("inputs", "targets"), lengths) if isinstance(lengths, int) else lengths


def _foreign_checkpoint_of_run_file() -> str | None:
    """Returns the macro CHECKPOINT_PATH; None if that checkpoint has Mesh TensorFlow's format."""
    checkpoint = bound("%CHECKPOINT_PATH", evaluate=False)
    if not isinstance(checkpoint, str) or "://" in checkpoint:
        return None
    try:
        return checkpoint if recognise(checkpoint)[0] != "mtf" else None
    except UserError:  # a later check of the macro reports this error
        return None
