"""Mesh TensorFlow's optimizers for weights that are sharded over processes by rows.

    optimizer = build(spec.optimizer, weights, total=world.all_reduce_sum)
    squares = optimizer.step(step=0, rate=0.001, clip_norm=None)      # of gradients, of weights
    optimizer.slots["encoder/rms_norm/scale_slot_v"].value

The rules are those of `t0.training.optimizers`. A process holds its own rows of each weight, in
PyTorch's orientation, and no weight is ever gathered. Means over columns and root mean squares are
summed over the processes, for all weights together: Adafactor and AdamW need two reductions a step.
"""

import abc
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch

from t0.checkpoints.shape import factored_axes
from t0.config.specification import ConfiguredSpec, Count, Range, read_value
from t0.errors import UserError

# Sums a tensor over all processes, and returns it.
Total = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that is trained.

    Attributes:
      name: Mesh TensorFlow's name.
      shape: the whole weight's shape in Mesh TensorFlow's orientation.
      transposed: whether PyTorch has the two dimensions in the opposite order.
      local: returns this process's rows, in PyTorch's orientation; writing to them changes the
        model.
      gradient: returns the gradient of these rows, None if the loss does not depend on them.
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
      by_rows: whether each process has its own rows.
      shape: the whole slot's shape, in PyTorch's orientation.
    """

    weight: str
    kind: str
    value: torch.Tensor
    by_rows: bool
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Squares:
    """Sums of squares over all weights in one step.

    Attributes:
      gradient: of the gradients, before any clipping.
      weight: of the weights, before the update.
    """

    gradient: float
    weight: float


_Share = Annotated[float, Range(0, 1)]
_BelowOne = Annotated[float, Range(0, 1 - 1e-9)]
_Positive = Annotated[float, Range(1e-30, 1e30)]
_DECAY = "mesh_tensorflow.optimize.adafactor_decay_rate_pow"


@dataclasses.dataclass(frozen=True)
class _PowerDecay:
    """The parameters of `adafactor_decay_rate_pow`."""

    exponent: Annotated[float, Range(0, 10)]
    offset: int


@dataclasses.dataclass(frozen=True)
class _AdafactorParameters:
    """The parameters of Adafactor that a specification holds."""

    multiply_by_parameter_scale: bool
    decay_rate: ConfiguredSpec | _Share
    beta1: _BelowOne
    clipping_threshold: _Positive | None
    factored: bool
    epsilon1: float
    epsilon2: float
    min_dim_size_to_factor: Count
    stacked_dim_names: None
    exclude_from_parameter_scale: Sequence[str] | None


@dataclasses.dataclass(frozen=True)
class _AdamParameters:
    """The parameters that AdamW's two forms share."""

    weight_decay_rate: float
    beta_1: _BelowOne
    beta_2: _BelowOne
    epsilon: float
    offset: int


@dataclasses.dataclass(frozen=True)
class _AdamWParameters(_AdamParameters):
    """The parameters of `t0.AdamWOptimizer`."""

    rms_clipping_threshold: _Positive | None
    multiply_by_parameter_scale: bool
    exclude_from_weight_decay: Sequence[str]


class Optimizer(abc.ABC):
    """The base of Adafactor and AdamW: slots, sums over processes, clipping by the global norm."""

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
        whole_shape = torch.Size(shape)
        local_shape = (local.shape[0], *whole_shape[1:]) if by_rows else whole_shape
        value = torch.zeros(local_shape, dtype=torch.float32, device=local.device)
        slot_name = (
            f"{weight.name}/{kind}" if kind.startswith("adam") else f"{weight.name}_slot_{kind}"
        )
        self.slots[slot_name] = Slot(weight.name, kind, value, by_rows, tuple(whole_shape))

    def _slot(self, weight: Weight, kind: str) -> Slot:
        return self.slots[f"{weight.name}_slot_{kind}"]

    def _collect_gradients(
        self, *, wide: bool = True
    ) -> list[tuple[Weight, torch.Tensor, torch.Tensor]]:
        """Returns weights, their rows and gradients; matrices' gradients are float32 if `wide`."""
        pairs = [(weight, weight.gradient()) for weight in self._weights]
        return [
            (w, w.local(), g.float() if wide or g.dim() < 2 else g)
            for w, g in pairs
            if g is not None
        ]


def _sum_together(tensors: Sequence[torch.Tensor], total: Total) -> list[torch.Tensor]:
    """Returns the sums of tensors over the processes, computed in one reduction."""
    if not tensors:
        return []
    flat = total(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    sums = flat.split([tensor.numel() for tensor in tensors])
    return [each.view(like.shape) for each, like in zip(sums, tensors, strict=True)]


class Adafactor(Optimizer):
    """Mesh TensorFlow's Adafactor (Shazeer and Stern 2018; mesh_tensorflow/optimize.py).

    The second moments of a matrix are kept by rows and columns if both dimensions have at least
    `min_dim_size_to_factor` elements: vr is without the larger dimension, vc without the
    other.
    """

    def __init__(self, weights: Sequence[Weight], total: Total, **parameters: Any) -> None:
        super().__init__(weights, total)
        self._parameters = parameters
        self._passes = _MATRIX_PASSES
        self._cached_weight_facts: tuple[torch.Tensor, torch.Tensor] | None = None
        # name -> the slots along rows and columns, or the one slot of a weight not factored.
        self._slots_by_weight: dict[str, tuple[Slot, ...]] = {}
        for weight in weights:
            shape = tuple(weight.local().shape[1:])
            rows, columns = self._kinds(weight)
            if rows is None:
                self._add(weight, "v", (_rows(weight), *shape), by_rows=True)
            else:
                self._add(weight, rows, (_rows(weight),), by_rows=True)
                self._add(weight, columns, shape, by_rows=False)
            kinds = ("v",) if rows is None else (rows, columns)
            self._slots_by_weight[weight.name] = tuple(self._slot(weight, kind) for kind in kinds)
            if parameters["beta1"]:
                self._add(weight, "m", (_rows(weight), *shape), by_rows=True)

    def _kinds(self, weight: Weight) -> tuple[str | None, str | None]:
        """Returns the names of the moments along rows and along columns, None if not factored."""
        shape = weight.shape
        small = self._parameters["min_dim_size_to_factor"]
        if not self._parameters["factored"] or len(shape) < 2 or sorted(shape)[-2] < small:
            return None, None
        lost_by_vr = factored_axes(shape)[0]
        axis = 1 - lost_by_vr if weight.transposed else lost_by_vr
        return ("vr", "vc") if axis == 1 else ("vc", "vr")

    def step(self, step: int, rate: float, clip_norm: float | None) -> Squares:
        """Updates the weights; see `Optimizer.step`."""
        return Squares(*self.update(self.decay(step), rate, clip_norm).tolist())

    def update(
        self, decay: float | torch.Tensor, rate: float | torch.Tensor, clip_norm: float | None
    ) -> torch.Tensor:
        """Updates the weights without waiting for a GPU; returns the values of `Squares`, [2].

        Args:
          decay: the share of the second moments that stays; see `decay`.
          rate: the learning rate. Both may be tensors, which a CUDA graph reads at each replay.
          clip_norm: the largest norm of all gradients together, or None.
        """
        trained = self._collect_gradients(wide=False)
        slots = [self._slots_by_weight[weight.name] for weight, _, _ in trained]
        along, sums, column_sums = [], [], []
        for (_, local, gradient), weight_slots in zip(trained, slots, strict=True):
            if len(weight_slots) == 2:
                rows, columns, square_sums = self._passes.sums(local, gradient)
                column_sums.append(columns)
            else:
                rows = gradient.float().square()
                square_sums = torch.stack([rows.sum(), local.float().square().sum()])
            along.append(rows)
            sums.append(square_sums)
        *columns, square_sums = _sum_together([*column_sums, torch.stack(sums)], self._total)
        squares = square_sums.sum(0)
        clip = _clip_factor(squares[0], clip_norm)
        self._update_moments(trained, slots, along, columns, clip, decay)
        update_sums = [
            self._update_squares(gradient, weight_slots, clip)
            for (_, _, gradient), weight_slots in zip(trained, slots, strict=True)
        ]
        updates = self._total(torch.stack(update_sums))
        means = torch.stack(
            [
                self._moment_mean(weight, weight_slots, row_sum)
                for (weight, _, _), weight_slots, row_sum in zip(
                    trained, slots, updates[:, 1].unbind(), strict=True
                )
            ]
        )
        scales = clip * self._compute_scales(
            trained, rate, square_sums[:, 1], updates[:, 0] * means
        )
        for (weight, local, gradient), weight_slots, mean, scale in zip(
            trained, slots, means.unbind(), scales.unbind(), strict=True
        ):
            self._update(weight, local, gradient, weight_slots, mean, scale)
        return squares

    def compile(self) -> None:
        """Compiles the passes over matrices: eager ones read and write each gradient many times."""
        self._passes = _Passes(*(torch.compile(x, dynamic=False) for x in _MATRIX_PASSES))

    def decay(self, step: int) -> float:
        """Returns the share of the second moments that stays at a step."""
        decay = self._parameters["decay_rate"]
        if isinstance(decay, float):
            return decay
        steps = _steps_since(step, decay.offset, "adafactor_decay_rate_pow")
        return 1.0 - float(steps) ** -decay.exponent

    def _update_moments(
        self,
        trained: Sequence[tuple[Weight, torch.Tensor, torch.Tensor]],
        slots: Sequence[tuple[Slot, ...]],
        along: Sequence[torch.Tensor],
        columns: Sequence[torch.Tensor],
        clip: torch.Tensor,
        decay: float | torch.Tensor,
    ) -> None:
        """Updates the second moments of all weights.

        Args:
          trained: the weights.
          slots: their slots.
          along: the gradients' squares, summed along rows if the weight is factored.
          columns: for each factored weight the sums along columns, over all processes.
          clip: the factor of the gradients.
          decay: the share of the moments that stays.
        """
        next_columns = iter(columns)
        for (weight, _, gradient), weight_slots, rows in zip(trained, slots, along, strict=True):
            squares = [rows]
            if len(weight_slots) == 2:
                squares = [rows / gradient.shape[1], next(next_columns) / _rows(weight)]
            for slot, square in zip(weight_slots, squares, strict=True):
                square = square * clip.square() + self._parameters["epsilon1"]
                slot.value.mul_(decay).add_(square * (1.0 - decay))

    def _update_squares(
        self, gradient: torch.Tensor, weight_slots: tuple[Slot, ...], clip: torch.Tensor
    ) -> torch.Tensor:
        """Returns this process's part of two sums, [2].

        The first is over the squares of gradient / sqrt(moments), the second over the moments along
        the rows.
        """
        moment = weight_slots[0].value
        if len(weight_slots) == 1:
            whole = (gradient.float().square() / moment).sum() * clip.square()
            return torch.stack([whole, torch.zeros_like(whole)])
        return self._passes.update_squares(gradient, moment, weight_slots[1].value, clip)

    @staticmethod
    def _moment_mean(
        weight: Weight, weight_slots: tuple[Slot, ...], row_sum: torch.Tensor
    ) -> torch.Tensor:
        """Returns the divisor of the moments along rows; 1 if the weight is not factored."""
        if len(weight_slots) == 1:
            return torch.ones_like(row_sum)
        # vr is in units of its mean; the mean of vc is the same except for rounding.
        return (
            row_sum / _rows(weight)
            if weight_slots[0].kind == "vr"
            else weight_slots[1].value.mean()
        )

    def _compute_scales(
        self,
        trained: Sequence[tuple[Weight, torch.Tensor, torch.Tensor]],
        rate: float | torch.Tensor,
        squares: torch.Tensor,
        update_squares: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the factor of each weight's update, [N].

        Args:
          trained: N weights.
          rate: the learning rate.
          squares: the sums of the weights' squares, [N].
          update_squares: those of the updates' squares, before any factor, [N].
        """
        parameters = self._parameters
        sizes, unscaled = self._weight_facts(
            tuple(weight.name for weight, _, _ in trained), squares.device
        )
        scales = torch.ones_like(squares) * rate
        if parameters["multiply_by_parameter_scale"]:
            factors = (squares / sizes).sqrt().clamp(min=parameters["epsilon2"])
            scales = scales * torch.where(unscaled, 1.0, factors)
        if parameters["clipping_threshold"] is not None:
            rms = (update_squares / sizes).sqrt()
            scales = scales / (rms / parameters["clipping_threshold"]).clamp(min=1.0)
        return scales

    def _update(
        self,
        weight: Weight,
        local: torch.Tensor,
        gradient: torch.Tensor,
        weight_slots: tuple[Slot, ...],
        mean: torch.Tensor,
        scale: torch.Tensor,
    ) -> None:
        moment = (weight_slots[0].value / mean).rsqrt() * scale
        if len(weight_slots) == 2 and not self._parameters["beta1"]:
            self._passes.update(local, gradient, moment, weight_slots[1].value)
            return
        if len(weight_slots) == 1:
            update, factor = gradient.float(), moment
        else:
            update, factor = gradient.float() * moment[:, None], weight_slots[1].value.rsqrt()
        if self._parameters["beta1"]:
            momentum, beta = self._slot(weight, "m").value, self._parameters["beta1"]
            momentum.mul_(beta).addcmul_(update, factor, value=1.0 - beta)
            local.sub_(momentum)
        else:
            local.addcmul_(update, factor, value=-1.0)

    def _weight_facts(
        self, names: tuple[str, ...], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the sizes of weights, and which of them are updated without parameter scale.

        They are made once, because copying them to a GPU takes a wait.
        """
        if self._cached_weight_facts is None:
            self._cached_weight_facts = self._make_weight_facts(names, device)
        return self._cached_weight_facts

    def _make_weight_facts(
        self, names: tuple[str, ...], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = {weight.name: float(weight.size) for weight in self._weights}
        excluded = self._parameters["exclude_from_parameter_scale"] or ()
        is_excluded = [any(text in name for text in excluded) for name in names]
        return (
            torch.tensor([sizes[name] for name in names], device=device),
            torch.tensor(is_excluded, device=device),
        )


class _Passes(NamedTuple):
    """Adafactor's passes over a matrix; a compiled pass reads the gradient only once."""

    sums: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    update_squares: Callable[..., torch.Tensor]
    update: Callable[..., None]


def _matrix_sums(
    local: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns sums of a gradient's squares by row and by column, and both sums of squares, [2]."""
    square = gradient.float().square()
    rows = square.sum(1)
    return rows, square.sum(0), torch.stack([rows.sum(), local.float().square().sum()])


def _matrix_update_squares(
    gradient: torch.Tensor, along: torch.Tensor, across: torch.Tensor, clip: torch.Tensor
) -> torch.Tensor:
    """Returns the sums of `Adafactor._update_squares`, of moments along and across the rows."""
    weighed = gradient.float().square() @ across.reciprocal()
    return torch.stack([(weighed / along).sum() * clip.square(), along.sum()])


def _update_matrix(
    local: torch.Tensor, gradient: torch.Tensor, along: torch.Tensor, across: torch.Tensor
) -> None:
    """Subtracts the update from a matrix."""
    local.addcmul_(gradient.float() * along[:, None], across.rsqrt(), value=-1.0)


_MATRIX_PASSES = _Passes(_matrix_sums, _matrix_update_squares, _update_matrix)


class AdamW(Optimizer):
    """`t0.AdamWOptimizer`, and with `epsilon_first` `t0.AdamWScaleOptimizer` (nanoT5's).

    Adam with decoupled weight decay, and optionally with Adafactor's bound and scale; see
    `t0.training.optimizers` for the parameters.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        total: Total,
        *,
        epsilon_first: bool = False,
        **parameters: Any,
    ) -> None:
        super().__init__(weights, total)
        self._epsilon_first = epsilon_first
        self._parameters = {**parameters, **(_SCALED if epsilon_first else {})}
        for weight in weights:
            shape = (_rows(weight), *weight.local().shape[1:])
            for kind in ("adam_m", "adam_v"):
                self._add(weight, kind, shape, by_rows=True)

    def step(self, step: int, rate: float, clip_norm: float | None) -> Squares:
        """Updates the weights; see `Optimizer.step`."""
        parameters, trained = self._parameters, self._collect_gradients()
        sums = [
            torch.stack([gradient.square().sum(), local.float().square().sum()])
            for _, local, gradient in trained
        ]
        squares = _sum_together(sums, self._total)
        square_sums = torch.stack(squares).sum(0)
        clip = _clip_factor(square_sums[0], clip_norm)
        steps = _steps_since(step, parameters["offset"], "AdamWOptimizer")
        corrections = [_bias_correction(parameters[name], steps) for name in ("beta_1", "beta_2")]
        updates = [
            self._adam(weight, gradient * clip, corrections) for weight, _, gradient in trained
        ]
        update_squares = _sum_together([update.square().sum() for update in updates], self._total)
        for (weight, local, _), update, square, update_square in zip(
            trained, updates, squares, update_squares, strict=True
        ):
            if parameters["rms_clipping_threshold"] is not None:
                rms = (update_square / weight.size).sqrt()
                update /= (rms / parameters["rms_clipping_threshold"]).clamp(min=1.0)
            if parameters["multiply_by_parameter_scale"]:
                update *= (square[1] / weight.size).sqrt().clamp(min=1e-3)
            excluded = any(
                re.search(x, weight.name) for x in parameters["exclude_from_weight_decay"]
            )
            if parameters["weight_decay_rate"] and not excluded:
                update += local * parameters["weight_decay_rate"]
            local.sub_(update, alpha=rate)
        return Squares(*square_sums.tolist())

    def _adam(
        self, weight: Weight, gradient: torch.Tensor, corrections: Sequence[float]
    ) -> torch.Tensor:
        parameters = self._parameters
        mean, square = (self.slots[f"{weight.name}/{kind}"].value for kind in ("adam_m", "adam_v"))
        mean.mul_(parameters["beta_1"]).add_(gradient, alpha=1.0 - parameters["beta_1"])
        square.mul_(parameters["beta_2"]).addcmul_(
            gradient, gradient, value=1.0 - parameters["beta_2"]
        )
        epsilon = parameters["epsilon"] / (
            math.sqrt(corrections[1]) if self._epsilon_first else 1.0
        )
        return (mean / corrections[0]) / ((square / corrections[1]).sqrt() + epsilon)


# The parameters that `t0.AdamWScaleOptimizer` fixes.
_SCALED = {
    "rms_clipping_threshold": None,
    "multiply_by_parameter_scale": True,
    "exclude_from_weight_decay": ("rms_norm", "layer_norm"),
}
# Selector -> the optimizer's constructor, and the class of its parameters.
_KINDS: Mapping[str, tuple[Callable[..., Optimizer], type]] = {
    "mesh_tensorflow.optimize.AdafactorOptimizer": (Adafactor, _AdafactorParameters),
    "t0.AdamWOptimizer": (AdamW, _AdamWParameters),
    "t0.AdamWScaleOptimizer": (functools.partial(AdamW, epsilon_first=True), _AdamParameters),
}


def read_parameters(configured: ConfiguredSpec) -> dict[str, Any]:
    """Returns the parameters of the optimizer that a specification names, checked.

    Raises:
      UserError: if this engine does not have the optimizer, or a parameter is missing, unknown, of
        another type or out of range.
    """
    if configured.selector not in _KINDS:
        raise UserError(
            f"run.optimizer is @{configured.selector}, which the PyTorch engine does not have; "
            f"wanted {', '.join(f'@{name}' for name in _KINDS)}"
        )
    values = {name: x for name, x in configured.parameters.items() if name != "learning_rate"}
    kind = _KINDS[configured.selector][1]
    parameters = vars(read_value(values, kind, "optimizer.parameters"))
    decay = parameters.get("decay_rate")
    if isinstance(decay, ConfiguredSpec):
        if decay.selector != _DECAY:
            raise UserError(
                f"AdafactorOptimizer.decay_rate is @{decay.selector}, which the PyTorch engine "
                f"does not compute; wanted a number from 0 to 1, or @{_DECAY}"
            )
        name = "optimizer.parameters.decay_rate.parameters"
        parameters["decay_rate"] = read_value(decay.parameters, _PowerDecay, name)
    for pattern in parameters.get("exclude_from_weight_decay", ()):
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(
                f"the optimizer's exclude_from_weight_decay has {pattern!r:.80}, which is not a "
                f"regular expression: {error}"
            ) from error
    return parameters


def build(
    configured: ConfiguredSpec, weights: Sequence[Weight], total: Total, *, compiled: bool = False
) -> Optimizer:
    """Returns the optimizer that a specification names.

    Args:
      configured: its selector and parameters, as `run.optimizer` binds them.
      weights: the weights that are trained.
      total: sums a tensor over all processes.
      compiled: whether PyTorch compiles Adafactor's passes over matrices, once for each shape.

    Raises:
      UserError: if this engine does not have the optimizer.
    """
    parameters = read_parameters(configured)
    optimizer = _KINDS[configured.selector][0](weights, total, **parameters)
    if compiled and isinstance(optimizer, Adafactor):
        optimizer.compile()
    return optimizer


def _steps_since(step: int, offset: int, name: str) -> int:
    """Returns the number of steps since a step, from 1 on."""
    if offset > step:
        raise UserError(f"{name}.offset is {offset:,} at step {step:,}; wanted at most that step")
    return step - offset + 1


def _rows(weight: Weight) -> int:
    """Returns the rows of the whole weight, in PyTorch's orientation."""
    return weight.shape[-1 if weight.transposed else 0]


def _clip_factor(square: torch.Tensor, norm: float | None) -> torch.Tensor:
    if norm is None:
        return torch.ones_like(square)
    return norm / square.sqrt().clamp(min=norm)


def _bias_correction(beta: float, step: float) -> float:
    """Returns the factor by which a moving average that began at 0 is too small."""
    return -math.expm1(step * math.log(beta)) if beta else 1.0
