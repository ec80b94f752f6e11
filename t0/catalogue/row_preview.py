r"""Rendered rows as the model sees them: inputs, target and choices, counted and truncated.

    row = preview_row(task, "train", 0, columns, lengths={"inputs": 512, "targets": 64}, tokens=t)
    row.inputs.tokens, row.inputs.cut      # (700, 2311): the text is cut before character 2,311
    print("\n".join(lines(row)))

The text is the rendered text, with a mark where the sequence length truncates it. As in T0's tasks,
targets and choices end in EOS, which counts as a token, and inputs do not.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t0.catalogue.prompted_task import PromptedTask
from t0.catalogue.sentence_pieces import Tokens, vocabulary_notes
from t0.errors import UserError, printable
from t0.prompts import LONGEST_PRINTED, NO_LABEL, Example
from t0.sources import hidden_label

EOS = 1
# The sequence lengths that T0 was trained with, in tokens.
T0_LENGTHS = {"inputs": 1024, "targets": 256}
_INDENT = "    "


def given_lengths(text: str) -> dict[str, int]:
    """Parses lengths such as "inputs=512,targets=64", in tokens.

    Raises:
      UserError: an item is not a length of inputs or targets.
    """
    lengths = {}
    for part in filter(None, text.split(",")):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in T0_LENGTHS or not value.isdigit() or not int(value):
            raise UserError(
                f"--lengths: '{part}' is no length; wanted such as {lengths_text(T0_LENGTHS)}, in "
                "tokens"
            )
        lengths[name] = int(value)
    return lengths


def lengths_text(lengths: Mapping[str, int]) -> str:
    """Formats lengths so that `given_lengths` can parse them."""
    return ",".join(f"{name}={value}" for name, value in lengths.items())


@dataclasses.dataclass(frozen=True)
class PreviewText:
    """A text that the model reads or writes.

    Attributes:
      text: the rendered text.
      ids: its token ids, including EOS if it has one; None without a vocabulary.
      limit: the sequence length at which it is truncated, in tokens.
      cut: the index of the first truncated character, or None if the text is not truncated.
    """

    text: str
    ids: list[int] | None
    limit: int
    cut: int | None = None

    @property
    def tokens(self) -> int | None:
        """The number of tokens; None without a vocabulary."""
        return None if self.ids is None else len(self.ids)


@dataclasses.dataclass(frozen=True)
class RowPreview:
    """A rendered row of a task.

    Attributes:
      title: the task, split and row.
      inputs, target: the texts; None for a row that the template drops.
      choices: the answer choices; None for an open-ended template.
      notes: anything unusual about the row.
    """

    title: str
    inputs: PreviewText | None
    target: PreviewText | None
    choices: Sequence[PreviewText] | None
    notes: Sequence[str]

    @property
    def is_cut(self) -> bool:
        """Whether one of the texts is truncated."""
        parts = (self.inputs, self.target, *(self.choices or ()))
        return any(part is not None and part.cut is not None for part in parts)


def preview_row(
    task: PromptedTask,
    split: str,
    index: int,
    row: Mapping[str, Any],
    *,
    lengths: Mapping[str, int],
    tokens: Tokens | None,
) -> RowPreview:
    """Renders a row, counts its tokens and finds the point of truncation.

    Args:
      task: the template and its data.
      split: the task's split.
      index: the row's index in the split.
      row: the row.
      lengths: the lengths of inputs and targets, in tokens.
      tokens: the vocabulary; None to count nothing.

    Raises:
      UserError: the template fails on the row.
    """
    title = f"{task.name}, split {split}, row {index}"
    example = task.compiled.example(row, index)
    if example is None:
        note = "the template leaves this row out: it does not render to inputs and a target"
        return RowPreview(title, None, None, None, [note])
    choices = None
    if example.choices is not None:
        choices = [_part(c, lengths["targets"], tokens, eos=True) for c in example.choices]
    target = _part(example.targets, lengths["targets"], tokens, eos=True)
    inputs = _part(example.inputs, lengths["inputs"], tokens, eos=False)
    withheld = hidden_label(task.dataset, row)
    notes = [*_notes(example, withheld), *_cut_notes(example, task.template.published)]
    if tokens is not None:
        texts = [] if withheld or example.targets == NO_LABEL else [example.targets]
        notes += vocabulary_notes(tokens, [*texts, *(example.choices or ())])
    return RowPreview(title, inputs, target, choices, notes)


def _part(text: str, limit: int, tokens: Tokens | None, *, eos: bool) -> PreviewText:
    if tokens is None:
        return PreviewText(text, None, limit)
    ids = tokens.ids(text) + [EOS] * eos
    return PreviewText(text, ids, limit, tokens.place(text, limit) if len(ids) > limit else None)


def _notes(example: Example, withheld: bool) -> Iterator[str]:
    if withheld:
        yield "the label is withheld (-1): the target means nothing, and the row is not scored"
    elif example.targets == NO_LABEL:
        yield "the target renders to nothing: training would learn '<NO LABEL>'"
    elif example.choices is not None and example.choices.count(example.targets) != 1:
        found = example.choices.count(example.targets)
        yield f"{found or 'none'} of the choices {'are' if found else 'is'} the target; wanted one"


def _cut_notes(example: Example, published: bool) -> Iterator[str]:
    if example.cut:
        lengths = ", ".join(f"{length:,}" for length in example.cut)
        lift = "" if published else "; `truncate: false` in templates.yaml prints them whole"
        yield (
            f"texts of {lengths} characters are CUT at {LONGEST_PRINTED:,} characters and end in "
            f"'...', as in promptsource{lift}"
        )


def lines(row: RowPreview, *, with_ids: bool = False) -> Iterator[str]:
    """Yields a row as lines of plain text.

    Args:
      row: the row.
      with_ids: whether to also print the token ids.
    """
    yield row.title
    if row.inputs is not None:
        yield from _section("inputs", row.inputs, with_ids)
    if row.target is not None:
        yield from _section("target", row.target, with_ids)
    if row.choices is not None:
        yield "  choices (* is the target)"
        for choice in row.choices:
            mark = "*" if choice.text == row.target.text else " "
            count = (
                "" if choice.ids is None else f"  ({_count(choice).replace(_limit(choice), '')})"
            )
            yield f"  {mark} {printable(_marked(choice))}{count}"
            if with_ids and choice.ids is not None:
                yield f"{_INDENT}ids {_listed(choice.ids)}"
    for note in row.notes:
        yield f"  note: {note}"


def _section(name: str, part: PreviewText, with_ids: bool) -> Iterator[str]:
    yield f"  {name}" if part.ids is None else f"  {name}, {_count(part)}"
    for line in printable(_marked(part)).split("\n"):
        yield f"{_INDENT}{line}"
    if with_ids and part.ids is not None:
        yield f"{_INDENT}ids {_listed(part.ids)}"


def _count(part: PreviewText) -> str:
    tokens = len(part.ids)
    eos = " with EOS" if part.ids[-1:] == [EOS] else ""
    over = f", {tokens - part.limit:,} too many" if tokens > part.limit else ""
    return f"{tokens:,} token{'s' * (tokens != 1)}{eos}{_limit(part)}{over}"


def _limit(part: PreviewText) -> str:
    return f" of at most {part.limit:,}"


def _marked(part: PreviewText) -> str:
    if part.cut is None:
        return part.text
    if part.cut >= len(part.text):
        return f"{part.text}[CUT at {part.limit:,} tokens: EOS is lost]"
    mark = f"[CUT at {part.limit:,} tokens; the model does not see what follows]"
    return part.text[: part.cut] + mark + part.text[part.cut :]


def _listed(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))
