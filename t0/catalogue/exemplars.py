"""Draws the exemplars of few-shot prompts from a task's training rows.

    rows = list(task.open("train").rows())
    prompts = FewShotPrompts(task, FewShotForm(FewShot(k=4)), rows, measure)
    prompt = prompts.prompt("validation", 17, row, task.compiled.example(row, 17))
    prompt.inputs, [exemplar.row for exemplar in prompt.exemplars]

The draws depend only on the task's name, the seed, and the row's split and number. So the prompt of
a row can be made without the prompts of other rows, and it is equal in every process. The plain
task and the rank-evaluation task of a prompt have the same exemplars.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t0.catalogue.prompted_task import FewShotForm, PromptedRows
from t0.errors import UserError
from t0.prompts import CompiledTemplate, Example, Template, compile_template, remove_hyphens
from t0.prompts.few_shot import (
    Exemplar,
    FewShot,
    FewShotPrompt,
    TextMeasure,
    count_fitting,
    join_exemplars,
)
from t0.sources import hidden_label

Rows = Sequence[Mapping[str, Any]]
_REMEMBERED = 4096  # rendered exemplars, so that a small training split is rendered only once


class _Candidate(NamedTuple):
    """A training row that may become an exemplar.

    Attributes:
      exemplar: its texts.
      label: the number of its target among its answer choices; None if it is none of them.
      choices: its answer choices.
      key: the values of the columns from which its input is made.
    """

    exemplar: Exemplar
    label: int | None
    choices: Sequence[str]
    key: str


class FewShotPrompts:
    """Makes the few-shot prompts of a task's rows.

    Args:
      task: the template and its data.
      form: the settings, and the templates of the exemplars.
      rows: the rows of the split with the exemplars, or a function that reads them when the first
        prompt is made. They stay in memory, because a draw may need any of them.
      measure: how the texts are measured.
      order: a function of the split that returns the row numbers of its exemplars, K for each row;
        needed if the settings have an order.

    Raises:
      UserError: there are fewer rows than exemplars, or `check_few_shot` refuses the task.
    """

    def __init__(
        self,
        task: PromptedRows,
        form: FewShotForm,
        rows: Rows | Callable[[], Rows],
        measure: TextMeasure,
        order: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        check_few_shot(task, form.settings)
        self.form, self.few_shot = form, form.settings
        self._task = task
        self._measure = measure
        self._name = task.seed_name
        self._order = functools.lru_cache(1)(order) if order else None
        self._candidate = functools.lru_cache(_REMEMBERED)(self._render)
        self._read_rows = rows
        if not callable(rows):
            _ = self._rows

    @functools.cached_property
    def _rows(self) -> Rows:
        rows = self._read_rows() if callable(self._read_rows) else self._read_rows
        if self.few_shot.k > len(rows):
            raise UserError(
                f"{self._name}: {self.few_shot.k} exemplars, but its split "
                f"'{self.few_shot.split}' has only {len(rows):,} rows: choose a smaller number"
            )
        return rows

    def prompt(
        self, split: str, index: int, row: Mapping[str, Any], example: Example
    ) -> FewShotPrompt | None:
        """Returns a row's few-shot prompt; None if no exemplar fits and such rows are dropped.

        Args:
          split: the task's split.
          index: the row's index in the split.
          row: the row.
          example: the rendered row.

        Raises:
          UserError: there are not enough training rows that can be exemplars of this row, or an
            answer choice contains the separator of exemplars.
        """
        few_shot, outer = self.few_shot, self._choose_outer(split, index)
        drawn = self._apply_outer(outer, self._draw(split, index, row, example))
        inputs = few_shot.apply_outer(outer, example.inputs, example.choices)
        example = dataclasses.replace(example, inputs=inputs)
        fitting = count_fitting(few_shot, drawn, example, self._measure)
        if drawn and not fitting and few_shot.if_none_fits == "drop":
            return None
        exemplars = tuple(drawn[:fitting])
        inputs = join_exemplars(few_shot, exemplars, example.inputs)
        answers = example.choices or [example.targets]
        is_cut = bool(drawn) and not fitting and not self._measure.fits(inputs, answers)
        return FewShotPrompt(inputs, exemplars, len(drawn), is_cut)

    def stored_exemplars(self) -> tuple[Exemplar, ...]:
        """Returns the exemplars that a model stores for predictions, the same for each new row.

        Raises:
          UserError: as `prompt`, and if the rows of the exemplars cannot be read.
        """
        if not self.few_shot.store:
            return ()
        return tuple(self._apply_outer(0, self._draw("predict", 0, {}, None)))

    def _choose_outer(self, split: str, index: int) -> int:
        templates = self.few_shot.outer_templates
        if len(templates) < 2:
            return 0
        seed = f"{self.few_shot.seed} {self._name} {split} {index} outer template"
        return random.Random(seed).randrange(len(templates))

    def _apply_outer(self, number: int, candidates: Sequence[_Candidate]) -> list[Exemplar]:
        if not self.few_shot.outer_templates:
            return [candidate.exemplar for candidate in candidates]
        apply = functools.partial(self.few_shot.apply_outer, number)
        return [
            dataclasses.replace(exemplar, inputs=apply(exemplar.inputs, choices))
            for exemplar, _, choices, _ in candidates
        ]

    def _take(self, split: str, index: int) -> list[_Candidate]:
        k = self.few_shot.k
        numbers = self._order(split)[index * k : (index + 1) * k]
        candidates = [self._candidate(int(number), None) for number in numbers]
        if None in candidates:
            raise UserError(
                f"{self._name}: row {numbers[candidates.index(None)]} of '{self.few_shot.split}' has "
                "no target or is not rendered, so SeqIO's order is undefined: leave out `order`"
            )
        return candidates

    def _draw(
        self, split: str, index: int, row: Mapping[str, Any], example: Example | None
    ) -> list[_Candidate]:
        few_shot, templates, candidates = self.few_shot, self.form.templates, []
        if not few_shot.k:
            return []
        if few_shot.order and example is not None:
            return self._take(split, index)
        mapping = self._task.split_mapping
        is_same_split = mapping.get(split, split) == mapping[few_shot.split]
        key, quota = self._key(row), _LabelQuota(few_shot.k)
        generator = random.Random(f"{few_shot.seed} {self._name} {split} {index}")
        for number in draw_order(len(self._rows), generator):
            template = generator.randrange(len(templates)) if templates else None
            candidate = self._candidate(number, template)
            if candidate is None:
                continue
            if few_shot.exclude_self and example is not None:
                is_row = is_same_split and number == index
                is_duplicate = candidate.key == key or candidate.exemplar.inputs == example.inputs
                if is_row or is_duplicate:
                    continue
            if few_shot.balance and not quota.take(candidate.label, len(candidate.choices)):
                continue
            candidates.append(candidate)
            if len(candidates) == few_shot.k:
                return candidates
        balanced = " with balanced labels" if few_shot.balance else ""
        raise UserError(
            f"{self._name}: {few_shot.k} exemplars{balanced}, but its split '{few_shot.split}' has "
            f"only {len(candidates)} for row {index} of '{split}' (rows without a target and "
            "duplicates of the row are left out): choose a smaller number"
        )

    def _render(self, number: int, template: int | None) -> _Candidate | None:
        """Renders a training row; returns None if it cannot be an exemplar.

        Args:
          number: the row's number.
          template: the number of its template; None for the task's own.
        """
        row, compiled = self._rows[number], self._task.compiled
        if template is not None:
            compiled = compile_template(*self.form.templates[template])
        example = compiled.example(row, number)
        if example is None or not example.has_target or hidden_label(self._task.dataset, row):
            return None
        choices, separator = example.choices or [], self.few_shot.example_separator
        if separator and any(separator in choice for choice in choices):
            raise UserError(
                f"{self._name}: an answer choice of row {number} of '{self.few_shot.split}' "
                f"contains the separator of exemplars, {separator!r}: set another example_separator"
            )
        label = choices.index(example.targets) if example.targets in choices else None
        exemplar = Exemplar(number, example.inputs, example.targets)
        return _Candidate(exemplar, label, choices, self._key(row))

    def _key(self, row: Mapping[str, Any]) -> str:
        row = remove_hyphens(row)
        return repr([row.get(name) for name in sorted(self._task.compiled.input_columns)])


def check_few_shot(task: PromptedRows, few_shot: FewShot) -> None:
    """Checks that a task can have few-shot prompts. It reads no rows.

    Raises:
      UserError: the task has no split with exemplars, or no answer choices to balance.
    """
    name = task.seed_name
    if few_shot.split not in task.split_mapping:
        raise UserError(
            f"{name} has no split '{few_shot.split}' to draw exemplars from, it has: "
            f"{', '.join(task.split_mapping)}. Leave the task out"
        )
    if few_shot.order and (few_shot.balance or not few_shot.same_template or not few_shot.k):
        raise UserError(
            "`order: seqio` fixes the exemplars: leave out `balance` and `same_template`, or `order`"
        )
    if any("{choices}" in outer for outer in few_shot.outer_templates) and (
        not task.template.answer_choices
    ):
        raise UserError(
            f"{name} has no answer choices, so an outer template cannot print them: leave out the "
            "task, or {choices}"
        )
    if few_shot.balance and not task.template.answer_choices:
        raise UserError(
            f"{name} has no answer choices, so its labels cannot be balanced: leave out `balance`"
        )


def draw_order(count: int, generator: random.Random) -> Iterator[int]:
    """Yields the numbers below `count` in random order. The first numbers need little memory."""
    moved: dict[int, int] = {}
    for position in range(count):
        chosen = generator.randrange(position, count)
        yield moved.get(chosen, chosen)
        moved[chosen] = moved.get(position, position)


@dataclasses.dataclass(frozen=True, eq=False)
class ExemplarTask:
    """A task with few-shot prompts as plain data, for another process. It is a `PromptedRows`.

    Attributes:
      split: the task's split whose rows get exemplars.
      few_shot: how.
      order: the file with the row numbers of the exemplars, as int32; "" if they are drawn.
      dataset, subset, template, seed_name, split_mapping: those of the task.
    """

    split: str
    few_shot: FewShotForm
    dataset: str
    subset: str | None
    template: Template
    seed_name: str
    split_mapping: Mapping[str, str]
    order: str = ""

    @functools.cached_property
    def compiled(self) -> CompiledTemplate:
        """The compiled template."""
        return compile_template(self.template, self.seed_name)

    @property
    def data(self) -> tuple[str, str | None, str]:
        """The dataset's name, its subset, and its own name for the split with the exemplars."""
        return self.dataset, self.subset, self.split_mapping[self.few_shot.settings.split]


@dataclasses.dataclass
class _LabelQuota:
    """Accepts exemplars so that the counts of their labels differ by at most 1."""

    k: int
    counts: dict[int, int] = dataclasses.field(default_factory=dict)

    def take(self, label: int | None, labels: int) -> bool:
        """Returns whether an exemplar with this label, of so many labels, is still needed."""
        if label is None:
            return False
        each, more = divmod(self.k, labels)
        count = self.counts.get(label, 0)
        extra = sum(other > each for other in self.counts.values())
        if count > each or (count == each and extra >= more):
            return False
        self.counts[label] = count + 1
        return True


def describe_lost_separators(few_shot: FewShot, ids: Callable[[str], Any]) -> list[str]:
    r"""Returns a note about the separators that leave no token between two texts; [] if none do.

    In T5's vocabulary, line breaks become one space, so "\n\n" cannot be told from a space.

    Args:
      ids: a function that returns the token ids of a text.
    """
    lost = [
        name
        for name, separator in few_shot.separators.items()
        if ids(f"a{separator}a") == ids("a a") or ids(f"a{separator}a") == ids("aa")
    ]
    note = (
        f"{' and '.join(lost)}: the vocabulary has no token for this text, so the model reads only a "
        "space, or nothing. A visible separator, such as ' ## ', has tokens"
    )
    return [note] if lost and few_shot.k else []
