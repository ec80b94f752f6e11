"""The memory estimate against sums by hand, and against memory measured on the CPU.

The same liveness is read in two ways: unfused it is held here against TensorFlow's executor, which
keeps every value; fused, as XLA compiles for a TPU, against XLA's own allocations for the CPU, in
benchmarks/planning.py and the exhaustive test below.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t0.mesh.liveness import peak_memory
from t0.mesh.lowering import CoreProgram, ProgramStep, ProgramValue

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.exhaustive
def test_memory_estimate_fused_equals_xla_allocation():
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
    values = tuple(ProgramValue((size,), "float32", size) for size in bytes_of)
    return CoreProgram(tuple(ProgramStep(*step) for step in steps), values)


def test_memory_liveness_of_a_chain_equals_hand_count():
    program = made_up(
        ("x", "Placeholder", (), (0,), False),
        ("a", "MatMul", (0,), (1,), False),
        ("b", "Neg", (1,), (2,), False),
        ("c", "MatMul", (2,), (3,), False),
        ("d", "MatMul", (3, 1), (4,), False),
        bytes_of=(1000, 10, 20, 40, 80),
    )
    # Inputs do not count. At d: a (10), c (40) and d (80); b (20) was gone.
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


def test_memory_liveness_of_fused_values_keeps_their_inputs():
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
    steps[4] = ("c", "MatMul", (2, 3, 0), (4,), False)
    read_again = made_up(*steps, bytes_of=(100, 100, 7, 1, 1))
    assert peak_memory(read_again).bytes == 109
