"""Small SeqIO tasks over the folder named by TOY_CACHING, for the tests of caching.

`lay_out` makes the folder: a vocabulary, text files (three of them for training). Imported by the
tests, and by the commands they start, as --module_import=tests.caching.toy_caching_tasks.
"""

import functools
import os
import random
import signal
import time
from pathlib import Path

import seqio
import tensorflow as tf

from t0.errors import AbsentData, UserError, remembered

FOLDER = Path(os.environ["TOY_CACHING"])
VOCABULARY = seqio.SentencePieceVocabulary(str(FOLDER / "toy.model"), extra_ids=4)
FEATURES = {
    "inputs": seqio.Feature(VOCABULARY, add_eos=False),
    "targets": seqio.Feature(VOCABULARY, add_eos=True),
}
TOKENISED = [
    seqio.preprocessors.tokenize,
    seqio.preprocessors.append_eos,
    seqio.CacheDatasetPlaceholder(),
]
WORDS = ["rain", "snow", "sun", "wind", "cloud", "storm", "fog", "hail", "frost", "heat", "calm"]
LINES = {"a": 70, "b": 41, "c": 1}


def lay_out(folder):
    from t0 import testing

    rng = random.Random(7)

    def sentence():
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 12)))

    for name, count in LINES.items():
        (folder / f"train-{name}.txt").write_text(
            "".join(f"{sentence()}|{sentence()} ünï\n" for _ in range(count))
        )
    for number in range(8):
        lines = (f"{sentence()}|{4 * number + line}\n" for line in range(4))
        (folder / f"files-{number}.txt").write_text("".join(lines))
    (folder / "validation.txt").write_text("".join(f"{sentence()}|{i}\n" for i in range(9)))
    testing.train_vocabulary(folder / "toy.model", [sentence() for _ in range(400)])


@seqio.map_over_dataset
def split_line(line):
    parts = tf.strings.split(line, "|")
    return {"inputs": parts[0], "targets": parts[1]}


@seqio.map_over_dataset(num_seeds=1)
def add_noise(example, seed):
    return {**example, "noise": tf.random.stateless_uniform([2, 3], seed)}


@seqio.map_over_dataset
def add_shapes(example):
    words = tf.strings.split(example["inputs"])
    return {
        **example,
        "words": words,
        "pairs": tf.stack([tf.strings.length(words)] * 2, axis=1),
        "letters": tf.strings.unicode_split(words, "UTF-8"),
        "long": tf.greater(tf.size(words), 5),
        "weight": 1.5,
        "count": tf.cast(tf.size(words), tf.int64),
        "zeros": tf.constant(b"a\0"),
    }


LINE_SOURCE = seqio.TextLineDataSource(
    {"train": str(FOLDER / "train-*.txt"), "validation": str(FOLDER / "validation.txt")}
)
add = functools.partial(seqio.TaskRegistry.add, output_features=FEATURES)

add("toy_lines", source=LINE_SOURCE, preprocessors=[split_line, add_noise, *TOKENISED])
add("toy:shapes", source=LINE_SOURCE, preprocessors=[split_line, add_shapes, *TOKENISED])
add("toy_plain", source=LINE_SOURCE, preprocessors=[split_line, *TOKENISED[:2]])
add(
    "toy_nothing",
    source=LINE_SOURCE,
    preprocessors=[split_line, lambda ds: ds.filter(lambda ex: False), *TOKENISED],
)
add(
    "toy_half",  # of the training lines none is kept, of the validation lines all are
    source=LINE_SOURCE,
    preprocessors=[
        split_line,
        lambda ds: ds.filter(lambda ex: tf.strings.regex_full_match(ex["targets"], "[0-9]+")),
        *TOKENISED,
    ],
)
add(
    "toy_fault",
    source=LINE_SOURCE,
    preprocessors=[
        split_line,
        lambda ds: ds.map(lambda ex: {**ex, "n": tf.strings.to_number(ex["inputs"])}),
        *TOKENISED,
    ],
)


@seqio.map_over_dataset
def without_inputs(example):
    return {"targets": example["targets"]}


@seqio.map_over_dataset
def inputs_after_the_cache(example):
    return {**example, "inputs": example["targets"]}


def inputs_of_own_length(dataset, sequence_length):
    return inputs_after_the_cache(dataset).take(sequence_length["own"])


@seqio.map_over_dataset
def inputs_doubled(example):
    return {**example, "inputs": tf.concat([example["inputs"]] * 2, 0)}


@seqio.map_over_dataset
def blank(example):
    return {**example, "targets": "  "}


add("toy_unmade", source=LINE_SOURCE, preprocessors=[split_line, without_inputs, *TOKENISED])
add(
    "toy_made_later",
    source=LINE_SOURCE,
    preprocessors=[split_line, without_inputs, *TOKENISED, inputs_after_the_cache],
)
add(
    "toy_made_later_by_length",
    source=LINE_SOURCE,
    preprocessors=[split_line, without_inputs, *TOKENISED, inputs_of_own_length],
)
add(
    "toy_unmade_and_read",
    source=LINE_SOURCE,
    preprocessors=[split_line, without_inputs, *TOKENISED, inputs_doubled],
)
add(
    "toy_not_tokenized",
    source=LINE_SOURCE,
    preprocessors=[split_line, seqio.CacheDatasetPlaceholder()],
)
add("toy_blank", source=LINE_SOURCE, preprocessors=[split_line, blank, *TOKENISED])
add(
    "toy_blank_made_later",
    source=LINE_SOURCE,
    preprocessors=[split_line, blank, *TOKENISED, inputs_after_the_cache],
)


def generated(rows, before=lambda index: None):
    """A source of `rows` rows that calls `before` ahead of each."""

    def generate():
        with remembered():
            for index in range(rows):
                before(index)
                yield {"inputs": f"row {index} of rain", "targets": "sun"}

    signature = dict.fromkeys(("inputs", "targets"), tf.TensorSpec((), tf.string))
    return lambda split, shuffle_files: tf.data.Dataset.from_generator(
        generate, output_signature=signature
    )


def add_generated(name, rows, before=lambda index: None, splits=("train",)):
    source = seqio.FunctionDataSource(
        generated(rows, before), splits, num_input_examples=dict.fromkeys(splits, rows)
    )
    add(name, source=source, preprocessors=TOKENISED)


def _die(index):
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)


def _mistake(index):
    if index == 5:
        raise UserError("rows.jsonl, line 6: not JSON")


add_generated("toy_function", 20)
add_generated("toy_many", 2500)
add_generated("toy_slow", 60, before=lambda index: time.sleep(0.05))
add_generated("toy_dies", 20, before=_die)
add_generated("toy_mistake", 20, before=_mistake)
add_generated("toy_no_rows", 0)


def _waited(line):
    time.sleep(float(os.environ.get("TOY_SECONDS_A_LINE", "0")))
    return line


def _read_slowly(path):
    return tf.data.TextLineDataset(path).map(
        lambda line: tf.ensure_shape(tf.numpy_function(_waited, [line], tf.string), [])
    )


@seqio.map_over_dataset
def add_process(example):
    return {**example, "process": tf.ensure_shape(tf.numpy_function(os.getpid, [], tf.int64), [])}


FILES = seqio.FileDataSource(_read_slowly, {"train": str(FOLDER / "files-*.txt")})
add("toy_files", source=FILES, preprocessors=[split_line, add_noise, *TOKENISED])
add("toy_process", source=FILES, preprocessors=[split_line, add_process, *TOKENISED])


@seqio.map_over_dataset
def stop_at_ten(example, at="10"):
    tf.debugging.assert_none_equal(example["targets"], at)
    return example


def keep_the_last(dataset):
    return dataset.filter(lambda example: example["targets"] == "31")


add("toy_last", source=FILES, preprocessors=[split_line, keep_the_last, *TOKENISED])
add("toy_ten", source=FILES, preprocessors=[split_line, stop_at_ten, *TOKENISED])


class PartlyAbsent(seqio.FunctionDataSource):
    """Its validation split is here, its training split is not."""

    def list_shards(self, split):
        if split == "train":
            raise AbsentData("toy/train: looked in /nowhere; put it there")
        return super().list_shards(split)


add(
    "toy_absent",
    source=PartlyAbsent(generated(12), ("train", "validation")),
    preprocessors=TOKENISED,
)
seqio.MixtureRegistry.add("toy++_mix", ["toy_lines", "toy_function"], default_rate=1)
