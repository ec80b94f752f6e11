"""What is lowered: microbatches as one loop."""

import pytest

from t0.mesh import lowering
from t0.mesh.lowering import read_program
from tests.mesh import planning


@pytest.mark.slow
def test_lowering_microbatches_are_one_loop():
    loops = {}
    for count, tokens in ((1, 256), (4, 64)):
        run = planning.read(
            *planning.LAYERS,
            *planning.on_slice("v3-8", 2),
            f"serialize_num_microbatches.tokens_per_microbatch_per_replica = {tokens}",
        )
        assert run.microbatches == count
        lowered = lowering.lower(run)
        program = read_program(lowered.graph, lowered.fetches)
        loops[count] = any(step.in_loop for step in program.steps)
    assert loops == {1: False, 4: True}
