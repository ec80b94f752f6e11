"""Compares tokens/s of span corruption of plain text: our feeding and T5's tf.data pipeline.

    .venv/bin/python benchmarks/pretraining_feed.py --text=D/text --vocab=spiece.model

Both read files of text with one document per line, tokenize it, corrupt spans (512 + 114 tokens)
and pack. They take turns in one process. T5's pipeline reads the lines with TensorFlow, so that
Python does not slow it down. The counted tokens are those of inputs and targets without padding.
Each round starts cold. Prints a Markdown table.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from t0 import compat  # noqa: E402

compat.apply()

import gin  # noqa: E402
import numpy as np  # noqa: E402
import seqio  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from t5.models import mesh_transformer  # noqa: E402

from t0.feeding.data_spec import data_spec, open_data  # noqa: E402
from t0.sources.texts import FolderTexts  # noqa: E402
from t0.tasks import set_vocabulary  # noqa: E402
from t0.tasks.recipe_tasks import pretraining_definitions  # noqa: E402

LENGTHS = {"inputs": 512, "targets": 114}
OURS, STOCK = "ours_span_corruption", "stock_span_corruption"
# The goal is ten times the rate at which t5.1.1.small trains on 2 cores: 1.3 steps/s of 16 x (128 +
# 32) tokens.
AIM_TOKENS = 35_000
_PARTS = 64  # of the file, for readers in parallel


def write_text(source: Path, folder: Path, characters: int) -> None:
    """Writes documents of `source`, one per line, repeatedly into files of `folder`."""
    texts = FolderTexts(source)
    lines = [
        " ".join(text.split()) for shard in texts.shards("train") for text in texts.documents(shard)
    ]
    while sum(map(len, lines)) < characters:
        lines += lines
    for number in range(_PARTS):
        (folder / f"train-{number:02d}.txt").write_text("\n".join(lines[number::_PARTS]) + "\n")


def register(folder: Path) -> None:
    """Registers our task, and the same task with TensorFlow's reader of lines."""
    arguments = pretraining_definitions("ours", FolderTexts(folder))[OURS]
    seqio.TaskRegistry.add(OURS, **arguments)
    files = sorted(map(str, folder.glob("*.txt")))

    def lines(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del split, shuffle_files, seed
        dataset = tf.data.Dataset.from_tensor_slices(files)
        dataset = dataset.interleave(tf.data.TextLineDataset, num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.map(lambda line: {"text": line}, num_parallel_calls=tf.data.AUTOTUNE)

    source = seqio.FunctionDataSource(lines, splits=["train"])
    seqio.TaskRegistry.add(STOCK, **{**arguments, "source": source})


def ours(batches: int, seed: int) -> tuple[int, float]:
    """Returns our tokens and seconds."""
    began = time.perf_counter()
    batch_stream = open_data(data_spec(OURS, LENGTHS, seed=seed)).batches(16)
    return _counted(began, (next(batch_stream)[0] for _ in range(batches)))


def stock(batches: int, seed: int) -> tuple[int, float]:
    """Returns the tokens and seconds of T5's function."""
    began = time.perf_counter()
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = mesh_transformer.mesh_train_dataset_fn(STOCK, LENGTHS, seed=seed)
        following = tf.data.make_one_shot_iterator(dataset.batch(16).prefetch(4)).get_next()
        return _counted(began, (session.run(following) for _ in range(batches)))


def _counted(began: float, batches: Iterator[dict[str, np.ndarray]]) -> tuple[int, float]:
    tokens = sum(np.count_nonzero(batch[name]) for batch in batches for name in LENGTHS)
    return tokens, time.perf_counter() - began


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, type=Path, help="folder of text files")
    parser.add_argument("--vocab", help="SentencePiece model (default: T0_VOCAB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=400, help="of 16 sequences, in a round")
    args = parser.parse_args()
    set_vocabulary(args.vocab)
    tf.disable_v2_behavior()
    gin.bind_parameter("pack_dataset.use_custom_ops", False)
    results: dict[str, list[tuple[int, float]]] = {"T5, stock": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        # The text has three characters for each token of a round.
        write_text(args.text, Path(folder), args.batches * 16 * sum(LENGTHS.values()) * 3)
        register(Path(folder))
        for turn in range(args.rounds):
            for name, function in zip(results, (stock, ours), strict=True):
                results[name].append(function(args.batches, turn))
    print("| feeding | tokens/s | slowest round | ratio |\n|---|---|---|---|")
    speeds = {n: statistics.median(t / s for t, s in rounds) for n, rounds in results.items()}
    for name, rounds in results.items():
        slowest = min(tokens / seconds for tokens, seconds in rounds)
        ratio = speeds[name] / speeds["T5, stock"]
        print(f"| {name} | {speeds[name]:,.0f} | {slowest:,.0f} | {ratio:.1f} |")
    times = speeds["ours"] / AIM_TOKENS
    print(
        f"\nThe aim is {AIM_TOKENS:,} tokens/s, ten times training's; ours: {times:.1f} times that."
    )


if __name__ == "__main__":
    main()
