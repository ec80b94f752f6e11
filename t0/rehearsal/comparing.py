"""The cores' steps beside our loop's: losses, gradient norms, weights; and whether they agree.

    comparison = compare_training(run, batches, steps=5)      # after gin has been parsed
    comparison.disagreements()                                 # one sentence each; none: they agree

Both start from the same weights, those that the pod's initialisers draw, and take the same batches.
Numbers differ by rounding: sums over cores add in another order, and so do fused operations. How
much rounding may do depends on the type of activations, and is in `BANDS`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from t0.errors import UserError
from t0.mesh.pod_run import PodRun
from t0.rehearsal.batches import choices
from t0.rehearsal.feeding import Batch, other_batches
from t0.rehearsal.one_device import OneDevice
from t0.rehearsal.ranking import Ranked, VirtualScorer, rank
from t0.rehearsal.saving import Saved, save_and_restore
from t0.rehearsal.virtual_pod import PodStep, VirtualPod


@dataclasses.dataclass(frozen=True)
class Bands:
    """How far two equal computations may differ, by rounding alone; all are relative.

    Attributes:
      loss: of the first step's loss.
      later_loss: of the losses of later steps.
      gradient_norm: of the first step's gradient norm.
      weights: of a variable's difference after the steps, relative to how far the steps moved it
        (both by the root of the sum of squares; `variable_pairs` says which numbers are left out).
      scores: of a choice's log-likelihood, relative to the largest.
    """

    loss: float
    later_loss: float
    gradient_norm: float
    weights: float
    scores: float


# Type of activations -> bands. bfloat16 has 8 bits of precision: one rounding is 0.4%.
BANDS = {
    "float32": Bands(loss=1e-6, later_loss=1e-5, gradient_norm=1e-5, weights=1e-2, scores=1e-5),
    "bfloat16": Bands(loss=2e-2, later_loss=2e-2, gradient_norm=2e-2, weights=0.5, scores=2e-2),
}
# The part of a weight that float32 rounds away, some steps long.
_ROUNDING = 2.0**-21
# One number in so many has a gradient that is zero but for rounding. Adafactor and Adam divide a
# gradient by its size: such a number moves one whole step, up on one side and down on the other.
_ONE_WITHOUT_SIGN_IN = 1000
_STEP = "global_step"


@dataclasses.dataclass(frozen=True)
class StepPair:
    """One training step on both sides; a norm is that of all gradients.

    Attributes:
      step: its number, from 1.
      pod_loss: the loss of the first core.
      device_loss: the loss of our loop on one device.
      faults: what the cores did that no pod may do, one clause each.
    """

    step: int
    pod_loss: float
    device_loss: float
    pod_gradient_norm: float
    device_gradient_norm: float
    faults: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class VariablePair:
    """One variable after the steps on both sides; slots of the optimizer are variables, too.

    Attributes:
      name: its name in checkpoints.
      greatest: the greatest difference of one of its numbers.
      relative: the difference relative to how far the steps moved the variable.
    """

    name: str
    greatest: float
    relative: float


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
        bands = self.bands
        later = max(_relative(s.pod_loss, s.device_loss) for s in self.steps)
        restored = _relative(self.saved.pod_loss, self.saved.device_loss)
        norms = _relative(first.pod_gradient_norm, first.device_gradient_norm)
        checks = (
            ("the loss of step 1", _relative(first.pod_loss, first.device_loss), bands.loss),
            ("the gradient norm of step 1", norms, bands.gradient_norm),
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
                "alike. Turn dropout off for the rehearsal: --gin_param='dropout_rate = 0.0'"
            )
        # Our loop is built last: it binds what our own models look up embeddings with.
        with (
            VirtualScorer.open(run) as scorer,
            OneDevice.open(run, pod.features) as device,
        ):
            ranking = functools.partial(rank, run, scorer, examples=choices(run))
            return compare_steps(run, pod, device, batches, steps=steps, ranking=ranking)


def compare_steps(
    run: PodRun,
    pod: VirtualPod,
    device: OneDevice,
    batches: Iterable[Sequence[Batch]],
    *,
    steps: int,
    ranking: Callable[[str], Ranked] | None = None,
) -> Comparison:
    """Fills the variables of both sides alike, takes the steps, and compares: see above.

    `ranking` scores choices with a checkpoint; without it that is left out.
    """
    pod.initialise()
    begun = pod.variables().values
    device.load(begun)
    batches = iter(batches)
    pairs = tuple(_pair(step, pod, device, next(batches)) for step in range(1, steps + 1))
    theirs, ours = pod.variables(), device.variables()
    names = theirs.values.keys()
    return Comparison(
        steps=pairs,
        variables=variable_pairs(begun, theirs.values, ours),
        saved=save_and_restore(pod, device, next(batches), ranking),
        faults=(
            *(f"only the cores have {name}" for name in sorted(names - ours.keys())),
            # Hosts give each core the global step.
            *(f"only our loop has {name}" for name in sorted(ours.keys() - names - {_STEP})),
            *(f"the cores' replicas of {name} are not equal" for name in theirs.unequal),
        ),
        bands=BANDS[run.variable_dtype.activation_dtype.name],
    )


def _pair(step: int, pod: VirtualPod, device: OneDevice, batches: Sequence[Batch]) -> StepPair:
    theirs, ours = pod.step(batches), device.step(batches[0])
    gradients = theirs.gradients.values.values()
    square = sum(float(np.square(x.astype(np.float64)).sum()) for x in gradients)
    return StepPair(
        step=step,
        pod_loss=float(theirs.losses[0]),
        device_loss=ours.loss,
        pod_gradient_norm=square**0.5,
        device_gradient_norm=ours.gradient_norm,
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


def variable_pairs(
    begun: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
) -> tuple[VariablePair, ...]:
    """Returns the variables that both sides have, as they were before and are after the steps.

    A difference that is not a number counts as infinite. The one number in a thousand that differs
    most, and at least one, is left out of a variable's relative difference: what is wrong in a
    collective or in a layout changes more of them.
    """
    pairs = []
    for name in sorted(theirs.keys() & ours.keys()):
        before, a, b = (x[name].astype(np.float64) for x in (begun, theirs, ours))
        difference = np.nan_to_num(np.abs(a - b), nan=np.inf)
        greatest, moved = float(np.max(difference)), np.linalg.norm(a - before)
        if difference.size > 1 and np.isfinite(greatest):
            left_out = difference.size // _ONE_WITHOUT_SIGN_IN + 1
            difference = np.sort(difference, axis=None)[:-left_out]
        apart = np.linalg.norm(difference)
        room = moved + _ROUNDING * np.linalg.norm(a)
        relative = np.nan_to_num(apart / room, nan=np.inf) if apart else 0.0
        pairs.append(VariablePair(name, greatest, float(relative)))
    return tuple(pairs)


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(b), 1e-30)
