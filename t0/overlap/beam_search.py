"""Searches the training data on Apache Beam, with the runner that `--runner=...` names.

    for matches in search_on_beam(
        jobs, scanner, pipeline_options=["--runner=FlinkRunner"], run_dir="gs://b/overlap/run",
    ):
        ...

Every job is one element of the pipeline. A worker writes the job's matches to a file in `run_dir`,
so all workers must be able to write to `run_dir`. When the pipeline has ended, the program that
started it reads these files. If a runner repeats a job, the file is written again with the same
content. The index is also stored in `run_dir`. If `run_dir` is remote, each worker first copies the
index to its own machine.
"""

import dataclasses
import io
import posixpath
import tempfile
from collections.abc import Iterator, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from t0.errors import UserError, reading
from t0.files import paths, write_whole, writing
from t0.overlap.index import FILES
from t0.overlap.scanning import Matches, Scanner
from t0.overlap.training_texts import Job

_ARRAYS = ("keys", "first", "counts", "totals")


def search_on_beam(
    jobs: Sequence[Job], scanner: Scanner, *, pipeline_options: Sequence[str], run_dir: str
) -> Iterator[Matches]:
    """Searches all jobs in one Beam pipeline, then yields the matches of each job.

    Args:
      jobs: the files and row ranges to search.
      scanner: the scanner, which prepares each worker. Its index is in a folder of this machine.
      pipeline_options: Apache Beam's options.
      run_dir: an empty or missing directory that all workers can write to. It is removed at the
        end.

    Raises:
      UserError: if data cannot be read, or the pipeline has no result for a job.
    """
    with writing(run_dir):
        paths.make_folder(run_dir)
        for name in FILES:
            paths.copy(posixpath.join(scanner.index, name), posixpath.join(run_dir, name))
    try:
        with beam.Pipeline(options=PipelineOptions(list(pipeline_options))) as pipeline:
            numbered_jobs = pipeline | "jobs" >> beam.Create(list(enumerate(jobs)))
            _ = numbered_jobs | beam.Reshuffle() | "search" >> beam.ParDo(_Search(scanner, run_dir))
        for number, job in enumerate(jobs):
            yield _read_matches(posixpath.join(run_dir, str(number)), job)
    finally:
        paths.remove(run_dir)


class _Search(beam.DoFn):
    """Searches each (number, job), and writes its matches or its error to a file in `run_dir`."""

    def __init__(self, scanner: Scanner, run_dir: str) -> None:
        self._scanner, self._run_dir = scanner, run_dir

    def setup(self) -> None:
        folder = self._run_dir
        if paths.is_remote(folder):
            self._copy = tempfile.TemporaryDirectory(prefix="t0_overlap_")
            folder = self._copy.name
            for name in FILES:
                paths.copy(posixpath.join(self._run_dir, name), posixpath.join(folder, name))
        self._execute = dataclasses.replace(self._scanner, index=folder)()

    def process(self, element: tuple[int, Job]) -> None:
        number, job = element
        result = self._execute(job, lambda report: None)
        path = posixpath.join(self._run_dir, str(number))
        if isinstance(result, str):
            write_whole(f"{path}.mistake", result)
            return
        content = io.BytesIO()
        arrays = (result.keys, result.first, result.counts, np.array([result.texts, result.words]))
        np.savez(content, **dict(zip(_ARRAYS, arrays, strict=True)))
        write_whole(path, content.getvalue())


def _read_matches(path: str, job: Job) -> Matches:
    if paths.exists(f"{path}.mistake"):
        raise UserError(paths.read_text(f"{path}.mistake"))
    if not paths.exists(path):
        raise UserError(f"the pipeline has no result for {job}; see the runner's log")
    with reading(path, ValueError, KeyError):
        arrays = np.load(io.BytesIO(paths.read_bytes(path)), allow_pickle=False)
        keys, first, counts, totals = (arrays[name] for name in _ARRAYS)
    return Matches(keys, first, counts, *totals.tolist())
