"""`t0 eval CHECKPOINT`: runs the whole T0 evaluation of a checkpoint in any format.

If a Hugging Face folder contains a model that is not a T5 (BART, GPT-2 ...), it is evaluated with
PyTorch and transformers.

t0 eval /models/t0_3b --data_dir=data                    # the held-out datasets, by ranking
t0 eval bigscience/T0_3B --data_dir=data --limit=100 --output=out
t0 eval bigscience/T0_3B --reproduce                     # next to the published values
t0 eval /models/mine/model.ckpt-1000 --tasks='super_glue_rte_.*' --data_dir=data
t0 eval reviews/model                         # a folder of `t0 init`: its data, prompts and cache
t0 eval /models/t0_3b --adapter=/adapters/rte --tasks='super_glue_rte_.*' --data_dir=data
t0 eval bigscience/T0_3B --tasks='super_glue_rte_.*' --data_dir=data --num_fewshot=4
t0 eval /models/gpt2 --join=t-zero --data_dir=data
t0 eval /models/small --module_import=t0.recipes --data_dir=texts --tasks=text_span_corruption
"""

import argparse
import functools
import importlib
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t0.checkpoints import other_folders
from t0.cli import reproduce
from t0.cli.arguments import (
    JoinedList,
    Number,
    add_shared,
    apply_starter_folder,
    few_shot_of,
    split_list,
)
from t0.config.plain_data import Count, Positive
from t0.errors import UserError, printable
from t0.progress import ProgressLine
from t0.text_tables import terminal_width

if TYPE_CHECKING:
    from t0.evaluation.batching import BatchShard

_HEADLINES = ("results", "decoded", "perplexity")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    checkpoint = "a Mesh TensorFlow file or folder, a Hugging Face or T5X folder, or a hub name"
    add("checkpoint", nargs="?", help=checkpoint)
    tasks = "a mixture, a task, or tasks by regular expression (default: t0_eval or, for a model "
    add("--tasks", help=f"{tasks}in a folder of `t0 init`, its prompts)")
    add("--output", metavar="DIR", help="folder for results (default: t0_eval/<name>)")
    reproduce = (
        "evaluate on all prompts of T0's eleven held-out datasets, and print the means next to the "
        "published values"
    )
    add("--reproduce", action="store_true", help=reproduce)
    downloads = "print download commands for --reproduce on a machine without network, and exit"
    add("--downloads", action="store_true", help=downloads)
    limit = "a random sample of N examples of each task, with the same rows for every prompt"
    add("--limit", action=Number, kind=Positive, metavar="N", help=limit)
    shards = "split ranking into N shards, one per command; `t0 merge` joins them"
    add("--num_shards", action=Number, kind=Positive, metavar="N", help=shards)
    add("--shard_id", action=Number, kind=Count, metavar="I", help="the shard to run, from 0")
    decode = "also decode an answer to each ranked input, and score it by exact match"
    add("--decode_answers", action="store_true", help=decode)
    lengths = "maximum tokens per text (default: inputs=1024,targets=256)"
    add("--lengths", default="", action=JoinedList, help=lengths)
    stale = "use caches whose prompts, data, vocabulary or modules changed"
    add("--allow_stale_cache", action="store_true", help=stale)
    add("--skip_absent", action="store_true", help="skip datasets without data")
    add("--vocab", help="SentencePiece model (default: the checkpoint's own)")
    join = (
        "how a decoder-only model reads input and choice: as lm-evaluation-harness (default) or as "
        "T0's repository joins them"
    )
    add("--join", choices=other_folders.JOINS, help=join)
    add_shared(parser, "num_fewshot", "fewshot_options")
    add_shared(parser, "adapter", "base", "batch_tokens", "activation_dtype", "engine", "device")
    add_shared(parser, "data_dir", "skip_bad_rows", "split", "cache_dirs", "module_import")
    add_shared(parser, "quiet", "json")


def main(args: argparse.Namespace) -> int:
    """Evaluates, prints the summary and the path of the report, and returns the exit status."""
    if args.downloads:
        print("\n".join(reproduce.download_lines([*reproduce.held_out_splits()])))
        return 0
    if args.checkpoint is None:
        raise UserError("no checkpoint: t0 eval CHECKPOINT")
    other_folders.check_packages(args.checkpoint)
    _apply_starter_folder(args)
    args.tasks = args.tasks or reproduce.TASKS
    if args.json and args.num_shards:
        raise UserError("--json prints the results of a whole evaluation: leave out --num_shards")
    if args.reproduce:
        reproduce.check_flags(args)
    if args.skip_absent and args.cache_dirs:
        raise UserError(
            "--skip_absent is about datasets, but --additional_task_cache_dirs reads caches: use one of them"
        )
    if "://" in (args.output or ""):
        raise UserError(
            f"--output={args.output}: expected a local folder. Copy the results to the bucket later"
        )
    shard = _shard(args)
    from t0.catalogue.row_preview import parse_lengths
    from t0.checkpoints import adapter_folders, prepared_checkpoint
    from t0.training import model_directory

    lengths = parse_lengths(args.lengths) or None
    path, source = prepared_checkpoint.locate(args.checkpoint)
    path = model_directory.choose_best_checkpoint(path)
    other_folders.check_packages(path)  # of a model from the hub
    name = Path(source.rpartition("@")[0] or source).name
    is_t5 = not other_folders.needs_transformers(path)
    prepare = _prepare_t5 if is_t5 else _prepare_with_transformers
    if args.base and not args.adapter:
        raise UserError(f"--base={args.base} needs --adapter: add it, or leave out --base")
    if args.adapter:
        adapters = [*map(model_directory.choose_best_checkpoint, args.adapter)]
        adapter = adapter_folders.choose(adapters)
        name, source = f"{name}_{Path(args.adapter[0]).absolute().name}", f"{source} with {adapter}"
        if not is_t5:
            raise UserError(
                f"--adapter is for T5 models, and {path} is not a T5: merge the adapter first"
            )
    output = Path(args.output or Path("t0_eval") / (name + _shots(args)))
    if args.adapter:
        path = adapter_folders.join(adapters, path, str(output), args.base)
    engine, run = prepare(path, source, output, args)
    with ProgressLine.hidden(hides=args.quiet or args.json):
        run(_evaluation(args, str(output), lengths, shard, engine))
    if shard.of > 1:
        folder = printable(shlex.quote(str(output)))
        print(f"when all {shard.of} shards are done: t0 merge {folder} --output {folder}")
        return 0
    return _report(output, args)


def _apply_starter_folder(args: argparse.Namespace) -> None:
    """Sets the flags that the user left out to the values of the checkpoint's starter folder."""
    from t0.catalogue.row_preview import lengths_text
    from t0.checkpoints.prepared_checkpoint import is_hub_name
    from t0.config.starter_settings import find_starter_folder
    from t0.prompts.model_prompts import read_lengths

    args.metrics = []
    settings = None if is_hub_name(args.checkpoint) else find_starter_folder(args.checkpoint)
    if settings is None:
        return
    apply_starter_folder(args, settings)
    lengths = read_lengths(args.checkpoint) or settings.lengths
    args.lengths = args.lengths or lengths_text(lengths)
    if args.tasks or args.reproduce:
        return
    args.tasks = f"{settings.name}_rank"
    model = Path(args.checkpoint)
    below = Path(os.path.expanduser(model)).relative_to(settings.folder)  # noqa: PTH111
    args.output = args.output or settings.path("eval", "_".join(below.parts) + _shots(args))
    zero_shot = args.num_fewshot is None  # few-shot prompts are not in the cache
    if zero_shot and not args.cache_dirs and Path(settings.path("cache")).is_dir():
        args.cache_dirs = settings.path("cache")
    folder = model if model.is_dir() else model.parent
    args.metrics = [folder] if (folder / "metrics.jsonl").is_file() else []


def _shots(args: argparse.Namespace) -> str:
    """Returns the end of a default folder's name, so that zero-shot results are not replaced."""
    return f"_{args.num_fewshot}shot" if args.num_fewshot else ""


def _shard(args: argparse.Namespace) -> "BatchShard":
    from t0.evaluation.batching import WHOLE, BatchShard

    if args.num_shards is None and args.shard_id is None:
        return WHOLE
    count, shard = args.num_shards, args.shard_id
    if count is None or shard is None or not 0 <= shard < count:
        raise UserError(
            f"got --shard_id={shard} and --num_shards={count}; expected both, such as "
            "--num_shards=4 and --shard_id=0, 1, 2 or 3"
        )
    return BatchShard(shard, count)


# The name of the engine, and a function that runs an evaluation.
_Prepared = tuple[str, Callable[[Any], None]]


def _prepare_t5(path: str, source: str, output: Path, args: argparse.Namespace) -> _Prepared:
    """Chooses the engine for a T5 model, and sets the vocabulary of the tasks."""
    from t0.catalogue.sentence_pieces import REMEDY
    from t0.checkpoints import prepared_checkpoint
    from t0.files import paths
    from t0.run.models import choose_engine

    if args.join:
        raise UserError(
            f"--join={args.join} is for decoder-only models. {path} is an encoder-decoder, "
            "which reads input and choice separately: leave the flag out"
        )
    if args.vocab and not paths.exists(args.vocab):  # before anything is converted
        raise UserError(f"vocabulary not found: {args.vocab}. {REMEDY}")
    engine = choose_engine(args.engine, args.device)
    checkpoint = prepared_checkpoint.find(path, source, output, vocabulary=args.vocab)
    if args.vocab or checkpoint.vocabulary:  # t5's own tasks read it while they are imported
        os.environ["T0_VOCAB"] = args.vocab or checkpoint.vocabulary
    return engine, functools.partial(_run, checkpoint, args.vocab)


def _prepare_with_transformers(
    path: str, source: str, output: Path, args: argparse.Namespace
) -> _Prepared:
    """Checks the flags for a model that transformers evaluates."""
    del output
    if args.engine == "tensorflow":
        raise UserError(
            f"--engine=tensorflow: {path} is not a T5, and only PyTorch evaluates it: leave the "
            "flag out"
        )
    if args.vocab:
        raise UserError(
            f"--vocab is for T5 models. {path} is not a T5, and uses the tokenizer in its folder: "
            "leave the flag out"
        )
    from t0.run.models import choose_engine

    engine = choose_engine("torch", args.device)
    return engine, functools.partial(_run_with_transformers, path, source)


def _evaluation(
    args: argparse.Namespace, output: str, lengths: Any, shard: "BatchShard", engine: str
) -> Any:
    """Imports the modules that register tasks; returns the evaluation that the flags describe."""
    modules = args.module_import or ["t0.seqio_tasks"]
    for module in modules:
        importlib.import_module(module)
    from t0.run import whole_evaluation
    from t0.tasks.few_shot_tasks import check_few_shot_tasks

    names = whole_evaluation.choose_tasks(args.tasks, args.split)
    caches, few_shot = split_list(args.cache_dirs), few_shot_of(args)
    if few_shot is not None:
        check_few_shot_tasks(names, few_shot)
        if caches:
            raise UserError(
                "--num_fewshot renders its prompts during the evaluation, but "
                "--additional_task_cache_dirs reads caches: use one of them"
            )
    if not caches:
        names = whole_evaluation.drop_absent(names, args.split, skip=args.skip_absent)
    return whole_evaluation.WholeEvaluation(
        output=output,
        name=" with ".join([args.checkpoint, *(args.adapter or ())]),
        tasks=names,
        split=args.split,
        lengths=lengths,
        examples=args.limit,
        batch_tokens=args.batch_tokens,
        cache_dirs=caches,
        allow_stale_cache=args.allow_stale_cache,
        modules=modules,
        data_dirs=args.data_dir or (),
        activations=args.activation_dtype,
        shard=shard,
        decode_answers=args.decode_answers,
        join=args.join,
        engine=engine,
        device=args.device,
        few_shot=few_shot,
    )


def _run(checkpoint: Any, vocabulary: str | None, evaluation: Any) -> None:
    """Converts the checkpoint if necessary, and runs the evaluation."""
    from t0.checkpoints import tokenizer
    from t0.config import flags
    from t0.files.any_path import any_path
    from t0.run import command, whole_evaluation
    from t0.tasks.vocabulary import vocabulary_measure

    prepared, own = checkpoint.prepare(), checkpoint.vocabulary
    if own and not vocabulary and (caution := tokenizer.caution(any_path(own))):
        print(printable(caution), file=sys.stderr)
    length = whole_evaluation.input_length(evaluation)
    evaluation = evaluation.with_few_shot_tasks(vocabulary_measure(length))
    values = whole_evaluation.flag_values(prepared, evaluation)
    command.run(flags.from_values(values), sys.argv, working_directory=False)


def _run_with_transformers(path: str, source: str, evaluation: Any) -> None:
    from t0 import compat

    compat.apply()
    from t0.run import transformers_evaluation

    transformers_evaluation.evaluate(path, source, evaluation)


def _report(output: Path, args: argparse.Namespace) -> int:
    from t0.reports import read_report

    files = [path for head in _HEADLINES for path in sorted(output.glob(f"{head}_*.json"))]
    notes = []
    if args.limit:
        sample = "a random sample, or the first ones for perplexity"
        notes = [f"At most {args.limit:,} examples of each task: {sample}."]
    report = read_report(files, notes=notes, metrics_paths=args.metrics)
    written = report.write(output / "report")
    with ProgressLine.hidden(hides=args.json):
        print()
        for line in report.lines(terminal_width()):
            print(printable(line))
        if args.reproduce:
            for run in report.runs:
                reproduce.print_table(run, output)
        print(f"report: {printable(str(written.html))}")
    if args.json:
        print(json.dumps(report.data(), allow_nan=False))
    return 0
