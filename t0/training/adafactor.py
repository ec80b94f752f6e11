"""Computes Mesh TensorFlow's Adafactor with fewer passes over the weights.

    if adafactor.covers(optimizer, variable, mesh_impl):
        assignments, gradient_square, weight_square = adafactor.apply(
            optimizer, gradient, variable, mesh_impl
        )

Adafactor is the optimizer of Shazeer and Stern (2018). In Mesh TensorFlow it is a chain of
operations, each of which reads or writes a tensor as large as the weights. In this module, XLA
compiles the step of a large matrix into four passes over its gradient. The gradient of an embedding
stays sparse. It has only the rows of tokens that occur in the batch, because the update of all
other rows is zero.

Legend: [a, b] is the shape of the weights, and n the number of rows that have a gradient. vr are
the second moments averaged over the larger dimension, and vc are the second moments averaged over
the smaller dimension.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from t0.compat import mtf, optimize
from t0.compat import tf1 as tf
from t0.mesh.compiled import column_sum, row_sum, xla_compiled
from t0.mesh.gather_embedding import looked_up_rows

# An embedding of V rows gets a sparse update if a batch looks up at most V / _SPARSE of its rows.
_SPARSE = 4


def covers(optimizer: Any, variable: mtf.Variable, mesh_impl: Any) -> bool:
    """Returns whether `apply` can update a variable exactly as the optimizer itself would."""
    return (
        isinstance(optimizer, optimize.AdafactorOptimizer)
        and _is_unsplit(variable.shape, mesh_impl)
        and not optimizer._beta1
        and not optimizer._stacked_dim_names
        and variable.shape.ndims <= 2
    )


def apply(
    optimizer: Any, gradient: mtf.Tensor, variable: mtf.Variable, mesh_impl: Any
) -> tuple[list[mtf.Operation], mtf.Tensor, mtf.Tensor]:
    """Updates a variable for which `covers` is true.

    Args:
      optimizer: Mesh TensorFlow's `AdafactorOptimizer`.
      gradient: the gradient, with the variable's shape.
      variable: the variable to update.
      mesh_impl: the mesh on which the graph is lowered.

    Returns:
      the assignments; the gradient's sum of squares, a scalar; the variable's sum of squares, a
      scalar.
    """
    rule, dims = _rule(optimizer, variable), variable.shape.dims
    names = ("_slot_vr", "_slot_vc") if rule.axes else ("_slot_v",)
    shapes = [variable.shape - dims[axis] for axis in rule.axes or ()] or [variable.shape]
    slots = [
        mtf.get_variable(
            variable.mesh,
            variable.name + name,
            shape,
            initializer=tf.zeros_initializer(),
            trainable=False,
        ).operation
        for name, shape in zip(names, shapes, strict=True)
    ]
    looked_up = _find_lookups(gradient, mesh_impl) if rule.axes else []
    rates = optimizer._learning_rate, optimizer._decay_rate
    operation = _AdafactorStep(rule, rates, [variable, *slots], gradient, looked_up)
    return [operation], *operation.outputs


class _AdafactorStep(mtf.Operation):
    """The operation that assigns new values to a variable and its slots.

    The outputs are the gradient's sum of squares and the variable's sum of squares.

    Args:
      rule: the hyperparameters of the variable's steps.
      rates: the learning rate and the decay of this step.
      assigned: the variable and its second moments.
      gradient: the gradient.
      looked_up: the gradient in sparse form, as pairs (gradient of rows, ids). It is read instead
        of `gradient`. [] for weights without a sparse gradient.
    """

    def __init__(
        self,
        rule: "StepRule",
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
                rates = (tf.cast(rate, tf.float32) for rate in self._rates)
                sums, new = step(
                    self._rule, *rates, g, *map(tf.convert_to_tensor, old_values), ids=ids
                )
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


class StepRule(NamedTuple):
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


def _rule(optimizer: Any, variable: mtf.Variable) -> StepRule:
    # The larger dimension comes first.
    factored = optimizer._factored_dims(variable.shape)
    excluded = any(pattern in variable.name for pattern in optimizer._exclude_from_parameter_scale)
    return StepRule(
        axes=tuple(map(variable.shape.dims.index, factored)) if factored else None,
        clip=optimizer._clipping_threshold,
        epsilon1=optimizer._epsilon1,
        epsilon2=optimizer._epsilon2,
        scaled=optimizer._multiply_by_parameter_scale and not excluded,
    )


# ((sum of squares of the gradient, sum of squares of the weights), (the new weights, the new second
# moments)).
StepResult = tuple[tuple[tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]


def step(
    rule: StepRule,
    rate: tf.Tensor,
    decay: tf.Tensor,
    gradient: tf.Tensor,
    weights: tf.Tensor,
    *old: tf.Tensor,
    ids: tf.Tensor | None = None,
) -> StepResult:
    """Computes the step of one variable.

    Args:
      rule: the hyperparameters of the variable's steps.
      rate: scalar, the learning rate of this step.
      decay: scalar, the decay of the second moments at this step.
      gradient: the gradient, [a, b] or [a]. If `ids` is set: only its nonzero rows, [n, b].
      weights: the weights, [a, b] or [a].
      old: the second moments before the step. They are vr and vc, or a single v if not factored.
      ids: int [n], the row numbers of the rows in `gradient`, each once; None if it has all rows.

    Returns:
      a pair. The first element is (the gradient's sum of squares, the weights' sum of squares). The
      second element is (the new weights, the new second moments).
    """
    if rule.axes is None:
        return _unfactored(gradient, weights, *old, rate, decay, rule)
    if ids is None:
        return _factored(gradient, weights, *old, rate, decay, rule)
    return _factored_rows(gradient, weights, *old, rate, decay, rule, ids)


def _unfactored(
    gradient: tf.Tensor,
    weights: tf.Tensor,
    v: tf.Tensor,
    rate: tf.Tensor,
    decay: tf.Tensor,
    rule: StepRule,
) -> StepResult:
    g = tf.cast(gradient, tf.float32)
    square, weight_square, size = tf.square(g), _sum_of_squares(weights), _size(weights)
    v = v * decay + (square + rule.epsilon1) * (1.0 - decay)
    factor = tf.math.rsqrt(v)
    rms = tf.sqrt(tf.reduce_sum(square * tf.square(factor)) / size)
    update = g * (factor * _scale(rule, rate, weight_square / size, rms))
    return (tf.reduce_sum(square), weight_square), (weights - tf.cast(update, weights.dtype), v)


@xla_compiled
def _factored(
    gradient: tf.Tensor,
    weights: tf.Tensor,
    vr: tf.Tensor,
    vc: tf.Tensor,
    rate: tf.Tensor,
    decay: tf.Tensor,
    rule: StepRule,
) -> StepResult:
    g = tf.cast(gradient, tf.float32)
    by_row, by_column = row_sum(tf.square(g)), column_sum(tf.square(g))
    moments, rows, columns = _factors(rule, decay, (vr, vc), by_row, by_column)
    update, weight_square = _update(rule, rate, g, rows, columns, weights)
    return (tf.reduce_sum(by_row), weight_square), (weights - update, *moments)


def _factored_rows(
    gradient: tf.Tensor,
    weights: tf.Tensor,
    vr: tf.Tensor,
    vc: tf.Tensor,
    rate: tf.Tensor,
    decay: tf.Tensor,
    rule: StepRule,
    ids: tf.Tensor,
) -> StepResult:
    """Computes a step from the gradient's nonzero rows. Weights in other rows do not change."""
    g = tf.cast(gradient, tf.float32)
    square = tf.square(g)
    by_row = tf.scatter_nd(ids[:, None], tf.reduce_sum(square, 1), [int(weights.shape[0])])
    moments, rows, columns = _factors(rule, decay, (vr, vc), by_row, tf.reduce_sum(square, 0))
    update, weight_square = _update(rule, rate, g, tf.gather(rows, ids), columns, weights)
    new = tf.tensor_scatter_nd_sub(weights, ids[:, None], update)
    return (tf.reduce_sum(by_row), weight_square), (new, *moments)


def _factors(
    rule: StepRule,
    decay: tf.Tensor,
    old: tuple[tf.Tensor, tf.Tensor],
    by_row: tf.Tensor,
    by_column: tf.Tensor,
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor, tf.Tensor]:
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
    rule: StepRule,
    rate: tf.Tensor,
    g: tf.Tensor,
    rows: tf.Tensor,
    columns: tf.Tensor,
    weights: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the update, with the shape of `g` [n, b], and the weights' sum of squares."""
    # `rms` is the root mean square of g * rows * columns. It is computed without building this
    # product.
    weighed = row_sum(tf.square(g) * tf.square(columns))
    weight_square, size = _sum_of_squares(weights), _size(weights)
    rms = tf.sqrt(tf.reduce_sum(weighed * tf.square(rows)) / size)
    rows *= _scale(rule, rate, weight_square / size, rms)
    return tf.cast(g * rows[:, None] * columns[None, :], weights.dtype), weight_square


def _scale(rule: StepRule, rate: tf.Tensor, mean_square: tf.Tensor, rms: tf.Tensor) -> tf.Tensor:
    """Returns the factor (rate, scale, clipping) for an update with root mean square `rms`."""
    if rule.scaled:
        rate *= tf.maximum(tf.sqrt(mean_square), rule.epsilon2)
    return rate if rule.clip is None else rate / tf.maximum(1.0, rms / rule.clip)


def _sum_of_squares(weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(row_sum(tf.square(tf.cast(weights, tf.float32))))


def _size(weights: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.size(weights), tf.float32)
