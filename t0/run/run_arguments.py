"""Reads the arguments of a run: the values of the parameters of Mesh TensorFlow's `run`.

    arguments = read({"model_dir": "/models/tiny", "mesh_shape": "", "mesh_devices": [""]})
    arguments["batch_size"]                     # the number of sequences in the global batch

`run` is Mesh TensorFlow's entry point, and gin files bind its parameters. This module reads the
arguments through gin, as a call of `run` would. So the operative config is the same as after such a
call.
"""

import functools
from collections.abc import Mapping
from typing import Any

from t0.compat import learning_rate_schedules, mesh_utils, mtf
from t0.config.bindings import read_arguments


def read(passed_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the configured run, converted in the same way as in `run` itself.

    Args:
      passed_arguments: the arguments that the command passes to `run` by name. gin has all others.

    Returns:
      parameter of `run` -> value. Lengths are a mapping or None. The batch is a number of
      sequences. `train_steps` is a number. Mesh and layout are Mesh TensorFlow's objects. A
      schedule is a number, or a function whose only parameter is `step`.
    """
    arguments = read_arguments(mesh_utils.run, **passed_arguments)
    lengths = arguments["sequence_length"]
    if isinstance(lengths, int):
        lengths = {"inputs": lengths, "targets": lengths}
    mesh_shape, layout_rules = arguments["mesh_shape"], arguments["layout_rules"]
    batch = arguments["batch_size"]
    if not isinstance(batch, int):
        batch = mesh_utils.compute_batch_size(lengths, mesh_shape, layout_rules, batch)
    steps = arguments["train_steps"]
    if not isinstance(steps, int):
        steps = steps(batch, lengths)
    last = steps if arguments["total_run_steps"] is None else arguments["total_run_steps"]
    return {
        **arguments,
        "sequence_length": lengths,
        "batch_size": batch,
        "train_steps": steps,
        "learning_rate_schedule": schedule(arguments["learning_rate_schedule"], last),
        "ensemble_inputs": arguments["ensemble_inputs"] if arguments["mode"] == "train" else None,
        "mesh_shape": mtf.convert_to_shape(mesh_shape),
        "layout_rules": mtf.convert_to_layout_rules(layout_rules),
    }


def schedule(bound: Any, total_steps: int) -> Any:
    """Returns a learning rate schedule, converted in the same way as in `run`.

    Args:
      bound: a number, None, a function of `step` and `total_train_steps`, or a list of factors.
      total_steps: the number of steps of the run.

    Returns:
      a function of `step` if `bound` is a function or a list; otherwise `bound` itself.
    """
    if isinstance(bound, list):
        bound = functools.partial(learning_rate_schedules.product_learning_rate, factors=bound)
    return functools.partial(bound, total_train_steps=total_steps) if callable(bound) else bound
