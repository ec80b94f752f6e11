"""Defines optimizers that gin can bind to `run.optimizer`, in addition to those of Mesh TensorFlow.

    run.optimizer = @t0.AdamWOptimizer
    AdamWOptimizer.weight_decay_rate = 0.01
    run.optimizer = @t0.MomentumSGDOptimizer
    apply_updates.clip_gradient_norm = 1.0          # for any optimizer

The training graph calls `apply_updates`. If the optimizer is Mesh TensorFlow's Adafactor, and the
mesh does not split a variable, the module `adafactor` updates the variable. This takes fewer passes
over the weights, and the same passes compute the norms of gradients and weights. Slots have Mesh
TensorFlow's names.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

from t0.compat import gin, mtf, optimize
from t0.compat import tf1 as tf
from t0.training import adafactor


@dataclasses.dataclass(frozen=True)
class Updates:
    """The updates of one training step.

    Attributes:
      operations: the assignments, as operations of Mesh TensorFlow.
      gradient_square: scalar, the sum of the squared gradients before clipping.
      weight_square: scalar, the sum of the squared weights before the update.
    """

    operations: list[mtf.Operation]
    gradient_square: mtf.Tensor
    weight_square: mtf.Tensor


@gin.configurable(
    "apply_updates", module="t0", denylist=["optimizer", "gradients", "variables", "mesh_impl"]
)
def apply_updates(
    optimizer: optimize.Optimizer,
    gradients: Sequence[mtf.Tensor | None],
    variables: Sequence[mtf.Variable],
    *,
    mesh_impl: Any,
    clip_gradient_norm: float | None = None,
) -> Updates:
    """Updates variables with their gradients.

    Args:
      optimizer: an optimizer of Mesh TensorFlow or of this module.
      gradients: the gradient of each variable; None if the loss does not depend on the variable.
      variables: the variables, in the order of their gradients.
      mesh_impl: the mesh, which decides which variables are split.
      clip_gradient_norm: the maximum global norm of the gradients. If the norm is larger, the
        gradients are scaled down to the maximum. None for no limit.
    """
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    clipped = clip_gradient_norm is not None
    squares = [_sum_of_squares(g) for g, _ in pairs] if clipped else []
    if clipped:
        norm = mtf.sqrt(mtf.add_n(squares))
        scale = clip_gradient_norm / mtf.maximum(norm, clip_gradient_norm)
        pairs = [(mtf.to_float(g) * scale, v) for g, v in pairs]
    operations: list[mtf.Operation] = []
    weights = []
    for gradient, variable in pairs:
        if adafactor.covers(optimizer, variable, mesh_impl):
            updates, square, weight = adafactor.apply(optimizer, gradient, variable, mesh_impl)
            operations += updates
        else:
            operations += optimizer.apply_grad(gradient, variable)
            square, weight = None, _sum_of_squares(variable.value)
        if not clipped:
            squares.append(square if square is not None else _sum_of_squares(gradient))
        weights.append(weight)
    return Updates(operations, mtf.add_n(squares), _sum_in_order(weights))


def _sum_in_order(scalars: Sequence[mtf.Tensor]) -> mtf.Tensor:
    # AddN is not used here, because the order in which it adds its inputs depends on which other
    # operations still need them. The update of a variable also reads the variable's sum of squares.
    # So with AddN, the last bit of the result would depend on the order of computation.
    return mtf.reduce_sum(mtf.stack(scalars, "sums"))


def _sum_of_squares(x: mtf.Tensor) -> mtf.Tensor:
    return mtf.reduce_sum(mtf.square(mtf.to_float(x)))


@gin.configurable("AdamWOptimizer", module="t0", denylist=["learning_rate"])
class AdamWOptimizer(optimize.Optimizer):
    """Adam with decoupled weight decay. Adafactor's clipping and scaling are optional.

    `rms_clipping_threshold` limits the root mean square of the update, and
    `multiply_by_parameter_scale` multiplies the update by the parameter's root mean square, as
    Adafactor does. Bias correction assumes that both moving averages were zero at step `offset`.

    Args:
      learning_rate: a number or scalar.
      weight_decay_rate: the weight decay. A step subtracts learning rate * weight decay * weight.
      beta_1: the decay of the moving average of the gradients.
      beta_2: the decay of the moving average of the squared gradients.
      epsilon: the number that is added to the square root of the squared gradients' average.
      rms_clipping_threshold: the maximum root mean square of the update; None for no limit.
      multiply_by_parameter_scale: whether the update is relative to the parameter's root mean
        square.
      exclude_from_weight_decay: regular expressions that match the names of variables without
        weight decay.
      offset: the step at which both moving averages were zero: the step of the initial checkpoint.
    """

    def __init__(  # noqa: PLR0913 (each is a gin parameter)
        self,
        learning_rate: Any,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        rms_clipping_threshold: float | None = None,
        multiply_by_parameter_scale: bool = False,
        exclude_from_weight_decay: Sequence[str] = ("rms_norm", "layer_norm"),
        offset: int = 0,
    ) -> None:
        self._epsilon_before_correction = False
        self._learning_rate = learning_rate
        self._weight_decay_rate = weight_decay_rate
        self._betas = beta_1, beta_2
        self._epsilon = epsilon
        self._clip = rms_clipping_threshold
        self._scaled = multiply_by_parameter_scale
        self._exclude = tuple(exclude_from_weight_decay)
        self._offset = offset

    def apply_grad(self, grad: mtf.Tensor | None, var: mtf.Variable) -> list[mtf.Operation]:
        """Returns the assignments for one variable."""
        if grad is None:
            return []
        grad, old = mtf.to_float(grad), mtf.to_float(var.value)
        step = tf.cast(tf.train.get_or_create_global_step() - self._offset, tf.float32) + 1.0
        moments, means = [], []
        for name, beta, value in zip("mv", self._betas, (grad, mtf.square(grad)), strict=True):
            slot = _zeros_like(var, f"/adam_{name}")
            mean = slot * beta + value * (1.0 - beta)
            moments.append(mtf.assign(slot, mean))
            means.append(mean * (1.0 / _bias_correction(beta, step)))
        epsilon = self._epsilon
        if self._epsilon_before_correction:
            epsilon *= tf.math.rsqrt(_bias_correction(self._betas[1], step))
        update = means[0] / (mtf.sqrt(means[1]) + epsilon)
        if self._clip is not None:
            update /= mtf.maximum(1.0, optimize.reduce_rms(update) / self._clip)
        if self._scaled:
            update *= mtf.maximum(optimize.reduce_rms(old), 1e-3)
        if self._weight_decay_rate and not any(re.search(x, var.name) for x in self._exclude):
            update += old * self._weight_decay_rate
        return [*moments, mtf.assign_sub(var, update * self._learning_rate)]


@gin.configurable("AdamWScaleOptimizer", module="t0", denylist=["learning_rate"])
class AdamWScaleOptimizer(AdamWOptimizer):
    """nanoT5's AdamW, whose updates are relative to each parameter's root mean square.

    The update rule is that of `AdamWScale` (github.com/PiotrNawrot/nanoT5, copied_utils.py). Adam's
    update of a tensor is multiplied by the tensor's root mean square, but at least by 1e-3, as in
    Adafactor. `epsilon` is added before bias correction.

    Args:
      learning_rate: a number or scalar. nanoT5 pretrains with a peak of 0.02.
      weight_decay_rate: the weight decay. A step subtracts learning rate * weight decay * weight.
      beta_1: the decay of the moving average of the gradients.
      beta_2: the decay of the moving average of the squared gradients.
      epsilon: the number that is added to the square root of the squared gradients' average.
      offset: the step at which both moving averages were zero: the step of the initial checkpoint.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        offset: int = 0,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay_rate,
            beta_1,
            beta_2,
            epsilon,
            multiply_by_parameter_scale=True,
            offset=offset,
        )
        self._epsilon_before_correction = True


@gin.configurable("MomentumSGDOptimizer", module="t0", denylist=["learning_rate"])
class MomentumSGDOptimizer(optimize.Optimizer):
    """Stochastic gradient descent with plain momentum or Nesterov momentum.

    Args:
      learning_rate: a number or scalar.
      momentum: the decay of the velocity. The velocity is a decayed sum of gradients, not of
        updates. So a change of the learning rate takes full effect immediately.
      nesterov: whether to use Nesterov momentum.
    """

    def __init__(self, learning_rate: Any, momentum: float = 0.9, nesterov: bool = False) -> None:
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._nesterov = nesterov

    def apply_grad(self, grad: mtf.Tensor | None, var: mtf.Variable) -> list[mtf.Operation]:
        """Returns the assignments for one variable."""
        if grad is None:
            return []
        grad = mtf.to_float(grad)
        slot = _zeros_like(var, "/momentum_v")
        velocity = slot * self._momentum + grad
        update = velocity * self._momentum + grad if self._nesterov else velocity
        return [mtf.assign(slot, velocity), mtf.assign_sub(var, update * self._learning_rate)]


def _bias_correction(beta: float, step: tf.Tensor) -> tf.Tensor:
    # This is 1 - beta ** step. If beta is close to 1, the formula with `**` loses digits in
    # float32, but expm1 does not.
    return -tf.math.expm1(step * math.log(beta)) if beta else tf.constant(1.0)


def _zeros_like(var: mtf.Variable, suffix: str) -> mtf.Tensor:
    return mtf.get_variable(
        var.mesh, var.name + suffix, var.shape, initializer=tf.zeros_initializer(), trainable=False
    )
