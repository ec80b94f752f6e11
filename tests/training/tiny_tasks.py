"""SeqIO tasks of numbers, for evaluation while training: one to decode, one to rank."""

import numpy as np
import seqio
import tensorflow as tf

from tests.training import tiny_training as tiny

COUNT = 11
IDS = seqio.PassThroughVocabulary(size=60, eos_id=1)
FEATURES = {name: seqio.Feature(IDS, add_eos=False) for name in tiny.LENGTHS}


def rows(split, shuffle_files, seed=0):
    """Examples of a split, a dataset: the target of an input is its first number and EOS."""
    del shuffle_files, seed
    rng = np.random.default_rng(len(split))
    inputs = [rng.integers(2, 60, rng.integers(1, 15)) for _ in range(COUNT)]

    def generate():
        for ids in inputs:
            yield {"inputs": ids.astype(np.int32), "targets": np.array([ids[0], 1], np.int32)}

    kind = tf.TensorSpec([None], tf.int32)
    return tf.data.Dataset.from_generator(
        generate, output_signature=dict.fromkeys(("inputs", "targets"), kind)
    )


def choices(split, shuffle_files, seed=0):
    """The same as rank evaluation has it: three choices for each example, the first right."""
    del shuffle_files, seed

    def generate():
        for number in range(COUNT):
            for choice in range(3):
                yield {
                    "inputs": np.array([number + 2], np.int32),
                    "targets": np.array([number + 2 + choice, 1], np.int32),
                    "idx": np.array([number, choice], np.int32),
                    "is_correct": choice == 0,
                }

    signature = {name: tf.TensorSpec([None], tf.int32) for name in ("inputs", "targets", "idx")}
    signature["is_correct"] = tf.TensorSpec([], tf.bool)
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def accuracy(targets, predictions):
    same = [list(t) == list(p) for t, p in zip(targets, predictions, strict=True)]
    return {"accuracy": 100 * np.mean(same), "histogram": np.array([1, 2])}


def rank_accuracy(targets, scores):
    by_example = {}
    for (number, right), score in zip(targets, scores, strict=True):
        by_example.setdefault(number, []).append((score, right))
    best = [max(choices)[1] for choices in by_example.values()]
    return {"accuracy": 100 * np.mean(best), "examples": len(best)}


def ranked(target, example=None, is_target=False):
    return (int(example["idx"][0]), bool(example["is_correct"])) if is_target else target


def register():
    if "tiny_decoded" in seqio.TaskRegistry.names():
        return
    splits = ("train", "validation")
    seqio.TaskRegistry.add(
        "tiny_decoded",
        source=seqio.FunctionDataSource(rows, splits=splits),
        preprocessors=[],
        output_features=FEATURES,
        metric_fns=[accuracy],
    )
    seqio.TaskRegistry.add(
        "tiny_ranked",
        source=seqio.FunctionDataSource(choices, splits=splits),
        preprocessors=[],
        output_features=FEATURES,
        metric_fns=[rank_accuracy],
        postprocess_fn=ranked,
    )
    seqio.TaskRegistry.add(
        "tiny_unjudged",
        source=seqio.FunctionDataSource(rows, splits=splits),
        preprocessors=[],
        output_features=FEATURES,
        metric_fns=[],
    )
    names = ["tiny_decoded", "tiny_ranked", "tiny_unjudged"]
    seqio.MixtureRegistry.add("tiny_judged", names, default_rate=1.0)
