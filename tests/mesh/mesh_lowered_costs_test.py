"""Costs of a few lowered blocks, extended, beside those of all blocks."""

import dataclasses

import planning
import pytest

from t0.mesh import lowered_costs, lowering

BLOCKS = 7


def lowered_blocks(monkeypatch):
    found = []
    lower = lowering.lower

    def recorded(*args, blocks, **kwargs):
        found.append(blocks)
        return lower(*args, blocks=blocks, **kwargs)

    monkeypatch.setattr(lowered_costs, "lower", recorded)
    return found


@pytest.mark.parametrize(
    "name", ["score", pytest.param("train, two ways of parallelism", marks=pytest.mark.slow)]
)
def test_few_blocks_stand_for_all(name, monkeypatch):
    run = planning.read_case(name, f"num_layers = {BLOCKS}")
    found = lowered_blocks(monkeypatch)
    few = lowered_costs.costs_by_lowering(run)
    assert found == [2, 3]
    every = lowered_costs.costs_by_lowering(run, every_block=True)
    assert found[2:] == [None]
    assert few.recomputed_bytes == pytest.approx(every.recomputed_bytes, rel=0.03)
    assert dataclasses.replace(few, recomputed_bytes=every.recomputed_bytes) == every


@pytest.mark.slow
def test_a_model_whose_peak_is_in_the_optimizer_is_lowered_whole(monkeypatch):
    run = planning.read_case("train, whole batch at once", f"num_layers = {BLOCKS}")
    found = lowered_blocks(monkeypatch)
    lowered_costs.costs_by_lowering(run)
    assert found == [2, 3, None]


def test_stacks_of_different_numbers_of_blocks_are_lowered_whole(monkeypatch):
    run = planning.read_case("score", f"decoder/make_layer_stack.num_layers = {BLOCKS}")
    assert lowering.equal_blocks(lowering.build_model(run)) is None
    found = lowered_blocks(monkeypatch)
    assert lowered_costs.costs_by_lowering(run).flops
    assert found == [None]


def test_blocks_that_differ_are_not_equal():
    model = lowering.build_model(planning.read_case("score", f"num_layers = {BLOCKS}"))
    assert lowering.equal_blocks(model) == BLOCKS
    model.decoder.layer_stack._layers[-1].hidden_size += 128
    assert lowering.equal_blocks(model) is None
