"""Measures one large matrix product in this process, the limit for comparisons of other figures.

.venv/bin/python benchmarks/product_rate.py float32   # GFLOP/s
"""

import os
import sys
import time

# Our commands also set this variable. By default, TensorFlow uses oneDNN only with AVX-512 VNNI.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import tensorflow.compat.v1 as tf  # noqa: E402

SIZE = 2048
PRODUCTS = 7


def product_rate(dtype: str) -> float:
    """Returns the GFLOP/s of a product of 2,048 by 2,048 by 2,048: the third best of seven."""
    with tf.Graph().as_default(), tf.Session() as session:
        values = [tf.random.stateless_uniform([SIZE, SIZE], [1, n]) for n in (1, 2)]
        variables = [
            tf.get_variable(str(n), initializer=tf.cast(value, dtype), use_resource=True)
            for n, value in enumerate(values)
        ]
        product = tf.matmul(variables[0].read_value(), variables[1].read_value()).op
        session.run(tf.global_variables_initializer())
        seconds = []
        for _ in range(PRODUCTS):
            started = time.perf_counter()
            session.run(product)
            seconds.append(time.perf_counter() - started)
    return 2 * SIZE**3 / sorted(seconds)[2] / 1e9


if __name__ == "__main__":
    tf.disable_v2_behavior()
    print(round(product_rate(sys.argv[1])))
