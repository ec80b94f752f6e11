"""Compares the loss curve of bfloat16 activations with float32's, and with another seed's.

    .venv/bin/python benchmarks/training_bands.py --data_dir=DATA --out=/tmp/bands

Trains one model three times with the same command: in float32, in bfloat16, and in float32 with
another seed. The task is span corruption of the documents in DATA/text/{train,validation}.jsonl.gz.
The first two runs have the same batches and the same dropout. Curves are compared as means over 25
steps, relative to float32's. Prints the differences. If bfloat16's curve is outside BAND, the
program ends with status 1.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from training_runs import gin, series, train

# The maximum relative difference of each mean over WINDOW steps, and of the final held-out loss.
BAND = 0.01
WINDOW = 25


def means(losses: Mapping[int, float], window: int = WINDOW) -> list[float]:
    """Returns the means of a curve over consecutive windows of steps.

    >>> means({1: 4.0, 2: 2.0, 3: 1.0, 4: 2.0}, window=2)
    [3.0, 1.5]
    """
    values = [losses[step] for step in sorted(losses)]
    whole = len(values) // window * window
    return [statistics.fmean(values[at : at + window]) for at in range(0, whole, window)]


def largest_difference(curve: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Returns the largest difference of two curves' means, relative to the first curve."""
    pairs = zip(means(curve), means(other), strict=True)
    return max(abs(b - a) / a for a, b in pairs)


def words_of(args: argparse.Namespace, activations: str, seed: int) -> list[str]:
    """Returns the flags of a run."""
    params = [
        "run.learning_rate_schedule = @t0.constant_with_warmup",
        "constant_with_warmup.peak = 0.01",
        "train_loop.log_every_steps = 1",
        "run.save_checkpoints_steps = 100000",
        "run.keep_checkpoint_max = 1",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
    ]
    return [
        *("--module_import=t0.recipes", f"--data_dir={args.data_dir}", f"--seed={seed}"),
        *(f"--gin_file=models/{args.model}.gin", "--gin_file=runs/pretrain.gin"),
        f"--activation_dtype={activations}",
        *gin(
            MIXTURE_OR_TASK_NAME=args.task,
            TRAIN_STEPS=args.steps,
            BATCH_SIZE=args.rows,
            TASK_FEATURE_LENGTHS={"inputs": args.inputs, "targets": args.targets},
            DROPOUT_RATE=0.1,
            EVAL_PERIOD=args.steps,
            EVAL_STEPS=8,
        ),
        *(f"--gin_param={param}" for param in params),
    ]


def main() -> None:
    """Trains the three runs, and compares them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="folder with text/")
    parser.add_argument("--out", required=True, help="folder for the runs")
    parser.add_argument("--task", default="text_span_corruption")
    parser.add_argument("--model", default="t5.1.1.mini", help="name of a file in gin's models/")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=8, help="sequences of a batch")
    parser.add_argument("--inputs", type=int, default=128, help="tokens of an input")
    parser.add_argument("--targets", type=int, default=29, help="tokens of a target")
    args = parser.parse_args()
    curves = {}
    for name, activations, seed in (
        ("float32", "float32", 0),
        ("bfloat16", "bfloat16", 0),
        ("float32, another seed", "float32", 1),
    ):
        folder = Path(args.out) / name.replace(", ", "_").replace(" ", "_")
        curves[name] = train(folder, words_of(args, activations, seed))
    wide = curves.pop("float32")
    final, held_out = means(series(wide, "loss"))[-1], _held_out(wide)
    print("| beside float32 | largest difference | loss at the end | held-out loss |")
    print("|---|---|---|---|")
    print(f"| float32 itself | | {final:.4f} | {held_out:.4f} |")
    worst = 0.0
    for name, records in curves.items():
        curve = largest_difference(series(wide, "loss"), series(records, "loss"))
        end, theirs = means(series(records, "loss"))[-1], _held_out(records)
        print(f"| {name} | {curve:.2%} | {end:.4f} | {theirs:.4f} |", flush=True)
        if name == "bfloat16":
            worst = max(curve, abs(theirs - held_out) / held_out)
    print(f"\nbfloat16 stays within {worst:.2%} of float32; the stated band is {BAND:.0%}.")
    sys.exit(worst > BAND)


def _held_out(records: list[dict]) -> float:
    return list(series(records, "validation_loss").values())[-1]


if __name__ == "__main__":
    main()
