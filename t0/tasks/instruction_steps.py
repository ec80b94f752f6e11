"""Tokenizes the parts of an instruction task's inputs, and joins the parts that fit.

Before the caching point, the fields `name`, `definition`, `positives`, `negatives` and `instance`
of a record are the parts of its input, in this order. Each positive or negative example of the task
is one part. The field `outputs` has the accepted outputs. A cached record has these fields:

    inputs                [tokens]   the ids of the input with all of its examples
    inputs_pretokenized   []         its text
    part_tokens           [parts]    the number of ids of each part; 0 for a missing example
    part_bytes            [parts]    the number of bytes of each part's text
    outputs               [tokens]   the ids of all outputs, one output after another
    outputs_pretokenized  [outputs]  their texts
    output_tokens         [outputs]  the number of ids of each output

Parts start and end at white space, and pieces of T5's vocabularies do not cross white space.
Therefore, to drop an example from the input, it is enough to drop its ids. There is one exception:
if two ways to split a word are equally likely, the choice of SentencePiece may depend on the text
before the word.

`t0.feeding.cached_examples` performs the steps after the caching point without TensorFlow.
"""

from collections.abc import Mapping
from typing import Any

from t0.compat import seqio, tf

# The maximum length of inputs in Tk-Instruct and nanoT5. It is used if no other length is set.
LONGEST_INPUTS = 1024

Record = Mapping[str, Any]


def encode_parts(
    dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Tokenizes outputs and the parts of inputs. The header of the module describes the records."""

    def encode(record: Record) -> Record:
        rest = dict(record)
        name, definition, positives, negatives, instance, outputs = (
            rest.pop(key)
            for key in ("name", "definition", "positives", "negatives", "instance", "outputs")
        )
        texts = [name, definition, *tf.unstack(positives), *tf.unstack(negatives), instance]
        beginnings = [tf.strings.join(texts[: number + 1]) for number in range(len(texts))]
        ids = output_features["inputs"].vocabulary.encode_tf(tf.stack(beginnings))
        # `beginnings` has the text up to the end of each part. The ids of a beginning are the first
        # ids of the whole input, so their number is the position at which the part ends. If a
        # vocabulary has pieces that cross white space, sorting keeps these positions in order.
        ends = tf.sort(tf.minimum(ids.row_lengths(), tf.size(ids[-1], tf.int64)))
        targets = output_features["targets"].vocabulary.encode_tf(outputs)
        return {
            "inputs": ids[-1],
            "inputs_pretokenized": beginnings[-1],
            "part_tokens": tf.cast(ends - tf.concat([[0], ends[:-1]], 0), tf.int32),
            "part_bytes": tf.strings.length(tf.stack(texts)),
            "outputs": targets.values,
            "outputs_pretokenized": outputs,
            "output_tokens": tf.cast(targets.row_lengths(), tf.int32),
            **rest,
        }

    return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE)


@seqio.map_over_dataset(num_seeds=1)
def draw_output(record: Record, seed: tf.Tensor) -> Record:
    """Sets `targets` to one of the record's `outputs`, which is drawn at random with `seed`."""
    rest = dict(record)
    ids, texts, sizes = (
        rest.pop(name) for name in ("outputs", "outputs_pretokenized", "output_tokens")
    )
    drawn = tf.random.stateless_uniform([], seed, minval=0, maxval=tf.size(sizes), dtype=tf.int32)
    end = tf.cumsum(sizes)[drawn]
    return {**rest, "targets": ids[end - sizes[drawn] : end], "targets_pretokenized": texts[drawn]}


def join_what_fits(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    positives: int,
) -> tf.data.Dataset:
    """Joins the parts of each input, and drops the examples that do not fit.

    The maximum length of an input is `sequence_length["inputs"]`, which includes EOS.

    An example is kept if it fits together with the definition, the instance and the examples that
    are kept before it. The first example that does not fit is dropped, and so are all later
    examples of its kind (positive or negative). The tokens of the task's name are not counted.
    These are the rules of Tk-Instruct (`src/ni_collator.py`).

    Args:
      dataset: records made by `encode_parts`.
      sequence_length: feature -> its maximum number of tokens. The default for inputs is
        `LONGEST_INPUTS`.
      output_features: the task's features.
      positives: the number of slots for positive examples. The other slots are for negative
        examples.
    """
    most = (sequence_length or {}).get("inputs") or LONGEST_INPUTS
    most -= int(output_features["inputs"].add_eos)

    def join(record: Record) -> Record:
        rest = dict(record)
        sizes, part_bytes = rest.pop("part_tokens"), rest.pop("part_bytes")
        mask = _select_fitting(sizes, positives, most)
        text = tf.fill(tf.shape(part_bytes), rest["inputs_pretokenized"])
        starts = tf.cumsum(part_bytes, exclusive=True)
        texts = tf.strings.substr(text, starts, part_bytes)
        return {
            **rest,
            "inputs": tf.boolean_mask(rest["inputs"], tf.repeat(mask, sizes)),
            "inputs_pretokenized": tf.strings.reduce_join(tf.boolean_mask(texts, mask)),
        }

    return dataset.map(join, num_parallel_calls=tf.data.AUTOTUNE)


def _select_fitting(sizes: tf.Tensor, positives: int, most: int) -> tf.Tensor:
    """Returns a mask, bool [parts], of the parts to keep in an input of at most `most` tokens."""
    always = tf.fill([2], True)
    least = sizes[1] + sizes[-1]
    first, second = sizes[2 : 2 + positives], sizes[2 + positives : -1]
    before = least + tf.cumsum(first)
    first_mask = before <= most
    after = least + tf.reduce_sum(tf.where(first_mask, first, 0)) + tf.cumsum(second)
    return tf.concat([always, first_mask, after <= most, always[:1]], 0)
