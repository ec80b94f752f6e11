"""Opens the model of a run to score, generate or measure, with Mesh TensorFlow or PyTorch.

    choose_engine("auto", "auto")           # "torch" if PyTorch sees a GPU, else "tensorflow"
    open_model = opener(arguments, "torch")
    model = open_model(Ability.SCORE, dtype="float32")      # a `t0.evaluation.model.Model`

`arguments` are the arguments of a run, as `t0.run.run_arguments.read` returns them. Only the model
depends on the engine. Records, batches, metrics and files do not.
"""

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from t0.compat import tf
from t0.config.model_spec import require_t5
from t0.errors import UserError, install_command, say
from t0.evaluation.held_out_model import MeshHeldOutModel
from t0.evaluation.mesh_model import both_vocabularies, build_model
from t0.evaluation.model import GREEDY, Ability, DecodingMethod, Model, OpenModel
from t0.evaluation.scorer import MeshScorer
from t0.inference.generator import MeshGenerator
from t0.mesh import devices
from t0.run import spec_from_gin
from t0.training.graph import TrainingSpec


def opener(arguments: Mapping[str, Any], engine: str, device: str = "auto") -> OpenModel:
    """Returns the function that opens the configured model.

    Args:
      arguments: the arguments of the run.
      engine: "tensorflow" or "torch".
      device: PyTorch's device, one of `t0.torch.processes.DEVICES`.

    Raises:
      UserError: the PyTorch engine does not support the model.
    """
    if engine != "torch":
        return functools.partial(_open_mesh_model, arguments)
    from t0.torch import evaluation, processes

    sizes = [each.vocab_size for each in both_vocabularies(arguments["vocabulary"])]
    spec = require_t5(spec_from_gin.model_spec(arguments, *sizes))
    process = processes.World(0, 1, processes.find_device(device))
    say(f"evaluated with PyTorch on {processes.device_name(process.device)}")
    return functools.partial(evaluation.open_model, spec, process)


def _open_mesh_model(
    arguments: Mapping[str, Any],
    ability: Ability,
    *,
    dtype: str,
    method: DecodingMethod = GREEDY,
    features: Sequence[str] = (),
) -> Model:
    activations = devices.activation_dtype(dtype)
    if ability == Ability.MEASURE:
        spec = TrainingSpec.from_estimator_arguments(**arguments)
        return MeshHeldOutModel(spec, features, activations)
    built = build_model(arguments, activations)
    return MeshGenerator(*built, method) if ability == Ability.GENERATE else MeshScorer(*built)


def choose_engine(engine: str, device: str) -> str:
    """Returns "tensorflow" or "torch". If it is "torch", hides the GPUs from TensorFlow.

    Args:
      engine: "tensorflow", "torch", or "auto" for PyTorch if it is installed and sees a GPU.
      device: PyTorch's device, one of `t0.torch.processes.DEVICES`.

    Raises:
      UserError: PyTorch is not installed, PyTorch does not have the device, or a device is set for
        TensorFlow.
    """
    asked = engine == "torch" or device != "auto"
    if engine == "tensorflow" and device != "auto":
        raise UserError(
            f"--device={device} is for PyTorch, and the engine is TensorFlow: leave it out, or "
            "give --engine=torch"
        )
    installed = importlib.util.find_spec("torch")
    if asked and not installed:
        flag = "--engine=torch" if engine == "torch" else f"--device={device}"
        raise UserError(f"{flag}: PyTorch is not installed: {install_command('torch')}")
    if engine == "tensorflow" or not installed:
        return "tensorflow"
    import torch

    from t0.torch import processes

    if not asked and not torch.cuda.is_available():
        return "tensorflow"
    processes.find_device(device)
    tf.config.set_visible_devices([], "GPU")  # PyTorch uses the GPUs
    return "torch"


def uses_gpu(device: str) -> bool:
    """Returns whether the engine "torch" computes on a GPU if its device is `device`."""
    from t0.torch import processes

    return processes.find_device(device).type == "cuda"


def activation_type(name: str, device: str) -> str:
    """Returns the type of activations of the engine "torch": "float32" or "bfloat16".

    Args:
      name: "float32", "bfloat16" or "auto".
      device: one of `t0.torch.processes.DEVICES`.
    """
    from t0.torch import processes

    chosen = processes.choose_activation_type(name, processes.find_device(device))
    return str(chosen).removeprefix("torch.")
