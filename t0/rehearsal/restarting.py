"""Rehearses a restart, and checks that the pod gets the same batches as in an unbroken run.

    programs = PodPrograms(run, "/tmp/checkpoints")
    hashes = feed_with_restart(programs, batches_from, steps=30, kill_at=12)
    hashes[30][0]                       # the hash of the batch of step 30 on core 0

The pod saves a checkpoint every few steps. After it is stopped and restarted, it takes the steps
after the last checkpoint again. Each of these steps must get the same batch as before.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from t0.errors import UserError
from t0.files import write_whole
from t0.mesh.pod_run import PodRun
from t0.rehearsal.feeding import Batch
from t0.rehearsal.virtual_pod import VirtualPod

SAVE_EVERY = 5
# A function that takes the number of completed steps, and opens the batches of the following steps.
# The resulting iterator returns, for each step, one batch per core.
BatchesFrom = Callable[[int], AbstractContextManager[Iterator[Sequence[Batch]]]]


class Program(Protocol):
    """A program that takes steps, and can be stopped and started again."""

    def start(self, step: int) -> AbstractContextManager[Callable[[Sequence[Batch]], None]]:
        """Restores a step's checkpoint (0: new weights); yields a function that takes a step."""

    def save(self, step: int) -> None:
        """Writes the checkpoint of a step."""


class PodPrograms:
    """The training programs of all virtual cores.

    Args:
      run: the run on a slice.
      folder: the folder for the run's checkpoints.
    """

    def __init__(self, run: PodRun, folder: str) -> None:
        self._run, self._folder = run, Path(folder)
        self._pod: VirtualPod | None = None

    @contextlib.contextmanager
    def start(self, step: int) -> Iterator[Callable[[Sequence[Batch]], object]]:
        """Builds the programs; restores the checkpoint of `step` if it is above 0."""
        with VirtualPod.open(self._run) as self._pod:
            self._pod.initialise()
            if step:
                self._pod.restore(self._prefix(step))
            yield self._pod.step

    def save(self, step: int) -> None:
        """Writes the checkpoint of a step."""
        self._pod.save(self._prefix(step))

    def _prefix(self, step: int) -> str:
        return str(self._folder / f"model.ckpt-{step}")


def feed_with_restart(
    program: Program, batches_from: BatchesFrom, *, steps: int, kill_at: int | None
) -> dict[int, list[str]]:
    """Takes steps, with at most one restart, and returns the hashes of each step's batches.

    Args:
      program: the program that takes the steps.
      batches_from: a function that opens the batches that follow a step.
      steps: the last step.
      kill_at: the step after which the program is stopped and restarted; None for an unbroken run.

    Returns:
      step -> the hash of the batch of each core.

    Raises:
      UserError: if a repeated step gets another batch than before.
    """
    hashes: dict[int, list[str]] = {}
    saved = 0
    for end in (kill_at, steps):
        if end is None:
            continue
        first = saved
        with program.start(first) as take, batches_from(first) as batches:
            for step in range(first + 1, end + 1):
                cores = next(batches)
                digests = [hash_batch(batch) for batch in cores]
                if hashes.setdefault(step, digests) != digests:
                    raise UserError(
                        f"after the restart, step {step:,} got another batch than before: the "
                        "stream or its reading is wrong"
                    )
                take(cores)
                if step % SAVE_EVERY == 0:
                    program.save(step)
                    saved = step
    return hashes


def hash_batch(batch: Mapping[str, object]) -> str:
    """Returns the SHA-256 of a batch's features, in alphabetical order."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(name.encode() + batch[name].tobytes())
    return digest.hexdigest()


def rehearse_restart(
    run: PodRun,
    batches_from: BatchesFrom,
    *,
    steps: int,
    kill_at: int | None,
    hashes_file: str | None,
) -> None:
    """Rehearses a run with a restart, reports the result, and writes the hashes of the batches.

    Args:
      run: the run on a slice, small enough for this machine.
      batches_from: a function that opens the batches that follow a step.
      steps: the last step.
      kill_at: the step after which the pod is stopped and restarted; None for an unbroken run.
      hashes_file: the file for the hashes, with a line for each step and core; None for no file.
    """
    with tempfile.TemporaryDirectory() as folder:
        programs = PodPrograms(run, folder)
        hashes = feed_with_restart(programs, batches_from, steps=steps, kill_at=kill_at)
    if kill_at is not None:
        restored = kill_at // SAVE_EVERY * SAVE_EVERY
        print(f"stopped after step {kill_at:,}, restarted from the checkpoint of step {restored:,}")
    print(f"{steps:,} steps on {run.slice_.cores} virtual cores, fed by the stream's operations")
    if hashes_file:
        lines = [
            f"{step} {core} {digest}\n"
            for step, cores in sorted(hashes.items())
            for core, digest in enumerate(cores)
        ]
        write_whole(hashes_file, "".join(lines))
        print(f"hashes of the batches: {hashes_file}")
