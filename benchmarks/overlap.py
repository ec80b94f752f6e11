"""Compares the speed of `t0 overlap` with sets of n-grams in Python.

    .venv/bin/python benchmarks/overlap.py --data_dir=DATA --rounds=3

The training data is a cache of the prompts of RTE and WiC. The evaluation rows are RTE's and CB's.
The peer reads the same texts with the same reader, splits them with a regular expression, and looks
up 13-grams and 8-grams in a set, like the usual scripts. It has no matches of whole fields, and no
locations. Both use one process and take turns. Prints a Markdown table: texts per second of the
processor and of the clock, as medians over the rounds.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from t0.catalogue.listing import read_listing
from t0.files import tf_examples, tfrecord
from t0.overlap import OverlapCriteria
from t0.overlap.evaluation_rows import EvaluationSet, evaluation_sets
from t0.overlap.index import Index, scan, write_index
from t0.overlap.training_texts import FileJob, TrainingTexts, add_listed, text_batches
from t0.sources import set_data_dirs

TRAIN = "super_glue_(rte|wic)_(?!.*score_eval).*"
EVALUATION = ("super_glue_rte.*", "super_glue_cb.*")
AIM = 10_000  # texts a second of one core: 20,000 of two


def write_cache(path: Path) -> FileJob:
    """Writes the rendered training texts as records of a cache."""
    with path.open("wb") as file:
        training = TrainingTexts()
        add_listed(training, read_listing(), TRAIN, "train")
        for job in training.jobs:
            for texts, _, _ in text_batches(job, None):
                for text in texts:
                    entry = tf_examples.bytes_entry("inputs_pretokenized", [text.encode()])
                    file.write(tfrecord.framed(tf_examples.example(entry)))
    return FileJob(0, str(path))


def ours(job: FileJob, index: Index) -> int:
    """Searches a file; returns the number of its texts."""
    return scan(job, index, [0], None).texts


def words_of(text: str) -> list[str]:
    """Returns the words as the peer splits them."""
    return re.findall(r"\w+", text.lower())


def peer_index(sets: Sequence[EvaluationSet]) -> dict[int, set[tuple[str, ...]]]:
    """Returns n -> the n-grams of the evaluation rows."""
    grams: dict[int, set[tuple[str, ...]]] = {n: set() for n in OverlapCriteria().ngrams}
    for chosen in sets:
        for batch in chosen.batches():
            for text in batch.texts:
                words = words_of(text)
                for n, evaluation_grams in grams.items():
                    evaluation_grams.update(zip(*(words[i:] for i in range(n)), strict=False))
    return grams


def peer(job: FileJob, grams: dict[int, set[tuple[str, ...]]]) -> int:
    """Searches a file; returns the number of its texts."""
    count = 0
    for texts, _, _ in text_batches(job, None):
        for text in texts:
            words = words_of(text)
            for n, evaluation_grams in grams.items():
                matches = [
                    g
                    for g in zip(*(words[i:] for i in range(n)), strict=False)
                    if g in evaluation_grams
                ]
                del matches
        count += len(texts)
    return count


def measure(search: Callable[[], int]) -> tuple[float, float]:
    """Returns the texts per second of the processor and of the clock."""
    processor, wall = time.process_time(), time.perf_counter()
    count = search()
    return count / (time.process_time() - processor), count / (time.perf_counter() - wall)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="folder of datasets")
    parser.add_argument("--rounds", type=int, default=3, help="searches of each (default: 3)")
    arguments = parser.parse_args()
    set_data_dirs(arguments.data_dir)
    sets, _ = evaluation_sets(read_listing(), EVALUATION, "validation")
    with tempfile.TemporaryDirectory() as folder:
        job = write_cache(Path(folder) / "train.tfrecord-00000-of-00001")
        criteria = OverlapCriteria()
        write_index(folder, criteria, (batch for chosen in sets for batch in chosen.batches()))
        index, grams = Index(folder, criteria), peer_index(sets)
        sides = {"t0 overlap": lambda: ours(job, index), "sets": lambda: peer(job, grams)}
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for turn in range(arguments.rounds):
            for name, search in sides.items():
                rates[name].append(measure(search))
            print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr)
    print("| search | texts/s of the processor | texts/s of the clock | ratio |")
    print("|---|---|---|---|")
    medians = {n: [statistics.median(c) for c in zip(*r, strict=True)] for n, r in rates.items()}
    for name, (processor, wall) in medians.items():
        ratio = processor / medians["sets"][0]
        print(f"| {name} | {processor:,.0f} | {wall:,.0f} | {ratio:.2f} |")
    print(f"\nThe aim: at least {AIM:,} texts for each second of one core.")


if __name__ == "__main__":
    main()
