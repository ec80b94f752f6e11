"""`t0 eval` of a decoder-only model: rank tasks as texts, joined as published, scored by PyTorch.

    evaluate("/models/gpt2", "/models/gpt2", names, Settings("out", join="lm-eval"))

Tasks are read from their caches, which hold the texts of inputs and choices, or rendered on the
way, without a vocabulary. The files are those of every rank evaluation.
"""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.checkpoints.decoder_folders import JOINS
from t0.compat import seqio, tf, tf1, tfds
from t0.errors import UserError, original
from t0.feeding import opening
from t0.run.by_kind import is_ranked
from t0.scoring import evaluate as rank_evaluation
from t0.scoring import ranking
from t0.scoring.batching import WHOLE, BatchLimits, BatchShard, SortedPlan
from t0.scoring.examples import Truncation
from t0.scoring.records import (
    ChoiceRecord,
    ReadRecords,
    RecordSorter,
    cached_records,
    text_of,
)
from t0.scoring.results import WITHOUT_EOS


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the evaluation of a decoder-only model.

    Attributes:
      output: the folder for results.
      join: how inputs and choices are joined, one of `JOINS`.
      split: the split.
      lengths: "inputs" and "targets" -> the most tokens; None to refuse what is too long.
      examples: the most examples of each task, None for all.
      batch_tokens: the most tokens that are computed at once; None for this machine's.
      cached: whether tasks are read from their caches.
      activations: "auto", "float32" or "bfloat16".
      shard: the evaluation's part of the batches.
    """

    output: str
    join: str = JOINS[0]
    split: str = "validation"
    lengths: Mapping[str, int] | None = None
    examples: int | None = None
    batch_tokens: int | None = None
    cached: bool = False
    activations: str = "float32"
    shard: BatchShard = WHOLE


def evaluate(folder: str, source: str, names: Sequence[str], settings: Settings) -> None:
    """Ranks tasks with a decoder-only model, and writes the results.

    Args:
      folder: the model's folder.
      source: where it comes from, for the results.
      names: the tasks.
      settings: the settings.

    Raises:
      UserError: if the model or a task cannot be read, a task is not ranked, or a text is longer
        than the model's positions.
    """
    tasks = [seqio.TaskRegistry.get(name) for name in names]
    for task in tasks:
        if not is_ranked(task):
            raise UserError(
                f"task {task.name} is not for rank evaluation, and a decoder-only model is "
                f"evaluated by ranking: name its form {task.name}_score_eval, if it has one"
            )
    from t0.torch import tokenizer_check

    tokenizer_check.import_transformers()  # says which package is not installed
    tf.config.set_visible_devices([], "GPU")  # they are PyTorch's
    import torch

    from t0.torch import decoder_only, world

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    activations = world.choose_activation_type(settings.activations, device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    most = settings.batch_tokens or ranking.MAX_TOKENS[kind]
    model = decoder_only.DecoderOnly(folder, device, activations, most)
    chosen = ranking.RankEvaluationSettings(
        dtype=str(activations).removeprefix("torch."),
        shard_id=settings.shard.id,
        num_shards=settings.shard.of,
        max_truncated_targets_share=1.0,
    )
    join = decoder_only.JOINS[settings.join]
    facts = {"model_dir": folder, "step": 0, "source": source} | ranking.run_facts(
        folder,
        model.fingerprint,
        chosen,
        split=settings.split,
        lengths=settings.lengths,
        vocabulary=model.vocabulary,
        reading={"use_cached": settings.cached},
    )
    facts |= {
        "engine": f"torch, transformers {tokenizer_check.import_transformers().__version__}",
        "model_type": model.config.model_type,
        "joined": join.description,
        "normalisation": WITHOUT_EOS,
    }
    facts |= {"examples": settings.examples} if settings.examples else {}
    print(f"{source}: {model.config.model_type}, joined as {join.description}", file=sys.stderr)
    ranked = {}
    for task in tasks:
        known = rank_evaluation.rank_task_facts(task.name, settings.split, task.metric_fns)
        joined = _Joined(model, join, task.name, settings, known.truncated)
        ranked[task.name] = known, functools.partial(_open_records, task, joined)
    ranking.rank(
        [facts],
        settings.output,
        ranked,
        lengths=settings.lengths,
        make_scorer=lambda: model,
        make_plan=lambda tasks, scorer: SortedPlan(BatchLimits(most, most)),
        settings=chosen,
    )


@dataclasses.dataclass
class _Joined:
    """Makes the records of a task of its texts; `cut` counts what was too long."""

    model: Any
    join: Any
    task: str
    settings: Settings
    cut: Truncation

    def records(self, texts: Iterator[ChoiceRecord]) -> Iterator[ChoiceRecord]:
        """Yields records of the joined texts, whose ids are one higher than the tokenizer's."""
        example = None
        for record in texts:
            number = record.example
            context, scored = self._encode(number, record.input_text, record.text)
            self._check(number, record.text, context, scored)
            context, scored, cut = self._cut(context, scored)
            self.cut.inputs += cut and number != example
            example = number if cut else example
            yield record._replace(
                inputs=np.array(context, np.int32) + 1, targets=np.array(scored, np.int32) + 1
            )

    def _encode(self, number: int, given: str, choice: str) -> tuple[list[int], list[int]]:
        try:
            return self.model.encode(self.join, given, choice)
        except UserError as error:
            raise UserError(f"task {self.task}, example {number}: {error}") from error

    def _check(self, number: int, choice: str, context: list[int], scored: list[int]) -> None:
        if not context or not scored:
            raise UserError(
                f"task {self.task}, example {number}: "
                + (f"the choice {choice!r:.60}" if context else "the input")
                + " has no token of its own, so there is nothing to score"
            )
        read, positions = len(context) + len(scored) - 1, self.model.positions
        if positions and not self.settings.lengths and read > positions:
            raise UserError(
                f"task {self.task}, example {number}: input and choice have {read:,} tokens, and "
                f"the model reads {positions:,}. To cut long inputs, as their results will say: "
                f"--lengths=inputs={positions * 3 // 4},targets={positions // 4}"
            )

    def _cut(self, context: list[int], scored: list[int]) -> tuple[list[int], list[int], bool]:
        lengths = self.settings.lengths
        if not lengths:
            return context, scored, False
        self.cut.targets += len(scored) > lengths["targets"]
        most = lengths["inputs"]
        kept = context[-most:] if self.join.cut_left else context[:most]
        return kept, scored[: lengths["targets"]], len(context) > most


def _open_records(task: seqio.Task, joined: _Joined, sorter: RecordSorter) -> ReadRecords:
    settings, most = joined.settings, joined.settings.examples
    if settings.cached:
        files, _ = opening.cache_files(task, settings.split)
        texts = cached_records(task.name, files, sorter, examples=most)()
    else:
        texts = map(_record_of_texts, _rendered(task, settings.split))
        texts = (record for record in texts if not most or record.example < most)
    try:
        return sorter.sort(joined.records(texts))
    except tf.errors.OpError as error:
        raise original(error) from error


def _record_of_texts(features: Mapping[str, Any]) -> ChoiceRecord:
    example, choice = map(int, features["idx"])
    given, text = text_of(features["inputs"]), text_of(features["targets"])
    document = text_of(features["document"]) if "document" in features else None
    none = np.zeros(0, np.int32)
    return ChoiceRecord(
        example, choice, none, none, bool(features["is_correct"]), text, given, document
    )


def _rendered(task: seqio.Task, split: str) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a task before they are tokenised."""
    steps = task.preprocessors
    if seqio.preprocessors.tokenize not in steps:
        raise UserError(
            f"task {task.name} does not tokenise by seqio.preprocessors.tokenize: cache it "
            "(seqio_cache_tasks), and give the folder by --cache_dirs"
        )
    before = steps[: steps.index(seqio.preprocessors.tokenize)]
    with tf1.Graph().as_default():
        records = task.source.get_dataset(split, shuffle=False)
        records = task._preprocess_dataset(records, before)
        yield from tfds.as_numpy(records)
