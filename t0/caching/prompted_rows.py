"""Renders and tokenizes ranges of rows, for all prompted tasks that use the rows.

    renderer = Renderer(model, eos_id=1)
    render_rows(RowRange("super_glue", "rte", "train", 0, 500, prompts, "/out/parts..."), renderer)
    # {"super_glue_rte_GPT_3_style": {"start": 0, "stop": 500, "kept": 500, "records": 500, ...},
    #  "super_glue_rte_GPT_3_style_score_eval": {...}}

Each row is read once for all tasks. A template is rendered once for its two tasks, the plain task
and the rank-evaluation task. The inputs of a row are tokenized once for both tasks and all choices.
Targets that repeat, such as labels, are tokenized once. Each part contains its own counts, so that
a later run can use the part without parsing its records.

This module does not import TensorFlow, so a worker needs much less memory. The decoded records
equal those of the tasks' preprocessors (`t0.tasks.prompted_tasks`), and have the same order. SeqIO
tokenizes with `tf_text.SentencepieceTokenizer`, but this module tokenizes with
`t0.caching.tokenizing`. With the same model, both give the same ids, because both call the library
SentencePiece.

T0 has two kinds of record. A plain task has one record for each row. A task for rank evaluation has
one record for each choice of a row. In some datasets, several rows share a document, such as the
passage that their questions are about. In these datasets, the record of a choice also has the
feature `document`, a hash of the document (`t0.sources.documents`). SentencePiece never returns the
ids of padding and EOS (0 and 1) for a text, because the pieces 0 and 1 of the vocabulary are
control pieces, which match no text.
"""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from t0 import sources
from t0.caching import parts, record_rows
from t0.caching.split_state import PartInfo, SplitSpec
from t0.caching.tokenizing import Tokenizer
from t0.catalogue.exemplars import ExemplarTask, FewShotPrompts
from t0.catalogue.row_preview import T0_LENGTHS
from t0.catalogue.sentence_pieces import UnknownCharacters
from t0.errors import UserError
from t0.files import OutputError, paths, tf_examples, tfrecord
from t0.prompts import (
    NO_LABEL,
    Example,
    PreparedRow,
    RowReport,
    Template,
    compile_template,
    prepared,
)
from t0.prompts.few_shot import FewShotPrompt, TextMeasure
from t0.prompts.row_report import EQUAL_TOKENS, UNKNOWN

# Number of rows that are rendered and tokenized together. SentencePiece is faster with large
# batches, but they need more memory.
ROWS_AT_ONCE = 256
MEMO_ENTRIES = 20_000

_WEIGHT = tf_examples.float_entry("weight", 1.0)
# The id of the unknown token, 2, as a varint. The regex does not match a byte 2 that ends a longer
# varint. It begins with the byte, because `re` then skips all others quickly.
_UNKNOWN_ID = re.compile(rb"\x02(?<![\x80-\xff]\x02)")
_CORRECT = [tf_examples.ints_entry("is_correct", [value]) for value in (0, 1)]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A template, and the splits of tasks that share its rendered text.

    Attributes:
      template: the template.
      seed_name: the name that seeds the template's random choices.
      specs: the splits of its tasks.
      few_shot: the task whose exemplars stand before the inputs; None for zero-shot prompts.
    """

    template: Template
    seed_name: str
    specs: tuple[SplitSpec, ...]
    few_shot: ExemplarTask | None = None


@dataclasses.dataclass(frozen=True)
class RowRange:
    """A job: rows of one split of a dataset, and the prompts to render them with.

    Attributes:
      dataset: the dataset's name.
      subset: the subset's name, or None.
      split: the split's name.
      start: the number of the first row.
      stop: the number after the last row.
      prompts: the prompts.
      directory: the directory of the parts.
    """

    dataset: str
    subset: str | None
    split: str
    start: int
    stop: int
    prompts: tuple[Prompt, ...]
    directory: str

    def __str__(self) -> str:
        name = f"{self.dataset}/{self.subset}" if self.subset else self.dataset
        return f"{name} split '{self.split}', rows {self.start} to {self.stop}"

    @property
    def specs(self) -> list[SplitSpec]:
        """The task splits of all prompts, for which these rows are rendered."""
        return [spec for prompt in self.prompts for spec in prompt.specs]

    def only(self, specs: Sequence[SplitSpec]) -> "RowRange":
        """Returns a job for the same rows that renders them only for the given task splits."""
        prompts = [
            dataclasses.replace(prompt, specs=tuple(s for s in prompt.specs if s in specs))
            for prompt in self.prompts
        ]
        return dataclasses.replace(self, prompts=tuple(p for p in prompts if p.specs))


class Encoded(NamedTuple):
    """A tokenized text.

    Attributes:
      entries: the serialized entries of a record for this text: the text's ids and the text itself.
      size: the number of its tokens, without EOS.
      ids: the ids of its tokens as varints, without EOS.
      has_unknown: whether the vocabulary maps a part of the text to its unknown token.
    """

    entries: bytes
    size: int
    ids: bytes
    has_unknown: bool


class Renderer:
    """The state that a process shares between ranges: tokenizer, templates and tokenized targets.

    Args:
      model: the SentencePiece model.
      eos_id: the id of EOS.
    """

    def __init__(self, model: bytes, eos_id: int) -> None:
        self.tokenizer = Tokenizer(model, eos_id)
        self.characters = UnknownCharacters(
            lambda character: bool(
                _UNKNOWN_ID.search(self.tokenizer.encode([character.encode()])[0][0])
            )
        )
        # Whether targets end in EOS -> text -> the tokenized text.
        self._targets: dict[bool, dict[str, Encoded]] = {False: {}, True: {}}
        # The rows of a split stay open until another split is opened.
        self.open_split = functools.lru_cache(1)(sources.open_split)
        self._exemplar_rows = functools.lru_cache(1)(
            lambda *data: list(sources.open_split(*data).rows())
        )
        self._few_shot: dict[Any, FewShotPrompts] = {}  # those of one dataset
        self._count = functools.lru_cache(MEMO_ENTRIES)(
            lambda text: self.tokenizer.encode([text.encode()])[0][1]
        )
        # The joined texts that were measured, so that they are not tokenized again.
        self._measured: dict[bytes, tuple[bytes, int]] = {}

    def few_shot(self, task: ExemplarTask) -> FewShotPrompts:
        """Returns what puts exemplars before the inputs of a task's rows."""
        key = task.data, task.seed_name, task.few_shot, task.order
        if key not in self._few_shot:
            if any(data != task.data for data, *_ in self._few_shot):
                self._few_shot.clear()
            fits = functools.partial(self._fits, task.few_shot.settings.length)
            self._few_shot[key] = FewShotPrompts(
                task,
                task.few_shot,
                lambda: self._exemplar_rows(*task.data),
                TextMeasure(self._count, fits),
                lambda split: np.frombuffer(paths.read_bytes(task.order), np.int32),
            )
        return self._few_shot[key]

    def forget_measured(self) -> None:
        """Forgets the tokens of the joined texts that were measured."""
        self._measured.clear()

    def _fits(self, length: int | None, inputs: str, answers: Sequence[str]) -> bool:
        del answers
        text = inputs.encode()
        if text not in self._measured:
            self._measured[text] = self.tokenizer.encode([text])[0]
        return length is None or self._measured[text][1] <= length

    def inputs(self, texts: Sequence[str], eos: bool) -> list[Encoded]:
        """Tokenizes texts into entries `inputs` and `inputs_pretokenized`.

        Args:
          eos: whether to end the ids with EOS.
        """
        return self._encode("inputs", [text.encode() for text in texts], eos)

    def targets(self, texts: Sequence[str], eos: bool) -> Mapping[str, Encoded]:
        """Tokenizes texts into entries `targets` and `targets_pretokenized`.

        Args:
          texts: the texts. Texts that are still in memory are not tokenized again.
          eos: whether to end the ids with EOS.

        Returns:
          text -> the tokenized text, for all texts in memory.
        """
        memo = self._targets[eos]
        new = [text for text in dict.fromkeys(texts) if text not in memo]
        if len(memo) + len(new) > MEMO_ENTRIES:
            memo.clear()
            new = list(dict.fromkeys(texts))
        if new:
            made = self._encode("targets", [text.encode() for text in new], eos)
            memo.update(zip(new, made, strict=True))
        return memo

    def _encode(self, name: str, texts: Sequence[bytes], eos: bool) -> list[Encoded]:
        end = self.tokenizer.eos if eos else b""
        packed_entry, bytes_entry = tf_examples.packed_entry, tf_examples.bytes_entry
        pretokenized = f"{name}_pretokenized"
        return [
            Encoded(
                packed_entry(name, ids + end) + bytes_entry(pretokenized, (text,)),
                count,
                ids,
                bool(_UNKNOWN_ID.search(ids)),
            )
            for text, (ids, count) in zip(texts, self._tokenize(texts), strict=True)
        ]

    def _tokenize(self, texts: Sequence[bytes]) -> Sequence[tuple[bytes, int]]:
        if not self._measured:
            return self.tokenizer.encode(texts)
        return [self._measured.get(text) or self.tokenizer.encode([text])[0] for text in texts]


class _Row(NamedTuple):
    """What the records of a row contain besides the texts that a template rendered.

    Attributes:
      number: the number of the row in its split.
      hidden: whether its label is withheld.
      document: the serialized entry `document` of the row's records; empty if the records have no
        such entry.
      few_shot: whether the prompts are few-shot.
      prompt: the row's few-shot prompt; None if there is none.
    """

    number: int
    hidden: bool
    document: bytes
    few_shot: bool = False
    prompt: FewShotPrompt | None = None


# Rows, and the examples that a template rendered from them.
_Kept = Sequence[tuple[_Row, Example]]


class _TaskRecords:
    """Writes the records of one task for a range of rows, and counts them.

    Args:
      spec: the task's split.
      writer: the writer of the part.
      start: the number of the first row of the range.
    """

    def __init__(self, spec: SplitSpec, writer: parts.PartWriter, start: int) -> None:
        self.spec = spec
        self._writer = writer
        self._start = start
        self._kept = 0
        self._rows: list[int] = []
        self._tokens = {"inputs": 0, "targets": 0}
        self._longest = {"inputs": 0, "targets": 0}
        self._over = {"inputs": 0, "targets": 0}
        self._truncated = {"inputs": 0, "targets": 0}
        self._unknown: Counter[str] = Counter()
        self.report = RowReport(
            hide_labels=spec.hide_labels,
            ranked=spec.choices,
            drops_unlabelled=not spec.keeps_unlabelled,
        )

    def add(self, kept: _Kept, inputs: Sequence[Encoded], renderer: Renderer) -> None:
        """Writes the records of the next rows.

        Args:
          kept: the rows that the template renders, and their examples.
          inputs: the tokenized inputs of these rows.
          renderer: the renderer, which tokenizes the targets.
        """
        texts = [self._target(row, ex) for row, ex in kept]
        # A row without a target has the text None, and is dropped.
        selected = [[*itertools.compress(each, texts)] for each in (kept, inputs, texts)]
        self._rows += [row.number for row, _ in selected[0]]
        for (_, ex), encoded in zip(*selected[:2], strict=True):
            if encoded.has_unknown:
                renderer.characters.count(ex.inputs, self._unknown)
        frames = self._choices if self.spec.choices else self._plain
        self._writer.append(frames(*selected, renderer))

    def _target(self, row: _Row, example: Example) -> str | None:
        target = self.report.target(example, row.hidden, row.number)
        if target is None or not row.few_shot:
            return target
        return target if self.report.count_exemplars(row.prompt, row.number) else None

    def _plain(
        self, kept: _Kept, inputs: Any, texts: Sequence[str], renderer: Renderer
    ) -> list[bytes]:
        eos = self.spec.eos[1]
        targets = renderer.targets(texts, eos)
        frames = []
        for (row, ex), encoded, text in zip(kept, inputs, texts, strict=True):
            target = targets[text]
            if target.has_unknown and text != NO_LABEL:
                self.report.count(UNKNOWN, row.number)
            entries = encoded.entries + target.entries
            if self.spec.answer_choices:
                entries = _encode_choices(tuple(ex.choices)) + entries
            frames.append(tfrecord.framed(tf_examples.example(entries)))
        self._count_sizes("inputs", [encoded.size for encoded in inputs])
        self._count_sizes("targets", [targets[text].size for text in texts])
        self._kept += len(kept)
        return frames

    def _choices(
        self, kept: _Kept, inputs: Any, texts: Sequence[str], renderer: Renderer
    ) -> list[bytes]:
        eos = self.spec.eos[1]
        targets = renderer.targets([c for _, ex in kept for c in ex.choices or ()], eos)
        framed, example, ints_entry = tfrecord.framed, tf_examples.example, tf_examples.ints_entry
        frames, inputs_sizes, targets_sizes = [], [], []
        rows = zip(kept, inputs, texts, strict=True)
        for ((index, _, document, *_), ex), encoded, target in rows:
            choices = ex.choices or ()
            # This number is only right if no row before the range was dropped. Otherwise,
            # `cache_files.join_parts` corrects it.
            row = self._start + self._kept
            before_number = ints_entry("idx", (row, 0))[:-1]  # the number's varint is the last byte
            encoded_choices = [targets[choice] for choice in choices]
            for number, (choice, encoded_choice) in enumerate(
                zip(choices, encoded_choices, strict=True)
            ):
                # For numbers that need more than one byte, the sizes in the entry differ.
                small = number < 128
                idx = (
                    before_number + bytes((number,)) if small else ints_entry("idx", (row, number))
                )
                correct, last = _CORRECT[choice == target], encoded_choice.entries + _WEIGHT
                body = b"".join((idx, document, encoded.entries, correct, last))
                frames.append(framed(example(body)))
            self._count_tokens(
                index, encoded_choices, choices.index(target) if target in choices else None
            )
            inputs_sizes += [encoded.size] * len(choices)
            targets_sizes += [choice.size for choice in encoded_choices]
            self._kept += 1
        self._count_sizes("inputs", inputs_sizes)
        self._count_sizes("targets", targets_sizes)
        return frames

    def _count_tokens(self, index: int, choices: Sequence[Encoded], right: int | None) -> None:
        """Counts a row if its choices have unknown or ambiguous tokens.

        Tokens are ambiguous if a wrong choice has the same tokens as the right choice.

        Args:
          index: the number of the row.
          choices: its tokenized choices.
          right: the index of the target among the choices; None if it is not among them.
        """
        if True in [choice.has_unknown for choice in choices]:
            self.report.count(UNKNOWN, index)
        if right is not None and [c.ids for c in choices].count(choices[right].ids) > 1:
            self.report.count(EQUAL_TOKENS, index)

    def _count_sizes(self, name: str, sizes: Sequence[int]) -> None:
        """Counts the tokens without EOS of one feature ("inputs" or "targets") of records."""
        self._tokens[name] += sum(sizes)
        self._longest[name] = max(self._longest[name], max(sizes, default=0))
        is_target = name == "targets"
        limits = (self._over, T0_LENGTHS[name]), (self._truncated, self.spec.lengths[is_target])
        for counts, length in limits:
            most = length - self.spec.eos[is_target]
            counts[name] += sum([size > most for size in sizes])

    def finish(self, stop: int) -> dict[str, Any]:
        """Completes the part, and returns its counts. `stop` is the number after the last row."""
        return self._writer.finish(
            {
                "start": self._start,
                "stop": stop,
                "kept": self._kept,
                record_rows.MASK: record_rows.pack_rows(self._rows, self._start, stop),
                **self.report.totals(),
                "tokens": self._tokens,
                "max_tokens": self._longest,
                "over": self._over,
                "truncated": self._truncated,
                "unknown": self._unknown,
            }
        )


def render_rows(
    job: RowRange, renderer: Renderer, count: Callable[[int], None] = lambda rows: None
) -> dict[str, PartInfo | str]:
    """Writes the parts of a range of rows.

    Args:
      job: the rows and their prompts.
      renderer: the shared state of this process.
      count: a function that is called with the number of rows that were rendered since the last
        call. A row counts once for each task.

    Returns:
      task -> the counts of its part. If the task's template fails on a row, task -> the error
      message.

    Raises:
      UserError: if the rows cannot be read.
      OutputError: if the parts cannot be written.
    """
    results: dict[str, PartInfo | str] = {}
    with ExitStack() as stack:
        outputs = {prompt: _open_parts(prompt, job, stack) for prompt in job.prompts}
        column = next((spec.document for spec in job.specs if spec.document), None)
        for rows in _batches(job, renderer.open_split(job.dataset, job.subset, job.split)):
            raw = [
                _Row(
                    index,
                    sources.hidden_label(job.dataset, row),
                    _encode_document(row[column]) if column else b"",
                )
                for index, row in rows
            ]
            ready = [(a, prepared(row), row) for a, (_, row) in zip(raw, rows, strict=True)]
            for prompt in [*outputs]:
                try:
                    _render(prompt, outputs[prompt], ready, renderer)
                except UserError as error:
                    if isinstance(error, OutputError):
                        raise
                    results.update(
                        {output.spec.split.task: str(error) for output in outputs[prompt]}
                    )
                    del outputs[prompt]
            count(len(rows) * len(job.specs))
        for output in (output for several in outputs.values() for output in several):
            results[output.spec.split.task] = output.finish(job.stop)
    return results


@functools.lru_cache(1024)
def _encode_choices(choices: tuple[str, ...]) -> bytes:
    return tf_examples.bytes_entry("answer_choices", [choice.encode() for choice in choices])


def _encode_document(document: Any) -> bytes:
    key = sources.document_key(document)
    return tf_examples.bytes_entry("document", [key.encode()])


def _open_parts(prompt: Prompt, job: RowRange, stack: ExitStack) -> list[_TaskRecords]:
    outputs = []
    for spec in prompt.specs:
        name = parts.part_name(spec.key, job.start, job.stop)
        writer = stack.enter_context(parts.PartWriter(job.directory, name))
        outputs.append(_TaskRecords(spec, writer, job.start))
    return outputs


def _batches(
    job: RowRange, split: sources.SplitRows
) -> Iterator[list[tuple[int, Mapping[str, Any]]]]:
    numbered = enumerate(split.rows(job.start, job.stop), start=job.start)
    expected = job.start
    while batch := list(itertools.islice(numbered, ROWS_AT_ONCE)):
        expected += len(batch)
        yield batch
    if expected != job.stop:
        raise UserError(
            f"{split.where} ends at row {expected}, but {job.stop} were counted when the run "
            "began. Has it changed since? Start the same command again"
        )


def _render(
    prompt: Prompt,
    outputs: Sequence[_TaskRecords],
    rows: Sequence[tuple[_Row, PreparedRow, Mapping[str, Any]]],
    renderer: Renderer,
) -> None:
    compiled = compile_template(prompt.template, prompt.seed_name)
    for output in outputs:
        output.report.count_answers(compiled.fixed_choices)
    few_shot = prompt.few_shot and renderer.few_shot(prompt.few_shot)
    try:
        rendered = []
        for raw, row, columns in rows:
            example = compiled.example(row, raw.number)
            if example is None:
                for output in outputs:
                    output.report.target(None, raw.hidden, raw.number)
            elif few_shot:
                made = few_shot.prompt(prompt.few_shot.split, raw.number, columns, example)
                inputs = made.inputs if made else example.inputs
                raw = raw._replace(few_shot=True, prompt=made)
                rendered.append((raw, dataclasses.replace(example, inputs=inputs)))
            else:
                rendered.append((raw, example))
        entries = {
            eos: renderer.inputs([example.inputs for _, example in rendered], eos)
            for eos in {output.spec.eos[0] for output in outputs}
        }
        for output in outputs:
            output.add(rendered, entries[output.spec.eos[0]], renderer)
    except UnicodeEncodeError as error:
        raise UserError(
            f"template '{prompt.template.name}' renders text that is not Unicode, in rows "
            f"{rows[0][0].number} to {rows[-1][0].number}: {error}"
        ) from error
    finally:
        renderer.forget_measured()
