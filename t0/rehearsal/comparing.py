"""Compares training on virtual cores with our loop: losses, gradients, weights, a checkpoint.

    comparison = compare_training(run, batches, steps=5)      # after gin has been parsed
    comparison.disagreements()           # one sentence for each difference; [] if they agree

Both sides start from the same weights, drawn by the pod's initializers, and take the same batches.
After the steps the pod's hosts gather the slices of each variable into its master, and Mesh
TensorFlow's saver writes the masters. Both sides restore that checkpoint, take one more step, score
choices and measure perplexity.

Rounding makes the numbers differ, because sums over cores and fused operations add in another
order. The tolerances depend on the type of activations (`BANDS`). Adafactor and Adam divide a
gradient by its own size. If a gradient is zero except for rounding, its sign is arbitrary, and its
weight moves one whole step: up in one program, down in the other. Only such weights are excluded,
and only if the gradients of both programs are as small as rounding errors.
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
# The part of a weight that float32 loses by rounding over a few steps.
_ROUNDING = 2.0**-21


@dataclasses.dataclass(frozen=True)
class Bands:
    """Tolerances for equal computations that differ only by rounding; all are relative.

    Attributes:
      loss: for the loss of the first step.
      later_loss: for the losses of later steps.
      gradient_norm: for the gradient norm of the first step.
      gradient: for the first step's gradient of each variable (by the root of the sum of squares).
      sign: for one number of a gradient, relative to the gradient's root mean square. Rounding may
        flip the sign of smaller numbers.
      weights: for a variable's difference after the steps, relative to how far the steps moved it
        (both by the root of the sum of squares; weights whose gradient has no sign are excluded).
      scores: for a choice's log-likelihood, relative to the largest.
    """

    loss: float
    later_loss: float
    gradient_norm: float
    gradient: float
    sign: float
    weights: float
    scores: float


# Type of activations -> tolerances. bfloat16 has 8 bits of precision: one rounding is 0.4%. The
# largest differences measured on one-layer models, in float32 and bfloat16: gradients 7e-7 and
# 2e-2, a single number of them 7e-6 and 0.2.
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
    """One training step on both sides. Norms are over all gradients.

    Attributes:
      step: the step's number, from 1.
      pod_loss: the loss of the first core.
      device_loss: the loss of our loop on one device.
      gradients: trained variable -> the relative difference of its gradients.
      faults: errors of the cores that must not occur on a pod, one clause each.
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
    """One variable after the steps on both sides. Optimizer slots are also variables.

    Attributes:
      name: the name in checkpoints.
      greatest: the largest absolute difference of one of its numbers.
      relative: the difference relative to how far the steps moved the variable.
    """

    name: str
    greatest: float
    relative: float


@dataclasses.dataclass(frozen=True)
class CheckpointPair:
    """A checkpoint of the pod, restored on both sides.

    Attributes:
      pod_loss: the next step's loss on the cores that restored it.
      device_loss: the next step's loss in our loop, which also restored it.
      faults: variables that are missing in the checkpoint or in a restored core, one clause each.
      ranked: choices scored with it on both sides; None if no scoring program was built.
      measured: its perplexity on both sides; None if no such program was built.
    """

    pod_loss: float
    device_loss: float
    faults: tuple[str, ...]
    ranked: ChoiceScores | None = None
    measured: Perplexities | None = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Training steps on both sides, and the variables after them.

    Attributes:
      steps: the steps.
      variables: the variables that both sides have.
      saved: the checkpoint after them.
      faults: differences other than numbers, one clause each.
      bands: the tolerances for numbers.
    """

    steps: tuple[StepPair, ...]
    variables: tuple[VariablePair, ...]
    saved: CheckpointPair
    faults: tuple[str, ...]
    bands: Bands

    @property
    def greatest(self) -> VariablePair:
        """The variable with the largest absolute difference of one of its numbers."""
        return max(self.variables, key=lambda pair: pair.greatest)

    def disagreements(self) -> list[str]:
        """Returns a clause for each number outside its tolerance, and all faults."""
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
            if not value <= band  # also true for nan
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
      batches: for each step, and one more after the checkpoint, the batch of each core: feature ->
        int32 [sequences, length]. Our loop takes the first core's.
      steps: the number of steps.

    Raises:
      UserError: for a program that cannot run on virtual cores.
    """
    with VirtualPod.open(run) as pod:
        if pod.draws:
            raise UserError(
                f"the program draws random numbers ({pod.draws[0]}), which differ between "
                "programs; a rehearsal replaces only the draws of dropout"
            )
        # Build our loop last, because it binds a gather for the embedding lookups of our own
        # models.
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
    """Fills the variables of both sides with equal values, takes the steps, and compares them.

    `evaluate` scores choices and measures perplexity with a checkpoint; None skips this.
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
            # On a pod, hosts provide the global step to each core.
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
    """Compares the variables that both sides have, before and after the steps.

    A difference of nan counts as infinite.

    Args:
      initial: name -> variable before the steps.
      theirs: the variables of one side after the steps.
      ours: the variables of the other side.
      no_sign: name -> bool, like the variable: numbers that the relative difference excludes; see
        `sign_is_rounding`. Variables may be missing.
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
    """Returns where both gradients are so small that rounding decides their signs.

    Args:
      theirs: one side's gradient of the variable.
      ours: the other side's gradient.
      share: the largest change of a single number by rounding, relative to the gradient's root mean
        square.
    """
    a, b = (np.abs(x.astype(np.float64)) for x in (theirs, ours))
    larger = np.maximum(a, b)
    return (larger > 0) & (larger <= share * np.sqrt(np.mean(b**2)))


def relative_difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """Returns the norm of the difference relative to the norm of `ours`; inf for nan."""
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
    """Saves on the pod's hosts, restores on both sides, and takes one more step.

    Args:
      pod: the cores, trained.
      device: our loop.
      batches: the batch of each core: feature -> int32 [sequences, length].
      evaluate: scores choices and measures perplexity with a checkpoint; None skips this.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "model.ckpt-1")
        saved = pod.variables().values
        pod.save(prefix)
        faults = list(_differences(saved, _read(prefix), "the checkpoint does not hold"))
        pod.initialise()  # with other weights, to see that restoring has an effect
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
        # A checkpoint may have a narrower type than the slices.
        if name not in saved or not np.array_equal(value.astype(saved[name].dtype), saved[name]):
            yield f"{problem} {name}"
