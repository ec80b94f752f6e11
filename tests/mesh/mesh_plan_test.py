"""A plan's parts add up; gin/mesh says of each slice what the plans say."""

import re
from pathlib import Path

import pytest

from t0.config.bindings import bound
from t0.errors import UserError
from t0.mesh.plan import FITS, RECOMPUTES, parse_axes, plan_configured_run
from t0.mesh.topology import SLICES
from tests.mesh import planning

GIN = Path(__file__).resolve().parents[2] / "gin"


WANTED = ("small", "base", "large", "xl", "xxl")


# One of each kind: the default run computes what fits on these, a slow one on all.
QUICK = ("v2-8", "v3-8", "v3-512", "v4-64")


def test_plan_parts_of_a_small_model_add_up():
    planning.configure(*planning.LAYERS, *planning.on_slice("v3-8", 2))
    plan = plan_configured_run(start_step=40, utilisation=0.5)
    memory = plan["per_core_bytes"]
    parts = ("weights", "optimizer", "weight_copies", "gradients", "activations", "tiles")
    assert memory["total"] == sum(memory[part] for part in parts)
    assert memory["total_recomputed"] <= memory["total"]
    assert plan["verdict"]["word"] == "fits"
    assert plan["run"]["steps"] == 60
    assert plan["flops"]["per_step"] == 8 * plan["flops"]["per_core_per_step"]
    time = plan["time"]
    assert time["compute_seconds"] == plan["flops"]["per_core_per_step"] / (61.5e12 * 0.5)
    assert time["step_seconds"] == time["compute_seconds"] + time["communication_seconds"]
    assert plan["mesh"]["layout"]["heads"] == {"size": 4, "axis": "model", "per_core": 2}
    assert sorted(plan["mesh"]["logical_to_physical"]) == list(range(8))
    assert plan["longest_poles"]["flops"] == []


@pytest.mark.slow
def test_plan_exact_lists_the_largest_layers():
    planning.configure(*planning.LAYERS, *planning.on_slice("v3-8", 2))
    plan = plan_configured_run(exact=True)
    assert plan["method"] == "lowering"
    assert plan["longest_poles"]["flops"][0]["amount"] > 0


@pytest.mark.parametrize("utilisation", [0, 1.5])
def test_plan_utilization_must_be_a_share(utilisation):
    with pytest.raises(UserError, match="expected a share"):
        plan_configured_run(utilisation=utilisation)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SLICES]
)
def test_plan_verdicts_equal_headers_of_mesh_gin_files(name):
    header = (GIN / "mesh" / f"{name}.gin").read_text()
    for size in WANTED:
        said = re.search(rf"^#   {size}: +(.*)$", header, re.M)[1]
        fitting = []
        for parallelism in (1, 2, 4, 8, 16, 32):
            planning.configure(
                *planning.on_slice(name, parallelism),
                "run.sequence_length = {'inputs': 1024, 'targets': 256}",
                "run.batch_size = ('sequences_per_replica', 2)",
                "serialize_num_microbatches.tokens_per_microbatch_per_replica = 2048",
                files=(f"models/t5.1.1.{size}.gin",),
            )
            try:
                plan = plan_configured_run()
            except UserError:
                continue
            word = plan["verdict"]["word"]
            suffix = {FITS: "", RECOMPUTES: " (recomputing)"}.get(word)
            fitting += [] if suffix is None else [f"{parallelism}{suffix}"]
        assert said == (", ".join(fitting) or "none"), size


@pytest.mark.parametrize("family", ["t5.1.1.lm100k", "mt5"])
@pytest.mark.parametrize("size", WANTED)
def test_model_gin_files_have_t5_1_1_sizes(family, size):
    macros = ("%d_model", "%d_ff", "%d_kv", "%num_heads", "%num_layers")
    found = []
    for model in (f"models/{family}.{size}.gin", f"models/t5.1.1.{size}.gin"):
        planning.configure(files=(model,))
        found.append([bound(macro) for macro in macros])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["tpuu=v3-8"], "Did you mean 'tpu'"),
        (["tpu"], "expected tpu=VALUE"),
        (["model_parallelism=two"], "two: expected model_parallelism=VALUE,VALUE,... with whole"),
        (["tokens_per_batch=1", "sequences_per_batch=1"], "one of"),
    ],
)
def test_sweep_axes_that_cannot_be_read_are_refused(words, part):
    with pytest.raises(UserError, match=part):
        parse_axes(words)
