"""Decodes texts in memory: the answers of a rank evaluation, and the tasks of mode `eval`.

    decoder = TextDecoder(model, vocabularies, dtype="float32", lengths=None, batch_size=32)
    decoder.restore("/models/tiny/model.ckpt-1000")
    list(decoder.decode([np.array([363, 19, 42])], 16))   # ["True"]

    decode = evaluation_decoder(model, RunArguments(vocabularies, lengths, batch_size=32))
    decode(datasets, "/models/tiny/model.ckpt-1000")      # the texts of all datasets, in order

Mode `infer` makes the same predictions, but writes them to files (`t0.inference.prediction_loop`).
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import mesh_dataset, mesh_utils, mtf, tfds
from t0.compat import tf1 as tf
from t0.inference.generator import MeshGenerator
from t0.inference.inputs import WINDOW, InferenceExample, LengthLimits, batches, windows
from t0.inference.jobs import RunArguments, read_decoding_settings
from t0.inference.methods import DecodingMethod
from t0.inference.prediction_jobs import predicted_tokens
from t0.mesh import devices
from t0.scoring.mesh_model import MeshModel, build_model

# The maximum number of rows of a batch on a CPU. Larger batches are not faster, and the last batch
# of a task then has more empty rows.
_MOST_ROWS = 32
_UNLIMITED = 1 << 20


class TextDecoder:
    """Decodes inputs to texts.

    Args:
      model: the model's type and mesh.
      vocabularies: the vocabularies of inputs and targets.
      dtype: the activation type.
      lengths: the limits in tokens, or None for no limits.
      batch_size: the maximum number of inputs in a batch. On a CPU, larger values than `_MOST_ROWS`
        count as `_MOST_ROWS`.
      method: the method by which tokens are chosen.
      targets_per_input: a limit for predictions that depends on the length of the input; see
        `LengthLimits`.
      make_generator: a function that builds another engine's generator from `dtype` and `method`;
        None to use Mesh TensorFlow's generator.
    """

    def __init__(
        self,
        model: MeshModel,
        vocabularies: tuple[Any, Any],
        *,
        dtype: str,
        lengths: Mapping[str, int] | None,
        batch_size: int,
        method: DecodingMethod = DecodingMethod(),  # noqa: B008 (it is frozen)
        targets_per_input: tuple[float, float] | None = None,
        make_generator: Callable[..., Any] | None = None,
    ) -> None:
        make = make_generator or functools.partial(make_mesh_generator, model, vocabularies)
        self._generator = make(dtype=dtype, method=method)
        self._method, self._vocabulary = method, vocabularies[1]
        self._limits = (lengths["inputs"] if lengths else _UNLIMITED, targets_per_input)
        replicas = self._generator.replicas
        on_gpu = self._generator.device_kind == "gpu"
        rows = batch_size if on_gpu else min(_MOST_ROWS, batch_size)
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
                ids, _ = self._generator.predict(batch.inputs, batch.limits, batch.draws)
                for row, index in enumerate(batch.places):
                    tokens = predicted_tokens(ids[row], batch.limits[row])
                    texts[index] = self._vocabulary.decode(tokens)
            yield from texts


def make_mesh_generator(
    model: MeshModel, vocabularies: tuple[Any, Any], *, dtype: str, method: DecodingMethod
) -> MeshGenerator:
    """Builds the configured model with the given activation type, and returns its generator."""
    built_model, placement = build_model(model, vocabularies)
    types = mesh_utils.get_variable_dtype()
    activations = devices.activation_dtype(dtype)
    if activations != tf.float32:
        types = mtf.VariableDType(types.master_dtype, activations, activations)
    return MeshGenerator(built_model, types, placement, method)


def evaluation_decoder(
    model: MeshModel, run: RunArguments, make_generator: Callable[..., Any] | None = None
) -> Callable[[Sequence[mesh_dataset.EvalDataset], str], Iterator[str]]:
    """Returns a function that decodes datasets with a checkpoint.

    Gin configures the decoding through the parameters of `Bitransformer.decode`.

    Args:
      model: the model's type and mesh.
      run: the run's arguments. If they contain no lengths, the longest input determines the
        lengths.
      make_generator: see `TextDecoder`.
    """
    decoders: list[TextDecoder] = []

    def decode(datasets: Sequence[mesh_dataset.EvalDataset], checkpoint: str) -> Iterator[str]:
        inputs = [list(_inputs(dataset_inputs, run.sequence_length)) for dataset_inputs in datasets]
        longest = max((len(ids) for dataset_inputs in inputs for ids in dataset_inputs), default=1)
        settings, limits = read_decoding_settings(run, longest)
        if not decoders:
            decoders.append(
                TextDecoder(
                    model,
                    run.vocabularies,
                    dtype=mesh_utils.get_variable_dtype().activation_dtype.name,
                    lengths=run.sequence_length,
                    batch_size=run.batch_size,
                    method=settings.method,
                    targets_per_input=limits.targets_per_input,
                    make_generator=make_generator,
                )
            )
        decoders[0].restore(checkpoint)
        for dataset_inputs in inputs:
            yield from decoders[0].decode(dataset_inputs, limits.targets)

    return decode


def _inputs(
    dataset: mesh_dataset.EvalDataset, lengths: Mapping[str, int] | None
) -> Iterable[np.ndarray]:
    """Yields each example's input ids without padding."""
    with tf.Graph().as_default():
        for example in tfds.as_numpy(dataset.dataset_fn(sequence_length=lengths)):
            ids = example["inputs"]
            yield ids[: np.flatnonzero(ids).max(initial=-1) + 1]
