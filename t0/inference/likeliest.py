"""The likeliest token of float32 logits, found by a product of half the time.

    tokens, nats = likeliest(hidden, table)       # bfloat16 [B, D], [V, D] -> [B], [B]

Letters of the shapes: B examples, D `d_model`, V vocabulary, C candidates.

A processor that multiplies bfloat16 numbers computes such a product in half the time of a float32
one, but rounds each logit by up to 1/256. So it only finds candidates, whose logits are computed
again in float32. A rounded logit that is not among them is too small by more than rounding, or else
all are computed in float32: the tokens are those of float32 logits. Of a score, the part of the
other tokens' probabilities is computed of rounded logits.
"""

from t0.compat import tf1 as tf

# Logits that are computed again for each example.
_CANDIDATES = 16
# Twice the relative error of rounding to bfloat16, which has 8 significant bits.
_ROUNDING = 2.0**-7
# A row's largest numbers are found among the largest of so many places each.
_PLACES = 128


def finds(vocabulary: int) -> bool:
    """Returns whether `likeliest` takes a table of so many tokens."""
    return vocabulary % _PLACES == 0 and vocabulary // _PLACES > _CANDIDATES


def likeliest(hidden: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the likeliest token of each example, and the logarithm of its probability.

    Args:
      hidden: the last hidden states, bfloat16 [B, D].
      table: the softmax's weights, bfloat16 [V, D]; `finds(V)`.

    Returns:
      tokens, int32 [B], and nats, float32 [B].
    """
    rounded = tf.cast(tf.matmul(hidden, table, transpose_b=True), tf.float32)
    rough, candidates = largest(rounded, _CANDIDATES)
    exact = _products(tf.gather(table, candidates), hidden)
    top = tf.reduce_max(exact, -1)
    place = tf.argmax(exact, -1, output_type=tf.int32)
    tokens = tf.gather(candidates, place, batch_dims=1)
    # The sum of all exponentials, in units of the likeliest token's: of the rounded logits, and
    # of the candidates once more.
    whole = tf.exp(rough[:, 0] - log_share(rounded, candidates[:, 0]) - top)
    again = tf.exp(exact - top[:, tf.newaxis]) - tf.exp(rough - top[:, tf.newaxis])
    nats = -tf.log(whole + tf.reduce_sum(again, -1))
    unsure = top < rough[:, -1] + tf.abs(rough[:, -1]) * _ROUNDING

    def corrected() -> tuple[tf.Tensor, tf.Tensor]:
        # Only where unsure, so that an example's score does not depend on the others'.
        pairs = zip(_in_float32(hidden, table), (tokens, nats), strict=True)
        return tuple(tf.where(unsure, whole, few) for whole, few in pairs)

    return tf.cond(tf.reduce_any(unsure), corrected, lambda: (tokens, nats))


def of_logits(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns tokens, int32 [B], and nats, float32 [B], of float32 logits [B, V]."""
    tokens = tf.argmax(logits, -1, output_type=tf.int32)
    return tokens, log_share(logits, tokens)


def log_share(logits: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the log-probability of the likeliest token of each row.

    Args:
      logits: float32 [B, V].
      tokens: the likeliest token of each row, [B].
    """
    # Its probability is never 0, so the softmax, which is faster, is exact enough.
    return tf.log(tf.gather(tf.nn.softmax(logits), tokens, batch_dims=1))


def _in_float32(hidden: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    hidden, table = tf.cast(hidden, tf.float32), tf.cast(table, tf.float32)
    return of_logits(tf.matmul(hidden, table, transpose_b=True))


def largest(rows: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the `count` largest of rows [B, V], the largest first, and their places.

    Of equal numbers the first comes first.
    """
    batch, size = rows.shape.as_list()
    if size % _PLACES or size // _PLACES <= count:
        return tf.math.top_k(rows, count)
    # The largest of each part first: `top_k` of whole rows takes ten times as long.
    parts = tf.reshape(rows, [batch, size // _PLACES, _PLACES])
    within = tf.sort(tf.math.top_k(tf.reduce_max(parts, -1), count)[1])
    few, places = tf.math.top_k(
        tf.reshape(tf.gather(parts, within, batch_dims=1), [batch, -1]), count
    )
    part = tf.gather(within, places // _PLACES, batch_dims=1)
    return few, part * _PLACES + places % _PLACES


def _products(rows: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
    """Returns the float32 products of rows [B, C, D] with hidden states [B, D], [B, C]."""
    hidden = tf.cast(hidden, tf.float32)[..., tf.newaxis]
    return tf.matmul(tf.cast(rows, tf.float32), hidden)[..., 0]
