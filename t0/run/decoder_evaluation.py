"""Ranks answer choices with a decoder-only model on PyTorch, for `t0 eval`.

    evaluate("/models/gpt2", "/models/gpt2", WholeEvaluation("out", "gpt2", names, join="lm-eval"))

Inputs and choices are joined as in lm-evaluation-harness or as in T0's repository. Tasks are read
from their caches, which contain the texts of inputs and choices. Without caches, tasks are rendered
during the evaluation. Neither way needs a vocabulary. The output files are the same as for every
rank evaluation.
"""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t0.compat import seqio, tf, tf1, tfds
from t0.errors import UserError, original, printable
from t0.feeding import opening
from t0.run.evaluation_dispatch import is_ranked
from t0.run.whole_evaluation import WholeEvaluation
from t0.scoring import evaluate as rank_evaluation
from t0.scoring import ranking
from t0.scoring.batching import BatchLimits, SortedPlan
from t0.scoring.examples import Truncation
from t0.scoring.records import (
    ChoiceRecord,
    ReadRecords,
    RecordSorter,
    cached_records,
    rendered_rows,
    sample_facts,
    sample_records,
    text_of,
)
from t0.scoring.results import WITHOUT_EOS


def evaluate(folder: str, source: str, evaluation: WholeEvaluation) -> None:
    """Ranks tasks with a decoder-only model, and writes the results.

    Args:
      folder: the model's folder.
      source: the model's origin, which the results record.
      evaluation: the tasks and the settings.

    Raises:
      UserError: the model or a task cannot be read, a task has no answer choices to rank, or a text
        is longer than the context window.
    """
    tasks = [seqio.TaskRegistry.get(name) for name in evaluation.tasks]
    _open_caches(evaluation)
    for task in tasks:
        if not is_ranked(task):
            raise UserError(
                f"task {task.name} is not for rank evaluation, which a decoder-only model needs: "
                f"use {task.name}_score_eval, if it exists"
            )
    from t0.torch import tokenizer_check

    tokenizer_check.import_transformers()  # reports a missing package
    tf.config.set_visible_devices([], "GPU")  # PyTorch uses the GPUs

    from t0.torch import decoder_only, world

    device = world.find_device(evaluation.device)
    activations = world.choose_activation_type(evaluation.activations, device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    max_tokens = evaluation.batch_tokens or ranking.MAX_TOKENS[kind]
    model = decoder_only.DecoderOnly(folder, device, activations, max_tokens)
    settings = ranking.RankEvaluationSettings(
        dtype=str(activations).removeprefix("torch."),
        shard_id=evaluation.shard.id,
        num_shards=evaluation.shard.of,
        max_truncated_targets_share=1.0,
    )
    join = decoder_only.JOINS[evaluation.join]
    facts = {"name": evaluation.name, "model_dir": folder, "step": 0, "source": source}
    facts |= ranking.run_facts(
        folder,
        model.fingerprint,
        settings,
        split=evaluation.split,
        lengths=evaluation.lengths,
        vocabulary=model.vocabulary,
        reading={"use_cached": bool(evaluation.cache_dirs)},
    )
    facts |= {
        "engine": f"torch, transformers {tokenizer_check.import_transformers().__version__}",
        "model_type": model.config.model_type,
        "joined": join.description,
        "normalisation": WITHOUT_EOS,
    }
    facts |= sample_facts(evaluation.examples)
    print(f"{source}: {model.config.model_type}, joined as {join.description}", file=sys.stderr)
    ranked = {}
    for task in tasks:
        task_facts = rank_evaluation.rank_task_facts(task.name, evaluation.split, task.metric_fns)
        joiner = TextJoiner(model, join, task.name, evaluation.lengths, task_facts.truncated)
        ranked[task.name] = task_facts, functools.partial(_open_records, task, joiner, evaluation)
    ranking.rank(
        [facts],
        evaluation.output,
        ranked,
        lengths=evaluation.lengths,
        make_scorer=lambda: model,
        make_plan=lambda tasks, scorer: SortedPlan(BatchLimits(max_tokens, max_tokens)),
        settings=settings,
    )


@dataclasses.dataclass
class TextJoiner:
    """Converts a task's texts to token ids; `cut` counts truncated texts."""

    model: Any
    join: Any
    task: str
    lengths: Mapping[str, int] | None = None
    cut: Truncation = dataclasses.field(default_factory=Truncation)

    def records(self, texts: Iterator[ChoiceRecord]) -> Iterator[ChoiceRecord]:
        """Yields records of the joined texts. Their ids are one higher than the tokenizer's."""
        example = None
        for record in texts:
            number = record.example
            context, scored = self._encode(number, record.input_text, record.text)
            self._check(number, record.text, context, scored)
            context, scored, cut = self._truncate(context, scored)
            self.cut.inputs += cut and number != example
            example = number if cut else example
            yield record._replace(
                inputs=np.array(context, np.int32) + 1, targets=np.array(scored, np.int32) + 1
            )

    def _encode(self, number: int, input_text: str, choice: str) -> tuple[list[int], list[int]]:
        try:
            return self.model.encode(self.join, input_text, choice)
        except UserError as error:
            raise UserError(f"task {self.task}, example {number}: {error}") from error

    def _check(self, number: int, choice: str, context: list[int], scored: list[int]) -> None:
        if not context or not scored:
            raise UserError(
                f"task {self.task}, example {number}: "
                + (f"the choice {choice!r:.60}" if context else "the input")
                + " has no separate token, so there is nothing to score"
            )
        read, positions = len(context) + len(scored) - 1, self.model.positions
        if positions and not self.lengths and read > positions:
            raise UserError(
                f"task {self.task}, example {number}: input and choice have {read:,} tokens, but "
                f"the context window has {positions:,}. To truncate long inputs, which the results "
                f"record: --lengths=inputs={positions * 3 // 4},targets={positions // 4}"
            )

    def _truncate(self, context: list[int], scored: list[int]) -> tuple[list[int], list[int], bool]:
        if not self.lengths:
            return context, scored, False
        self.cut.targets += len(scored) > self.lengths["targets"]
        max_tokens = self.lengths["inputs"]
        truncated = context[-max_tokens:] if self.join.cut_left else context[:max_tokens]
        return truncated, scored[: self.lengths["targets"]], len(context) > max_tokens


def _open_caches(evaluation: WholeEvaluation) -> None:
    """Registers the caches with SeqIO, and checks that they are not stale."""
    if evaluation.cache_dirs:
        seqio.add_global_cache_dirs(list(evaluation.cache_dirs))
        flags = {"module_import": evaluation.modules, "data_dir": evaluation.data_dirs}
        for note in opening.require_current(
            evaluation.tasks, settings=flags, allow_stale=evaluation.allow_stale_cache
        ):
            print(printable(note), file=sys.stderr)


def _open_records(
    task: seqio.Task, joiner: TextJoiner, evaluation: WholeEvaluation, sorter: RecordSorter
) -> ReadRecords:
    if evaluation.cache_dirs:
        files, _ = opening.cache_files(task, evaluation.split)
        texts = cached_records(task.name, files, sorter, examples=evaluation.examples)()
    elif rank_evaluation.is_prompted(task):
        texts = _render_texts(task, evaluation)
    else:
        rendered = map(_make_text_record, _render_records(task, evaluation.split))
        texts = sample_records(rendered, evaluation.examples)
    try:
        return sorter.sort(joiner.records(texts))
    except tf.errors.OpError as error:
        raise original(error) from error


def _render_texts(task: seqio.Task, evaluation: WholeEvaluation) -> Iterator[ChoiceRecord]:
    """Yields the records of a prompted task without TensorFlow, which takes a second per task."""
    no_ids = np.zeros(0, np.int32)
    for number, row in rendered_rows(task.source, evaluation.split, evaluation.examples):
        inputs, target, document = row["inputs"], row["targets"], row.get("document")
        for choice, text in enumerate(row["answer_choices"] or ()):
            is_correct = text == target
            yield ChoiceRecord(number, choice, no_ids, no_ids, is_correct, text, inputs, document)


def _make_text_record(features: Mapping[str, Any]) -> ChoiceRecord:
    example, choice = map(int, features["idx"])
    input_text, text = text_of(features["inputs"]), text_of(features["targets"])
    document = text_of(features["document"]) if "document" in features else None
    no_ids = np.zeros(0, np.int32)
    return ChoiceRecord(
        example, choice, no_ids, no_ids, bool(features["is_correct"]), text, input_text, document
    )


def _render_records(task: seqio.Task, split: str) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a task before they are tokenised."""
    steps = task.preprocessors
    if seqio.preprocessors.tokenize not in steps:
        raise UserError(
            f"task {task.name} does not tokenise with seqio.preprocessors.tokenize: cache it "
            "(seqio_cache_tasks), and set the folder with --cache_dirs"
        )
    before = steps[: steps.index(seqio.preprocessors.tokenize)]
    with tf1.Graph().as_default():
        records = task.source.get_dataset(split, shuffle=False)
        records = task._preprocess_dataset(records, before)
        yield from tfds.as_numpy(records)
