"""Implements Mesh TensorFlow's optimizers for weights whose rows are sharded over processes.

    optimizer = build(spec.optimizer, weights, total=world.all_reduce_sum)
    squares = optimizer.step(step=0, rate=0.001, clip_norm=None)      # of gradients, of weights
    optimizer.slots["encoder/rms_norm/scale_slot_v"].value

The update rules are those of `t0.training.optimizers`. Each process has its own rows of each
weight, in PyTorch's orientation, and no weight is ever gathered. Means over columns and root mean
squares need sums over the processes. These sums are computed for all weights together, so Adafactor
and AdamW need only two reductions (all-reduces) per step.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch

from t0.checkpoints.shape import factored_axes
from t0.config.plain_data import BelowOne, Count, Range, Share
from t0.config.specification import ConfiguredSpec, read_value
from t0.errors import UserError
from t0.torch.sharding import Weight, compile_pattern

# A function that sums a tensor over all processes, and returns the sum.
Total = Callable[[torch.Tensor], torch.Tensor]


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


_Positive = Annotated[float, Range(1e-30, 1e30)]


@dataclasses.dataclass(frozen=True)
class _PowerDecay:
    """The parameters of gin's `adafactor_decay_rate_pow`."""

    exponent: Annotated[float, Range(0, 10)]
    offset: int


@dataclasses.dataclass(frozen=True)
class _DecaySchedule:
    """A decay rate that depends on the step."""

    selector: Literal["mesh_tensorflow.optimize.adafactor_decay_rate_pow"]
    parameters: _PowerDecay


@dataclasses.dataclass(frozen=True)
class AdafactorParameters:
    """The parameters of Adafactor in a specification."""

    multiply_by_parameter_scale: bool
    decay_rate: _DecaySchedule | Share
    beta1: BelowOne
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
    beta_1: BelowOne
    beta_2: BelowOne
    epsilon: float
    offset: int


@dataclasses.dataclass(frozen=True)
class AdamWParameters(_AdamParameters):
    """The parameters of `t0.AdamWOptimizer`."""

    rms_clipping_threshold: _Positive | None
    multiply_by_parameter_scale: bool
    exclude_from_weight_decay: Sequence[str]
    epsilon_first = False


@dataclasses.dataclass(frozen=True)
class AdamWScaleParameters(_AdamParameters):
    """The parameters of `t0.AdamWScaleOptimizer`, the optimizer of nanoT5; others are fixed."""

    rms_clipping_threshold = None
    multiply_by_parameter_scale = True
    exclude_from_weight_decay = ("rms_norm", "layer_norm")
    epsilon_first = True


class _Trained(NamedTuple):
    """A weight in one step.

    Attributes:
      weight: the weight.
      local: this process's rows of the weight.
      gradient: the gradient of these rows.
      moments: the slots of Adafactor's second moments. If the weight is factored, these are the
        slot along rows and the slot along columns, otherwise there is only one slot.
    """

    weight: Weight
    local: torch.Tensor
    gradient: torch.Tensor
    moments: tuple[Slot, ...] = ()

    @property
    def factored(self) -> bool:
        """Whether the second moments are factored."""
        return len(self.moments) == 2


class Optimizer:
    """The base class of Adafactor and AdamW, with their slots and their gradients."""

    def __init__(self, weights: Sequence[Weight], total: Total, parameters: Any) -> None:
        self._weights, self._total, self._parameters = weights, total, parameters
        self.slots: dict[str, Slot] = {}

    def step(self, step: int, rate: float, clip_norm: float | None) -> list[float]:
        """Updates the weights.

        Args:
          step: the number of finished steps, from 0.
          rate: the learning rate.
          clip_norm: the norm to which all gradients together are clipped; None for no clipping.

        Returns:
          [sum of squares of all gradients before clipping, sum of squares of all weights before the
          update].
        """
        return self.update_weights(self._weights, step, rate, clip_norm).sum(0).tolist()

    def update_weights(
        self,
        weights: Sequence[Weight],
        step: int,
        rate: float,
        clip_norm: float | None,
        square: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Updates those weights that have a gradient; returns the sums of each of them, [N, 2].

        The two sums of a weight are those of `step`. Together, several calls for some weights each
        compute the same as one call for all weights.

        Args:
          weights: the weights to update.
          step: the number of finished steps, from 0.
          rate: the learning rate.
          clip_norm: the norm to which all gradients together are clipped; None for no clipping.
          square: the sum of squares of all gradients; None if `weights` are all trained weights.
        """
        raise NotImplementedError

    def square_sums(self, weights: Sequence[Weight]) -> torch.Tensor:
        """Returns what `update_weights` returns, [N, 2], but changes no weight."""
        raise NotImplementedError

    def _add(self, weight: Weight, kind: str, shape: Sequence[int], *, by_rows: bool) -> Slot:
        local = weight.local()
        local_shape = (local.shape[0], *shape[1:]) if by_rows else shape
        value = torch.zeros(tuple(local_shape), dtype=torch.float32, device=local.device)
        slot_name = (
            f"{weight.name}/{kind}" if kind.startswith("adam") else f"{weight.name}_slot_{kind}"
        )
        self.slots[slot_name] = Slot(weight.name, kind, value, by_rows, tuple(shape))
        return self.slots[slot_name]

    def _collect_trained(self, weights: Sequence[Weight]) -> list[_Trained]:
        """Returns the weights that have a gradient."""
        pairs = [(weight, weight.gradient()) for weight in weights]
        return [_Trained(w, w.local(), g) for w, g in pairs if g is not None]


class Adafactor(Optimizer):
    """Mesh TensorFlow's Adafactor (Shazeer and Stern 2018; mesh_tensorflow/optimize.py).

    The second moments of a matrix are factored if both dimensions have at least
    `min_dim_size_to_factor` elements. In this case, the slots are two vectors of means instead of a
    matrix: "vr" has means over the larger dimension, and "vc" has means over the other dimension.

    Args:
      weights: the weights that the optimizer trains.
      total: a function that sums a tensor over all processes.
      parameters: the parameters in the specification.
      compiled: whether the passes over matrices are compiled, so that each of them reads the
        gradient only once.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        total: Total,
        parameters: AdafactorParameters,
        *,
        compiled: bool = False,
    ) -> None:
        super().__init__(weights, total, parameters)
        of_matrices = _PASSES
        if compiled:
            of_matrices = _Passes(*(torch.compile(x, dynamic=False) for x in _PASSES))
        self._passes = {False: _PASSES, True: of_matrices}  # by whether a weight is factored
        self._moments: dict[str, tuple[Slot, ...]] = {}
        self._momentum: dict[str, Slot] = {}
        # Names of weights -> the facts about them that `_compute_scales` needs.
        self._cached_facts: dict[tuple[str, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        for weight in weights:
            shape = (_rows(weight), *weight.local().shape[1:])
            if not self._is_factored(weight):
                self._moments[weight.name] = (self._add(weight, "v", shape, by_rows=True),)
            else:
                vr_is_along_rows = factored_axes(weight.shape)[0] == (0 if weight.transposed else 1)
                kinds = ("vr", "vc") if vr_is_along_rows else ("vc", "vr")
                self._moments[weight.name] = (
                    self._add(weight, kinds[0], shape[:1], by_rows=True),
                    self._add(weight, kinds[1], shape[1:], by_rows=False),
                )
            if parameters.beta1:
                self._momentum[weight.name] = self._add(weight, "m", shape, by_rows=True)

    def _is_factored(self, weight: Weight) -> bool:
        parameters, shape = self._parameters, weight.shape
        is_large = len(shape) == 2 and min(shape) >= parameters.min_dim_size_to_factor
        return parameters.factored and is_large

    def update_weights(
        self,
        weights: Sequence[Weight],
        step: int,
        rate: float,
        clip_norm: float | None,
        square: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Updates some weights; see `Optimizer.update_weights`."""
        return self._update(weights, self.decay(step), rate, clip_norm, square)

    def square_sums(self, weights: Sequence[Weight]) -> torch.Tensor:
        """Returns the sums of squares of some weights; see `Optimizer.square_sums`."""
        trained = self._add_moments(self._collect_trained(weights))
        sums = [self._passes[x.factored].sums(x.local, x.gradient, x.factored) for x in trained]
        return self._total(torch.stack([totals for *_, totals in sums]))

    def decay(self, step: int) -> float:
        """Returns the factor (from 0 to 1) by which a step multiplies the old second moments."""
        decay = self._parameters.decay_rate
        if isinstance(decay, float):
            return decay
        steps = _steps_since(step, decay.parameters.offset, "adafactor_decay_rate_pow")
        return 1.0 - float(steps) ** -decay.parameters.exponent

    def update(
        self, decay: float | torch.Tensor, rate: float | torch.Tensor, clip_norm: float | None
    ) -> torch.Tensor:
        """Updates the weights without waiting for a GPU; returns the sums of `step` as a tensor.

        `decay` and `rate` may be tensors, whose values a CUDA graph reads again at each replay.

        Args:
          decay: the factor by which the old second moments are multiplied; see the method `decay`.
          rate: the learning rate.
          clip_norm: the norm to which all gradients together are clipped; None for no clipping.
        """
        return self._update(self._weights, decay, rate, clip_norm).sum(0)

    def _add_moments(self, trained: Sequence[_Trained]) -> list[_Trained]:
        return [each._replace(moments=self._moments[each.weight.name]) for each in trained]

    def _update(
        self,
        weights: Sequence[Weight],
        decay: float | torch.Tensor,
        rate: float | torch.Tensor,
        clip_norm: float | None,
        square: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Updates some weights; the arguments and the result are those of `update_weights`."""
        trained = self._add_moments(self._collect_trained(weights))
        passes = [self._passes[each.factored] for each in trained]
        sums = [
            x.sums(w.local, w.gradient, w.factored) for w, x in zip(trained, passes, strict=True)
        ]
        rows, columns, totals = zip(*sums, strict=True)
        *columns, square_sums = _sum_together([*columns, torch.stack(totals)], self._total)
        clip = _clip_factor(square_sums, clip_norm, square)
        for each, *by_dimension in zip(trained, rows, columns, strict=True):
            self._update_moments(each, by_dimension, clip, decay)
        moments = [[slot.value for slot in each.moments] for each in trained]
        sums = [
            each_pass.update_sums(each.gradient, clip, *values)
            for each, each_pass, values in zip(trained, passes, moments, strict=True)
        ]
        update_sums = self._total(torch.stack(sums))
        row_sums = update_sums[:, 1].unbind()
        means = torch.stack([_moment_mean(*each) for each in zip(trained, row_sums, strict=True)])
        scales = clip * self._compute_scales(
            trained, rate, square_sums[:, 1], update_sums[:, 0] * means
        )
        beta1 = self._parameters.beta1
        for each, each_pass, (first, *others), mean, scale in zip(
            trained, passes, moments, means.unbind(), scales.unbind(), strict=True
        ):
            factors = [(first / mean).rsqrt() * scale, *others]
            if beta1:
                momentum = self._momentum[each.weight.name].value.mul_(beta1)
                each_pass.add(momentum, each.gradient, 1.0 - beta1, *factors)
                each.local.sub_(momentum)
            else:
                each_pass.add(each.local, each.gradient, -1.0, *factors)
        return square_sums

    def _update_moments(
        self,
        trained: _Trained,
        sums: Sequence[torch.Tensor],
        clip: torch.Tensor,
        decay: float | torch.Tensor,
    ) -> None:
        """Updates the second moments of a weight.

        Args:
          trained: the weight.
          sums: the sums of the gradient's squares in each row and, over all processes, in each
            column. If the weight is not factored, the squares and an empty tensor.
          clip: the factor by which clipping multiplies the gradients.
          decay: the factor by which the old moments are multiplied.
        """
        if trained.factored:
            sums = [sums[0] / trained.gradient.shape[1], sums[1] / _rows(trained.weight)]
        for slot, square in zip(trained.moments, sums, strict=False):
            square = square * clip.square() + self._parameters.epsilon1
            slot.value.mul_(decay).add_(square * (1.0 - decay))

    def _compute_scales(
        self,
        trained: Sequence[_Trained],
        rate: float | torch.Tensor,
        squares: torch.Tensor,
        update_squares: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the factor by which each weight's update is multiplied, [N].

        Args:
          trained: the N weights.
          rate: the learning rate.
          squares: the sum of squares of each weight, [N].
          update_squares: the sum of squares of each update before this multiplication, [N].
        """
        parameters = self._parameters
        names = tuple(each.weight.name for each in trained)
        if names not in self._cached_facts:  # made only once, because copying to a GPU waits for it
            excluded = parameters.exclude_from_parameter_scale or ()
            self._cached_facts[names] = (
                torch.tensor([float(x.weight.size) for x in trained], device=squares.device),
                torch.tensor([any(x in n for x in excluded) for n in names], device=squares.device),
            )
        sizes, unscaled = self._cached_facts[names]
        scales = torch.ones_like(squares) * rate
        if parameters.multiply_by_parameter_scale:
            factors = (squares / sizes).sqrt().clamp(min=parameters.epsilon2)
            scales = scales * torch.where(unscaled, 1.0, factors)
        if parameters.clipping_threshold is not None:
            rms = (update_squares / sizes).sqrt()
            scales = scales / (rms / parameters.clipping_threshold).clamp(min=1.0)
        return scales


def _sum_together(tensors: Sequence[torch.Tensor], total: Total) -> list[torch.Tensor]:
    """Sums several tensors over the processes in one reduction; returns the sums."""
    flat = total(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    sums = flat.split([tensor.numel() for tensor in tensors])
    return [each.view(like.shape) for each, like in zip(sums, tensors, strict=True)]


def _moment_mean(trained: _Trained, row_sum: torch.Tensor) -> torch.Tensor:
    """Returns the mean of the slot "vr" of a factored weight, or an equal mean; otherwise 1.

    Args:
      trained: the weight.
      row_sum: the sum over the slot along rows, over all processes.
    """
    if not trained.factored:
        return torch.ones_like(row_sum)
    # If the slot along rows is "vr", the result is the mean of that slot. Otherwise it is the mean
    # of the other slot.
    along, across = trained.moments
    return row_sum / _rows(trained.weight) if along.kind == "vr" else across.value.mean()


class _Passes(NamedTuple):
    """Adafactor's three passes over a weight. A compiled pass reads the gradient only once."""

    sums: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    update_sums: Callable[..., torch.Tensor]
    add: Callable[..., None]


def _square_sums(
    local: torch.Tensor, gradient: torch.Tensor, factored: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the sums of squares of the gradient by row and by column, and two total sums, [2].

    If the weight is not factored, the squares themselves replace the sums by row, and an empty
    tensor the sums by column. The first total sum is over the squares of the gradient. The second
    is over the squares of `local`, this process's rows of the weight.
    """
    squares = gradient.float().square()
    rows = squares.sum(1) if factored else squares
    columns = squares.sum(0) if factored else squares.new_empty(0)
    return rows, columns, torch.stack([rows.sum(), local.float().square().sum()])


def _update_sums(
    gradient: torch.Tensor,
    clip: torch.Tensor,
    along: torch.Tensor,
    across: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns this process's part of two sums for a weight, [2].

    The first sum is the sum of the squares of gradient / sqrt(moments). The second sum is the sum
    of the slot along rows.

    Args:
      clip: the factor by which clipping multiplies the gradients.
      along: the slot along rows, or the only slot.
      across: the slot along columns, if the weight is factored.
    """
    squares = gradient.float().square()
    if across is not None:
        squares = squares @ across.reciprocal()
    return torch.stack([(squares / along).sum() * clip.square(), along.sum()])


def _add_update(
    target: torch.Tensor,
    gradient: torch.Tensor,
    factor: float,
    along: torch.Tensor,
    across: torch.Tensor | None = None,
) -> None:
    """Adds the update, multiplied by `factor`, to a weight or to its momentum."""
    update = gradient.float()
    if across is not None:
        update, along = update * along[:, None], across.rsqrt()
    target.addcmul_(update, along, value=factor)


_PASSES = _Passes(_square_sums, _update_sums, _add_update)


class AdamW(Optimizer):
    """Adam with decoupled weight decay, and optionally with Adafactor's update bound and scale.

    This class implements `t0.AdamWOptimizer` and `t0.AdamWScaleOptimizer`.
    `t0.training.optimizers` describes the parameters.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        total: Total,
        parameters: AdamWParameters | AdamWScaleParameters,
        *,
        compiled: bool = False,
    ) -> None:
        del compiled  # only Adafactor has passes to compile
        super().__init__(weights, total, parameters)
        for weight in weights:
            shape = (_rows(weight), *weight.local().shape[1:])
            for kind in ("adam_m", "adam_v"):
                self._add(weight, kind, shape, by_rows=True)

    def square_sums(self, weights: Sequence[Weight]) -> torch.Tensor:
        """Returns the sums of squares of some weights; see `Optimizer.square_sums`."""
        return self._add_squares(self._collect_wide(weights))

    def _collect_wide(self, weights: Sequence[Weight]) -> list[_Trained]:
        """Returns the weights that have a gradient, with the gradient in float32."""
        trained = self._collect_trained(weights)
        return [each._replace(gradient=each.gradient.float()) for each in trained]

    def _add_squares(self, trained: Sequence[_Trained]) -> torch.Tensor:
        sums = [
            torch.stack([each.gradient.square().sum(), each.local.float().square().sum()])
            for each in trained
        ]
        return self._total(torch.stack(sums))

    def update_weights(
        self,
        weights: Sequence[Weight],
        step: int,
        rate: float,
        clip_norm: float | None,
        square: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Updates some weights; see `Optimizer.update_weights`."""
        parameters, trained = self._parameters, self._collect_wide(weights)
        squares = self._add_squares(trained)
        clip = _clip_factor(squares, clip_norm, square)
        steps = _steps_since(step, parameters.offset, "AdamWOptimizer")
        corrections = [_bias_correction(x, steps) for x in (parameters.beta_1, parameters.beta_2)]
        updates = [self._adam(each.weight, each.gradient * clip, *corrections) for each in trained]
        update_squares = self._total(torch.stack([x.square().sum() for x in updates]))
        for (weight, local, *_), update, square, update_square in zip(
            trained, updates, squares, update_squares, strict=True
        ):
            if parameters.rms_clipping_threshold is not None:
                rms = (update_square / weight.size).sqrt()
                update /= (rms / parameters.rms_clipping_threshold).clamp(min=1.0)
            if parameters.multiply_by_parameter_scale:
                update *= (square[1] / weight.size).sqrt().clamp(min=1e-3)
            excluded = any(re.search(x, weight.name) for x in parameters.exclude_from_weight_decay)
            if parameters.weight_decay_rate and not excluded:
                update += local * parameters.weight_decay_rate
            local.sub_(update, alpha=rate)
        return squares

    def _adam(
        self, weight: Weight, gradient: torch.Tensor, mean_bias: float, square_bias: float
    ) -> torch.Tensor:
        parameters = self._parameters
        mean, square = (self.slots[f"{weight.name}/{kind}"].value for kind in ("adam_m", "adam_v"))
        mean.mul_(parameters.beta_1).add_(gradient, alpha=1.0 - parameters.beta_1)
        square.mul_(parameters.beta_2).addcmul_(gradient, gradient, value=1.0 - parameters.beta_2)
        epsilon = parameters.epsilon
        if parameters.epsilon_first:
            epsilon /= math.sqrt(square_bias)
        return (mean / mean_bias) / ((square / square_bias).sqrt() + epsilon)


# Selector in gin -> (constructor of the optimizer, class of its parameters).
_KINDS: Mapping[str, tuple[Callable[..., Optimizer], type]] = {
    "mesh_tensorflow.optimize.AdafactorOptimizer": (Adafactor, AdafactorParameters),
    "t0.AdamWOptimizer": (AdamW, AdamWParameters),
    "t0.AdamWScaleOptimizer": (AdamW, AdamWScaleParameters),
}


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
      UserError: if this engine does not have the optimizer, or if a parameter is missing, is
        unknown, has a wrong type or is out of range.
    """
    if configured.selector not in _KINDS:
        raise UserError(
            f"run.optimizer is @{configured.selector}, which the PyTorch engine does not have; "
            f"expected {', '.join(f'@{name}' for name in _KINDS)}"
        )
    constructor, kind = _KINDS[configured.selector]
    values = {name: x for name, x in configured.parameters.items() if name != "learning_rate"}
    parameters = read_value(values, kind, "optimizer.parameters")
    for pattern in getattr(parameters, "exclude_from_weight_decay", ()):
        compile_pattern(pattern, "AdamWOptimizer.exclude_from_weight_decay")
    return constructor(weights, total, parameters, compiled=compiled)


def _steps_since(step: int, offset: int, name: str) -> int:
    """Returns the number of steps from step `offset` to step `step`, including both."""
    if offset > step:
        raise UserError(f"{name}.offset is {offset:,} at step {step:,}; expected at most that step")
    return step - offset + 1


def _rows(weight: Weight) -> int:
    """Returns the number of rows of the whole weight, in PyTorch's orientation."""
    return weight.shape[-1 if weight.transposed else 0]


def _clip_factor(
    square_sums: torch.Tensor, norm: float | None, square: torch.Tensor | None
) -> torch.Tensor:
    """Returns the factor by which clipping multiplies gradients.

    Args:
      square_sums: the sums of squares of the updated weights' gradients in column 0, [N, 2].
      norm: the norm to which all gradients together are clipped; None for no clipping.
      square: the sum of squares of all gradients; None if `square_sums` has all of them.
    """
    if norm is None:
        return torch.ones_like(square_sums[0, 0])
    square = square_sums.sum(0)[0] if square is None else square
    return norm / square.sqrt().clamp(min=norm)


def _bias_correction(beta: float, step: float) -> float:
    """Returns the ratio between a moving average that started at 0 and an unbiased average."""
    return -math.expm1(step * math.log(beta)) if beta else 1.0
