"""Finds the input function of a configured run, which Mesh TensorFlow passes to TPUEstimator.

    input_fn = input_function("train", arguments)       # the argument of `estimator.train`
    host_graphs.foreign_operations(host_graphs.pipeline_graph(input_fn))    # {}
    check("train", arguments)                           # UserError if there are such operations

Foreign operations are operations that the TensorFlow servers of a TPU's hosts cannot run.

Mesh TensorFlow's own `run` creates the input function. In this module, `run` gets an estimator that
captures the input function, instead of training, evaluating or predicting. Nothing is written. Data
is only read if this is necessary to create the function.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from t0 import compat
from t0.compat import mesh_utils, seqio, t5_mesh
from t0.errors import UserError
from t0.feeding import host_graphs

InputFunction = Callable[[dict[str, Any]], Any]
# The modes that read data with an input function. All other modes export.
MODES = (
    "train",
    "eval",
    "score_eval",
    "perplexity_eval",
    "infer",
    "score_from_dataset",
    "score_from_strings",
)
# Lengths for runs whose lengths depend on the data. The operations are the same for all lengths.
_ANY_LENGTHS = {"inputs": 512, "targets": 512}


class _InputFunctionFound(BaseException):  # noqa: N818 (not an error, so that no handler catches it)
    def __init__(self, input_fn: InputFunction) -> None:
        super().__init__("an input function")
        self.input_fn = input_fn


class _CapturingEstimator:
    """Replaces TPUEstimator, and raises `_InputFunctionFound` with the first input function."""

    def __init__(self, *args: Any, model_dir: str = "", **kwargs: Any) -> None:
        del args, kwargs
        self.model_dir = model_dir

    def train(self, input_fn: InputFunction, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise _InputFunctionFound(input_fn)

    evaluate = train
    predict = train


def _capture_evaluation(  # noqa: PLR0913 (the signature of Mesh TensorFlow's eval_model)
    estimator: Any,
    vocabulary: Any,
    sequence_length: Any,
    batch_size: int,
    dataset_split: str,
    model_dir: str,
    eval_dataset_fn: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Replaces Mesh TensorFlow's `eval_model`, which first would read all data and write files."""
    del estimator, model_dir, args, kwargs
    datasets = eval_dataset_fn(
        sequence_length=sequence_length, vocabulary=vocabulary, dataset_split=dataset_split
    )
    scored = [dataset for dataset in datasets if dataset.metric_fns]
    if scored:
        lengths = sequence_length or _ANY_LENGTHS
        raise _InputFunctionFound(
            mesh_utils._get_combined_dataset_input_fn(scored, batch_size, lengths)
        )


def input_function(mode: str, arguments: Mapping[str, Any]) -> InputFunction | None:
    """Returns a run's first input function; None if the run has none or is already finished.

    Args:
      mode: the value of `run.mode`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`. gin has all
        others.
    """
    if mode not in MODES:
        return None
    replacements = {
        "mesh_utils.get_estimator": _CapturingEstimator,
        "mesh_utils.eval_model": _capture_evaluation,
        # The replaced function looks for checkpoints. No checkpoint is needed here, because a run
        # opens its data before it reads a checkpoint.
        "mesh_utils.get_checkpoint_iterator": lambda *args, **kwargs: ["model.ckpt-0"],
    }
    with contextlib.ExitStack() as replaced:
        for name, replacement in replacements.items():
            replaced.enter_context(compat.replaced(name, replacement))
        try:
            mesh_utils.run(**{**arguments, "tpu": None})
        except _InputFunctionFound as interruption:
            return interruption.input_fn
    return None


def check(mode: str, arguments: Mapping[str, Any]) -> None:
    """Checks that a TPU's TensorFlow servers can run all operations of the run's input function.

    Args:
      mode: the value of `run.mode`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`.

    Raises:
      UserError: the servers do not support some operations. The message lists them.
    """
    input_fn = input_function(mode, arguments)
    foreign = (
        host_graphs.foreign_operations(host_graphs.pipeline_graph(input_fn)) if input_fn else {}
    )
    if foreign:
        raise UserError(
            f"a TPU's TensorFlow servers cannot read the data of mode '{mode}': they cannot run "
            f"{host_graphs.explain(foreign)} (in {', '.join(foreign.values())}), which a step "
            "after the cache or your own dataset function uses. Put the step before the cache, "
            "or write it with TensorFlow operations"
        )


def dry_run_line(flags: Any) -> str:
    """Returns a line about the data of a run with --tpu, for `--dry_run`.

    Args:
      flags: the parsed flags of the command. gin must have been parsed.

    Returns:
      a description of the data. If there is an error, it is described instead of raised. Examples
      are data that the TPU's hosts cannot read, and a task that does not exist or is not cached.
    """
    try:
        return _check_dry_run(flags)
    except UserError as error:
        return f"the data cannot be read as configured, so the run would fail: {error}"


def _check_dry_run(flags: Any) -> str:
    from t0.run import modes, preflight

    mode = preflight.run_mode()
    if flags.tpu == "local":
        return "without --tpu=NAME this process reads the data, not a TPU's hosts: nothing to check"
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    preflight.check_mixtures({}, on_tpu=True, hosts_read=True)
    tpu_arguments = {
        name: flags[name].value for name in ("tpu_job_name", "gcp_project", "tpu_zone")
    }
    arguments = {
        "model_dir": flags.model_dir,
        "vocabulary": t5_mesh.get_vocabulary(),
        **tpu_arguments,
    }
    check(mode, arguments | modes.engine_arguments(tpu=flags.tpu))
    return f"the TPU's hosts can read the data of mode '{mode}': TensorFlow's operations suffice"
