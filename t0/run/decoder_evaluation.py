"""`t0 eval` of a decoder-only model: rank tasks as texts, joined as published, scored by PyTorch.

    evaluate("/models/gpt2", "/models/gpt2", WholeEvaluation("out", names, join="lm-eval"))

Tasks are read from their caches, which hold the texts of inputs and choices, or rendered on the
way, without a vocabulary. The files are those of every rank evaluation.
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
    text_of,
)
from t0.scoring.results import WITHOUT_EOS


def evaluate(folder: str, source: str, evaluation: WholeEvaluation) -> None:
    """Ranks tasks with a decoder-only model, and writes the results.

    Args:
      folder: the model's folder.
      source: where it comes from, for the results.
      evaluation: the tasks and the settings.

    Raises:
      UserError: if the model or a task cannot be read, a task is not ranked, or a text is longer
        than the model's positions.
    """
    tasks = [seqio.TaskRegistry.get(name) for name in evaluation.tasks]
    _open_caches(evaluation)
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
    activations = world.choose_activation_type(evaluation.activations, device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    most = evaluation.batch_tokens or ranking.MAX_TOKENS[kind]
    model = decoder_only.DecoderOnly(folder, device, activations, most)
    chosen = ranking.RankEvaluationSettings(
        dtype=str(activations).removeprefix("torch."),
        shard_id=evaluation.shard.id,
        num_shards=evaluation.shard.of,
        max_truncated_targets_share=1.0,
    )
    join = decoder_only.JOINS[evaluation.join]
    facts = {"model_dir": folder, "step": 0, "source": source} | ranking.run_facts(
        folder,
        model.fingerprint,
        chosen,
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
    facts |= {"examples": evaluation.examples} if evaluation.examples else {}
    print(f"{source}: {model.config.model_type}, joined as {join.description}", file=sys.stderr)
    ranked = {}
    for task in tasks:
        known = rank_evaluation.rank_task_facts(task.name, evaluation.split, task.metric_fns)
        joiner = TextJoiner(model, join, task.name, evaluation.lengths, known.truncated)
        ranked[task.name] = known, functools.partial(_open_records, task, joiner, evaluation)
    ranking.rank(
        [facts],
        evaluation.output,
        ranked,
        lengths=evaluation.lengths,
        make_scorer=lambda: model,
        make_plan=lambda tasks, scorer: SortedPlan(BatchLimits(most, most)),
        settings=chosen,
    )


@dataclasses.dataclass
class TextJoiner:
    """Makes the records of a task of its texts; `cut` counts what was too long."""

    model: Any
    join: Any
    task: str
    lengths: Mapping[str, int] | None = None
    cut: Truncation = dataclasses.field(default_factory=Truncation)

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
        if positions and not self.lengths and read > positions:
            raise UserError(
                f"task {self.task}, example {number}: input and choice have {read:,} tokens, and "
                f"the model reads {positions:,}. To cut long inputs, as their results will say: "
                f"--lengths=inputs={positions * 3 // 4},targets={positions // 4}"
            )

    def _cut(self, context: list[int], scored: list[int]) -> tuple[list[int], list[int], bool]:
        if not self.lengths:
            return context, scored, False
        self.cut.targets += len(scored) > self.lengths["targets"]
        most = self.lengths["inputs"]
        kept = context[-most:] if self.join.cut_left else context[:most]
        return kept, scored[: self.lengths["targets"]], len(context) > most


def _open_caches(evaluation: WholeEvaluation) -> None:
    """Makes the caches known to SeqIO, and checks that they are current."""
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
    most = evaluation.examples
    if evaluation.cache_dirs:
        files, _ = opening.cache_files(task, evaluation.split)
        texts = cached_records(task.name, files, sorter, examples=most)()
    else:
        texts = map(_record_of_texts, _rendered(task, evaluation.split))
        texts = (record for record in texts if not most or record.example < most)
    try:
        return sorter.sort(joiner.records(texts))
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
