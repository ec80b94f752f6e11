"""`score_eval`: scores every task of a mixture at each checkpoint and writes the results.

    rank_evaluate(
        ModelSpec("bitransformer", mesh_shape="", layout_rules=""),
        vocabulary=vocabulary, lengths={"inputs": 1024, "targets": 256}, batch_size=64,
        split="validation", model_dir="/models/tiny", datasets=eval_datasets, steps="all",
    )   # /models/tiny/validation_eval/results_1000.json, scores/<task>_1000.jsonl

Records are read once, onto local disk; batch shapes are planned over all tasks; then each
checkpoint is loaded once and scores task after task. What is finished stays finished if the run is
interrupted.
"""

import collections
import datetime
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from t0.checkpoints import checkpoint_files
from t0.compat import mesh_utils, mtf
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.scoring.collect import score_tasks, with_scores
from t0.scoring.mesh_model import (
    ModelSpec,
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)
from t0.scoring.model import Scorer
from t0.scoring.plan import Budget, Plan, Size, make_plan, model_costs
from t0.scoring.progress import Progress
from t0.scoring.reading import Settings, TaskData, checked, read_task
from t0.scoring.spool import Spool
from t0.scoring.step_report import StepReport
from t0.training.config import bound

# Logits are [B, C, T, V] floats; this many are kept at once (times 4 bytes).
MAX_LOGITS = 16 * 1024 * 1024
# Tokens of a batch beyond which larger ones are no faster, on each device of a kind; smaller ones
# leave less of the last batches empty.
MAX_TOKENS = {"cpu": 8192, "gpu": 32768}
# What else than the checkpoint decides which records a task gives.
_READING = ("num_eval_examples", "shuffle_eval_examples", "seed", "use_cached")


def eval_model(  # noqa: PLR0913 (the signature that mesh_utils.run calls)
    estimator: functools.partial,
    vocabulary: Any,
    sequence_length: Mapping[str, int] | None,
    batch_size: int,
    dataset_split: str,
    model_dir: str,
    eval_dataset_fn: Callable[..., list],
    eval_summary_dir: str | None,
    eval_checkpoint_step: Any,
    *,
    eval_dir_suffix: str | None = None,
    checkpoint: str | None = None,
    **unused: Any,
) -> None:
    """Scores the mixture's tasks; takes what `mesh_utils.eval_model` takes.

    `estimator` is the partial application of `mesh_utils.get_estimator` that `run` prepared.
    """
    del unused
    datasets = eval_dataset_fn(
        sequence_length=None, vocabulary=vocabulary, dataset_split=dataset_split
    )
    rank_evaluate(
        ModelSpec.from_estimator_arguments(estimator.keywords),
        vocabulary=vocabulary,
        lengths=sequence_length,
        batch_size=batch_size,
        split=dataset_split,
        model_dir=model_dir,
        datasets=datasets,
        summary_dir=eval_summary_dir,
        steps=eval_checkpoint_step,
        dir_suffix=eval_dir_suffix,
        checkpoint=checkpoint,
    )


def rank_evaluate(  # noqa: PLR0913 (what a run says, by name)
    model: ModelSpec,
    *,
    vocabulary: Any,
    lengths: Mapping[str, int] | None,
    batch_size: int,
    split: str,
    model_dir: str,
    datasets: Sequence[Any],
    summary_dir: str | None = None,
    steps: Any = None,
    dir_suffix: str | None = None,
    checkpoint: str | None = None,
) -> None:
    """Scores tasks at each checkpoint and writes the results.

    Args:
      model: which model, and its mesh.
      vocabulary: one, or (inputs, targets).
      lengths: {"inputs": tokens, "targets": tokens}, the limits; None for none.
      batch_size: sequences of full length that a batch may hold.
      split: which split is scored.
      model_dir: holds the checkpoints.
      datasets: Mesh TensorFlow's `EvalDataset` of each task, whose records are not cut.
      summary_dir: where results go; default `<model_dir>/<split>_eval`.
      steps: a step, a list of steps, "all" or None (the latest).
      dir_suffix: appended to the results folder's name.
      checkpoint: what is scored instead of checkpoints in `model_dir`.

    Raises:
      UserError: if there is no checkpoint or task, or one cannot be scored.
    """
    folder = summary_dir or os.path.join(model_dir, f"{split}_eval")  # noqa: PTH118
    folder += f"_{dir_suffix}" if dir_suffix else ""
    checkpoints = chosen_checkpoints(model_dir, steps, checkpoint)
    vocabularies = both_vocabularies(vocabulary)
    if not datasets:
        raise UserError(f"no task of the mixture has a split '{split}'")
    settings = checked(Settings())
    facts = {"split": split, "limits": lengths, "vocabulary": vocabularies[1]}
    runs = [
        {"model_dir": model_dir, "step": step} | _run_facts(path, settings, **facts)
        for step, path in checkpoints.items()
    ]
    with Spool() as spool:
        reports = [StepReport(folder, run, [data.name for data in datasets]) for run in runs]
        tasks = _read(datasets, reports, limits=lengths, spool=spool, settings=settings)
        if tasks:
            scorer = _build_scorer(model, vocabularies, settings.dtype)
            budget = _budget(batch_size, lengths, vocabularies[1].vocab_size, scorer)
            plan = _plan(runs[0]["checkpoint"], tasks, budget, settings.max_shapes)
        for report in reports:
            if report.unfinished:
                _score_step(scorer, report, tasks, plan, spool=spool)
            print(f"results: {report.write()}")
    # Not before all steps are done: an interruption in a later one takes up the earlier, too.
    for report in reports:
        report.forget()


def _budget(
    batch_size: int, limits: Mapping[str, int] | None, vocabulary_size: int, scorer: Scorer
) -> Budget:
    most = MAX_TOKENS[scorer.device_kind] * scorer.replicas
    asked = batch_size * sum(limits.values()) if limits else most
    return Budget(
        tokens=min(most, asked),
        target_tokens=MAX_LOGITS * scorer.replicas // vocabulary_size,
        replicas=scorer.replicas,
    )


def _read(
    datasets: Sequence[Any],
    reports: Sequence[StepReport],
    *,
    limits: Mapping[str, int] | None,
    spool: Spool,
    settings: Settings,
) -> list[TaskData]:
    """Reads the tasks that some step has not finished."""
    records = bound("mesh_eval_dataset_fn.num_eval_examples")
    if records:
        print(
            f"num_eval_examples = {records:,} takes so many choices of each task, not examples: "
            "the last example may lack some of its own",
            file=sys.stderr,
        )
    wanted = set().union(*(report.unfinished for report in reports))
    tasks = []
    for dataset in tqdm(datasets, desc="reading", unit="task", disable=None, leave=False):
        if dataset.name in wanted:
            tasks.append(read_task(dataset, limits, spool=spool, settings=settings))
    return tasks


def _plan(checkpoint: str, tasks: Sequence[TaskData], budget: Budget, most_shapes: int) -> Plan:
    sizes: collections.Counter[Size] = collections.Counter()
    for data in tasks:
        sizes.update(data.sizes)
    present = checkpoint_files.read(checkpoint)
    shapes = {name: shape for name, (shape, _) in present.items() if "_slot_" not in name}
    plan = make_plan(sizes, model_costs(shapes), budget, most_shapes=most_shapes)
    print(
        f"{sum(sizes.values()):,} inputs of {len(tasks)} tasks in {len(plan.shapes)} batch shapes; "
        f"padding adds {plan.padding - 1:.0%} to the arithmetic"
    )
    return plan


def _score_step(
    scorer: Scorer, report: StepReport, tasks: Sequence[TaskData], plan: Plan, *, spool: Spool
) -> None:
    left = [data for data in tasks if data.name in report.unfinished]
    checkpoint, limits = report.run["checkpoint"], report.run["sequence_length"]
    print(f"restored {scorer.restore(checkpoint)} variables from {checkpoint}")
    with Progress(sum(int(data.choices.sum()) for data in left)) as progress:
        scored = score_tasks(scorer, left, plan, spool=spool, limits=limits, tick=progress.tick)
        for data, scores in scored:
            examples = with_scores(data, scores, spool=spool, limits=limits)
            progress.finished(data.name, report.finish(data, examples))


def _build_scorer(spec: ModelSpec, vocabularies: tuple[Any, Any], dtype: str) -> Scorer:
    model, placement = build_model(spec, vocabularies)
    types = mesh_utils.get_variable_dtype()
    if dtype == "bfloat16":
        types = mtf.VariableDType(types.master_dtype, tf.bfloat16, tf.bfloat16)
    return Scorer(model, types, placement)


def _run_facts(
    checkpoint: str,
    settings: Settings,
    *,
    split: str,
    limits: Mapping[str, int] | None,
    vocabulary: Any,
) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint,
        "checkpoint_fingerprint": checkpoint_files.fingerprint(checkpoint),
        "split": split,
        "vocabulary": getattr(vocabulary, "sentencepiece_model_file", str(vocabulary)),
        "vocabulary_sha256": vocabulary_hash(vocabulary),
        "vocabulary_size": vocabulary.vocab_size,
        "sequence_length": dict(limits) if limits else None,
        "dtype": settings.dtype,
        "template_version": "promptsource 0.1.0",
        "normalisation": "none: sum of log-probabilities over a choice's tokens and EOS",
        "inputs_eos": False,
        "reading": {n: bound(f"mesh_eval_dataset_fn.{n}") for n in _READING},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
