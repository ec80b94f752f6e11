"""Renders and tokenises a range of a dataset's rows, for all of its tasks at once.

    engine = Engine(model, eos_id=1)
    render_range(Range("super_glue", "rte", "train", 0, 500, prompts, "/out/parts..."), engine)
    # {"super_glue_rte_GPT_3_style": {"start": 0, "stop": 500, "kept": 500, "records": 500, ...},
    #  "super_glue_rte_GPT_3_style_score_eval": {...}}

Each row is read once. A template is rendered once for its plain and its rank-evaluation task, and
the inputs are tokenised once for both and for all of a row's choices; a text that comes again
(labels, the words of a choice) is looked up. What is counted goes into the part, so that a run that
takes it over knows all that the first one knew.

Nothing here imports TensorFlow: a worker takes a fraction of the memory without it. The records
decode to those of the tasks' own preprocessors (`t0.tasks.prompted_tasks`), in the same order.

Assumes the seven features of T0's two kinds of record, and token ids without EOS and padding among
them (the vocabulary's pieces 0 and 1 are control pieces, which no text gives).
"""

import copy
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from t0 import sources
from t0.caching import parts, records
from t0.caching.tokenizer import Tokenizer
from t0.caching.unit import LONGEST, Unit
from t0.errors import UserError
from t0.files import OutputError, tf_examples, tfrecord
from t0.prompts import CompiledTemplate, Example, RowReport, Template

# Rows that are rendered and tokenised together: enough for SentencePiece's batches, few in memory.
ROWS_AT_ONCE = 256
MEMO_ENTRIES = 20_000

_WEIGHT = tf_examples.float_entry("weight", 1.0)
_CORRECT = [tf_examples.ints_entry("is_correct", [value]) for value in (0, 1)]
# Templates that call one of these may change a list inside the row, which others read, too.
_CHANGES = re.compile(
    r"\b(append|extend|insert|pop|popitem|remove|clear|sort|reverse|update|setdefault|attr)\b"
)


@dataclasses.dataclass(frozen=True)
class Output:
    """What one task makes of a rendered row.

    Attributes:
      choices: one record for each answer choice (rank evaluation), else one for the row.
      hide_labels: see `t0.tasks.prompted_tasks.PromptedSource`.
      eos: whether inputs and targets end in EOS.
      answer_choices: whether the records of a row carry its choices.
      key: all that the records depend on, besides the row: see `parts.part_name`.
    """

    unit: Unit
    choices: bool
    hide_labels: bool
    eos: tuple[bool, bool]
    answer_choices: bool
    key: str


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A template and the tasks that share its rendering."""

    template: Template
    seed_name: str
    outputs: tuple[Output, ...]

    @functools.cached_property
    def changes_rows(self) -> bool:
        """Whether the template may change a list inside its row."""
        return bool(_CHANGES.search(f"{self.template.jinja} {self.template.answer_choices}"))


@dataclasses.dataclass(frozen=True)
class Range:
    """A unit of work: rows of one split of a dataset, and the prompts to render them with.

    Attributes:
      start, stop: the rows' numbers in the split.
      directory: where the parts go.
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
    def outputs(self) -> list[Output]:
        """The outputs of all prompts."""
        return [output for prompt in self.prompts for output in prompt.outputs]

    def only(self, outputs: Sequence[Output]) -> "Range":
        """Returns the range with these of its outputs."""
        prompts = [
            dataclasses.replace(prompt, outputs=tuple(o for o in prompt.outputs if o in outputs))
            for prompt in self.prompts
        ]
        return dataclasses.replace(self, prompts=tuple(p for p in prompts if p.outputs))


class Engine:
    """What a process needs for any range: the tokenizer, and templates that are compiled."""

    def __init__(self, model: bytes, eos_id: int) -> None:
        self.tokenizer = Tokenizer(model, eos_id)
        self._targets: dict[tuple[str, bool], tuple[bytes, int]] = {}
        self._compiled: dict[tuple[Template, str], CompiledTemplate] = {}

    def compiled(self, prompt: Prompt) -> CompiledTemplate:
        """Returns the compiled template, made on first use."""
        key = (prompt.template, prompt.seed_name)
        if key not in self._compiled:
            self._compiled[key] = CompiledTemplate(prompt.template, prompt.seed_name)
        return self._compiled[key]

    def inputs(self, texts: Sequence[str], eos: bool) -> list[tuple[bytes, int]]:
        """Returns the entries `inputs` and `inputs_pretokenized` of each text, and its tokens."""
        return self._entries("inputs", [text.encode() for text in texts], eos)

    def targets(
        self, texts: Sequence[str], eos: bool
    ) -> Mapping[tuple[str, bool], tuple[bytes, int]]:
        """Returns (text, eos) -> its entries of `targets`, and its tokens."""
        known = self._targets
        new = [text for text in dict.fromkeys(texts) if (text, eos) not in known]
        if len(known) + len(new) > MEMO_ENTRIES:
            known.clear()
            new = list(dict.fromkeys(texts))
        if new:
            made = self._entries("targets", [text.encode() for text in new], eos)
            known.update(zip(((text, eos) for text in new), made, strict=True))
        return known

    def _entries(self, name: str, texts: Sequence[bytes], eos: bool) -> list[tuple[bytes, int]]:
        end = self.tokenizer.eos if eos else b""
        packed_entry, bytes_entry = tf_examples.packed_entry, tf_examples.bytes_entry
        pretokenized = f"{name}_pretokenized"
        return [
            (packed_entry(name, ids + end) + bytes_entry(pretokenized, (text,)), count)
            for text, (ids, count) in zip(texts, self.tokenizer.encode(texts), strict=True)
        ]


class _Sink:
    """Takes the examples of one output, in order, and writes and counts its records."""

    def __init__(self, output: Output, writer: parts.PartWriter, start: int) -> None:
        self.output = output
        self._writer = writer
        self._start = start
        self._kept = 0
        self._tokens = {"inputs": 0, "targets": 0}
        self._longest = {"inputs": 0, "targets": 0}
        self._over = {"inputs": 0, "targets": 0}
        self.report = RowReport(hide_labels=output.hide_labels, ranked=output.choices)

    def add(
        self,
        kept: Sequence[tuple[int, bool, Example]],
        inputs: Sequence[tuple[bytes, int]],
        engine: Engine,
    ) -> None:
        """Writes the records of rendered rows: (row number, label withheld, what it gave)."""
        frames = self._choices if self.output.choices else self._plain
        self._writer.append(frames(kept, inputs, engine))

    def _plain(self, kept: Any, inputs: Any, engine: Engine) -> list[bytes]:
        eos = self.output.eos[1]
        texts = [self.report.target(ex, hidden, index) for index, hidden, ex in kept]
        targets = engine.targets(texts, eos)
        frames = []
        for (_, _, ex), (inputs_entries, size), text in zip(kept, inputs, texts, strict=True):
            target_entries, target_size = targets[text, eos]
            entries = inputs_entries + target_entries
            if self.output.answer_choices:
                choices = [choice.encode() for choice in ex.choices]
                entries = tf_examples.bytes_entry("answer_choices", choices) + entries
            frames.append(tfrecord.framed(tf_examples.example(entries)))
            self._tally(size, [target_size])
        self._kept += len(kept)
        return frames

    def _choices(self, kept: Any, inputs: Any, engine: Engine) -> list[bytes]:
        eos = self.output.eos[1]
        targets = engine.targets([c for _, _, ex in kept for c in ex.choices or ()], eos)
        framed, example, idx_entry = tfrecord.framed, tf_examples.example, records.idx_entry
        frames = []
        for (index, hidden, ex), (inputs_entries, size) in zip(kept, inputs, strict=True):
            choices = ex.choices or ()
            target = self.report.target(ex, hidden, index)
            # As if no row before this range was dropped; `merge` puts that right.
            row, sizes = self._start + self._kept, []
            for number, choice in enumerate(choices):
                entries, target_size = targets[choice, eos]
                correct = _CORRECT[choice == target]
                body = idx_entry(row, number) + inputs_entries + correct + entries + _WEIGHT
                frames.append(framed(example(body)))
                sizes.append(target_size)
            self._tally(size, sizes)
            self._kept += 1
        return frames

    def _tally(self, size: int, targets: Sequence[int]) -> None:
        number = len(targets)
        if not number:
            return
        eos = self.output.eos
        self._tokens["inputs"] += size * number
        self._tokens["targets"] += sum(targets)
        self._longest["inputs"] = max(self._longest["inputs"], size)
        self._longest["targets"] = max(self._longest["targets"], *targets)
        if size + eos[0] > LONGEST["inputs"]:
            self._over["inputs"] += number
        if max(targets) + eos[1] > LONGEST["targets"]:
            self._over["targets"] += sum(n + eos[1] > LONGEST["targets"] for n in targets)

    def finish(self, stop: int) -> dict[str, Any]:
        """Names the part and returns what was counted."""
        counts = dict(self.report.counts)
        return self._writer.finish(
            {
                "start": self._start,
                "stop": stop,
                "rows": counts.pop("rows"),
                "kept": self._kept,
                "counts": counts,
                "labels": self.report.labels,
                "first": self.report.first,
                "tokens": self._tokens,
                "max_tokens": self._longest,
                "over": self._over,
            }
        )


def render_range(job: Range, engine: Engine) -> dict[str, dict[str, Any] | str]:
    """Writes the parts of a range.

    Returns:
      task -> what its part tells, or, if its template fails on a row, why.

    Raises:
      UserError: if the rows cannot be read.
      OutputError: if the parts cannot be written.
    """
    results: dict[str, dict[str, Any] | str] = {}
    with ExitStack() as stack:
        sinks = {prompt: _sinks(prompt, job, stack) for prompt in job.prompts}
        for rows in _batches(job):
            withheld = [sources.hidden_label(job.dataset, row) for _, row in rows]
            for prompt in [*sinks]:
                try:
                    _render(prompt, sinks[prompt], rows, withheld, engine)
                except UserError as error:
                    if isinstance(error, OutputError):
                        raise
                    results.update({sink.output.unit.task: str(error) for sink in sinks[prompt]})
                    del sinks[prompt]
        for sink in (sink for several in sinks.values() for sink in several):
            results[sink.output.unit.task] = sink.finish(job.stop)
    return results


def _sinks(prompt: Prompt, job: Range, stack: ExitStack) -> list[_Sink]:
    return [
        _Sink(output, stack.enter_context(parts.PartWriter(job.directory, name)), job.start)
        for output in prompt.outputs
        if (name := parts.part_name(output.key, job.start, job.stop))
    ]


def _batches(job: Range) -> Iterator[list[tuple[int, Mapping[str, Any]]]]:
    split = sources.open_split(job.dataset, job.subset, job.split)
    numbered = enumerate(split.rows(job.start, job.stop), start=job.start)
    expected = job.start
    while batch := list(itertools.islice(numbered, ROWS_AT_ONCE)):
        expected += len(batch)
        yield batch
    if expected != job.stop:
        raise UserError(
            f"{split.where} ends at row {expected}, {job.stop} were counted when the run began; "
            "was it changed meanwhile?"
        )


def _render(
    prompt: Prompt,
    sinks: Sequence[_Sink],
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    withheld: Sequence[bool],
    engine: Engine,
) -> None:
    compiled = engine.compiled(prompt)
    kept = []
    for (index, row), hidden in zip(rows, withheld, strict=True):
        example = compiled.example(copy.deepcopy(row) if prompt.changes_rows else row, index)
        if example is None:
            for sink in sinks:
                sink.report.target(None, hidden, index)
        else:
            kept.append((index, hidden, example))
    try:
        entries = {
            eos: engine.inputs([example.inputs for _, _, example in kept], eos)
            for eos in {sink.output.eos[0] for sink in sinks}
        }
        for sink in sinks:
            sink.add(kept, entries[sink.output.eos[0]], engine)
    except UnicodeEncodeError as error:
        raise UserError(
            f"template '{prompt.template.name}' gives text that is not Unicode, in rows "
            f"{rows[0][0]} to {rows[-1][0]}: {error}"
        ) from error
