"""Random draws that two programs share: each number follows from its place, not from a generator.

    with draws_by_place():
        lowered = lower(run)               # dropout keeps and drops the same places in both
    with draws_by_place():
        graph = build(spec, ...)

No two programs draw the same random numbers: each core of a TPU has a generator without a seed, and
our loop's depends on seed and step. Within the context Mesh TensorFlow's uniform numbers, which
dropout compares with its rate, are those of a Weyl sequence: the fraction of irrational steps along
each dimension, and one step more from one draw of the program to the next. Numbers are spread
evenly over 0 to 1, and the same for all rows of a batch, because microbatches may hold other rows.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

from t0 import compat
from t0.compat import mtf
from t0.compat import tf1 as tf

_ROWS = ("batch", "outer_batch")
_GOLDEN_RATIO = 0.6180339887


@contextlib.contextmanager
def draws_by_place() -> Iterator[None]:
    """Replaces Mesh TensorFlow's uniform draws in the programs that are built in the context.

    The n-th draw of one program is that of another, so each program needs a context of its own.
    """
    numbers = itertools.count()

    def by_place(mesh: mtf.Mesh, shape: Any, **keywords: Any) -> mtf.Tensor:
        del keywords  # the type: a comparison with the rate needs float32
        return uniform(mesh, mtf.convert_to_shape(shape), next(numbers))

    with compat.replaced("mtf_ops.random_uniform", by_place):
        yield


def uniform(mesh: mtf.Mesh, shape: mtf.Shape, number: int) -> mtf.Tensor:
    """Returns numbers from 0 to 1, float32, one for each place of a tensor.

    Args:
      mesh: the mesh of the tensor.
      shape: its shape. The order of its dimensions does not matter, nor how a layout splits them.
      number: which draw of the program it is.
    """
    total = mtf.constant(mesh, number * _GOLDEN_RATIO % 1, mtf.Shape([]), tf.float32)
    for dim in sorted(shape.dims, key=lambda dim: dim.name):
        if dim.name not in _ROWS:
            places = mtf.range(mesh, dim, tf.float32)
            total = mtf.mod(total + places * _step(dim.name), 1.0)
    return mtf.broadcast(total, shape)


def _step(name: str) -> float:
    """Returns a step between 0.25 and 0.75 that differs between dimensions."""
    digest = hashlib.sha256(name.encode()).digest()
    return 0.25 + 0.5 * int.from_bytes(digest[:4], "little") / 2**32
