"""The steps of a task with instructions: an input's parts are tokenised, cached, and those that fit joined.

A record before the cache has `name`, `definition`, `positives`, `negatives` and `instance`, which are
the parts of its input in this order, and `outputs`. A cached record has all of these as tokens:

    inputs                [tokens]   the ids of the input with all of its examples
    inputs_pretokenized   []         its text
    part_tokens           [parts]    how many of the ids each part has; 0 for an example that is missing
    part_bytes            [parts]    how many bytes of the text
    outputs               [tokens]   the ids of all outputs, one output after another
    outputs_pretokenized  [outputs]  their texts
    output_tokens         [outputs]  how many of the ids each output has

Parts begin and end at white space, which pieces of T5's vocabularies do not cross. So the ids of an
input without some of its examples are those of the parts that stay, but for one thing: of two ways
to cut a word that are equally likely, SentencePiece may choose by what stands before it.

`t0.feeding.instructed` carries out the steps after the cache without TensorFlow.
"""  # noqa: E501 (a table)

from collections.abc import Mapping
from typing import Any

from t0.compat import seqio, tf

# Tk-Instruct's and nanoT5's limit, used if the sequence length of inputs is not set.
LONGEST_INPUTS = 1024

Record = Mapping[str, Any]


def encode_parts(
    dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Tokenises the parts of inputs, and the outputs; the module describes both records."""

    def encode(record: Record) -> Record:
        rest = dict(record)
        name, definition, positives, negatives, instance, outputs = (
            rest.pop(part)
            for part in ("name", "definition", "positives", "negatives", "instance", "outputs")
        )
        parts = [name, definition, *tf.unstack(positives), *tf.unstack(negatives), instance]
        beginnings = [tf.strings.join(parts[: number + 1]) for number in range(len(parts))]
        ids = output_features["inputs"].vocabulary.encode_tf(tf.stack(beginnings))
        # A beginning's ids are the first ones of the whole, so that their number is where its last
        # part ends. The sorting is for vocabularies whose pieces cross white space.
        ends = tf.sort(tf.minimum(ids.row_lengths(), tf.size(ids[-1], tf.int64)))
        targets = output_features["targets"].vocabulary.encode_tf(outputs)
        return {
            "inputs": ids[-1],
            "inputs_pretokenized": beginnings[-1],
            "part_tokens": tf.cast(ends - tf.concat([[0], ends[:-1]], 0), tf.int32),
            "part_bytes": tf.strings.length(tf.stack(parts)),
            "outputs": targets.values,
            "outputs_pretokenized": outputs,
            "output_tokens": tf.cast(targets.row_lengths(), tf.int32),
            **rest,
        }

    return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE)


@seqio.map_over_dataset(num_seeds=1)
def draw_output(record: Record, seed: tf.Tensor) -> Record:
    """Sets `targets` to one of `outputs`, drawn by the dataset's seed and the record's index."""
    rest = dict(record)
    ids, texts, sizes = (
        rest.pop(name) for name in ("outputs", "outputs_pretokenized", "output_tokens")
    )
    drawn = tf.random.stateless_uniform([], seed, minval=0, maxval=tf.size(sizes), dtype=tf.int32)
    end = tf.cumsum(sizes)[drawn]
    return {
        **rest,
        "targets": ids[end - sizes[drawn] : end],
        "targets_pretokenized": texts[drawn],
    }


def join_what_fits(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    positives: int,
) -> tf.data.Dataset:
    """Leaves out the examples that do not fit `sequence_length["inputs"]`, which counts EOS.

    Definition, instance and the examples before an example leave it room, or it and the rest of its
    kind are left out. The task's name is not counted. (Tk-Instruct: `src/ni_collator.py`)

    Args:
      dataset: records that `encode_parts` made.
      sequence_length: feature -> its most tokens; `LONGEST_INPUTS` where it has none.
      output_features: the task's features.
      positives: the number of places for positive examples; the rest are for negative ones.
    """
    most = (sequence_length or {}).get("inputs") or LONGEST_INPUTS
    most -= int(output_features["inputs"].add_eos)

    def join(record: Record) -> Record:
        rest = dict(record)
        sizes, part_bytes = rest.pop("part_tokens"), rest.pop("part_bytes")
        kept = _kept(sizes, positives, most)
        text = tf.fill(tf.shape(part_bytes), rest["inputs_pretokenized"])
        starts = tf.cumsum(part_bytes, exclusive=True)
        parts = tf.strings.substr(text, starts, part_bytes)
        return {
            **rest,
            "inputs": tf.boolean_mask(rest["inputs"], tf.repeat(kept, sizes)),
            "inputs_pretokenized": tf.strings.reduce_join(tf.boolean_mask(parts, kept)),
        }

    return dataset.map(join, num_parallel_calls=tf.data.AUTOTUNE)


def _kept(sizes: tf.Tensor, positives: int, most: int) -> tf.Tensor:
    """Returns bool [parts]: which parts stay in an input of at most `most` tokens."""
    always = tf.fill([2], True)
    least = sizes[1] + sizes[-1]
    first, second = sizes[2 : 2 + positives], sizes[2 + positives : -1]
    before = least + tf.cumsum(first)
    kept = before <= most
    after = least + tf.reduce_sum(tf.where(kept, first, 0)) + tf.cumsum(second)
    return tf.concat([always, kept, after <= most, always[:1]], 0)
