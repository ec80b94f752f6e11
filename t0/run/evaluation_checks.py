"""Checks that a mode can do what the run's settings ask: which tasks, model and engine it takes.

    check_tasks(tasks, lengths, on_tpu=False)       # ["evaluation of 3 task(s): 1 ranked, ..."]
    check_mode(run)                                 # UserError: choice_losses is set, and only ...

Gin must have been parsed, because some checks depend on the model that it configures.
"""

from collections.abc import Callable, Mapping, Sequence

from t0.compat import mesh_utils, seqio
from t0.config.bindings import bound
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError
from t0.evaluation.eval_datasets import configured_tasks
from t0.evaluation.kinds import (
    DECODE,
    PERPLEXITY,
    RANK,
    check_kinds,
    check_lengths,
    check_shards,
    describe,
    kinds_of,
)
from t0.evaluation.settings import (
    EvaluationSettings,
    RankEvaluationSettings,
    refuse_settings,
    refuse_shuffling,
)
from t0.feeding.data_spec import ChoiceLosses
from t0.inference import jobs
from t0.inference.jobs import has_generator
from t0.run.parsed_run import ParsedRun
from t0.run.row_prediction import RowPredictionSettings

_IN_WORDS = {RANK: "rank evaluation", PERPLEXITY: "perplexity", DECODE: "decoding"}


def check_tasks(
    tasks: Sequence[seqio.Task], lengths: Mapping[str, int] | None, *, on_tpu: bool
) -> list[str]:
    """Checks that every task can be evaluated, and describes the kinds of evaluation.

    Args:
      tasks: the mixture's tasks. All of them have the split to evaluate.
      lengths: feature -> maximum number of tokens, or None.
      on_tpu: whether the run is on a TPU. There, Mesh TensorFlow performs mode `eval`, which only
        decodes.

    Returns:
      lines to print.

    Raises:
      UserError: a task cannot be evaluated. The message suggests a fix.
    """
    kinds = kinds_of(tasks)
    model_type = bound("run.model_type", ENCODER_DECODER)
    check_kinds(kinds)
    decoded_by_mesh = DECODE in kinds and (on_tpu or not has_generator(model_type))
    if decoded_by_mesh and bound("mesh_eval_dataset_fn.seed") is None:
        refuse_shuffling("Mesh TensorFlow shuffles inputs and targets differently without a seed")
    if on_tpu and set(kinds) != {DECODE}:
        kind = RANK if RANK in kinds else PERPLEXITY
        file = {RANK: "score_eval.gin", PERPLEXITY: "perplexity_eval.gin"}[kind]
        raise UserError(
            f"on a TPU, mode 'eval' only decodes, but task {kinds[kind][0].name} is for "
            f"{_IN_WORDS[kind]}: run it with --gin_file={file}"
        )
    if RANK in kinds and model_type != ENCODER_DECODER:
        raise UserError(
            f"task {kinds[RANK][0].name} ranks answer choices, which mode 'eval' only does for "
            f"encoder-decoders; run.model_type is '{model_type}'. Use --gin_file=score_eval.gin "
            "for a language model"
        )
    for task in kinds.get(PERPLEXITY, ()):
        check_lengths(task, lengths)
    return [describe(kinds)]


def check_evaluated_tasks(run: ParsedRun) -> list[str]:
    """Checks the tasks of mode `eval`; see `check_tasks`."""
    tasks = configured_tasks() if run.mode == "eval" else None
    return [] if tasks is None else check_tasks(tasks, run.lengths, on_tpu=bool(run.flags.tpu))


def check_mode(run: ParsedRun) -> None:
    """Checks that the engine of the run's mode reads its settings.

    A run that only writes a specification or a stream is not checked.
    """
    if run.flags.save_spec or run.flags.write_stream:
        return
    if run.flags.tpu and run.mode in ("eval", "score_eval", "perplexity_eval"):
        refuse_settings("Mesh TensorFlow evaluates on a TPU")
    elif check := _MODE_CHECKS.get(run.mode):
        check(run)


def _check_training(run: ParsedRun) -> None:
    del run
    if ChoiceLosses():
        raise UserError(
            "choice_losses is set, and only the PyTorch engine computes T-Few's losses. Add "
            "--engine=torch, or unset choice_losses"
        )


def scored_by_mesh() -> str | None:
    """Returns why Mesh TensorFlow ranks, as a clause for messages; None if our own code does."""
    if bound("run.predict_fn") is not None:
        return "with run.predict_fn"
    is_encoder_decoder = bound("run.model_type", ENCODER_DECODER) == ENCODER_DECODER
    return None if is_encoder_decoder else "a language model"


def _check_ranking(run: ParsedRun) -> None:
    del run
    reason = scored_by_mesh()
    if reason and bound("score_eval.num_shards", 1) != 1:
        raise UserError(
            "--num_shards is for encoder-decoders without run.predict_fn; Mesh TensorFlow scores "
            "other models"
        )
    if reason:
        refuse_settings(f"Mesh TensorFlow scores {reason}")
    elif EvaluationSettings().decoded:
        raise UserError("t0.evaluation.decoded is for mode 'eval'; the mode is 'score_eval'")
    else:
        RankEvaluationSettings()


def _check_evaluation(run: ParsedRun) -> None:
    del run
    tasks = configured_tasks()
    if tasks is None:
        refuse_settings("your own dataset function reads the examples")
        return
    kinds = kinds_of(tasks)
    check_shards(kinds, bound("score_eval.num_shards", 1))
    if EvaluationSettings().decoded:
        refuse_shuffling("the texts have the numbers of unshuffled examples")
    elif RANK in kinds and bound("run.predict_fn") is not None:
        raise UserError(
            f"task {kinds[RANK][0].name} ranks answer choices, and mode 'eval' does not call "
            "run.predict_fn for them: use --gin_file=score_eval.gin, or unset it"
        )
    elif RANK in kinds:
        RankEvaluationSettings()


def _check_perplexity(run: ParsedRun) -> None:
    del run
    refuse_settings("Mesh TensorFlow measures perplexity in mode 'perplexity_eval'")


def _check_inference(run: ParsedRun) -> None:
    model_type = bound("run.model_type", ENCODER_DECODER)
    if RowPredictionSettings().rows:
        if model_type != ENCODER_DECODER:
            raise UserError(
                f"t0 predict needs an encoder-decoder; run.model_type is '{model_type}'"
            )
        return
    if run.flags.tpu or jobs.uses_own_inference(model_type):
        return
    decode = bound("infer_model.decode_fn")
    if decode is mesh_utils.decode_from_dataset and model_type == ENCODER_DECODER:
        raise UserError(
            "infer_from_task.gin continues the text of a task, which only a language model "
            "can; this model is an encoder-decoder. To predict a task's targets, use "
            "--gin_file=runs/infer.gin instead"
        )


_MODE_CHECKS: dict[str, Callable[[ParsedRun], None]] = {
    "train": _check_training,
    "eval": _check_evaluation,
    "score_eval": _check_ranking,
    "perplexity_eval": _check_perplexity,
    "infer": _check_inference,
}
