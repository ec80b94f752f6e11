"""Decides which rows of a split are dropped or get the target `<NO LABEL>`, and counts the rows.

    report = RowReport(hide_labels=True)
    for index, row in enumerate(rows):
        target = report.target(prompt.example(row, index), hidden_label("piqa", row), index)
        ...                              # a target of None means that the row is dropped
    report.counts                        # {"rows": 57, "rendered nothing": 3, "hidden label": 1}
    report.first                         # {"rendered nothing": 7, "hidden label": 12}: row indices

A row is dropped if its template does not render to two parts. In rank evaluation, a row with a
withheld label is kept with the target `<NO LABEL>`, so that none of its choices is correct. A row
of a user's template is dropped if it has no target, because nothing can be learned or judged. T0's
own templates keep such rows with the target `<NO LABEL>`, as the original does.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from t0.prompts.environments import LONGEST_PRINTED
from t0.prompts.few_shot import FewShotPrompt
from t0.prompts.render import NO_LABEL, Example

# Keys of `counts`. Users see these texts.
DROPPED, HIDDEN, NO_ONE_CORRECT = "rendered nothing", "hidden label", "no one correct choice"
CUT = f"cut at {LONGEST_PRINTED:,} characters"
UNKNOWN = "with unknown tokens in their answers"
EQUAL_TOKENS = "with a wrong choice of the right one's tokens"
NO_TARGET = "without a target (left out)"
MISSING = "with missing values (nothing is printed for them)"
NO_EXEMPLAR = "without an exemplar that fits (left out)"
TOO_LONG = "with an input that is too long without any exemplar"
# Whether blank choices are left out -> key.
BLANK = {True: "with blank options (left out)", False: "with blank options (kept, as in T0)"}
# The keys of `counts` that are noted when rows are rendered without a cache.
NOTED = (NO_TARGET, MISSING, *BLANK.values(), NO_EXEMPLAR, TOO_LONG)
# Keys of `labels`. If the counts of these keys are high, the template probably does not fit the
# data.
UNLABELLED, NO_CHOICE = "no label", "target is no choice"


class RowReport:
    """Decides the targets of a range of rows of a split, and counts the rows.

    Args:
      hide_labels: whether a row with a withheld label gets the target `<NO LABEL>`.
      ranked: whether to count the rows that do not have exactly one correct choice.
      drops_unlabelled: whether a row without a target is dropped.

    Attributes:
      counts: key (DROPPED, HIDDEN, ...) -> number of rows. The key "rows" counts all rows.
      labels: key (UNLABELLED or NO_CHOICE) -> number of rows, without rows with a withheld label.
      first: key of `counts` or `labels` -> the index of the first row that was counted for the key.
      answers: choice -> number of rows that have this choice as their target; empty unless
        `count_answers` was called with the choices.
      exemplars: number of exemplars -> number of rows with so many, if prompts are few-shot.
    """

    def __init__(
        self, *, hide_labels: bool, ranked: bool = False, drops_unlabelled: bool = False
    ) -> None:
        self._drops_unlabelled = drops_unlabelled
        self._hide_labels = hide_labels
        self._ranked = ranked
        self.counts: Counter[str] = Counter(rows=0)
        self.labels: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        self.answers: dict[str, int] = {}
        self.exemplars: Counter[int] = Counter()

    def count_answers(self, choices: Sequence[str] | None) -> None:
        """Makes later calls of `target` count, for each choice, the rows with this target.

        Has no effect if an earlier call has already set the choices.

        Args:
          choices: the choices, if all rows have the same choices; otherwise None.
        """
        self.answers = self.answers or dict.fromkeys(choices or (), 0)

    def target(self, example: Example | None, withheld: bool, index: int) -> str | None:
        """Counts a row and returns its target, or None if the row is dropped.

        Args:
          example: the rendered row; None if it did not render to two parts.
          withheld: whether the row's label is withheld.
          index: the row's index in the split.
        """
        self.counts["rows"] += 1
        if example is None:
            self.count(DROPPED, index)
            return None
        if example.cut:
            self.count(CUT, index)
        if example.missing:
            self.count(MISSING, index)
        if example.blank:
            self.count(BLANK["" not in example.choices], index)
        if self._drops_unlabelled and not example.has_target:
            self.count(NO_TARGET, index)
            return None
        if withheld and self._hide_labels:
            self.count(HIDDEN, index)
            return NO_LABEL
        target = example.targets
        if target == NO_LABEL:
            self._count(self.labels, UNLABELLED, index)
        if target in self.answers:
            self.answers[target] += 1
        choices = example.choices
        if choices is not None:
            correct = choices.count(target)
            if not correct:
                self._count(self.labels, NO_CHOICE, index)
            if correct != 1 and self._ranked:
                self.count(NO_ONE_CORRECT, index)
        return target

    def count_exemplars(self, prompt: FewShotPrompt | None, index: int) -> bool:
        """Counts a row's exemplars, and returns whether the row is kept.

        Args:
          prompt: the row's few-shot prompt; None if no exemplar fits and the row is dropped.
          index: the row's index in the split.
        """
        if prompt is None or prompt.drawn:
            self.exemplars[len(prompt.exemplars) if prompt else 0] += 1
        if prompt is None or prompt.is_cut:
            self.count(TOO_LONG if prompt else NO_EXEMPLAR, index)
        return prompt is not None

    def totals(self) -> dict[str, Any]:
        """Returns all counts as plain data with JSON's types. `rows` is not among the `counts`."""
        counts = dict(self.counts)
        return {
            "rows": counts.pop("rows"),
            "counts": counts,
            "labels": self.labels,
            "first": self.first,
            "answers": self.answers,
            "exemplars": {str(number): rows for number, rows in self.exemplars.items()},
        }

    def count(self, key: str, index: int) -> None:
        """Counts a row for a key of `counts`."""
        self._count(self.counts, key, index)

    def _count(self, counts: Counter[str], key: str, index: int) -> None:
        counts[key] += 1
        self.first.setdefault(key, index)
