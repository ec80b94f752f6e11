"""Starts a worker process that makes the batches of uncached tasks while this process trains.

    data = open_data(spec.data, register)           # register: a function that can be pickled
    for batch, position in data.batches(16): ...    # the same batches as in the TensorFlow engine

In the worker process, the function `register` registers the tasks with SeqIO, which needs
TensorFlow. The process renders, tokenizes and packs examples, and sends each batch through a pipe,
with the position of the next batch. Each of the two
processes has a buffer (`read_ahead`) at its end of the pipe. The pipe and the two buffers together
hold at most ten batches. If the training process ends for any reason, the pipe closes, and the
worker process ends.
"""

import atexit
import contextlib
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace

from t0.child_processes import spawn_context
from t0.config.specification import DataSpec
from t0.errors import UserError
from t0.feeding.mixing import TaskShare
from t0.feeding.reading import read_ahead
from t0.feeding.training_data import Batch, Filling, Position, TrainingData, open_training_data

Register = Callable[[], None]


def open_data(spec: DataSpec, register: Register | None) -> "TrainingData | WorkerData":
    """Opens the data of a specification, with a worker process if a task is not cached.

    Args:
      spec: the specification of the data.
      register: registers the run's tasks; None if the run was started with a specification file,
        which must not import modules.

    Raises:
      UserError: if a task is not cached, and it cannot be registered, or there is no TensorFlow.
    """
    # Answer choices are only read from caches; `open_training_data` checks this.
    live = next((t.name for t in spec.tasks if not t.cache_files and not t.choices), None)
    if live is None:
        return open_training_data(spec)
    if register is None or importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            f"task {live} is not cached. Cache it with seqio_cache_tasks, on another machine if "
            "this one has no TensorFlow; or start the run with its flags instead of a "
            "specification file, on a machine with TensorFlow"
        )
    return WorkerData(spec, register)


class WorkerData:
    """The batches that a worker process makes, with the attributes of `TrainingData`.

    Args:
      spec: the specification of the data.
      register: registers the tasks in the worker process.
    """

    def __init__(self, spec: DataSpec, register: Register) -> None:
        # The sources have no examples, because the worker process makes them.
        data = open_training_data(
            spec,
            lambda task, _: SimpleNamespace(name=task.name, examples=task.examples, cache=None),
        )
        self.spec, self.mixture, self.window_sizes = spec, data.mixture, data.window_sizes
        self.read_position = data.read_position
        self.choices = None
        self.filling: Filling | None = None
        self._register, self._shares = register, data.shares()

    def shares(self) -> list[TaskShare]:
        """Returns each task's share of the examples drawn so far, including the current window."""
        return self._shares

    def batches(
        self, rows: int, position: Position | None = None
    ) -> Iterator[tuple[Batch, Position]]:
        """Yields batches and positions; see `TrainingData.batches`.

        Raises:
          UserError: if the data cannot be read, or if the worker process was killed.
        """
        context = spawn_context()
        receiver, sender = context.Pipe(duplex=False)
        arguments = (self._register, self.spec, rows, position, sender)
        worker = context.Process(target=_send_batches, args=arguments, daemon=True)
        worker.start()
        # At exit, `multiprocessing` sends SIGTERM, which the worker process ignores.
        atexit.register(worker.kill)
        sender.close()  # so that `recv` fails if the worker process ends
        try:
            while True:
                try:
                    content = receiver.recv()
                except (EOFError, OSError):  # OSError: in the middle of a batch
                    worker.join()
                    raise UserError(
                        "the worker process that makes the batches has ended (exit status "
                        f"{worker.exitcode}; -9: killed, perhaps because memory was full); the "
                        "same command resumes from the last checkpoint"
                    ) from None
                if isinstance(content, str):
                    raise UserError(content)
                batch, position, self.filling, self._shares = content
                yield batch, position
        finally:
            receiver.close()
            worker.kill()
            worker.join()
            atexit.unregister(worker.kill)


def _send_batches(
    register: Register, spec: DataSpec, rows: int, position: Position | None, sender: Connection
) -> None:
    """Runs in the worker process: sends batches, or the text of a UserError, until nobody reads."""
    # torchrun and Slurm send signals to all processes. The training process may still need a batch
    # before it can save, so it ends this process itself.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the training process uses the GPUs
    with contextlib.suppress(BrokenPipeError):
        try:
            register()
            from t0.feeding import data_spec

            data = data_spec.open_data(spec)
            with contextlib.closing(read_ahead(data.batches(rows, position))) as batches:
                for batch, following in batches:
                    sender.send((batch, following, data.filling, data.shares()))
        except UserError as error:
            sender.send(str(error))
