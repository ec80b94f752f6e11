"""Recognizes a SeqIO task's training-time preprocessing, and describes it as plain data.

    objective_of(task, {"inputs": 512, "targets": 114})
    # ObjectiveSpec("t5.data.preprocessors.span_corruption", segment_tokens=568, ...)
    instructions_of(task, {"inputs": 1024, "targets": 128})
    # InstructionSpec(positives=2, longest_inputs=1024, eos={"inputs": 1, "targets": 1})
    eos_of(task)
    # EosSpec(ids={"inputs": 1, "targets": 1}, after_trim=True)

An objective is recognized by the task's preprocessing steps after its caching point. There must be
one step from `_OBJECTIVES`, optionally followed by SeqIO's `append_eos_after_trim`. For all other
tasks, SeqIO runs the preprocessing steps. SeqIO also runs them if gin changes their defaults.
`t0.feeding.pretraining` makes the examples of objectives, and `t0.feeding.cached_examples` makes
those of instruction tasks.
"""

import functools
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t0.compat import seqio, t5_preprocessors
from t0.config.bindings import bound
from t0.config.specification import EosSpec, InstructionSpec, ObjectiveSpec
from t0.errors import UserError
from t0.feeding import pretraining
from t0.tasks import denoisers, instruction_steps

# Parameter of T5's preprocessors that gin can bind -> its default.
_GIN_DEFAULTS: dict[str, Any] = {
    "select_random_chunk.additional_feature_keys": None,
    "select_random_chunk.passthrough_feature_keys": None,
    "select_random_chunk.uniform_random_start": False,
    "select_random_chunk.min_length": None,
    "split_tokens.min_tokens_per_segment": None,
    "split_tokens.additional_feature_keys": None,
    "split_tokens.passthrough_feature_keys": None,
    "split_tokens.feature_key": "targets",
    "denoise.passthrough_feature_keys": None,
    "denoise.input_feature_key": "inputs",
    "random_spans_noise_mask.random_roll": False,
}
# The fewest tokens of inputs after UL2's mode token: a token, a sentinel and EOS.
_SHORTEST_INPUTS = 3


def objective_of(task: seqio.Task, lengths: Mapping[str, int]) -> ObjectiveSpec | None:
    """Returns a task's objective, or None if it is not recognized.

    Args:
      task: SeqIO's task.
      lengths: feature -> maximum number of tokens, including EOS.

    Raises:
      UserError: if the lengths or the vocabulary do not fit the objective.
    """
    if not task.supports_caching:
        return None
    steps = list(task.preprocessors[task._cache_step_idx + 1 :])
    ends_in_eos = steps[1:] == [seqio.preprocessors.append_eos_after_trim]
    if not steps or (steps[1:] and not ends_in_eos) or _gin_changes_defaults():
        return None
    function, keywords = steps[0], {}
    if isinstance(function, functools.partial) and not function.args:
        function, keywords = function.func, function.keywords
    features, mode = task.output_features, ()
    name = denoisers.denoiser_of(task)
    if name is not None and "inputs" in lengths:
        row = denoisers.denoiser(name)
        mode = denoisers.mode_ids(name, features["inputs"].vocabulary)
        function, keywords = row.step, row.parameters
        lengths = {**lengths, "inputs": lengths["inputs"] - len(mode)}
        if lengths["inputs"] < _SHORTEST_INPUTS:
            raise UserError(
                f"task {task.name}: inputs have {lengths['inputs']} tokens after the mode token of "
                f"{len(mode)}, and need {_SHORTEST_INPUTS}. Lengthen run.sequence_length"
            )
    make, defaults, feature_names = _OBJECTIVES.get(function, (None, {}, ()))
    # A task with other features or arguments is built differently from T5's tasks.
    if make is None or set(keywords) - set(defaults) or set(features) != set(feature_names):
        return None
    missing = [name for name in feature_names if name not in lengths]
    if missing:
        raise UserError(
            f"task {task.name}: run.sequence_length has no length for {missing[0]}; it has: "
            f"{', '.join(lengths) or 'nothing'}"
        )
    parameters = {name: float(value) for name, value in {**defaults, **keywords}.items()}
    return ObjectiveSpec(
        selector=f"t5.data.preprocessors.{function.__name__}",
        parameters=parameters,
        eos={
            name: features[name].vocabulary.eos_id
            if ends_in_eos and features[name].add_eos
            else None
            for name in feature_names
        },
        mode=mode,
        **make(task, lengths, **parameters),
    )


def instructions_of(task: seqio.Task, lengths: Mapping[str, int]) -> InstructionSpec | None:
    """Returns the parameters of an instruction task; None for other kinds of tasks.

    Args:
      task: SeqIO's task.
      lengths: feature -> maximum number of tokens, including EOS. If "inputs" is missing, T5's
        default is used.
    """
    if not task.supports_caching:
        return None
    match list(task.preprocessors[task._cache_step_idx + 1 :]):
        case [
            instruction_steps.draw_output,
            functools.partial(func=instruction_steps.join_what_fits) as join,
            seqio.preprocessors.append_eos_after_trim,
        ]:
            positives = join.keywords["positives"]
        case _:
            return None
    return InstructionSpec(
        positives=positives,
        longest_inputs=lengths.get("inputs") or instruction_steps.LONGEST_INPUTS,
        eos={
            name: feature.vocabulary.eos_id if feature.add_eos else None
            for name, feature in task.output_features.items()
        },
    )


def eos_of(task: seqio.Task) -> EosSpec | None:
    """Returns the EOS that SeqIO appends to a task's cached records.

    Returns:
      None if no step or another step follows the cache, or if only SeqIO can run the steps.
    """
    if not task.supports_caching or type(task).get_dataset is not seqio.Task.get_dataset:
        return None
    steps = list(task.preprocessors[task._cache_step_idx + 1 :])
    append = [step for step in steps if step is not seqio.trim_dataset]
    features = task.output_features.items()
    if not steps or append not in _EOS_STEPS or any(f.rank != 1 for _, f in features):
        return None
    if steps[0] is seqio.trim_dataset and append == [seqio.preprocessors.append_eos]:
        return None  # the length that remains here depends on whether there is an EOS
    ended = [(name, feature) for name, feature in features if append and feature.add_eos]
    ids = {name: feature.vocabulary.eos_id for name, feature in ended}
    if None in ids.values():
        return None
    return EosSpec(ids, after_trim=append == [seqio.preprocessors.append_eos_after_trim])


# The steps, without truncation. SeqIO truncates at the end anyway.
_EOS_STEPS = ([], [seqio.preprocessors.append_eos], [seqio.preprocessors.append_eos_after_trim])


def _gin_changes_defaults() -> bool:
    return any(
        bound(f"t5.data.preprocessors.{parameter}", default, evaluate=False) != default
        for parameter, default in _GIN_DEFAULTS.items()
    )


def _span_corruption(
    task: seqio.Task,
    lengths: Mapping[str, int],
    *,
    noise_density: float,
    mean_noise_span_length: float,
) -> dict[str, Any]:
    segment, targets = t5_preprocessors.random_spans_helper(
        inputs_length=lengths["inputs"],
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
        extra_tokens_per_span_inputs=1,
        extra_tokens_per_span_targets=1,
    )
    if lengths["targets"] < targets:
        raise UserError(
            f"task {task.name}: inputs of {lengths['inputs']} tokens need targets of {targets} "
            f"with these spans, but run.sequence_length has {lengths['targets']}"
        )
    vocabulary = task.output_features["targets"].vocabulary
    _, number = pretraining.spans(np.array(segment), noise_density, mean_noise_span_length)
    if number > (available := _count_sentinels(vocabulary)):
        name = getattr(vocabulary, "sentencepiece_model_file", type(vocabulary).__name__)
        raise UserError(
            f"task {task.name}: {int(number)} spans of {segment} tokens need a sentinel each, and "
            f"the vocabulary {name} has {available} (pieces <extra_id_N> at its "
            "end). Shorten run.sequence_length, lengthen the spans, or use a vocabulary with more."
        )
    top = int(t5_preprocessors.sentinel_id(vocabulary))
    return {"segment_tokens": int(segment), "first_sentinel": top}


def _prefix_lm(
    task: seqio.Task, lengths: Mapping[str, int], *, noise_density: float
) -> dict[str, Any]:
    del noise_density
    return {"segment_tokens": lengths["inputs"] - task.output_features["inputs"].add_eos}


def _full_lm(task: seqio.Task, lengths: Mapping[str, int]) -> dict[str, Any]:
    feature = task.output_features["targets"]
    eos = feature.vocabulary.eos_id if feature.add_eos else None
    return {"segment_tokens": lengths["targets"], "document_eos": eos}


# T5's preprocessor -> (a function that computes the other fields of an `ObjectiveSpec`, the
# preprocessor's possible arguments with their defaults, the preprocessor's features).
_OBJECTIVES: dict[Any, tuple[Callable[..., dict[str, Any]], dict[str, float], tuple[str, ...]]] = {
    t5_preprocessors.span_corruption: (
        _span_corruption,
        {"noise_density": 0.15, "mean_noise_span_length": 3.0},
        ("inputs", "targets"),
    ),
    t5_preprocessors.prefix_lm: (_prefix_lm, {"noise_density": 0.5}, ("inputs", "targets")),
    t5_preprocessors.full_lm: (_full_lm, {}, ("targets",)),
}


def _count_sentinels(vocabulary: seqio.Vocabulary) -> int:
    """Returns the number of sentinels at the end of a vocabulary."""
    pieces = getattr(vocabulary, "tokenizer", None)
    if vocabulary.extra_ids or not pieces:
        return vocabulary.extra_ids
    from_last = map(pieces.id_to_piece, reversed(range(vocabulary.vocab_size)))
    sentinels = itertools.takewhile(lambda piece: re.search(r"extra_id_\d+>$", piece), from_last)
    return sum(1 for _ in sentinels)
