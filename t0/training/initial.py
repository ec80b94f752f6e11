"""Where a run's weights come from, said plainly: its own checkpoint, an initial one, or none.

    restore_initial(checkpoints, "/models/t5/model.ckpt-1000000", source)
    # restored 190 of 190 variables from /models/t5/model.ckpt-1000000, step 1,000,000

A run that asks for an initial checkpoint never starts with a variable that it does not fill.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.training.checkpointing import Checkpoints
from t0.training.graph import TrainingGraph

_STEP = "global_step"


@dataclasses.dataclass(frozen=True)
class Source:
    """How an initial checkpoint is read.

    Attributes:
      only: regular expression of the checkpoint's variables that are read; "" for all.
      unfilled: regular expressions of the model's variables that may stay at random.
    """

    only: str = ""
    unfilled: Sequence[str] = ()


def restore_initial(
    checkpoints: Checkpoints, graph: TrainingGraph, path: str, source: Source
) -> list[str]:
    """Fills the variables from the checkpoint `path`, and returns what was done, a line each.

    Raises:
      UserError: if it cannot be read, or leaves a variable of the model unfilled that
        `source.unfilled` does not list, or holds one in another shape.
    """
    held = checkpoint_files.read(path)
    if source.only:
        held = {name: what for name, what in held.items() if re.search(source.only, name)}
    wanted = {
        name: mesh_utils.init_checkpoint_variable_mapping(name)
        for name in checkpoints.variables
        if mesh_utils.should_load_variable(name)
    }
    filled = {name: theirs for name, theirs in wanted.items() if theirs in held}
    _check_shapes(checkpoints, path, held, filled)
    missing = [name for name in graph.trained if name not in filled]
    left = [name for name in missing if not any(re.search(x, name) for x in source.unfilled)]
    if left:
        raise UserError(
            f"the initial checkpoint {path} leaves {len(left)} of the model's "
            f"{len(graph.trained)} variables unfilled, such as {left[0]}. Is it a checkpoint of "
            "the configured model? To leave them random: "
            f"--gin_param=\"train_loop.unfilled_variables = ['{left[0]}']\""
        )
    reader = tf.train.load_checkpoint(path)
    for name, theirs in filled.items():
        checkpoints.assign(name, np.asarray(reader.get_tensor(theirs)))
    step = checkpoint_files.global_step(path) if _STEP in filled else 0
    lines = [restored(len(graph.trained) - len(missing), len(graph.trained), path, step)]
    lines += [f"left random, as you listed: {', '.join(missing)}"] if missing else []
    slots = sum(name in filled for name in graph.slots)
    lines.append(slots_line(slots, len(graph.slots)))
    return lines


def restored(filled: int, total: int, path: str, step: int) -> str:
    """Returns the line about restored variables."""
    return f"restored {filled:,} of {total:,} variables from {path}, step {step:,}"


def slots_line(filled: int, total: int) -> str:
    """Returns the line about the optimizer's state."""
    if not total:
        return "the optimizer keeps no state"
    if filled == total:
        return f"optimizer state: restored, {total:,} of {total:,} slots"
    return f"optimizer state: {filled:,} of {total:,} slots restored, the others start at zero"


def _check_shapes(checkpoints: Checkpoints, path: str, held: dict, filled: dict[str, str]) -> None:
    variables = checkpoints.variables
    for name, theirs in sorted(filled.items()):
        shape, have = variables[name][0], held[theirs][0]
        if shape != have:
            raise UserError(
                f"checkpoint {path} holds {theirs} as {list(have)}, the configured model wants "
                f"{list(shape)}: the gin files describe another model"
            )
