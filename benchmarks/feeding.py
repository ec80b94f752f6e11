"""Compares examples/s and packing of our feeding and T5's `mesh_train_dataset_fn`, from one cache.

    seqio_cache_tasks --tasks='super_glue_rte_.*' --output_cache_dir=CACHE \
      --module_import=t0.seqio_tasks --splits=train
    .venv/bin/python benchmarks/feeding.py --cache=CACHE --tasks='super_glue_rte_(?!.*score_eval).*'

Both read, mix, shuffle and pack the same mixture to 1024 + 256 tokens. They take turns in one
process. Our time includes the run's data manifest. "From a stream" reads the same batches from the
files that --write_stream writes, as a TPU's hosts do. The time to write them is not included.
"Filled" is the share of input positions with a token. Prints a Markdown table.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from t0 import compat  # noqa: E402

compat.apply()

import numpy as np  # noqa: E402
import seqio  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from t5.models import mesh_transformer  # noqa: E402

import t0.seqio_tasks  # noqa: E402, F401
from t0.feeding import batch_stream, manifest  # noqa: E402
from t0.feeding.batch_stream import stream_dataset  # noqa: E402
from t0.feeding.data_spec import data_spec, open_data  # noqa: E402
from t0.feeding.manifest import Manifest  # noqa: E402
from t0.feeding.training_data import TrainingData  # noqa: E402

LENGTHS = {"inputs": 1024, "targets": 256}
ROWS = 16  # of a batch
NAME = "benchmark_mixture"
AIM_SPEED, AIM_FILLED = 4, 0.98


def _examples(rows: np.ndarray) -> int:
    return int(rows.max(axis=-1).sum())


def ours(rows: int, seed: int, split: str) -> tuple[int, float, float]:
    """Returns our examples, seconds and the share of filled input positions."""
    began = time.perf_counter()
    data, _ = _open(seed, split)
    batches = data.batches(ROWS)
    return _counted(rows, began, (next(batches)[0] for _ in range(rows // ROWS)))


def _open(seed: int, split: str) -> tuple[TrainingData, Manifest]:
    options = {"dataset_split": split, "use_cached": True, "seed": seed}
    data = open_data(data_spec(NAME, LENGTHS, **options))
    return data, manifest.build(data, ROWS, manifest.Start())


def streamed(rows: int, seed: int, split: str) -> tuple[int, float, float]:
    """Returns the same figures for our batches, read from a stream."""
    data, recorded = _open(seed, split)
    with tempfile.TemporaryDirectory() as folder:
        for _ in batch_stream.write(folder, recorded, data, first=1, last=rows // ROWS, workers=1):
            pass
        began = time.perf_counter()
        with tf.Graph().as_default(), tf.Session() as session:
            dataset = stream_dataset(batch_stream.open_stream(folder), 0)
            return _read(rows, began, dataset, session)


def stock(rows: int, seed: int, split: str) -> tuple[int, float, float]:
    """Returns the same figures for T5's function."""
    began = time.perf_counter()
    with tf.Graph().as_default(), tf.Session() as session:
        options = {"dataset_split": split, "use_cached": True, "seed": seed}
        dataset = mesh_transformer.mesh_train_dataset_fn(NAME, LENGTHS, **options)
        return _read(rows, began, dataset.batch(ROWS).prefetch(4), session)


def _read(
    rows: int, began: float, dataset: tf.data.Dataset, session: tf.Session
) -> tuple[int, float, float]:
    following = tf.data.make_one_shot_iterator(dataset).get_next()
    return _counted(rows, began, (session.run(following) for _ in range(rows // ROWS)))


def _counted(rows: int, began: float, batches) -> tuple[int, float, float]:  # noqa: ANN001
    examples, filled = 0, 0
    for batch in batches:
        examples += _examples(batch["inputs_segmentation"])
        filled += np.count_nonzero(batch["inputs_segmentation"])
    return examples, time.perf_counter() - began, filled / (rows * LENGTHS["inputs"])


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", required=True, help="folder of seqio_cache_tasks")
    parser.add_argument("--tasks", default=".*", help="regular expression of the tasks to mix")
    parser.add_argument("--split", default="train", help="which split is read (default: train)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2048, help="packed rows of a round")
    args = parser.parse_args()
    tf.disable_v2_behavior()
    mesh_transformer.seqio.set_global_cache_dirs([args.cache])
    names = [path.parent.name for path in Path(args.cache).glob("*/COMPLETED")]
    names = sorted(name for name in names if re.fullmatch(args.tasks, name))
    seqio.MixtureRegistry.add(NAME, names, default_rate=1.0)
    functions = {"T5, stock": stock, "ours": ours, "ours, from a stream": streamed}
    results: dict[str, list[tuple[int, float, float]]] = {name: [] for name in functions}
    for turn in range(args.rounds):
        for name, function in functions.items():
            results[name].append(function(args.rows, turn, args.split))
    print(f"{len(names)} tasks\n\n| feeding | examples/s | ratio | inputs filled |")
    print("|---|---|---|---|")
    speeds = {n: statistics.median(e / s for e, s, _ in rounds) for n, rounds in results.items()}
    for name, rounds in results.items():
        filled = statistics.median(share for _, _, share in rounds)
        ratio = speeds[name] / speeds["T5, stock"]
        print(f"| {name} | {speeds[name]:,.0f} | {ratio:.1f} | {filled:.1%} |")
    print(f"\nThe aims: {AIM_SPEED} times, and {AIM_FILLED:.0%}.")


if __name__ == "__main__":
    main()
