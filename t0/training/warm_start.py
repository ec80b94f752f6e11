"""Warm starts: fills a run's variables from the checkpoint of another run.

    for line in warm_start(checkpoints, graph, "/models/t5/model.ckpt-1000000"):
        print(line)      # restored 190 of 190 variables from /models/t5/..., step 1,000,000

It is an error if the checkpoint does not fill a variable of the model, unless the user lists the
variable.
"""

import re
from collections.abc import Sequence

import numpy as np

from t0.checkpoints import checkpoint_files, operative_config
from t0.compat import mesh_utils
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.training.checkpointing import Checkpoints
from t0.training.graph import TrainingGraph
from t0.training.start_report import restored_line, slots_line

_STEP = "global_step"


def warm_start(
    checkpoints: Checkpoints,
    graph: TrainingGraph,
    path: str,
    *,
    only: str = "",
    unfilled: Sequence[str] = (),
) -> list[str]:
    """Fills the variables of a run from an initial checkpoint.

    Args:
      checkpoints: the run's checkpoints.
      graph: the training graph.
      path: the initial checkpoint.
      only: regular expression of the checkpoint's variables to read; "" for all.
      unfilled: regular expressions of the model's variables that may keep their random values.

    Returns:
      lines that describe the result.

    Raises:
      UserError: if the checkpoint cannot be read, has another shape for a variable, or has no value
        for a variable that `unfilled` does not match.
    """
    held = checkpoint_files.read(path)
    if only:
        held = {name: what for name, what in held.items() if re.search(only, name)}
    wanted = {
        name: mesh_utils.init_checkpoint_variable_mapping(name)
        for name in checkpoints.variables
        if mesh_utils.should_load_variable(name)
    }
    filled = {name: theirs for name, theirs in wanted.items() if theirs in held}
    _check_shapes(checkpoints, path, held, filled)
    missing = [name for name in graph.trained if name not in filled]
    left = [name for name in missing if not any(re.search(x, name) for x in unfilled)]
    if left:
        raise UserError(
            f"the initial checkpoint {path} leaves {len(left)} of the model's "
            f"{len(graph.trained)} variables unfilled, such as {left[0]}. Is it a checkpoint of "
            f"the configured model{_own_config(path)}? To leave them random, add "
            f'--gin_param="train_loop.unfilled_variables = {_patterns(left)}"'
        )
    reader = tf.train.load_checkpoint(path)
    for name, theirs in filled.items():
        checkpoints.assign(name, np.asarray(reader.get_tensor(theirs)))
    step = checkpoint_files.global_step(path) if _STEP in filled else 0
    lines = [restored_line(len(graph.trained) - len(missing), len(graph.trained), path, step)]
    lines += [f"left random: {', '.join(missing)}"] if missing else []
    slots = sum(name in filled for name in graph.slots)
    lines.append(slots_line(slots, len(graph.slots)))
    return lines


def _patterns(names: Sequence[str]) -> list[str]:
    """Returns few regular expressions that match the names, with wildcards for block numbers.

    >>> _patterns(["encoder/block_000/adapter/wi", "encoder/block_001/adapter/wi"])
    ['^encoder/block_.*/adapter/wi$']
    """
    return sorted({f"^{re.sub('block_[0-9]+', 'block_.*', name)}$" for name in names})


def _own_config(path: str) -> str:
    """Returns a hint about the operative config next to a checkpoint, if there is one."""
    config = operative_config.find_operative(path)
    if not config:
        return ""
    return f" (its own is there: --gin_file={config} in place of the model's gin file)"


def _check_shapes(checkpoints: Checkpoints, path: str, held: dict, filled: dict[str, str]) -> None:
    variables = checkpoints.variables
    for name, theirs in sorted(filled.items()):
        shape, have = variables[name][0], held[theirs][0]
        if shape != have:
            raise UserError(
                f"checkpoint {path} holds {theirs} as {list(have)}, the configured model wants "
                f"{list(shape)}: the gin files describe another model{_own_config(path)}"
            )
