"""Provides the batches of a rehearsal: random tokens, or the batches of the run's mixture.

    batch = next(random_batches(run))      # parse gin first
    batch["inputs"]                        # int32 [sequences, length]

    with open_mixture(check_mixture(flags)) as batches:
        next(batches)

Mesh TensorFlow feeds a pod in mode `BROADCAST`. The first host calls the input function, and sends
the global batch to every core. Each core selects its rows according to the layout. So every core of
a rehearsal gets the same batch.

The batches of the mixture come from the input function that Mesh TensorFlow's `run` passes to
TPUEstimator. It uses T5's dataset function and packing, and repeats and batches the data as in
`t0/training/estimator.py`. Nothing is read from the model directory.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from t0.compat import mesh_utils, seqio, t5_mesh
from t0.compat import tf1 as tf
from t0.errors import UserError, original
from t0.mesh.pod_run import PodRun
from t0.run import modes, preflight

Batch = Mapping[str, np.ndarray]
_EOS = 1
_FIRST_PIECE = 2  # the lowest id that is a token; ids 0 and 1 are padding and EOS
_EXAMPLES = 2
# Any name is accepted, because Mesh TensorFlow's `run` does not look up the TPU before training.
_TPU = "rehearsed"
_PLACES = dict.fromkeys(("tpu_job_name", "gcp_project", "tpu_zone"))


def random_batches(run: PodRun, *, seed: int = 0) -> Iterator[Batch]:
    """Yields random batches without end: feature -> int32 [sequences, length].

    Args:
      run: the run on a slice. If its examples are packed, batches also have segment ids and
        positions.
      seed: the seed of the tokens.
    """
    rng = np.random.default_rng(seed)
    while True:
        batch = {}
        for name, length in run.sequence_length.items():
            shape = (run.batch_sequences, length)
            ids = rng.integers(_FIRST_PIECE, run.vocabulary_size, shape)
            padding = rng.integers(1, max(2, length // 4), (run.batch_sequences, 1))
            columns = np.broadcast_to(np.arange(length), shape)
            is_token = columns < length - padding
            batch[name] = ids * is_token
            if run.packed:
                tokens_per_example = -(-length // _EXAMPLES)
                batch[f"{name}_segmentation"] = (1 + columns // tokens_per_example) * is_token
                batch[f"{name}_position"] = columns % tokens_per_example * is_token
        yield {name: value.astype(np.int32) for name, value in batch.items()}


def random_choices(run: PodRun, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns random inputs [inputs, length] and their choices [inputs, choices, length].

    They make up one batch. The choices have different lengths. Each choice ends with EOS, and then
    has padding.
    """
    rng = np.random.default_rng(seed)
    choices = 2 if run.batch_sequences % 2 == 0 else 1
    shape = (run.batch_sequences // choices, choices, run.sequence_length["targets"])
    inputs = rng.integers(
        _FIRST_PIECE, run.vocabulary_size, (shape[0], run.sequence_length["inputs"])
    )
    targets = rng.integers(_FIRST_PIECE, run.vocabulary_size, shape)
    ends = rng.integers(1, shape[-1], shape[:2])[..., None]
    columns = np.arange(shape[-1])
    targets = np.where(columns < ends, targets, np.where(columns == ends, _EOS, 0))
    return inputs.astype(np.int32), targets.astype(np.int32)


def check_mixture(flags: Any) -> Any:
    """Checks that the mixture exists, and is cached if necessary; returns its vocabulary.

    Args:
      flags: the parsed flags of the command, see `t0.config.flags`.

    Raises:
      UserError: if the mixture, its cache or its split is missing.
    """
    seqio.add_global_cache_dirs(flags.additional_task_cache_dirs)
    for note in preflight.check_mixtures({}, on_tpu=True):
        print(note, file=sys.stderr)
    return t5_mesh.get_vocabulary()


def vocabulary_size(vocabulary: Any) -> int:
    """Returns the number of ids in the vocabulary. Inputs and targets must have the same number.

    Raises:
      UserError: if the vocabularies of inputs and targets have different sizes.
    """
    sizes = [
        select(vocabulary).vocab_size
        for select in (mesh_utils.inputs_vocabulary, mesh_utils.targets_vocabulary)
    ]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"the vocabularies of inputs and targets have {sizes[0]:,} and {sizes[1]:,} ids, and a "
            "rehearsal takes one for both"
        )
    return sizes[0]


@contextlib.contextmanager
def open_mixture(vocabulary: Any) -> Iterator[Iterator[Batch]]:
    """Opens the data of the configured run with the input function that TPUEstimator would get.

    Args:
      vocabulary: the vocabulary of the mixture.

    Yields:
      an iterator over the global batches.

    Raises:
      UserError: if the data ends, or if it cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"model_dir": folder, "vocabulary": vocabulary, **_PLACES}
        input_fn = preflight.training_input(arguments | modes.engine_arguments(tpu=_TPU))
    if input_fn is None:
        raise UserError("the run reads no data: run.train_steps leaves nothing to train")
    with open_batches(lambda: input_fn({})) as batches:
        yield batches


@contextlib.contextmanager
def open_batches(make_dataset: Callable[[], Any]) -> Iterator[Iterator[Batch]]:
    """Yields the batches of the `tf.data.Dataset` that a function makes."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(make_dataset())
        features = iterator.get_next()
        session.run(iterator.initializer)
        yield _read(session, features)


def _read(session: tf.Session, features: Mapping[str, tf.Tensor]) -> Iterator[Batch]:
    while True:
        try:
            yield session.run(features)
        except tf.errors.OutOfRangeError as error:
            raise UserError(
                "the data ended: the mixture has too few examples to fill a batch. Is its cache "
                "empty?"
            ) from error
        except tf.errors.OpError as error:
            raise original(error) from error
