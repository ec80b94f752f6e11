"""Compares training on a pod's virtual cores with training in our own loop on one device.

    comparison = compare_training(run, batches, steps=5)      # parse gin first
    comparison.disagreements()           # a clause for each difference; [] if both agree

The comparison covers losses, gradients, weights and a checkpoint. Its two sides are the pod's
virtual cores and our loop on one device. Both sides start from the same weights, which the pod's
initializers draw, and train on the same batches. After the steps, the pod's hosts gather the slices
of each variable into its master variable, and Mesh TensorFlow's saver writes the masters to a
checkpoint. Both sides restore this checkpoint, take one more step, score choices and measure
perplexity.

The numbers of both sides differ by rounding, because sums over cores and fused operations add
numbers in a different order. The tolerances depend on the type of activations (`BANDS`). Some
weights cannot be compared. Adafactor and Adam divide a gradient by its own size. So if a gradient
is zero except for rounding, its sign is arbitrary. Then its weight may move a whole step up in one
program and a whole step down in the other. A weight is excluded only for this reason, and only if
its gradients in both programs are as small as rounding errors.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.mesh.pod_run import PodRun
from t0.rehearsal.feeding import Batch, other_batches, random_choices
from t0.rehearsal.one_device import (
    ChoiceScores,
    DeviceStep,
    OneDevice,
    Perplexities,
    measure_perplexity,
    rows_of,
    score_choices,
)
from t0.rehearsal.virtual_pod import PodStep, ReadingCores, VirtualPod

_STEP = "global_step"
# The relative rounding error of a float32 weight after a few steps.
_ROUNDING = 2.0**-21


@dataclasses.dataclass(frozen=True)
class Bands:
    """Relative tolerances for comparing two computations that differ only by rounding.

    A norm is the square root of the sum of squares.

    Attributes:
      loss: the tolerance for the loss of the first step.
      later_loss: the tolerance for the losses of later steps.
      gradient_norm: the tolerance for the norm of all gradients in the first step.
      gradient: the tolerance for each variable's gradient in the first step. It applies to the norm
        of the difference, relative to the norm of the gradient.
      sign: the tolerance for a single number in a gradient, relative to the gradient's root mean
        square. Rounding may flip the sign of smaller numbers.
      weights: the tolerance for a variable after the steps. It applies to the norm of the
        difference, relative to the norm of the variable's change in the steps. Weights are excluded
        if rounding may decide the sign of their gradient.
      scores: the tolerance for the log-likelihood of a choice, relative to the largest
        log-likelihood of all choices.
    """

    loss: float
    later_loss: float
    gradient_norm: float
    gradient: float
    sign: float
    weights: float
    scores: float


# Type of activations -> tolerances. bfloat16 has 8 bits of precision, so one rounding changes a
# number by up to 0.4%. On one-layer models, the largest difference that we measured for a whole
# gradient was 7e-7 in float32 and 2e-2 in bfloat16. For a single number in a gradient, it was 7e-6
# in float32 and 0.2 in bfloat16.
BANDS = {
    "float32": Bands(
        loss=1e-6,
        later_loss=1e-5,
        gradient_norm=1e-5,
        gradient=1e-4,
        sign=1e-4,
        weights=1e-2,
        scores=1e-5,
    ),
    "bfloat16": Bands(
        loss=2e-2,
        later_loss=2e-2,
        gradient_norm=2e-2,
        gradient=0.15,
        sign=0.2,
        weights=0.5,
        scores=2e-2,
    ),
}


@dataclasses.dataclass(frozen=True)
class StepPair:
    """One training step on both sides.

    Attributes:
      step: the number of the step, from 1.
      pod_loss: the loss of the first core.
      device_loss: the loss of our loop on one device.
      pod_gradient_norm: the norm of all gradients on the pod.
      device_gradient_norm: the norm of all gradients in our loop.
      gradients: trained variable -> the relative difference between the gradients of both sides.
      faults: errors of the cores in this step, one clause each.
    """

    step: int
    pod_loss: float
    device_loss: float
    pod_gradient_norm: float
    device_gradient_norm: float
    gradients: Mapping[str, float]
    faults: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class VariablePair:
    """The difference between both sides in one variable after the steps.

    A variable may also be a slot of the optimizer.

    Attributes:
      name: the name of the variable in checkpoints.
      greatest: the largest absolute difference between two corresponding numbers.
      relative: the norm of the difference, relative to the norm of the variable's change in the
        steps.
    """

    name: str
    greatest: float
    relative: float


@dataclasses.dataclass(frozen=True)
class CheckpointPair:
    """The results of both sides after they have restored the pod's checkpoint.

    Attributes:
      pod_loss: the cores' loss in the step after restoring.
      device_loss: our loop's loss in the step after restoring.
      faults: variables that are missing in the checkpoint or differ after restoring, one clause
        each.
      ranked: the scores of choices on both sides; None if choices were not scored.
      measured: the perplexity on both sides; None if perplexity was not measured.
    """

    pod_loss: float
    device_loss: float
    faults: tuple[str, ...]
    ranked: ChoiceScores | None = None
    measured: Perplexities | None = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The whole comparison: steps, variables and a checkpoint.

    Attributes:
      steps: the training steps on both sides.
      variables: the differences after the steps, for the variables that both sides have.
      saved: the results of both sides with the checkpoint that the pod wrote after the steps.
      faults: differences that are not numbers, such as missing variables, one clause each.
      bands: the tolerances for numbers.
    """

    steps: tuple[StepPair, ...]
    variables: tuple[VariablePair, ...]
    saved: CheckpointPair
    faults: tuple[str, ...]
    bands: Bands

    @property
    def greatest(self) -> VariablePair:
        """The variable with the largest absolute difference between two corresponding numbers."""
        return max(self.variables, key=lambda pair: pair.greatest)

    def disagreements(self) -> list[str]:
        """Returns a clause for each difference that exceeds its tolerance, and all faults."""
        first, worst = self.steps[0], max(self.variables, key=lambda pair: pair.relative)
        gradient = max(first.gradients, key=first.gradients.__getitem__)
        bands = self.bands
        later = max(_relative(s.pod_loss, s.device_loss) for s in self.steps)
        restored = _relative(self.saved.pod_loss, self.saved.device_loss)
        norms = _relative(first.pod_gradient_norm, first.device_gradient_norm)
        checks = (
            ("the loss of step 1", _relative(first.pod_loss, first.device_loss), bands.loss),
            ("the gradient norm of step 1", norms, bands.gradient_norm),
            (f"step 1's gradient of {gradient}", first.gradients[gradient], bands.gradient),
            ("the loss after restoring the checkpoint", restored, bands.loss),
            ("the loss of a later step", later, bands.later_loss),
            (f"{worst.name}, by how far it moved,", worst.relative, bands.weights),
        )
        differences = [
            f"{quantity} differs by {value:.1e}, more than {band:.0e}"
            for quantity, value, band in checks
            if not value <= band  # this form also reports a nan
        ]
        ranked = self.saved.ranked
        if ranked and not ranked.difference <= bands.scores:
            differences.append(
                f"scores of choices differ by {ranked.difference:.1e} of the largest"
            )
        if ranked and not ranked.equal_on_cores:
            differences.append("the cores' scores are not equal")
        measured = self.saved.measured
        if measured and not measured.difference <= bands.scores:
            differences.append(f"nats per token differ by {measured.difference:.1e}")
        if measured and not measured.accuracy_difference <= bands.scores:
            differences.append(f"token accuracy differs by {measured.accuracy_difference:.1e}")
        if measured and not measured.equal_on_cores:
            differences.append("the cores' cross entropies are not equal")
        step_faults = (fault for step in self.steps for fault in step.faults)
        return [*differences, *step_faults, *self.faults, *self.saved.faults]


def compare_training(run: PodRun, batches: Iterable[Sequence[Batch]], *, steps: int) -> Comparison:
    """Trains on virtual cores and on one device, and compares the steps.

    Args:
      run: the run on a slice, small enough for this machine.
      batches: an entry for each step, and a last entry for the step after restoring the checkpoint.
        An entry has the batch of each core: feature -> int32 [sequences, length]. Our loop trains
        on the batch of the first core.
      steps: the number of steps, not counting the step after restoring.

    Raises:
      UserError: if the program of the run cannot run on virtual cores.
    """
    with VirtualPod.open(run) as pod:
        if pod.draws:
            raise UserError(
                f"the program draws random numbers ({pod.draws[0]}), which differ between "
                "programs; a rehearsal replaces only the draws of dropout"
            )
        # Our loop is built last. It binds a gather for embedding lookups in gin, which the cores'
        # programs must not use.
        with (
            ReadingCores.open(run, "score_eval") as scoring,
            ReadingCores.open(run, "perplexity_eval") as measuring,
            OneDevice.open(run, pod.features) as device,
        ):
            examples = random_choices(run)

            def evaluate(prefix: str) -> tuple[ChoiceScores, Perplexities]:
                ranked = score_choices(run, scoring, prefix, examples)
                return ranked, measure_perplexity(run, measuring, prefix, rows_of(examples))

            return compare_steps(run, pod, device, batches, steps=steps, evaluate=evaluate)


def compare_steps(
    run: PodRun,
    pod: VirtualPod,
    device: OneDevice,
    batches: Iterable[Sequence[Batch]],
    *,
    steps: int,
    evaluate: Callable[[str], tuple[ChoiceScores, Perplexities]] | None = None,
) -> Comparison:
    """Fills the variables of both sides with equal values, takes the steps, and compares the sides.

    The function `evaluate` scores choices and measures perplexity with a checkpoint. If it is None,
    both evaluations are omitted.
    """
    pod.initialise()
    initial = pod.variables().values
    device.load(initial)
    batches = iter(batches)
    bands = BANDS[run.variable_dtype.activation_dtype.name]
    pairs, no_sign = [], {}
    for step in range(1, steps + 1):
        core_batches = next(batches)
        pod_step, device_step = pod.step(core_batches), device.step(core_batches[0])
        pairs.append(_pair(step, pod_step, device_step, core_batches))
        for name, gradient in device_step.gradients.items():
            small = sign_is_rounding(pod_step.gradients.values[name], gradient, bands.sign)
            no_sign[name] = small | no_sign.get(name, False)
    theirs, ours = pod.variables(), device.variables()
    names = theirs.values.keys()
    return Comparison(
        steps=tuple(pairs),
        variables=variable_pairs(initial, theirs.values, ours, no_sign),
        saved=save_and_restore(pod, device, next(batches), evaluate),
        faults=(
            *(f"only the cores have {name}" for name in sorted(names - ours.keys())),
            # The cores have no global step. On a pod, the hosts send it to each core.
            *(f"only our loop has {name}" for name in sorted(ours.keys() - names - {_STEP})),
            *(f"the cores' replicas of {name} are not equal" for name in theirs.unequal),
        ),
        bands=bands,
    )


def _pair(step: int, theirs: PodStep, ours: DeviceStep, batches: Sequence[Batch]) -> StepPair:
    gradients = theirs.gradients.values
    square = sum(float(np.square(x.astype(np.float64)).sum()) for x in gradients.values())
    return StepPair(
        step=step,
        pod_loss=float(theirs.losses[0]),
        device_loss=ours.loss,
        pod_gradient_norm=square**0.5,
        device_gradient_norm=ours.gradient_norm,
        gradients={n: relative_difference(gradients[n], g) for n, g in ours.gradients.items()},
        faults=tuple(f"step {step}: {fault}" for fault in _faults(theirs, batches)),
    )


def _faults(step: PodStep, batches: Sequence[Batch]) -> Iterator[str]:
    batch = batches[0]
    for core, feature in other_batches(batches)[:1]:
        yield f"core {core} gets other {feature} than core 0"
    if np.ptp(step.losses) != 0:
        yield f"the cores' losses are not equal: {step.losses.min()} to {step.losses.max()}"
    for name in step.gradients.unequal:
        yield f"the cores' replicas of the gradient of {name} are not equal"
    for name in step.features.unequal:
        yield f"cores at the same position of the layout took different rows of {name}"
    for name, value in step.features.values.items():
        if not np.array_equal(value.reshape(batch[name].shape), batch[name]):
            yield f"the rows of {name} that the cores took do not make up the batch"


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(b), 1e-30)


def variable_pairs(
    initial: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    no_sign: Mapping[str, np.ndarray],
) -> tuple[VariablePair, ...]:
    """Compares the variables that both sides have after the steps.

    If a difference is nan, infinity is reported instead.

    Args:
      initial: name -> the variable before the steps.
      theirs: name -> the variable after the steps on one side.
      ours: name -> the variable after the steps on the other side.
      no_sign: name -> bool array in the shape of the variable. True means that the relative
        difference excludes the number (see `sign_is_rounding`). If a name is missing, no number is
        excluded.
    """
    pairs = []
    for name in sorted(theirs.keys() & ours.keys()):
        before, a, b = (x[name].astype(np.float64) for x in (initial, theirs, ours))
        difference = np.nan_to_num(np.abs(a - b), nan=np.inf)
        greatest, moved = float(np.max(difference)), np.linalg.norm(a - before)
        excluded = no_sign.get(name, np.zeros((), bool)) & np.isfinite(difference)
        distance = np.linalg.norm(np.where(excluded, 0.0, difference))
        scale = moved + _ROUNDING * np.linalg.norm(a)
        relative = np.nan_to_num(distance / scale, nan=np.inf) if distance else 0.0
        pairs.append(VariablePair(name, greatest, float(relative)))
    return tuple(pairs)


def sign_is_rounding(theirs: np.ndarray, ours: np.ndarray, share: float) -> np.ndarray:
    """Returns, for each number in a gradient, whether rounding may decide its sign.

    Rounding may decide the sign if the number is very small on both sides.

    Args:
      theirs: one side's gradient of the variable.
      ours: the other side's gradient.
      share: the maximum change of a single number by rounding, relative to the gradient's root mean
        square.
    """
    a, b = (np.abs(x.astype(np.float64)) for x in (theirs, ours))
    larger = np.maximum(a, b)
    return (larger > 0) & (larger <= share * np.sqrt(np.mean(b**2)))


def relative_difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """Returns the norm of the difference, divided by the norm of `ours`; inf instead of nan."""
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    distance = np.linalg.norm(a - b)
    if distance == 0:
        return 0.0
    size = np.linalg.norm(b)
    return float(np.nan_to_num(distance / size, nan=np.inf)) if size else np.inf


def save_and_restore(
    pod: VirtualPod,
    device: OneDevice,
    batches: Sequence[Mapping[str, np.ndarray]],
    evaluate: Callable[[str], tuple[ChoiceScores, Perplexities]] | None = None,
) -> CheckpointPair:
    """Saves the pod's checkpoint, restores it on both sides, and takes one more step.

    Args:
      pod: the cores, after training.
      device: our loop.
      batches: the batch of each core: feature -> int32 [sequences, length].
      evaluate: a function that scores choices and measures perplexity with a checkpoint; None to
        omit both evaluations.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "model.ckpt-1")
        saved = pod.variables().values
        pod.save(prefix)
        faults = list(_differences(saved, _read(prefix), "the checkpoint does not hold"))
        pod.initialise()  # other weights, so that a restore without effect is noticed
        pod.restore(prefix)
        restored = pod.variables().values
        faults += _differences(restored, _read(prefix), "the cores did not restore")
        device.restore(prefix)
        evaluated = evaluate(prefix) if evaluate else ()
    losses = float(pod.step(batches).losses[0]), device.step(batches[0]).loss
    return CheckpointPair(*losses, tuple(faults), *evaluated)


def _read(prefix: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _differences(
    values: Mapping[str, np.ndarray], saved: Mapping[str, np.ndarray], problem: str
) -> Iterator[str]:
    for name, value in sorted(values.items()):
        # A checkpoint may have a narrower type than the slices. So values are compared in the
        # checkpoint's type.
        if name not in saved or not np.array_equal(value.astype(saved[name].dtype), saved[name]):
            yield f"{problem} {name}"
