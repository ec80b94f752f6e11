"""Whole rank evaluations over made-up tasks, and what a computation by hand gives for them."""

import dataclasses
import json

import gin
import numpy as np
import pytest
from t5.data import postprocessors
from t5.evaluation.metrics import rank_classification

from tests.evaluation.numpy_model import NumpyModel
from tests.evaluation.numpy_t5 import NumpyT5
from tests.evaluation.tiny_models import LAYOUT, MODEL, VOCABULARY, bind

import tensorflow as tf  # isort: skip
from mesh_tensorflow.transformer.dataset import EvalDataset

from t0.evaluation import scorer
from t0.evaluation.batching import model_costs
from t0.run import models
from t0.run.task_evaluation import rank_tasks

LIMITS = {"inputs": 24, "targets": 5}


class Vocabulary:
    sp_model = b"pieces"
    vocab_size = VOCABULARY
    sentencepiece_model_file = "made/up.model"


def make_records(seed, *, examples=14, differing_inputs=False, correct=None):
    """Records of a rank-evaluation task: 2 or 3 choices, some inputs and choices too long.

    Few lengths make few batch shapes: each is a graph of its own, which takes its time.
    """
    rng = np.random.default_rng(seed)

    def ids(*lengths):
        return rng.integers(3, 100, rng.choice(lengths)).astype(np.int32)

    records = []
    for example in range(examples):
        count = int(rng.integers(2, 4))
        right = [rng.integers(count)] if correct is None else correct(example)
        shared = ids(1, 9, 29)
        for choice in range(count):
            records.append(
                {
                    "idx": np.array([example, choice], np.int32),
                    "inputs": ids(1, 9, 29) if differing_inputs else shared,
                    "targets": np.append(ids(2, 2, 2, 6), np.int32(1)),
                    "is_correct": choice in right,
                    "weight": np.float32(1),
                    "inputs_pretokenized": f"input {example}",
                    "targets_pretokenized": f"choice {choice}",
                }
            )
    order = rng.permutation(len(records))
    return [records[i] for i in order]


SIGNATURE = {
    "idx": tf.TensorSpec([2], tf.int32),
    "inputs": tf.TensorSpec([None], tf.int32),
    "targets": tf.TensorSpec([None], tf.int32),
    "is_correct": tf.TensorSpec([], tf.bool),
    "weight": tf.TensorSpec([], tf.float32),
    "inputs_pretokenized": tf.TensorSpec([], tf.string),
    "targets_pretokenized": tf.TensorSpec([], tf.string),
}


def dataset(name, records, metrics=(rank_classification,)):
    def dataset_fn():
        return tf.data.Dataset.from_generator(lambda: iter(records), output_signature=SIGNATURE)

    return EvalDataset(name, dataset_fn, postprocessors.rank_classification, list(metrics))


def evaluate(model_dir, datasets, *, batch_size=8, limits=LIMITS, mesh="", **arguments):
    """Runs the evaluation with the model in NumPy, or with `open_model`, and returns its folder."""
    bind("t5.1.1", "get_variable_dtype.master_dtype = 'float32'", *arguments.pop("params", ()))
    gin.bind_parameter("get_variable_dtype.activation_dtype", "float32")
    run_arguments = {
        **MODEL,
        "mesh_shape": mesh,
        "layout_rules": LAYOUT,
        "vocabulary": Vocabulary(),
        "sequence_length": limits,
        "batch_size": batch_size,
        "dataset_split": "validation",
        "model_dir": str(model_dir),
        "eval_dataset_fn": lambda **_: datasets,
        "eval_summary_dir": None,
        "eval_dir_suffix": None,
        "eval_checkpoint_step": arguments.pop("step", None),
    }
    open_model = arguments.pop("open_model", NumpyModel)
    checkpoint = arguments.pop("checkpoint", None)
    rank_tasks(run_arguments, checkpoint, open_model or models.opener(run_arguments, "tensorflow"))
    return model_dir / "validation_eval"


def evaluate_on_mesh(*arguments, shapes=None, params=(), **keywords):
    """Evaluates with Mesh TensorFlow, which builds a graph for each of the batch `shapes`."""
    keywords["open_model"] = None
    if not shapes:
        return evaluate(*arguments, params=params, **keywords)
    limit = f"score_eval.max_shapes = {shapes}"
    with pytest.MonkeyPatch.context() as patched:
        # Otherwise so small a model has all of its batches in one shape.
        patched.setattr(scorer, "model_costs", _costs_of_padding_alone)
        return evaluate(*arguments, params=[*params, limit], **keywords)


def _costs_of_padding_alone(variables):
    return dataclasses.replace(model_costs(variables), lowering=0)


def read_scores(folder, task, step):
    with (folder / "scores" / f"{task}_{step}.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def by_hand(variables, records, limits=LIMITS):
    """The log-likelihood of each record, in the records' order, cut as training cuts."""
    model = NumpyT5(variables)
    scores = []
    for record in records:
        targets = record["targets"]
        if limits and len(targets) > limits["targets"]:
            targets = np.append(targets[: limits["targets"] - 1], 1)
        inputs = record["inputs"][: limits["inputs"] if limits else None]
        scores.append(model.log_likelihood(inputs, targets))
    return scores
