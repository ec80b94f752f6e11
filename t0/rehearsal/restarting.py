"""Rehearses a restart, and checks that the pod gets the same batches as in an unbroken run.

    stream = write_stream(run, folder, steps=30)          # parse gin first
    hashes = feed_with_restart(run, stream, steps=30, kill_at=12)
    hashes[30]                          # the hash of the batch of step 30, which every core gets

The pod reads its batches from a stream, with the operations that a TPU's hosts use, and saves a
checkpoint every few steps. After it is stopped and restarted, it takes the steps after the last
checkpoint again. Each of these steps must get the same batch as before.
"""

import functools
import hashlib
import tempfile

from t0.config.bindings import bound
from t0.errors import UserError, say
from t0.feeding import batch_stream, manifest, opening
from t0.feeding.batch_stream import Stream
from t0.files import write_whole
from t0.mesh.pod_run import PodRun
from t0.rehearsal.feeding import open_batches
from t0.rehearsal.virtual_pod import VirtualPod

_SAVE_EVERY = 5


def write_stream(run: PodRun, folder: str, *, steps: int) -> Stream:
    """Writes the batches of the configured run as a stream, and opens the stream.

    Args:
      run: the run on a slice.
      folder: the folder of the stream.
      steps: the number of steps whose batches are written.

    Raises:
      UserError: if the tasks are not cached as examples.
    """
    dataset_fn, lengths = bound("run.train_dataset_fn"), run.sequence_length
    seed = bound("train_loop.seed", 0)
    data = opening.open_dataset_function(dataset_fn, seed, sequence_length=lengths)
    recorded = manifest.build(data, run.batch_sequences, manifest.Start())
    if recorded is None or not recorded.indexed:
        raise UserError(
            "the tasks are not cached as examples: cache them with seqio_cache_tasks, and set "
            "mesh_train_dataset_fn.use_cached = True"
        )
    list(batch_stream.write(folder, recorded, data, first=1, last=steps, workers=1))
    return batch_stream.open_stream(folder)


def feed_with_restart(
    run: PodRun, stream: Stream, *, steps: int, kill_at: int | None
) -> dict[int, str]:
    """Takes steps, with at most one restart, and returns the hash of each step's batch.

    Args:
      run: the run on a slice, small enough for this machine.
      stream: the stream of the batches. The checkpoints are written next to it.
      steps: the last step.
      kill_at: the step after which the program is stopped and restarted; None for an unbroken run.

    Raises:
      UserError: if a repeated step gets another batch than before.
    """
    hashes: dict[int, str] = {}
    for end in (steps,) if kill_at is None else (kill_at, steps):
        first = len(hashes) // _SAVE_EVERY * _SAVE_EVERY
        dataset = functools.partial(batch_stream.stream_dataset, stream, first)
        with VirtualPod.open(run) as pod, open_batches(dataset) as batches:
            pod.initialise()
            if first:
                pod.restore(f"{stream.folder}/model.ckpt-{first}")
            for step in range(first + 1, end + 1):
                batch = next(batches)
                content = b"".join(name.encode() + batch[name].tobytes() for name in sorted(batch))
                digest = hashlib.sha256(content).hexdigest()
                if hashes.setdefault(step, digest) != digest:
                    raise UserError(f"after the restart, step {step:,} got another batch")
                pod.step(batch)
                if step % _SAVE_EVERY == 0:
                    pod.save(f"{stream.folder}/model.ckpt-{step}")
    return hashes


def rehearse_restart(
    run: PodRun, *, steps: int, kill_at: int | None, hashes_file: str | None
) -> None:
    """Rehearses the configured run with a restart, and writes the hashes of the batches.

    Args:
      run: the run on a slice, small enough for this machine.
      steps: the last step.
      kill_at: the step after which the pod is stopped and restarted; None for an unbroken run.
      hashes_file: the file for the hashes, with a line for each step and core; None for no file.
    """
    with tempfile.TemporaryDirectory() as folder:
        stream = write_stream(run, folder, steps=steps)
        hashes = feed_with_restart(run, stream, steps=steps, kill_at=kill_at)
    if kill_at is not None:
        saved = kill_at // _SAVE_EVERY * _SAVE_EVERY
        say(f"stopped after step {kill_at:,}, restarted from the checkpoint of step {saved:,}")
    cores = range(run.slice_.cores)
    say(f"{steps:,} steps on {len(cores)} virtual cores, fed by the stream's operations")
    if hashes_file:
        lines = (f"{step} {core} {x}\n" for step, x in hashes.items() for core in cores)
        write_whole(hashes_file, "".join(lines))
