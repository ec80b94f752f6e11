"""`t0 predict MODEL ROWS --output FILE`: makes predictions for new rows with a model's prompt.

t0 predict tickets/model new_tickets.csv --output predicted.csv
t0 predict tickets/model new_tickets.jsonl --output predicted.parquet --all_choices
t0 predict t0_run/model questions.tsv --output answers.tsv --prompt=sciq_Direct_Question

The rows need no labels. Their file may have any format that training data may have. The output has
the same rows and columns in the same order, and two further columns. If the prompt has choices,
these are `prediction` (the chosen answer) and `probability` (of this answer among all choices). If
the prompt has no choices, they are `prediction` (the generated text) and `score` (the sum of the
log-probabilities of its tokens). The model directory sets the lengths, the vocabulary and the
prompts.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from t0.cli.arguments import add_shared
from t0.errors import UserError, say
from t0.progress import ProgressLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("model", help="a model directory of a training run, or a checkpoint in it")
    add("rows", help="a file with rows: csv, tsv, jsonl, json (also .gz), parquet or arrow")
    add("--output", required=True, metavar="FILE", help="a .csv, .tsv, .jsonl or .parquet file")
    add("--overwrite", action="store_true", help="replace the output if it exists")
    prompt = "a prompt of the model (default, for one dataset: its first prompt with choices)"
    add("--prompt", metavar="NAME", help=prompt)
    choices = "also write the probability of each choice, in a column for each"
    add("--all_choices", action="store_true", help=choices)
    add("--vocab", help="SentencePiece model (default: the model's own)")
    add_shared(parser, "adapter", "batch_tokens", "activation_dtype", "engine", "device")
    add_shared(parser, "skip_bad_rows", "quiet")


def main(args: argparse.Namespace) -> int:
    """Predicts, prints notes about the rows, and returns the exit status.

    Raises:
      UserError: the model cannot be used, the rows cannot be read, or the output cannot be written.
    """
    from t0.checkpoints import other_folders
    from t0.files import paths
    from t0.files.any_path import any_path
    from t0.inference.row_predictions import RowTask, open_rows, write_predictions
    from t0.prompts import model_prompts
    from t0.training import model_directory

    other_folders.check(any_path(args.model))
    prompts_folder = model_prompts.find_model_folder(args.model)
    if prompts_folder is None:
        if not paths.exists(args.model):
            raise UserError(
                f"{args.model} does not exist; expected a model directory of a training run, or a "
                "checkpoint in it"
            )
        raise UserError(
            f"{args.model} has no recorded prompts ({model_prompts.FILE}). A training run on "
            "prompted tasks records them: start its command again, or predict inputs that you have "
            "rendered, with runs/infer.gin"
        )
    prompts = model_prompts.read_model_prompts(prompts_folder)
    task = RowTask(open_rows(args.rows), prompts.choose(args.prompt))
    _check_output(args)
    task.check(args.output, all_choices=args.all_choices)
    folder = f"{args.output}.partial"

    def busy(who: str, end: str) -> str:
        return f"{args.output} is being written by {who}. Wait, {end}, or choose another --output"

    with model_directory.lock(folder, busy):
        try:
            _check_output(args)  # again, because another process may have written it
            with ProgressLine.hidden(hides=args.quiet):
                lines = _write_lines(args, folder, prompts_folder, prompts, task)
                notes = write_predictions(task, lines, args.output, all_choices=args.all_choices)
        except UserError:
            if not any(Path(folder).glob("predictions.jsonl*")):  # nothing to resume
                paths.remove(folder)
            raise
        paths.remove(folder)
    for note in notes:
        say(note)
    return 0


def _check_output(args: argparse.Namespace) -> None:
    from t0.files.table_files import check_format

    output = args.output
    check_format(output, "--output")
    if os.path.lexists(output) and not args.overwrite:
        raise UserError(
            f"{output} exists already: replace it with --overwrite, or choose another --output"
        )
    if Path(output).is_dir() or (Path(output).exists() and Path(output).samefile(args.rows)):
        kind = "a folder" if Path(output).is_dir() else "the file of the rows"
        raise UserError(f"--output={output} is {kind}: choose another file")
    if not Path(output).absolute().parent.is_dir():
        raise UserError(f"--output={output}: the folder {Path(output).parent} does not exist")


def _write_lines(
    args: argparse.Namespace, folder: str, prompts_folder: str, prompts: Any, task: Any
) -> str:
    """Predicts into `folder`; returns the file with a line for each row that can be rendered."""
    from t0.files import paths
    from t0.files.untrusted import check_bucket
    from t0.prompts import model_prompts

    copied = os.path.join(prompts_folder, model_prompts.VOCABULARY_FILE)  # noqa: PTH118 (gs:// paths)
    own = copied if paths.exists(copied) else prompts.vocabulary
    if not args.vocab and own != copied:
        prompts_file = os.path.join(prompts_folder, model_prompts.FILE)  # noqa: PTH118
        check_bucket(own, prompts_file, f"add --vocab={own}")
    vocabulary = os.environ["T0_VOCAB"] = args.vocab or own  # t5 reads it during import
    from t0.checkpoints import adapter_folders, prepared_checkpoint
    from t0.config import flags
    from t0.run import command, row_prediction
    from t0.run.models import choose_engine
    from t0.run.whole_evaluation import choose_batch_size
    from t0.training import model_directory

    engine = choose_engine(args.engine, args.device)
    path, source = prepared_checkpoint.locate(args.model)
    path = model_directory.choose_best_checkpoint(path)
    if args.adapter:
        adapters = [*map(model_directory.choose_best_checkpoint, args.adapter)]
        path = adapter_folders.join(adapters, path, folder)
    checkpoint = prepared_checkpoint.find(path, source, Path(folder), vocabulary=vocabulary)
    description = checkpoint.prepare()
    tokens = sum(prompts.lengths.values())
    bindings = {
        "CHECKPOINT_PATH": description.checkpoint,
        "INFER_OUTPUT_DIR": folder,
        "TASK_FEATURE_LENGTHS": dict(prompts.lengths),
        "BATCH_SIZE": choose_batch_size(engine, args.device, tokens, args.batch_tokens),
        "t0.row_predictions.rows": args.rows,
        "t0.row_predictions.prompts": prompts_folder,
        "t0.row_predictions.prompt": task.prompt.task,
        "t0.row_predictions.engine": engine,
        "t0.row_predictions.device": args.device,
    }
    values = {
        "gin_file": [description.gin_file, "runs/infer.gin"],
        "gin_param": flags.bindings_of(bindings),
        "checkpoint": description.checkpoint,
        "activation_dtype": args.activation_dtype,
        "vocab": vocabulary,
        "module_import": ["t0.tasks"],  # the prompts are recorded, so no tasks are registered
    }
    command.run(flags.from_values(values), sys.argv, working_directory=False)
    return os.path.join(folder, row_prediction.LINES)  # noqa: PTH118
