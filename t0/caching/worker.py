"""Makes parts of any SeqIO task: the examples of some of its source's shards.

    prepare(setup)                                   # once in each process
    make_part(job, options, advance=print)
    # {"toy_lines": {"start": 0, "stop": 1, "records": 70, "tokens": {...}, ...}}

What is counted goes into the part, so that a run that takes it over knows all that the first knew.
"""

import importlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from t0.caching import examples, parts
from t0.caching.ledger import execute
from t0.caching.source_shards import ShardRun
from t0.caching.statistics import Tally
from t0.caching.unit import Options, Setup
from t0.compat import seqio, tf
from t0.errors import UserError
from t0.files import tfrecord
from t0.prompts import RowReport

ADVANCE_SECONDS = 0.5
WORKER_THREADS = 2
RECORDS_AT_ONCE = 100

# Called now and then with the number of examples that the part has by then.
Advance = Callable[[int], None]


def prepare(setup: Setup) -> None:
    """Makes the tasks known to this process; data folders and vocabulary come first.

    Raises:
      UserError: if a module does not exist, or a folder or the vocabulary.
    """
    if setup.data_dir:
        from t0 import sources

        sources.set_data_dirs(list(setup.data_dir))
    if setup.vocab:
        os.environ["T0_VOCAB"] = setup.vocab
        from t0.tasks import set_vocabulary

        set_vocabulary(setup.vocab)
    for module in filter(None, setup.module_import):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            # A module that is there but lacks one of its own imports keeps its traceback.
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                raise UserError(
                    f"--module_import={module}: there is no module '{error.name}'. Is its folder "
                    "on PYTHONPATH, or its package installed?"
                ) from error
            raise
    if setup.tfds_data_dir:
        seqio.set_tfds_data_dir_override(setup.tfds_data_dir)


def limit_threads() -> None:
    """Leaves the other cores, and all accelerators, to others. Before TensorFlow's first use."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(WORKER_THREADS)


def executor(options: Options, *, own_process: bool) -> Callable[[Any, Advance], Any]:
    """Returns what does a job in this process, as `local.here` wants it.

    Args:
      own_process: whether this process does nothing else, and is one of several.
    """
    threads = WORKER_THREADS if own_process else None

    def do(job: Any, report: Advance) -> Any:
        return execute(job, lambda run: make_part(run, options, advance=report, threads=threads))

    return do


def make_part(
    job: ShardRun, options: Options, *, advance: Advance, threads: int | None = None
) -> dict[str, dict[str, Any]]:
    """Writes the records of a run of shards as a part.

    Args:
      threads: threads that the input pipeline may use; TensorFlow's choice if None.

    Returns:
      task -> what the part tells.
    """
    unit = job.output.unit
    task = seqio.TaskRegistry.get(unit.task)
    tally = Tally(task.output_features, char_counts=options.enable_char_counts)
    features: dict[str, Any] = {}
    frames: list[bytes] = []
    due = time.monotonic() + ADVANCE_SECONDS
    name = parts.part_name(job.output.key, job.start, job.stop)
    with parts.PartWriter(job.directory, name) as part:
        for shard in range(job.start, job.stop):
            stream = examples.read_examples(
                task,
                unit.split,
                shard,
                of=job.shards,
                base_seed=options.base_seed,
                threads=threads,
            )
            for example in stream:
                features = features or examples.feature_info(example)
                values = examples.as_numpy(example)
                tally.add(values)
                frames.append(tfrecord.framed(examples.serialized(values)))
                if len(frames) == RECORDS_AT_ONCE:
                    part.append(frames)
                    frames.clear()
                if time.monotonic() >= due:
                    advance(tally.examples)
                    due = time.monotonic() + ADVANCE_SECONDS
        part.append(frames)
        counts = {"features": features, **_counts(task, job, tally.examples), **tally.counts()}
        return {unit.task: part.finish({"start": job.start, "stop": job.stop, **counts})}


def _counts(task: seqio.Task, job: ShardRun, made: int) -> dict[str, Any]:
    """Returns how many rows there were and what became of them, as far as the source tells.

    Of one that counts nothing: None rows, or 0 if there were none at all.
    """
    split = job.output.unit.split
    reports = getattr(task.source, "reports", None)
    report = reports.get(split) if isinstance(reports, Mapping) else None
    if isinstance(report, RowReport):
        # Only a source of one shard counts, or the counts would be those of several jobs.
        counts = dict(report.counts)
        rows = counts.pop("rows")
        return {"rows": rows, "counts": counts, "labels": report.labels, "first": report.first}
    empty = not made and not any(
        examples.has_rows(task, split, shard, of=job.shards) for shard in range(job.start, job.stop)
    )
    return {"rows": 0 if empty else None, "counts": {}, "first": {}}
