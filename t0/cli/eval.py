"""`t0 eval CHECKPOINT`: the whole T0 evaluation of a checkpoint in any format, in one command.

A decoder-only folder of Hugging Face (GPT-2, Llama ...) is ranked by PyTorch and transformers.

t0 eval /models/t0_3b --data_dir=data                    # the held-out datasets, by ranking
t0 eval bigscience/T0_3B --data_dir=data --limit=100 --output=out
t0 eval bigscience/T0_3B --reproduce                     # next to the published values
t0 eval /models/mine/model.ckpt-1000 --tasks='super_glue_rte_.*' --data_dir=data
t0 eval /models/gpt2 --join=t-zero --data_dir=data
t0 eval /models/small --module_import=t0.recipes --data_dir=texts --tasks=text_span_corruption
"""

import argparse
import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t0.checkpoints import decoder_folders
from t0.cli import reproduce
from t0.cli.flag_lists import JoinedList
from t0.errors import UserError, printable
from t0.sources import SKIP_BAD_ROWS_HELP, set_data_dirs

if TYPE_CHECKING:
    from t0.scoring.batching import BatchShard

_HEADLINES = ("results", "decoded", "perplexity")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument(
        "checkpoint",
        nargs="?",
        help="a Mesh TensorFlow file or folder, a Hugging Face or T5X folder, or a hub name",
    )
    parser.add_argument(
        "--tasks",
        default="t0_eval",
        help="a mixture, a task, or tasks by regular expression (default: t0_eval)",
    )
    parser.add_argument("--data_dir", action="append", help="a folder with datasets (T0_DATA_DIR)")
    parser.add_argument("--skip_bad_rows", action="store_true", help=SKIP_BAD_ROWS_HELP)
    parser.add_argument(
        "--output", metavar="DIR", help="folder for results (default: t0_eval/<name>)"
    )
    parser.add_argument("--format", default="t0", help=argparse.SUPPRESS)
    parser.add_argument(
        "--reproduce",
        action="store_true",
        help="evaluate on all prompts of T0's eleven held-out datasets, and print the means next "
        "to the published values",
    )
    parser.add_argument(
        "--downloads",
        action="store_true",
        help="print what a machine without network needs for --reproduce, and end",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N examples of each task")
    parser.add_argument(
        "--num_shards", type=int, metavar="N", help="divide ranking into N commands, for `t0 merge`"
    )
    parser.add_argument("--shard_id", type=int, metavar="I", help="which of them, from 0")
    parser.add_argument(
        "--decode_answers",
        action="store_true",
        help="also decode an answer to each ranked input, and judge it by exact match",
    )
    parser.add_argument("--batch_tokens", type=int, metavar="N", help="the most tokens of a batch")
    parser.add_argument("--split", default="validation", help="the split (default: validation)")
    parser.add_argument(
        "--lengths",
        default="",
        action=JoinedList,
        help="most tokens of a text (default: inputs=1024,targets=256)",
    )
    parser.add_argument(
        "--cache_dirs",
        default="",
        action=JoinedList,
        help="folders with cached tasks, comma-separated",
    )
    parser.add_argument(
        "--allow_stale_cache",
        action="store_true",
        help="use caches whose prompts, data, vocabulary or modules changed",
    )
    parser.add_argument(
        "--skip_absent", action="store_true", help="leave out datasets without data"
    )
    parser.add_argument("--vocab", help="SentencePiece model (default: the checkpoint's own)")
    parser.add_argument(
        "--activation_dtype", default="float32", choices=["auto", "float32", "bfloat16"]
    )
    parser.add_argument(
        "--join",
        choices=decoder_folders.JOINS,
        help="how a decoder-only model reads input and choice: as lm-evaluation-harness (default) "
        "or as T0's repository joins them",
    )
    parser.add_argument(
        "--module_import", action="append", help="module to import (default t0.seqio_tasks)"
    )


def main(args: argparse.Namespace) -> int:
    """Evaluates, prints the summary and the report's path, and returns the exit status."""
    from t0.catalogue.row_preview import given_lengths

    if args.format != "t0":
        raise UserError(
            f"--format={args.format}: `t0 eval` writes its own format only. To run our prompts in "
            "lm-evaluation-harness, and have its format: t0 export-eval TASKS --to lm-eval"
        )
    if args.data_dir:
        set_data_dirs(args.data_dir)
    if args.downloads:
        print("\n".join(reproduce.download_lines([*reproduce.held_out_splits()])))
        return 0
    if args.checkpoint is None:
        raise UserError("no checkpoint: t0 eval CHECKPOINT")
    if args.reproduce:
        reproduce.check_flags(args)
    if args.skip_absent and args.cache_dirs:
        raise UserError(
            "--skip_absent looks for datasets, and --cache_dirs reads caches instead: give one"
        )
    for name in ("limit", "batch_tokens"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: wanted a number from 1")
    lengths = given_lengths(args.lengths) or None
    shard = _shard(args)
    from t0.checkpoints import described, tokenizer
    from t0.files.any_path import any_path

    path, source = described.locate(args.checkpoint)
    name = Path(source.rpartition("@")[0] or source).name
    output = Path(args.output or Path("t0_eval") / name)
    if _is_decoder_only(path, args):
        for module in args.module_import or ["t0.seqio_tasks"]:
            importlib.import_module(module)
        _run_decoder_only(args, path, source, str(output), lengths, shard)
        return _ended(output, args, shard)
    found = described.describe(path, source, output, vocabulary=args.vocab)
    vocabulary = args.vocab or found.vocabulary
    if vocabulary:
        os.environ["T0_VOCAB"] = vocabulary  # t5's own tasks read it while they are imported
        if not args.vocab and (caution := tokenizer.caution(any_path(vocabulary))):
            print(printable(caution), file=sys.stderr)
    modules = args.module_import or ["t0.seqio_tasks"]
    for module in modules:
        importlib.import_module(module)
    _run(args, found, str(output), lengths, modules, shard)
    return _ended(output, args, shard)


def _ended(output: Path, args: argparse.Namespace, shard: "BatchShard") -> int:
    """Reports on a whole evaluation; of a shard, says what joins it to the others."""
    if shard.of > 1:
        folder = printable(shlex.quote(str(output)))
        print(f"when all {shard.of} shards are done: t0 merge {folder} --output {folder}")
        return 0
    return _report(output, args)


def _shard(args: argparse.Namespace) -> "BatchShard":
    from t0.scoring.batching import WHOLE, BatchShard

    if args.num_shards is None and args.shard_id is None:
        return WHOLE
    count, shard = args.num_shards, args.shard_id
    if count is None or shard is None or not 0 <= shard < count:
        raise UserError(
            f"got --shard_id={shard} and --num_shards={count}; wanted both, such as --num_shards=4 "
            "and --shard_id=0, 1, 2 or 3"
        )
    return BatchShard(shard, count)


def _run(
    args: argparse.Namespace,
    found: Any,
    output: str,
    lengths: Any,
    modules: list[str],
    shard: "BatchShard",
) -> None:
    from t0.config import flags
    from t0.run import command, whole_evaluation

    names = whole_evaluation.chosen_tasks(args.tasks, args.split)
    caches = [folder for folder in args.cache_dirs.split(",") if folder]
    if not caches:
        names = whole_evaluation.without_absent(names, args.split, skip=args.skip_absent)
    settings = whole_evaluation.Settings(
        output=output,
        split=args.split,
        lengths=lengths,
        examples=args.limit,
        batch_tokens=args.batch_tokens,
        cache_dirs=caches,
        activations=args.activation_dtype,
        shard=shard,
        decode_answers=args.decode_answers,
    )
    words = whole_evaluation.command_line(found, names, settings)
    words += ["--allow_stale_cache"] if args.allow_stale_cache else []
    words += [f"--module_import={module}" for module in modules]
    words += [f"--data_dir={folder}" for folder in args.data_dir or ()]
    words += [f"--vocab={os.environ['T0_VOCAB']}"] if os.environ.get("T0_VOCAB") else []
    command.run(flags.parse(words), sys.argv)


def _is_decoder_only(path: str, args: argparse.Namespace) -> bool:
    found = decoder_folders.is_decoder_only(path)
    if args.join and not found:
        raise UserError(
            f"--join={args.join} is for decoder-only models, and {path} is an encoder-decoder, "
            "which reads input and choice apart"
        )
    if args.decode_answers and found:
        raise UserError(
            f"--decode_answers is for encoder-decoders, and {path} is a decoder-only model: "
            "evaluate it without"
        )
    if args.vocab and found:
        raise UserError(
            f"--vocab is for T5 models; {path} is a decoder-only model, read with the tokenizer of "
            "its own folder: leave it out"
        )
    return found


def _run_decoder_only(
    args: argparse.Namespace,
    path: str,
    source: str,
    output: str,
    lengths: Any,
    shard: "BatchShard",
) -> None:
    from t0 import compat

    compat.apply()
    from t0.compat import seqio
    from t0.run import decoder_evaluation, whole_evaluation

    names = whole_evaluation.chosen_tasks(args.tasks, args.split)
    caches = [folder for folder in args.cache_dirs.split(",") if folder]
    if caches:
        from t0.feeding import opening

        seqio.add_global_cache_dirs(caches)
        flags = {"module_import": args.module_import or [], "data_dir": args.data_dir or []}
        for note in opening.require_current(
            names, settings=flags, allow_stale=args.allow_stale_cache
        ):
            print(printable(note), file=sys.stderr)
    else:
        names = whole_evaluation.without_absent(names, args.split, skip=args.skip_absent)
    settings = decoder_evaluation.Settings(
        output=output,
        join=args.join or decoder_folders.JOINS[0],
        split=args.split,
        lengths=lengths,
        examples=args.limit,
        batch_tokens=args.batch_tokens,
        cached=bool(caches),
        activations=args.activation_dtype,
        shard=shard,
    )
    decoder_evaluation.evaluate(path, source, names, settings)


def _report(output: Path, args: argparse.Namespace) -> int:
    from t0.reports import read_report

    files = [path for head in _HEADLINES for path in sorted(output.glob(f"{head}_*.json"))]
    notes = [f"Only the first {args.limit:,} examples of each task."] if args.limit else []
    report = read_report(files, notes=notes)
    written = report.write(output / "report")
    print()
    for line in report.lines():
        print(printable(line))
    if args.reproduce:
        for run in report.summary.runs:
            reproduce.print_table(run, output)
    print(f"report: {printable(str(written.html))}")
    return 0
