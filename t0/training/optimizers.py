"""Defines optimizers that gin can bind to `run.optimizer`, in addition to those of Mesh TensorFlow.

    run.optimizer = @t0.AdamWOptimizer
    AdamWOptimizer.weight_decay_rate = 0.01
    run.optimizer = @t0.MomentumSGDOptimizer
    apply_updates.clip_gradient_norm = 1.0          # for any optimizer

The training graph calls `apply_updates`. Slots have Mesh TensorFlow's names.

Adafactor is the optimizer of Shazeer and Stern (2018). In Mesh TensorFlow it is a chain of
operations, each of which reads or writes a tensor as large as the weights. If the mesh does not
split a variable, `update_by_adafactor` updates it in fewer passes: XLA compiles the step of a large
matrix into four passes over its gradient. The same passes compute the norms of gradients and
weights. The gradient of an embedding stays sparse. It has only the rows of tokens that occur in the
batch, because the update of all other rows is zero.

Legend of Adafactor: [a, b] is the shape of the weights, and n the number of rows that have a
gradient. vr are the second moments averaged over the larger dimension, and vc are the second
moments averaged over the smaller dimension.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from t0.compat import gin, mtf, optimize
from t0.compat import tf1 as tf
from t0.config.plain_data import BelowOne, NotNegative
from t0.mesh.fused import column_sum, row_sum, xla_compiled
from t0.mesh.gather_embedding import looked_up_rows

# An embedding of V rows gets a sparse update if a batch looks up at most V / _SPARSE of its rows.
_SPARSE = 4


@gin.configurable(
    "apply_updates", module="t0", denylist=["optimizer", "gradients", "variables", "mesh_impl"]
)
def apply_updates(
    optimizer: optimize.Optimizer,
    gradients: Sequence[mtf.Tensor | None],
    variables: Sequence[mtf.Variable],
    *,
    mesh_impl: Any,
    clip_gradient_norm: NotNegative | None = None,
) -> tuple[list[mtf.Operation], mtf.Tensor, mtf.Tensor]:
    """Updates variables with their gradients.

    Args:
      optimizer: an optimizer of Mesh TensorFlow or of this module.
      gradients: the gradient of each variable; None if the loss does not depend on the variable.
      variables: the variables, in the order of their gradients.
      mesh_impl: the mesh, which decides which variables are split.
      clip_gradient_norm: the maximum global norm of the gradients. If the norm is larger, the
        gradients are scaled down to the maximum. None for no limit.

    Returns:
      the assignments; two scalars: the sum of the squared gradients before clipping, and the sum of
      the squared weights before the update.
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
        if _is_for_adafactor(optimizer, variable, mesh_impl):
            update = update_by_adafactor(optimizer, gradient, variable, mesh_impl)
            operations.append(update)
            square, weight = update.outputs
        else:
            operations += optimizer.apply_grad(gradient, variable)
            square, weight = None, _sum_of_squares(variable.value)
        if not clipped:
            squares.append(square if square is not None else _sum_of_squares(gradient))
        weights.append(weight)
    return operations, mtf.add_n(squares), _sum_in_order(weights)


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
        weight_decay_rate: NotNegative = 0.0,
        beta_1: BelowOne = 0.9,
        beta_2: BelowOne = 0.999,
        epsilon: NotNegative = 1e-8,
        rms_clipping_threshold: NotNegative | None = None,
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
            slot = _zeros(var, f"/adam_{name}")
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
        weight_decay_rate: NotNegative = 0.0,
        beta_1: BelowOne = 0.9,
        beta_2: BelowOne = 0.999,
        epsilon: NotNegative = 1e-6,
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

    def __init__(
        self, learning_rate: Any, momentum: BelowOne = 0.9, nesterov: bool = False
    ) -> None:
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._nesterov = nesterov

    def apply_grad(self, grad: mtf.Tensor | None, var: mtf.Variable) -> list[mtf.Operation]:
        """Returns the assignments for one variable."""
        if grad is None:
            return []
        grad = mtf.to_float(grad)
        slot = _zeros(var, "/momentum_v")
        velocity = slot * self._momentum + grad
        update = velocity * self._momentum + grad if self._nesterov else velocity
        return [mtf.assign(slot, velocity), mtf.assign_sub(var, update * self._learning_rate)]


def _bias_correction(beta: float, step: tf.Tensor) -> tf.Tensor:
    # This is 1 - beta ** step. If beta is close to 1, the formula with `**` loses digits in
    # float32, but expm1 does not.
    return -tf.math.expm1(step * math.log(beta)) if beta else tf.constant(1.0)


def _zeros(var: mtf.Variable, suffix: str, shape: mtf.Shape | None = None) -> mtf.Tensor:
    """Returns a slot of a variable, which starts with zeros; by default in its shape."""
    shape, zeros = shape or var.shape, tf.zeros_initializer()
    return mtf.get_variable(var.mesh, var.name + suffix, shape, initializer=zeros, trainable=False)


def _is_for_adafactor(optimizer: Any, variable: mtf.Variable, mesh_impl: Any) -> bool:
    """Returns whether `update_by_adafactor` updates a variable as the optimizer itself would."""
    return (
        isinstance(optimizer, optimize.AdafactorOptimizer)
        and _is_unsplit(variable.shape, mesh_impl)
        and not optimizer._beta1
        and not optimizer._stacked_dim_names
        and variable.shape.ndims <= 2
    )


def update_by_adafactor(
    optimizer: Any, gradient: mtf.Tensor, variable: mtf.Variable, mesh_impl: Any
) -> mtf.Operation:
    """Updates a variable with Adafactor in few passes over the weights.

    Args:
      optimizer: Mesh TensorFlow's `AdafactorOptimizer`, without momentum.
      gradient: the gradient, with the variable's shape.
      variable: the variable to update, which the mesh does not split.
      mesh_impl: the mesh on which the graph is lowered.

    Returns:
      the operation that assigns. Its outputs are two scalars: the gradient's sum of squares and the
      variable's sum of squares.
    """
    rule, dims = _rule(optimizer, variable), variable.shape.dims
    names = ("_slot_vr", "_slot_vc") if rule.axes else ("_slot_v",)
    shapes = [variable.shape - dims[axis] for axis in rule.axes or ()] or [variable.shape]
    slots = [
        _zeros(variable, name, shape).operation for name, shape in zip(names, shapes, strict=True)
    ]
    looked_up = _find_lookups(gradient, mesh_impl) if rule.axes else []
    rates = optimizer._learning_rate, optimizer._decay_rate
    return _AdafactorStep(rule, rates, [variable, *slots], gradient, looked_up)


class _AdafactorStep(mtf.Operation):
    """The operation that assigns new values to a variable and its slots.

    The outputs are the gradient's sum of squares and the variable's sum of squares.

    Args:
      rule: the hyperparameters of the variable's steps.
      rates: the learning rate and the decay of this step.
      assigned: the variable and its second moments.
      looked_up: the gradient in sparse form, as pairs (gradient of rows, ids). It is read instead
        of `gradient`. [] for weights without a sparse gradient.
    """

    def __init__(
        self,
        rule: "AdafactorRule",
        rates: tuple[Any, Any],
        assigned: Sequence[mtf.Variable],
        gradient: mtf.Tensor,
        looked_up: Sequence[tuple[mtf.Tensor, mtf.Tensor]],
    ) -> None:
        operands = [x for pair in looked_up for x in pair] or [gradient]
        super().__init__(operands, name="adafactor")
        self._by_rows = bool(looked_up)
        self._rule, self._rates, self._assigned = rule, rates, assigned
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32) for _ in range(2)]

    def lower(self, lowering: mtf.Lowering) -> None:
        assigned: list[tf.Operation] = []

        def on_device(*slices: Any) -> tuple[tf.Tensor, ...]:
            operands, old_values = slices[: len(self.inputs)], slices[len(self.inputs) :]
            with tf.name_scope("assign"):
                g, ids = _distinct_rows(operands) if self._by_rows else (*operands, None)
                rates = tuple(tf.cast(rate, tf.float32) for rate in self._rates)
                weights, *old = map(tf.convert_to_tensor, old_values)
                sums, new = adafactor_step(self._rule, rates, g, weights, tuple(old), ids)
                assigned.extend(map(tf.assign, old_values, new))
            return sums

        old_values = (lowering.variables[variable].laid_out_tensor for variable in self._assigned)
        sums = lowering.mesh_impl(self).slicewise(
            on_device, *(lowering.tensors[x] for x in self.inputs), *old_values
        )
        for output, value in zip(self.outputs, sums, strict=True):
            lowering.set_tensor_lowering(output, value)
        lowering.operations[self] = tf.group(assigned)


def _is_unsplit(shape: mtf.Shape, mesh_impl: Any) -> bool:
    axes = mesh_impl.tensor_layout(shape).tensor_axis_to_mesh_axis
    return all(axis is None for axis in axes)


def _find_lookups(gradient: mtf.Tensor, mesh_impl: Any) -> list[tuple[mtf.Tensor, mtf.Tensor]]:
    """Returns (gradient of the rows, their ids) for each embedding lookup; [] for other weights."""
    lookups = looked_up_rows(gradient) or []
    few = _SPARSE * sum(ids.shape.size for _, ids in lookups) <= gradient.shape.dims[0].size
    return lookups if few and all(_is_unsplit(ids.shape, mesh_impl) for _, ids in lookups) else []


def _distinct_rows(pairs: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the gradients of rows that have the same id.

    Args:
      pairs: the gradient [..., b] and the ids [...] of the first lookup, then the gradient and the
        ids of the next lookup, and so on.

    Returns:
      the sums [n, b], and the distinct ids [n] to which they belong.
    """
    ids = [tf.reshape(x, [-1]) for x in pairs[1::2]]
    distinct, positions = tf.unique(tf.concat(ids, 0))
    positions = tf.split(positions, [int(x.shape[0]) for x in ids])
    # Sum in float32 and separately for each lookup, as in the sum that makes a dense gradient.
    sums = [
        tf.math.unsorted_segment_sum(
            tf.cast(tf.reshape(dy, [-1, dy.shape[-1]]), tf.float32), position, tf.size(distinct)
        )
        for dy, position in zip(pairs[::2], positions, strict=True)
    ]
    return tf.add_n(sums), distinct


class AdafactorRule(NamedTuple):
    """The hyperparameters of a variable's steps.

    Attributes:
      axes: the axis over which vr is averaged, then the axis over which vc is averaged; None if the
        second moments are not factored.
      clip: the largest root mean square of the update; None for no limit.
      epsilon1: the number that is added to squared gradients.
      epsilon2: the minimum of the factor by which a relative update is multiplied.
      scaled: whether the update is relative to the parameter's root mean square.
    """

    axes: tuple[int, int] | None
    clip: float | None
    epsilon1: float
    epsilon2: float
    scaled: bool


def _rule(optimizer: Any, variable: mtf.Variable) -> AdafactorRule:
    # The larger dimension comes first.
    factored = optimizer._factored_dims(variable.shape)
    excluded = any(pattern in variable.name for pattern in optimizer._exclude_from_parameter_scale)
    return AdafactorRule(
        axes=tuple(map(variable.shape.dims.index, factored)) if factored else None,
        clip=optimizer._clipping_threshold,
        epsilon1=optimizer._epsilon1,
        epsilon2=optimizer._epsilon2,
        scaled=optimizer._multiply_by_parameter_scale and not excluded,
    )


# ((sum of squares of the gradient, sum of squares of the weights), (the new weights, the new second
# moments)).
Tensors = tuple[tf.Tensor, ...]
StepResult = tuple[tuple[tf.Tensor, tf.Tensor], Tensors]


def adafactor_step(
    rule: AdafactorRule,
    rates: Tensors,
    gradient: tf.Tensor,
    weights: tf.Tensor,
    old: Tensors,
    ids: tf.Tensor | None = None,
) -> StepResult:
    """Computes Adafactor's step of one variable.

    Args:
      rule: the hyperparameters of the variable's steps.
      rates: the learning rate and the decay of the second moments at this step, scalars.
      gradient: the gradient, [a, b] or [a]. If `ids` is set: only its nonzero rows, [n, b].
      weights: the weights, [a, b] or [a].
      old: the second moments before the step. They are vr and vc, or a single v if not factored.
      ids: int [n], the row numbers of the rows in `gradient`, each once; None if it has all rows.

    Returns:
      a pair. The first element is (the gradient's sum of squares, the weights' sum of squares). The
      second element is (the new weights, the new second moments).
    """
    if rule.axes is None:
        return _unfactored(gradient, weights, old, rates, rule)
    if ids is None:
        return _factored(gradient, weights, old, rates, rule)
    return _factored_rows(gradient, weights, old, rates, rule, ids)


def _unfactored(
    gradient: tf.Tensor, weights: tf.Tensor, old: Tensors, rates: Tensors, rule: AdafactorRule
) -> StepResult:
    (v,), (rate, decay) = old, rates
    g = tf.cast(gradient, tf.float32)
    square, weight_square, size = tf.square(g), _square_sum(weights), _size(weights)
    v = v * decay + (square + rule.epsilon1) * (1.0 - decay)
    factor = tf.math.rsqrt(v)
    rms = tf.sqrt(tf.reduce_sum(square * tf.square(factor)) / size)
    update = g * (factor * _scale(rule, rate, weight_square / size, rms))
    return (tf.reduce_sum(square), weight_square), (weights - tf.cast(update, weights.dtype), v)


@xla_compiled
def _factored(
    gradient: tf.Tensor, weights: tf.Tensor, old: Tensors, rates: Tensors, rule: AdafactorRule
) -> StepResult:
    g = tf.cast(gradient, tf.float32)
    by_row, by_column = row_sum(tf.square(g)), column_sum(tf.square(g))
    moments, rows, columns = _factors(rule, rates[1], old, by_row, by_column)
    update, weight_square = _update(rule, rates[0], g, (rows, columns), weights)
    return (tf.reduce_sum(by_row), weight_square), (weights - update, *moments)


def _factored_rows(
    gradient: tf.Tensor,
    weights: tf.Tensor,
    old: Tensors,
    rates: Tensors,
    rule: AdafactorRule,
    ids: tf.Tensor,
) -> StepResult:
    """Computes a step from the gradient's nonzero rows. Weights in other rows do not change."""
    g = tf.cast(gradient, tf.float32)
    square = tf.square(g)
    by_row = tf.scatter_nd(ids[:, None], tf.reduce_sum(square, 1), [int(weights.shape[0])])
    moments, rows, columns = _factors(rule, rates[1], old, by_row, tf.reduce_sum(square, 0))
    update, weight_square = _update(rule, rates[0], g, (tf.gather(rows, ids), columns), weights)
    new = tf.tensor_scatter_nd_sub(weights, ids[:, None], update)
    return (tf.reduce_sum(by_row), weight_square), (new, *moments)


def _factors(
    rule: AdafactorRule, decay: tf.Tensor, old: Tensors, by_row: tf.Tensor, by_column: tf.Tensor
) -> tuple[Tensors, tf.Tensor, tf.Tensor]:
    """Updates the second moments, and computes the factors by which the gradient is multiplied.

    Args:
      rule: the hyperparameters of the variable's steps.
      decay: scalar, the decay of the second moments at this step.
      old: vr and vc before the step.
      by_row: the sum of squared gradients in each row, [a].
      by_column: the sum of squared gradients in each column, [b].

    Returns:
      the new vr and vc; the factors of the rows, [a]; the factors of the columns, [b].
    """
    sums = {1: by_row / int(by_column.shape[0]), 0: by_column / int(by_row.shape[0])}
    vr, vc = (
        v * decay + (sums[axis] + rule.epsilon1) * (1.0 - decay)
        for v, axis in zip(old, rule.axes, strict=True)
    )
    by_kept = tf.math.rsqrt(vr / tf.reduce_mean(vr))  # the factors along the dimension of vr
    by_lost = tf.math.rsqrt(vc)  # the factors along the dimension of vc
    return (vr, vc), *((by_kept, by_lost) if rule.axes[0] == 1 else (by_lost, by_kept))


def _update(
    rule: AdafactorRule, rate: tf.Tensor, g: tf.Tensor, factors: Tensors, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the update, with the shape of `g` [n, b], and the weights' sum of squares."""
    rows, columns = factors
    # `rms` is the root mean square of g * rows * columns. It is computed without building this
    # product.
    weighed = row_sum(tf.square(g) * tf.square(columns))
    weight_square, size = _square_sum(weights), _size(weights)
    rms = tf.sqrt(tf.reduce_sum(weighed * tf.square(rows)) / size)
    rows *= _scale(rule, rate, weight_square / size, rms)
    return tf.cast(g * rows[:, None] * columns[None, :], weights.dtype), weight_square


def _scale(
    rule: AdafactorRule, rate: tf.Tensor, mean_square: tf.Tensor, rms: tf.Tensor
) -> tf.Tensor:
    """Returns the factor (rate, scale, clipping) for an update with root mean square `rms`."""
    if rule.scaled:
        rate *= tf.maximum(tf.sqrt(mean_square), rule.epsilon2)
    return rate if rule.clip is None else rate / tf.maximum(1.0, rms / rule.clip)


def _square_sum(weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(row_sum(tf.square(tf.cast(weights, tf.float32))))


def _size(weights: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.size(weights), tf.float32)
