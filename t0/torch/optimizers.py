"""Implements Mesh TensorFlow's optimizers for weights whose rows are sharded over processes.

    optimizer = build(spec.optimizer, weights, total=world.all_reduce_sum)
    squares = optimizer.step(step=0, rate=0.001, clip_norm=None)      # of gradients, of weights
    optimizer.slots["encoder/rms_norm/scale_slot_v"].value

The update rules are those of `t0.training.optimizers`. Each process has its own rows of each
weight, in PyTorch's orientation, and no weight is ever gathered. Means over columns and root mean
squares need sums over the processes. These sums are computed for all weights together, so Adafactor
and AdamW need only two reductions (all-reduces) per step.
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

# A function that sums a tensor over all processes, and returns the sum.
Total = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that the optimizer trains.

    Attributes:
      name: the name in Mesh TensorFlow.
      shape: the shape of the whole weight, in Mesh TensorFlow's orientation.
      transposed: whether PyTorch stores the two dimensions in the opposite order.
      local: a function that returns this process's rows, in PyTorch's orientation. Writing to these
        rows changes the model.
      gradient: a function that returns the gradient of these rows, or None if the loss does not
        depend on the weight.
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
    """A variable that the optimizer stores for a weight.

    Attributes:
      weight: the name of the weight to which the slot belongs.
      kind: "vr", "vc", "v" or "m" for Adafactor; "adam_m" or "adam_v" for AdamW.
      value: the values in float32. If `by_rows` is set, they are only this process's rows;
        otherwise they are the whole slot.
      by_rows: whether each process stores only its own rows of the slot.
      shape: the shape of the whole slot, in PyTorch's orientation.
    """

    weight: str
    kind: str
    value: torch.Tensor
    by_rows: bool
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Squares:
    """The sums of squares over all weights in one step.

    Attributes:
      gradient: the sum of squares of the gradients, before any clipping.
      weight: the sum of squares of the weights, before the update.
    """

    gradient: float
    weight: float


_Share = Annotated[float, Range(0, 1)]
_BelowOne = Annotated[float, Range(0, 1 - 1e-9)]
_Positive = Annotated[float, Range(1e-30, 1e30)]
_DECAY = "mesh_tensorflow.optimize.adafactor_decay_rate_pow"


@dataclasses.dataclass(frozen=True)
class _PowerDecay:
    """The parameters of gin's `adafactor_decay_rate_pow`."""

    exponent: Annotated[float, Range(0, 10)]
    offset: int


@dataclasses.dataclass(frozen=True)
class _AdafactorParameters:
    """The parameters of Adafactor in a specification."""

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
    """The parameters that `AdamW` has in both of its forms."""

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
    """The base class of Adafactor and AdamW, with their slots and their gradients."""

    def __init__(self, weights: Sequence[Weight], total: Total) -> None:
        self._weights, self._total = weights, total
        self.slots: dict[str, Slot] = {}

    @abc.abstractmethod
    def step(self, step: int, rate: float, clip_norm: float | None) -> Squares:
        """Updates the weights; returns the sums of squares of the gradients and the old weights.

        Args:
          step: the number of finished steps, from 0.
          rate: the learning rate.
          clip_norm: the norm to which all gradients together are clipped; None for no clipping.
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
        """Returns (weight, this process's rows, their gradient), for each weight with a gradient.

        Args:
          wide: whether the gradients of matrices are cast to float32. The gradients of vectors are
            always cast to float32.
        """
        pairs = [(weight, weight.gradient()) for weight in self._weights]
        return [
            (w, w.local(), g.float() if wide or g.dim() < 2 else g)
            for w, g in pairs
            if g is not None
        ]


def _sum_together(tensors: Sequence[torch.Tensor], total: Total) -> list[torch.Tensor]:
    """Sums several tensors over the processes in one reduction; returns the sums."""
    if not tensors:
        return []
    flat = total(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    sums = flat.split([tensor.numel() for tensor in tensors])
    return [each.view(like.shape) for each, like in zip(sums, tensors, strict=True)]


class Adafactor(Optimizer):
    """Mesh TensorFlow's Adafactor (Shazeer and Stern 2018; mesh_tensorflow/optimize.py).

    The second moments of a matrix are factored if both dimensions have at least
    `min_dim_size_to_factor` elements. In this case, the slots are two vectors of means instead of a
    matrix: "vr" has means over the larger dimension, and "vc" has means over the other dimension.
    """

    def __init__(self, weights: Sequence[Weight], total: Total, **parameters: Any) -> None:
        super().__init__(weights, total)
        self._parameters = parameters
        self._passes = _MATRIX_PASSES
        self._cached_weight_facts: tuple[torch.Tensor, torch.Tensor] | None = None
        # Name of a weight -> its slots along rows and along columns, or its only slot if the weight
        # is not factored.
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
        """Returns the kinds of the slots along rows and columns; (None, None) if not factored."""
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

        `decay` and `rate` may be tensors, whose values a CUDA graph reads again at each replay.

        Args:
          decay: the factor by which the old second moments are multiplied; see the method `decay`.
          rate: the learning rate.
          clip_norm: the norm to which all gradients together are clipped; None for no clipping.
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
        """Compiles the passes over matrices, so that each pass reads the gradient only once."""
        self._passes = _Passes(*(torch.compile(x, dynamic=False) for x in _MATRIX_PASSES))

    def decay(self, step: int) -> float:
        """Returns the factor (from 0 to 1) by which a step multiplies the old second moments."""
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
          trained: the weights, with their rows and gradients.
          slots: the slots of each weight.
          along: for each factored weight, the sum of the gradient's squares in each row; for each
            other weight, the squares of its gradient.
          columns: for each factored weight, the sum of the gradient's squares in each column, over
            all processes.
          clip: the factor by which clipping multiplies the gradients.
          decay: the factor by which the old moments are multiplied.
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
        """Returns this process's part of two sums for a weight, [2].

        The first sum is the sum of the squares of gradient / sqrt(moments). The second sum is the
        sum of the slot along rows, or 0 if the weight is not factored.
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
        """Returns the mean by which the slot "vr" is divided; 1 if there is no such slot.

        Args:
          weight: the weight.
          weight_slots: the slots of the weight. The first slot is the slot along rows.
          row_sum: the sum over the slot along rows, over all processes.
        """
        if len(weight_slots) == 1:
            return torch.ones_like(row_sum)
        # If the slot along rows is "vr", the result is the mean of that slot. Otherwise it is the
        # mean of the other slot.
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
        """Returns the factor by which each weight's update is multiplied, [N].

        Args:
          trained: the N weights, with their rows and gradients.
          rate: the learning rate.
          squares: the sum of squares of each weight, [N].
          update_squares: the sum of squares of each update before this multiplication, [N].
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
        """Returns two tensors: the weights' sizes, and True for weights without parameter scale.

        The tensors are made only once, because copying them to a GPU has to wait for the GPU.
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
    """Adafactor's three passes over a matrix. A compiled pass reads the gradient only once."""

    sums: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    update_squares: Callable[..., torch.Tensor]
    update: Callable[..., None]


def _matrix_sums(
    local: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the sums of squares of the gradient by row and by column, and two total sums, [2].

    The first total sum is over the squares of the gradient. The second is over the squares of
    `local`, this process's rows of the weight.
    """
    square = gradient.float().square()
    rows = square.sum(1)
    return rows, square.sum(0), torch.stack([rows.sum(), local.float().square().sum()])


def _matrix_update_squares(
    gradient: torch.Tensor, along: torch.Tensor, across: torch.Tensor, clip: torch.Tensor
) -> torch.Tensor:
    """Returns the two sums of `Adafactor._update_squares` for a factored matrix.

    Args:
      gradient: the gradient.
      along: the slot along rows.
      across: the slot along columns.
      clip: the factor by which clipping multiplies the gradients.
    """
    weighed = gradient.float().square() @ across.reciprocal()
    return torch.stack([(weighed / along).sum() * clip.square(), along.sum()])


def _update_matrix(
    local: torch.Tensor, gradient: torch.Tensor, along: torch.Tensor, across: torch.Tensor
) -> None:
    """Subtracts the update from a matrix."""
    local.addcmul_(gradient.float() * along[:, None], across.rsqrt(), value=-1.0)


_MATRIX_PASSES = _Passes(_matrix_sums, _matrix_update_squares, _update_matrix)


class AdamW(Optimizer):
    """Adam with decoupled weight decay, and optionally with Adafactor's update bound and scale.

    This class implements `t0.AdamWOptimizer`. With `epsilon_first`, it implements
    `t0.AdamWScaleOptimizer`, the optimizer of nanoT5. `t0.training.optimizers` describes the
    parameters.
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


# The parameters to which `t0.AdamWScaleOptimizer` gives fixed values.
_SCALED = {
    "rms_clipping_threshold": None,
    "multiply_by_parameter_scale": True,
    "exclude_from_weight_decay": ("rms_norm", "layer_norm"),
}
# Selector in gin -> (constructor of the optimizer, class of its parameters).
_KINDS: Mapping[str, tuple[Callable[..., Optimizer], type]] = {
    "mesh_tensorflow.optimize.AdafactorOptimizer": (Adafactor, _AdafactorParameters),
    "t0.AdamWOptimizer": (AdamW, _AdamWParameters),
    "t0.AdamWScaleOptimizer": (functools.partial(AdamW, epsilon_first=True), _AdamParameters),
}


def read_parameters(configured: ConfiguredSpec) -> dict[str, Any]:
    """Checks the parameters of the optimizer that a specification names, and returns them.

    Raises:
      UserError: if this engine does not have the optimizer, or if a parameter is missing, is
        unknown, has a wrong type or is out of range.
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
      configured: the selector and the parameters of the optimizer, as `run.optimizer` binds them.
      weights: the weights that the optimizer trains.
      total: a function that sums a tensor over all processes.
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
    """Returns the number of steps from step `offset` to step `step`, including both."""
    if offset > step:
        raise UserError(f"{name}.offset is {offset:,} at step {step:,}; wanted at most that step")
    return step - offset + 1


def _rows(weight: Weight) -> int:
    """Returns the number of rows of the whole weight, in PyTorch's orientation."""
    return weight.shape[-1 if weight.transposed else 0]


def _clip_factor(square: torch.Tensor, norm: float | None) -> torch.Tensor:
    if norm is None:
        return torch.ones_like(square)
    return norm / square.sqrt().clamp(min=norm)


def _bias_correction(beta: float, step: float) -> float:
    """Returns the ratio between a moving average that started at 0 and an unbiased average."""
    return -math.expm1(step * math.log(beta)) if beta else 1.0
