"""Pictures of a comparison: differences with their intervals, and prompts against prompts.

    runs, _ = read_named_runs(["eval"])
    found = compare(runs) if len(runs) > 1 else RunComparison(runs, 0, (), None, ())
    panels = [*difference_panels(found), *prompt_panels(found)]

A difference is a point with the interval for other examples and prompts (thin) and for these
prompts alone (thick); it is filled if it is told apart from none after the adjustment. In the other
pictures a point is one prompt: the baseline's accuracy to the right, the run's upwards.

Assumptions: accuracies are in percent.
"""

from typing import TYPE_CHECKING

from t0.reports.comparing import ComparedDataset, RunComparison
from t0.reports.plots import Panel, tooltip_id

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = 12  # datasets in one picture of differences
_LABEL_CHARACTERS = 18


def difference_panels(found: RunComparison) -> list[Panel]:
    """Returns a panel for each run but the baseline and each twelve datasets."""
    every = [*([found.mean] if found.mean else []), *found.datasets]
    panels = []
    for run in range(len(found.runs)):
        rows = [one for one in every if any(gap.run == run for gap in one.differences)]
        parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
        panels += [_difference_panel(found, run, part) for part in parts]
    return panels


def _difference_panel(found: RunComparison, run: int, rows: list[ComparedDataset]) -> Panel:
    names = [found.runs[one].name for one in (run, found.baseline)]
    gaps = [gap for row in rows for gap in row.differences if gap.run == run]

    def draw(axes: "Axes") -> list[str]:
        tooltips = []
        colour = found.runs[run].mark.colour
        axes.axvline(0, color="#555555", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        for place, (row, one) in enumerate(zip(rows, gaps, strict=True)):
            gap = one.gap
            axes.plot([gap.low, gap.high], [place] * 2, color=colour, linewidth=1.1)
            axes.plot([gap.fixed_low, gap.fixed_high], [place] * 2, color=colour, linewidth=3)
            axes.plot(
                [gap.difference],
                [place],
                "o",
                markersize=5.5,
                color=colour if one.clear else "white",
                markeredgecolor=colour,
                markeredgewidth=1.4,
                gid=tooltip_id(len(tooltips)),
                zorder=3,
            )
            tooltips.append(
                f"{row.title}: {gap.difference:+.1f} points, {gap.low:.1f} to {gap.high:.1f}, "
                f"adjusted p {one.adjusted:.2g}"
            )
        axes.set_yticks(range(len(rows)), [_label(row.title) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(*_limits(found))
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("difference (points)")
        return tooltips

    title = f"{found.runs[run].mark.letter} minus {found.runs[found.baseline].mark.letter}"
    described = "; ".join(
        f"{r.title}: {g.gap.difference:+.1f}" for r, g in zip(rows, gaps, strict=True)
    )
    return Panel(title, f"{names[0]} minus {names[1]}, in points. {described}", draw)


def _limits(found: RunComparison) -> tuple[float, float]:
    """Returns the ends of the axis of all pictures, so that they can be compared."""
    gaps = [one.gap for row in found.datasets for one in row.differences]
    ends = [end for gap in gaps for end in (gap.low, gap.high, gap.fixed_low, gap.fixed_high)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    pad = 0.05 * (high - low) + 0.5
    return low - pad, high + pad


def _label(title: str) -> str:
    return title if len(title) <= _LABEL_CHARACTERS else f"{title[: _LABEL_CHARACTERS - 1]}…"


def prompt_panels(found: RunComparison) -> list[Panel]:
    """Returns a panel for each dataset that the baseline has."""
    return [_prompt_panel(found, row) for row in found.datasets if row.prompts]


def _prompt_panel(found: RunComparison, dataset: ComparedDataset) -> Panel:
    def draw(axes: "Axes") -> list[str]:
        tooltips: list[str] = []
        axes.plot([0, 100], [0, 100], color="#555555", linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        for run, prompts in dataset.prompts.items():
            for prompt in prompts:
                axes.plot(
                    [prompt["first_accuracy"]],
                    [prompt["second_accuracy"]],
                    "o",
                    markersize=4.5,
                    color=found.runs[run].mark.colour,
                    alpha=0.75,
                    markeredgecolor="white",
                    markeredgewidth=0.5,
                    gid=tooltip_id(len(tooltips)),
                    zorder=3,
                )
                tooltips.append(
                    f"{prompt['prompt'] or prompt['task']}: {prompt['first_accuracy']:.1f} → "
                    f"{prompt['second_accuracy']:.1f} % ({found.runs[run].name})"
                )
        values = [
            prompt[name]
            for prompts in dataset.prompts.values()
            for prompt in prompts
            for name in ("first_accuracy", "second_accuracy")
        ]
        pad = max(3.0, (20 - (max(values) - min(values))) / 2)
        low, high = max(-1.5, min(values) - pad), min(101.5, max(values) + pad)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.grid(visible=True, axis="both")
        axes.set_aspect("equal", adjustable="box")
        axes.set_xlabel(f"{found.runs[found.baseline].mark.letter}: accuracy (%)")
        axes.set_ylabel("accuracy (%)")
        return tooltips

    return Panel(
        dataset.title,
        f"Accuracy of each prompt of {dataset.title}: the baseline's to the right, each run's up",
        draw,
    )
