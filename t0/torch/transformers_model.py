"""Ranks choices, decodes and measures perplexity with models of Hugging Face's transformers.

    folder = PretrainedFolder("/models/bart")       # checks the files, and loads the tokenizer
    folder.is_encoder_decoder, folder.decoder.positions     # True, 1024
    model = TransformersModel(folder, world, torch.float32, 16384)
    inputs, targets = model.encode("It rains. Wet?", "yes")
    model.restore("/models/bart")
    model.log_likelihoods(inputs, targets)      # [B, L], [B, C, T] -> float32 [B, C]
    list(model.decode([inputs], 16))            # ["yes"]

T5 models do not use this module. The encoder of an encoder-decoder reads the input, and its decoder
scores the choices. Each input is encoded once for all of its choices. A decoder-only model reads an
input and a choice as one text. If the two parts are tokenized separately, the ids may differ from
those of the whole text, so the score depends on how the parts are joined. `JOINS` contains the
published ways to join them. If several choices follow the same ids, the model reads these ids once,
and their keys and values are kept for the choices (`shares_inputs`). Arrays contain each token id
plus 1, because 0 is padding in `t0.evaluation` but a token in these models.
"""

import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from t0.errors import UserError
from t0.evaluation.batching import BatchLimits, BatchPlan, PaddedBatch, SortedPlan
from t0.evaluation.ranked_examples import ScoringTask
from t0.evaluation.ranking import MAX_LOGITS
from t0.torch import model_checks
from t0.torch.pretrained_folder import PretrainedFolder, Side, as_user_error
from t0.torch.processes import World

_Pair = tuple[list[int], list[int]]  # the ids that a model is given, and the ids that it scores
_IGNORED = -100  # the label of positions that are not scored, as in transformers


@dataclasses.dataclass(frozen=True)
class Join:
    """A way in which an input and a choice are joined for a model.

    Attributes:
      description: the description of this way in results files.
      join: a function of (folder, input, choice) that returns (ids that are given to the model, ids
        that are scored).
      cut_left: whether an input that is too long is cut at its beginning instead of its end.
    """

    description: str
    join: Callable[[PretrainedFolder, str, str], _Pair]
    cut_left: bool = False


def _join_as_lm_eval(folder: PretrainedFolder, given: str, choice: str) -> _Pair:
    """Joins an input and a choice like lm-evaluation-harness 0.4.13 (`TemplateLM._encode_pair`)."""
    tokenizer, text = folder.tokenizer, " " + choice
    if not given:
        return [_first_id(tokenizer)], tokenizer.encode(text, add_special_tokens=False)
    bare = given.rstrip()
    whole = tokenizer.encode(given + text)
    # The tokenizer adds the same special tokens (such as BOS) to the input as to the whole text.
    context = tokenizer.encode(bare) if bare else whole[:1]
    return context, whole[len(context) :]


def _join_as_t_zero(folder: PretrainedFolder, given: str, choice: str) -> _Pair:
    """Joins an input and a choice like bigscience-workshop/t-zero (evaluation/run_eval.py)."""
    tokenizer = folder.tokenizer
    return tokenizer.encode(given, add_special_tokens=False), tokenizer.encode(choice)


def _encode_separately(folder: PretrainedFolder, given: str, choice: str) -> _Pair:
    """Encodes an input for the encoder, and a choice with EOS for the decoder."""
    tokenizer = folder.tokenizer
    scored = tokenizer(text_target=choice)["input_ids"]
    # Some tokenizers, such as Gemma's, begin each text with the id that the decoder reads first
    # anyway.
    scored = scored[1:] if scored[:1] == [folder.decoder_start] else scored
    eos = tokenizer.eos_token_id
    return tokenizer(given)["input_ids"], scored + [eos] * (eos is not None and eos not in scored)


def _first_id(tokenizer: Any) -> int | None:
    """Returns the id with which a text begins: BOS, or EOS if the tokenizer has no BOS."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return eos if bos is None else bos


JOINS = {
    "lm-eval": Join(
        "lm-evaluation-harness: input, a space and choice are tokenized as one text; the tokens "
        "after those of the input are scored, without EOS; a long input loses its beginning",
        _join_as_lm_eval,
        cut_left=True,
    ),
    "t-zero": Join(
        "bigscience-workshop/t-zero: input (without special tokens) and choice (with the "
        "tokenizer's own) are tokenized apart, nothing is between them; the choice's tokens are "
        "scored; a long input loses its end",
        _join_as_t_zero,
    ),
}
_SEPARATE = Join(
    "encoder-decoder: input and choice are tokenized apart, each with the tokenizer's own special "
    "tokens; the choice's tokens are scored, with EOS; a long input loses its end",
    _encode_separately,
)


class TransformersModel:
    """A model of transformers, with the methods that `t0.evaluation` needs.

    Attributes:
      folder, device, activations, join: as given.
      model: the module of transformers; None before `restore`.
      shares_inputs: whether the keys and values of an input are kept for its choices. `restore`
        sets this to whether the model's cache allows it.

    Args:
      folder: the model's folder.
      world: the world of a single process, with the device that computes.
      activations: the type of weights and activations. The softmax is always float32.
      batch_tokens: the maximum number of tokens in a forward pass.
      join: the way in which inputs and choices are joined for a decoder-only model, one of `JOINS`.
    """

    replicas = 1

    def __init__(
        self,
        folder: PretrainedFolder,
        world: World,
        activations: torch.dtype,
        batch_tokens: int,
        join: Join = JOINS["lm-eval"],
    ) -> None:
        self.folder, self.activations, self.device = folder, activations, world.device
        self.device_kind = world.device_kind
        self.join = _SEPARATE if folder.is_encoder_decoder else join
        self._batch_tokens = batch_tokens
        self.model: Any = None
        self.shares_inputs = False

    def encode(self, given: str, choice: str) -> _Pair:
        """Returns the ids of an input and the ids of a choice.

        Raises:
          UserError: if the tokenizer fails, or if it returns an id for which the model has no
            embedding.
        """
        with as_user_error(self.folder.path, "its tokenizer cannot encode a text"):
            context, scored = self.join.join(self.folder, given, choice)
        self._check_ids(context, self.folder.encoder)
        self._check_ids(scored, self.folder.decoder)
        return context, scored

    def encode_windows(self, text: str, most: int) -> Iterator[_Pair]:
        """Yields windows of a text, each of at most `most` tokens, as (given ids, scored ids).

        Each token of the text is scored once. As in lm-evaluation-harness
        (`get_rolling_token_windows`), the model is also given the token before a window. Before the
        first window, it is given BOS or EOS.
        """
        tokenizer = self.folder.tokenizer
        with as_user_error(self.folder.path, "its tokenizer cannot encode a text"):
            ids = tokenizer.encode(text, add_special_tokens=False)
        whole = [_first_id(tokenizer), *ids]
        self._check_ids(whole, self.folder.decoder)
        for start in range(0, len(ids), most):
            yield whole[start : start + 1], ids[start : start + most]

    def _check_ids(self, ids: Sequence[int | None], side: Side) -> None:
        path, rows = self.folder.path, side.embeddings
        if None in ids:
            raise UserError(
                f"{path}: the input is empty, and the tokenizer has neither a BOS nor an EOS token "
                "to put in its place; name one in tokenizer_config.json"
            )
        if rows is not None and max(ids, default=0) >= rows:
            raise UserError(
                f"{path}: its tokenizer makes the id {max(ids):,}, and the model has embeddings "
                f"for the ids 0 to {rows - 1:,} (vocab_size in config.json): the tokenizer is of "
                "another model. Copy this model's own tokenizer into the folder"
            )

    def truncate(self, context: list[int], most: int) -> list[int]:
        """Truncates an input to `most` ids; an encoder's input keeps the special ids at its end."""
        if len(context) <= most:
            return context
        if self.join.cut_left:
            return context[-most:]
        special = set(self.folder.tokenizer.all_special_ids) if self.join is _SEPARATE else ()
        last = next((n for n, token in enumerate(reversed(context)) if token not in special), 0)
        return context[: most - last] + context[len(context) - last :]

    def excess(self, context: int, scored: int) -> str:
        """Returns a message with advice if a text exceeds the context window, otherwise "".

        Args:
          context: the number of tokens of the input.
          scored: the number of tokens of the choice.
        """
        read, written = (
            side.positions or math.inf for side in (self.folder.encoder, self.folder.decoder)
        )
        if self.folder.is_encoder_decoder:
            used = ((context, read), (scored, written))
        else:
            used = ((context + scored - 1, written),)
        for tokens, positions in used:
            if tokens > positions:
                inputs, targets = (min(most, 1 << 20) for most in (read, written))
                return (
                    f"{tokens:,} tokens, but the context window has {positions:,}. To truncate "
                    "long inputs, which the results record: "
                    f"--lengths=inputs={inputs * 3 // 4},targets={targets // 4}"
                )
        return ""

    def restore(self, checkpoint: str) -> int:
        """Loads the weights if they are not loaded yet; returns the number of tensors.

        Raises:
          UserError: if a tensor of the model is missing in the folder, or the folder has tensors
            that the model does not have.
        """
        del checkpoint  # not needed, because `folder` is the checkpoint
        if self.model is None:
            self.model = self.folder.load_model(self.device, self.activations)
            with as_user_error(self.folder.path, "this model cannot be evaluated"):
                model_checks.check_logits(self)
                model_checks.check_padding(self)
                self.shares_inputs = model_checks.can_share_inputs(self)
        # Tied weights count once. `load_model` has checked that all tensors have been read.
        return sum(1 for _ in self.model.parameters())

    def close(self) -> None:
        """Does nothing, because the same weights score and decode."""

    def check_decoding(self) -> None:
        """Checks that the model can decode texts in batches.

        Raises:
          UserError: if it cannot.
        """
        with as_user_error(self.folder.path, "this model cannot decode texts"):
            model_checks.check_decoding(self)

    @property
    def end_ids(self) -> list[int]:
        """The ids of the tokens that end a decoded text."""
        ends = self.model.generation_config.eos_token_id
        return [] if ends is None else np.atleast_1d(ends).tolist()

    def log_likelihoods(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the log-likelihood of each choice, given its input, in nats, float32 [B, C].

        Args:
          inputs: int [B, L], ids plus 1; 0 is padding.
          targets: int [B, C, T], the C choices of each input, also as ids plus 1. The result is 0
            for a choice with only padding.
        """
        return self.score_choices(inputs, targets)[..., 0]

    def plan(self, tasks: Sequence[ScoringTask], limits: BatchLimits, **options: Any) -> BatchPlan:
        """Plans batches of any shape, sorted by length."""
        del tasks, options
        return SortedPlan(limits)

    def score(self, batch: PaddedBatch) -> np.ndarray:
        """Returns the log-likelihoods of a batch, float32 [B, C]."""
        return self.log_likelihoods(*batch.lay_out())

    def measure(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the sums of a batch; see `t0.evaluation.model.Model`."""
        nats, correct = self.score_choices(batch["inputs"], batch["targets"][:, None]).sum((0, 1))
        return np.array([-nats, 0.0, correct, np.count_nonzero(batch["targets"])])

    @torch.inference_mode()
    def score_choices(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns each choice's log-likelihood and number of correct tokens, [B, C, 2]."""
        scores = np.zeros((*targets.shape[:2], 2), np.float32)
        places = np.argwhere(targets.any(-1))  # (row, choice)
        separate = self.folder.is_encoder_decoder
        encoded = self.encode_inputs(inputs) if separate else None
        read = targets.shape[2] if separate else inputs.shape[1] + targets.shape[2]
        most = self._batch_tokens
        if separate and self.folder.decoder.embeddings:
            most = min(most, MAX_LOGITS[self.device_kind] // self.folder.decoder.embeddings)
        batch_size = max(1, most // read)
        if self.shares_inputs:  # inputs of similar lengths have little padding
            lengths = np.count_nonzero(inputs, 1)[places[:, 0]]
            places = places[np.argsort(-lengths, kind="stable")]
        for first in range(0, len(places), batch_size):
            batch = places[first : first + batch_size]
            if encoded is None:
                rows, context_of = np.unique(batch[:, 0], return_inverse=True)
                contexts = [_ids(inputs[row]) for row in rows]
                choices = [_ids(targets[row, choice]) for row, choice in batch]
                shared = self.shares_inputs and len(rows) < len(batch)
                # The last id of an input is read with each choice. So a shared input has two ids.
                if shared and min(map(len, contexts)) > 1:
                    scores[tuple(batch.T)] = self.score_shared(contexts, context_of, choices)
                else:
                    pairs = [(contexts[n], c) for n, c in zip(context_of, choices, strict=True)]
                    scores[tuple(batch.T)] = self.score_pairs(pairs)
            else:
                scores[tuple(batch.T)] = self._score_decoded(
                    {name: values[batch[:, 0]] for name, values in encoded.items()},
                    targets[tuple(batch.T)],
                )
        return scores

    def encode_inputs(self, inputs: np.ndarray) -> dict[str, torch.Tensor]:
        """Returns ids and attention mask [B, L], and the encoder's output [B, L, D] as "memory"."""
        ids = torch.from_numpy(inputs.astype(np.int64)).to(self.device)
        seen = {"attention_mask": (ids > 0).long()}
        seen["input_ids"] = (ids - 1).masked_fill(ids == 0, self.folder.padding)
        return {**seen, "memory": self.model.get_encoder()(**seen)[0]}

    def _score_decoded(
        self, encoded: Mapping[str, torch.Tensor], targets: np.ndarray
    ) -> np.ndarray:
        """Returns the scores [N, 2] that an encoder-decoder gives to targets [N, T]."""
        return _score_labels(*self.decoder_logits(encoded, targets))

    def decoder_logits(
        self, encoded: Mapping[str, torch.Tensor], targets: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits [N, T, V] of an encoder-decoder, and the labels [N, T].

        The decoder's inputs are made from the labels as transformers makes them for training: by
        the model's function for this purpose or, if it has none, in the model.
        """
        from transformers.modeling_outputs import MoEModelOutput

        labels = torch.from_numpy(targets.astype(np.int64)).to(self.device) - 1
        labels = labels.masked_fill(labels < 0, _IGNORED)
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        copied = labels.clone()  # FSMT changes it
        shifted = {"decoder_input_ids": shift(labels=copied)} if shift else {"labels": copied}
        inputs = dict(encoded)  # FSMT's decoder is causal only if it gets the ids of the inputs
        # This class of outputs has the fields of all encoders.
        inputs["encoder_outputs"] = MoEModelOutput(last_hidden_state=inputs.pop("memory"))
        logits = self.model(**inputs, **shifted, use_cache=False).logits
        return logits, labels

    def score_pairs(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Returns the scores [N, 2] that a decoder-only model gives to (given ids, scored ids)."""
        wholes = [np.concatenate(pair)[:-1] for pair in pairs]
        ids, seen = _pad(wholes, "right", self.folder.padding)
        labels, _ = _pad(
            [np.concatenate([np.full(len(c) - 1, _IGNORED), x]) for c, x in pairs],
            "right",
            _IGNORED,
        )
        width = ids.shape[1]
        # Logits are computed only for the first scored position and all positions after it.
        keep = width - (min(len(context) for context, _ in pairs) - 1)
        logits = self.forward(ids, seen, keep=keep, use_cache=False).logits[:, -keep:]
        return _score_labels(logits, labels[:, -keep:].to(self.device))

    def score_shared(
        self, contexts: Sequence[np.ndarray], context_of: np.ndarray, choices: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Returns the scores [N, 2] that a decoder-only model gives to choices.

        The model reads each context except its last id once. Then it reads the last id and the
        choice for each choice, with the keys and values of the context in transformers' own cache.

        Args:
          contexts: the ids of each context, at least two.
          context_of: int [N], the index of each choice's context.
          choices: the ids of the N choices.
        """
        # Padding is on the left, as for decoding, so each choice follows its context immediately.
        ids, seen = _pad([context[:-1] for context in contexts], "left", self.folder.padding)
        positions = (seen.cumsum(-1) - 1).clamp(min=0)
        cache = self.forward(ids, seen, positions, use_cache=True, keep=1).past_key_values
        rows = torch.from_numpy(context_of)
        cache.batch_select_indices(rows.to(self.device))
        lasts = [contexts[row][-1:] for row in context_of]
        ids, own = _pad(
            [np.append(last, c[:-1]) for last, c in zip(lasts, choices, strict=True)],
            "right",
            self.folder.padding,
        )
        labels, _ = _pad(choices, "right", _IGNORED)
        positions = seen.sum(-1)[rows, None] + torch.arange(ids.shape[1])
        seen = torch.cat([seen[rows], own], 1)
        logits = self.forward(ids, seen, positions, past_key_values=cache).logits
        return _score_labels(logits, labels.to(self.device))

    def forward(
        self,
        ids: torch.Tensor,
        seen: torch.Tensor,
        positions: torch.Tensor | None = None,
        *,
        keep: int | None = None,
        **options: Any,
    ) -> Any:
        """Returns transformers' output of a decoder-only model.

        Args:
          ids: the ids [N, L].
          seen: 1 for ids and 0 for padding, also for ids whose keys are cached.
          positions: the position of each id, [N, L]; None if padding is only on the right.
          keep: the number of last positions that need logits, if not all of them do.
          **options: further arguments of the model.
        """
        accepted = inspect.signature(self.model.forward).parameters
        if positions is not None and "position_ids" in accepted:
            options["position_ids"] = positions.to(self.device)
        if keep is not None and "logits_to_keep" in accepted:
            options["logits_to_keep"] = keep
        seen = seen.to(self.device)
        return self.model(input_ids=ids.to(self.device), attention_mask=seen, **options)

    def decode(self, inputs: Sequence[np.ndarray], most_tokens: int) -> Iterator[str]:
        """Decodes each input [L] greedily; yields texts of at most `most_tokens` tokens.

        Args:
          inputs: the ids of each input plus 1.
          most_tokens: the maximum number of tokens of a text.

        Raises:
          UserError: if an input together with `most_tokens` tokens does not fit into the context
            window.
        """
        order = sorted(range(len(inputs)), key=lambda number: -len(inputs[number]))
        longest = len(inputs[order[0]]) if order else 0
        if excess := self.excess(longest, most_tokens):
            raise UserError(f"input and decoded text may have {excess}")
        batch_size = max(1, self._batch_tokens // (longest + most_tokens))
        texts = [""] * len(inputs)
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            rows = self._generate([_ids(inputs[number]) for number in numbers], most_tokens)
            for number, row in zip(numbers, rows, strict=True):
                ids = list(itertools.takewhile(lambda token: token not in self.end_ids, row))
                texts[number] = self.folder.tokenizer.decode(ids, skip_special_tokens=True).strip()
        yield from texts

    def generate(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Generates tokens greedily; see `t0.evaluation.model.Model`.

        Args:
          inputs: int [B, L], ids plus 1; 0 is padding.
          limits: int [B], the maximum number of tokens of each row; 0 for a padding row.
          draws: float [B, T], of which only the shape is read.

        Returns:
          (tokens, scores). The tokens, int32 [B, T], are ids plus 1, with the token that ends a
          text, followed by zeros. The scores are the log-likelihoods of the tokens, float32 [B].
        """
        tokens = np.zeros(draws.shape, np.int32)
        rows = np.flatnonzero(limits)
        generated = self._generate([_ids(inputs[row]) for row in rows], int(limits.max(initial=0)))
        for row, ids in zip(rows, generated, strict=True):
            ids = ids[: limits[row]]
            tokens[row, : len(ids)] = np.array(ids) + 1
        return tokens, self.log_likelihoods(inputs, tokens[:, None])[:, 0]

    def _generate(self, rows: Sequence[np.ndarray], most_tokens: int) -> list[list[int]]:
        """Returns the ids that the model generates for rows of ids, with the token that ends them.

        No token follows the end of a row.
        """
        outputs, start = self.generate_rows(rows, most_tokens)
        generated = outputs.sequences[:, start:].tolist()
        ends = [
            next((n for n, t in enumerate(row) if t in self.end_ids), len(row)) for row in generated
        ]
        return [row[: end + 1] for row, end in zip(generated, ends, strict=True)]

    @torch.inference_mode()
    def generate_rows(
        self, rows: Sequence[np.ndarray], most_tokens: int, **options: bool
    ) -> tuple[Any, int]:
        """Returns transformers' output, and the number of ids before the generated ones."""
        separate = self.folder.is_encoder_decoder
        # A decoder-only model continues a row at its right end, so its padding is on the left.
        ids, seen = _pad(rows, "right" if separate else "left", self.folder.padding)
        outputs = self.model.generate(
            input_ids=ids.to(self.device),
            attention_mask=seen.to(self.device),
            max_new_tokens=most_tokens,
            return_dict_in_generate=True,
            **options,
        )
        return outputs, 1 if separate else ids.shape[1]  # the decoder's start token, or the input


def _pad(
    rows: Sequence[np.ndarray], side: str, value: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of ids, padded on one side with `value`, and 1 for ids and 0 for padding."""
    tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    pad = functools.partial(pad_sequence, batch_first=True, padding_side=side)
    return pad(tensors, padding_value=value), pad([torch.ones_like(each) for each in tensors])


def _score_labels(logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Returns the log-likelihood and the number of correctly predicted tokens of rows, [N, 2].

    Args:
      logits: the logits, [N, T, V].
      labels: the ids that are scored, or `_IGNORED` at positions that are not scored, [N, T].
    """
    logits, scored = logits.float(), labels != _IGNORED
    nats = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    correct = logits.argmax(-1) == labels
    return torch.stack([nats.masked_fill(~scored, 0.0).sum(-1), correct.sum(-1)], -1).cpu().numpy()


def _ids(row: np.ndarray) -> np.ndarray:
    return row[row > 0] - 1
