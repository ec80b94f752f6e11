"""Plans a run on a TPU slice: the memory of each core, whether it fits, and the time of a step.

    plan = plan_configured_run(PlanOptions())      # after gin has been parsed
    plan["verdict"]["word"]                        # "fits"
    plan["per_core_bytes"]["total"]
    print(plan_text(plan))                         # fits on a screen

A plan is one JSON object. Its bytes and FLOPs follow from the configuration. Only the bytes of
activations are an estimate. With --exact, `t0.mesh.memory` makes this estimate. Otherwise,
`t0.mesh.formulas` makes it. Times follow from stated assumptions: a utilization of the peak FLOP/s,
links at full speed, and no overlap of computation and communication. If a run cannot work, planning
ends with an error before the program of a core is built.
"""

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.mesh.costs import (
    DEFAULT_UTILISATION,
    Collective,
    StepCosts,
    costs_by_formulas,
    costs_by_lowering,
    logical_to_physical,
    model_shape,
    rings_on_busiest_link,
)
from t0.mesh.lowering import build_model
from t0.mesh.pod_run import (
    PodRun,
    check_model,
    configured_vocabulary_size,
    model_dimensions,
    read_pod_run,
)
from t0.text_tables import table_lines, terminal_width

FITS, RECOMPUTES, TOO_LARGE = "fits", "fits with recomputation", "does not fit"
_METHODS = {
    "lowering": "liveness over the lowered program of one core, fused as XLA fuses it",
    "formulas": "closed formulas for T5's layers",
}
_STEP = re.compile(r"ckpt-(\d+)$")
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


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The options of a plan.

    Attributes:
      exact: whether to build the program of a core from the whole model, which takes minutes,
        instead of planning with formulas.
      utilisation: the fraction of the peak FLOP/s that matrix products reach.
      start_step: the step from which the run continues; by default the step in the name of
        run.init_checkpoint, or 0 if run.init_checkpoint is not set.
    """

    exact: bool = False
    utilisation: float = DEFAULT_UTILISATION
    start_step: int | None = None


def plan_configured_run(options: PlanOptions) -> dict[str, Any]:
    """Returns the plan of the run that gin configures.

    Raises:
      UserError: if the run cannot work. It is raised before the program of a core is built.
    """
    if not 0 < options.utilisation <= 1:
        raise UserError(f"--utilisation {options.utilisation}: wanted a share, above 0 and up to 1")
    size, source = configured_vocabulary_size()
    run = read_pod_run(vocabulary_size=size)
    model = build_model(run)
    dimensions = model_dimensions(model)
    check_model(run, dimensions)
    if options.exact:
        print("lowering the program of a core takes up to minutes", file=sys.stderr)
        costs = costs_by_lowering(run)
    else:
        costs = costs_by_formulas(run, model_shape(model))
    assumed = dataclasses.replace(options, start_step=_start_step(run, options))
    return _plan(run, costs, assumed, vocabulary=source, dimensions=dimensions)


def _start_step(run: PodRun, options: PlanOptions) -> int:
    if options.start_step is not None:
        return options.start_step
    match = _STEP.search(run.init_checkpoint or "")
    return int(match[1]) if match else 0


def _plan(
    run: PodRun,
    costs: StepCosts,
    options: PlanOptions,
    *,
    vocabulary: str,
    dimensions: Mapping[str, int],
) -> dict[str, Any]:
    memory = _memory(run, costs)
    rings_by_axis = count_rings_by_axis(run)
    collectives = [_collective(c, run, rings_by_axis) for c in costs.collectives]
    time = _time(run, costs, options, collectives)
    return {
        "schema": 1,
        "method": costs.method,
        "mode": run.mode,
        "topology": _topology(run),
        "mesh": _mesh(run, rings_by_axis, dimensions),
        "batch": _batch(run),
        "vocabulary": {"size": run.vocabulary_size, "source": vocabulary},
        "parameters": costs.parameters,
        "per_core_bytes": memory,
        "activations_method": _METHODS[costs.method],
        "verdict": verdict(memory, run.slice_.name),
        "flops": {"per_core_per_step": costs.flops, "per_step": costs.flops * run.slice_.cores},
        "collectives": collectives,
        "time": time,
        "run": _remaining_steps(run, options, time["step_seconds"]),
        "longest_poles": {
            "activation_bytes": [dataclasses.asdict(p) for p in costs.largest_memory],
            "flops": [dataclasses.asdict(p) for p in costs.largest_flops],
            "communicated_bytes": [dataclasses.asdict(p) for p in costs.largest_communication],
        },
        "operations": dict(costs.operations),
    }


def _topology(run: PodRun) -> dict[str, Any]:
    slice_ = run.slice_
    return {
        "name": slice_.name,
        "chips": list(slice_.chips),
        "cores": slice_.cores,
        "hosts": slice_.hosts,
        "hbm_bytes_per_core": slice_.generation.hbm_bytes,
        "usable_bytes_per_core": slice_.usable_bytes,
    }


def _mesh(
    run: PodRun, rings_by_axis: dict[str, float], dimensions: Mapping[str, int]
) -> dict[str, Any]:
    sizes = {"batch": run.batch_sequences, **dimensions}
    return {
        "shape": {dim.name: dim.size for dim in run.mesh_shape.dims},
        "layout": {
            name: {"size": size, "axis": run.axis(name), "per_core": size // run.split(name)}
            for name, size in sizes.items()
        },
        "rings_on_busiest_link": rings_by_axis,
        "logical_to_physical": logical_to_physical(run),
    }


def _batch(run: PodRun) -> dict[str, Any]:
    per_replica = run.batch_sequences // run.replicas
    return {
        "sequences": run.batch_sequences,
        "sequence_length": dict(run.sequence_length),
        "tokens": run.tokens_of_batch,
        "tokens_by_longest_feature": run.batch_sequences * max(run.sequence_length.values()),
        "replicas": run.replicas,
        "sequences_per_replica": per_replica,
        "microbatches": run.microbatches,
        "sequences_per_microbatch": per_replica // run.microbatches,
    }


def _memory(run: PodRun, costs: StepCosts) -> dict[str, int]:
    temporary = costs.temporary_bytes
    # XLA stores the values in `tile_bytes` even if it recomputes other values, because every layer
    # reads them.
    fixed = costs.weights_bytes + costs.optimizer_bytes + costs.tile_bytes
    total = fixed + sum(temporary.values())
    return {
        "weights": costs.weights_bytes,
        "optimizer": costs.optimizer_bytes,
        "weight_copies": temporary["weight copies"],
        "gradients": temporary["gradients"],
        "activations": temporary["activations"],
        "tiles": costs.tile_bytes,
        "total": total,
        "total_recomputed": min(total, fixed + costs.recomputed_bytes),
        "usable": run.slice_.usable_bytes,
    }


def verdict(memory: dict[str, int], slice_name: str) -> dict[str, str]:
    """Decides whether the program fits into a core's memory. Returns a word and a reason."""
    total, recomputed, usable = (memory[key] for key in ("total", "total_recomputed", "usable"))
    numbers = f"{gib(total)} of {gib(usable)} usable on a core of {slice_name}"
    if total <= usable:
        return {"word": FITS, "reason": f"{numbers}, {gib(usable - total)} to spare"}
    if recomputed <= usable:
        return {
            "word": RECOMPUTES,
            "reason": f"{numbers}; {gib(recomputed)} where XLA recomputes element-wise values, "
            "which takes time. Fewer tokens for each microbatch avoid it",
        }
    return {
        "word": TOO_LARGE,
        "reason": f"{numbers}, {gib(recomputed)} even with recomputation: raise "
        "tpu_mesh_shape.model_parallelism, or lower "
        + ("tokens_per_microbatch_per_replica" if memory["gradients"] else "run.batch_size"),
    }


def gib(size: float) -> str:
    """Formats a number of bytes in GiB.

    >>> gib(3 * 2**29)
    '1.50 GiB'
    """
    return f"{size / 2**30:.2f} GiB"


def count_rings_by_axis(run: PodRun) -> dict[str, float]:
    """Returns mesh axis -> the number of rings along this axis that share the busiest link."""
    physical = np.array(logical_to_physical(run)).reshape(run.mesh_shape.to_integer_list or [1])
    return {
        dim.name: rings_on_busiest_link(
            np.moveaxis(physical, number, -1).reshape(-1, dim.size).tolist(), run.slice_.order
        )
        for number, dim in enumerate(run.mesh_shape.dims)
    }


def _collective(
    collective: Collective, run: PodRun, rings_by_axis: dict[str, float]
) -> dict[str, Any]:
    busiest = max((rings_by_axis.get(axis, 1.0) for axis in collective.axes), default=1.0)
    # A ring uses a link in both directions.
    speed = 2 * run.slice_.generation.link_bytes_per_second
    return {
        **dataclasses.asdict(collective),
        "axes": list(collective.axes),
        "seconds": collective.wire_bytes * busiest / speed,
    }


def _time(
    run: PodRun, costs: StepCosts, options: PlanOptions, collectives: list[dict[str, Any]]
) -> dict[str, Any]:
    generation = run.slice_.generation
    compute = costs.flops / (generation.peak_flops * options.utilisation)
    by_axis: dict[str, float] = {}
    for collective in collectives:
        axes = "+".join(collective["axes"]) or "none"
        by_axis[axes] = by_axis.get(axes, 0.0) + collective["seconds"]
    communication = sum(by_axis.values())
    step = compute + communication
    return {
        "compute_seconds": compute,
        "communication_seconds": communication,
        "communication_seconds_by_axis": by_axis,
        "step_seconds": step,
        "bound_by": "computation" if compute >= communication else "communication",
        "tokens_per_second": run.tokens_of_batch / step,
        "sequences_per_second": run.batch_sequences / step,
        "peak_flops_per_core": generation.peak_flops,
        "utilisation": options.utilisation,
        "link_bytes_per_second": generation.link_bytes_per_second,
    }


def _remaining_steps(run: PodRun, options: PlanOptions, step_seconds: float) -> dict[str, Any]:
    if run.mode != "train":
        return {}
    steps = max(0, run.train_steps - options.start_step)
    hours = steps * step_seconds / 3600
    return {
        "start_step": options.start_step,
        "train_steps": run.train_steps,
        "steps": steps,
        "tokens": steps * run.tokens_of_batch,
        "hours": hours,
        "core_hours": hours * run.slice_.cores,
    }


def plan_text(plan: dict[str, Any]) -> str:
    """Returns the text of a plan for a terminal, on about one screen."""
    sections = (_placement, _memory_lines, _collectives, _times, _largest_costs)
    return "\n".join(line for section in sections for line in section(plan))


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


def _memory_lines(plan: dict[str, Any]) -> Iterator[str]:
    columns = ("memory of a core", "bytes", "size")
    sizes = plan["per_core_bytes"].items()
    rows = [(f"  {_KINDS[key]}", f"{size:,}", gib(size)) for key, size in sizes]
    yield ""
    yield from table_lines(columns, rows, right=columns[1:], width=terminal_width())
    yield f"  activations by {plan['activations_method']}"
    yield f"VERDICT: {plan['verdict']['word']}: {plan['verdict']['reason']}"


def _collectives(plan: dict[str, Any]) -> Iterator[str]:
    columns = ("collectives of a core, for each step", "axes", "cores", "type", "count")
    columns += ("operand bytes", "sent bytes", "seconds")
    rows = [
        (
            f"  {row['kind']}",
            "+".join(row["axes"]),
            str(row["group_size"]),
            row["dtype"],
            *(f"{row[key]:,}" for key in ("count", "payload_bytes", "wire_bytes")),
            f"{row['seconds']:.4f}",
        )
        for row in plan["collectives"]
    ]
    yield ""
    right = ("cores", *columns[4:])
    yield from table_lines(columns, rows, right=right, width=terminal_width())


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
