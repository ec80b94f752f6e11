"""Searches the training data for the text of evaluation rows, and writes the results to a folder.

    search = OverlapSearch(train=("t0_train",), evaluation=("t0_eval_score_eval",))
    find(search, "overlap", workers=8)

This search writes three files into the folder `overlap`:

    rows.jsonl      a line for each overlapping evaluation row: how much overlaps, and where
    overlap.txt     tables of datasets, fields and prompts, and examples, at most 80 columns wide
    overlap.json    all counts, and the number of lines and the SHA-256 of rows.jsonl; written last

First the evaluation rows are indexed. Then the training data is scanned once against the index, and
the evaluation rows are read again. So the memory and disk space that a search needs depend on the
size of the evaluation rows. They do not depend on the size of the training data.
"""

import collections
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from t0.caching.row_numbers import ROW
from t0.caching.workers import run_jobs
from t0.catalogue.listing import Listing, read_listing
from t0.errors import UserError, interruptible
from t0.files import path_inside, paths, publishing
from t0.overlap.evaluation_rows import EvaluationSet, RowBatch, evaluation_sets
from t0.overlap.index import (
    Index,
    Matches,
    OverlapCriteria,
    Scanner,
    load_processor,
    merge_matches,
    write_index,
)
from t0.overlap.overlap_counts import OverlapOutcome, dataset_names
from t0.overlap.overlap_tables import tables
from t0.overlap.training_texts import TrainingTexts, add_cached, add_listed
from t0.progress import ProgressLine
from t0.sources import data_dirs

SCHEMA = 1
ROWS, TABLES, RESULT = "rows.jsonl", "overlap.txt", "overlap.json"
# If there are at most this many texts, this process searches them, because starting other processes
# would take as long as the search.
_SMALL_TEXTS = 20_000


@dataclasses.dataclass(frozen=True)
class OverlapSearch:
    """The options of a search.

    Attributes:
      train: folders with caches, names of mixtures or tasks, or regular expressions that match
        tasks.
      evaluation: names of mixtures or tasks, or regular expressions that match tasks.
      train_split, eval_split: the names of the splits in the tasks.
      settings: the criteria that decide which word sequences count as an overlap.
      cache_dirs: folders with caches of tasks. If a task has a cache, its texts are read from there
        instead of rendered.
      skip_absent: whether to leave out splits whose data is missing.
    """

    train: tuple[str, ...]
    evaluation: tuple[str, ...]
    train_split: str = "train"
    eval_split: str = "validation"
    settings: OverlapCriteria = OverlapCriteria()
    cache_dirs: tuple[str, ...] = ()
    skip_absent: bool = False


def find(
    request: OverlapSearch,
    output: str,
    *,
    workers: int | None = None,
    vocabulary: bytes | None = None,
) -> dict[str, Any]:
    """Runs the search, writes its files, and returns the content of `overlap.json`.

    Args:
      request: the options of the search.
      output: the folder to write to, local or remote. An earlier result in this folder is replaced.
      workers: the number of processes. With 0, this process does the search. With None, there is
        one process per core or, if there is little data, this process does the search.
      vocabulary: the SentencePiece model that decodes caches without texts; None if there is none.

    Raises:
      UserError: if a name is unknown, if data is missing, unfinished or malformed, if the
        evaluation rows have no text, or if the output cannot be written.
    """
    listing = read_listing(request.cache_dirs)
    training = training_data(request, listing)
    sets, notes = evaluation_sets(
        listing, request.evaluation, request.eval_split, skip_absent=request.skip_absent
    )
    _refuse_same_split(sets, training)
    publishing.check_writable(output)
    publishing.remove_leftovers([output])
    with (
        interruptible("nothing was written"),
        tempfile.TemporaryDirectory(prefix="t0_overlap_") as folder,
    ):
        index = _build_index(sets, folder, request.settings)
        scanner = Scanner(
            folder,
            request.settings,
            tuple(dataset_names(training)[1]),
            vocabulary,
            tuple(map(str, data_dirs())),
        )
        matches = _search(training, scanner, _count_workers(training, workers))
        outcome = OverlapOutcome(index, matches, training, load_processor(vocabulary))
        runs = matches.words * len(index.lengths)
        facts = {
            "schema": SCHEMA,
            "kind": "overlap",
            "run": _describe_run(request, training, matches, [*training.notes, *notes]),
            "error": {
                "hash_bits": 64,
                "hashes": len(index),
                "training_runs": runs,
                "expected_false_matches": runs * len(index) / 2**64,
            },
        }
        return _write_files(output, facts, outcome, sets)


def training_data(request: OverlapSearch, listing: Listing) -> TrainingTexts:
    """Collects the training data that the options of a search name."""
    training = TrainingTexts()
    for name in request.train:
        is_listed = name in listing.mixtures or name in listing.tasks
        if not is_listed and (paths.is_folder(name) or "/" in name):
            add_cached(training, name, request.train_split, listing)
        else:
            add_listed(
                training, listing, name, request.train_split, skip_absent=request.skip_absent
            )
    return training


def _refuse_same_split(sets: Sequence[EvaluationSet], training: TrainingTexts) -> None:
    for evaluation_set in sets:
        if evaluation_set.split_id in training.split_ids:
            raise UserError(
                f"--train and --eval both have the split '{evaluation_set.split}' of "
                f"{evaluation_set.name}, so every row would match itself. Choose another split "
                "with --train_split or --eval_split, or tasks of other datasets"
            )


def _build_index(sets: Sequence[EvaluationSet], folder: str, settings: OverlapCriteria) -> Index:
    rows = 0
    with ProgressLine(None, unit="row", doing="indexing") as progress:

        def read_batches() -> Iterator[RowBatch]:
            nonlocal rows
            for chosen in sets:
                for batch in chosen.batches():
                    yield batch
                    rows += len(batch.rows)
                    progress.count(len(batch.rows), note=chosen.name)

        write_index(folder, settings, read_batches())
    index = Index(folder, settings)
    if not len(index):
        shortest = min(*settings.ngrams, settings.min_words)
        raise UserError(
            f"the {rows:,} evaluation rows of {', '.join(chosen.name for chosen in sets)} have "
            f"no text of {shortest} words or more to search for. Check that the text is in columns "
            "that the prompts read. To search for shorter fields, lower --min_words"
        )
    return index


def _count_workers(training: TrainingTexts, workers: int | None) -> int:
    if workers is not None:
        return workers
    if training.texts is not None and training.texts <= _SMALL_TEXTS:
        return 0
    return min(len(os.sched_getaffinity(0)), len(training.jobs))


def _search(training: TrainingTexts, scanner: Scanner, workers: int) -> Matches:
    jobs = collections.deque(training.jobs)
    with ProgressLine(training.texts, unit="text", doing="searching") as progress:
        results = run_jobs(
            jobs,
            scanner,
            progress.count,
            workers=workers,
            doing="searching",
            kept="Nothing was written.",
        )
        return merge_matches(matches for _, matches in results)


def _describe_run(
    request: OverlapSearch, training: TrainingTexts, matches: Matches, notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "train": list(request.train),
        "train_split": request.train_split,
        "train_texts": matches.texts,
        "train_words": matches.words,
        "train_tasks": sorted({source.task for source in training.sources}),
        "eval": list(request.evaluation),
        "eval_split": request.eval_split,
        "numbered_by": ROW,
        "ngrams": list(request.settings.ngrams),
        "min_words": request.settings.min_words,
        "normalisation": "NFKC, case folded; words of letters, marks and digits; no apostrophes",
        "notes": list(notes),
    }


def _write_files(
    output: str, facts: dict[str, Any], outcome: OverlapOutcome, sets: Sequence[EvaluationSet]
) -> dict[str, Any]:
    result = path_inside(output, RESULT)
    with publishing.writing(result):
        paths.remove(result)
    digest, lines = hashlib.sha256(), 0

    def encode_rows() -> Iterator[str]:
        nonlocal lines
        for chosen in sets:
            for record in outcome.rows(chosen):
                line = json.dumps(record, ensure_ascii=False) + "\n"
                line = line.encode("utf-8", "backslashreplace").decode()
                digest.update(line.encode())
                lines += 1
                yield line

    publishing.write_whole(path_inside(output, ROWS), encode_rows())
    facts["datasets"] = {chosen.name: outcome.datasets[chosen.name] for chosen in sets}
    facts["rows"] = {"file": ROWS, "lines": lines, "sha256": digest.hexdigest()}
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    publishing.write_whole(path_inside(output, TABLES), (f"{line}\n" for line in tables(facts)))
    publishing.write_whole(result, text.encode("utf-8", "backslashreplace") + b"\n", durable=True)
    return facts
