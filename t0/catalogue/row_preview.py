r"""Shows a rendered row as the model sees it: inputs, target and choices, with token counts.

    row = preview_row(task, "train", 0, columns, lengths={"inputs": 512, "targets": 64}, tokens=t)
    len(row.inputs.ids), row.inputs.cut    # (700, 2311), cut before the character with index 2311
    print("\n".join(lines(row)))

The lines contain the whole rendered text. A mark shows where the model's sequence length truncates
the text. As in T0's tasks, targets and choices end in EOS, which counts as a token. Inputs do not
end in EOS.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t0.catalogue.exemplars import FewShotPrompts, describe_lost_separators
from t0.catalogue.prompted_task import PromptedTask
from t0.catalogue.sentence_pieces import Tokens, vocabulary_notes
from t0.errors import UserError, printable
from t0.prompts import LONGEST_PRINTED, NO_LABEL, Example
from t0.prompts.few_shot import FewShot, FewShotPrompt
from t0.sources import hidden_label

EOS = 1
# The sequence lengths that T0 was trained with, in tokens.
T0_LENGTHS = {"inputs": 1024, "targets": 256}
_INDENT = "    "


def parse_lengths(text: str) -> dict[str, int]:
    """Parses sequence lengths in tokens, such as "inputs=512,targets=64".

    Raises:
      UserError: an item of the text is not a length of inputs or targets.
    """
    lengths = {}
    for item in filter(None, text.split(",")):
        name, _, value = (word.strip() for word in item.partition("="))
        if name not in T0_LENGTHS or not value.isdigit() or not int(value):
            raise UserError(
                f"--lengths: '{item}' is not a length; expected tokens such as "
                f"{lengths_text(T0_LENGTHS)}"
            )
        lengths[name] = int(value)
    return lengths


def lengths_text(lengths: Mapping[str, int]) -> str:
    """Formats sequence lengths as text that `parse_lengths` can parse."""
    return ",".join(f"{name}={value}" for name, value in lengths.items())


@dataclasses.dataclass(frozen=True)
class PreviewText:
    """A text that the model reads or writes.

    Attributes:
      text: the rendered text.
      ids: the token ids of the text, including EOS if the text ends in EOS; None if there is no
        vocabulary.
      limit: the sequence length at which the text is truncated, in tokens.
      cut: the index of the first truncated character, or None if the text is not truncated.
      unknown: the first index, and the index after the last, of each part of the text that the
        vocabulary maps to its unknown token.
    """

    text: str
    ids: list[int] | None
    limit: int
    cut: int | None = None
    unknown: Sequence[tuple[int, int]] = ()

    @property
    def spans(self) -> list["TextSpan"]:
        """The text in spans, which are either unknown or not, and either truncated or not.

        If only EOS is truncated, the last span is empty.
        """
        cut = len(self.text) + 1 if self.cut is None else self.cut
        begins = {0, *itertools.chain(*self.unknown), min(cut, len(self.text))}
        return [
            TextSpan(
                self.text[begin:end],
                any(first <= begin < last for first, last in self.unknown),
                begin >= cut,
            )
            for begin, end in itertools.pairwise([*sorted(begins), len(self.text)])
            if begin < end or begin == cut
        ]

    @property
    def token_count(self) -> str:
        """The number of tokens with its limit, as text; empty without a vocabulary."""
        if self.ids is None:
            return ""
        tokens = len(self.ids)
        eos = " with EOS" if self.ids[-1:] == [EOS] else ""
        over = f", {tokens - self.limit:,} too many" if tokens > self.limit else ""
        return f"{tokens:,} token{'s' * (tokens != 1)}{eos} of at most {self.limit:,}{over}"

    @property
    def cut_note(self) -> str:
        """The mark at the point where the text is truncated."""
        is_text = self.cut is not None and self.cut < len(self.text)
        rest = "; the model does not see what follows" if is_text else ": EOS is lost"
        return f"CUT at {self.limit:,} tokens{rest}"


class TextSpan(NamedTuple):
    """A part of a text; whether the vocabulary has no token for it; whether it is truncated."""

    text: str
    is_unknown: bool
    is_cut: bool


@dataclasses.dataclass(frozen=True)
class RowPreview:
    """A rendered row of a task.

    Attributes:
      title: a line that names the task, the split and the row.
      inputs: the input text; None if the template drops the row.
      target: the target text; None if the template drops the row.
      choices: the answer choices; None for an open-ended template.
      notes: notes about anything unusual in the row.
    """

    title: str
    inputs: PreviewText | None
    target: PreviewText | None
    choices: Sequence[PreviewText] | None
    notes: Sequence[str]

    @property
    def is_cut(self) -> bool:
        """Whether one of the texts is truncated."""
        texts = (self.inputs, self.target, *(self.choices or ()))
        return any(text is not None and text.cut is not None for text in texts)


def preview_row(
    task: PromptedTask,
    split: str,
    index: int,
    row: Mapping[str, Any],
    *,
    lengths: Mapping[str, int],
    tokens: Tokens | None,
    few_shot: FewShotPrompts | None = None,
) -> RowPreview:
    """Renders a row, counts its tokens and finds the points at which its texts are truncated.

    Args:
      task: the template and its data.
      split: the task's split.
      index: the row's index in the split.
      row: the row, as column -> value.
      lengths: the sequence lengths of inputs and targets, in tokens.
      tokens: the vocabulary; None if tokens are not counted.
      few_shot: puts exemplars before the input; None for the zero-shot prompt.

    Raises:
      UserError: the template fails on the row, or there are too few exemplars.
    """
    title = f"{task.name}, split {split}, row {index}"
    example = task.compiled.example(row, index)
    if example is None:
        note = "the template leaves this row out: it does not render to inputs and a target"
        return RowPreview(title, None, None, None, [note])
    few_shot_notes: Sequence[str] = ()
    if few_shot is not None:
        prompt = few_shot.prompt(split, index, row, example)
        if prompt is None:
            note = "no exemplar fits: the row is left out"
            return RowPreview(title, None, None, None, [note])
        few_shot_notes = [*_describe_exemplars(prompt, few_shot.few_shot, tokens)]
        example = dataclasses.replace(example, inputs=prompt.inputs)
    choices = None
    if example.choices is not None:
        choices = [_preview_text(c, lengths["targets"], tokens, eos=True) for c in example.choices]
    target = _preview_text(example.targets, lengths["targets"], tokens, eos=True)
    inputs = _preview_text(example.inputs, lengths["inputs"], tokens, eos=False)
    withheld = hidden_label(task.dataset, row)
    notes = [
        *_describe_target(example, withheld, task.template.published),
        *_describe_missing(example),
        *_describe_cuts(example, task.template.published),
        *few_shot_notes,
    ]
    if tokens is not None:
        notes += vocabulary_notes(tokens, list_answers(example, withheld))
    return RowPreview(title, inputs, target, choices, notes)


def list_answers(example: Example, withheld: bool) -> list[str]:
    """Returns the target and the choices of a row. If it has no label, the target is left out."""
    targets = [] if withheld or example.targets == NO_LABEL else [example.targets]
    return [*targets, *(example.choices or ())]


def _preview_text(text: str, limit: int, tokens: Tokens | None, *, eos: bool) -> PreviewText:
    if tokens is None:
        return PreviewText(text, None, limit)
    ids = tokens.ids(text) + [EOS] * eos
    cut = tokens.character_index(text, limit) if len(ids) > limit else None
    return PreviewText(text, ids, limit, cut, tokens.unknown_ranges(text))


def _describe_target(example: Example, withheld: bool, published: bool) -> Iterator[str]:
    if not published and not example.has_target:
        reason = (
            "the target renders to nothing" if example.choices != [] else "all options are blank"
        )
        yield f"{reason}: the row is left out, so it is not trained and not scored"
    elif withheld:
        yield "the label is withheld (-1): the target is meaningless, and the row is not scored"
    elif example.targets == NO_LABEL:
        yield "the target renders to nothing: training would learn '<NO LABEL>'"
    elif example.choices is not None and example.choices.count(example.targets) != 1:
        count = example.choices.count(example.targets)
        yield f"{count or 'none'} of the choices {'are' if count else 'is'} the target, not one"


def _describe_missing(example: Example) -> Iterator[str]:
    if example.missing:
        yield f"nothing is printed for {example.missing} missing value{'s' * (example.missing > 1)}"
    if example.blank:
        numbers = ", ".join(str(index + 1) for index in example.blank)
        how = "kept as an empty choice, as in T0" if "" in example.choices else "left out"
        yield f"blank answer options are {how}: number {numbers} of the template"


def _describe_cuts(example: Example, published: bool) -> Iterator[str]:
    if example.cut:
        lengths = ", ".join(f"{length:,}" for length in example.cut)
        lift = "" if published else "; `truncate: false` in templates.yaml prints them whole"
        yield (
            f"texts of {lengths} characters are CUT at {LONGEST_PRINTED:,} characters and end in "
            f"'...', as in promptsource{lift}"
        )


def _describe_exemplars(
    prompt: FewShotPrompt, few_shot: FewShot, tokens: Tokens | None
) -> Iterator[str]:
    rows = ", ".join(f"{exemplar.row:,}" for exemplar in prompt.exemplars)
    fit = "" if len(prompt.exemplars) == prompt.drawn else f" of {prompt.drawn} that were drawn"
    plural = "s" * (len(prompt.exemplars) != 1)
    listed = f", row{plural} {rows} of '{few_shot.split}'" if rows else ""
    yield f"{len(prompt.exemplars)} exemplar{plural}{fit}{listed} (seed {few_shot.seed})"
    if tokens is not None and rows:
        yield from describe_lost_separators(few_shot, tokens.ids)


def lines(row: RowPreview, *, with_ids: bool = False) -> Iterator[str]:
    """Formats a rendered row as plain text, and yields the lines of the text.

    Args:
      row: the rendered row.
      with_ids: whether to also print the token ids.
    """
    yield row.title
    for name, text in (("inputs", row.inputs), ("target", row.target)):
        if text is not None:
            yield f"  {name}" if text.ids is None else f"  {name}, {text.token_count}"
            yield from (f"{_INDENT}{line}" for line in printable(_mark(text)).split("\n"))
            yield from _list_ids(text, with_ids)
    if row.choices is not None:
        yield "  choices (* is the target)"
        for choice in row.choices:
            mark = "*" if choice.text == row.target.text else " "
            count = "" if choice.ids is None else f"  ({choice.token_count})"
            yield f"  {mark} {printable(_mark(choice))}{count}"
            yield from _list_ids(choice, with_ids)
    yield from (f"  note: {note}" for note in row.notes)


def _list_ids(text: PreviewText, with_ids: bool) -> Iterator[str]:
    if with_ids and text.ids is not None:
        yield f"{_INDENT}ids {' '.join(map(str, text.ids))}"


def _mark(preview: PreviewText) -> str:
    """Marks the unknown parts of a text, and where it is truncated."""
    marked, was_cut = "", False
    for text, is_unknown, is_cut in preview.spans:
        marked += f"[{preview.cut_note}]" if is_cut and not was_cut else ""
        marked += f"[UNKNOWN {text}]" if is_unknown else text
        was_cut = is_cut
    return marked
