"""Joins the pieces of an instruction to inputs that fit, and draws a target among several.

Both are SeqIO preprocessors over records such as

    {"name": "", "definition": "Definition: ...", "positives": [" Positive Example 1 -...", ""],
     "negatives": [], "instance": "Now complete ...", "outputs": ["rain", "showers"]}

The rule is Tk-Instruct's: an example is kept if definition, the examples kept so far, itself and
the instance fit into the input's tokens with EOS; the first that does not fit ends its kind. What
is too long even then is cut at its end when it is trimmed.
"""

from collections.abc import Mapping
from typing import Any

from t0.compat import seqio, tf

# Tk-Instruct's and nanoT5's, for whoever reads without saying how long inputs may be.
LONGEST_INPUTS = 1024


def join_what_fits(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
) -> tf.data.Dataset:
    """Makes `inputs` of the pieces, with the examples that fit into `sequence_length["inputs"]`."""
    feature = output_features["inputs"]
    most = (sequence_length or {}).get("inputs") or LONGEST_INPUTS

    def kept(before: tf.Tensor, examples: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        text, going = tf.constant(""), tf.constant(True)
        for example in tf.unstack(examples):  # places that a task leaves empty add nothing
            longer = tf.strings.join([text, example])
            tokens = tf.size(feature.vocabulary.encode_tf(tf.strings.join([before, longer, after])))
            going = tf.logical_and(going, tokens + int(feature.add_eos) <= most)
            text = tf.where(going, longer, text)
        return text

    def join(record: Mapping[str, Any]) -> dict[str, Any]:
        rest = dict(record)
        names = ("name", "definition", "positives", "negatives", "instance")
        name, definition, positives, negatives, instance = (rest.pop(part) for part in names)
        first = kept(definition, positives, instance)
        second = kept(tf.strings.join([definition, first]), negatives, instance)
        return {"inputs": tf.strings.join([name, definition, first, second, instance]), **rest}

    return dataset.map(join, num_parallel_calls=tf.data.AUTOTUNE)


@seqio.map_over_dataset(num_seeds=1)
def draw_target(record: Mapping[str, Any], seed: tf.Tensor) -> dict[str, Any]:
    """Makes one of `outputs` the `targets`, drawn by the dataset's seed and the record's place."""
    rest = dict(record)
    outputs = rest.pop("outputs")
    index = tf.random.stateless_uniform([], seed, minval=0, maxval=tf.size(outputs), dtype=tf.int32)
    return {**rest, "targets": outputs[index]}
