"""Documents of a few words, a vocabulary for them, and T5's preprocessors run over tokens."""

import contextlib
import gzip
import json
import random

import numpy as np
import seqio
import tensorflow.compat.v1 as tf

from t0 import testing

WORDS = "the sun rain sad glad both day is this that wind we say yes no not it was good bad a"


def train_vocabulary(path):
    """Trains a SentencePiece model with T5's settings."""
    draw = random.Random(0)
    text = (" ".join(draw.choices(WORDS.split(), k=8)) + "." for _ in range(200))
    return testing.train_vocabulary(path, text, size=36)


def documents(count, seed=0, longest=60):
    """Returns `count` documents, no two alike."""
    draw = random.Random(seed)
    sizes = (draw.randint(1, longest) for _ in range(count))
    return [f"{n} " + " ".join(draw.choices(WORDS.split(), k=k)) for n, k in enumerate(sizes)]


def write_documents(path, texts):
    """Writes documents in the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = texts if ".txt" in path.name else [json.dumps({"text": text}) for text in texts]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def restored(inputs, targets, top, eos=1):
    """Returns the tokens that an example of span corruption was made of, and their mask."""
    spans, tokens, mask = {}, [], []
    for token in targets.tolist():
        if token > top - 100:
            spans[token] = current = []
        elif token != eos:
            current.append(token)
    for token in inputs.tolist():
        if token == eos:
            break
        hidden = spans[token] if token > top - 100 else None
        tokens += [token] if hidden is None else hidden
        mask += [False] if hidden is None else [True] * len(hidden)
    return tokens, mask


def examples_of_t5(steps, sequences, lengths, features, seed=1):
    """Runs preprocessors of T5 over {"targets": tokens}; returns the examples as numpy arrays."""
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = tf.data.Dataset.from_generator(
            lambda: ({"targets": np.array(s, np.int32)} for s in sequences),
            output_types={"targets": tf.int32},
            output_shapes={"targets": [None]},
        )
        with seqio.map_seed_manager(seed):
            for step in steps:
                given = seqio.utils.add_kwargs_to_transform(
                    step, sequence_length=lengths, output_features=features
                )
                dataset = given(dataset)
        following = tf.data.make_one_shot_iterator(dataset).get_next()
        examples = []
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                examples.append(session.run(following))
    return examples
