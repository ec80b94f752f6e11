"""Compares nanoT5's optimizers and schedules at one budget, by the negative log-likelihood (NLL).

    .venv/bin/python benchmarks/budgets.py --data_dir=DATA --out=/tmp/budgets

The task is span corruption of the documents in DATA/text/{train,validation}.jsonl.gz. Each of the
four cells is `runs/pretrain.gin` with its optimizer and schedule, trained from random weights for
the same number of steps with each seed. The seed sets the data order, the corruption and the
initial weights. The program prints a Markdown table of the nats per target token on the validation
split (mean, minimum and maximum over the seeds) and the time per step. All runs are validated on
the same batches.

The hyperparameters are nanoT5's (github.com/PiotrNawrot/nanoT5). The cosine schedule rises from
0.01 to 0.02 over the first 15% of the steps, then falls to 1e-5. The legacy schedule is 1 /
sqrt(max(step, 10,000)), and falls to 0 over the last tenth of the steps. So in a run of fewer than
10,000 steps it is a constant 0.01 until the last tenth. Gradients are clipped to norm 1; there is
no dropout.

The runs are in OUT/<cell>/<seed>. A second call trains only the missing ones.
"""

import argparse
import concurrent.futures
import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

from training_runs import gin, series, train

SCHEDULES = {
    "inverse square root": ["run.learning_rate_schedule = @t0.rsqrt_then_linear"],
    "cosine": [
        "run.learning_rate_schedule = @t0.cosine_with_warmup",
        "cosine_with_warmup.peak = 0.02",
        "cosine_with_warmup.begin = 0.5",
        "cosine_with_warmup.end = 1e-5",
    ],
}
OPTIMIZERS = {
    "Adafactor": ["run.optimizer = @optimize.AdafactorOptimizer"],
    "AdamW, RMS scaling": ["run.optimizer = @t0.AdamWScaleOptimizer"],
}
NLL = "validation_loss_per_token"


@dataclasses.dataclass(frozen=True)
class Cell:
    """An optimizer with a schedule."""

    optimizer: str
    schedule: str

    @property
    def folder(self) -> str:
        """Its folder's name."""
        return f"{self.optimizer}-{self.schedule}".replace(", ", "_").replace(" ", "_").lower()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a run: the NLL at its end, in nats per target token, and its step time."""

    nll_nats: float
    step_seconds: float


def words_of(args: argparse.Namespace, cell: Cell, seed: int) -> list[str]:
    """Returns the flags of a run."""
    warmup_steps = round(0.15 * args.steps)
    params = [
        *OPTIMIZERS[cell.optimizer],
        *SCHEDULES[cell.schedule],
        f"cosine_with_warmup.warmup_steps = {warmup_steps}",
        "apply_updates.clip_gradient_norm = 1.0",
        "train_loop.log_every_steps = 100",
        "run.save_checkpoints_steps = 100000",
        "run.keep_checkpoint_max = 1",
        "serialize_num_microbatches.tokens_per_microbatch_per_replica = None",
    ]
    return [
        *("--module_import=t0.recipes", f"--data_dir={args.data_dir}", f"--seed={seed}"),
        *(f"--gin_file=models/{args.model}.gin", "--gin_file=runs/pretrain.gin"),
        *gin(
            MIXTURE_OR_TASK_NAME=args.task,
            TRAIN_STEPS=args.steps,
            BATCH_SIZE=args.rows,
            TASK_FEATURE_LENGTHS={"inputs": args.inputs, "targets": args.targets},
            EVAL_PERIOD=args.steps,
            EVAL_STEPS=args.validation_batches,
        ),
        *(f"--gin_param={param}" for param in params),
        *(f"--gin_param={param}" for param in args.gin_param),
    ]


def run(args: argparse.Namespace, cell: Cell, seed: int) -> Outcome:
    """Trains one cell with one seed."""
    folder = Path(args.out) / cell.folder / str(seed)
    records = train(folder, words_of(args, cell, seed), threads=args.threads)
    nll = series(records, NLL)[args.steps]
    paces = list(series(records, "seconds_per_step").values())
    outcome = Outcome(nll, statistics.median(paces))
    print(
        f"{cell.optimizer}, {cell.schedule}, seed {seed}: {outcome.nll_nats:.4f} nats, "
        f"{outcome.step_seconds:.3f} s/step",
        flush=True,
    )
    return outcome


def table(outcomes: dict[Cell, list[Outcome]]) -> str:
    """Returns the Markdown table: the NLL as mean (minimum to maximum), and the step time."""
    schedules = list(dict.fromkeys(cell.schedule for cell in outcomes))
    optimizers = list(dict.fromkeys(cell.optimizer for cell in outcomes))
    lines = [f"| | {' | '.join(schedules)} | s/step |", "|---" * (len(schedules) + 2) + "|"]
    for optimizer in optimizers:
        cells = [outcomes.get(Cell(optimizer, schedule), []) for schedule in schedules]
        paces = [outcome.step_seconds for cell in cells for outcome in cell]
        words = [_words([outcome.nll_nats for outcome in cell]) for cell in cells]
        lines.append(f"| {optimizer} | {' | '.join(words)} | {statistics.median(paces):.2f} |")
    return "\n".join(lines)


def _words(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def flags() -> argparse.ArgumentParser:
    """Returns the program's flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="folder with text/")
    parser.add_argument("--out", required=True, help="folder for the runs")
    parser.add_argument("--task", default="text_span_corruption")
    parser.add_argument("--model", default="t5.1.1.tiny", help="name of a file in gin's models/")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=32, help="sequences of a batch")
    parser.add_argument("--inputs", type=int, default=128, help="tokens of an input")
    parser.add_argument("--targets", type=int, default=29, help="tokens of a target")
    parser.add_argument("--validation_batches", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", default="", help="part of the names of the cells to run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run")
    parser.add_argument("--gin_param", action="append", default=[], help="more bindings")
    return parser


def main() -> None:
    """Runs the cells with each seed, and prints the table."""
    args = flags().parse_args()
    cells = [Cell(optimizer, schedule) for optimizer in OPTIMIZERS for schedule in SCHEDULES]
    cells = [cell for cell in cells if args.only in cell.folder]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        waiting = [
            (cell, pool.submit(run, args, cell, seed)) for seed in args.seeds for cell in cells
        ]
        outcomes: dict[Cell, list[Outcome]] = {cell: [] for cell in cells}
        for cell, future in waiting:
            outcomes[cell].append(future.result())
    tokens = args.steps * args.rows * args.inputs
    print(
        f"\n{args.model}, {args.steps:,} steps of {args.rows} x ({args.inputs} + "
        f"{args.targets}) tokens, {tokens:,} input tokens in all; nats for each target token on "
        f"{args.validation_batches} held-out batches; seeds {args.seeds}: mean (least to "
        f"greatest)\n\n{table(outcomes)}"
    )


if __name__ == "__main__":
    main()
