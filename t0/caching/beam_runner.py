"""Runs the jobs of a plan on Apache Beam, with the runner that `--runner=...` names.

    for outcome in run_on_beam(
        specs, results, jobs, model, RecordOptions(), Setup(module_import=["my_tasks"]),
        parts_dir=parts_dir, pipeline_options=["--runner=FlinkRunner"], run_dir="gs://b/c/run",
    ):
        ...

Every job (a range of rows, or several consecutive source shards) is one element of the pipeline. A
worker writes the records of a job as parts into the output directory. A GroupByKey collects the
counts of all parts of a split, and the next step joins these parts. That step also writes the
outcome of the split to a file in `run_dir`. When the pipeline has ended, the program that started
it reads these files. So workers may run on any machine that can read the data and write to the
output directory.

Importing this module does not import TensorFlow.
"""

import dataclasses
import hashlib
import json
import logging
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

import t0
from t0.caching.cache_plan import RecordOptions, Setup, TaskSplit
from t0.caching.prompted_rows import RowRange
from t0.caching.split_state import JoinParts, PartInfo, SplitOutcome, SplitSpec, conclude
from t0.caching.workers import RowRangeWorker, ShardRunWorker, execute
from t0.errors import UserError, printable, reading
from t0.files import paths, publishing, write_whole
from t0.files.untrusted import parsed_json

# How long a job service may take to answer. Beam waits for a minute, and then repeats.
SECONDS_TO_ANSWER = 30


def run_on_beam(
    specs: Mapping[TaskSplit, SplitSpec],
    results: Mapping[TaskSplit, Mapping[int, PartInfo | SplitOutcome]],
    jobs: Iterable[Any],
    model: tuple[bytes, int] | None,
    options: RecordOptions,
    setup: Setup,
    *,
    parts_dir: str,
    pipeline_options: Sequence[str],
    run_dir: str,
) -> Iterator[SplitOutcome]:
    """Runs the jobs in one pipeline, and after its end yields the outcome of each split.

    Args:
      specs: split -> its specification, for each split that has no outcome yet.
      results: split -> the results of the pieces that an earlier run has finished; see `conclude`.
      jobs: `RowRange` and `ShardRun` jobs whose parts do not exist yet. `JoinParts` jobs are
        ignored, because the pipeline itself joins the parts of every split.
      model: the tokenizer's model, see `workers.RowRangeWorker`.
      options: how records are made and written.
      setup: how a worker process registers the tasks.
      parts_dir: the directory of the parts.
      pipeline_options: Apache Beam's options.
      run_dir: a directory that all workers can write to. It is empty or does not exist yet, and is
        removed at the end.

    Raises:
      UserError: if the job service does not answer, the pipeline fails, for example because a
        worker is lost, or it ends without an outcome for some split.
    """
    options_of_beam = PipelineOptions(list(pipeline_options))
    _check_job_service(options_of_beam.view_as(PortableOptions).job_endpoint)
    publishing.make_folder(run_dir)
    pieces = [job for job in jobs if not isinstance(job, JoinParts)]
    by_rows = [job for job in pieces if isinstance(job, RowRange)]
    by_shards = [job for job in pieces if not isinstance(job, RowRange)]
    starts = (
        ("ranges", by_rows, RowRangeWorker(model, setup)),
        ("shards", by_shards, ShardRunWorker(options, setup, own_process=False)),
    )
    earlier_results = [(str(split), done) for split in specs for done in results[split].items()]
    by_name = {str(split): spec for split, spec in specs.items()}
    logging.getLogger().addFilter(_is_no_reason)
    try:
        with beam.Pipeline(options=options_of_beam) as pipeline:
            earlier_parts = pipeline | "parts of earlier runs" >> beam.Create(earlier_results)
            new_parts = [
                _distribute(pipeline, name, elements) | f"make {name}" >> beam.ParDo(_Make(start))
                for name, elements, start in starts
                if elements
            ]
            joins = _Join(by_name, options, parts_dir, run_dir)
            _ = (*new_parts, earlier_parts) | beam.Flatten() | beam.GroupByKey() | beam.ParDo(joins)
        yield from _read_outcomes(specs, run_dir)
    except RuntimeError as error:  # the only class of Beam's runners
        lines = str(error).split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), "no reason was sent")
        raise UserError(
            f"the pipeline failed: {printable(reason.strip()):.300}; see the runner's log. The same "
            "command continues after the parts that are finished"
        ) from error
    finally:
        logging.getLogger().removeFilter(_is_no_reason)
        paths.remove(run_dir)


def _is_no_reason(record: logging.LogRecord) -> bool:
    """Returns False for a traceback of the job service, which a RuntimeError repeats."""
    return record.module != "portable_runner" or record.levelno < logging.ERROR


def code_version() -> str:
    """Returns the version of this package with a hash of its code: "1.0.0 (0123456789ab)"."""
    folder = Path(t0.__file__).parent
    files = sorted(folder.rglob("*.py"))
    text = "\n".join(f"{path.relative_to(folder)} {paths.sha256(str(path))}" for path in files)
    return f"{t0.__version__} ({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _check_job_service(endpoint: str | None) -> None:
    """Raises a UserError if no job service answers at the value of --job_endpoint."""
    if not endpoint or endpoint == "embed":
        return
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=SECONDS_TO_ANSWER)
        except grpc.FutureTimeoutError:
            raise UserError(
                f"--job_endpoint={endpoint}: no Beam job service answered within "
                f"{SECONDS_TO_ANSWER} s; expected HOST:PORT of one that runs. Start it, or correct "
                "the address"
            ) from None


def _distribute(pipeline: beam.Pipeline, name: str, elements: Iterable[Any]) -> beam.PCollection:
    return pipeline | name >> beam.Create(list(elements)) | f"spread {name}" >> beam.Reshuffle()


class _Make(beam.DoFn):
    """Makes the parts of a job, which is a range of rows or a run of shards.

    For each split of the job, it yields (split as text, (start of the job, result)). The result is
    the counts of the part or, if there is no part, the outcome of the split.
    """

    def __init__(self, start: RowRangeWorker | ShardRunWorker) -> None:
        self._start = start
        self._version = code_version()

    def setup(self) -> None:
        version = code_version()
        if version != self._version:
            raise UserError(
                f"a worker has t0 {version}, but the command has t0 {self._version}: make the workers' "
                "image from the command's commit"
            )
        self._execute = self._start()

    def process(self, element: Any) -> Iterator[tuple[str, tuple[int, PartInfo | SplitOutcome]]]:
        infos = self._execute(element, lambda count: None)
        for spec in element.specs:
            yield str(spec.split), (element.start, infos[spec.split.task])


class _Join(beam.DoFn):
    """Joins the parts of a split, and writes the outcome of the split to a file in `run_dir`.

    The input is a pair: the split as text, and a list with (start, result) of each job that made a
    part of the split. The start is that of the job's range of rows or run of shards.
    """

    def __init__(
        self, specs: Mapping[str, SplitSpec], options: RecordOptions, parts_dir: str, run_dir: str
    ) -> None:
        self._specs = specs
        self._options = options
        self._parts_dir = parts_dir
        self._run_dir = run_dir

    def process(self, element: tuple[str, Iterable[tuple[int, Any]]]) -> None:
        name, results = element
        # A runner may process a range twice. Both results are equal, so the second result may
        # replace the first.
        conclusion = conclude(self._specs[name], dict(results), self._options, self._parts_dir)
        _write_outcome(
            execute(conclusion, None) if isinstance(conclusion, JoinParts) else conclusion,
            self._run_dir,
        )


def _read_outcomes(splits: Iterable[TaskSplit], run_dir: str) -> Iterator[SplitOutcome]:
    for split in splits:
        path = _outcome_path(run_dir, split)
        if not paths.exists(path):
            raise UserError(f"the pipeline left no outcome for {split}; see the runner's log")
        with reading(path, ValueError, TypeError):
            outcome = SplitOutcome(**{**parsed_json(paths.read_bytes(path)), "split": split})
        yield outcome


def _outcome_path(run_dir: str, split: TaskSplit) -> str:
    return posixpath.join(run_dir, hashlib.sha256(str(split).encode()).hexdigest() + ".json")


def _write_outcome(outcome: SplitOutcome, run_dir: str) -> None:
    text = json.dumps(dataclasses.asdict(outcome))
    write_whole(_outcome_path(run_dir, outcome.split), text)
