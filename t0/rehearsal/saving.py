"""A checkpoint through the pod's own path, and restored by the pod and by our loop.

    saved = save_and_restore(pod, device, batches)
    saved.pod_loss, saved.device_loss          # of the next step, both from that checkpoint
    saved.faults                               # what the checkpoint lost, one clause each

On a pod the hosts gather the slices of each variable into its master, and Mesh TensorFlow's saver
writes the masters; restoring goes the other way. Our loop reads the same files by its own code.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from t0.compat import tf1 as tf
from t0.rehearsal.measuring import Measured
from t0.rehearsal.one_device import OneDevice
from t0.rehearsal.ranking import Ranked
from t0.rehearsal.virtual_pod import VirtualPod


@dataclasses.dataclass(frozen=True)
class Saved:
    """What became of a checkpoint.

    Attributes:
      pod_loss: the loss of the step after it, on the cores that restored it.
      device_loss: that of our loop, which restored it, too.
      faults: what the checkpoint or a restored core lacks, one clause each.
      ranked: choices scored with it on both sides; None where no scoring program was built.
      measured: its perplexity on both sides; None where no such program was built.
    """

    pod_loss: float
    device_loss: float
    faults: tuple[str, ...]
    ranked: Ranked | None = None
    measured: Measured | None = None


def save_and_restore(
    pod: VirtualPod,
    device: OneDevice,
    batches: Sequence[Mapping[str, np.ndarray]],
    evaluating: Callable[[str], tuple[Ranked, Measured]] | None = None,
) -> Saved:
    """Saves on the pod's hosts, restores on both sides, and takes one step more.

    Args:
      pod: the cores, trained.
      device: our loop.
      batches: what each core is fed: feature -> int32 [sequences, length].
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
    return Saved(*losses, tuple(faults), *evaluated)


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
