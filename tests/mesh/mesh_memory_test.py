"""The memory estimate against sums by hand, and against memory measured on the CPU.

The same liveness is read in two ways: unfused it is held here against TensorFlow's executor, which
keeps every value; fused, as XLA compiles for a TPU, against XLA's own allocations for the CPU, in
benchmarks/planning.py and the exhaustive test below.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import planning
import pytest
import tensorflow.compat.v1 as tf

from t0.mesh.lowering import Program, Step, Value, loops, placeholders, read_program
from t0.mesh.memory import peak_memory
from t0.rehearsal.virtual_pod import as_written

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {
    "long inputs": ("d_model = 192", "d_ff = 384", "{'inputs': 256, 'targets': 64}", 8),
    "wide": ("d_model = 512", "d_ff = 1024", "{'inputs': 128, 'targets': 32}", 4),
}


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
@pytest.mark.parametrize("shape", SHAPES)
def test_unfused_estimate_is_what_tensorflow_allocates(shape):
    d_model, d_ff, lengths, sequences = SHAPES[shape]
    run = planning.read(
        d_model,
        d_ff,
        *("num_layers = 2", "d_kv = 32", "num_heads = 6"),
        f"run.sequence_length = {lengths}",
        f"run.batch_size = ('sequences_per_batch', {sequences * 8})",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
        "get_variable_dtype.activation_dtype = 'float32'",
        "get_variable_dtype.master_dtype = 'float32'",
        "utils.tpu_mesh_shape.tpu_topology = 'v3-8'",
        "run.mesh_shape = 'batch:8'",
    )
    run = dataclasses.replace(run, batch_sequences=sequences)
    with planning.graph_mode():
        features = placeholders(run)
        spec = planning.cpu_model_fn(run)(features)
        fetched = planning.fetches(spec, "train")
        estimate = peak_memory(read_program(tf.get_default_graph(), fetched), fused=False).bytes
        config = as_written(tf.ConfigProto(inter_op_parallelism_threads=1))
        with tf.Session(config=config) as session:
            planning.initialise(session)
            metadata = tf.RunMetadata()
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            fed = planning.values_for(features)
            session.run(fetched, fed, options=options, run_metadata=metadata)
    assert estimate == pytest.approx(peak_of_run(metadata), rel=0.25)


@pytest.mark.exhaustive
def test_fused_estimate_is_what_xla_allocates():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "planning.py"), "--memory", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) >= 3
    for row in rows:
        assert row["estimate_bytes"] == pytest.approx(row["measured_bytes"], rel=0.25), row


def made_up(*steps, bytes_of):
    values = tuple(Value((size,), "float32", size) for size in bytes_of)
    return Program(tuple(Step(*step) for step in steps), values)


def test_liveness_of_a_chain_by_hand():
    program = made_up(
        ("x", "Placeholder", (), (0,), False),
        ("a", "MatMul", (0,), (1,), False),
        ("b", "Neg", (1,), (2,), False),
        ("c", "MatMul", (2,), (3,), False),
        ("d", "MatMul", (3, 1), (4,), False),
        bytes_of=(1000, 10, 20, 40, 80),
    )
    # Inputs do not count. At d: a (10), c (40) and d (80); b (20) was gone. Unfused the same.
    assert peak_memory(program).bytes == 130
    # At c: a, b, c = 70.
    assert (
        peak_memory(
            made_up(
                *[(s.name, s.kind, s.inputs, s.outputs, False) for s in program.steps[:4]],
                bytes_of=(1000, 10, 20, 40),
            )
        ).bytes
        == 70
    )


def test_fused_values_keep_what_they_are_made_of():
    steps = [
        ("a", "MatMul", (), (0,), False),
        ("n", "Neg", (0,), (1,), False),
        ("b", "MatMul", (), (2,), False),
        ("s", "Sum", (1,), (3,), False),
        ("c", "MatMul", (2, 3), (4,), False),
    ]
    program = made_up(*steps, bytes_of=(100, 100, 7, 1, 1))
    # n is never stored, but a lives until the sum that reads it: a, b, s.
    assert peak_memory(program).bytes == 108
    # TensorFlow's kernel writes n over a, which nobody else reads.
    assert peak_memory(program, fused=False).bytes == 108
    steps[4] = ("c", "MatMul", (2, 3, 0), (4,), False)
    read_again = made_up(*steps, bytes_of=(100, 100, 7, 1, 1))
    assert peak_memory(read_again, fused=False).bytes == 208
    assert peak_memory(read_again).bytes == 109


def test_a_loop_that_is_a_function_has_the_memory_of_one_in_the_graph():
    peaks = []
    for functions in (False, True):
        with loops(as_functions=functions), tf.Graph().as_default() as graph:
            x = tf.placeholder(tf.float32, [64, 64]) * 2.0
            y = tf.placeholder(tf.float32, [64, 64]) * 3.0

            def body(i, total, x=x, y=y):
                return i + 1, total + tf.matmul(tf.matmul(x, y) + tf.cast(i, tf.float32), x)

            _, total = tf.while_loop(lambda i, _: i < 4, body, [0, tf.zeros([64, 64])])
            result = tf.matmul(total, x)
        assert any("While" in op.type for op in graph.get_operations()) == functions
        program = read_program(graph, [result])
        assert {step.kind for step in program.steps if step.in_loop} >= {"MatMul", "NextIteration"}
        peaks.append(peak_memory(program, fused=False))
    assert peaks[0].bytes > 4 * 64 * 64 * 4
    assert 0 <= peaks[1].bytes - peaks[0].bytes <= 8  # a function has two counters more
