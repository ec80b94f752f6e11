"""The plan of a run on a TPU slice: each core's memory, whether it fits, and the time of a step.

    plan = plan_configured_run(PlanOptions())      # after gin has been parsed
    plan["verdict"]["word"]                        # "fits"
    plan["per_core_bytes"]["total"]

A plan is one JSON object. Bytes and FLOPs follow from the configuration; activations are an
estimate (by `t0.mesh.formulas`, with --exact by `t0.mesh.memory`). Times follow from stated
assumptions: no overlap of computation and communication, a utilization of the peak, links at full
speed. A run that cannot work is an error before anything is lowered.
"""

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from t0.errors import UserError
from t0.mesh.costs import (
    DEFAULT_UTILISATION,
    Collective,
    StepCosts,
    communication_seconds,
    compute_seconds,
    link_sharing,
    logical_to_physical,
)
from t0.mesh.lowering import build_model
from t0.mesh.pod_run import (
    PodRun,
    check_model,
    configured_vocabulary_size,
    model_dimensions,
    read_pod_run,
)
from t0.mesh.step_costs import costs_by_formulas, costs_by_lowering, model_shape

FITS, RECOMPUTES, TOO_LARGE = "fits", "fits with recomputation", "does not fit"
_METHODS = {
    "lowering": "liveness over the lowered program of one core, fused as XLA fuses it",
    "formulas": "closed formulas for T5's layers",
}
_STEP = re.compile(r"ckpt-(\d+)$")


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The options of a plan.

    Attributes:
      exact: whether to lower the whole model instead of planning by formulas.
      every_slice: whether to lower every core's variables.
      utilisation: share of the peak FLOP/s that matrix products reach.
      start_step: the step to continue from; by default that of run.init_checkpoint, else 0.
    """

    exact: bool = False
    every_slice: bool = False
    utilisation: float = DEFAULT_UTILISATION
    start_step: int | None = None


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """The assumptions of a plan.

    Attributes:
      utilisation: share of the peak FLOP/s that matrix products reach.
      start_step: the step that training continues from.
      vocabulary: the source of the vocabulary's size, in words.
    """

    utilisation: float = DEFAULT_UTILISATION
    start_step: int = 0
    vocabulary: str = "T5's default"


def plan_configured_run(options: PlanOptions) -> dict[str, Any]:
    """Returns the plan of the run that gin configures.

    Raises:
      UserError: for a run that cannot work, before lowering.
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
        costs = costs_by_lowering(run, every_slice=options.every_slice)
    else:
        costs = costs_by_formulas(run, model_shape(model))
    assumptions = Assumptions(options.utilisation, _start_step(run, options), source)
    return make_plan(run, costs, assumptions, dimensions=dimensions)


def _start_step(run: PodRun, options: PlanOptions) -> int:
    if options.start_step is not None:
        return options.start_step
    named = _STEP.search(run.init_checkpoint or "")
    return int(named[1]) if named else 0


def make_plan(
    run: PodRun,
    costs: StepCosts,
    assumptions: Assumptions,
    *,
    dimensions: Mapping[str, int],
) -> dict[str, Any]:
    """Returns the plan as one JSON-ready object.

    Args:
      run: the run on a TPU slice.
      costs: the costs of one core in one step.
      assumptions: the plan's assumptions.
      dimensions: sizes of the model's dimensions that the plan lists, such as {"heads": 64}.
    """
    memory = _memory(run, costs)
    sharing = axis_sharing(run)
    time = _time(run, costs, assumptions, sharing)
    return {
        "schema": 1,
        "method": costs.method,
        "mode": run.mode,
        "topology": _topology(run),
        "mesh": _mesh(run, sharing, dimensions),
        "batch": _batch(run),
        "vocabulary": {"size": run.vocabulary_size, "source": assumptions.vocabulary},
        "parameters": costs.parameters,
        "per_core_bytes": memory,
        "activations_method": _METHODS[costs.method],
        "verdict": verdict(memory, run.slice_.name),
        "flops": {
            "per_core_per_step": costs.flops,
            "per_step": costs.flops * run.slice_.cores,
        },
        "collectives": [_collective(c, run, sharing) for c in costs.collectives],
        "time": time,
        "run": _remaining_steps(run, assumptions, time["step_seconds"]),
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


def _mesh(run: PodRun, sharing: dict[str, float], dimensions: Mapping[str, int]) -> dict[str, Any]:
    sizes = {"batch": run.batch_sequences, **dimensions}
    return {
        "shape": {dim.name: dim.size for dim in run.mesh_shape.dims},
        "layout": {
            name: {
                "size": size,
                "axis": run.axis(name),
                "per_core": size // run.split(name),
            }
            for name, size in sizes.items()
        },
        "rings_on_busiest_link": sharing,
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
    # What every layer reads is kept, whatever XLA recomputes.
    kept = costs.weights_bytes + costs.optimizer_bytes + costs.tile_bytes
    total = kept + sum(temporary.values())
    return {
        "weights": costs.weights_bytes,
        "optimizer": costs.optimizer_bytes,
        "weight_copies": temporary["weight copies"],
        "gradients": temporary["gradients"],
        "activations": temporary["activations"],
        "tiles": costs.tile_bytes,
        "total": total,
        "total_recomputed": min(total, kept + costs.recomputed_bytes),
        "usable": run.slice_.usable_bytes,
    }


def verdict(memory: dict[str, int], slice_name: str) -> dict[str, str]:
    """Returns whether the program fits into a core's memory, as a word and a reason."""
    total, least, usable = (memory[key] for key in ("total", "total_recomputed", "usable"))
    numbers = f"{gib(total)} of {gib(usable)} usable on a core of {slice_name}"
    if total <= usable:
        return {"word": FITS, "reason": f"{numbers}, {gib(usable - total)} to spare"}
    if least <= usable:
        return {
            "word": RECOMPUTES,
            "reason": f"{numbers}; {gib(least)} where XLA recomputes element-wise values, which "
            "takes time. Fewer tokens for each microbatch avoid it",
        }
    return {
        "word": TOO_LARGE,
        "reason": f"{numbers}, {gib(least)} even with recomputation: raise "
        "tpu_mesh_shape.model_parallelism, or lower "
        + ("tokens_per_microbatch_per_replica" if memory["gradients"] else "run.batch_size"),
    }


def gib(size: float) -> str:
    """Returns bytes as text in GiB.

    >>> gib(3 * 2**29)
    '1.50 GiB'
    """
    return f"{size / 2**30:.2f} GiB"


def axis_sharing(run: PodRun) -> dict[str, float]:
    """Returns, for each mesh axis, the number of rings that share the busiest link."""
    physical = np.array(logical_to_physical(run)).reshape(run.mesh_shape.to_integer_list or [1])
    return {
        dim.name: link_sharing(
            np.moveaxis(physical, number, -1).reshape(-1, dim.size).tolist(),
            run.slice_.order,
        )
        for number, dim in enumerate(run.mesh_shape.dims)
    }


def _collective(collective: Collective, run: PodRun, sharing: dict[str, float]) -> dict[str, Any]:
    return {
        **dataclasses.asdict(collective),
        "axes": list(collective.axes),
        "seconds": _seconds(collective, run, sharing),
    }


def _seconds(collective: Collective, run: PodRun, sharing: dict[str, float]) -> float:
    busiest = max((sharing.get(axis, 1.0) for axis in collective.axes), default=1.0)
    link = run.slice_.generation.link_bytes_per_second
    return communication_seconds(collective, link, busiest)


def _time(
    run: PodRun,
    costs: StepCosts,
    assumptions: Assumptions,
    sharing: dict[str, float],
) -> dict[str, Any]:
    generation = run.slice_.generation
    compute = compute_seconds(costs.flops, generation.peak_flops, assumptions.utilisation)
    by_axis: dict[str, float] = {}
    for collective in costs.collectives:
        axes = "+".join(collective.axes) or "none"
        seconds = _seconds(collective, run, sharing)
        by_axis[axes] = by_axis.get(axes, 0.0) + seconds
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
        "utilisation": assumptions.utilisation,
        "link_bytes_per_second": generation.link_bytes_per_second,
    }


def _remaining_steps(run: PodRun, assumptions: Assumptions, step_seconds: float) -> dict[str, Any]:
    if run.mode != "train":
        return {}
    steps = max(0, run.train_steps - assumptions.start_step)
    hours = steps * step_seconds / 3600
    return {
        "start_step": assumptions.start_step,
        "train_steps": run.train_steps,
        "steps": steps,
        "tokens": steps * run.tokens_of_batch,
        "hours": hours,
        "core_hours": hours * run.slice_.cores,
    }
