"""Batches for the step, made ahead by a thread, each with the data position that follows it.

    with Ahead(data.batches(16, position)) as batches:
        batch, position = next(batches)

`AnyDataset` gives the same surface to a `tf.data.Dataset` of a user's own function, which can only
be resumed by reading again what was read.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.compat import tf1 as tf
from t0.errors import UserError, original

Batch = dict[str, np.ndarray]

_DEPTH = 4
_END = object()


class Ahead:
    """Takes elements from an iterator in a thread of its own, a few ahead.

    Args:
      elements: must not be used elsewhere.
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements = elements
        self._queue: queue.Queue[Any] = queue.Queue(_DEPTH)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, daemon=True)

    def __enter__(self) -> "Ahead":
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        while self._thread.is_alive():
            while not self._queue.empty():
                self._queue.get_nowait()
            self._thread.join(0.05)

    def __iter__(self) -> "Ahead":
        return self

    def __next__(self) -> Any:
        element = self._queue.get()
        if element is _END:
            raise StopIteration
        if isinstance(element, BaseException):
            raise element
        return element

    def _fill(self) -> None:
        try:
            for element in self._elements:
                self._put(element)
                if self._stop.is_set():
                    return
            self._put(_END)
        except BaseException as error:  # noqa: BLE001 (handed to the thread that reads)
            self._put(error)

    def _put(self, element: Any) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(element, timeout=0.2)
            except queue.Full:
                continue
            return


class AnyDataset:
    """The batches of a dataset function that is not T5's.

    Args:
      make: builds the dataset, in the default graph of its caller.
    """

    packed = False
    filling = None
    spec = None

    def __init__(self, make: Any) -> None:
        self._make = make
        with tf.Graph().as_default():
            spec = tf.data.get_output_types(make())
        self.features = tuple(name for name, kind in spec.items() if kind.is_integer)

    def shares(self) -> list[Any]:
        """Nothing is known of its tasks."""
        return []

    def batches(
        self, rows: int, position: Mapping[str, int] | None = None
    ) -> Iterator[tuple[Batch, dict[str, int]]]:
        """Yields batches; a position is how many came before."""
        done = position["batches"] if position else 0
        # Neither graph nor session is entered: a generator may be closed in another context.
        graph = tf.Graph()
        with graph.as_default():
            dataset = self._make().repeat().batch(rows, drop_remainder=True).skip(done)
            following = tf.data.make_one_shot_iterator(dataset.prefetch(2)).get_next()
        session = tf.Session(graph=graph)
        while True:
            try:
                batch = session.run({name: following[name] for name in self.features})
            except tf.errors.OutOfRangeError:
                return
            except tf.errors.OpError as error:
                found = original(error)
                raise (found if isinstance(found, UserError) else error) from error
            done += 1
            yield {n: x.astype(np.int32) for n, x in batch.items()}, {"batches": done}
