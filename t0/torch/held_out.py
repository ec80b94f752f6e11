"""Sums the losses of a T5 over examples on PyTorch, to measure perplexity.

    model = TorchHeldOutModel(spec, torch.device("cuda"), torch.bfloat16)
    model.restore("/models/tiny/model.ckpt-1000")
    model.sums({"inputs": inputs, "targets": targets})      # [B, L] -> float64 [6]

The interface is `t0.scoring.perplexity.HeldOutModel`. `t0.torch.losses.SUM_NAMES` names the sums.
"""

from collections.abc import Mapping

import numpy as np
import torch

from t0.torch import sharding, weights
from t0.torch.model import move_to_device
from t0.torch.shape import T5Spec
from t0.torch.world import World


class TorchHeldOutModel:
    """A T5 that sums losses over examples.

    Args:
      spec: the model.
      device: the device that computes.
      activations: the type of weights and activations. The loss is always computed in float32.
    """

    def __init__(self, spec: T5Spec, device: torch.device, activations: torch.dtype) -> None:
        self._world = World(0, 1, device)
        self._model = sharding.unsharded(spec).to(activations).to_empty(device=device).eval()

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint in any format; returns the number of variables."""
        with torch.no_grad():
            weights.load(self._model, None, checkpoint, self._world)
        return len(sharding.names_and_parameters(self._model))

    @torch.inference_mode()
    def sums(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the sums over a batch of examples that are padded to [B, L]; float64 [6]."""
        return self._model(move_to_device(batch, self._world.device)).double().cpu().numpy()
