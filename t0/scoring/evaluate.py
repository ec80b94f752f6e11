"""`score_eval` on Mesh TensorFlow: scores every task of a mixture at each checkpoint.

    rank_evaluate(
        MeshModel("bitransformer", mesh_shape="", layout_rules=""),
        vocabulary=vocabulary, lengths={"inputs": 1024, "targets": 256}, batch_size=64,
        split="validation", model_dir="/models/tiny", datasets=eval_datasets, steps="all",
    )   # /models/tiny/validation_eval/results_1000.json, scores/<task>_1000.jsonl

The evaluation is that of all engines, `t0.scoring.ranking`; here are the parts of Mesh TensorFlow:
the records through SeqIO, the scorer, and gin's name of the settings, `score_eval`.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.checkpoints import checkpoint_files
from t0.compat import gin, mesh_utils, mtf, seqio
from t0.compat import tf1 as tf
from t0.config.bindings import bound
from t0.errors import UserError
from t0.scoring import answers, ranking
from t0.scoring.batch_planning import Costs, model_costs
from t0.scoring.documents import documents_of
from t0.scoring.mesh_model import (
    MeshModel,
    both_vocabularies,
    build_model,
    chosen_checkpoints,
    vocabulary_hash,
)
from t0.scoring.scorer import Scorer
from t0.scoring.task_records import read_task

# The parameters of `mesh_eval_dataset_fn` that select a task's records.
_READING = ("num_eval_examples", "shuffle_eval_examples", "seed", "use_cached")

# The settings that gin has a say in; the plain class, which other engines take, knows no gin.
RankEvaluationSettings = gin.external_configurable(
    ranking.RankEvaluationSettings, "score_eval", module="t0"
)


def rank_evaluate(  # noqa: PLR0913 (a run's arguments, by name)
    model: MeshModel,
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
    facts: Mapping[str, Any] | None = None,
    make_decoder: Callable[..., answers.Decoder] | None = None,
) -> None:
    """Scores tasks at each checkpoint and writes the results.

    Args:
      model: the model's type and mesh.
      vocabulary: one vocabulary, or (inputs, targets).
      lengths: the limits {"inputs": tokens, "targets": tokens}; None for no limits.
      batch_size: the most sequences of full length in a batch.
      split: the split to score.
      model_dir: the folder of the checkpoints.
      datasets: Mesh TensorFlow's `EvalDataset` of each task, whose records are not truncated.
      summary_dir: the folder for results; by default `<model_dir>/<split>_eval`.
      steps: a step, a list of steps, "all" or None (the latest).
      dir_suffix: appended to the results folder's name.
      checkpoint: a checkpoint to score instead of those in `model_dir`, or None.
      facts: more facts of the run for the results file.
      make_decoder: makes what decodes answers, from the model, the vocabularies, `dtype`, `lengths`
        and `batch_size`; None if none are decoded.

    Raises:
      UserError: if there is no checkpoint or no task, or a task cannot be scored.
    """
    folder = ranking.results_folder(model_dir, split, summary_dir, dir_suffix)
    checkpoints = chosen_checkpoints(model_dir, steps, checkpoint)
    vocabularies = both_vocabularies(vocabulary)
    if not datasets:
        raise UserError(f"no task of the mixture has a split '{split}'")
    settings = ranking.checked(RankEvaluationSettings())
    _warn_of_cut_examples()
    runs = [
        {"model_dir": model_dir, "step": step}
        | ranking.run_facts(
            path,
            checkpoint_files.fingerprint(path),
            settings,
            split=split,
            lengths=lengths,
            vocabulary=vocabulary_facts(vocabularies[1]),
            reading=reading_facts(),
        )
        | dict(facts or {})
        for step, path in checkpoints.items()
    ]
    documents = functools.partial(_documents, split)
    scorers: list[Scorer] = []

    def make_scorer() -> Scorer:
        scorers.append(_build_scorer(model, vocabularies, settings.dtype))
        return scorers[0]

    def decoder() -> answers.Decoder:
        for scorer in scorers:
            scorer.close()  # so that no two models take memory
        given = {"dtype": settings.dtype, "lengths": lengths, "batch_size": batch_size}
        return make_decoder(model, vocabularies, **given)

    ranking.rank(
        runs,
        folder,
        {
            data.name: functools.partial(read_task, data, lengths, documents=documents)
            for data in datasets
        },
        make_scorer=make_scorer,
        limits=functools.partial(
            ranking.batch_limits, batch_size, lengths, vocabularies[1].vocab_size
        ),
        costs=functools.partial(_costs, runs[0]["checkpoint"]),
        settings=settings,
        make_decoder=decoder if make_decoder else None,
    )


def _documents(split: str, task: str, examples: int) -> Sequence[int] | None:
    source = seqio.TaskRegistry.get(task).source if task in seqio.TaskRegistry.names() else None
    if not hasattr(source, "split_mapping") or split not in source.split_mapping:
        return None
    cached = bool(bound("mesh_eval_dataset_fn.use_cached", False))
    return documents_of(source, split, examples, only_local=cached)


def reading_facts() -> dict[str, Any]:
    """Returns the bound parameters of `mesh_eval_dataset_fn` that select a task's records."""
    return {name: bound(f"mesh_eval_dataset_fn.{name}") for name in _READING}


def vocabulary_facts(vocabulary: Any) -> dict[str, Any]:
    """Returns what a results file holds of the targets' vocabulary."""
    return {
        "vocabulary": getattr(vocabulary, "sentencepiece_model_file", str(vocabulary)),
        "vocabulary_sha256": vocabulary_hash(vocabulary),
        "vocabulary_size": vocabulary.vocab_size,
    }


def _warn_of_cut_examples() -> None:
    records = bound("mesh_eval_dataset_fn.num_eval_examples")
    if records:
        print(
            f"num_eval_examples = {records:,} selects as many choices of each task, not examples: "
            "the last example may lack some of its choices",
            file=sys.stderr,
        )


def _build_scorer(spec: MeshModel, vocabularies: tuple[Any, Any], dtype: str) -> Scorer:
    model, placement = build_model(spec, vocabularies)
    types = mesh_utils.get_variable_dtype()
    if dtype == "bfloat16":
        types = mtf.VariableDType(types.master_dtype, tf.bfloat16, tf.bfloat16)
    return Scorer(model, types, placement)


def _costs(checkpoint: str) -> Costs:
    present = checkpoint_files.read(checkpoint)
    return model_costs({n: shape for n, (shape, _) in present.items() if "_slot_" not in n})
