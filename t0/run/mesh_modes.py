"""Runs modes with Mesh TensorFlow's own `run`, on a TPU and for runs that ours does not support.

    with reading(checkpoint):           # Mesh TensorFlow reads this checkpoint and no other one
        run_on_tpu(run)

While `run` is called, functions that do not work on this machine are replaced.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from t0 import compat
from t0.checkpoints import checkpoint_files
from t0.compat import gin, mesh_utils
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError
from t0.evaluation import perplexity
from t0.mesh import devices
from t0.run import tpu_checks
from t0.run.configured_run import ConfiguredRun
from t0.training import estimator
from t0.training.loop import PREEMPTED


def engine_arguments(*, tpu: str | None) -> dict[str, Any]:
    """Returns the arguments of `run` that depend on the engine, and prints a note about the engine.

    Without a TPU, these arguments describe this machine's mesh, unless the configuration sets a
    mesh shape. Without a TPU, this function also binds the types of variables.
    """
    ours = bound("run.train_model_fn") in (None, estimator.train_model)
    arguments = {"train_model_fn": estimator.train_model} if ours else {}
    if tpu:
        return arguments
    for name, value in devices.LOCAL_TYPES.items():
        gin.bind_parameter(name, value)
    mesh, note = devices.local_arguments()
    print(note, file=sys.stderr)
    return arguments | mesh


def local_parameters() -> dict[str, tuple[Any, str]]:
    """Returns name -> (value, reason), for the gin parameters that a run without a TPU sets."""
    mesh, _ = devices.local_arguments()
    values = devices.LOCAL_TYPES | {f"run.{name}": value for name, value in mesh.items()}
    return {name: (value, "this machine, without --tpu") for name, value in values.items()}


@contextlib.contextmanager
def reading(checkpoint: str | None) -> Iterator[None]:
    """Makes Mesh TensorFlow read a checkpoint, or the checkpoints of the model directory."""
    with contextlib.ExitStack() as replaced:
        for name, function in _readers(checkpoint).items():
            replaced.enter_context(compat.replaced(name, function))
        yield


def _readers(checkpoint: str | None) -> dict[str, Callable[..., Any]]:
    """Returns key of `compat.REPLACEABLE` -> the function that replaces it."""
    if checkpoint is None:
        latest = _with_latest_path(mesh_utils.get_checkpoint_iterator)
        return {"mesh_utils.get_checkpoint_iterator": latest}
    return {
        "mesh_utils.get_checkpoint_iterator": lambda *args, **kwargs: [checkpoint],
        "mesh_utils.get_step_from_checkpoint_path": checkpoint_files.global_step,
    }


def _with_latest_path(published: Callable[..., Any]) -> Callable[..., Any]:
    """Changes Mesh's `get_checkpoint_iterator`, which finds no latest checkpoint without a file."""

    def get_checkpoint_iterator(checkpoint_step: Any, model_dir: str, **options: Any) -> Any:
        if checkpoint_step != -1:
            return published(checkpoint_step, model_dir, **options)
        steps = checkpoint_files.select_steps(model_dir, checkpoint_step)
        return [checkpoint_files.checkpoint_path(model_dir, step) for step in steps]

    return get_checkpoint_iterator


# Substring of a TensorFlow error about a TPU -> the explanation for the user.
_TPU_FAULTS = {
    "Cannot find any TPU": "TensorFlow found no TPU cores. Does another process on the TPU VM use "
    "them (sudo lsof -w /dev/accel*)? Is the image a -se one?",
    "Could not lookup TPU metadata": "TensorFlow's client could not look the TPU up",
    "Application Default Credentials are not available": "no credentials for the TPU API: "
    "gcloud auth application-default login",
    "is not yet ready": "the TPU is not ready; it may have been preempted",
    "Failed to connect to": "the TPU's TensorFlow server does not answer",
    "Missing runtime dependency on the Google API client": "packages are missing: "
    f"{tpu_checks.INSTALL}",
}


def run_on_tpu(run: ConfiguredRun) -> None:
    """Runs Mesh TensorFlow's `run` on a TPU, and turns errors about the TPU into one line."""
    try:
        run.call_mesh()
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        # The exit status tells bin/tpu_train that the run can be resumed. bin/tpu_train then starts
        # it again.
        message = (str(error).strip().splitlines() or [""])[0][:300]
        print(f"the TPU was lost; the last checkpoint is saved ({message})", file=sys.stderr)
        raise SystemExit(PREEMPTED) from None
    except Exception as error:
        text = str(error)
        remedy = next((remedy for message, remedy in _TPU_FAULTS.items() if message in text), None)
        if remedy is None:
            raise
        message = text.strip().splitlines()[0][:300]
        raise UserError(f"--tpu={run.arguments['tpu']}: {remedy} ({message})") from error


def measure_perplexity(run: ConfiguredRun) -> None:
    """Evaluates perplexity with Mesh TensorFlow's estimator, and prints the results."""
    get_estimator = perplexity.with_printed_perplexity(mesh_utils.get_estimator)
    with compat.replaced("mesh_utils.get_estimator", get_estimator):
        run.call_mesh()


def infer(run: ConfiguredRun) -> None:
    """Predicts with Mesh TensorFlow, from the latest checkpoint."""
    with compat.replaced("mesh_utils.infer_model", _with_latest_step(mesh_utils.infer_model)):
        run.call_mesh()


def _with_latest_step(infer_model: Callable[..., None]) -> Callable[..., None]:
    """Changes Mesh's `infer_model`: it reads the latest checkpoint, and does not wait for more."""

    def infer(*args: Any) -> None:
        *others, step = args
        infer_model(*others, -1 if step is None else step)

    return infer
