"""Finds the input function of a configured run, as Mesh TensorFlow gives it to TPUEstimator.

    given = input_function("train", arguments)          # what estimator.train would be called with
    host_graphs.foreign_operations(host_graphs.pipeline_graph(given))       # {}
    check("train", arguments)                           # UserError if there are any

Mesh TensorFlow's own `run` makes it: with an estimator that keeps the input function instead of
training, evaluating or predicting. Nothing is read but what the input function reads to be made,
and nothing is written.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from t0 import compat
from t0.compat import mesh_utils, seqio, t5_mesh
from t0.errors import UserError
from t0.feeding import host_graphs
from t0.mesh.cloud import LOCAL, Machine

InputFunction = Callable[[dict[str, Any]], Any]
# The modes that read data by an input function; the others export.
MODES = (
    "train",
    "eval",
    "score_eval",
    "perplexity_eval",
    "infer",
    "score_from_dataset",
    "score_from_strings",
)
# For a run that takes its lengths from the data; the operations do not depend on them.
_ANY_LENGTHS = {"inputs": 512, "targets": 512}


class _Kept(BaseException):  # noqa: N818 (no error, so that nothing on the way handles it)
    def __init__(self, input_fn: InputFunction) -> None:
        super().__init__("an input function")
        self.input_fn = input_fn


class _KeepingEstimator:
    """Stands for TPUEstimator: raises `_Kept` with the first input function that it is given."""

    def __init__(self, *args: Any, model_dir: str = "", **kwargs: Any) -> None:
        del args, kwargs
        self.model_dir = model_dir

    def train(self, input_fn: InputFunction, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise _Kept(input_fn)

    evaluate = train
    predict = train


def _evaluation(  # noqa: PLR0913 (the signature of Mesh TensorFlow's eval_model)
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
    """Stands for Mesh TensorFlow's `eval_model`, which first reads all data and writes files."""
    del estimator, model_dir, args, kwargs
    datasets = eval_dataset_fn(
        sequence_length=sequence_length, vocabulary=vocabulary, dataset_split=dataset_split
    )
    scored = [dataset for dataset in datasets if dataset.metric_fns]
    if scored:
        lengths = sequence_length or _ANY_LENGTHS
        raise _Kept(mesh_utils._get_combined_dataset_input_fn(scored, batch_size, lengths))


def input_function(mode: str, arguments: Mapping[str, Any]) -> InputFunction | None:
    """Returns the first input function of a run; None if it has none, or nothing is left to do.

    Args:
      mode: the value of `run.mode`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`; gin has the rest.
    """
    if mode not in MODES:
        return None
    replacements = {
        "mesh_utils.get_estimator": _KeepingEstimator,
        "mesh_utils.eval_model": _evaluation,
        # A run reads its checkpoints only after its data has been opened.
        "mesh_utils.get_checkpoint_iterator": lambda *args, **kwargs: ["model.ckpt-0"],
    }
    with contextlib.ExitStack() as replaced:
        for name, replacement in replacements.items():
            replaced.enter_context(compat.replaced(name, replacement))
        try:
            mesh_utils.run(**{**arguments, "tpu": None})
        except _Kept as kept:
            return kept.input_fn
    return None


def check(mode: str, arguments: Mapping[str, Any]) -> None:
    """Checks that the TensorFlow servers of a TPU's hosts have all that the run's data needs.

    Args:
      mode: the value of `run.mode`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`.

    Raises:
      UserError: naming the operations that they do not have.
    """
    input_fn = input_function(mode, arguments)
    foreign = (
        host_graphs.foreign_operations(host_graphs.pipeline_graph(input_fn)) if input_fn else {}
    )
    if foreign:
        raise UserError(
            f"a TPU's hosts read the data of mode '{mode}' by TensorFlow servers, which lack "
            f"{host_graphs.explain(foreign)} (in {', '.join(foreign.values())}): a step after the "
            "cache, or a dataset function of your own. Put the step before the cache, or write it "
            "with TensorFlow's operations"
        )


def dry_run_line(flags: Any) -> str:
    """Returns a line about the data of a run with --tpu that is not to start, for `--dry_run`.

    Args:
      flags: the parsed flags of the command; gin has been parsed.

    Returns:
      what was found: also where the run itself would be refused, because the TPU's
      hosts cannot read the data, or a task is not there or not cached.
    """
    try:
        return _checked(flags)
    except UserError as error:
        return f"the data cannot be read as configured, and a run would be refused: {error}"


def _checked(flags: Any) -> str:
    from t0.run import modes, preflight

    mode = preflight.run_mode()
    if Machine(flags.tpu).kind == LOCAL:
        return "without --tpu=NAME this process reads the data, not a TPU's hosts: nothing to check"
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    preflight.check_mixtures({}, on_tpu=True, hosts_read=True)
    places = {name: flags[name].value for name in ("tpu_job_name", "gcp_project", "tpu_zone")}
    arguments = {"model_dir": flags.model_dir, "vocabulary": t5_mesh.get_vocabulary(), **places}
    check(mode, arguments | modes.engine_arguments(tpu=flags.tpu))
    return f"the TPU's hosts can read the data of mode '{mode}': TensorFlow's operations suffice"
