"""Rehearses a restart, and checks that the pod gets the same batches as in an unbroken run.

    open_pod = lambda: VirtualPod.open(run)
    hashes = feed_with_restart(open_pod, batches_from, steps=30, kill_at=12)
    hashes[30][0]                       # the hash of the batch of step 30 on core 0

The pod saves a checkpoint every few steps. After it is stopped and restarted, it takes the steps
after the last checkpoint again. Each of these steps must get the same batch as before.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from t0.errors import UserError, say
from t0.files import write_whole
from t0.mesh.pod_run import PodRun
from t0.rehearsal.feeding import Batch
from t0.rehearsal.virtual_pod import VirtualPod

SAVE_EVERY = 5
# A function that takes the number of completed steps, and opens the batches of the following steps.
# The resulting iterator returns, for each step, one batch per core.
BatchesFrom = Callable[[int], AbstractContextManager[Iterator[Sequence[Batch]]]]
_OpenPod = Callable[[], AbstractContextManager[VirtualPod]]


def feed_with_restart(
    open_pod: _OpenPod, batches_from: BatchesFrom, *, steps: int, kill_at: int | None
) -> dict[int, list[str]]:
    """Takes steps, with at most one restart, and returns the hashes of each step's batches.

    Args:
      open_pod: starts the programs of all cores.
      batches_from: opens the batches after a step.
      steps: the last step.
      kill_at: the step after which the program is stopped and restarted; None for an unbroken run.

    Returns:
      step -> the hash of the batch of each core.

    Raises:
      UserError: if a repeated step gets another batch than before.
    """
    hashes: dict[int, list[str]] = {}
    saved = 0
    with tempfile.TemporaryDirectory() as folder:
        for end in (steps,) if kill_at is None else (kill_at, steps):
            first = saved
            with open_pod() as pod, batches_from(first) as batches:
                pod.initialise()
                if first:
                    pod.restore(f"{folder}/model.ckpt-{first}")
                for step in range(first + 1, end + 1):
                    cores = next(batches)
                    digests = [hash_batch(batch) for batch in cores]
                    if hashes.setdefault(step, digests) != digests:
                        raise UserError(
                            f"after the restart, step {step:,} got another batch than before: the "
                            "stream or its reading is wrong"
                        )
                    pod.step(cores)
                    if step % SAVE_EVERY == 0:
                        pod.save(f"{folder}/model.ckpt-{step}")
                        saved = step
    return hashes


def hash_batch(batch: Batch) -> str:
    """Returns the SHA-256 of a batch's features, in alphabetical order."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(name.encode() + batch[name].tobytes())
    return digest.hexdigest()


def rehearse_restart(
    run: PodRun, batches_from: BatchesFrom, *, steps: int, kill_at: int | None, file: str | None
) -> None:
    """Rehearses a run with a restart, reports the result, and writes the hashes of the batches.

    Args:
      run: the run on a slice, small enough for this machine.
      batches_from: a function that opens the batches that follow a step.
      steps: the last step.
      kill_at: the step after which the pod is stopped and restarted; None for an unbroken run.
      file: the file for the hashes, with a line for each step and core; None for no file.
    """
    hashes = feed_with_restart(
        lambda: VirtualPod.open(run), batches_from, steps=steps, kill_at=kill_at
    )
    if kill_at is not None:
        saved = kill_at // SAVE_EVERY * SAVE_EVERY
        origin = f"the checkpoint of step {saved:,}" if saved else "the start: no checkpoint yet"
        say(f"stopped after step {kill_at:,}, restarted from {origin}")
    say(f"{steps:,} steps on {run.slice_.cores} virtual cores, fed by the stream's operations")
    if file:
        lines = [
            f"{step} {core} {digest}\n"
            for step, cores in sorted(hashes.items())
            for core, digest in enumerate(cores)
        ]
        write_whole(file, "".join(lines))
        say(f"hashes of the batches: {file}")
