"""The memory that the start of a run prints, next to the memory that TensorFlow allocates."""

import dataclasses
import re
from types import SimpleNamespace

import pytest
import tensorflow.compat.v1 as tf

from t0.mesh.gather_embedding import bind_gather_embedding
from t0.rehearsal.virtual_pod import disable_graph_rewrites
from t0.training import mesh_session
from t0.training.graph import build
from tests.training import tiny_training as tiny

SIZES = ("d_model = 64", "d_ff = 160", "d_kv = 16", "num_heads = 4", "num_layers = 2")


def peak_of_run(metadata):
    """Returns the largest sum of allocations alive at once, in bytes, from a full trace."""
    events = [
        (record.alloc_micros, record.alloc_bytes)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for memory in node.memory
        for record in memory.allocation_records
    ]
    total = most = 0
    for _, size in sorted(events, key=lambda event: (event[0], -event[1])):
        total += size
        most = max(most, total)
    return most


@pytest.mark.slow
@pytest.mark.parametrize("model", ["t5.1.1.tiny", "t5.1.0.small"])
@pytest.mark.parametrize("lengths", [{"inputs": 256, "targets": 64}, {"inputs": 64, "targets": 96}])
def test_step_memory_estimate_is_near_tensorflow_allocation(model, lengths):
    spec = tiny.training_spec(rows=8, params=SIZES, model=model)
    spec = dataclasses.replace(spec, sequence_length=lengths)
    bind_gather_embedding(spec.mesh_shape, spec.layout_rules)
    graph = build(spec, features=tiny.FEATURES, seed=0, activations=tf.float32, validates=False)
    (line,) = mesh_session.memory_lines(spec, graph, 4)
    size, unit = re.search(r"gradients and activations ([\d.]+) (MiB|GiB)", line).groups()
    expected = float(size) * 2 ** {"MiB": 20, "GiB": 30}[unit]
    config = disable_graph_rewrites(tf.ConfigProto(inter_op_parallelism_threads=1))
    with tf.Session(graph=graph.graph, config=config) as session:
        with graph.graph.as_default():
            session.run(tf.global_variables_initializer())
        session.run(graph.to_slices)
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        fed = {x: [[3] * int(x.shape[1])] * int(x.shape[0]) for x in graph.features.values()}
        # TensorFlow chooses the order of operations anew in each step, and with it the peak.
        peaks = []
        for _ in range(4):
            metadata = tf.RunMetadata()
            session.run([graph.metrics, graph.train], fed, options=options, run_metadata=metadata)
            peaks.append(peak_of_run(metadata))
    assert expected == pytest.approx(max(peaks), rel=0.3)


def test_step_memory_of_another_model_is_not_estimated(monkeypatch):
    spec = tiny.training_spec(params=SIZES)
    graph = SimpleNamespace(microbatches=1, slots=["slot"])
    assert mesh_session.memory_lines(spec, graph, 4)
    stack = SimpleNamespace(layer_stack=SimpleNamespace(_layers=[SimpleNamespace()]))
    for model in (SimpleNamespace(encoder=None), SimpleNamespace(encoder=stack, decoder=stack)):
        monkeypatch.setattr(mesh_session, "build_model", lambda spec, model=model: model)
        assert mesh_session.memory_lines(spec, graph, 4) == []
