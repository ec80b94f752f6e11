"""The rule of which rows of a split are dropped, and which lose or lack their label; with counts.

    report = RowReport(hide_labels=True)
    for index, row in enumerate(rows):
        target = report.target(prompt.example(row, index), hidden_label("piqa", row), index)
        ...                              # None: the row is dropped
    report.counts                        # {"rows": 57, "rendered nothing": 3, "hidden label": 1}
    report.first                         # {"rendered nothing": 7, "hidden label": 12}: the rows

A row is dropped where its template renders other than two parts. In rank evaluation a row whose
label is withheld stays, with the target `<NO LABEL>`, so that none of its choices is correct.
"""

from collections import Counter

from t0.prompts.render import NO_LABEL, Example

# Counted for the user, in `counts`.
DROPPED, HIDDEN, NO_ONE_CORRECT = "rendered nothing", "hidden label", "no one correct choice"
# Counted in `labels`, to find templates that do not fit their data.
UNLABELLED, NO_CHOICE = "no label", "target is no choice"


class RowReport:
    """What became of the rows of a split, or of a stretch of one.

    Args:
      hide_labels: give a row whose label is withheld the target `<NO LABEL>`.
      ranked: count the rows of which not exactly one choice is correct.

    Attributes:
      counts: what happened -> rows; "rows" is how many there were.
      labels: UNLABELLED and NO_CHOICE -> rows, without those whose label is withheld.
      first: what happened -> the number of the first such row.
    """

    def __init__(self, *, hide_labels: bool, ranked: bool = False) -> None:
        self._hide_labels = hide_labels
        self._ranked = ranked
        self.counts: Counter[str] = Counter(rows=0)
        self.labels: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def target(self, example: Example | None, withheld: bool, index: int) -> str | None:
        """Counts a row, and returns the target to be written, None if the row is dropped.

        Args:
          example: what the row rendered to.
          withheld: whether its label is withheld.
          index: its number in the split.
        """
        self.counts["rows"] += 1
        if example is None:
            self._note(self.counts, DROPPED, index)
            return None
        if withheld and self._hide_labels:
            self._note(self.counts, HIDDEN, index)
            return NO_LABEL
        target = example.targets
        if target == NO_LABEL:
            self._note(self.labels, UNLABELLED, index)
        choices = example.choices
        if choices is not None:
            correct = choices.count(target)
            if not correct:
                self._note(self.labels, NO_CHOICE, index)
            if correct != 1 and self._ranked:
                self._note(self.counts, NO_ONE_CORRECT, index)
        return target

    def _note(self, counts: Counter[str], what: str, index: int) -> None:
        counts[what] += 1
        self.first.setdefault(what, index)
