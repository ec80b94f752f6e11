"""Evaluates models of the package transformers that are not a T5 with PyTorch, for `t0 eval`.

    evaluate("/models/bart", "/models/bart", WholeEvaluation("out", "bart", names))

Each task is ranked, decoded or measured, as for a T5 (`t0.evaluation.kinds`). The texts of a task
come from its cache, which also contains texts, or are rendered during the evaluation. The model's
own tokenizer converts them to token ids. So the tasks' vocabulary is not needed. The output files
have the same format as for a T5.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t0.compat import mesh_dataset, seqio, t5_preprocessors, tf, tf1, tfds
from t0.errors import UserError, original, printable
from t0.evaluation import decoding, perplexity, ranking, task_records
from t0.evaluation.batching import BatchLimits
from t0.evaluation.eval_datasets import FindRows, describe_rows, limit_examples
from t0.evaluation.kinds import DECODE, PERPLEXITY, RANK, check_kinds, check_shards, kinds_of
from t0.evaluation.ranked_examples import Truncation
from t0.evaluation.records import (
    ChoiceRecord,
    TaskRecords,
    cached_records,
    number_records,
    rendered_rows,
    sample_facts,
    text_of,
)
from t0.evaluation.results import SETTINGS
from t0.feeding import data_spec
from t0.feeding.token_files import record_batches, texts_of
from t0.measures.choice_lengths import WITHOUT_EOS
from t0.prompts.few_shot import TextMeasure
from t0.run import models
from t0.run.whole_evaluation import WholeEvaluation

_STEP = 0  # the recorded step, because the model is not a checkpoint of a run
# The maximum number of tokens of a decoded text (MAX_DECODE_LENGTH of runs/eval.gin), and of a
# window. To measure its perplexity, a long text is split into windows.
_MOST_DECODED, _MOST_MEASURED = 128, 1024
_TOKENIZED = [seqio.preprocessors.append_eos, seqio.preprocessors.append_eos_after_trim]
_AT_ONCE = 512  # the number of texts that are sorted by length and batched together


def evaluate(folder: str, source: str, evaluation: WholeEvaluation) -> None:
    """Evaluates tasks, and writes the results.

    Args:
      folder: the model's folder.
      source: the model's origin, which the results record.
      evaluation: the tasks and the settings.

    Raises:
      UserError: the model or a task cannot be read, the model cannot evaluate a task, or a text is
        longer than the model's context window.
    """
    tasks = [seqio.TaskRegistry.get(name) for name in evaluation.tasks]
    kinds = kinds_of(tasks)
    check_kinds(kinds)
    check_shards(kinds, evaluation.shard.of)
    if evaluation.lengths and len(evaluation.lengths) < len(_COLUMNS):
        raise UserError(
            f"--lengths sets only {', '.join(evaluation.lengths)}; expected both limits, such as "
            "--lengths=inputs=768,targets=256"
        )
    _open_caches(evaluation)
    run = _open_run(folder, source, evaluation)
    if evaluation.few_shot is not None:
        evaluation = evaluation.with_few_shot_tasks(text_measure(run.model, evaluation.lengths))
        run = dataclasses.replace(run, evaluation=evaluation)
        kinds = kinds_of([seqio.TaskRegistry.get(name) for name in evaluation.tasks])
    for task in kinds.get(PERPLEXITY, ()):
        run.check_measured(task)
    for kind, evaluate_tasks in ((RANK, run.rank), (PERPLEXITY, run.measure), (DECODE, run.decode)):
        if kind in kinds:
            evaluate_tasks(kinds[kind])


def _open_run(folder: str, source: str, evaluation: WholeEvaluation) -> "_Run":
    import torch

    from t0.torch import pretrained_folder, processes, transformers_model

    process = processes.World(0, 1, processes.find_device(evaluation.device))
    activations = models.activation_type(evaluation.activations, evaluation.device)
    batch_tokens = evaluation.batch_tokens or ranking.MAX_TOKENS[process.device_kind]
    pretrained = pretrained_folder.PretrainedFolder(folder)
    if evaluation.join and pretrained.is_encoder_decoder:
        raise UserError(
            f"--join={evaluation.join} is for decoder-only models. {folder} is an encoder-decoder, "
            "which reads input and choice separately: leave the flag out"
        )
    join = transformers_model.JOINS[evaluation.join or "lm-eval"]
    model = transformers_model.TransformersModel(
        pretrained, process, getattr(torch, activations), batch_tokens, join
    )
    kind, joined = pretrained.config.model_type, model.join.description
    print(f"{source}: {kind}, joined as {joined}", file=sys.stderr)
    facts = {
        "name": evaluation.name,
        "model_dir": folder,
        "step": _STEP,
        "source": source,
        "engine": f"torch, transformers {pretrained_folder.import_transformers().__version__}",
        "model_type": kind,
        "joined": joined,
        "dtype": activations,
        SETTINGS: model.folder.settings_sha256,
        **sample_facts(evaluation.examples),
        **(evaluation.few_shot.facts() if evaluation.few_shot else {}),
    }
    return _Run(evaluation, model, batch_tokens, facts)


def text_measure(model: Any, lengths: Mapping[str, int] | None) -> TextMeasure:
    """Returns how texts are measured in a model's tokens.

    Args:
      model: the `TransformersModel`.
      lengths: the limits in tokens. The context window, which a decoder-only model fills with the
        input and the longest choice, is always a limit also.
    """

    def fits(inputs: str, answers: Sequence[str]) -> bool:
        encoded = [model.encode(inputs, answer) for answer in answers]
        return all(
            not model.excess(len(context), len(scored))
            and (lengths is None or len(context) <= lengths["inputs"])
            for context, scored in encoded
        )

    return TextMeasure(lambda text: len(model.encode(text, "")[0]), fits)


@dataclasses.dataclass(frozen=True)
class _Run:
    """An evaluation of tasks, together with the model.

    Attributes:
      evaluation: the tasks and the settings.
      model: the `TransformersModel`.
      batch_tokens: the maximum number of tokens in a batch.
      facts: the facts that are recorded in the results of every kind of evaluation.
    """

    evaluation: WholeEvaluation
    model: Any
    batch_tokens: int
    facts: Mapping[str, Any]

    def rank(self, tasks: Sequence[seqio.Task]) -> None:
        """Ranks the answer choices of tasks."""
        evaluation, model = self.evaluation, self.model
        settings = ranking.RankEvaluationSettings(
            dtype=self.facts["dtype"],
            shard_id=evaluation.shard.id,
            num_shards=evaluation.shard.of,
            max_truncated_targets_share=1.0,
            decode_answers=evaluation.decode_answers,
        )
        facts = ranking.run_facts(
            self.facts["model_dir"],
            model.folder.fingerprint,
            settings,
            split=evaluation.split,
            lengths=evaluation.lengths,
            vocabulary=model.folder.vocabulary,
            reading={"use_cached": bool(evaluation.cache_dirs)},
        )
        if model.folder.is_encoder_decoder:
            facts["inputs_eos"] = model.folder.tokenizer.eos_token_id in model.encode("a", "a")[0]
        else:
            facts["normalisation"] = WITHOUT_EOS
        ranked = {}
        for task in tasks:
            task_facts = task_records.rank_task_facts(task.name, evaluation.split, task.metric_fns)
            joiner = TextJoiner(model, task.name, evaluation.lengths, task_facts.truncated)
            read_records = functools.partial(_read_records, task, joiner, evaluation)
            ranked[task.name] = task_facts, read_records
        limits = BatchLimits(self.batch_tokens, self.batch_tokens)
        ranking.rank(
            [{**facts, **self.facts}],
            evaluation.output,
            ranked,
            lengths=evaluation.lengths,
            open_model=lambda ability, **options: model,
            limits=lambda model: limits,
            settings=settings,
            make_decoder=lambda: model,
        )

    def measure(self, tasks: Sequence[seqio.Task]) -> None:
        """Measures the nats per target token of tasks."""
        lengths = self.evaluation.lengths
        perplexity.measure(
            {task.name: functools.partial(self._measured_batches, task) for task in tasks},
            self.model,
            checkpoints={_STEP: self.facts["model_dir"]},
            folder=self.evaluation.output,
            facts={
                **self.facts,
                **self.model.folder.vocabulary,
                "split": self.evaluation.split,
                "sequence_length": dict(lengths) if lengths else None,
            },
        )

    def check_measured(self, task: seqio.Task) -> None:
        """Raises a UserError if a task's examples are not texts. The model can only read texts."""
        steps = _steps_of_ids(task)
        has_documents = steps == [t5_preprocessors.full_lm]
        if not steps or (has_documents and not self.model.folder.is_encoder_decoder):
            return
        raise UserError(
            f"task {task.name} makes its examples from T5's tokens, or has no inputs, which an "
            "encoder-decoder needs. Leave it out of --tasks, or measure a task whose inputs and "
            "targets are texts"
        )

    def _measured_batches(self, task: seqio.Task) -> Iterator[tuple[dict[str, np.ndarray], int]]:
        """Yields batches of padded ids plus 1, each with the number of examples that end in it."""
        model, evaluation = self.model, self.evaluation
        texts = _read_texts(task, evaluation)
        if _steps_of_ids(task):
            most = (evaluation.lengths or {}).get("targets", _MOST_MEASURED)
            most = min(most, model.folder.decoder.positions or most)
            records = (
                _with_ids(record._replace(choice=number), *window)
                for record in texts
                for number, window in enumerate(model.encode_windows(record.text, most))
            )
        else:
            records = TextJoiner(model, task.name, evaluation.lengths).records(texts)
        while pool := list(itertools.islice(records, _AT_ONCE)):
            pool.sort(key=lambda record: len(record.inputs) + len(record.targets))
            while pool:
                longest = len(pool[-1].inputs) + len(pool[-1].targets)
                rows = max(1, self.batch_tokens // longest)
                batch, pool = pool[-rows:], pool[:-rows]
                arrays = {name: _pad([getattr(r, name) for r in batch]) for name in _COLUMNS}
                yield arrays, sum(record.choice == 0 for record in batch)

    def decode(self, tasks: Sequence[seqio.Task]) -> None:
        """Decodes tasks, and computes their metrics."""
        evaluation = self.evaluation
        by_name = {task.name: task for task in tasks}

        def find_rows(name: str) -> FindRows | None:
            cached = bool(evaluation.cache_dirs)
            return data_spec.find_rows(by_name[name], evaluation.split, use_cached=cached)

        facts = {name: value for name, value in self.facts.items() if name != "step"}
        texts = decoding.TextEvaluation(
            evaluation.output,
            {"split": evaluation.split, **facts},
            evaluation.lengths,
            count_tokens=self._count_tokens,
            rows_of=lambda name: describe_rows(find_rows(name), evaluation.examples),
        )
        datasets = [
            mesh_dataset.EvalDataset(
                task.name,
                functools.partial(_text_dataset, task, evaluation),
                task.postprocess_fn,
                task.metric_fns,
            )
            for task in tasks
        ]
        datasets = [
            limit_examples(each, evaluation.examples, find_rows(each.name)) for each in datasets
        ]
        decoding.evaluate(datasets, [(_STEP, self.facts["model_dir"])], self._decode_tasks, texts)

    def _decode_tasks(
        self, tasks: Sequence[decoding.DecodedTask], checkpoint: str
    ) -> Iterator[str]:
        self.model.restore(checkpoint)
        self.model.check_decoding()
        lengths = self.evaluation.lengths
        most = min(_MOST_DECODED, lengths["targets"]) if lengths else _MOST_DECODED
        for task in tasks:
            texts = [text_of(example["inputs_pretokenized"]) for example in task.examples]
            for first in range(0, len(texts), _AT_ONCE):
                contexts = [self.model.encode(text, "")[0] for text in texts[first:][:_AT_ONCE]]
                if lengths:
                    contexts = [self.model.truncate(ids, lengths["inputs"]) for ids in contexts]
                yield from self.model.decode([np.array(ids) + 1 for ids in contexts], most)

    def _count_tokens(self, feature: str, text: str) -> int:
        inputs, targets = self.model.encode(text, text)
        return len(inputs if feature == "inputs" else targets)


_COLUMNS = ("inputs", "targets")


@dataclasses.dataclass
class TextJoiner:
    """Converts a task's texts to token ids, and counts truncated texts in `cut`."""

    model: Any
    task: str
    lengths: Mapping[str, int] | None = None
    cut: Truncation = dataclasses.field(default_factory=Truncation)

    def records(self, texts: Iterator[ChoiceRecord]) -> Iterator[ChoiceRecord]:
        """Yields records with the ids of input and choice. Each id is the tokenizer's id plus 1."""
        example = None
        for record in texts:
            try:
                context, scored, cut = self._join(record)
            except UserError as error:
                raise UserError(f"task {self.task}, example {record.example}: {error}") from error
            self.cut.inputs += cut and record.example != example
            example = record.example if cut else example
            yield _with_ids(record, context, scored)

    def _join(self, record: ChoiceRecord) -> tuple[list[int], list[int], bool]:
        """Returns the ids of input and choice, and whether the input was truncated."""
        whole, scored = self.model.encode(record.input_text, record.text)
        context = whole
        if self.lengths:
            context = self.model.truncate(whole, self.lengths["inputs"])
            self.cut.targets += len(scored) > self.lengths["targets"]
            scored = scored[: self.lengths["targets"]]
        if not context or not scored:
            empty = f"the choice {record.text!r:.60}" if context else "the input"
            raise UserError(f"{empty} has no separate token, so there is nothing to score")
        if excess := self.model.excess(len(context), len(scored)):
            raise UserError(f"input and choice have {excess}")
        return context, scored, len(context) < len(whole)


def _with_ids(record: ChoiceRecord, context: list[int], scored: list[int]) -> ChoiceRecord:
    ids = {"inputs": np.array(context, np.int32) + 1, "targets": np.array(scored, np.int32) + 1}
    return record._replace(**ids)


def _pad(rows: Sequence[np.ndarray]) -> np.ndarray:
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def _steps_of_ids(task: seqio.Task) -> list[Any]:
    """Returns a task's preprocessing steps that change its token ids after tokenization."""
    _, after = _split_steps(task)
    return [
        getattr(step, "func", step)
        for step in after
        if step not in _TOKENIZED and not isinstance(step, seqio.CacheDatasetPlaceholder)
    ]


def _split_steps(task: seqio.Task) -> tuple[list[Any], list[Any]]:
    """Returns a task's preprocessing steps before tokenization and those after tokenization."""
    steps = list(task.preprocessors)
    if seqio.preprocessors.tokenize not in steps:
        raise UserError(
            f"task {task.name} does not tokenize with seqio.preprocessors.tokenize: cache it "
            "(seqio_cache_tasks), and set the folder with --additional_task_cache_dirs"
        )
    index = steps.index(seqio.preprocessors.tokenize)
    return steps[:index], steps[index + 1 :]


def _open_caches(evaluation: WholeEvaluation) -> None:
    """Registers the caches with SeqIO, and checks that all of them are current."""
    if evaluation.cache_dirs:
        seqio.add_global_cache_dirs(list(evaluation.cache_dirs))
        flags = {"module_import": evaluation.modules, "data_dir": evaluation.data_dirs}
        for note in data_spec.require_current(
            evaluation.tasks, settings=flags, allow_stale=evaluation.allow_stale_cache
        ):
            print(printable(note), file=sys.stderr)


def _read_records(
    task: seqio.Task, joiner: TextJoiner, evaluation: WholeEvaluation, by_row: bool
) -> TaskRecords:
    joiner.model.restore(str(joiner.model.folder.path))  # checks the model before data is read
    if evaluation.decode_answers:
        joiner.model.check_decoding()
    split = evaluation.split
    options = {"examples": evaluation.examples, "by_row": by_row}
    if evaluation.cache_dirs:
        read = cached_records(task.name, data_spec.cache_files(task, split)[0], **options)
    elif task_records.has_choices(task):
        rendered = rendered_rows(task.source, split, **options)
        rows = task.source.open(split).num_rows if by_row else None
        read = TaskRecords(_choices_in(rendered), rows)
    else:
        find = data_spec.find_rows(task, split, use_cached=False) if by_row else None
        rendered = map(_make_text_record, _render_records(task, split))
        read = number_records(rendered, find and find(), **options)
    return read._replace(records=_joined(joiner, read.records))


def _joined(joiner: TextJoiner, texts: Iterator[ChoiceRecord]) -> Iterator[ChoiceRecord]:
    try:
        yield from joiner.records(texts)
    except tf.errors.OpError as error:
        raise original(error) from error


def _choices_in(rendered: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[ChoiceRecord]:
    """Yields a prompted task's records without TensorFlow, which would take a second per task."""
    for number, row in rendered:
        for choice, text in enumerate(row["answer_choices"] or ()):
            fields = {"is_correct": text == row["targets"], "document": row.get("document")}
            yield _text_record(number, row, choice=choice, text=text, **fields)


def _make_text_record(features: Mapping[str, Any]) -> ChoiceRecord:
    example, choice = map(int, features["idx"])
    document = text_of(features["document"]) if "document" in features else None
    fields = {"is_correct": bool(features["is_correct"]), "document": document}
    return _text_record(example, features, choice=choice, **fields)


def _text_record(example: int, features: Mapping[str, Any], **fields: Any) -> ChoiceRecord:
    """Returns the record of a choice whose texts are not tokenized yet."""
    no_ids = np.zeros(0, np.int32)
    input_text, text = text_of(features.get("inputs") or ""), text_of(features["targets"])
    record = ChoiceRecord(example, 0, no_ids, no_ids, True, text, input_text, None)
    return record._replace(**fields)


def _read_texts(task: seqio.Task, evaluation: WholeEvaluation) -> Iterator[ChoiceRecord]:
    """Yields the inputs and targets of a task as texts."""
    texts: Iterator[Mapping[str, Any]]
    if evaluation.cache_dirs:
        files, _ = data_spec.cache_files(task, evaluation.split)
        texts = (text for file in files for text in _cached_texts(task.name, file))
    else:
        texts = _render_records(task, evaluation.split)
    for number, features in enumerate(itertools.islice(texts, evaluation.examples)):
        yield _text_record(number, features)


def _cached_texts(task: str, file: str) -> Iterator[Mapping[str, Any]]:
    for records in record_batches(file):
        columns = texts_of(records, [f"{name}_pretokenized" for name in _COLUMNS])
        if None in columns["targets_pretokenized"]:
            raise UserError(
                f"{file}: the cache of task {task} has no texts (targets_pretokenized), which this "
                "model's tokenizer needs: leave out --additional_task_cache_dirs"
            )
        yield from (
            dict(zip(_COLUMNS, row, strict=True)) for row in zip(*columns.values(), strict=True)
        )


def _text_dataset(task: seqio.Task, evaluation: WholeEvaluation) -> tf.data.Dataset:
    """Returns the records of a task that is evaluated by decoding, with their texts."""
    if evaluation.cache_dirs:
        return task.get_dataset(None, evaluation.split, use_cached=True, shuffle=False)
    return _render_dataset(task, evaluation.split).map(
        lambda record: record | {f"{name}_pretokenized": record[name] for name in _COLUMNS}
    )


def _render_records(task: seqio.Task, split: str) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a task before they are tokenized."""
    with tf1.Graph().as_default():
        yield from tfds.as_numpy(_render_dataset(task, split))


def _render_dataset(task: seqio.Task, split: str) -> tf.data.Dataset:
    records = task.source.get_dataset(split, shuffle=False)
    return task._preprocess_dataset(records, _split_steps(task)[0])
