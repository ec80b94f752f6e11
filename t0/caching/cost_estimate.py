"""Estimates the result of a caching run from a sample of its rows, without writing into its output.

    estimate(CacheSelection("/data/cache", tasks=["t0_train"]), RecordOptions(),
             Setup(module_import=["t0.seqio_tasks"]), num_workers=8)
    # task                       rows  records   tokens  size
    # super_glue_rte_GPT_3_style 2,767   2,767  207,525  1.9 MiB
    # ...

From each split of a dataset, rows in its middle are rendered and tokenized as in the run. Tokens,
sizes and minutes are proportional to the rows. Tasks that are not prompted are not sampled, so only
their rows are shown.
"""

import dataclasses
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from t0.caching import workers
from t0.caching.cache_plan import CacheSelection, RecordOptions, Setup, make_plan
from t0.caching.prompted_rows import RowRange
from t0.caching.running import chosen_workers, describe_plan, registered
from t0.caching.work_plan import OpenedSplits, Work, plan_work
from t0.compat import seqio
from t0.errors import UserError, printable
from t0.text_tables import print_table

SAMPLE_ROWS = 256
_NUMBERS = ("rows", "records", "tokens", "size")


def estimate(
    selection: CacheSelection,
    options: RecordOptions,
    setup: Setup,
    *,
    num_workers: int | None = None,
) -> None:
    """Prints the tasks that `cache` would write with the same arguments, with sizes and times.

    Raises:
      UserError: `cache` would refuse the arguments, or a prompt cannot be rendered.
    """
    workers.prepare(setup)
    folders = [selection.output_cache_dir, *selection.tasks_additional_cache_dirs]
    seqio.add_global_cache_dirs(folders)
    opened = OpenedSplits()
    plan = make_plan(selection, registered(folders[0], opened), "dry_run")
    for note in (*plan.notes, *describe_plan(plan)):
        print(printable(note), file=sys.stderr)
    sums: dict[str, Counter[str]] = {name: Counter() for name in plan.tasks}
    for split in plan.splits:
        sums[split.task]["rows"] += split.rows or 0
    with tempfile.TemporaryDirectory(prefix="t0_estimate_") as folder:
        work = plan_work(plan.splits, options, folder, opened, setup)
        seconds = _add_samples(work, setup, sums)
    rows = [(name, *map(_format, _NUMBERS, map(sums[name].get, _NUMBERS))) for name in sums]
    total = sum(sums.values(), Counter[str]())
    total_cells = map(_format, _NUMBERS, map(total.get, _NUMBERS))
    print_table(("task", *_NUMBERS), [*rows, (f"{len(rows)} tasks", *total_cells)], _NUMBERS)
    processes = chosen_workers(plan, num_workers) or 1
    print(
        f"about {seconds / 60 / processes:,.1f} minutes with --num_workers={processes}. Nothing was "
        "written; tokens, size and minutes are estimates"
    )


def _add_samples(work: Work, setup: Setup, sums: Mapping[str, Counter[str]]) -> float:
    """Adds the estimates to `sums`; returns the seconds that one process needs for all rows."""
    by_split: dict[Any, list[RowRange]] = defaultdict(list)
    for job in work.row_ranges:
        by_split[job.dataset, job.subset, job.split].append(job)
    execute, seconds = workers.RowRangeWorker(work.model, setup)(), 0.0
    for jobs in by_split.values():
        rows, middle = jobs[-1].stop, jobs[len(jobs) // 2]
        sample = dataclasses.replace(middle, stop=min(middle.stop, middle.start + SAMPLE_ROWS))
        begun = time.monotonic()
        for task, info in execute(sample, lambda count: None).items():
            if not isinstance(info, dict):
                raise UserError(f"{task}: {info.message}")
            scale = rows / max(1, sample.stop - sample.start)
            sums[task]["records"] += round(scale * info["records"])
            sums[task]["tokens"] += round(scale * sum(info["tokens"].values()))
            sums[task]["size"] += round(scale * info["bytes"])
        seconds += (time.monotonic() - begun) * rows / max(1, sample.stop - sample.start)
    return seconds


def _format(name: str, value: int | None) -> str:
    if value is None:
        return "?"
    return f"{value / 2**20:,.1f} MiB" if name == "size" else f"{value:,}"
