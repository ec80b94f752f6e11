"""Evaluates with PyTorch instead of TensorFlow, for `t0 eval` and mode `eval`.

    choose_engine("auto", "auto")           # "torch" if PyTorch sees a GPU, else "tensorflow"
    engine = TorchEvaluation(arguments, "auto")         # gin's model
    engine.make_scorer("float32")       # a `ranking.ChoiceScorer` and `perplexity.HeldOutModel`
    engine.make_generator(dtype="float32", method=method)

Only the scorer and the generator depend on the engine. Records, batches, metrics and files do not.
"""

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

from t0.compat import tf
from t0.config.model_spec import require_t5
from t0.errors import UserError, install_command, say
from t0.evaluation.mesh_model import both_vocabularies
from t0.run import specify


def choose_engine(engine: str, device: str) -> str:
    """Returns "tensorflow" or "torch". If it is "torch", hides the GPUs from TensorFlow.

    Args:
      engine: "tensorflow", "torch", or "auto" for PyTorch if it is installed and sees a GPU.
      device: PyTorch's device, one of `t0.torch.world.DEVICES`.

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

    from t0.torch import world

    if not asked and not torch.cuda.is_available():
        return "tensorflow"
    world.find_device(device)
    tf.config.set_visible_devices([], "GPU")  # PyTorch uses the GPUs
    return "torch"


def uses_gpu(device: str) -> bool:
    """Returns whether the engine "torch" computes on a GPU if its device is `device`."""
    from t0.torch import world

    return world.find_device(device).type == "cuda"


def activation_type(name: str, device: str) -> str:
    """Returns the type of activations of the engine "torch": "float32" or "bfloat16".

    Args:
      name: "float32", "bfloat16" or "auto".
      device: one of `t0.torch.world.DEVICES`.
    """
    from t0.torch import world

    chosen = world.choose_activation_type(name, world.find_device(device))
    return str(chosen).removeprefix("torch.")


class TorchEvaluation:
    """Evaluates the configured model with PyTorch.

    Args:
      arguments: the arguments of the run, as `arguments.read` returns them.
      device: one of `t0.torch.world.DEVICES`.

    Raises:
      UserError: the PyTorch engine does not support the model.
    """

    def __init__(self, arguments: Mapping[str, Any], device: str) -> None:
        from t0.torch import world

        sizes = [each.vocab_size for each in both_vocabularies(arguments["vocabulary"])]
        self._spec = require_t5(specify.model_spec(arguments, *sizes))
        self._world = world.World(0, 1, world.find_device(device))
        self._activations = functools.partial(
            world.choose_activation_type, device=self._world.device
        )
        say(f"evaluated with PyTorch on {world.device_name(self._world.device)}")

    def make_scorer(self, dtype: str) -> Any:
        """Builds the scorer, which scores answer choices and sums losses."""
        from t0.torch.evaluation import ShardedScorer

        return ShardedScorer(self._spec, self._world, self._activations(dtype))

    def make_generator(self, *, dtype: str, method: Any) -> Any:
        """Builds the generator, which decodes texts."""
        from t0.torch.decoding import TorchGenerator

        device = self._world.device
        return TorchGenerator(self._spec, device, self._activations(dtype), method)
