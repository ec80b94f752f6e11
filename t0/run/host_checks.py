"""Checks that the TensorFlow servers of a TPU's hosts can read the data of a run.

    check_hosts("train", arguments)         # UserError, if they need Python or unknown operations

The check builds the graph with which TPUEstimator would read the data, but runs no step of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from t0 import compat
from t0.compat import mesh_utils
from t0.config.bindings import bound
from t0.errors import UserError
from t0.feeding import host_graphs
from t0.run.data_checks import READS
from t0.run.parsed_run import lengths_of_run

InputFunction = Callable[[dict[str, Any]], Any]


class _InputFunctionFound(BaseException):  # noqa: N818 (not an error, so that no handler catches it)
    def __init__(self, input_fn: InputFunction) -> None:
        super().__init__("an input function")
        self.input_fn = input_fn


class _CapturingEstimator:
    """Replaces TPUEstimator, and raises `_InputFunctionFound` with the input function."""

    def __init__(self, *args: Any, model_dir: str = "", **kwargs: Any) -> None:
        del args, kwargs
        self.model_dir = model_dir

    def train(self, input_fn: InputFunction, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise _InputFunctionFound(input_fn)


def training_input(arguments: Mapping[str, Any]) -> InputFunction | None:
    """Returns the input function that Mesh TensorFlow's `run` passes to TPUEstimator for training.

    Nothing is written, and data is only read if this is necessary to create the function.

    Args:
      arguments: the arguments that the command passes to `run`. gin has all others.

    Returns:
      the function; None if the run is already finished.
    """
    with compat.replaced("mesh_utils.get_estimator", _CapturingEstimator):
        try:
            mesh_utils.run(**{**arguments, "tpu": None})
        except _InputFunctionFound as interruption:
            return interruption.input_fn
    return None


def _evaluation_input(mode: str, vocabulary: Any) -> InputFunction:
    """Returns a function that opens the datasets of all evaluated tasks of a mode."""
    datasets = bound(READS[mode])(
        sequence_length=lengths_of_run(),
        vocabulary=vocabulary,
        dataset_split=bound("run.dataset_split", "train"),
    )
    return lambda params: [dataset.dataset_fn() for dataset in datasets if dataset.metric_fns]


def check_hosts(mode: str, arguments: Mapping[str, Any]) -> None:
    """Checks that the TensorFlow servers of a TPU's hosts can read the data of the configured run.

    Args:
      mode: the value of `run.mode`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`.

    Raises:
      UserError: the servers do not support some operations. The message lists them.
    """
    if mode not in READS:  # Mesh TensorFlow's own code reads the data
        return
    vocabulary = arguments["vocabulary"]
    read = training_input(arguments) if mode == "train" else _evaluation_input(mode, vocabulary)
    foreign = host_graphs.foreign_operations(host_graphs.pipeline_graph(read)) if read else {}
    if foreign:
        raise UserError(
            f"a TPU's TensorFlow servers cannot read the data of mode '{mode}': they cannot run "
            f"{host_graphs.explain(foreign)} (in {', '.join(foreign.values())}), which a step "
            "after the cache or your own dataset function uses. Put the step before the cache, "
            "or write it with TensorFlow operations"
        )
