"""Compiles functions of tensors with XLA on CPUs. Defines sums and maxima that XLA compiles well.

    @xla_compiled
    def mean_square(x):
        return row_sum(x * x) / int(x.shape[-1])

Small tensors, and tensors on a GPU, are computed by TensorFlow without compilation.
"""

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from t0.compat import tf as tf2
from t0.compat import tf1 as tf

# If a tensor has at least this many elements, the faster execution outweighs the compilation time.
WORTH_COMPILING = 1 << 17
# To reduce a row, its two halves are combined, and this is repeated until _LANES numbers remain. To
# sum columns, blocks of _BLOCK rows are summed first.
_LANES, _BLOCK = 16, 32
_compiling = contextvars.ContextVar("compiling", default=False)


def xla_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of tensors, so that XLA compiles it for large tensors on a CPU.

    XLA computes element-wise operations in one pass, but needs a third of a second to compile each
    new shape. So small tensors, and tensors on a GPU, are computed without compilation. Functions
    are also not compiled inside TensorFlow 1 loops, because a compiled call has no loop frame.
    """

    def traced(*tensors: Any) -> Any:
        token = _compiling.set(True)
        try:
            return function(*tensors)
        finally:
            _compiling.reset(token)

    fast = tf2.function(traced, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def dispatch(*tensors: Any) -> Any:
        sizes = [x.shape.num_elements() or 0 for x in tensors if isinstance(x, tf.Tensor)]
        looping = tf.get_default_graph()._get_control_flow_context() is not None
        if looping or max(sizes) < WORTH_COMPILING or "gpu" in tensors[0].device.lower():
            return function(*tensors)
        _start_xla()
        return fast(*tensors)

    return dispatch


@functools.cache
def _start_xla() -> None:
    """Compiles a small function and discards stderr, because XLA prints a line at its first use."""
    with tf.Graph().as_default():
        fed = tf.placeholder(tf.float32, [1])
        doubled = tf2.function(lambda x: x + x, jit_compile=True)(fed)
        stderr_copy = os.dup(2)
        try:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), 2)
            with tf.Session() as session:
                session.run(doubled, {fed: [1.0]})
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)


def row_sum(x: tf.Tensor) -> tf.Tensor:
    """Returns the sums over the last axis, [..., b] -> [...]."""
    return tf.reduce_sum(_fold_halves(tf.add, x), -1)


def row_max(x: tf.Tensor) -> tf.Tensor:
    """Returns the maxima over the last axis, [..., b] -> [...]."""
    return tf.reduce_max(_fold_halves(tf.maximum, x), -1)


def softmax(x: tf.Tensor) -> tf.Tensor:
    """Returns the softmax over the last axis."""
    if not _compiling.get():
        return tf.nn.softmax(x)
    powers = tf.exp(x - row_max(x)[..., None])
    return powers / row_sum(powers)[..., None]


def _fold_halves(combine: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    # XLA reduces a row one number at a time, but adds the halves of rows to each other with vector
    # instructions.
    while _compiling.get() and x.shape[-1] > _LANES and x.shape[-1] % 2 == 0:
        half = int(x.shape[-1]) // 2
        x = combine(x[..., :half], x[..., half:])
    return x


def column_sum(x: tf.Tensor) -> tf.Tensor:
    """Returns the sums over the first axis, [a, b] -> [b]. Compiled code sums blocks of rows."""
    rows = int(x.shape[0])
    if _compiling.get() and rows % _BLOCK == 0:
        x = tf.reshape(x, [rows // _BLOCK, _BLOCK, x.shape[1]])
        while x.shape[1] > 1:
            half = int(x.shape[1]) // 2
            x = x[:, :half] + x[:, half:]
        x = x[:, 0]
    return tf.reduce_sum(x, 0)


@contextlib.contextmanager
def loops(*, as_functions: bool) -> Iterator[None]:
    """Selects how TensorFlow builds loops in a `with` block.

    Args:
      as_functions: True to build loops as functions; False to build them as graph operations, as
        for Mesh TensorFlow on a TPU.
    """
    switch = {True: tf.enable_control_flow_v2, False: tf.disable_control_flow_v2}
    before = tf.control_flow_v2_enabled()
    switch[as_functions]()
    try:
        yield
    finally:
        switch[before]()
