"""Predicts texts with Mesh TensorFlow: into files, or in memory for an evaluation.

    predict(arguments)    # as t0.infer is configured, into <infer.output_dir>/<task>_1000.jsonl

Answers to ranked prompts, and the tasks of mode `eval`, are decoded in memory:

    decoder = TextDecoder(arguments, dtype="float32")
    decoder.restore("/models/tiny/model.ckpt-1000")
    list(decoder.decode([np.array([363, 19, 42])], 16))   # ["True"]

    decode = evaluation_decoder(arguments)
    decode([("qa", examples)], "/models/tiny/model.ckpt-1000")      # the texts of all tasks
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils
from t0.evaluation.mesh_model import (
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)
from t0.inference.generator import MeshGenerator
from t0.inference.inputs import (
    WINDOW,
    DecodingMethod,
    InferenceExample,
    LengthLimits,
    batches,
    windows,
)
from t0.inference.jobs import InferenceSettings, make_jobs, make_t5_jobs, read_decoding_settings
from t0.inference.predictions import decode_batch, predict_checkpoints
from t0.mesh import devices

# The maximum number of rows of a batch on a CPU. Larger batches are not faster, and the last batch
# of a task then has more empty rows.
_MOST_ROWS = 32
_UNLIMITED = 1 << 20


def predict(arguments: Mapping[str, Any], checkpoint: str | None = None) -> None:
    """Writes the predictions that gin configures with `t0.infer` or with T5's `infer.gin`.

    Args:
      arguments: the arguments of the run, as `t0.run.arguments.read` returns them. If
        `infer.batch_size` is set, it is used instead of their batch size.
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

    def make_generator() -> MeshGenerator:
        first = jobs[0].settings
        return make_mesh_generator(arguments, dtype=first.activation_dtype, method=first.method)

    checkpoints = chosen_checkpoints(arguments, checkpoint)
    predict_checkpoints(jobs, checkpoints, make_generator, targets, describe=describe)


class TextDecoder:
    """Decodes inputs to texts.

    Args:
      arguments: the arguments of the run. On a CPU, a larger batch size than `_MOST_ROWS` counts as
        `_MOST_ROWS`.
      dtype: the activation type.
      method: the method by which tokens are chosen.
      targets_per_input: a limit for predictions that depends on the length of the input; see
        `LengthLimits`.
      make_generator: a function that builds another engine's generator from `dtype` and `method`;
        None to use Mesh TensorFlow's generator.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        dtype: str,
        method: DecodingMethod = DecodingMethod(),  # noqa: B008 (it is frozen)
        targets_per_input: tuple[float, float] | None = None,
        make_generator: Callable[..., Any] | None = None,
    ) -> None:
        make = make_generator or functools.partial(make_mesh_generator, arguments)
        self._generator = make(dtype=dtype, method=method)
        _, self._vocabulary = both_vocabularies(arguments["vocabulary"])
        lengths = arguments["sequence_length"]
        self._method = method
        self._limits = (lengths["inputs"] if lengths else _UNLIMITED, targets_per_input)
        replicas, rows = self._generator.replicas, arguments["batch_size"]
        if self._generator.device_kind != "gpu":
            rows = min(_MOST_ROWS, rows)
        self._rows = max(1, rows // replicas) * replicas

    def restore(self, checkpoint: str) -> int:
        """Loads the weights of a checkpoint; returns the number of variables."""
        return self._generator.restore(checkpoint)

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
                for index, _, text, _ in decode_batch(self._generator, self._vocabulary, batch):
                    texts[index] = text
            yield from texts


def make_mesh_generator(
    arguments: Mapping[str, Any], *, dtype: str, method: DecodingMethod
) -> MeshGenerator:
    """Builds the configured model with the given activation type, and returns its generator."""
    activations = devices.activation_dtype(dtype)
    return MeshGenerator(*build_model(arguments, activations), method)


def evaluation_decoder(
    arguments: Mapping[str, Any], make_generator: Callable[..., Any] | None = None
) -> Callable[[Sequence[tuple[str, Sequence[Mapping[str, Any]]]], str], Iterator[str]]:
    """Returns a function that decodes the examples of tasks with a checkpoint.

    Gin configures the decoding through the parameters of `Bitransformer.decode`.

    Args:
      arguments: the arguments of the run. If they contain no lengths, the longest input determines
        the lengths.
      make_generator: see `TextDecoder`.
    """
    settings, limits = read_decoding_settings(arguments)
    decoder = TextDecoder(
        arguments,
        dtype=mesh_utils.get_variable_dtype().activation_dtype.name,
        method=settings.method,
        targets_per_input=limits.targets_per_input,
        make_generator=make_generator,
    )

    def decode(
        tasks: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], checkpoint: str
    ) -> Iterator[str]:
        inputs = [[_unpadded(each["inputs"]) for each in examples] for _, examples in tasks]
        longest = max((len(ids) for of_task in inputs for ids in of_task), default=1)
        decoder.restore(checkpoint)
        for of_task in inputs:
            yield from decoder.decode(of_task, limits.targets or longest)

    return decode


def _unpadded(ids: np.ndarray) -> np.ndarray:
    return ids[: np.flatnonzero(ids).max(initial=-1) + 1]
