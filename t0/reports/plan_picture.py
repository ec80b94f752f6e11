"""Draws the picture of `t0 plan --output`: the memory of a core and the time of a step.

    t0 plan --gin_file=runs/t0_train.gin --gin_file=mesh/v3-512.gin --output plan.png

    >>> gibibytes(3 * 2**29)
    1.5

The picture has the same style as the plots of a report.

Assumptions: the plan is the dictionary that `t0.mesh.plan` makes, with sizes in bytes and times in
seconds.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t0.files import write_whole
from t0.reports.plots import INK, MUTED, RUN_COLOURS, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Kind of memory -> its label in the column of memory.
_KINDS = {
    "weights": "weights",
    "optimizer": "optimizer slots",
    "weight_copies": "copies of weights",
    "gradients": "gradients",
    "activations": "activations",
    "tiles": "bias and mask, in tiles",
}


def draw_plan(plan: Mapping[str, Any], path: str) -> None:
    """Draws a plan and writes the picture; the extension of `path` selects PNG, SVG or PDF."""
    figure = new_figure(9.6, 4.2)
    with styled():
        figure.get_layout_engine().set(rect=(0, 0, 1, 0.92), wspace=0.05)
        memory, time = figure.subplots(1, 2, width_ratios=(1, 1.3))
        _draw_memory(memory, plan)
        _draw_time(time, plan["time"])
        shape = " x ".join(f"{name} {size}" for name, size in plan["mesh"]["shape"].items())
        heading = f"{plan['mode']} on {plan['topology']['name']} ({shape or 'one core'})"
        figure.text(0.012, 0.955, heading, fontsize=12, fontweight="bold", va="center")
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=150, format=Path(path).suffix[1:])
    write_whole(path, drawn.getvalue())


def gibibytes(count: float) -> float:
    """Converts bytes to GiB."""
    return count / 2**30


def _draw_memory(axes: "Axes", plan: Mapping[str, Any]) -> None:
    sizes = plan["per_core_bytes"]
    bottom = 0.0
    handles = []
    for (kind, words), colour in zip(_KINDS.items(), RUN_COLOURS, strict=False):
        height = gibibytes(sizes[kind])
        label = f"{words}: {height:.2f}"
        handles.append(axes.bar([0], [height], bottom=bottom, color=colour, width=0.5, label=label))
        bottom += height
    usable, least = gibibytes(sizes["usable"]), gibibytes(sizes["total_recomputed"])
    handles += [axes.axhline(usable, color=INK, label=f"usable: {usable:.2f}")]
    words = f"with recomputation: {least:.2f}"
    handles += [axes.axhline(least, color=MUTED, linestyle=":", label=words)]
    axes.set_xticks([])
    axes.set_xlim(-0.4, 1.5)
    axes.set_ylabel("GiB per core")
    axes.set_title(f"Memory: {plan['verdict']['word']}")
    axes.legend(handles=handles[::-1], loc="center right", fontsize=7.5, borderaxespad=0.2)


def _draw_time(axes: "Axes", time: Mapping[str, Any]) -> None:
    times = {"products": time["compute_seconds"]}
    times |= {
        f"all-reduce over {axis}": seconds
        for axis, seconds in time["communication_seconds_by_axis"].items()
    }
    names = list(times)[::-1]
    axes.barh(names, [times[name] for name in names], color=RUN_COLOURS[0], height=0.55)
    for number, name in enumerate(names):
        axes.text(times[name], number, f" {times[name]:.3f} s", va="center")
    axes.margins(x=0.2)
    axes.set_ylim(-0.8, len(names) - 0.2)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds per step (estimate)")
    axes.set_title(f"Time: bound by {time['bound_by']}")
