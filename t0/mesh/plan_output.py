"""A plan as text that fits on a screen.

    from t0.mesh.plan import PlanOptions, plan_configured_run

    plan = plan_configured_run(PlanOptions())      # after gin has been parsed
    print(plan_text(plan))

`t0.reports.plan_picture` draws it.
"""

from collections.abc import Iterator
from typing import Any

from t0.mesh.plan import gib

_KINDS = {
    "weights": "weights",
    "optimizer": "optimizer's slots",
    "weight_copies": "weights in the activations' type",
    "gradients": "gradients, summed over microbatches",
    "activations": "activations (estimate)",
    "tiles": "position bias and mask, in tiles",
    "total": "total",
    "total_recomputed": "total, element-wise values recomputed",
    "usable": "usable",
}


def plan_text(plan: dict[str, Any]) -> str:
    """Returns the plan in words and numbers."""
    parts = (_placement, _memory, _collectives, _times, _largest_costs)
    return "\n".join(line for part in parts for line in part(plan))


def _placement(plan: dict[str, Any]) -> Iterator[str]:
    topology, mesh, batch = plan["topology"], plan["mesh"], plan["batch"]
    chips = " x ".join(map(str, topology["chips"]))
    yield (
        f"{plan['mode']} on {topology['name']}: {chips} chips, {topology['cores']} cores, "
        f"{topology['hosts']} hosts, {gib(topology['hbm_bytes_per_core'])} a core "
        f"(by {plan['method']})"
    )
    shape = ", ".join(f"{name} {size}" for name, size in mesh["shape"].items()) or "one core"
    order = mesh["logical_to_physical"]
    start = ", ".join(map(str, order[:8])) + (", ..." if len(order) > 8 else "")
    layout = ", ".join(
        f"{name} {split['size']:,}"
        + (f" over {split['axis']}: {split['per_core']:,} a core" if split["axis"] else " whole")
        for name, split in mesh["layout"].items()
    )
    yield f"mesh: {shape}"
    yield f"layout: {layout}"
    yield f"logical core -> physical core (in the order z, y, x, core of chip): {start}"
    lengths = " + ".join(f"{n} {name}" for name, n in batch["sequence_length"].items())
    yield (
        f"batch: {batch['sequences']:,} sequences of {lengths} = {batch['tokens']:,} tokens "
        f"({batch['tokens_by_longest_feature']:,} as tokens_per_batch counts them)"
    )
    yield (
        f"       {batch['replicas']} replicas x {batch['microbatches']} microbatches x "
        f"{batch['sequences_per_microbatch']} sequences"
    )
    vocabulary = plan["vocabulary"]
    yield (
        f"parameters: {plan['parameters']:,} (vocabulary {vocabulary['size']:,}: "
        f"{vocabulary['source']})"
    )


def _memory(plan: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "memory of a core"
    for key, size in plan["per_core_bytes"].items():
        yield f"  {_KINDS[key]:<40} {size:>16,} bytes  {gib(size):>10}"
    yield f"  activations by {plan['activations_method']}"
    yield f"VERDICT: {plan['verdict']['word']}: {plan['verdict']['reason']}"


def _collectives(plan: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "collectives of a core, for each step"
    yield (
        f"  {'kind':<12} {'axes':<12} {'cores':>6} {'type':<9} {'count':>7} "
        f"{'operand bytes':>17} {'sent bytes':>17} {'seconds':>9}"
    )
    for row in plan["collectives"]:
        yield (
            f"  {row['kind']:<12} {'+'.join(row['axes']):<12} {row['group_size']:>6} "
            f"{row['dtype']:<9} {row['count']:>7,} {row['payload_bytes']:>17,} "
            f"{row['wire_bytes']:>17,} {row['seconds']:>9.4f}"
        )
    if not plan["collectives"]:
        yield "  none"


def _times(plan: dict[str, Any]) -> Iterator[str]:
    time, run = plan["time"], plan["run"]
    yield ""
    yield (
        f"step: {time['step_seconds']:.3f} s = {time['compute_seconds']:.3f} computing + "
        f"{time['communication_seconds']:.3f} communicating, bound by {time['bound_by']} "
        "(estimate, nothing overlapped)"
    )
    yield (
        f"  {plan['flops']['per_step']:.4g} FLOPs a step, "
        f"{time['peak_flops_per_core'] / 1e12:.1f} TFLOP/s peak a core, "
        f"{time['utilisation']:.0%} utilised; links of "
        f"{time['link_bytes_per_second'] / 1e9:.0f} GB/s each way"
    )
    yield (
        f"  {time['tokens_per_second']:,.0f} tokens/s, "
        f"{time['sequences_per_second']:,.1f} sequences/s"
    )
    if run:
        yield (
            f"run: steps {run['start_step']:,} to {run['train_steps']:,} = {run['steps']:,} steps, "
            f"{run['tokens']:,} tokens: {run['hours']:.1f} h, {run['core_hours']:,.0f} core-hours"
        )
        if not run["start_step"] and run["steps"] > 1_000_000:
            yield "  counted from step 0; a run that continues a checkpoint: --start_step=N"


def _largest_costs(plan: dict[str, Any]) -> Iterator[str]:
    titles = {
        "activation_bytes": ("most activation memory", "bytes"),
        "communicated_bytes": ("most bytes communicated in a step", "bytes"),
        "flops": ("most FLOPs in a step", "FLOPs"),
    }
    for key, (title, unit) in titles.items():
        layers = plan["longest_poles"][key][:4]
        if layers:
            yield ""
            yield f"{title}, by layer (all blocks together)"
        for layer in layers:
            yield f"  {layer['amount']:>20,} {unit}  {layer['name']}"
