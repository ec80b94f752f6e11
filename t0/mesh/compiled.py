"""XLA for elementwise pieces of a step, where they are large enough to be worth its compilation.

@compiled
def gelu(x):
    return x * tf.sigmoid(...)
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from t0.compat import tf as tf2
from t0.compat import tf1 as tf

# Elements of the largest tensor from which a compiled pass is worth its compilation.
_WORTH_COMPILING = 1 << 18


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of tensors that XLA compiles where they are large.

    XLA makes one pass of what is elementwise, and takes a third of a second for each shape: small
    tensors (and what a GPU computes, or a loop repeats) are left to TensorFlow's operations.
    """
    fast = tf2.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def chosen(*tensors: Any) -> Any:
        sizes = [x.shape.num_elements() or 0 for x in tensors if isinstance(x, tf.Tensor)]
        # Within TensorFlow 1's loops (microbatches) a compiled call loses its frame.
        looping = tf.get_default_graph()._get_control_flow_context() is not None
        if looping or max(sizes) < _WORTH_COMPILING or "gpu" in tensors[0].device.lower():
            return function(*tensors)
        _announce_xla()
        return fast(*tensors)

    return chosen


@functools.cache
def _announce_xla() -> None:
    """Compiles something small, so that XLA's one notice of having done so meets a closed door."""
    with tf.Graph().as_default():
        fed = tf.placeholder(tf.float32, [1])
        doubled = tf2.function(lambda x: x + x, jit_compile=True)(fed)
        kept = os.dup(2)
        try:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), 2)
            with tf.Session() as session:
                session.run(doubled, {fed: [1.0]})
        finally:
            os.dup2(kept, 2)
            os.close(kept)
