"""Plans a run on a TPU slice: the memory of each core, whether it fits, and the time of a step.

    plan = plan_configured_run()                   # after gin has been parsed
    plan["verdict"]["word"]                        # "fits"
    plan["per_core_bytes"]["total"]
    print(plan_text(plan))                         # fits on a screen

    rows = sweep(parse_axes(["tpu=v3-128,v3-256", "model_parallelism=4,8"]))
    print(sweep_text(rows))

A plan is one JSON object. Its bytes and FLOPs follow from the configuration. Only the bytes of
activations are an estimate. With --exact, `t0.mesh.liveness` makes this estimate. Otherwise,
`t0.mesh.formulas` makes it. Times follow from stated assumptions: a utilization of the peak FLOP/s,
links at full speed, and no overlap of computation and communication. If a run cannot work, planning
ends with an error before the program of a core is built.

In a sweep, each combination of slice, model parallelism and batch is bound in gin and planned with
formulas. If a combination cannot work, its row contains the reason.
"""

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import gin
from t0.errors import UserError, unknown_name
from t0.mesh import t5_model
from t0.mesh.costs import (
    DEFAULT_UTILISATION,
    StepCosts,
    costs_by_formulas,
    costs_by_lowering,
    logical_to_physical,
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
# Name of an axis of a sweep -> the gin parameter that it sets.
AXES = {
    "tpu": "tpu_mesh_shape.tpu_topology",
    "model_parallelism": "tpu_mesh_shape.model_parallelism",
    "tokens_per_microbatch": "serialize_num_microbatches.tokens_per_microbatch_per_replica",
    "tokens_per_batch": "run.batch_size",
    "sequences_per_batch": "run.batch_size",
}
_RANKS = (FITS, RECOMPUTES, TOO_LARGE)
_ORDER = (
    "ranked: runs that fit, then runs that fit if XLA recomputes values (the column\n"
    "'recomputed', GiB), then the others; within each group by the run's hours, or by the\n"
    "seconds for each sequence if the number of steps is not set"
)


def plan_configured_run(
    *, exact: bool = False, utilisation: float = DEFAULT_UTILISATION, start_step: int | None = None
) -> dict[str, Any]:
    """Returns the plan of the run that gin configures.

    Args:
      exact: whether to build the program of a core from the whole model, which takes minutes,
        instead of planning with formulas.
      utilisation: the fraction of the peak FLOP/s that matrix products reach.
      start_step: the step from which the run continues; by default the step of
        run.init_checkpoint.

    Raises:
      UserError: if the run cannot work. It is raised before the program of a core is built.
    """
    if not 0 < utilisation <= 1:
        raise UserError(f"--utilisation {utilisation}: expected a share, above 0 and up to 1")
    size, source = configured_vocabulary_size()
    run = read_pod_run(vocabulary_size=size)
    model = build_model(run)
    dimensions = model_dimensions(model)
    check_model(run, dimensions)
    if exact:
        print("lowering the program of a core takes up to minutes", file=sys.stderr)
        costs = costs_by_lowering(run, dimensions.get("heads", 0))
    else:
        costs = costs_by_formulas(run, t5_model.sizes(model))
    memory = memory_of(run, costs)
    rings_by_axis = count_rings_by_axis(run)
    collectives = _collectives(run, costs, rings_by_axis)
    time = _time(run, costs, utilisation, collectives)
    if start_step is None:
        start_step = step_of_checkpoint(run.init_checkpoint)
    return {
        "schema": 1,
        "method": costs.method,
        "mode": run.mode,
        "topology": {
            "name": run.slice_.name,
            "chips": list(run.slice_.chips),
            "cores": run.slice_.cores,
            "hosts": run.slice_.hosts,
            "zones": list(run.slice_.zones),
            "hbm_bytes_per_core": run.slice_.generation.hbm_bytes,
            "usable_bytes_per_core": run.slice_.usable_bytes,
        },
        "mesh": _mesh(run, rings_by_axis, dimensions),
        "batch": _batch(run),
        "vocabulary": {"size": size, "source": source},
        "parameters": costs.parameters,
        "per_core_bytes": memory,
        "activations_method": _METHODS[costs.method],
        "verdict": verdict(memory, run.slice_.name),
        "flops": {"per_core_per_step": costs.flops, "per_step": costs.flops * run.slice_.cores},
        "collectives": collectives,
        "time": time,
        "run": _remaining_steps(run, start_step, time["step_seconds"]),
        "longest_poles": costs.largest,
        "operations": dict(costs.operations),
    }


def step_of_checkpoint(checkpoint: str | None) -> int:
    """Returns the step in a checkpoint's name, such as 5 in "model.ckpt-5"; 0 if it has none."""
    match = _STEP.search(checkpoint or "")
    return int(match[1]) if match else 0


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


def memory_of(run: PodRun, costs: StepCosts) -> dict[str, int]:
    """Returns the bytes of a core's memory by kind; see `_KINDS` for the kinds."""
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


def _collectives(
    run: PodRun, costs: StepCosts, rings_by_axis: dict[str, float]
) -> list[dict[str, Any]]:
    # A ring uses a link in both directions.
    speed = 2 * run.slice_.generation.link_bytes_per_second
    rows = []
    for collective in costs.collectives:
        busiest = max((rings_by_axis.get(axis, 1.0) for axis in collective.axes), default=1.0)
        row = {**dataclasses.asdict(collective), "axes": list(collective.axes)}
        rows.append({**row, "seconds": collective.wire_bytes * busiest / speed})
    return rows


def _time(
    run: PodRun, costs: StepCosts, utilisation: float, collectives: list[dict[str, Any]]
) -> dict[str, Any]:
    generation = run.slice_.generation
    compute = costs.flops / (generation.peak_flops * utilisation)
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
        "utilisation": utilisation,
        "link_bytes_per_second": generation.link_bytes_per_second,
    }


def _remaining_steps(run: PodRun, start_step: int, step_seconds: float) -> dict[str, Any]:
    if run.mode != "train":
        return {}
    steps = max(0, run.train_steps - start_step)
    hours = steps * step_seconds / 3600
    return {
        "start_step": start_step,
        "train_steps": run.train_steps,
        "steps": steps,
        "tokens": steps * run.tokens_of_batch,
        "hours": hours,
        "core_hours": hours * run.slice_.cores,
    }


def plan_text(plan: dict[str, Any]) -> str:
    """Returns the text of a plan for a terminal, on about one screen."""
    sections = (_placement, _memory_lines, _collective_lines, _times, _largest_costs)
    return "\n".join(line for section in sections for line in section(plan))


def _placement(plan: dict[str, Any]) -> Iterator[str]:
    topology, mesh, batch = plan["topology"], plan["mesh"], plan["batch"]
    chips = " x ".join(map(str, topology["chips"]))
    yield (
        f"{plan['mode']} on {topology['name']}: {chips} chips, {topology['cores']} cores, "
        f"{topology['hosts']} hosts, {gib(topology['hbm_bytes_per_core'])} a core "
        f"(by {plan['method']})"
    )
    if topology["zones"]:
        yield f"zones with a {topology['name']}: {', '.join(topology['zones'])} (November 2026)"
    shape = ", ".join(f"{name} {size}" for name, size in mesh["shape"].items()) or "one core"
    layout = ", ".join(
        f"{name} {split['size']:,}"
        + (f" over {split['axis']}: {split['per_core']:,} a core" if split["axis"] else " whole")
        for name, split in mesh["layout"].items()
    )
    yield f"mesh: {shape}"
    yield f"layout: {layout}"
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


def _collective_lines(plan: dict[str, Any]) -> Iterator[str]:
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


def parse_axes(words: Sequence[str]) -> dict[str, list[Any]]:
    """Parses the values of each axis of a sweep from words such as "tpu=v3-128,v3-256".

    Raises:
      UserError: if an axis is unknown, or if an axis needs numbers but a value is not a number.
    """
    axes: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if name not in AXES:
            raise unknown_name("axis of --sweep", name, AXES, f"Known: {', '.join(AXES)}")
        numbers = name != "tpu"
        if not all(value and (value.isdigit() or not numbers) for value in values.split(",")):
            kind = "whole numbers" if numbers else "names of slices"
            raise UserError(f"--sweep {word}: expected {name}=VALUE,VALUE,... with {kind}")
        axes.setdefault(name, []).extend(map(int if numbers else str, values.split(",")))
    if {"tokens_per_batch", "sequences_per_batch"} <= axes.keys():
        raise UserError("--sweep takes one of tokens_per_batch and sequences_per_batch")
    return axes


def sweep(axes: Mapping[str, Sequence[Any]], **options: Any) -> list[dict[str, Any]]:
    """Uses formulas to plan a run for every combination of values, and ranks the combinations.

    Args:
      axes: name of an axis -> its values.
      **options: the options of every plan, see `plan_configured_run`.

    Returns:
      a record of each combination, from best to worst: its values, `plan` (None if the combination
      cannot work) and `problem` (the reason, else "").
    """
    rows = []
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        for name, value in values.items():
            pair = name.endswith("_per_batch")
            gin.bind_parameter(AXES[name], (name, value) if pair else value)
        try:
            rows.append({**values, "plan": plan_configured_run(**options), "problem": ""})
        except UserError as error:
            rows.append({**values, "plan": None, "problem": str(error)})
    return sorted(rows, key=_rank)


def _rank(row: Mapping[str, Any]) -> tuple[float, ...]:
    """Returns the sort key: first whether the run fits, then its time, then the number of cores."""
    plan = row["plan"]
    if plan is None:
        return (len(_RANKS),)
    time = plan["run"].get("hours") or 1 / plan["time"]["sequences_per_second"]
    return (_RANKS.index(plan["verdict"]["word"]), time, plan["topology"]["cores"])


def sweep_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table of ranked combinations, followed by a line that names the best one."""
    names = [name for name in AXES if name in rows[0]]
    header = (*names, "verdict", "memory", "recomputed", "step s", "bound by", "hours", "core-h")
    header += ("cost",) if any(row["plan"] and "cost" in row["plan"] for row in rows) else ()
    planned = [_cells(row, names) for row in rows if row["plan"]]
    lines = [*table_lines(header, planned, width=terminal_width())] if planned else []
    for row in rows:
        if not row["plan"]:
            lines.append(f"{_describe(row)}: impossible: {row['problem']}")
    best = "best: none fits"
    if rows[0]["plan"] and rows[0]["plan"]["verdict"]["word"] != TOO_LARGE:
        reason = rows[0]["plan"]["verdict"]["reason"]
        best = f"best: {_describe(rows[0])}: the shortest run of those that fit, {reason}"
    return "\n".join([*lines, "", _ORDER, best])


def _cells(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    plan, run = row["plan"], row["plan"]["run"]
    return [
        *(str(row[name]) for name in names),
        plan["verdict"]["word"],
        gib(plan["per_core_bytes"]["total"]),
        gib(plan["per_core_bytes"]["total_recomputed"]),
        f"{plan['time']['step_seconds']:.3f}",
        plan["time"]["bound_by"],
        f"{run['hours']:.1f}" if run else "-",
        f"{run['core_hours']:,.0f}" if run else "-",
        *([f"{plan['cost']['cost']:,.2f}"] if "cost" in plan else []),
    ]


def _describe(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={row[name]}" for name in row if name in AXES)
