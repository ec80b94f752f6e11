"""A pod decodes what our inference predicts, from the same checkpoint."""

import contextlib

import numpy as np
import pytest

from t0.evaluation.model import DecodingMethod
from t0.inference.generator import MeshGenerator
from t0.inference.search import EOS
from t0.rehearsal.feeding import random_choices
from t0.rehearsal.one_device import build_for_one_device
from t0.rehearsal.virtual_pod import ReadingCores, VirtualPod, equal_on_cores
from tests.mesh import planning

FLOAT32 = (
    "get_variable_dtype.activation_dtype = 'float32'",
    "get_variable_dtype.master_dtype = 'float32'",
    "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
)
SMALL = (
    "d_model = 32",
    "d_ff = 64",
    "d_kv = 8",
    "num_heads = 4",
    "num_layers = 1",
    "run.sequence_length = {'inputs': 12, 'targets': 8}",
    "run.batch_size = ('sequences_per_batch', 8)",
)


def predicted(run, prefix, inputs):
    """Returns what our inference predicts greedily, up to as many tokens as an input has."""
    generator = MeshGenerator(*build_for_one_device(run), DecodingMethod())
    with contextlib.closing(generator):
        generator.restore(prefix)
        limits = np.full(len(inputs), inputs.shape[1], np.int32)
        return generator.generate(inputs, limits, np.zeros(inputs.shape, np.float32))[0]


def up_to_end(ids):
    return np.where(np.cumsum(ids == EOS, axis=1) > 0, 0, ids)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_rehearsal_two_cores_decode_like_one_device(parallelism, tmp_path):
    run = planning.read(
        *SMALL, *FLOAT32, *planning.on_slice("1x1", parallelism), vocabulary_size=256
    )
    prefix = str(tmp_path / "model.ckpt-1")
    with VirtualPod.open(run) as pod:
        pod.initialise()
        pod.save(prefix)
    inputs = np.repeat(random_choices(run)[0], 2, axis=0)
    inputs[1::2, 6:] = 0
    with ReadingCores.open(run, "infer") as cores:
        cores.restore(prefix)
        values = cores.values({"inputs": inputs})
    assert equal_on_cores(values)
    _, outputs = values[0]
    assert len(np.unique(outputs)) > 4
    np.testing.assert_array_equal(up_to_end(outputs), up_to_end(predicted(run, prefix, inputs)))
