"""Fills a run's variables from the checkpoint of another run (a warm start).

    for line in warm_start(checkpoints, graph, "/models/t5/model.ckpt-1000000"):
        print(line)      # restored 190 of 190 variables from /models/t5/..., step 1,000,000

Every variable of the model needs a value in the checkpoint. Otherwise, an error is raised. Two
kinds of variables may keep their random values: those that the user lists, and those of layers that
a gin file adds by name, such as the adapters of T5's `task_adapter.gin`.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from t0.checkpoints import checkpoint_files, operative_config
from t0.compat import mesh_utils
from t0.compat import tf1 as tf
from t0.config.bindings import bound
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
      only: a regular expression that the names of the variables to read match; "" for all.
      unfilled: regular expressions that match the names of variables which may keep their random
        values.

    Returns:
      lines for the user that describe the result.

    Raises:
      UserError: if the checkpoint cannot be read, if a variable has another shape in it, or if it
        has no value for a variable that `unfilled` does not match, and whose layer is not new.
    """
    checkpoint_variables = checkpoint_files.read(path)
    unfilled = [*unfilled, *patterns_of_new_layers(checkpoint_variables)]
    if only:
        checkpoint_variables = {
            name: value for name, value in checkpoint_variables.items() if re.search(only, name)
        }
    source_names = {
        name: mesh_utils.init_checkpoint_variable_mapping(name)
        for name in checkpoints.variables
        if mesh_utils.should_load_variable(name)
    }
    filled = {
        name: source for name, source in source_names.items() if source in checkpoint_variables
    }
    _check_shapes(checkpoints, path, checkpoint_variables, filled)
    missing = [name for name in graph.trained if name not in filled]
    unfilled_names = [name for name in missing if not any(re.search(x, name) for x in unfilled)]
    if unfilled_names:
        raise UserError(
            f"the initial checkpoint {path} leaves {len(unfilled_names)} of the model's "
            f"{len(graph.trained)} variables unfilled, such as {unfilled_names[0]}. Is it a "
            f"checkpoint of the configured model{_own_config(path)}? To leave them random, add "
            f'--gin_param="train_loop.unfilled_variables = {_patterns(unfilled_names)}"'
        )
    reader = tf.train.load_checkpoint(path)
    for name, source in filled.items():
        checkpoints.assign(name, np.asarray(reader.get_tensor(source)))
    step = checkpoint_files.global_step(path) if _STEP in filled else 0
    lines = [restored_line(len(graph.trained) - len(missing), len(graph.trained), path, step)]
    lines += [f"left random: {', '.join(missing)}"] if missing else []
    slots = sum(name in filled for name in graph.slots)
    lines.append(slots_line(slots, len(graph.slots)))
    return lines


def patterns_of_new_layers(checkpoint_names: Iterable[str]) -> list[str]:
    """Returns patterns that match the variables of new layers.

    A new layer has a name in gin, and the checkpoint does not have variables with this name. The
    entry ("task_adapter", @DenseReluDense) of `make_layer_stack.layers` names a layer. Entries
    without a name belong to T5, so a checkpoint must have their variables.
    """
    layers = [
        layer
        for scope in ("", "encoder/", "decoder/")
        for layer in bound(f"{scope}make_layer_stack.layers", (), evaluate=False) or ()
        if isinstance(layer, list | tuple)
    ]
    in_checkpoint = "\n".join(checkpoint_names)
    return sorted(
        {
            f"/{re.escape(name)}/"
            for layer in layers
            for name in layer
            if isinstance(name, str) and f"/{name}/" not in in_checkpoint
        }
    )


def _patterns(names: Sequence[str]) -> list[str]:
    """Returns regular expressions that match names of variables, with a wildcard for block numbers.

    >>> _patterns(["encoder/block_000/adapter/wi", "encoder/block_001/adapter/wi"])
    ['^encoder/block_.*/adapter/wi$']
    """
    return sorted({f"^{re.sub('block_[0-9]+', 'block_.*', name)}$" for name in names})


def _own_config(path: str) -> str:
    """Returns a hint that names the operative config next to a checkpoint, if there is one."""
    config = operative_config.find_operative(path)
    if not config:
        return ""
    return f" (to use its own configuration: --gin_file={config} instead of the model's gin file)"


def _check_shapes(
    checkpoints: Checkpoints, path: str, checkpoint_variables: dict, filled: dict[str, str]
) -> None:
    variables = checkpoints.variables
    for name, source in sorted(filled.items()):
        shape, have = variables[name][0], checkpoint_variables[source][0]
        if shape != have:
            raise UserError(
                f"checkpoint {path} holds {source} as {list(have)}, but the configured model needs "
                f"{list(shape)}: the gin files describe another model{_own_config(path)}"
            )
