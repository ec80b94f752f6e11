"""Measures tokens/s of span corruption in the PyTorch engine's worker process, without a cache.

    .venv/bin/python benchmarks/live_feeding.py --text=D/text --vocab=spiece.model

A worker process (`t0.torch.data_worker`) reads text, tokenizes it, corrupts spans (512 + 114
tokens), packs rows, and sends batches to this process, which only counts. The peer makes the same
batches in this process, as a loop without worker does. They take turns. The counted tokens are
those of inputs and targets without padding. Each round starts with the first batch, after the
worker has imported TensorFlow. Prints a Markdown table.
"""

import argparse
import contextlib
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from t0.cli import torch_run  # noqa: E402
from t0.torch import data_worker  # noqa: E402

LENGTHS = {"inputs": 512, "targets": 114}
TASK = "text_span_corruption"
AIM_TOKENS = 500_000
WORDS = (
    "--module_import=t0.recipes",
    "--gin_file=dataset.gin",
    "--gin_file=models/t5.1.1.small.gin",
    "--gin_file=learning_rate_schedules/constant_0_001.gin",
    f"--gin_param=MIXTURE_NAME = '{TASK}'",
    "--gin_param=run.batch_size = 16",
    f"--gin_param=run.sequence_length = {LENGTHS}",
    "--gin_param=run.train_steps = 1",
)


def rate(data: Any, batches: int) -> float:
    """Returns the tokens per second of the batches that follow the first."""
    with contextlib.closing(data.batches(16)) as made:
        next(made)
        began = time.perf_counter()
        tokens = sum(count_tokens(made) for _ in range(batches))
        return tokens / (time.perf_counter() - began)


def count_tokens(made: Iterator[Any]) -> int:
    """Returns the number of tokens of the next batch."""
    batch, _ = next(made)
    return sum(int((batch[name] != 0).sum()) for name in LENGTHS)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, type=Path, help="folder of text files")
    parser.add_argument("--vocab", help="SentencePiece model (default: T0_VOCAB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=400, help="of 16 sequences, in a round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").symlink_to(args.text.resolve())
        os.environ["T0_DATA_DIR"] = folder
        if args.vocab:
            os.environ["T0_VOCAB"] = args.vocab
        from t0 import compat

        compat.apply()
        import t0.recipes  # noqa: F401
        from t0.feeding import data_spec

        results: dict[str, list[float]] = {"in the training process": [], "worker process": []}
        for turn in range(args.rounds):
            spec = data_spec.data_spec(TASK, LENGTHS, seed=turn)
            words = [*WORDS, f"--model_dir={folder}/model", f"--data_dir={folder}"]
            register = functools.partial(torch_run.register_tasks, words)
            opened = data_spec.open_data(spec), data_worker.open_data(spec, register)
            for rates, data in zip(results.values(), opened, strict=True):
                rates.append(rate(data, args.batches))
    print("| batches made | tokens/s | slowest round | ratio |\n|---|---|---|---|")
    peer = statistics.median(results["in the training process"])
    for name, rates in results.items():
        median = statistics.median(rates)
        print(f"| {name} | {median:,.0f} | {min(rates):,.0f} | {median / peer:.2f} |")
    print(f"\nThe goal is {AIM_TOKENS:,} tokens/s on two cores.")


if __name__ == "__main__":
    main()
