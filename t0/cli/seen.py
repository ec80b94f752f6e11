"""`t0 seen MODEL_DIR`: shows which examples a training run saw, and when.

    t0 seen /models/tiny --step 7                  # the examples of the 7th step's batch
    t0 seen /models/tiny --step 7 --count          # how often each task was used up to step 7
    t0 seen /models/tiny --step 7 --count --task super_glue_rte_GPT_3_style     # and each record
    t0 seen /models/tiny --find "Dana Reeve"       # the steps whose batches contain a text

The batches are computed again from the run's data manifest and its caches. Step N is the step that
ends with the checkpoint `model.ckpt-N`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from t0.cli.arguments import Number, add_shared
from t0.config.plain_data import Count
from t0.errors import UserError, printable, unknown_name
from t0.files.untrusted import named_buckets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("model_dir", help="a run's model directory, or the folder of its stream")
    add(
        "--step",
        action=Number,
        kind=Count,
        metavar="N",
        help="the step (default: that of the last checkpoint)",
    )
    add("--task", help="with --count: count the uses of each record of this task")
    answers = parser.add_mutually_exclusive_group()
    answers.add_argument(
        "--count", action="store_true", help="count the uses of each task up to the step"
    )
    answers.add_argument(
        "--find", metavar="TEXT", help="find the steps, up to --step, that saw a text"
    )
    add("--bucket", action="append", help="a bucket with the run's caches or vocabulary: gs://NAME")
    add_shared(parser, "vocab", "json")


def main(args: argparse.Namespace) -> int:
    """Prints the examples, counts or steps.

    Raises:
      UserError: if the run's batches are unknown, or if the run does not have the step or the task.
    """
    from t0.feeding import batch_examples

    if args.task and not args.count:
        raise UserError("--task chooses the task of --count: add --count")
    if args.find is not None and not args.find.strip():
        raise UserError("--find is empty: expected a text, such as --find 'Dana Reeve'")
    named_buckets.update(args.bucket or ())
    run = batch_examples.open_run(args.model_dir)
    last = _last_step(args.model_dir)
    step = last if args.step is None else args.step
    if step is None:
        raise UserError(f"{args.model_dir} has no checkpoint to tell the last step: add --step N")
    if last is not None and step > last:
        note = f"note: the last checkpoint is of step {last:,}; steps {last + 1:,} to {step:,} are "
        print(f"{note}those that the run would take next", file=sys.stderr)
    lines = _count_lines(run, step, args.task) if args.count else _example_lines(run, step, args)
    for line in lines:
        print(
            json.dumps(line)
            if args.json
            else printable("  ".join(f"{k}: {v}" for k, v in line.items()))
        )
    return 0


def _last_step(model_dir: str) -> int | None:
    from t0.checkpoints import checkpoint_files, torch_shards

    return checkpoint_files.latest_step(model_dir, torch_shards.steps(Path(model_dir)))


def _example_lines(run: Any, step: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from t0.catalogue.sentence_pieces import load_tokens
    from t0.feeding.batch_examples import find_origin

    recorded = [f.vocabulary for task in run.tasks for f in task.features.values() if f.vocabulary]
    tokens = load_tokens(args.vocab or next(iter(recorded), None))
    decode = tokens.text if tokens else lambda ids: " ".join(map(str, ids))
    examples = run.examples(step) if args.find is None else run.find(args.find, step, decode)
    for example in examples:
        origin = find_origin(example.task, example.record)
        texts = {name: decode(ids.tolist()) for name, ids in example.ids.items()}
        fields = {"step": example.step, "row": example.row, "task": example.task.name}
        yield {**fields, "record": example.record, **origin, **texts}


def _count_lines(run: Any, step: int, task: str | None) -> Iterator[dict[str, Any]]:
    from t0.feeding.batch_examples import find_origin

    uses = run.count_uses(step)
    if task is None:
        for name, counts in uses.items():
            span = {"least": int(counts.min(initial=0)), "most": int(counts.max(initial=0))}
            yield {"task": name, "uses": int(counts.sum()), "records": counts.size, **span}
        return
    if task not in uses:
        raise unknown_name("task of this run", task, uses)
    spec = next(each for each in run.tasks if each.name == task)
    for record, count in enumerate(uses[task].tolist()):
        yield {"task": task, "record": record, **find_origin(spec, record), "uses": count}
