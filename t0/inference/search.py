"""Chooses the next tokens by greedy search, sampling or beam search.

Legend: B examples, K beams, T target tokens, V vocabulary.

    beams = search(DecodingMethod(beam_size=4))
    state = beams.start(limits, 64)                                  # limits [B], T
    state = beams.step(step, logits, limits, draws, *state)          # logits [B, K, V]

The state of a search is a tuple of tensors whose first dimension is B. Its step function takes
float32 logits and returns the next state. The step function consists of TensorFlow operations, and
computes the examples of one device. The tokens of an example do not depend on other examples.

A score is the sum of the natural logarithms of the predicted tokens' probabilities, including EOS.
The temperature and top k affect only which tokens are drawn. They do not affect the probabilities
in the score.
"""

import dataclasses
from collections.abc import Callable

from t0.compat import tf1 as tf
from t0.evaluation.model import DecodingMethod
from t0.inference.inputs import EOS, NEVER

# To find the largest entries of a row, the row is divided into parts with this many entries, and
# the maxima of the parts are compared first.
_BLOCK_SIZE = 128


@dataclasses.dataclass(frozen=True)
class Field:
    """The shape and type of a tensor in the state of a search.

    The tensor's shape is [B, *shape]. In `shape`, "beam" stands for K, and "length" stands for T.
    """

    shape: tuple[str, ...]
    dtype: tf.DType


@dataclasses.dataclass(frozen=True)
class Search:
    """The functions of a search.

    Attributes:
      fields: name -> shape and type of the state's tensors. Every state has `running` [B], which is
        1 until an example ends and then 0; `tokens` [B, (K)], the next inputs of the decoder; and
        the results so far, `ids` [B, T] and `score` [B].
      start: a function of (limits [B], T) that returns the first state, in the order of `fields`.
      step: a function of (step, logits [B, (K,) V], limits [B], draws [B, T], *state) that returns
        the next state.
    """

    fields: dict[str, Field]
    start: Callable[[tf.Tensor, int], tuple[tf.Tensor, ...]]
    step: Callable[..., tuple[tf.Tensor, ...]]


_ONE = {
    "running": Field((), tf.int32),
    "tokens": Field((), tf.int32),
    "ids": Field(("length",), tf.int32),
    "score": Field((), tf.float32),
}
_BEAMS = {
    "running": Field((), tf.int32),
    "tokens": Field(("beam",), tf.int32),
    "ids": Field(("length",), tf.int32),
    "score": Field((), tf.float32),
    # `judged` is the score of the best finished beam, divided by its length penalty. The next three
    # fields are about unfinished beams: their tokens so far, their scores, and the cache's column
    # with the keys and values of each token.
    "judged": Field((), tf.float32),
    "alive_ids": Field(("beam", "length"), tf.int32),
    "alive_scores": Field(("beam",), tf.float32),
    "ancestors": Field(("beam", "length"), tf.int32),
}


def search(method: DecodingMethod) -> Search:
    """Returns the search functions of a decoding method."""
    if method.beam_size > 1:
        return Search(_BEAMS, _start_beams(method), _step_beams(method))
    return Search(_ONE, _start_single, _step_single(method))


def _start_single(limits: tf.Tensor, length: int) -> tuple[tf.Tensor, ...]:
    zeros = tf.zeros_like(limits)
    running = tf.cast(limits > 0, tf.int32)
    return running, zeros, tf.zeros([*limits.shape.as_list(), length], tf.int32), tf.to_float(zeros)


def _step_single(method: DecodingMethod) -> Callable[..., tuple[tf.Tensor, ...]]:
    def step(
        now: tf.Tensor, logits: tf.Tensor, limits: tf.Tensor, draws: tf.Tensor, *state: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        running, _, ids, score = state
        if method.temperature:
            chosen = _draw_tokens(logits, draws[:, now], method)
            nats = tf.gather(logits, chosen, batch_dims=1) - tf.reduce_logsumexp(logits, -1)
        else:
            chosen = tf.argmax(logits, -1, output_type=tf.int32)
            nats = _log_probability(logits, chosen)
        chosen *= running
        score += nats * tf.to_float(running)
        ids = _with_column(ids, now, chosen)
        continues = tf.not_equal(chosen, EOS) & (now + 1 < limits)
        return running * tf.cast(continues, tf.int32), chosen, ids, score

    return step


def _draw_tokens(logits: tf.Tensor, draws: tf.Tensor, method: DecodingMethod) -> tf.Tensor:
    """Draws a token for each example, using uniform random numbers `draws` [B] in [0, 1)."""
    token_ids = None
    if method.top_k:
        logits, token_ids = tf.math.top_k(logits, min(method.top_k, logits.shape.as_list()[-1]))
    below = tf.cumsum(tf.nn.softmax(logits / method.temperature), -1)
    # Take the first token whose cumulative probability exceeds the draw. The draw is multiplied by
    # the sum of all probabilities, because rounding may make that sum less than 1.
    index = tf.reduce_sum(tf.cast(below <= draws[:, tf.newaxis] * below[:, -1:], tf.int32), -1)
    index = tf.minimum(index, logits.shape.as_list()[-1] - 1)
    return index if token_ids is None else tf.gather(token_ids, index, batch_dims=1)


def _start_beams(method: DecodingMethod) -> Callable[[tf.Tensor, int], tuple[tf.Tensor, ...]]:
    def start(limits: tf.Tensor, length: int) -> tuple[tf.Tensor, ...]:
        batch, beams = limits.shape.as_list()[0], method.beam_size
        columns = tf.zeros([batch, beams, length], tf.int32) + tf.range(beams)[:, tf.newaxis]
        return (
            tf.cast(limits > 0, tf.int32),
            tf.zeros([batch, beams], tf.int32),
            tf.zeros([batch, length], tf.int32),
            tf.fill([batch], 0.0),
            tf.fill([batch], NEVER),
            tf.zeros_like(columns),
            tf.one_hot(tf.zeros([batch], tf.int32), beams, 0.0, NEVER),
            columns,
        )

    return start


def _step_beams(method: DecodingMethod) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Returns the step function of beam search.

    Each step finds the best 2K continuations. The best K of those without EOS become the next
    beams. If one of the best K continuations has EOS or is at the example's limit, it is finished.
    Only the best finished beam is kept. An example ends when no unfinished beam can become better
    than this one.
    """
    beams = method.beam_size

    def penalty(tokens: tf.Tensor) -> tf.Tensor:
        return ((5.0 + tf.to_float(tokens)) / 6.0) ** method.alpha

    def step(
        now: tf.Tensor, logits: tf.Tensor, limits: tf.Tensor, draws: tf.Tensor, *state: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        del draws
        running, _, ids, score, judged, alive_ids, alive_scores, ancestors = state
        scores, parents, tokens = _continuations(logits, alive_scores, 2 * beams)
        candidates = _with_column(tf.gather(alive_ids, parents, batch_dims=1), now, tokens)

        ended = tf.equal(tokens, EOS) | (now + 1 >= limits)[:, tf.newaxis]
        finished = tf.where_v2(ended, scores, NEVER)[:, :beams]
        best = tf.argmax(finished, -1, output_type=tf.int32)
        best_score = tf.gather(finished, best, batch_dims=1)
        best_judged = best_score / penalty(now + 1)
        better = (running > 0) & (best_score > NEVER / 2) & (best_judged > judged)
        score = tf.where_v2(better, best_score, score)
        judged = tf.where_v2(better, best_judged, judged)
        best_ids = tf.gather(candidates, best, batch_dims=1)
        ids = tf.where_v2(better[:, tf.newaxis], best_ids, ids)

        alive_scores, alive = tf.math.top_k(
            tf.where_v2(tf.equal(tokens, EOS), NEVER, scores), beams
        )
        tokens, parents, alive_ids = (
            tf.gather(x, alive, batch_dims=1) for x in (tokens, parents, candidates)
        )
        # The keys and values of a beam's earlier tokens stay in the columns of the beams that it
        # continues. The beam writes the next keys and values to its own column.
        ancestors = tf.gather(ancestors, parents, batch_dims=1)
        ancestors = _with_column(ancestors, now + 1, tf.range(beams)[tf.newaxis])
        reachable = alive_scores[:, 0] / penalty(limits)
        running *= tf.cast((now + 1 < limits) & (reachable > judged), tf.int32)
        return running, tokens, ids, score, judged, alive_ids, alive_scores, ancestors

    return step


def _continuations(
    logits: tf.Tensor, alive_scores: tf.Tensor, count: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the scores, beams and tokens of the best continuations, each [B, count].

    The best continuation comes first.
    """
    batch, beams, vocabulary = logits.shape.as_list()
    logits = tf.reshape(logits, [-1, vocabulary])
    # First find the best tokens of each beam. Sorting the K * V tokens of all beams together is
    # slower.
    few, tokens = _largest(logits, min(count, vocabulary))
    nats = few - few[:, :1] + _log_probability(logits, tokens[:, 0])[:, tf.newaxis]
    scores = tf.reshape(nats, [batch, beams, -1]) + alive_scores[..., tf.newaxis]
    scores = tf.reshape(scores, [batch, -1])
    scores, indices = tf.math.top_k(scores, count)
    tokens = tf.gather(tf.reshape(tokens, [batch, -1]), indices, batch_dims=1)
    return scores, indices // few.shape.as_list()[-1], tokens


def _log_probability(logits: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the log-probabilities [B] of the most likely tokens [B] of logits [B, V]."""
    # The most likely token has a probability of at least 1 / V. So the logarithm of the softmax is
    # exact enough. It is faster than a log-softmax.
    return tf.log(tf.gather(tf.nn.softmax(logits), tokens, batch_dims=1))


def _largest(rows: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the `count` largest entries of each row [B, V], largest first, and their indices.

    Equal entries are sorted by index.
    """
    batch, size = rows.shape.as_list()
    if size % _BLOCK_SIZE or size // _BLOCK_SIZE <= count:
        return tf.math.top_k(rows, count)
    # First find the largest entry of each part. `top_k` on whole rows takes ten times as long.
    blocks = tf.reshape(rows, [batch, size // _BLOCK_SIZE, _BLOCK_SIZE])
    within = tf.sort(tf.math.top_k(tf.reduce_max(blocks, -1), count)[1])
    few, indices = tf.math.top_k(
        tf.reshape(tf.gather(blocks, within, batch_dims=1), [batch, -1]), count
    )
    block = tf.gather(within, indices // _BLOCK_SIZE, batch_dims=1)
    return few, block * _BLOCK_SIZE + indices % _BLOCK_SIZE


def _with_column(table: tf.Tensor, column: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Writes `values` [...] to one column of `table` [..., T], if the table has this column."""
    in_column = tf.equal(tf.range(table.shape.as_list()[-1]), column)
    return tf.where_v2(in_column, values[..., tf.newaxis], table)
