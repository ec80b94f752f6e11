"""Mesh TensorFlow's optimizers for weights that are sharded over processes by rows.

    optimizer = build(spec.optimizer, weights, total=world.total)
    squares = optimizer.step(step=0, rate=0.001, clip_norm=None)      # of gradients, of weights
    optimizer.slots["encoder/rms_norm/scale_slot_v"].value

The rules are those of `t0.training.optimizers`. A process holds the rows of each weight that are
its own, in PyTorch's orientation, and no weight is ever gathered: what spans rows (means over
columns, root mean squares) is summed over the processes, for all weights at once, in two
reductions of a step by Adafactor and two by AdamW.
"""

import abc
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from t0.checkpoints.shape import factored_axes
from t0.config.specification import ConfiguredSpec
from t0.errors import UserError

# Sums a tensor over all processes, and returns it.
Total = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that is trained.

    Attributes:
      name: Mesh TensorFlow's name.
      shape: the whole weight's shape in Mesh TensorFlow's orientation.
      transposed: whether PyTorch has the two dimensions the other way round.
      local: returns this process's rows, in PyTorch's orientation; writing to them changes the
        model.
      gradient: returns the gradient of these rows, None where the loss does not depend on them.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool
    local: Callable[[], torch.Tensor]
    gradient: Callable[[], torch.Tensor | None]

    @property
    def size(self) -> int:
        """The number of elements of the whole weight."""
        return math.prod(self.shape)


@dataclasses.dataclass
class Slot:
    """A variable of the optimizer.

    Attributes:
      weight: the name of its weight.
      kind: "vr", "vc", "v" or "m" of Adafactor, "adam_m" or "adam_v" of AdamW.
      value: float32, this process's rows, or all of it.
      by_rows: whether each process has rows of its own.
      shape: the whole slot's shape, in PyTorch's orientation.
    """

    weight: str
    kind: str
    value: torch.Tensor
    by_rows: bool
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Squares:
    """Sums of squares over all weights, as numbers of a step.

    Attributes:
      gradient: of the gradients, before any clipping.
      weight: of the weights, before the update.
    """

    gradient: float
    weight: float


class Optimizer(abc.ABC):
    """What Adafactor and AdamW share: slots, sums over processes, clipping by the global norm."""

    def __init__(self, weights: Sequence[Weight], total: Total) -> None:
        self._weights, self._total = weights, total
        self.slots: dict[str, Slot] = {}

    @abc.abstractmethod
    def step(self, step: int, rate: float, clip_norm: float | None) -> Squares:
        """Updates the weights.

        Args:
          step: the number of steps done, from 0 on.
          rate: the learning rate.
          clip_norm: the largest norm of all gradients together, or None.
        """

    def _add(self, weight: Weight, kind: str, shape: Sequence[int], *, by_rows: bool) -> None:
        local = weight.local()
        whole = torch.Size(shape)
        held = (local.shape[0], *whole[1:]) if by_rows else whole
        value = torch.zeros(held, dtype=torch.float32, device=local.device)
        joint = f"{weight.name}/{kind}" if kind.startswith("adam") else f"{weight.name}_slot_{kind}"
        self.slots[joint] = Slot(weight.name, kind, value, by_rows, tuple(whole))

    def _slot(self, weight: Weight, kind: str) -> Slot:
        return self.slots[f"{weight.name}_slot_{kind}"]

    def _with_gradients(self) -> list[tuple[Weight, torch.Tensor, torch.Tensor]]:
        found = [(weight, weight.gradient()) for weight in self._weights]
        return [(w, w.local(), g.float()) for w, g in found if g is not None]


class _Parts:
    """Tensors that are summed over the processes as one."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Adds a tensor; returns its number."""
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def summed(self, total: Total) -> list[torch.Tensor]:
        """Returns the sums, in the order in which the parts were added."""
        if not self._tensors:
            return []
        flat = total(torch.cat([tensor.reshape(-1) for tensor in self._tensors]))
        sizes = [tensor.numel() for tensor in self._tensors]
        parts = flat.split(sizes)
        return [x.view(like.shape) for x, like in zip(parts, self._tensors, strict=True)]


class Adafactor(Optimizer):
    """Mesh TensorFlow's Adafactor (Shazeer and Stern 2018; mesh_tensorflow/optimize.py).

    The second moments of a matrix are kept by rows and columns if both dimensions have at least
    `min_dim_size_to_factor` elements: vr lacks the larger dimension, vc the other.
    """

    def __init__(self, weights: Sequence[Weight], total: Total, **parameters: Any) -> None:
        super().__init__(weights, total)
        self._of = parameters
        if parameters["stacked_dim_names"]:
            raise UserError(
                "AdafactorOptimizer.stacked_dim_names is bound, which the PyTorch engine does not "
                "compute; leave it out"
            )
        for weight in weights:
            shape = tuple(weight.local().shape[1:])
            rows, columns = self._kinds(weight)
            if rows is None:
                self._add(weight, "v", (_rows(weight), *shape), by_rows=True)
            else:
                self._add(weight, rows, (_rows(weight),), by_rows=True)
                self._add(weight, columns, shape, by_rows=False)
            if parameters["beta1"]:
                self._add(weight, "m", (_rows(weight), *shape), by_rows=True)

    def _kinds(self, weight: Weight) -> tuple[str | None, str | None]:
        """Returns the names of the moments along rows and along columns, None if not factored."""
        shape = weight.shape
        small = self._of["min_dim_size_to_factor"]
        if not self._of["factored"] or len(shape) < 2 or sorted(shape)[-2] < small:
            return None, None
        lost_by_vr = factored_axes(shape)[0]
        axis = 1 - lost_by_vr if weight.transposed else lost_by_vr
        return ("vr", "vc") if axis == 1 else ("vc", "vr")

    def step(self, step: int, rate: float, clip_norm: float | None) -> Squares:
        """Updates the weights; see `Optimizer.step`."""
        found = self._with_gradients()
        decay = self._decay(step)
        sums = _Parts()
        for weight, local, gradient in found:
            square = gradient.square()
            sums.add(square.sum())
            sums.add(local.float().square().sum())
            if self._kinds(weight)[0]:
                sums.add(square.sum(0))
        first = iter(sums.summed(self._total))
        of_weight = [
            (next(first), next(first), next(first) if self._kinds(w)[0] else None)
            for w, _, _ in found
        ]
        gradients = torch.stack([each[0] for each in of_weight]).sum()
        squares = torch.stack([gradients, torch.stack([each[1] for each in of_weight]).sum()])
        clip = _clip_factor(gradients, clip_norm)
        updates = _Parts()
        for (weight, _, gradient), (_, _, columns) in zip(found, of_weight, strict=True):
            for part in self._moments(weight, gradient * clip, columns, clip, decay):
                updates.add(part)
        second = iter(updates.summed(self._total))
        for (weight, local, gradient), (_, square, _) in zip(found, of_weight, strict=True):
            mean_square, row_sum = next(second), next(second)
            self._update(weight, local, gradient * clip, rate, square, mean_square, row_sum)
        return Squares(*squares.tolist())

    def _decay(self, step: int) -> float:
        decay = self._of["decay_rate"]
        if isinstance(decay, int | float):
            return float(decay)
        numbers = decay["parameters"]
        return 1.0 - (step - numbers["offset"] + 1.0) ** -numbers["exponent"]

    def _moments(
        self,
        weight: Weight,
        gradient: torch.Tensor,
        columns: torch.Tensor | None,
        clip: torch.Tensor,
        decay: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Updates the second moments.

        Returns:
          this process's part of two sums: of the squares of gradient / sqrt(moments), and of the
          moments along the rows.
        """
        epsilon, mixing = self._of["epsilon1"], 1.0 - decay
        kinds = self._kinds(weight)
        square = gradient.square()
        if kinds[0] is None:
            moment = self._slot(weight, "v").value
            moment.mul_(decay).add_(square + epsilon, alpha=mixing)
            return (square / moment).sum(), square.new_zeros(())
        by_rows, by_columns = (self._slot(weight, kind).value for kind in kinds)
        by_rows.mul_(decay).add_(square.mean(1) + epsilon, alpha=mixing)
        mean = columns * clip.square() / _rows(weight)
        by_columns.mul_(decay).add_(mean + epsilon, alpha=mixing)
        weighed = square @ by_columns.reciprocal()
        return (weighed / by_rows).sum(), by_rows.sum()

    def _update(
        self,
        weight: Weight,
        local: torch.Tensor,
        gradient: torch.Tensor,
        rate: float,
        square: torch.Tensor,
        mean_square: torch.Tensor,
        row_sum: torch.Tensor,
    ) -> None:
        of, kinds = self._of, self._kinds(weight)
        if kinds[0] is None:
            factors = [self._slot(weight, "v").value.rsqrt()]
        else:
            by_rows, by_columns = (self._slot(weight, kind).value for kind in kinds)
            # vr is in units of its mean; the mean of vc is the same but for rounding.
            mean = row_sum / _rows(weight) if kinds[0] == "vr" else by_columns.mean()
            mean_square = mean_square * mean
            factors = [(by_rows / mean).rsqrt()[:, None], by_columns.rsqrt()]
        scale = torch.full_like(mean_square, rate)
        excluded = of["exclude_from_parameter_scale"] or ()
        if of["multiply_by_parameter_scale"] and not any(x in weight.name for x in excluded):
            scale = scale * (square / weight.size).sqrt().clamp(min=of["epsilon2"])
        if of["clipping_threshold"] is not None:
            rms = (mean_square / weight.size).sqrt()
            scale = scale / (rms / of["clipping_threshold"]).clamp(min=1.0)
        update = gradient * (factors[0] * scale)
        for factor in factors[1:]:
            update *= factor
        if of["beta1"]:
            momentum = self._slot(weight, "m").value
            update = momentum.mul_(of["beta1"]).add_(update, alpha=1.0 - of["beta1"])
        local.sub_(update)


class AdamW(Optimizer):
    """`t0.AdamWOptimizer`, and with `epsilon_first` `t0.AdamWScaleOptimizer` (nanoT5's).

    Adam with decoupled weight decay, and optionally with Adafactor's bound and scale; see
    `t0.training.optimizers` for the parameters.
    """

    def __init__(
        self, weights: Sequence[Weight], total: Total, *, epsilon_first: bool = False, **of: Any
    ) -> None:
        super().__init__(weights, total)
        self._epsilon_first = epsilon_first
        self._of = {**of, **(_SCALED if epsilon_first else {})}
        for weight in weights:
            shape = (_rows(weight), *weight.local().shape[1:])
            for kind in ("adam_m", "adam_v"):
                self._add(weight, kind, shape, by_rows=True)

    def step(self, step: int, rate: float, clip_norm: float | None) -> Squares:
        """Updates the weights; see `Optimizer.step`."""
        of, found = self._of, self._with_gradients()
        sums = _Parts()
        for _, local, gradient in found:
            sums.add(torch.stack([gradient.square().sum(), local.float().square().sum()]))
        squares = sums.summed(self._total)
        both = torch.stack(squares).sum(0)
        clip = _clip_factor(both[0], clip_norm)
        risen = [_risen(of[name], step - of["offset"] + 1) for name in ("beta_1", "beta_2")]
        updates, norms = [], _Parts()
        for weight, _, gradient in found:
            update = self._adam(weight, gradient * clip, risen)
            updates.append(update)
            norms.add(update.square().sum())
        spans = norms.summed(self._total)
        for (weight, local, _), update, square, span in zip(
            found, updates, squares, spans, strict=True
        ):
            if of["rms_clipping_threshold"] is not None:
                rms = (span / weight.size).sqrt()
                update /= (rms / of["rms_clipping_threshold"]).clamp(min=1.0)
            if of["multiply_by_parameter_scale"]:
                update *= (square[1] / weight.size).sqrt().clamp(min=1e-3)
            excluded = any(re.search(x, weight.name) for x in of["exclude_from_weight_decay"])
            if of["weight_decay_rate"] and not excluded:
                update += local * of["weight_decay_rate"]
            local.sub_(update, alpha=rate)
        return Squares(*both.tolist())

    def _adam(self, weight: Weight, gradient: torch.Tensor, risen: Sequence[float]) -> torch.Tensor:
        of = self._of
        mean, square = (self.slots[f"{weight.name}/{kind}"].value for kind in ("adam_m", "adam_v"))
        mean.mul_(of["beta_1"]).add_(gradient, alpha=1.0 - of["beta_1"])
        square.mul_(of["beta_2"]).addcmul_(gradient, gradient, value=1.0 - of["beta_2"])
        epsilon = of["epsilon"] / (math.sqrt(risen[1]) if self._epsilon_first else 1.0)
        return (mean / risen[0]) / ((square / risen[1]).sqrt() + epsilon)


# The parameters that a specification must have.
_OF_ADAFACTOR = {
    "multiply_by_parameter_scale",
    "decay_rate",
    "beta1",
    "clipping_threshold",
    "factored",
    "epsilon1",
    "epsilon2",
    "min_dim_size_to_factor",
    "stacked_dim_names",
    "exclude_from_parameter_scale",
}
_OF_ADAM = {"weight_decay_rate", "beta_1", "beta_2", "epsilon", "offset"}
# The parameters that `t0.AdamWScaleOptimizer` fixes.
_SCALED = {
    "rms_clipping_threshold": None,
    "multiply_by_parameter_scale": True,
    "exclude_from_weight_decay": ("rms_norm", "layer_norm"),
}
_KINDS: Mapping[str, Callable[..., Optimizer]] = {
    "mesh_tensorflow.optimize.AdafactorOptimizer": Adafactor,
    "t0.AdamWOptimizer": AdamW,
    "t0.AdamWScaleOptimizer": functools.partial(AdamW, epsilon_first=True),
}


def build(configured: ConfiguredSpec, weights: Sequence[Weight], total: Total) -> Optimizer:
    """Returns the optimizer that a specification names.

    Args:
      configured: its selector and parameters, as `run.optimizer` binds them.
      weights: the weights that are trained.
      total: sums a tensor over all processes.

    Raises:
      UserError: if it is another optimizer than this engine has.
    """
    if configured.selector not in _KINDS:
        raise UserError(
            f"run.optimizer is @{configured.selector}, which the PyTorch engine does not have; "
            f"wanted {', '.join(f'@{name}' for name in _KINDS)}"
        )
    parameters = {k: v for k, v in configured.parameters.items() if k != "learning_rate"}
    wanted = _OF_ADAM | _SCALED.keys() if configured.selector == "t0.AdamWOptimizer" else _OF_ADAM
    wanted = _OF_ADAFACTOR if configured.selector.startswith("mesh_tensorflow.") else wanted
    missing = sorted(wanted - parameters.keys())
    if missing:
        raise UserError(
            f"the specification's optimizer lacks {', '.join(missing)}: write it again, by "
            "t5_mesh_transformer --save_spec"
        )
    return _KINDS[configured.selector](weights, total, **parameters)


def _rows(weight: Weight) -> int:
    """Returns the rows of the whole weight, in PyTorch's orientation."""
    return weight.shape[-1 if weight.transposed else 0]


def _clip_factor(square: torch.Tensor, norm: float | None) -> torch.Tensor:
    if norm is None:
        return torch.ones_like(square)
    return norm / square.sqrt().clamp(min=norm)


def _risen(beta: float, step: float) -> float:
    return -math.expm1(step * math.log(beta)) if beta else 1.0
