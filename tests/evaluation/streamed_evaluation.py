"""A process that evaluates a task of so many examples, and prints its peak memory in KiB.

python -m tests.evaluation.streamed_evaluation MODEL_DIR EXAMPLES
"""

import resource
import sys
from pathlib import Path

import numpy as np
from t5.evaluation.metrics import rank_classification

from tests.evaluation import evaluation_runs
from tests.evaluation.tiny_models import random_variables, write_checkpoint

import tensorflow as tf  # isort: skip
from mesh_tensorflow.transformer.dataset import EvalDataset

INPUT_TOKENS, CHOICES = 100, 4


def records(examples):
    for example in range(examples):
        rng = np.random.default_rng(example)
        inputs = rng.integers(3, 100, INPUT_TOKENS).astype(np.int32)
        for choice in range(CHOICES):
            yield {
                "idx": np.array([example, choice], np.int32),
                "inputs": inputs,
                "targets": np.append(rng.integers(3, 100, 2), 1).astype(np.int32),
                "is_correct": choice == example % CHOICES,
                "weight": np.float32(1),
                "inputs_pretokenized": f"input {example} " * 50,
                "targets_pretokenized": f"choice {choice}",
            }


def evaluate(model_dir, examples):
    write_checkpoint(model_dir, random_variables("t5.1.1"), step=1)

    def dataset_fn():
        return tf.data.Dataset.from_generator(
            lambda: records(examples), output_signature=evaluation_runs.SIGNATURE
        )

    made = EvalDataset("streamed", dataset_fn, None, [rank_classification])
    return evaluation_runs.evaluate(model_dir, [made], batch_size=64, limits=None)


if __name__ == "__main__":
    evaluate(Path(sys.argv[1]), int(sys.argv[2]))
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
