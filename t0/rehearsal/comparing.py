"""Compares training on a pod's virtual cores with training in our own loop on one device.

    comparison = compare_training(run, batches, steps=5)      # parse gin first
    comparison.lines                     # the numbers of both sides, as text
    comparison.disagreements             # a clause for each difference; [] if both agree

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
from t0.mesh.pod_run import PodRun
from t0.rehearsal.feeding import Batch, other_batches, random_choices
from t0.rehearsal.one_device import DeviceStep, OneDevice, measure_perplexity, score_choices
from t0.rehearsal.virtual_pod import PodStep, ReadingCores, VirtualPod, equal_on_cores

_STEP = "global_step"
# The relative rounding error of a float32 weight after a few steps.
_ROUNDING = 2.0**-21


@dataclasses.dataclass(frozen=True)
class Bands:
    """Relative tolerances for comparing two computations that differ only by rounding.

    A norm is the square root of the sum of squares.

    Attributes:
      loss: the tolerance for the loss of the first step, and after restoring the checkpoint.
      later: the tolerance for the losses of later steps, the norm of all gradients in the first
        step, the log-likelihoods of choices (relative to the largest of all choices), the nats per
        token and the token accuracy.
      gradient: the tolerance for each variable's gradient in the first step. It applies to the norm
        of the difference, relative to the norm of the gradient.
      sign: the tolerance for a single number in a gradient, relative to the gradient's root mean
        square. Rounding may flip the sign of smaller numbers.
      weights: the tolerance for a variable after the steps. It applies to the norm of the
        difference, relative to the norm of the variable's change in the steps. Weights are excluded
        if rounding may decide the sign of their gradient.
    """

    loss: float
    later: float
    gradient: float
    sign: float
    weights: float


# Type of activations -> tolerances. bfloat16 has 8 bits of precision, so one rounding changes a
# number by up to 0.4%. We measured the largest differences on one-layer models with random initial
# weights. For the gradient of a variable: 7e-7 in float32, and 0.16 in bfloat16 (the scale of a
# layer normalization). For one number in a gradient: 7e-6 in float32, and 0.2 in bfloat16.
BANDS = {
    "float32": Bands(loss=1e-6, later=1e-5, gradient=1e-4, sign=1e-4, weights=1e-2),
    "bfloat16": Bands(loss=2e-2, later=2e-2, gradient=0.3, sign=0.2, weights=0.5),
}


@dataclasses.dataclass
class Comparison:
    """The result of a comparison, to which each part of the comparison adds its findings.

    Attributes:
      bands: the tolerances for numbers.
      lines: the numbers of both sides, as text.
      disagreements: a clause for each difference that exceeds its tolerance, and for each
        difference that is not a number, such as a missing variable.
    """

    bands: Bands
    lines: list[str] = dataclasses.field(default_factory=list)
    disagreements: list[str] = dataclasses.field(default_factory=list)

    def check(self, quantity: str, difference: float, band: float) -> None:
        """Adds a disagreement if a relative difference exceeds its tolerance, or is nan."""
        if not difference <= band:
            self.disagreements.append(
                f"{quantity} differs by {difference:.1e}, more than {band:.0e}"
            )


def compare_training(run: PodRun, batches: Iterable[Sequence[Batch]], *, steps: int) -> Comparison:
    """Trains on virtual cores and on one device, and compares the steps.

    Args:
      run: the run on a slice, small enough for this machine.
      batches: an entry for each step, and a last entry for the step after restoring the checkpoint.
        An entry has the batch of each core: feature -> int32 [sequences, length]. Our loop trains
        on the batch of the first core.
      steps: the number of steps, not counting the step after restoring.
    """
    # Our loop is built last. It binds a gather for embedding lookups in gin, which the cores'
    # programs must not use.
    with (
        VirtualPod.open(run) as pod,
        ReadingCores.open(run, "score_eval") as scoring,
        ReadingCores.open(run, "perplexity_eval") as measuring,
        OneDevice.open(run, pod.features) as device,
    ):

        def evaluate(prefix: str, comparison: Comparison) -> None:
            compare_evaluations(comparison, run, (scoring, measuring), prefix)

        return compare_steps(run, pod, device, batches, steps=steps, evaluate=evaluate)


def compare_steps(
    run: PodRun,
    pod: VirtualPod,
    device: OneDevice,
    batches: Iterable[Sequence[Batch]],
    *,
    steps: int,
    evaluate: Callable[[str, Comparison], None] | None = None,
) -> Comparison:
    """Fills the variables of both sides with equal values, takes the steps, and compares the sides.

    The function `evaluate` compares evaluations with a checkpoint; None omits them.
    """
    comparison = Comparison(BANDS[run.variable_dtype.activation_dtype.name])
    pod.initialise()
    initial = pod.variables().values
    device.load(initial)
    batches = iter(batches)
    comparison.lines.append(
        f"{'step':>4}  {'loss: cores':>13} {'one device':>13}  {'gradient norm: cores':>20} "
        f"{'one device':>13}"
    )
    no_sign: dict[str, np.ndarray] = {}
    for step in range(1, steps + 1):
        core_batches = next(batches)
        theirs, ours = pod.step(core_batches), device.step(core_batches[0])
        compare_step(comparison, step, theirs, ours, core_batches)
        for name, gradient in ours.gradients.items():
            small = sign_is_rounding(theirs.gradients.values[name], gradient, comparison.bands.sign)
            no_sign[name] = small | no_sign.get(name, False)
    after, on_device = pod.variables(), device.variables()
    compare_variables(comparison, initial, after.values, on_device, no_sign)
    comparison.disagreements += [
        f"the cores' replicas of {name} are not equal" for name in after.unequal
    ]
    _compare_restored(comparison, pod, device, next(batches), evaluate)
    return comparison


def compare_step(
    comparison: Comparison, step: int, theirs: PodStep, ours: DeviceStep, batches: Sequence[Batch]
) -> None:
    """Compares one training step; only in the first step also the gradients.

    Args:
      step: the number of the step, counted from 1.
      theirs: the step on the cores.
      ours: the step on one device.
      batches: the batch of each core.
    """
    bands, gradients = comparison.bands, theirs.gradients.values
    loss = float(theirs.losses[0])
    norm = sum(float(np.square(x.astype(np.float64)).sum()) for x in gradients.values()) ** 0.5
    comparison.lines.append(
        f"{step:>4}  {loss:>13.6f} {ours.loss:>13.6f}  {norm:>20.6f} {ours.gradient_norm:>13.6f}"
    )
    band = bands.loss if step == 1 else bands.later
    comparison.check(f"the loss of step {step}", _relative(loss, ours.loss), band)
    if step == 1:
        difference = _relative(norm, ours.gradient_norm)
        comparison.check("the gradient norm of step 1", difference, bands.later)
        for name, gradient in ours.gradients.items():
            difference = relative_difference(gradients[name], gradient)
            comparison.check(f"step 1's gradient of {name}", difference, bands.gradient)
    faults = _find_faults(theirs, batches)
    comparison.disagreements += [f"step {step}: {fault}" for fault in faults]


def _find_faults(step: PodStep, batches: Sequence[Batch]) -> Iterator[str]:
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


def compare_variables(
    comparison: Comparison,
    initial: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    no_sign: Mapping[str, np.ndarray],
) -> None:
    """Compares the variables after the steps, which include the optimizer's slots.

    Args:
      initial: name -> the variable before the steps.
      theirs: name -> the variable after the steps on the cores.
      ours: name -> the variable after the steps on one device.
      no_sign: name -> bool array in the shape of the variable. True means that the relative
        difference excludes the number (see `sign_is_rounding`). If a name is missing, no number is
        excluded.
    """
    greatest: dict[str, float] = {}
    for name in sorted(theirs.keys() & ours.keys()):
        before, a, b = (x[name].astype(np.float64) for x in (initial, theirs, ours))
        difference = np.nan_to_num(np.abs(a - b), nan=np.inf)
        greatest[name] = float(np.max(difference))
        excluded = no_sign.get(name, np.zeros((), bool)) & np.isfinite(difference)
        distance = np.linalg.norm(np.where(excluded, 0.0, difference))
        scale = np.linalg.norm(a - before) + _ROUNDING * np.linalg.norm(a)
        relative = distance / scale if distance else 0.0
        comparison.check(f"{name}, by how far it moved,", relative, comparison.bands.weights)
    worst = max(greatest, key=greatest.__getitem__)
    comparison.lines.append(f"greatest difference of a weight: {greatest[worst]:.1e} in {worst}")
    # The cores have no global step. On a pod, the hosts send it to each core.
    only_ours = ours.keys() - theirs.keys() - {_STEP}
    comparison.disagreements += [
        *(f"only the cores have {name}" for name in sorted(theirs.keys() - ours.keys())),
        *(f"only our loop has {name}" for name in sorted(only_ours)),
    ]


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
    """Returns the norm of the difference, divided by the norm of `ours`; 0 if both are equal."""
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    distance = np.linalg.norm(a - b)
    return float(distance / max(np.linalg.norm(b), 1e-30)) if distance else 0.0


def _compare_restored(
    comparison: Comparison,
    pod: VirtualPod,
    device: OneDevice,
    batches: Sequence[Batch],
    evaluate: Callable[[str, Comparison], None] | None,
) -> None:
    """Saves the pod's checkpoint, restores it on both sides, and takes one more step."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "model.ckpt-1")
        saved = pod.variables().values
        pod.save(prefix)
        reader = tf.train.load_checkpoint(prefix)
        names = reader.get_variable_to_shape_map()
        written = {name: reader.get_tensor(name) for name in names}
        pod.initialise()  # other weights, so that a restore without effect is noticed
        pod.restore(prefix)
        restored = pod.variables().values
        device.restore(prefix)
        theirs, ours = float(pod.step(batches).losses[0]), device.step(batches[0]).loss
        comparison.lines.append(
            "a checkpoint of the pod, restored by both; the next loss: "
            f"{theirs:.6f} on cores, {ours:.6f} on one device"
        )
        band = comparison.bands.loss
        comparison.check("the loss after restoring the checkpoint", _relative(theirs, ours), band)
        comparison.disagreements += [
            *_find_differences(saved, written, "the checkpoint does not hold"),
            *_find_differences(restored, written, "the cores did not restore"),
        ]
        if evaluate:
            evaluate(prefix, comparison)


def _find_differences(
    values: Mapping[str, np.ndarray], saved: Mapping[str, np.ndarray], problem: str
) -> Iterator[str]:
    for name, value in sorted(values.items()):
        # A checkpoint may have a narrower type than the slices. So values are compared in the
        # checkpoint's type.
        if name not in saved or not np.array_equal(value.astype(saved[name].dtype), saved[name]):
            yield f"{problem} {name}"


def compare_evaluations(
    comparison: Comparison, run: PodRun, cores: tuple[ReadingCores, ReadingCores], prefix: str
) -> None:
    """Scores random choices and measures their perplexity with a checkpoint on both sides.

    Args:
      run: the run on a slice.
      cores: the programs of the modes "score_eval" and "perplexity_eval".
      prefix: the path of the checkpoint.
    """
    inputs, targets = random_choices(run)
    rows = {
        "inputs": np.repeat(inputs, targets.shape[1], axis=0),
        "targets": targets.reshape(-1, targets.shape[-1]),
    }
    for side in cores:
        side.restore(prefix)
    scores, measured = (side.values(rows) for side in cores)
    band = comparison.bands.later
    ours = score_choices(run, prefix, inputs, targets)
    difference = np.abs(scores[0][0].reshape(ours.shape) - ours).max() / np.abs(ours).max()
    comparison.check("the largest score of the choices", difference, band)
    _, entropy, predictions, labels, weights = measured[0]
    tokens = float(weights.sum())
    nats = float(np.sum(entropy * weights, dtype=np.float64) / tokens)
    accuracy = float(((predictions == labels) * weights).sum() / tokens)
    device = measure_perplexity(run, prefix, rows)
    comparison.check("the number of target tokens", abs(tokens - device.tokens), 0)
    comparison.check("the number of nats per token", _relative(nats, device.nats_per_token), band)
    comparison.check("the token accuracy", abs(accuracy - device.accuracy), band)
    for name, values in (("scores", scores), ("cross entropies", measured)):
        if not equal_on_cores(values):
            comparison.disagreements.append(f"the cores' {name} are not equal")
    comparison.lines += [
        f"{ours.size} choices scored with it: the greatest difference is {difference:.1e} of the "
        "largest log-likelihood",
        f"its perplexity over {device.tokens:,.0f} tokens: {nats:.6f} nats a token on cores, "
        f"{device.nats_per_token:.6f} on one device",
    ]
