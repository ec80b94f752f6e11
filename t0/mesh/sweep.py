"""Plans many runs with formulas, and ranks them by whether they fit and how fast they are.

    rows = sweep(parse_axes(["tpu=v3-128,v3-256", "model_parallelism=4,8"]), PlanOptions())
    print(sweep_text(rows))

Each combination of slice, model parallelism and batch is bound in gin and planned. If a combination
cannot work, its row contains the reason. The runs that fit into memory come first. Then come the
runs that fit if XLA recomputes values, and then all other runs. Within each of these groups, the
fastest run is first.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from t0.compat import gin
from t0.errors import UserError, unknown_name
from t0.mesh.plan import FITS, RECOMPUTES, TOO_LARGE, PlanOptions, gib, plan_configured_run
from t0.progress import ProgressLine
from t0.text_tables import table_lines, terminal_width

# Name of an axis on the command line -> the gin parameter that it sets.
AXES = {
    "tpu": "tpu_mesh_shape.tpu_topology",
    "model_parallelism": "tpu_mesh_shape.model_parallelism",
    "tokens_per_microbatch": "serialize_num_microbatches.tokens_per_microbatch_per_replica",
    "tokens_per_batch": "run.batch_size",
    "sequences_per_batch": "run.batch_size",
}
_RANKS = {FITS: 0, RECOMPUTES: 1, TOO_LARGE: 2}
_IMPOSSIBLE = 3
_ORDER = (
    "ranked: runs that fit, then runs that fit if XLA recomputes values (the column\n"
    "'recomputed', GiB), then the others; within each group by the run's hours, or by the\n"
    "seconds for each sequence if the number of steps is not set"
)


@dataclasses.dataclass(frozen=True)
class PlannedCombination:
    """One combination of values, with its plan or the reason why it cannot be planned."""

    values: Mapping[str, Any]
    plan: Mapping[str, Any] | None
    problem: str = ""

    @property
    def rank(self) -> tuple[int, float, float]:
        """The sort key: first whether the run fits, then its time, then the number of cores."""
        if self.plan is None:
            return (_IMPOSSIBLE, 0.0, 0.0)
        time = self.plan["run"].get("hours") or 1 / self.plan["time"]["sequences_per_second"]
        return (_RANKS[self.plan["verdict"]["word"]], time, self.plan["topology"]["cores"])


def parse_axes(words: Sequence[str]) -> dict[str, list[Any]]:
    """Parses the values of each axis from words such as "tpu=v3-128,v3-256".

    Raises:
      UserError: if an axis is unknown, or if an axis needs numbers but a value is not a number.
    """
    axes: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if name not in AXES:
            raise unknown_name("axis of --sweep", name, AXES, f"Known: {', '.join(AXES)}")
        if not equals or not values:
            raise UserError(f"--sweep {word}: wanted {name}=VALUE,VALUE,...")
        axes.setdefault(name, []).extend(_value(name, value) for value in values.split(","))
    if {"tokens_per_batch", "sequences_per_batch"} <= axes.keys():
        raise UserError("--sweep takes one of tokens_per_batch and sequences_per_batch")
    return axes


def _value(name: str, text: str) -> Any:
    if name == "tpu":
        return text
    if not text.isdigit():
        raise UserError(f"--sweep {name}: '{text}' is not a whole number")
    return int(text)


def sweep(axes: Mapping[str, Sequence[Any]], options: PlanOptions) -> list[PlannedCombination]:
    """Uses formulas to plan a run for every combination of values, and ranks the combinations.

    Args:
      axes: name of an axis -> its values.
      options: the options of every plan.

    Returns:
      the planned combinations, from best to worst.
    """
    rows = []
    combinations = list(itertools.product(*axes.values()))
    with ProgressLine(len(combinations), unit="plan", doing="planning") as progress:
        for combination in combinations:
            rows.append(_plan_combination(dict(zip(axes, combination, strict=True)), options))
            progress.count(1)
    return sorted(rows, key=lambda row: row.rank)


def _plan_combination(values: Mapping[str, Any], options: PlanOptions) -> PlannedCombination:
    for name, value in values.items():
        pair = name.endswith("_per_batch")
        gin.bind_parameter(AXES[name], (name, value) if pair else value)
    try:
        return PlannedCombination(values, plan_configured_run(options))
    except UserError as error:
        return PlannedCombination(values, None, str(error))


def sweep_text(rows: Sequence[PlannedCombination]) -> str:
    """Returns a table of ranked combinations, followed by lines that name the best combinations."""
    names = list(rows[0].values)
    header = (*names, "verdict", "memory", "recomputed", "step s", "bound by", "hours", "core-h")
    planned = [_cells(row, names) for row in rows if row.plan]
    lines = [*table_lines(header, planned, width=terminal_width())] if planned else []
    lines += [f"{_describe(row)}: impossible: {row.problem}" for row in rows if not row.plan]
    return "\n".join([*lines, "", _ORDER, best(rows)])


def as_json(rows: Sequence[PlannedCombination]) -> list[dict[str, Any]]:
    """Returns a record of each combination: its values, `plan` (or null), `problem` (or "")."""
    return [{**row.values, "plan": row.plan, "problem": row.problem} for row in rows]


def _cells(row: PlannedCombination, names: Sequence[str]) -> list[str]:
    plan, run = row.plan, row.plan["run"]
    return [
        *(str(row.values[name]) for name in names),
        plan["verdict"]["word"],
        gib(plan["per_core_bytes"]["total"]),
        gib(plan["per_core_bytes"]["total_recomputed"]),
        f"{plan['time']['step_seconds']:.3f}",
        plan["time"]["bound_by"],
        f"{run['hours']:.1f}" if run else "-",
        f"{run['core_hours']:,.0f}" if run else "-",
    ]


def best(rows: Sequence[PlannedCombination]) -> str:
    """Returns a text that names the fastest run that fits, and the cheapest if it is another run.

    The cheapest run is the run that fits with the fewest core-seconds per sequence.
    """
    usable = [row for row in rows if row.rank[0] <= _RANKS[RECOMPUTES]]
    if not usable:
        return "best: none fits"
    fitting = [row for row in usable if row.rank[0] == 0] or usable
    fastest = min(fitting, key=lambda row: row.rank)
    cheapest = min(fitting, key=_core_seconds)
    text = (
        f"best: {_describe(fastest)}: the shortest step per sequence of the {len(fitting)} of "
        f"{len(rows)} that {'fit' if fitting[0].rank[0] == 0 else 'fit with recomputation'}, "
        f"bound by {fastest.plan['time']['bound_by']}, {fastest.plan['verdict']['reason']}"
    )
    if cheapest is not fastest:
        saved = 1 - _core_seconds(cheapest) / _core_seconds(fastest)
        text += f"\ncheapest: {_describe(cheapest)}: {saved:.0%} fewer core-hours"
    return text


def _describe(row: PlannedCombination) -> str:
    return " ".join(f"{name}={value}" for name, value in row.values.items())


def _core_seconds(row: PlannedCombination) -> float:
    return row.plan["topology"]["cores"] / row.plan["time"]["sequences_per_second"]
