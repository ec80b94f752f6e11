"""Checks, before mode `eval` starts, that every task can be evaluated.

    check_tasks(tasks, lengths, on_tpu=False)       # ["evaluation of 3 task(s): 1 ranked, ..."]

Gin must have been parsed, because some checks depend on the model that it configures.
"""

from collections.abc import Mapping, Sequence

from t0.compat import seqio
from t0.config.bindings import bound
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError
from t0.evaluation.kinds import (
    DECODE,
    PERPLEXITY,
    RANK,
    check_kinds,
    check_lengths,
    describe,
    kinds_of,
)
from t0.evaluation.settings import first_records, refuse_shuffling
from t0.inference.jobs import has_generator

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
    first_records()
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
