"""Box plots of accuracy over prompts, a panel for each dataset.

A box shows quartiles and median, its whiskers the range over prompts, each point one prompt, the
diamond the mean. Runs stand side by side under their letters.

    panels = box_panels(dataset_rows(runs), runs)

Assumptions: accuracies in percent.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from t0.reports import figures
from t0.reports.plots import Panel, draw_references, limit_percent, references
from t0.reports.read import Run
from t0.reports.summary import DatasetRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BOXES = 8
_OFFSETS = (0.0, 0.1, -0.1, 0.2, -0.2)  # in units of the distance between two boxes
# Percentage points that a drawn point covers, and half of the diamond, about.
_POINT_HEIGHT, _DIAMOND_HEIGHT = 1.0, 1.5


def boxed_runs(runs: Sequence[Run]) -> tuple[int, ...]:
    """Returns which ranked runs get a box: all, or each series' last where they are too many."""
    ranked = [i for i, run in enumerate(runs) if run.tasks]
    if len(ranked) <= MOST_BOXES:
        return tuple(ranked)
    last: dict[str, int] = {}
    for i in ranked:
        run = runs[i]
        best = last.get(run.series)
        if best is None or (run.step or 0) >= (runs[best].step or 0):
            last[run.series] = i
    return tuple(sorted(last.values()))


def box_panels(rows: Sequence[DatasetRow], runs: Sequence[Run]) -> list[Panel]:
    """Returns a panel of box plots for each dataset, in the order of the rows."""
    shown = set(boxed_runs(runs))
    by_dataset: dict[str, list[DatasetRow]] = {}
    for row in rows:
        if row.run in shown:
            by_dataset.setdefault(row.dataset, []).append(row)
    return [_box_panel(found, runs) for found in by_dataset.values()]


def _box_panel(rows: Sequence[DatasetRow], runs: Sequence[Run]) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        for place, row in enumerate(rows):
            _draw_box(axes, place, row, runs[row.run], tooltips)
        values = [p.task.accuracy for row in rows for p in row.prompts]
        lines_at = references(rows)
        limit_percent(axes, [*values, *lines_at.values()])
        axes.set_xlim(-0.6, len(rows) - 0.4)
        draw_references(axes, lines_at)
        axes.set_xticks(range(len(rows)), [figures.letter(row.run) for row in rows])
        if len(runs) == 1:
            axes.set_xticks([])
        axes.set_xlabel(_counts_label(rows))
        return tooltips

    means = "; ".join(f"{runs[r.run].label}: mean {r.spread.mean:.1f} %" for r in rows)
    return Panel(rows[0].title, f"Accuracy over prompts on {rows[0].title}. {means}", draw)


def _draw_box(axes: "Axes", place: int, row: DatasetRow, run: Run, tooltips: list[str]) -> None:
    colour = figures.run_colour(row.run)
    line = {"color": colour, "linewidth": 1.2}
    s = row.spread
    axes.bxp(
        [
            {
                "med": s.median,
                "q1": s.first_quartile,
                "q3": s.third_quartile,
                "whislo": s.low,
                "whishi": s.high,
                "fliers": [],
            }
        ],
        positions=[place],
        widths=0.52,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": colour + "26", "edgecolor": colour, "linewidth": 1.2},
        medianprops={"color": colour, "linewidth": 2.2},
        whiskerprops=line,
        capprops=line,
    )
    ordered = sorted(row.prompts, key=lambda p: p.task.accuracy)
    offsets = swarm([p.task.accuracy for p in ordered], mean=s.mean)
    for prompt, offset in zip(ordered, offsets, strict=True):
        axes.plot(
            [place + offset],
            [prompt.task.accuracy],
            "o",
            markersize=4.2,
            color=colour,
            alpha=0.75,
            markeredgecolor="white",
            markeredgewidth=0.5,
            gid=figures.tooltip_id(len(tooltips)),
            zorder=3,
        )
        tooltips.append(f"{prompt.task.prompt}: {prompt.task.accuracy:.1f} % ({run.label})")
    axes.plot(
        [place],
        [s.mean],
        "D",
        markersize=5.5,
        color="white",
        markeredgecolor=colour,
        markeredgewidth=1.6,
        gid=figures.tooltip_id(len(tooltips)),
        zorder=4,
    )
    tooltips.append(f"mean over {len(ordered)} prompts: {s.mean:.1f} % ({run.label})")


def swarm(ascending: Sequence[float], *, mean: float = math.inf) -> list[float]:
    """Returns sideways offsets that keep points of close values apart, the first in the middle.

    Args:
        ascending: values in percent.
        mean: where the diamond is drawn, in the middle, which would hide a point.

    >>> swarm([50.0, 50.1, 60.0])
    [0.0, 0.1, 0.0]
    """
    last: dict[float, float] = {}
    offsets = []
    for value in ascending:
        hidden = (0.0,) if abs(value - mean) < _DIAMOND_HEIGHT else ()
        places = [o for o in _OFFSETS if o not in hidden]
        free = [o for o in places if value - last.get(o, -math.inf) >= _POINT_HEIGHT]
        # Where all places are taken, the one whose last point is farthest below overlaps least.
        offset = free[0] if free else min(places, key=last.__getitem__)
        last[offset] = value
        offsets.append(offset)
    return offsets


def _counts_label(rows: Sequence[DatasetRow]) -> str:
    prompts = sorted({len(row.prompts) for row in rows})
    low = min(row.examples[0] for row in rows)
    high = max(row.examples[1] for row in rows)
    examples = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    counts = f"{prompts[0]}" if len(prompts) == 1 else f"{prompts[0]}–{prompts[-1]}"
    return f"{counts} prompt{'' if counts == '1' else 's'}, {examples} examples"
