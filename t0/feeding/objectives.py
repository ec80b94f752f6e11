"""Which of T5's pretraining objectives a task has, and that objective's numbers.

    objective = objective_of(task, {"inputs": 512, "targets": 114})
    objective.segment_tokens             # 568
    objective.examples(documents, rng)   # {"inputs": Ragged, "targets": Ragged}

A task is recognised by the steps after its caching point: one of the preprocessors in `_MAKERS`,
with SeqIO's `append_eos_after_trim` or without. Any other task, and one whose preprocessors gin
binds to something else than their defaults, has none here, and is fed by its own preprocessors.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t0.compat import gin, seqio, t5_preprocessors
from t0.errors import UserError
from t0.feeding import denoising
from t0.feeding.denoising import Ragged

Corrupt = Callable[[Ragged, np.random.Generator], dict[str, Ragged]]

# What gin may change about T5's preprocessors where their callers pass nothing, and the defaults.
_KNOBS: dict[str, Any] = {
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


@dataclasses.dataclass(frozen=True)
class Objective:
    """How documents become examples.

    Attributes:
      segment_tokens: how long the pieces are that documents are cut into.
      joined: whether documents are concatenated before.
      document_eos: the id that each document ends in before that, or None.
      corrupt: makes the features of the pieces.
      eos: feature -> the id that it ends in, or None; limits: feature -> its most tokens.
    """

    segment_tokens: int
    joined: bool
    corrupt: Corrupt
    eos: Mapping[str, int | None]
    limits: Mapping[str, int]
    document_eos: int | None = None

    def examples(
        self, documents: Ragged, rng: np.random.Generator, order: np.ndarray | None = None
    ) -> dict[str, Ragged]:
        """Returns feature -> its sequences.

        Args:
          documents: tokens.
          rng: of all that is random.
          order: in which documents are taken.
        """
        taken = denoising.chunks(documents, rng, order=order)
        if self.document_eos is not None:
            taken = denoising.ended(taken, self.document_eos, None)
        if self.joined:
            taken = denoising.concatenated(taken)
        features = self.corrupt(denoising.split(taken, self.segment_tokens), rng)
        return {
            name: denoising.ended(made, self.eos[name], self.limits[name])
            for name, made in features.items()
        }


def objective_of(task: seqio.Task, lengths: Mapping[str, int]) -> Objective | None:
    """Returns a task's objective, None if it is not one of those that are known here.

    Args:
      task: SeqIO's.
      lengths: tokens of each feature, EOS included.

    Raises:
      UserError: if the lengths or the vocabulary do not fit the objective.
    """
    if not task.supports_caching:
        return None
    steps = list(task.preprocessors[task._cache_step_idx + 1 :])
    ends_in_eos = steps[1:] == [seqio.preprocessors.append_eos_after_trim]
    if not steps or (steps[1:] and not ends_in_eos) or _bound_otherwise():
        return None
    function, given = steps[0], {}
    if isinstance(function, functools.partial) and not function.args:
        function, given = function.func, function.keywords
    make, known, wanted = _MAKERS.get(function, (None, (), ()))
    features = task.output_features
    # Features, or arguments, of a task that is made otherwise.
    if make is None or set(given) - set(known) or set(features) != set(wanted):
        return None
    missing = [name for name in wanted if name not in lengths]
    if missing:
        raise UserError(
            f"task {task.name}: run.sequence_length says nothing of {missing[0]}; it has: "
            f"{', '.join(lengths) or 'nothing'}"
        )
    eos = {name: feature.vocabulary.eos_id for name, feature in features.items()}
    ends = {n: eos[n] if ends_in_eos and features[n].add_eos else None for n in features}
    return make(
        task=task, lengths=lengths, eos=ends, limits={n: lengths[n] for n in wanted}, **given
    )


def _bound_otherwise() -> bool:
    for knob, default in _KNOBS.items():
        try:
            if gin.query_parameter(f"t5.data.preprocessors.{knob}") != default:
                return True
        except ValueError:  # not bound
            continue
    return False


def _span_corruption(
    *,
    task: seqio.Task,
    lengths: Mapping[str, int],
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    **common: Any,
) -> Objective:
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
            f"with these spans, and run.sequence_length has {lengths['targets']}"
        )
    vocabulary = task.output_features["targets"].vocabulary
    top = t5_preprocessors.sentinel_id(vocabulary)
    _, number = denoising.spans(np.array(segment), noise_density, mean_noise_span_length)
    if number > (there := _sentinels(vocabulary)):
        raise UserError(
            f"task {task.name}: {int(number)} spans of {segment} tokens want a sentinel each, and "
            f"the vocabulary {_name_of(vocabulary)} has {there} (pieces <extra_id_N> at its end). "
            "Shorten run.sequence_length, lengthen the spans, or take a vocabulary with more."
        )

    def corrupt(pieces: Ragged, rng: np.random.Generator) -> dict[str, Ragged]:
        mask = denoising.span_mask(
            pieces.lengths, rng, density=noise_density, mean_span=mean_noise_span_length
        )
        return {
            "inputs": denoising.with_sentinels(pieces, mask, top),
            "targets": denoising.with_sentinels(pieces, ~mask, top),
        }

    return Objective(segment, joined=True, corrupt=corrupt, **common)


def _prefix_lm(
    *,
    task: seqio.Task,
    lengths: Mapping[str, int],
    noise_density: float = 0.5,
    **common: Any,
) -> Objective:
    def corrupt(pieces: Ragged, rng: np.random.Generator) -> dict[str, Ragged]:
        mask = denoising.prefix_mask(pieces.lengths, rng, density=noise_density)
        return {"inputs": denoising.only(pieces, mask), "targets": denoising.only(pieces, ~mask)}

    segment = lengths["inputs"] - task.output_features["inputs"].add_eos
    return Objective(segment, joined=False, corrupt=corrupt, **common)


def _full_lm(*, task: seqio.Task, lengths: Mapping[str, int], **common: Any) -> Objective:
    feature = task.output_features["targets"]
    return Objective(
        lengths["targets"],
        joined=True,
        corrupt=lambda pieces, rng: {"targets": pieces},
        document_eos=feature.vocabulary.eos_id if feature.add_eos else None,
        **common,
    )


# T5's preprocessor -> what makes its objective, arguments that it may be given, its features.
_MAKERS: dict[Any, tuple[Callable[..., Objective], tuple[str, ...], tuple[str, ...]]] = {
    t5_preprocessors.span_corruption: (
        _span_corruption,
        ("noise_density", "mean_noise_span_length"),
        ("inputs", "targets"),
    ),
    t5_preprocessors.prefix_lm: (_prefix_lm, ("noise_density",), ("inputs", "targets")),
    t5_preprocessors.full_lm: (_full_lm, (), ("targets",)),
}


def _sentinels(vocabulary: seqio.Vocabulary) -> int:
    """Returns how many sentinels stand at the vocabulary's end."""
    if vocabulary.extra_ids:
        return vocabulary.extra_ids
    pieces = getattr(vocabulary, "tokenizer", None)
    number = 0
    while pieces and number < vocabulary.vocab_size:
        piece = pieces.id_to_piece(vocabulary.vocab_size - 1 - number)
        if not re.search(r"extra_id_\d+>$", piece):
            break
        number += 1
    return number


def _name_of(vocabulary: seqio.Vocabulary) -> str:
    return getattr(vocabulary, "sentencepiece_model_file", type(vocabulary).__name__)
