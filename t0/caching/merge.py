"""Joins the parts of one split of a task into its final files, with `info` and `stats`.

    outcome = merge(Merge(target, parts, infos, options, seqio_version))
    outcome.files   # {"train.tfrecord-00000-of-00003": {"bytes": ..., "examples": ..., ...}, ...}

The final files are cut at records, not at parts, so they do not depend on the ranges. Parts hold
frames of a TFRecord file: bytes are copied, and records are not looked at. One exception: a range
numbers the rows of rank evaluation (`idx`) as if no row before it was dropped. Where one was, the
records of the ranges behind it are numbered anew here, so that `idx` is what SeqIO's `enumerate`
over the kept rows gives.
"""

import bisect
import dataclasses
import itertools
import os
import posixpath
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from t0.caching import layout, parts, records, shards
from t0.caching.known import Behaviour
from t0.caching.ranges import Output
from t0.caching.unit import WRITTEN, Options, Outcome, shard_count
from t0.files import path_inside, tfrecord, writing
from t0.files.paths import is_remote, local_copy

_LIST, _SCALAR = [None], []
_PLAIN = {
    "inputs": (_LIST, "int32"),
    "inputs_pretokenized": (_SCALAR, "string"),
    "targets": (_LIST, "int32"),
    "targets_pretokenized": (_SCALAR, "string"),
}
_ANSWER_CHOICES = {"answer_choices": (_LIST, "string")}
_CHOICE = {"idx": (_LIST, "int32"), "is_correct": (_SCALAR, "bool"), "weight": (_SCALAR, "float32")}


@dataclasses.dataclass(frozen=True)
class Target:
    """A split of a task that is made of parts, and what is known of how it comes out.

    Attributes:
      template: its name; empty of a task without.
      source_shards: how many the task's source has, which SeqIO takes for the least number of
        files if `--min_shards` is given.
    """

    output: Output
    template: str
    behaviours: tuple[Behaviour, ...] = ()
    source_shards: int = 1


@dataclasses.dataclass(frozen=True)
class Merge:
    """A unit of work: the parts of one split of a task, in the order of the dataset.

    Attributes:
      infos: what each part tells (`parts.PartWriter.finish`).
      notes: go into the outcome.
    """

    target: Target
    parts: tuple[str, ...]
    infos: tuple[Mapping[str, Any], ...]
    options: Options
    seqio_version: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.target.output.unit} (joining its {len(self.parts)} parts)"


def merge(job: Merge) -> Outcome:
    """Writes the final files of a split into its unit's directory.

    Raises:
      OutputError: if they cannot be written.
    """
    output, unit = job.target.output, job.target.output.unit
    layout.make_directory(unit.directory)
    with ExitStack() as stack:
        with writing(unit.directory):
            paths = [stack.enter_context(local_copy(path)) for path in job.parts]
        sizes = [(info["records"], info["bytes"]) for info in job.infos]
        if output.choices:
            paths, sizes = _numbered_through(paths, job.infos, unit.directory, stack)
        total, size_bytes = (sum(numbers) for numbers in zip(*sizes, strict=True))
        count = shard_count(job.options, job.target.source_shards, total, size_bytes)
        bounds = [total * index // count for index in range(count + 1)]
        stretches = _stretches(paths, [records for records, _ in sizes], bounds)
        files = _write_files(stretches, bounds, job)
    stats = totals(job.infos)
    info = {
        "features": _features(job),
        "num_shards": len(files),
        "seqio_version": job.seqio_version,
    }
    for name, content in ((f"info.{unit.split}.json", info), (f"stats.{unit.split}.json", stats)):
        files[name] = shards.write_json(path_inside(unit.directory, name), content)
    return Outcome(
        unit,
        WRITTEN,
        stats=stats,
        files=files,
        counts=counted(job.infos),
        over=_summed(job.infos, "over"),
        notes=job.notes,
    )


def _features(job: Merge) -> Mapping[str, Any]:
    """Returns what the first example told of its features, or what T0's two kinds have."""
    for info in job.infos:
        if info.get("features"):
            return info["features"]
    features = _PLAIN | (_ANSWER_CHOICES if job.target.output.answer_choices else {})
    features |= _CHOICE if job.target.output.choices else {}
    return {name: {"shape": shape, "dtype": kind} for name, (shape, kind) in features.items()}


def totals(infos: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Returns SeqIO's statistics of all parts together."""
    tokens = {f"{name}_tokens": n for name, n in _summed(infos, "tokens").items()}
    most: dict[str, int] = {}
    for info in infos:
        for name, count in info["max_tokens"].items():
            most[f"{name}_max_tokens"] = max(most.get(f"{name}_max_tokens", 0), count)
    characters = {f"{name}_chars": n for name, n in _summed(infos, "chars").items()}
    return {"examples": sum(info["records"] for info in infos), **tokens, **most, **characters}


def counted(infos: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Returns what was counted over all parts: "rows" if known, and rows by what became of them."""
    rows = [info["rows"] for info in infos]
    known = {} if None in rows else {"rows": sum(rows)}
    return {**known, **_summed(infos, "counts")}


def _summed(infos: Sequence[Mapping[str, Any]], field: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for info in infos:
        for name, count in info.get(field, {}).items():
            sums[name] = sums.get(name, 0) + count
    return sums


def _numbered_through(
    paths: Sequence[str], infos: Sequence[Mapping[str, Any]], directory: str, stack: ExitStack
) -> tuple[list[str], list[tuple[int, int]]]:
    """Returns parts whose rows are numbered as kept, with their numbers of records and bytes."""
    numbered, sizes = [], []
    where: str | None = None
    kept_before = 0
    for path, info in zip(paths, infos, strict=True):
        shift = kept_before - info["start"]
        # Of a split that the general engine read there is one part, whose rows are right.
        kept_before += info.get("kept", 0)
        if shift:
            with writing(directory):
                where = where or stack.enter_context(
                    tempfile.TemporaryDirectory(dir=None if is_remote(directory) else directory)
                )
            path, info = _renumbered(path, shift, where)
        numbered.append(path)
        sizes.append((info["records"], info["bytes"]))
    return numbered, sizes


def _renumbered(path: str, shift: int, folder: str) -> tuple[str, Mapping[str, Any]]:
    name = posixpath.basename(path)
    frames = (
        tfrecord.framed(records.renumbered(tfrecord.record_of(frame), shift))
        for frame in parts.read_frames(path)
    )
    with parts.PartWriter(folder, name) as part:
        while some := list(itertools.islice(frames, 1000)):
            part.append(some)
        info = part.finish({})
    return os.path.join(folder, name), info  # noqa: PTH118


def _stretches(
    paths: Sequence[str], counts: Sequence[int], bounds: Sequence[int]
) -> list[list[shards.Stretch]]:
    """Returns for each final file the stretches of frames that it is made of.

    Args:
      counts: the records of each part.
      bounds: the number of the first record of each file, and of all records.
    """
    of_files: list[list[shards.Stretch]] = [[] for _ in bounds[1:]]
    first = 0
    for path, count in zip(paths, counts, strict=True):
        last = first + count
        cuts = sorted({first, last, *(bound for bound in bounds if first < bound < last)})
        at = parts.offsets(path, [cut - first for cut in cuts])
        for cut, (begin, end) in zip(cuts, itertools.pairwise(at), strict=False):
            of_files[bisect.bisect_right(bounds, cut) - 1].append((path, begin, end))
        first = last
    return of_files


def _write_files(
    stretches: Sequence[Sequence[shards.Stretch]], bounds: Sequence[int], job: Merge
) -> dict[str, dict[str, Any]]:
    unit, count = job.target.output.unit, len(stretches)
    copy_as = shards.format_of(job.options, count)
    files = {}
    for index, of_file in enumerate(stretches):
        name = shards.file_name(unit.split, job.options, index, count)
        path = path_inside(unit.directory, name)
        size, digest = shards.write_file(path, lambda local, s=of_file: copy_as(local, s))
        examples = bounds[index + 1] - bounds[index]
        files[name] = {"bytes": size, "examples": examples, "sha256": digest}
    return files
