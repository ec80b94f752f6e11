"""Predicts the texts that gin configures: into files, or in memory for an evaluation.

    predict(arguments, open_model)  # as t0.infer is configured, into <output_dir>/<task>_1000.jsonl

Answers to ranked prompts, and the tasks of mode `eval`, are decoded in memory:

    decoder = TextDecoder(arguments, open_model, dtype="float32")
    decoder.restore("/models/tiny/model.ckpt-1000")
    list(decoder.decode([np.array([363, 19, 42])], 16))   # ["True"]

    decode = evaluation_decoder(arguments, open_model)
    decode(tasks, "/models/tiny/model.ckpt-1000")      # the texts of all examples of `tasks`
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_dataset, mesh_utils, tf
from t0.evaluation.decoding import Decode, DecodedTask
from t0.evaluation.mesh_model import both_vocabularies, chosen_checkpoints, vocabulary_hash
from t0.evaluation.model import GREEDY, Ability, DecodingMethod, OpenModel
from t0.inference.inputs import FIELDS, WINDOW, InferenceExample, LengthLimits, batches, windows
from t0.inference.jobs import InferenceSettings, make_jobs, make_t5_jobs, read_decoding_settings
from t0.inference.predictions import decode_batch, predict_checkpoints

# The maximum number of rows of a batch on a CPU. Larger batches are not faster, and the last batch
# of a task then has more empty rows.
_MOST_ROWS = 32
_UNLIMITED = 1 << 20


def predict(
    arguments: Mapping[str, Any], open_model: OpenModel, checkpoint: str | None = None
) -> None:
    """Writes the predictions that gin configures with `t0.infer` or with T5's `infer.gin`.

    Args:
      arguments: the arguments of the run, as `t0.run.run_arguments.read` returns them. If
        `infer.batch_size` is set, it is used instead of their batch size.
      open_model: the function that opens the model.
      checkpoint: a checkpoint to use instead of those in the model directory, or None.

    Raises:
      UserError: if nothing is configured, or an input or output file cannot be used.
    """
    settings = InferenceSettings()
    inputs, targets = both_vocabularies(arguments["vocabulary"])
    jobs = make_jobs(settings, arguments) if settings.configured else make_t5_jobs(arguments)

    def describe(path: str) -> dict[str, Any]:
        return {
            "checkpoint_fingerprint": checkpoint_files.fingerprint(path),
            "vocabulary_sha256": vocabulary_hash(inputs),
        }

    checkpoints = chosen_checkpoints(arguments, checkpoint)
    predict_checkpoints(jobs, checkpoints, open_model, targets, describe=describe)


class TextDecoder:
    """Decodes inputs to texts.

    Args:
      arguments: the arguments of the run. On a CPU, a larger batch size than `_MOST_ROWS` counts as
        `_MOST_ROWS`.
      open_model: the function that opens the model.
      dtype: the activation type.
      method: the method by which tokens are chosen.
      targets_per_input: a limit for predictions that depends on the length of the input; see
        `LengthLimits`.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        open_model: OpenModel,
        *,
        dtype: str,
        method: DecodingMethod = GREEDY,
        targets_per_input: tuple[float, float] | None = None,
    ) -> None:
        self._model = open_model(Ability.GENERATE, dtype=dtype, method=method)
        _, self._vocabulary = both_vocabularies(arguments["vocabulary"])
        lengths = arguments["sequence_length"]
        self._method = method
        self._limits = (lengths["inputs"] if lengths else _UNLIMITED, targets_per_input)
        replicas, rows = self._model.replicas, arguments["batch_size"]
        if self._model.device_kind != "gpu":
            rows = min(_MOST_ROWS, rows)
        self._rows = max(1, rows // replicas) * replicas

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint; returns the number of variables."""
        return self._model.restore(checkpoint)

    def decode(self, inputs: Sequence[np.ndarray], most_tokens: int) -> Iterator[str]:
        """Decodes each input [L], and yields the texts, each of at most `most_tokens` tokens."""
        longest, per_input = self._limits
        limits = LengthLimits(longest, most_tokens, per_input)
        examples = (InferenceExample(n, "", None, ids.tolist()) for n, ids in enumerate(inputs))
        for _, window in windows(examples, self._rows * WINDOW):
            texts = [""] * len(window)
            window_batches = batches(
                window, limits, batch_size=self._rows, method=self._method, seed=0
            )
            for batch in window_batches:
                for index, _, text, _ in decode_batch(self._model, self._vocabulary, batch):
                    texts[index] = text
            yield from texts


def evaluation_decoder(arguments: Mapping[str, Any], open_model: OpenModel) -> Decode:
    """Returns a function that decodes the examples of tasks with a checkpoint.

    Gin configures the decoding through the parameters of `Bitransformer.decode`.

    Args:
      arguments: the arguments of the run. If they contain no lengths, the longest input determines
        the lengths.
      open_model: the function that opens the model.
    """
    settings, limits = read_decoding_settings(arguments)
    decoder = TextDecoder(
        arguments,
        open_model,
        dtype=mesh_utils.get_variable_dtype().activation_dtype.name,
        method=settings.method,
        targets_per_input=limits.targets_per_input,
    )

    def decode(tasks: Sequence[DecodedTask], checkpoint: str) -> Iterator[str]:
        inputs = [[_unpadded(each["inputs"]) for each in task.examples] for task in tasks]
        longest = max((len(ids) for of_task in inputs for ids in of_task), default=1)
        decoder.restore(checkpoint)
        for of_task in inputs:
            yield from decoder.decode(of_task, limits.targets or longest)

    return decode


def _unpadded(ids: np.ndarray) -> np.ndarray:
    return ids[: np.flatnonzero(ids).max(initial=-1) + 1]


def published_decoder(make_estimator: Callable[..., Any], arguments: Mapping[str, Any]) -> Decode:
    """Returns a function that decodes with Mesh TensorFlow's own function `decode`.

    Args:
      make_estimator: the function that builds the estimator, which Mesh TensorFlow's `run` passes
        to its `eval_model`.
      arguments: the arguments of the run.
    """
    vocabulary, rows = arguments["vocabulary"], arguments["batch_size"]

    @functools.cache  # one estimator for all checkpoints
    def estimator_of(*lengths: tuple[str, int]) -> Any:
        return make_estimator(sequence_length=dict(lengths))

    def decode(tasks: Sequence[DecodedTask], checkpoint: str) -> Iterator[str]:
        examples = [example for task in tasks for example in task.examples]
        lengths = arguments["sequence_length"] or {
            name: max(len(example[name]) for example in examples) for name in FIELDS
        }

        def read(params: Mapping[str, Any]) -> tf.data.Dataset:
            del params
            datasets = (task.dataset.dataset_fn(sequence_length=lengths) for task in tasks)
            records = functools.reduce(tf.data.Dataset.concatenate, map(_model_features, datasets))
            return mesh_dataset.trim_and_pad_dataset(records.batch(rows), length=rows)

        estimator = estimator_of(*lengths.items())
        texts = list(mesh_utils.decode(estimator, read, vocabulary, checkpoint))
        for text in texts[: len(examples)]:  # the other texts are of padding
            yield text.decode("utf-8") if isinstance(text, bytes) else text

    return decode


def _model_features(records: tf.data.Dataset) -> tf.data.Dataset:
    """Drops texts and other features that a model does not read."""
    names = [
        name
        for name, kind in records.element_spec.items()
        if name.split("_")[0] in FIELDS and kind.dtype.is_integer
    ]
    return records.map(lambda record: {name: record[name] for name in names})
