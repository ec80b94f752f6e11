"""The cores' steps beside our loop's: losses, gradient norms, weights; and whether they agree.

    comparison = compare_training(run, batches, steps=5)      # after gin has been parsed
    comparison.disagreements()                                 # one sentence each; none: they agree

Both start from the same weights, those that the pod's initialisers draw, and take the same batches.
Numbers differ by rounding: sums over cores add in another order, and so do fused operations. How
much rounding may do depends on the type of activations, and is in `BANDS`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from t0.errors import UserError
from t0.mesh.pod_run import PodRun
from t0.rehearsal.batches import choices
from t0.rehearsal.differences import (
    VariablePair,
    relative_difference,
    sign_is_rounding,
    variable_pairs,
)
from t0.rehearsal.feeding import Batch, other_batches
from t0.rehearsal.measuring import Measured, measure
from t0.rehearsal.one_device import DeviceStep, OneDevice
from t0.rehearsal.ranking import Ranked, rank, rows_of
from t0.rehearsal.reading_cores import ReadingCores
from t0.rehearsal.saving import Saved, save_and_restore
from t0.rehearsal.virtual_pod import PodStep, VirtualPod


@dataclasses.dataclass(frozen=True)
class Bands:
    """How far two equal computations may differ, by rounding alone; all are relative.

    Attributes:
      loss: of the first step's loss.
      later_loss: of the losses of later steps.
      gradient_norm: of the first step's gradient norm.
      gradient: of the first step's gradient of each variable (by the root of the sum of squares).
      sign: of one number of a gradient, relative to the gradient's root mean square: rounding may
        turn the sign of a smaller one.
      weights: of a variable's difference after the steps, relative to how far the steps moved it
        (both by the root of the sum of squares; numbers whose gradient has no sign are left out).
      scores: of a choice's log-likelihood, relative to the largest.
    """

    loss: float
    later_loss: float
    gradient_norm: float
    gradient: float
    sign: float
    weights: float
    scores: float


# Type of activations -> bands. bfloat16 has 8 bits of precision: one rounding is 0.4%. Measured on
# models of one layer, at most: gradients 7e-7 and 2e-2, one number of them 7e-6 and 0.2.
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
_STEP = "global_step"


@dataclasses.dataclass(frozen=True)
class StepPair:
    """One training step on both sides; a norm is that of all gradients.

    Attributes:
      step: its number, from 1.
      pod_loss: the loss of the first core.
      device_loss: the loss of our loop on one device.
      gradients: trained variable -> the relative difference of its gradients.
      faults: what the cores did that no pod may do, one clause each.
    """

    step: int
    pod_loss: float
    device_loss: float
    pod_gradient_norm: float
    device_gradient_norm: float
    gradients: Mapping[str, float]
    faults: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Training steps on both sides, and the variables after them.

    Attributes:
      steps: the steps.
      variables: the variables that both sides have.
      saved: the checkpoint after them.
      faults: what differs besides numbers, one clause each.
      bands: how far numbers may differ.
    """

    steps: tuple[StepPair, ...]
    variables: tuple[VariablePair, ...]
    saved: Saved
    faults: tuple[str, ...]
    bands: Bands

    @property
    def greatest(self) -> VariablePair:
        """The variable with the greatest difference of one of its numbers."""
        return max(self.variables, key=lambda pair: pair.greatest)

    def disagreements(self) -> list[str]:
        """Returns a clause for each number beyond its band, and all faults."""
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
        beyond = [
            f"{what} differs by {value:.1e}, more than {band:.0e}"
            for what, value, band in checks
            if not value <= band  # nan, too
        ]
        ranked = self.saved.ranked
        if ranked and not ranked.difference <= bands.scores:
            beyond.append(f"scores of choices differ by {ranked.difference:.1e} of the largest")
        if ranked and not ranked.equal_on_cores:
            beyond.append("the cores' scores are not equal")
        measured = self.saved.measured
        if measured and not measured.difference <= bands.scores:
            beyond.append(f"nats per token differ by {measured.difference:.1e}")
        if measured and not measured.accuracy_difference <= bands.scores:
            beyond.append(f"token accuracy differs by {measured.accuracy_difference:.1e}")
        if measured and not measured.equal_on_cores:
            beyond.append("the cores' cross entropies are not equal")
        of_steps = (fault for step in self.steps for fault in step.faults)
        return [*beyond, *of_steps, *self.faults, *self.saved.faults]


def compare_training(run: PodRun, batches: Iterable[Sequence[Batch]], *, steps: int) -> Comparison:
    """Takes training steps on virtual cores and on one device, and compares them.

    Args:
      run: the run on a slice, small enough for this machine.
      batches: for each step, and for one more after the checkpoint, what each core is fed:
        feature -> int32 [sequences, length]. Our loop takes the first core's.
      steps: how many steps both take.

    Raises:
      UserError: for a program that cannot be run on virtual cores.
    """
    with VirtualPod.open(run) as pod:
        if pod.draws:
            raise UserError(
                f"the program draws random numbers ({pod.draws[0]}), which no two programs draw "
                "alike; a rehearsal replaces those of dropout alone"
            )
        # Our loop is built last: it binds what our own models look up embeddings with.
        with (
            ReadingCores.open(run, "score_eval") as scoring,
            ReadingCores.open(run, "perplexity_eval") as measuring,
            OneDevice.open(run, pod.features) as device,
        ):
            examples = choices(run)

            def evaluating(prefix: str) -> tuple[Ranked, Measured]:
                ranked = rank(run, scoring, prefix, examples)
                return ranked, measure(run, measuring, prefix, rows_of(examples))

            return compare_steps(run, pod, device, batches, steps=steps, evaluating=evaluating)


def compare_steps(
    run: PodRun,
    pod: VirtualPod,
    device: OneDevice,
    batches: Iterable[Sequence[Batch]],
    *,
    steps: int,
    evaluating: Callable[[str], tuple[Ranked, Measured]] | None = None,
) -> Comparison:
    """Fills the variables of both sides alike, takes the steps, and compares: see above.

    `evaluating` scores choices with a checkpoint and measures it; without it that is left out.
    """
    pod.initialise()
    begun = pod.variables().values
    device.load(begun)
    batches = iter(batches)
    bands = BANDS[run.variable_dtype.activation_dtype.name]
    pairs, no_sign = [], {}
    for step in range(1, steps + 1):
        fed = next(batches)
        of_cores, of_device = pod.step(fed), device.step(fed[0])
        pairs.append(_pair(step, of_cores, of_device, fed))
        for name, gradient in of_device.gradients.items():
            small = sign_is_rounding(of_cores.gradients.values[name], gradient, bands.sign)
            no_sign[name] = small | no_sign.get(name, False)
    theirs, ours = pod.variables(), device.variables()
    names = theirs.values.keys()
    return Comparison(
        steps=tuple(pairs),
        variables=variable_pairs(begun, theirs.values, ours, no_sign),
        saved=save_and_restore(pod, device, next(batches), evaluating),
        faults=(
            *(f"only the cores have {name}" for name in sorted(names - ours.keys())),
            # Hosts give each core the global step.
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
    for other in other_batches(batches)[:1]:
        yield f"core {other.core} is fed other {other.feature} than core 0"
    if np.ptp(step.losses) != 0:
        yield f"the cores' losses are not equal: {step.losses.min()} to {step.losses.max()}"
    for name in step.gradients.unequal:
        yield f"the cores' replicas of the gradient of {name} are not equal"
    for name in step.features.unequal:
        yield f"cores at the same place of the layout took different rows of {name}"
    for name, value in step.features.values.items():
        if not np.array_equal(value.reshape(batch[name].shape), batch[name]):
            yield f"the parts that the cores took of {name} are not the batch"


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(b), 1e-30)
