"""A pod's program on virtual cores trains as our loop does; what is broken in it is seen."""

import contextlib

import numpy as np
import pytest

from t0.compat import simd_mesh_impl
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.rehearsal import comparing, one_device, virtual_cores, virtual_pod
from t0.rehearsal.feeding import random_batches
from t0.rehearsal.one_device import OneDevice
from t0.rehearsal.virtual_pod import VirtualPod
from tests.mesh import planning

FLOAT32 = (
    "get_variable_dtype.activation_dtype = 'float32'",
    "get_variable_dtype.master_dtype = 'float32'",
)
BFLOAT16 = ("get_variable_dtype.slice_dtype = 'bfloat16'",)  # masters and activations are, too
SMALL = (
    "d_model = 32",
    "d_ff = 64",
    "d_kv = 8",
    "num_heads = 8",
    "num_layers = 1",
    "run.sequence_length = {'inputs': 16, 'targets': 8}",
    "run.batch_size = ('sequences_per_batch', 8)",
    "run.learning_rate_schedule = 0.01",
)
WHOLE = ("serialize_num_microbatches.tokens_per_microbatch_per_replica = None",)
IN_PARTS = ("serialize_num_microbatches.tokens_per_microbatch_per_replica = 32",)
TIED = (
    "Unitransformer.shared_embedding_and_softmax_weights = True",
    "DenseReluDense.activation = 'relu'",
)


def read(*params):
    return planning.read(*planning.TINY, *SMALL, *params, vocabulary_size=256)


def broadcast(run):
    """Yields the same random batch for every core."""
    return ([batch] * run.slice_.cores for batch in random_batches(run))


def compare(*params, steps=2):
    run = read(*params)
    return comparing.compare_training(run, broadcast(run), steps=steps)


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(
            (*planning.on_slice("1x1", 2), *IN_PARTS, *FLOAT32, "dropout_rate = 0.1"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (*planning.on_slice("1x1", 1), *WHOLE, "run.optimizer = @t0.AdamWOptimizer", *FLOAT32),
            marks=pytest.mark.slow,
        ),
        pytest.param((*planning.on_slice("1x1", 2), *WHOLE, *TIED), marks=pytest.mark.slow),
        pytest.param((*planning.on_slice("1x1", 2), *WHOLE, *BFLOAT16), marks=pytest.mark.slow),
    ],
    ids=[
        "model, microbatches, dropout",
        "batch, AdamW",
        "model, bfloat16, T5 1.0",
        "bfloat16 alone",
    ],
)
def test_rehearsal_two_cores_train_like_one_device(params):
    found = compare(*params)
    assert found.disagreements == []
    assert [line.split()[0] for line in found.lines[:3]] == ["step", "1", "2"]


SLOW, EXHAUSTIVE = pytest.mark.slow, pytest.mark.exhaustive


@pytest.mark.parametrize(
    "params",
    [
        pytest.param((*planning.on_slice("v3-8", 2), *IN_PARTS, *FLOAT32), marks=SLOW),
        pytest.param((*planning.on_slice("v3-8", 8), *WHOLE, *FLOAT32), marks=EXHAUSTIVE),
        pytest.param((*planning.on_slice("v3-8", 2), *IN_PARTS), marks=EXHAUSTIVE),
        pytest.param((*planning.on_slice("v3-32", 4), *WHOLE, *FLOAT32), marks=EXHAUSTIVE),
        pytest.param((*planning.on_slice("v4-64", 8), *WHOLE, *FLOAT32), marks=EXHAUSTIVE),
    ],
    ids=["v3-8 2", "v3-8 8", "v3-8 bfloat16", "v3-32", "v4-64"],
)
def test_rehearsal_slices_train_like_one_device(params):
    assert compare(*params, steps=5).disagreements == []


@pytest.fixture
def real_draws(monkeypatch):
    """Both sides draw as they do outside of a rehearsal."""
    for module in (virtual_pod, one_device):
        monkeypatch.setattr(module, "deterministic_uniform", contextlib.nullcontext)


@pytest.mark.slow
def test_rehearsal_dropout_has_one_distribution(real_draws):
    del real_draws
    still = ("dropout_rate = 0.3", "run.learning_rate_schedule = 0.0")
    run = read(*planning.on_slice("1x1", 2), *WHOLE, *FLOAT32, *still)
    count = 40
    with VirtualPod.open(run) as pod, OneDevice.open(run, pod.features) as device:
        pod.initialise()
        device.load(pod.variables().values)
        batches = next(broadcast(run))
        steps = [pod.step(batches) for _ in range(count)]
        ours = np.array([device.step(batches[0]).loss for _ in range(count)])
    assert all(step.gradients.unequal == () for step in steps)  # both cores drop the same
    theirs = np.array([step.losses[0] for step in steps])
    assert len(set(theirs.tolist())) == len(set(ours.tolist())) == count
    error = np.sqrt((theirs.var() + ours.var()) / count)
    assert abs(theirs.mean() - ours.mean()) < 4 * error
    assert 0.5 < theirs.std() / ours.std() < 2


@pytest.fixture(scope="module")
def on_one_device():
    """The run of the tests of faults, and our loop; both read gin only while they are built."""
    run = read(*planning.on_slice("1x1", 1), *WHOLE, *FLOAT32)
    with contextlib.ExitStack() as opened:
        features = ("inputs", "targets")
        names = [n + s for n in features for s in ("", "_segmentation", "_position")]
        yield opened.enter_context(OneDevice.open(run, tuple(names)))


def faults(device, feed=broadcast, parallelism=1):
    run = read(*planning.on_slice("1x1", parallelism), *WHOLE, *FLOAT32)
    with VirtualPod.open(run) as pod:
        found = comparing.compare_steps(run, pod, device, feed(run), steps=1)
    return " ".join(found.disagreements)


def test_rehearsal_detects_a_missing_collective_sum(monkeypatch, on_one_device):
    published = virtual_cores.ProgramCopy.copy_sum
    left_out = []

    def sums_but_one(self, node, core, name):
        left_out.append(node.name)
        copied = published(self, node, core, name)
        if node.name == left_out[0]:
            copied.input[:] = [self._input(node.input[0], core)]
            copied.attr["N"].i = 1
        return copied

    monkeypatch.setattr(virtual_cores.ProgramCopy, "copy_sum", sums_but_one)
    assert "differs by" in faults(on_one_device)


def test_rehearsal_of_other_collectives_than_sums_is_refused(monkeypatch):
    monkeypatch.setattr(virtual_cores, "_OTHER_COLLECTIVES", ["Einsum"])
    with pytest.raises(UserError, match="the program has Einsum, as a mixture of experts does"):
        faults(None)


@pytest.mark.slow
def test_rehearsal_detects_a_wrong_part_of_the_batch(monkeypatch, on_one_device):
    def first_part(self, x, mesh_axis, split_axis, which=None):
        first = self.LaidOutTensor([tf.constant(0)])
        return published(self, x, mesh_axis, split_axis, first)

    published = simd_mesh_impl.SimdMeshImpl.allsplit
    monkeypatch.setattr(simd_mesh_impl.SimdMeshImpl, "allsplit", first_part)
    found = faults(on_one_device)
    assert "the rows of inputs that the cores took do not make up the batch" in found
    assert "the loss of step 1 differs by" in found


@pytest.mark.slow
def test_rehearsal_detects_a_core_with_another_batch(on_one_device):
    def apart(run):
        return zip(random_batches(run), random_batches(run, seed=1), strict=False)

    found = faults(on_one_device, apart)
    assert "core 1 gets other inputs than core 0" in found
    assert "the rows of inputs that the cores took do not make up the batch" in found


@pytest.mark.slow
def test_rehearsal_detects_a_broken_layout_rule(monkeypatch, on_one_device):
    published = simd_mesh_impl.SimdMeshImpl.slice_begin

    def without_heads(self, shape, core):
        places = zip(shape.dims, published(self, shape, core), strict=True)
        return [0 if dim.name == "heads" else begin for dim, begin in places]

    monkeypatch.setattr(simd_mesh_impl.SimdMeshImpl, "slice_begin", without_heads)
    found = faults(on_one_device, parallelism=2)
    assert "the loss of step 1 differs by" in found
    assert "the cores did not restore encoder/block_000/layer_000/SelfAttention/q" in found


@pytest.mark.slow
def test_rehearsal_detects_permuted_cores(monkeypatch, on_one_device):
    published = simd_mesh_impl.SimdMeshImpl.pnum_tensor.fget

    def permuted(self):
        self._physical_to_logical.reverse()
        try:
            return published(self)
        finally:
            self._physical_to_logical.reverse()

    monkeypatch.setattr(simd_mesh_impl.SimdMeshImpl, "pnum_tensor", property(permuted))
    assert "the rows of inputs that the cores took do not make up the batch" in faults(
        on_one_device
    )


@pytest.mark.slow
def test_rehearsal_detects_variables_missing_in_the_checkpoint(monkeypatch, on_one_device):
    published = VirtualPod._run_on_host

    def without_gathering(self, name, prefix=None):
        if name != "to_masters":
            published(self, name, prefix)

    monkeypatch.setattr(VirtualPod, "_run_on_host", without_gathering)
    assert "the checkpoint does not hold shared/embedding" in faults(on_one_device)
