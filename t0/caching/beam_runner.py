"""Runs a plan on Apache Beam: the same units of work, on whatever `--runner=...` names.

    for outcome in run_on_beam(work, ledger, Options(), Setup(module_import=["my_tasks"]),
                               pipeline_options=["--runner=FlinkRunner"], run_dir="gs://b/c/run"):
        ...

Every range of rows is one element, and every run of source shards. What its part tells goes through
a GroupByKey to the step that joins a split's parts; the records themselves go through the output
directory, as parts. A worker leaves a split's outcome as a file in `run_dir`, which the
program that started the pipeline reads at the end; so nothing depends on where the workers are, as
long as they can write to the output directory and read the data.

Importing this does not import TensorFlow, so that Beam's workers do without it as well.
"""

import dataclasses
import hashlib
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from t0.caching import layout
from t0.caching.ledger import Ledger, Told, conclude, execute
from t0.caching.local import RangeWorker, ShardWorker
from t0.caching.merge import Merge, Target
from t0.caching.ranges import Range
from t0.caching.source_shards import ShardRun
from t0.caching.unit import Options, Outcome, Setup, Unit
from t0.errors import UserError
from t0.files import paths, write_whole


def run_on_beam(
    work: Any,
    ledger: Ledger,
    options: Options,
    setup: Setup,
    *,
    pipeline_options: Sequence[str],
    run_dir: str,
) -> Iterator[Outcome]:
    """Runs a pipeline over the work and yields the outcomes of its units after its end.

    Args:
      work: a `t0.caching.compiled.Work`.
      run_dir: an empty or absent directory that all workers can write to; removed at the end.

    Raises:
      UserError: if the pipeline ended without an outcome for some unit.
    """
    layout.make_directory(run_dir)
    begun = list(ledger.begin())
    early = [job for job in begun if isinstance(job, Outcome)]
    yield from early
    done = {outcome.unit for outcome in early}
    light, heavy = ([job for job in begun if isinstance(job, kind)] for kind in (Range, ShardRun))
    by_rows = RangeWorker(work.model, tuple(setup.data_dir))
    by_shards = ShardWorker(options, setup, own_process=False)
    try:
        with beam.Pipeline(options=PipelineOptions(list(pipeline_options))) as pipeline:
            known = pipeline | "parts of earlier runs" >> beam.Create(list(ledger.known()))
            told = [
                _spread(pipeline, name, jobs) | f"make {name}" >> beam.ParDo(_Make(start))
                for name, jobs, start in (("ranges", light, by_rows), ("shards", heavy, by_shards))
                if jobs
            ]
            joins = _Join(work.targets, options, ledger.parts_dir, run_dir)
            _ = (*told, known) | beam.Flatten() | beam.GroupByKey() | beam.ParDo(joins)
        yield from _outcomes([unit for unit in work.targets if unit not in done], run_dir)
    finally:
        paths.remove(run_dir)


def _spread(pipeline: beam.Pipeline, name: str, elements: Iterable[Any]) -> beam.PCollection:
    return pipeline | name >> beam.Create(list(elements)) | f"spread {name}" >> beam.Reshuffle()


class _Make(beam.DoFn):
    """Range or run of shards -> (unit as text, (start, what its part tells)) of each output."""

    def __init__(self, start: RangeWorker | ShardWorker) -> None:
        self._start = start

    def setup(self) -> None:
        self._execute = self._start()

    def process(self, element: Range | ShardRun) -> Iterator[tuple[str, tuple[int, Told]]]:
        told = self._execute(element, lambda told: None)
        for output in element.outputs:
            yield str(output.unit), (element.start, told[output.unit.task])


class _Join(beam.DoFn):
    """What the parts of a split tell -> its outcome, left in `run_dir`."""

    def __init__(
        self, targets: Mapping[Unit, Target], options: Options, parts_dir: str, run_dir: str
    ) -> None:
        self._targets = {str(unit): target for unit, target in targets.items()}
        self._options = options
        self._parts_dir = parts_dir
        self._run_dir = run_dir

    def process(self, element: tuple[str, Iterable[tuple[int, Any]]]) -> None:
        name, told = element
        # Sorted by start; a runner that repeats a range tells the same again.
        in_order = [what for _, what in sorted(dict(told).items())]
        job = conclude(self._targets[name], in_order, self._options, self._parts_dir)
        _leave(execute(job, None) if isinstance(job, Merge) else job, self._run_dir)


def _outcomes(units: Iterable[Unit], run_dir: str) -> Iterator[Outcome]:
    for unit in units:
        path = _outcome_path(run_dir, unit)
        if not paths.exists(path):
            raise UserError(f"the pipeline left no outcome for {unit}; see the runner's log")
        yield Outcome(**{**json.loads(paths.read_bytes(path)), "unit": unit})


def _outcome_path(run_dir: str, unit: Unit) -> str:
    return posixpath.join(run_dir, hashlib.sha256(str(unit).encode()).hexdigest() + ".json")


def _leave(outcome: Outcome, run_dir: str) -> None:
    text = json.dumps(dataclasses.asdict(outcome))
    write_whole(_outcome_path(run_dir, outcome.unit), text)
