"""Compares the cores' steps with our loop's: losses, gradients, weights, a checkpoint.

    comparison = compare_training(run, batches, steps=5)      # after gin has been parsed
    comparison.disagreements()           # one sentence for each difference; [] if they agree

Both start from the same weights, which the pod's initialisers draw, and take the same batches.
After the steps the pod's hosts gather the slices of each variable into its master, and Mesh
TensorFlow's saver writes the masters. Both sides restore that checkpoint, take one more step, score
choices and measure perplexity.

Numbers differ by rounding: sums over cores add in another order, and so do fused operations. The
bands of rounding depend on the type of activations (`BANDS`). Adafactor and Adam divide a gradient
by its size. A number whose gradient is zero except for rounding has a gradient of arbitrary sign,
and moves one whole step: up in one program, down in the other. Only such numbers are left out, so
both programs' gradients have to be as small as rounding there.
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
# The part of a weight that float32 rounds away, some steps long.
_ROUNDING = 2.0**-21


@dataclasses.dataclass(frozen=True)
class Bands:
    """How far two equal computations may differ, only by rounding; all are relative.

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


@dataclasses.dataclass(frozen=True)
class StepPair:
    """One training step on both sides; a norm is that of all gradients.

    Attributes:
      step: its number, from 1.
      pod_loss: the loss of the first core.
      device_loss: the loss of our loop on one device.
      gradients: trained variable -> the relative difference of its gradients.
      faults: errors of the cores that no pod may make, one clause each.
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
    """One variable after the steps on both sides; the optimizer's slots are also variables.

    Attributes:
      name: its name in checkpoints.
      greatest: the greatest difference of one of its numbers.
      relative: the difference relative to how far the steps moved the variable.
    """

    name: str
    greatest: float
    relative: float


@dataclasses.dataclass(frozen=True)
class CheckpointPair:
    """A checkpoint of the pod, restored on both sides.

    Attributes:
      pod_loss: the loss of the step after it, on the cores that restored it.
      device_loss: the loss of our loop, which also restored it.
      faults: variables that the checkpoint or a restored core has not, one clause each.
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
      bands: how far numbers may differ.
    """

    steps: tuple[StepPair, ...]
    variables: tuple[VariablePair, ...]
    saved: CheckpointPair
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
      batches: for each step, and for one more after the checkpoint, the batch of each core:
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
            examples = random_choices(run)

            def evaluating(prefix: str) -> tuple[ChoiceScores, Perplexities]:
                ranked = score_choices(run, scoring, prefix, examples)
                return ranked, measure_perplexity(run, measuring, prefix, rows_of(examples))

            return compare_steps(run, pod, device, batches, steps=steps, evaluating=evaluating)


def compare_steps(
    run: PodRun,
    pod: VirtualPod,
    device: OneDevice,
    batches: Iterable[Sequence[Batch]],
    *,
    steps: int,
    evaluating: Callable[[str], tuple[ChoiceScores, Perplexities]] | None = None,
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
    for core, feature in other_batches(batches)[:1]:
        yield f"core {core} is fed other {feature} than core 0"
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


def variable_pairs(
    begun: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    no_sign: Mapping[str, np.ndarray],
) -> tuple[VariablePair, ...]:
    """Compares the variables that both sides have, before and after the steps.

    A difference that is not a number counts as infinite.

    Args:
      begun: the variables before the steps, by name.
      theirs: one side's after the steps.
      ours: the other's.
      no_sign: for some of them bool, as the variable: the numbers that the relative difference
        leaves out; see `sign_is_rounding`.
    """
    pairs = []
    for name in sorted(theirs.keys() & ours.keys()):
        before, a, b = (x[name].astype(np.float64) for x in (begun, theirs, ours))
        difference = np.nan_to_num(np.abs(a - b), nan=np.inf)
        greatest, moved = float(np.max(difference)), np.linalg.norm(a - before)
        left_out = no_sign.get(name, np.zeros((), bool)) & np.isfinite(difference)
        apart = np.linalg.norm(np.where(left_out, 0.0, difference))
        room = moved + _ROUNDING * np.linalg.norm(a)
        relative = np.nan_to_num(apart / room, nan=np.inf) if apart else 0.0
        pairs.append(VariablePair(name, greatest, float(relative)))
    return tuple(pairs)


def sign_is_rounding(theirs: np.ndarray, ours: np.ndarray, share: float) -> np.ndarray:
    """Returns where both gradients of a variable are so small that rounding decides their signs.

    Args:
      theirs: one side's gradient of the variable.
      ours: the other's.
      share: the most that rounding changes one number of a gradient, as a share of the gradient's
        root mean square.
    """
    a, b = (np.abs(x.astype(np.float64)) for x in (theirs, ours))
    larger = np.maximum(a, b)
    return (larger > 0) & (larger <= share * np.sqrt(np.mean(b**2)))


def relative_difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """Returns the root of the squared difference, relative to that of `ours`; inf for nan."""
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    apart = np.linalg.norm(a - b)
    if apart == 0:
        return 0.0
    size = np.linalg.norm(b)
    return float(np.nan_to_num(apart / size, nan=np.inf)) if size else np.inf


def save_and_restore(
    pod: VirtualPod,
    device: OneDevice,
    batches: Sequence[Mapping[str, np.ndarray]],
    evaluating: Callable[[str], tuple[ChoiceScores, Perplexities]] | None = None,
) -> CheckpointPair:
    """Saves on the pod's hosts, restores on both sides, and takes one step more.

    Args:
      pod: the cores, trained.
      device: our loop.
      batches: the batch of each core: feature -> int32 [sequences, length].
      evaluating: scores choices with a checkpoint and measures it; None to leave that out.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "model.ckpt-1")
        held = pod.variables().values
        pod.save(prefix)
        faults = list(_differences(held, _read(prefix), "the checkpoint does not hold"))
        pod.initialise()  # other weights, so that restoring shows
        pod.restore(prefix)
        restored = pod.variables().values
        faults += _differences(restored, _read(prefix), "the cores did not restore")
        device.restore(prefix)
        evaluated = evaluating(prefix) if evaluating else ()
    losses = float(pod.step(batches).losses[0]), device.step(batches[0]).loss
    return CheckpointPair(*losses, tuple(faults), *evaluated)


def _read(prefix: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _differences(
    held: Mapping[str, np.ndarray], saved: Mapping[str, np.ndarray], what: str
) -> Iterator[str]:
    for name, value in sorted(held.items()):
        # A checkpoint may have a narrower type than the slices.
        if name not in saved or not np.array_equal(value.astype(saved[name].dtype), saved[name]):
            yield f"{what} {name}"
